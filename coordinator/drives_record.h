/*
 * coordinator/drives_record.h - which drives were attached: a file in the run folder.
 *
 * What: attach, detach, a drive that is lost and a change of the device model hold until the
 * pipeline ends, so the coordinator that `hillinfer up` starts in place of a killed one begins with
 * them, not with what the options name. There is no file before the first change. A line a place:
 * state, cap in bytes, model, URL (in a place that is empty: the last one). Who calls it: main.c
 * (reads), the supervisor (writes, when a change is done), run_folder.c (removes). Concurrency: one
 * thread. Failure: a file that cannot be written is a line and no file, one that is damaged is a
 * line and none: then the options count.
 */
#pragma once

#include "base/csd_model.h"
#include "proto/layout.h"
#include "proto/options_hill.h"

enum drive_note_state { DRIVE_NOTE_NONE, DRIVE_NOTE_ATTACHED, DRIVE_NOTE_PLAIN };

struct drives_record {
    uint32_t n; /* places; 0: there is no record */
    struct drive_note {
        enum drive_note_state state;
        uint64_t cap_bytes;
        struct csd_model model;
        char url[HILL_PATH_BYTES + 32];
    } drives[LAYOUT_DRIVES_MAX];
};

/* In place of what is there. folder: the run folder's path. */
int drives_record_write(const char *folder, const struct drives_record *record,
                        struct hill_why *why);
/* out->n is 0 where there is none that is whole. */
void drives_record_read(const char *folder, struct drives_record *out);
void drives_record_remove(const char *folder);
