/*
 * base/stage_trace.c - the event ring, and the one that a process records its stages in; see
 * stage_trace.h.
 *
 * Event n lies in slot n % capacity. The writer claims n (the slot may be torn from now on), writes
 * the words, publishes n. The reader copies what is published, then looks at what is claimed: of
 * what it copied, events older than `claimed - capacity` may have been overwritten meanwhile and
 * are counted as lost.
 */
#include "base/stage_trace.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

const char *stage_name(uint32_t stage)
{
    static const char *const names[] = {
#define STAGE_NAME(name) #name,
        STAGE_LIST(STAGE_NAME)
#undef STAGE_NAME
    };
    return stage < STAGE_COUNT ? names[stage] : NULL;
}

/* ---- ring --------------------------------------------------------------------------------- */

struct stage_ring *stage_ring_create(uint32_t capacity)
{
    struct stage_ring *ring =
        calloc(1, sizeof *ring + (uint64_t)capacity * STAGE_EVENT_WORDS * sizeof(uint64_t));
    if (ring)
        ring->capacity = capacity;
    return ring;
}

void stage_ring_destroy(struct stage_ring *ring)
{
    free(ring);
}

static _Atomic uint64_t *slot_of(struct stage_ring *ring, uint64_t index)
{
    return ring->words + (index & (ring->capacity - 1)) * STAGE_EVENT_WORDS;
}

void stage_ring_put(struct stage_ring *ring, const struct stage_event *event)
{
    uint64_t words[STAGE_EVENT_WORDS];
    /* relaxed: single writer */
    uint64_t index = atomic_load_explicit(&ring->published, memory_order_relaxed);
    _Atomic uint64_t *slot = slot_of(ring, index);
    memcpy(words, event, sizeof words);
    /* relaxed: ordered before every word by the words' release */
    atomic_store_explicit(&ring->claimed, index + 1, memory_order_relaxed);
    /* release: a reader that sees one of these words sees the claim; pairs with the acquire loads
     * in copy_event */
    for (uint32_t i = 0; i < STAGE_EVENT_WORDS; i++)
        atomic_store_explicit(&slot[i], words[i], memory_order_release);
    /* release: the event is whole when it is counted; pairs with the acquire in stage_ring_take */
    atomic_store_explicit(&ring->published, index + 1, memory_order_release);
}

static void copy_event(struct stage_ring *ring, uint64_t index, struct stage_event *out)
{
    uint64_t words[STAGE_EVENT_WORDS];
    const _Atomic uint64_t *slot = slot_of(ring, index);
    /* acquire: pairs with the words' release in stage_ring_put */
    for (uint32_t i = 0; i < STAGE_EVENT_WORDS; i++)
        words[i] = atomic_load_explicit(&slot[i], memory_order_acquire);
    memcpy(out, words, sizeof words);
}

uint32_t stage_ring_take(struct stage_ring *ring, struct stage_event *out, uint32_t max,
                         uint64_t *lost)
{
    /* acquire: pairs with the release of published in stage_ring_put */
    uint64_t published = atomic_load_explicit(&ring->published, memory_order_acquire);
    if (published - ring->cursor > ring->capacity) {
        *lost += published - ring->capacity - ring->cursor;
        ring->cursor = published - ring->capacity;
    }
    uint64_t left = published - ring->cursor, first = ring->cursor;
    uint32_t n = left < max ? (uint32_t)left : max;
    for (uint32_t i = 0; i < n; i++)
        copy_event(ring, first + i, &out[i]);
    ring->cursor += n;
    /* relaxed: after the acquire loads of the words, so not older than what they showed */
    uint64_t claimed = atomic_load_explicit(&ring->claimed, memory_order_relaxed);
    uint64_t oldest = claimed > ring->capacity ? claimed - ring->capacity : 0;
    uint32_t torn = oldest > first ? (oldest - first < n ? (uint32_t)(oldest - first) : n) : 0;
    if (torn) {
        *lost += torn;
        memmove(out, out + torn, (n - torn) * sizeof *out);
    }
    return n - torn;
}

void stage_ring_forget(struct stage_ring *ring)
{
    /* acquire: as in stage_ring_take */
    ring->cursor = atomic_load_explicit(&ring->published, memory_order_acquire);
}

/* ---- this process's ----------------------------------------------------------------------- */

_Atomic bool stage_trace_enabled;

/* Made once, by the reader's thread; lives as long as the process: a span may be written at any
 * time. */
static struct stage_ring *_Atomic process_ring;

int stage_trace_switch(bool on)
{
    /* relaxed, all of the flag's: it is a wish; the ring's pointer is published by its release */
    bool was_on = atomic_load_explicit(&stage_trace_enabled, memory_order_relaxed);
    struct stage_ring *ring = atomic_load_explicit(&process_ring, memory_order_relaxed);
    if (on && !ring) {
        ring = stage_ring_create(STAGE_RING_EVENTS);
        if (!ring)
            return HILL_E_NOMEM;
        /* release: the ring is initialised; pairs with the acquire in stage_span_record */
        atomic_store_explicit(&process_ring, ring, memory_order_release);
    }
    if (on && !was_on)
        stage_ring_forget(ring);
    atomic_store_explicit(&stage_trace_enabled, on, memory_order_relaxed);
    return 0;
}

uint32_t stage_trace_take(struct stage_event *out, uint32_t max, uint64_t *lost)
{
    /* relaxed: this thread made it */
    struct stage_ring *ring = atomic_load_explicit(&process_ring, memory_order_relaxed);
    return ring ? stage_ring_take(ring, out, max, lost) : 0;
}

void stage_span_record(enum stage stage, const struct stage_span *span, uint64_t bytes)
{
    /* acquire: pairs with the release in stage_trace_switch */
    struct stage_ring *ring = atomic_load_explicit(&process_ring, memory_order_acquire);
    struct stage_event event = {.start_ns = span->start_ns,
                                .end_ns = clock_now_ns(),
                                .stage = (uint32_t)stage,
                                .sequence = span->sequence,
                                .step = span->step,
                                .layer = span->layer,
                                .bytes = bytes};
    if (ring)
        stage_ring_put(ring, &event);
}
