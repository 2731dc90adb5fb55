/* csd_agent/command_output.c - records into the output rings, now or when due; see
 * command_output.h. */
#include "csd_agent/command_output.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define WAIT_SLICE_MS 100 /* how soon a stop is noticed while an output ring is full */

int output_reserve(struct data_plane *plane, struct shm_ring_end *end, uint32_t bytes,
                   void **payload)
{
    int64_t deadline = clock_deadline_ms(OUTPUT_DEADLINE_MS);
    int status;

    while ((status = shm_ring_reserve(end, bytes, payload)) == HILL_E_WOULD_BLOCK) {
        if (plane->stopping && plane->stopping(plane->stopping_context)) {
            status = HILL_E_CANCELLED;
            break;
        }
        if (clock_now_ns() >= deadline) {
            log_error("the scorer has not taken a record for %d s; giving the rings up",
                      OUTPUT_DEADLINE_MS / 1000);
            status = HILL_E_TIMEOUT;
            break;
        }
        shm_ring_wait(end, bytes, clock_deadline_ms(WAIT_SLICE_MS));
    }
    if (status != 0)
        plane->lost = status;
    return status;
}

/* Send a record now. */
static int send(struct data_plane *plane, uint32_t type, const void *record, uint32_t bytes)
{
    struct shm_ring_end *end = type == RECORD_SCORE_BLOCK ? plane->score : plane->completion;
    void *payload;
    int status = output_reserve(plane, end, bytes, &payload);

    if (status != 0)
        return status;
    memcpy(payload, record, bytes);
    shm_ring_publish(end, type, bytes);
    return 0;
}

bool output_direct(const struct data_plane *plane)
{
    return !plane->drive.model.figures.on && plane->held.bytes == 0;
}

/* When the drive's own time for a command began. A query, FETCH or READ_KEYS waits in the modelled
 * flash until the one before has been answered: that wait belongs to the one before. */
static int64_t busy_since(struct data_plane *plane, const struct held_record *held, int64_t now)
{
    const struct record_completion *c = (const void *)held->payload;
    int64_t before = plane->held.read_done_ns;
    if (c->command != RECORD_AGENT_QUERY && c->command != RECORD_FETCH &&
        c->command != RECORD_READ_KEYS)
        return held->start_ns;
    plane->held.read_done_ns = now;
    return before > held->start_ns ? before : held->start_ns;
}

int output_send_due(struct data_plane *plane)
{
    struct held_record *held;
    int status = 0;

    while (status == 0 && (held = held_take(&plane->held, clock_now_ns()))) {
        if (held->type == RECORD_COMPLETION) {
            struct record_completion *completion = (void *)held->payload;
            int64_t now = clock_now_ns();
            completion->busy_ns = (uint64_t)(now - busy_since(plane, held, now));
            plane->drive.counters.lag_ns += (uint64_t)(now - held->due_ns);
        }
        status = send(plane, held->type, held->payload, held->bytes);
        free(held);
    }
    return status;
}

/* Sleep until something held is due and send it. */
static int wait_for_due(struct data_plane *plane)
{
    int64_t until = clock_deadline_ms(WAIT_SLICE_MS);

    if (held_next_ns(&plane->held) < until)
        until = held_next_ns(&plane->held);
    struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    if (plane->stopping && plane->stopping(plane->stopping_context))
        return plane->lost = HILL_E_CANCELLED;
    return output_send_due(plane);
}

struct held_record *output_hold_room(struct data_plane *plane, uint32_t bytes)
{
    uint64_t most = plane->held_max ? plane->held_max : HELD_BYTES_MAX;
    struct held_record *record = NULL;

    while (plane->lost == 0) {
        if (plane->held.bytes <= most)
            record = held_create(bytes);
        if (record)
            return record;
        if (plane->held.bytes == 0)
            plane->lost = HILL_E_NOMEM;
        else
            wait_for_due(plane); /* a failure is plane->lost */
    }
    return NULL;
}

int output_answer(struct data_plane *plane, enum held_stream stream,
                  const struct record_completion *completion, const struct drive_command *device)
{
    if (output_direct(plane))
        return send(plane, RECORD_COMPLETION, completion, sizeof *completion);
    struct held_record *held = output_hold_room(plane, sizeof *completion);
    if (!held)
        return plane->lost;
    int64_t now = clock_now_ns(), due = device->done > now ? device->done : now;
    if (completion->command == RECORD_TRIM && held_last_ns(&plane->held) > due)
        due = held_last_ns(&plane->held); /* what was drained before it is answered before it */
    memcpy(held->payload, completion, sizeof *completion);
    held->type = RECORD_COMPLETION;
    held->bytes = sizeof *completion;
    held->start_ns = device->start;
    held_add(&plane->held, stream, held, due);
    return output_send_due(plane);
}
