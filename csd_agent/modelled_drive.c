/* csd_agent/modelled_drive.c - see modelled_drive.h. */
#include "csd_agent/modelled_drive.h"

#include <math.h>

void drive_begin(struct drive_command *command, const struct modelled_drive *drive, int64_t now)
{
    command->start = command->done = now;
    command->ready = now + (int64_t)ceil(drive->model.figures.latency_us * 1000);
}

/* Something of the command ends then. */
static int64_t until(struct modelled_drive *drive, struct drive_command *command, int64_t due)
{
    const uint64_t *busy_ns = drive->model.busy_ns;
    drive->counters.flash_ns = busy_ns[DEVICE_FLASH_READ];
    drive->counters.dram_ns = busy_ns[DEVICE_DRAM];
    drive->counters.score_ns = busy_ns[DEVICE_SCORE];
    drive->counters.link_ns = busy_ns[DEVICE_LINK_UP] + busy_ns[DEVICE_LINK_DOWN];
    command->done = due > command->done ? due : command->done;
    return due;
}

int64_t drive_score(struct modelled_drive *drive, struct drive_command *command,
                    struct drive_digests read, uint64_t kv_bytes, uint64_t score_bytes)
{
    struct device_model *m = &drive->model;
    struct device_span at = device_at(command->ready);
    if (read.dram_bytes > 0)
        at = device_charge(m, DEVICE_DRAM, read.dram_bytes, at);
    if (read.flash_bytes > 0 || read.dram_bytes == 0) {
        struct device_span flash =
            device_charge(m, DEVICE_FLASH_READ, read.flash_bytes, device_at(command->ready));
        at.start = flash.start > at.start ? flash.start : at.start;
        at.due = flash.due > at.due ? flash.due : at.due;
    }
    at = device_charge(m, DEVICE_SCORE, kv_bytes, at);
    if (score_bytes > 0) /* a Score Block leaves when it is whole */
        at = device_charge(m, DEVICE_LINK_UP, score_bytes, device_at(at.due));
    return until(drive, command, at.due);
}

void drive_read(struct modelled_drive *drive, struct drive_command *command, uint64_t bytes)
{
    struct device_model *m = &drive->model;
    struct device_span at = device_charge(m, DEVICE_FLASH_READ, bytes, device_at(command->ready));
    at = device_charge(m, DEVICE_LINK_UP, bytes, at);
    command->ready = until(drive, command, at.due);
}

void drive_write(struct modelled_drive *drive, struct drive_command *command, uint64_t bytes)
{
    struct device_model *m = &drive->model;
    struct device_span at = device_charge(m, DEVICE_LINK_DOWN, bytes, device_at(command->ready));
    at = device_charge(m, DEVICE_FLASH_WRITE, bytes, at);
    until(drive, command, at.due);
}

void drive_end(struct modelled_drive *drive, const struct drive_command *command, int64_t now)
{
    Hill__CsdModelCounters *c = &drive->counters;
    if (command->done == command->start)
        return; /* it did not touch the drive */
    c->commands++;
    if (now <= command->done)
        return;
    uint64_t late = (uint64_t)(now - command->done);
    c->late++;
    c->late_ns += late;
    c->late_max_ns = late > c->late_max_ns ? late : c->late_max_ns;
}
