/*
 * csd_agent/modelled_drive.h - what commands are charged to a modelled drive (base/device_model.h).
 *
 * Of a command, `|` between stages that run at the same time:
 *
 *     scoring   flash read | DRAM read | scoring
 *                                         then, a Score Block at a time: link to the host
 *     fetch     flash read | link to the host
 *     demote    [flash read | link to the host, of pages that are partly overwritten]
 *               link to the drive | flash write
 *
 * Everything starts `latency` after the command's own start. Source: the paper's 4.1 and 4.3
 * (streamed Score Blocks, the two sides' rates). Who calls it: commands.c; its tests. Concurrency:
 * one thread. Failure: none.
 */
#pragma once

#include <stdint.h>

#include "base/device_model.h"
#include "proto/hill.pb-c.h"

struct modelled_drive {
    struct device_model model;
    Hill__CsdModelCounters counters;
};

/* A command on its way through the drive. */
struct drive_command {
    int64_t start; /* when it came */
    int64_t ready; /* before this nothing of it moves */
    int64_t done;  /* when all that was asked so far is done; start: nothing was */
};

/* Begin a command at `now`. Later changes of the figures hold for it too: change them between
 * commands. */
void drive_begin(struct drive_command *command, const struct modelled_drive *drive, int64_t now);

/* Where digests are read from. */
struct drive_digests {
    uint64_t flash_bytes, dram_bytes;
};

/* Score these digests, which stand for kv_bytes of FP16 K and V, and send score_bytes of scores;
 * returns when those are on the host. Calls of one command follow one another as its batches do. */
int64_t drive_score(struct modelled_drive *drive, struct drive_command *command,
                    struct drive_digests read, uint64_t kv_bytes, uint64_t score_bytes);

/* Read flash to the host; what is asked next waits for it. */
void drive_read(struct modelled_drive *drive, struct drive_command *command, uint64_t bytes);

/* Write from the host to flash. */
void drive_write(struct modelled_drive *drive, struct drive_command *command, uint64_t bytes);

/* The real work ended at `now`: count the command, and how late it was. */
void drive_end(struct modelled_drive *drive, const struct drive_command *command, int64_t now);

/* When its flash is free. */
static inline int64_t drive_flash_free(const struct modelled_drive *drive)
{
    return drive->model.free_at[DEVICE_FLASH_READ];
}
