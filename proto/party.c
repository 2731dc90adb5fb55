/* proto/party.c - see party.h. */
#include "proto/party.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "kv/plane.h"

#define RETRY_NS CLOCK_MS(5) /* nobody rings for a layout */
#define SPIN_NS  20000

/* ---- segments ----------------------------------------------------------------------------- */

static const char *const names[] = {"rings", "staging", "hot", "prompt"};

enum { RINGS, STAGING, HOT, PROMPT, SEGMENTS };

/* The epoch whose number is in the segment's name. */
static uint32_t made_in(const struct epoch_settings *s, int segment)
{
    return segment >= HOT && s->tiers_epoch ? s->tiers_epoch : s->epoch;
}

static void unlink_first(uint64_t run_id, uint32_t epoch, int n)
{
    char name[SHM_NAME_BYTES];
    for (int i = 0; i < n; i++) {
        shm_segment_name(name, run_id, epoch, names[i]);
        shm_segment_unlink(name);
    }
}

void epoch_unlink(uint64_t run_id, uint32_t epoch)
{
    unlink_first(run_id, epoch, SEGMENTS);
}

void epoch_unlink_data(uint64_t run_id, uint32_t epoch)
{
    unlink_first(run_id, epoch, HOT);
}

uint64_t epoch_held_bytes(uint64_t run_id, uint32_t epoch)
{
    char name[SHM_NAME_BYTES];
    uint64_t bytes = 0;
    for (int i = HOT; i < SEGMENTS; i++) {
        shm_segment_name(name, run_id, epoch, names[i]);
        bytes += shm_segment_held(name);
    }
    return bytes;
}

static int create_one(const struct epoch_settings *s, int which, uint64_t bytes,
                      struct hill_why *why)
{
    struct layout_input in = epoch_layout(s);
    struct shm_segment segment = {0};
    char name[SHM_NAME_BYTES];
    shm_segment_name(name, s->run_id, s->epoch, names[which]);
    int rc = (which == PROMPT ? shm_segment_create_empty : shm_segment_create)(
        &segment, name, bytes, layout_fingerprint(&in), s->epoch, why);
    if (!rc && which == HOT)
        shm_segment_place(&segment);
    shm_segment_detach(&segment);
    return rc;
}

int epoch_create(const struct epoch_settings *s, struct hill_why *why)
{
    struct layout_input in = epoch_layout(s);
    const uint64_t bytes[SEGMENTS] = {layout_rings_bytes(&in),
                                      kv_plan_staging_bytes(&s->plan, s->staging_slots),
                                      s->hot_bytes, kv_plan_prompt_bytes(&s->plan)};
    for (int i = 0; i < SEGMENTS; i++) {
        int rc = bytes[i] && made_in(s, i) == s->epoch ? create_one(s, i, bytes[i], why) : 0;
        if (rc && i == PROMPT) { /* it goes without */
            log_warn("prompts begin anew when a worker dies: %s", why ? why->text : "");
            rc = 0;
        }
        if (rc) {
            epoch_unlink(s->run_id, s->epoch);
            return rc;
        }
    }
    return 0;
}

/* ---- attaching ---------------------------------------------------------------------------- */

static void describe(struct party *p, enum layout_party who, const struct epoch_settings *s)
{
    memset(p, 0, sizeof *p);
    p->who = who;
    p->drive = who == PARTY_AGENT ? s->csd_drive : 0;
    p->layout = epoch_layout(s);
    p->staging_slots = s->staging_slots;
    p->agent_rings = who != PARTY_SCORER || (s->csd_attached && s->cold_cap_bytes);
    p->key_window_bytes =
        kv_key_window_bytes(&s->plan.geometry, s->plan.selection.policy, s->plan.ctx_tokens);
}

static struct shm_doorbell *own_bell(const struct party *p)
{
    void *rings = shm_segment_payload(&p->rings);
    return p->who == PARTY_AGENT ? layout_agent_bell(rings, &p->layout, p->drive)
                                 : layout_doorbell(rings, p->who);
}

/* What the settings say must fit into what is there. */
static int find_parts(struct party *p, struct hill_why *why)
{
    const struct kv_geometry *g = &p->layout.geometry;
    uint64_t given = shm_segment_payload_bytes(&p->staging);
    uint64_t needed = shm_arena_bytes(p->staging_slots, kv_entry_bytes(g));
    uint64_t at = kv_plan_windows_offset(g, p->staging_slots);
    uint64_t windows = KV_KEY_WINDOWS * (uint64_t)p->key_window_bytes;
    if (shm_segment_payload_bytes(&p->rings) < layout_rings_bytes(&p->layout))
        return hill_fail(why, HILL_E_DAMAGED, "segment %s is too small for its rings",
                         p->rings.name);
    if (!needed || needed > given)
        return hill_fail(why, HILL_E_INVALID,
                         "the staging segment has %llu bytes, %u slots need %llu",
                         (unsigned long long)given, p->staging_slots, (unsigned long long)needed);
    if (windows && (at > given || given - at < windows))
        return hill_fail(why, HILL_E_INVALID, "the staging segment has no room for key windows");
    p->key_windows = windows ? (uint8_t *)shm_segment_payload(&p->staging) + at : NULL;
    p->bell = own_bell(p);
    return 0;
}

static int finish_attach(struct party *p, int rc, struct hill_why *why)
{
    if (!rc)
        rc = find_parts(p, why);
    if (rc)
        party_leave(p);
    return rc;
}

int party_attach(struct party *p, enum layout_party who, const struct epoch_settings *s,
                 struct hill_why *why)
{
    describe(p, who, s);
    struct shm_segment *segments[] = {&p->rings, &p->staging, &p->hot};
    int rc = 0, n = who == PARTY_SCORER && s->hot_bytes ? HOT + 1 : HOT;
    for (int i = 0; !rc && i < n; i++) {
        char name[SHM_NAME_BYTES];
        uint32_t epoch = made_in(s, i);
        shm_segment_name(name, s->run_id, epoch, names[i]);
        rc = shm_segment_attach(segments[i], name, layout_fingerprint(&p->layout), epoch, why);
    }
    return finish_attach(p, rc, why);
}

int party_attach_alone(struct party *p, const struct epoch_settings *s, struct hill_why *why)
{
    describe(p, PARTY_SCORER, s);
    int rc = shm_segment_private(&p->rings, layout_rings_bytes(&p->layout), why);
    if (!rc)
        rc = shm_segment_private(&p->staging, kv_plan_staging_bytes(&s->plan, s->staging_slots),
                                 why);
    if (!rc && s->hot_bytes)
        rc = shm_segment_private(&p->hot, s->hot_bytes, why);
    return finish_attach(p, rc, why);
}

int party_attach_hot(struct party *p, const struct epoch_settings *s, struct hill_why *why)
{
    char name[SHM_NAME_BYTES];
    uint32_t epoch = made_in(s, HOT);
    shm_segment_name(name, s->run_id, epoch, names[HOT]);
    return shm_segment_attach_to_read(&p->hot, name, layout_fingerprint(&p->layout), epoch, why);
}

int party_attach_prompt(struct party *p, const struct epoch_settings *s, struct hill_why *why)
{
    char name[SHM_NAME_BYTES];
    uint32_t epoch = made_in(s, PROMPT);
    shm_segment_name(name, s->run_id, epoch, names[PROMPT]);
    return shm_segment_attach(&p->prompt, name, layout_fingerprint(&p->layout), epoch, why);
}

int epoch_kept(const struct epoch_settings *s, struct hill_why *why)
{
    struct party p;
    describe(&p, PARTY_SCORER, s);
    int rc = party_attach_hot(&p, s, why);
    uint64_t bytes = rc ? 0 : shm_segment_payload_bytes(&p.hot);
    if (!rc && (!s->hot_bytes || bytes != s->hot_bytes))
        rc = hill_fail(why, HILL_E_UNSUPPORTED, "%s has %llu bytes, not %llu", p.hot.name,
                       (unsigned long long)bytes, (unsigned long long)s->hot_bytes);
    party_leave(&p);
    return rc;
}

/* ---- opening ------------------------------------------------------------------------------ */

static bool has_end(const struct party *p, enum layout_ring ring)
{
    bool with_agent = ring >= RING_COMMAND;
    return p->who == PARTY_SCORER ? p->agent_rings || !with_agent
                                  : (p->who == PARTY_AGENT) == with_agent;
}

/* Of the ends that are not open yet. */
static int open_ends(struct party *p, struct hill_why *why)
{
    void *payload = shm_segment_payload(&p->rings);
    uint64_t bytes = shm_segment_payload_bytes(&p->rings);
    uint32_t n = p->who == PARTY_SCORER ? layout_rings(&p->layout) : RING_COUNT;
    for (uint32_t ring = 0; ring < n; ring++) {
        if (!has_end(p, ring) || p->ends[ring].ring)
            continue;
        enum layout_ring own = p->who == PARTY_AGENT ? layout_ring_of(ring, p->drive) : ring;
        int rc = layout_open(&p->ends[ring], payload, bytes, &p->layout, own, p->who);
        if (rc)
            return hill_fail(why, rc, "cannot open the %s ring in %s: %s", layout_ring_name(ring),
                             p->rings.name, hill_strerror(rc));
    }
    return 0;
}

static int lay_out(struct party *p, struct hill_why *why)
{
    void *staging = shm_segment_payload(&p->staging);
    int rc = shm_arena_init(staging, p->staging_slots, kv_entry_bytes(&p->layout.geometry));
    if (rc == 0)
        rc = shm_arena_own(&p->arena, staging, shm_segment_payload_bytes(&p->staging));
    if (rc)
        return hill_fail(why, rc, "cannot lay out the staging arena: %s", hill_strerror(rc));
    rc = layout_init(shm_segment_payload(&p->rings), shm_segment_payload_bytes(&p->rings),
                     &p->layout);
    return rc ? hill_fail(why, rc, "cannot lay out the rings in %llu bytes: %s",
                          (unsigned long long)shm_segment_payload_bytes(&p->rings),
                          hill_strerror(rc))
              : open_ends(p, why);
}

/* HILL_E_WOULD_BLOCK: the scorer has not come so far; an arena without its magic looks damaged. */
static int try_open(struct party *p, struct hill_why *why)
{
    uint32_t entry_bytes = kv_entry_bytes(&p->layout.geometry);
    int rc = open_ends(p, why);
    if (rc || p->arena.header)
        return rc;
    if (shm_arena_view(&p->arena, shm_segment_payload(&p->staging),
                       shm_segment_payload_bytes(&p->staging)))
        return HILL_E_WOULD_BLOCK;
    return p->arena.header->slot_bytes >= entry_bytes
               ? 0
               : hill_fail(why, HILL_E_DAMAGED,
                           "staging slots of %u bytes cannot hold entries of %u",
                           p->arena.header->slot_bytes, entry_bytes);
}

int party_open(struct party *p, const struct party_wait *wait, struct hill_why *why)
{
    if (p->who == PARTY_SCORER)
        return lay_out(p, why);
    for (;;) {
        uint32_t seen = shm_doorbell_read(p->bell);
        int rc = try_open(p, why);
        /* busy: the process before us has died but is still counted for a moment */
        if (rc != HILL_E_WOULD_BLOCK && rc != HILL_E_BUSY)
            return rc;
        rc = wait->waiting ? wait->waiting(wait->context, why) : 0;
        if (rc)
            return rc;
        int64_t now = clock_now_ns(), next = now + RETRY_NS;
        if (now >= wait->deadline_ns)
            return hill_fail(why, HILL_E_TIMEOUT,
                             "the scorer has not laid out the rings and staging in %s",
                             p->rings.name);
        shm_doorbell_wait(p->bell, seen, next < wait->deadline_ns ? next : wait->deadline_ns,
                          SPIN_NS);
    }
}

int party_beside(struct party *out, enum layout_party who, const struct party *p,
                 struct hill_why *why)
{
    *out = *p;
    out->who = who;
    out->drive = 0;
    out->hot = out->prompt = (struct shm_segment){0};
    memset(out->ends, 0, sizeof out->ends);
    memset(&out->arena, 0, sizeof out->arena);
    out->bell = own_bell(out);
    out->borrowed = true;
    int rc = try_open(out, why);
    if (rc)
        party_leave(out);
    return rc;
}

void party_leave(struct party *p)
{
    for (uint32_t ring = 0; ring < LAYOUT_RINGS_MAX; ring++)
        shm_ring_close(&p->ends[ring]);
    if (p->arena.header)
        shm_arena_finish(&p->arena);
    if (!p->borrowed) {
        shm_segment_detach(&p->rings);
        shm_segment_detach(&p->staging);
        shm_segment_detach(&p->hot);
        shm_segment_detach(&p->prompt);
    }
    memset(p, 0, sizeof *p);
}
