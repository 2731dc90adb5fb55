/*
 * coordinator/tiers_record.h - which segments outlive this coordinator: a file in the run folder.
 *
 * What: the number of the newest epoch and that of the epoch in which its hot and prompt segment
 * were made, with a sum over the settings that workers got for it, and the caps that were sized by
 * what was free then: the next coordinator measures others. It is written after an epoch's
 * segments are there and before any worker is told of them; who finds it after a kill has segments
 * that fit, or none. Which request has which slot is in the token logs. In the run folder, not in
 * the state folder: like the segments it is of no use after a boot. Who calls it: the coordinator:
 * run_folder.c before it removes segments, and the supervisor. Concurrency: one thread. Failure: a
 * file that cannot be written is a line and no file, one that is damaged is none: then nothing
 * outlives.
 */
#pragma once

#include "proto/epoch_settings.h"

#define TIERS_RECORD_NAME    "tiers"
#define TIERS_RECORD_MAGIC   UINT64_C(0x3153524549544c48) /* "HLTIERS1" */
#define TIERS_RECORD_VERSION 3u

struct tiers_record {
    uint64_t magic;
    uint32_t version;
    uint32_t epoch, tiers_epoch; /* tiers_epoch 0: nothing is left */
    uint32_t reserved;
    uint64_t run_id;
    uint64_t settings; /* tiers_record_settings */
    uint64_t asked;    /* the same before anything is measured (settings_asked) */
    uint64_t hot_cap_bytes, gpu_kv_cap_bytes, cold_cap_bytes;
    uint64_t drive_cap_bytes[LAYOUT_DRIVES_MAX]; /* of several drives, each; 0: it was not there */
    uint64_t checksum;                           /* xxHash64 of all before it */
};

_Static_assert(sizeof(struct tiers_record) == 112, "file format");

/* A sum over all that a worker is told but the epochs' numbers, beta, which a sequence keeps for
 * itself, speeds of drives, and the prefix store's caps, of which the tiers know nothing; 0: out of
 * memory. */
uint64_t tiers_record_settings(const struct epoch_settings *s);
/* In place of what is there. folder: the run folder's path. */
int tiers_record_write(const char *folder, const struct epoch_settings *s, uint64_t asked,
                       struct hill_why *why);
/* *out is zeros when there is none that is whole and of this run folder. */
void tiers_record_read(const char *folder, uint64_t run_id, struct tiers_record *out);
void tiers_record_remove(const char *folder);
