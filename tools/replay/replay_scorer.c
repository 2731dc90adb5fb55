/* tools/replay/replay_scorer.c - the scorer alone, see replay.h. */
#include "tools/replay/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/clock.h"
#include "cpu_scorer/epoch.h"
#include "proto/records.h"

#define STUCK_NS    CLOCK_MS(20000)
#define NO_DEADLINE (INT64_MAX / 4)

struct replay;

struct tap_context {
    struct replay *replay;
    enum layout_ring ring;
};

struct replay {
    struct recording_file *file;
    struct recording_event event; /* the next one, while `more` */
    bool more, differs;
    uint32_t looks;               /* that found nothing, still to come before the event */
    uint32_t credits[RING_COUNT]; /* as told last */
    struct hill_why *why;
    struct party own, gpu, agent; /* all three, over memory of this process alone */
    struct tap_context contexts[RING_COUNT];
    struct shm_ring_tap taps[RING_COUNT];
    struct scorer_config config;
    struct scorer *scorer;
    XXH64_state_t *hash; /* over everything published */
    uint64_t in, out;
    int64_t moved_ns; /* when the last event was met */
};

/* ---- walking through the recording -------------------------------------------------------- */

static void next_event(struct replay *r)
{
    r->more = recording_next(r->file, &r->event);
    r->looks = r->more ? r->event.looks : 0;
}

/* To the next event that needs something of the scorer: staging and windows, which are nobody's
 * at this point, are filled at once. */
static void settle(struct replay *r)
{
    const struct recording_event *e = &r->event;
    for (; r->more; next_event(r)) {
        if (e->kind == RECORDING_STAGING)
            memcpy(shm_arena_slot(&r->own.arena, e->type), e->payload, e->bytes);
        else if (e->kind == RECORDING_WINDOW)
            memcpy(r->own.key_windows + (uint64_t)e->type * r->config.key_window_bytes, e->payload,
                   e->bytes);
        else
            return;
    }
}

/* Entries come up between the first grant of room in the command ring and the RELEASE that tells
 * which they were: what their staging slots held is recorded after a second grant, and needed now.
 */
static void fill_staging_ahead(struct replay *r)
{
    struct recording_file ahead = *r->file; /* the mapping is shared; only the place is another */
    struct recording_event e;
    while (recording_next(&ahead, &e)) {
        if (e.kind == RECORDING_STAGING)
            memcpy(shm_arena_slot(&r->own.arena, e.type), e.payload, e.bytes);
        else if (e.kind != RECORDING_ROOM || e.ring != RING_COMMAND)
            return;
    }
}

static void advance(struct replay *r)
{
    r->moved_ns = clock_now_ns();
    next_event(r);
    settle(r);
}

/* Is this what comes now? Looks that found nothing come first. */
static bool is_next(const struct replay *r, enum recording_kind kind, enum layout_ring ring)
{
    return r->more && !r->differs && r->looks == 0 && r->event.kind == kind &&
           r->event.ring == ring;
}

/* One of the looks that found nothing then? */
static bool is_look(struct replay *r)
{
    if (!r->more || r->looks == 0)
        return false;
    r->looks--;
    return true;
}

static void fail(struct replay *r, const char *what, enum layout_ring ring, uint32_t type)
{
    if (r->differs)
        return;
    r->differs = true;
    hill_fail(r->why, HILL_E_DAMAGED,
              "the replay differs from the recording at event %" PRIu64 ": %s %s in the %s ring",
              r->event.number, what, record_name(type), layout_ring_name(ring));
}

static void compare_output(struct replay *r, enum layout_ring ring, uint32_t type,
                           const void *payload, uint32_t bytes)
{
    const struct recording_event *e = &r->event;
    uint32_t head[3] = {(uint32_t)ring, type, bytes};
    if (!is_next(r, RECORDING_OUT, ring) || e->type != type || e->bytes != bytes) {
        fail(r, "there was no such", ring, type);
        return;
    }
    if (memcmp(e->payload, payload, bytes) != 0) {
        uint32_t at = 0;
        while (e->payload[at] == ((const uint8_t *)payload)[at])
            at++;
        char what[64];
        snprintf(what, sizeof what, "byte %u of %u of the", at, bytes);
        fail(r, what, ring, type);
        return;
    }
    XXH64_update(r->hash, head, sizeof head);
    XXH64_update(r->hash, payload, bytes);
    r->out++;
    advance(r);
}

/* ---- what the scorer finds in the rings ---------------------------------------------------- */

/* The end of a ring that is not the scorer's. */
static struct shm_ring_end *other_end(struct replay *r, enum layout_ring ring)
{
    return ring < RING_COMMAND ? &r->gpu.ends[ring] : &r->agent.ends[ring];
}

/* What it published is taken away, as the others would. */
static void drain_outputs(struct replay *r)
{
    for (int ring = 0; ring < RING_COUNT; ring++) {
        struct shm_ring_end *end = other_end(r, (enum layout_ring)ring);
        uint32_t type, bytes;
        const void *payload;
        while (end->ring && !end->producer && shm_ring_peek(end, &type, &payload, &bytes) == 0)
            shm_ring_release(end);
    }
}

/* A record lies there when its turn has come, and not before. 1: look again. */
static uint32_t find_nothing(struct replay *r, enum layout_ring ring)
{
    const struct recording_event *e = &r->event;
    bool counted = ring < RING_COMMAND;
    if (counted && is_look(r))
        return 0;
    if (is_next(r, RECORDING_IN, ring)) {
        if (shm_ring_push(other_end(r, ring), e->type, e->payload, e->bytes) == 0)
            return 1;
        fail(r, "no room for the", ring, e->type);
    } else if (counted && r->more) {
        fail(r, "one look too many for a record, before the", ring, e->type);
    }
    return 0;
}

static uint32_t find_room(struct replay *r, enum layout_ring ring, uint32_t bytes)
{
    if (is_look(r))
        return 0;
    if (is_next(r, RECORDING_GONE, ring)) {
        advance(r);
        return SHM_RING_NOBODY;
    }
    if (!is_next(r, RECORDING_ROOM, ring) || r->event.bytes != bytes)
        return 0;
    if (ring == RING_COMMAND)
        fill_staging_ahead(r);
    advance(r);
    return 1;
}

static uint32_t find_credits(struct replay *r, enum layout_ring ring)
{
    if (is_next(r, RECORDING_CREDITS, ring)) {
        r->credits[ring] = r->event.bytes;
        advance(r);
    } else {
        is_look(r);
    }
    return r->credits[ring];
}

static uint32_t at_ring(void *context, enum shm_ring_moment moment, uint32_t type,
                        const void *payload, uint32_t bytes)
{
    const struct tap_context *c = context;
    struct replay *r = c->replay;
    switch (moment) {
    case SHM_RING_EMPTY:
        return find_nothing(r, c->ring);
    case SHM_RING_STILL:
        if (c->ring < RING_COMMAND && r->more && !is_look(r))
            fail(r, "one look too many at a record, before the", r->event.ring, r->event.type);
        return 1;
    case SHM_RING_DECIDES:
        if (r->more && !is_look(r))
            fail(r, "one turn too many of a query that waits, before the", r->event.ring,
                 r->event.type);
        return 0;
    case SHM_RING_PEEKED:
        r->in++;
        advance(r);
        return 1;
    case SHM_RING_PUBLISHED:
        compare_output(r, c->ring, type, payload, bytes);
        return 1;
    case SHM_RING_FULL:
        drain_outputs(r);
        return 1;
    case SHM_RING_RESERVED:
        return find_room(r, c->ring, bytes);
    case SHM_RING_GONE:
        return 0;
    default:
        return find_credits(r, c->ring);
    }
}

/* ---- the scorer's hook ------------------------------------------------------------------ */

static bool is_over(void *context)
{
    struct replay *r = context;
    drain_outputs(r);
    shm_doorbell_ring(r->own.bell); /* another look may find what this one was not to find */
    if (r->more && !r->differs && clock_now_ns() - r->moved_ns > STUCK_NS) {
        static const char *const waits[] = {[RECORDING_IN] = "unseen stays a",
                                            [RECORDING_OUT] = "missing is a",
                                            [RECORDING_ROOM] = "no room is asked for a",
                                            [RECORDING_CREDITS] = "no credits are asked for a",
                                            [RECORDING_GONE] = "nobody is missed in front of a"};
        fail(r, waits[r->event.kind], r->event.ring, r->event.type);
    }
    return !r->more || r->differs;
}

/* ---- life --------------------------------------------------------------------------------- */

static int open_parties(struct replay *r)
{
    int rc = party_attach_alone(&r->own, &r->file->settings, r->why);
    if (rc == 0)
        rc = party_open(&r->own, NULL, r->why);
    if (rc == 0)
        rc = party_beside(&r->gpu, PARTY_GPU, &r->own, r->why);
    if (rc == 0)
        rc = party_beside(&r->agent, PARTY_AGENT, &r->own, r->why);
    for (int ring = 0; rc == 0 && ring < RING_COUNT; ring++) {
        r->contexts[ring] = (struct tap_context){r, (enum layout_ring)ring};
        r->taps[ring] = (struct shm_ring_tap){&r->contexts[ring], at_ring};
        r->own.ends[ring].tap = &r->taps[ring];
    }
    return rc;
}

static int open_scorer(struct replay *r)
{
    const struct scorer_hooks hooks = {.context = r, .interrupted = is_over};
    int rc = epoch_config(&r->config, &r->file->settings, r->why);
    if (rc == 0 && r->file->settings.hot_bytes == 0)
        rc = hill_fail(r->why, HILL_E_DAMAGED, "the recording's hot_bytes is out of range");
    if (rc == 0)
        rc = open_parties(r);
    if (rc)
        return rc;
    r->config.agent_deadline_ns = NO_DEADLINE;
    r->config.csd_model.on = false; /* at full speed */
    struct scorer_io io = epoch_io(&r->own);
    return scorer_create(&r->scorer, &r->config, &io, &hooks, r->why);
}

static void finish(struct replay *r)
{
    scorer_destroy(r->scorer);
    for (int ring = 0; ring < RING_COUNT; ring++)
        r->own.ends[ring].tap = NULL;
    party_leave(&r->gpu);
    party_leave(&r->agent);
    party_leave(&r->own);
    XXH64_freeState(r->hash);
}

static int run(struct replay *r)
{
    r->moved_ns = clock_now_ns();
    next_event(r);
    settle(r);
    int rc = scorer_run(r->scorer);
    if (r->differs)
        return HILL_E_DAMAGED;
    return rc == HILL_E_CANCELLED
               ? 0
               : hill_fail(r->why, rc, "the scorer ended: %s", hill_strerror(rc));
}

int replay_cpu_scorer(struct recording_file *file, const char *url, struct replay_result *result,
                      struct hill_why *why)
{
    struct replay r = {.file = file, .hash = XXH64_createState(), .why = why};
    (void)url;
    int rc = r.hash ? 0 : hill_fail(why, HILL_E_NOMEM, "out of memory");
    if (rc == 0) {
        XXH64_reset(r.hash, 0);
        rc = open_scorer(&r);
        if (rc && !why->text[0])
            hill_fail(why, rc, "cannot set up the recording's scorer: %s", hill_strerror(rc));
    }
    int64_t start = clock_now_ns();
    if (rc == 0)
        rc = run(&r);
    if (rc == 0)
        *result =
            (struct replay_result){r.in, r.out, XXH64_digest(r.hash), clock_now_ns() - start, 0};
    finish(&r);
    return rc;
}
