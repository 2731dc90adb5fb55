/* csd_agent/held_output.c - see held_output.h. */
#include "csd_agent/held_output.h"

#include <stdlib.h>

struct held_record *held_create(uint32_t room)
{
    struct held_record *record = malloc(sizeof *record + room);

    if (record)
        *record = (struct held_record){.room = room};
    return record;
}

void held_add(struct held_output *held, enum held_stream stream, struct held_record *record,
              int64_t due_ns)
{
    struct held_record *last = held->streams[stream].last;

    record->due_ns = last && last->due_ns > due_ns ? last->due_ns : due_ns;
    record->order = held->next_order++;
    record->next = NULL;
    if (last)
        last->next = record;
    else
        held->streams[stream].first = record;
    held->streams[stream].last = record;
    held->bytes += record->room;
}

int64_t held_last_ns(const struct held_output *held)
{
    int64_t last = INT64_MIN;

    for (int s = 0; s < HELD_STREAMS; s++)
        if (held->streams[s].last && held->streams[s].last->due_ns > last)
            last = held->streams[s].last->due_ns;
    return last;
}

/* The stream whose first record leaves next; HELD_STREAMS: none are held. */
static int next_stream(const struct held_output *held)
{
    const struct held_record *best = NULL;
    int stream = HELD_STREAMS;

    for (int s = 0; s < HELD_STREAMS; s++) {
        const struct held_record *r = held->streams[s].first;
        if (r && (!best || r->due_ns < best->due_ns ||
                  (r->due_ns == best->due_ns && r->order < best->order))) {
            best = r;
            stream = s;
        }
    }
    return stream;
}

int64_t held_next_ns(const struct held_output *held)
{
    int stream = next_stream(held);

    return stream == HELD_STREAMS ? INT64_MAX : held->streams[stream].first->due_ns;
}

struct held_record *held_take(struct held_output *held, int64_t now)
{
    int stream = next_stream(held);

    if (stream == HELD_STREAMS || held->streams[stream].first->due_ns > now)
        return NULL;
    struct held_record *record = held->streams[stream].first;
    held->streams[stream].first = record->next;
    if (!record->next)
        held->streams[stream].last = NULL;
    held->bytes -= record->room;
    return record;
}

void held_finish(struct held_output *held)
{
    for (struct held_record *record; (record = held_take(held, INT64_MAX));)
        free(record);
}
