/*
 * csd_agent/device_model.h - when a modelled drive would be done: busy-until clocks, no I/O, no
 * waiting.
 *
 * What: a drive has flash (reads, writes and in-storage reads share it), a scorer, and a link in
 * each direction. Each is a queue that is served in order: it is free from some time on, and what
 * is asked of it starts then, or when its input starts to come if that is later. Stages of one
 * transfer run at the same time (bytes flow on as they come), so that it takes what the slowest
 * stage takes, not their sum; a stage never ends before its input has. Of a command:
 *
 *     scoring   flash read | scoring      then, a Score Block at a time: link to the host
 *     fetch     flash read | link to the host
 *     demote    [flash read | link to the host, of pages that are partly overwritten]
 *               link to the drive | flash write
 *
 * Everything starts `latency` after the command's own start. Times are nanoseconds of whatever
 * clock the caller uses. Source: the paper's 4.1 and 4.3 (streamed Score Blocks, the two sides'
 * rates). Who calls it: commands.c; its tests. Concurrency: one thread. Failure: none; figures are
 * checked by base/csd_model.h.
 */
#ifndef HILL_CSD_AGENT_DEVICE_MODEL_H
#define HILL_CSD_AGENT_DEVICE_MODEL_H

#include <stdint.h>

#include "base/csd_model.h"

struct device_counters {
    uint64_t commands;                    /* that took modelled time */
    uint64_t flash_ns, score_ns, link_ns; /* modelled busy time; link: both directions */
    uint64_t late;                 /* commands that the real drive finished after their time */
    uint64_t late_ns, late_max_ns; /* by how much, together and at most */
    uint64_t lag_ns; /* between a completion's time and its being sent: wake-ups and other work */
};

struct device_model {
    struct csd_model figures;
    int64_t flash_free, score_free, up_free, down_free; /* busy until; up: to the host */
    struct device_counters counters;
};

/* A command on its way through the device. */
struct device_command {
    int64_t start; /* when it came */
    int64_t ready; /* before this nothing of it moves */
    int64_t done;  /* when all that was asked so far is done; start: nothing was */
};

/* Begin a command at `now`. Later changes of the figures hold for it too: change them between
 * commands. */
void device_command_begin(struct device_command *command, const struct device_model *model,
                          int64_t now);

/* Score digests of flash_bytes that stand for kv_bytes of FP16 K and V and send score_bytes of
 * scores; returns when those are on the host. Calls of one command follow one another as its
 * batches do. */
int64_t device_model_score(struct device_model *model, struct device_command *command,
                           uint64_t flash_bytes, uint64_t kv_bytes, uint64_t score_bytes);

/* Read flash to the host; what is asked next waits for it. */
void device_model_read(struct device_model *model, struct device_command *command, uint64_t bytes);

/* Write from the host to flash. */
void device_model_write(struct device_model *model, struct device_command *command, uint64_t bytes);

/* The real work ended at `now`: count the command, and how late it was. */
void device_command_end(struct device_model *model, const struct device_command *command,
                        int64_t now);

#endif
