/*
 * base/stage_trace.h - what a worker does when: spans of its stages, in a ring and as USDT probes.
 *
 * What: STAGE_BEGIN and STAGE_END mark the borders of a stage in the code. Each is a probe of
 * provider `hillinfer` (`perf list`, `bpftrace -l 'usdt:build/bin/hill-cpu-scorer:hillinfer:*'`),
 * named <stage>_begin with sequence, step, layer and <stage>_end with the same and bytes. While
 * tracing is on (`hillctl trace`) STAGE_END also writes a span into this process's ring, which
 * keeps the newest STAGE_RING_EVENTS. Times are CLOCK_MONOTONIC, so that the spans of several
 * processes line up.
 * Cost: off, a no-op instruction a border and one relaxed load a span; on, two clock readings and
 * seven stores.
 * Who calls it: the macros, the workers' data loops; the rest, proto/worker_trace.c.
 * Concurrency: spans are written by ONE thread of a process, the data loop's; one other thread
 * reads; no lock. A span that is overwritten while it is read is counted as lost, never torn.
 * Failure: no memory for the ring is HILL_E_NOMEM when tracing is switched on; it stays off.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <sys/sdt.h>

#include "base/clock.h"

/* Every stage, in the order of the tracks of a trace. A stage's probes carry its name. */
#define STAGE_LIST(STAGE)                                                                          \
    STAGE(prefill)         /* GPU worker: waits for a chunk of a layer of a prompt */              \
    STAGE(append)          /* GPU worker: its entries read into APPEND records */                  \
    STAGE(query)           /* GPU worker: the device makes query and entry; both are sent */       \
    STAGE(await_selection) /* GPU worker: until the scorer has answered all rows */                \
    STAGE(upload)          /* GPU worker: uploads of the selection given to the device */          \
    STAGE(attend)          /* GPU worker: attention and the rest of the layer launched */          \
    STAGE(logits)          /* GPU worker: waits for the last layer and its logits */               \
    STAGE(answer)          /* scorer: a query, from its arrival to its answer */                   \
    STAGE(bounds)          /* scorer: leoam's search for the chunks whose keys are read */         \
    STAGE(score_hot)       /* scorer: keys in the hot pool */                                      \
    STAGE(score_cold)      /* scorer: waits for the drive's scores when its own are done */        \
    STAGE(merge)           /* scorer: hot scores into the selector */                              \
    STAGE(select)          /* scorer: the positions of the selection */                            \
    STAGE(gather)          /* scorer: selected entries into staging, fetches included */           \
    STAGE(agent_score)     /* agent: a query's scores from flash, Score Blocks sent */             \
    STAGE(agent_fetch)     /* agent: selected entries from flash into staging */                   \
    STAGE(agent_demote)    /* agent: entries and digests onto flash */                             \
    STAGE(agent_commit)    /* agent: written slots count from now on */                            \
    STAGE(agent_release)   /* agent: slots of entries that moved up are free */                    \
    STAGE(agent_trim)      /* agent: a sequence's stripes are freed */

enum stage {
#define STAGE_ENUM(name) STAGE_##name,
    STAGE_LIST(STAGE_ENUM)
#undef STAGE_ENUM
        STAGE_COUNT
};

/* "query"; NULL for a number that is none. */
const char *stage_name(uint32_t stage);

/* One span, also as it travels to hillctl: little endian, no padding. */
struct stage_event {
    int64_t start_ns, end_ns;
    uint32_t stage, sequence, step, layer;
    uint64_t bytes; /* what the stage moved or read; 0: nothing to tell */
};

_Static_assert(sizeof(struct stage_event) == 40, "stage event layout");

/* ---- the ring: a single writer, a single reader ---- */

#define STAGE_EVENT_WORDS 5u

struct stage_ring {
    uint64_t capacity;          /* events, a power of two */
    _Atomic uint64_t claimed;   /* writer: events whose slots may have been touched */
    _Atomic uint64_t published; /* writer: events that are whole */
    uint64_t cursor;            /* reader: the next one to read */
    _Atomic uint64_t words[];   /* [capacity][STAGE_EVENT_WORDS] */
};

/* NULL without memory. capacity: a power of two. */
struct stage_ring *stage_ring_create(uint32_t capacity);
void stage_ring_destroy(struct stage_ring *ring); /* for tests: a process keeps its ring */
/* Writer: never waits; the oldest event makes room. */
void stage_ring_put(struct stage_ring *ring, const struct stage_event *event);
/* Reader: up to max of the oldest unread events into out, returns how many; *lost grows by those
 * that were overwritten unread. */
uint32_t stage_ring_take(struct stage_ring *ring, struct stage_event *out, uint32_t max,
                         uint64_t *lost);
/* Reader: what was put so far is not of interest. */
void stage_ring_forget(struct stage_ring *ring);

/* ---- this process's ring ---- */

#define STAGE_RING_EVENTS 65536u /* 2.5 MiB, taken when tracing is first switched on */

extern _Atomic bool stage_trace_enabled;

/* Reader's thread. On: what was recorded before is forgotten, if it was off; 0 or HILL_E_NOMEM. */
int stage_trace_switch(bool on);
/* Reader's thread: as stage_ring_take; 0 when tracing was never on. */
uint32_t stage_trace_take(struct stage_event *out, uint32_t max, uint64_t *lost);

/* ---- the macros' parts ---- */

struct stage_span {
    int64_t start_ns; /* 0: tracing was off when the stage began */
    uint32_t sequence, step, layer;
};

static inline struct stage_span stage_span_open(uint32_t sequence, uint32_t step, uint32_t layer)
{
    /* relaxed: whether a span more or less is recorded at the switch does not matter */
    bool on = atomic_load_explicit(&stage_trace_enabled, memory_order_relaxed);
    return (struct stage_span){on ? clock_now_ns() : 0, sequence, step, layer};
}

void stage_span_record(enum stage stage, const struct stage_span *span, uint64_t bytes);

/* A stage begins here; its STAGE_END is in the same block or in one within it. */
#define STAGE_BEGIN(name, seq, at_step, at_layer)                                                  \
    const struct stage_span stage_span_##name = stage_span_open(seq, at_step, at_layer);           \
    DTRACE_PROBE3(hillinfer, name##_begin, stage_span_##name.sequence, stage_span_##name.step,     \
                  stage_span_##name.layer)

/* The same for a record that starts with a header of these three. */
#define STAGE_BEGIN_AT(name, header)                                                               \
    STAGE_BEGIN(name, (header)->sequence, (header)->step, (header)->layer)

/* It ends, having moved so many bytes. A path that leaves without it (an error) records nothing. */
#define STAGE_END(name, n_bytes)                                                                   \
    do {                                                                                           \
        const uint64_t stage_bytes = (n_bytes);                                                    \
        DTRACE_PROBE4(hillinfer, name##_end, stage_span_##name.sequence, stage_span_##name.step,   \
                      stage_span_##name.layer, stage_bytes);                                       \
        if (stage_span_##name.start_ns)                                                            \
            stage_span_record(STAGE_##name, &stage_span_##name, stage_bytes);                      \
    } while (0)
