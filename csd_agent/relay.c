/* csd_agent/relay.c - see relay.h. */
#include "csd_agent/relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "proto/drive_link.h"
#include "proto/records.h"

#define READY_MS   60000 /* for the drive to open its pool, which it may have to format */
#define SLICE_MS   100
#define HELD_MS    5   /* for room in a ring, before the other directions are looked at again */
#define OVERHEAD   64u /* of a record in a ring */
#define DEVICE_MAX 400

/* A command that the drive has not completed. */
struct open_command {
    struct open_command *next;
    uint64_t tag;
    uint32_t type, ring, bytes;
    uint32_t got;                  /* FETCH: entries; READ_KEYS: bytes */
    bool stale;                    /* a staging slot was given back meanwhile */
    _Alignas(16) uint8_t record[]; /* what was checked and sent: the ring's can change */
};

struct relay {
    struct drive_link *link;
    struct worker_link *worker;
    struct party *party; /* NULL: between epochs */
    uint32_t epoch, ready_epoch;
    struct open_command *open;
    uint64_t in_flight[RING_COUNT]; /* bytes of commands, by ring */
    struct drive_message *held;     /* waits for room in its ring */
    uint64_t completed;
    int failed; /* what the drive said, in why */
    struct hill_why why;
    char device[DEVICE_MAX];
    uint64_t resident_bytes;
};

bool relay_serves(const char *url)
{
    return strncmp(url, "tcp:", 4) == 0;
}

int relay_open(struct relay **out, const struct epoch_settings *s, struct worker_link *worker,
               struct hill_why *why)
{
    struct drive_keys keys;
    struct hill_why detail = {""};
    *out = NULL;
    if (!s->csd_key[0] || !s->csd_peer[0])
        return hill_fail(why, HILL_E_INVALID, "%.200s needs --csd-key and --csd-peer", s->csd_url);
    int rc = drive_keys_read(&keys, s->csd_key, s->csd_peer, why);
    if (!rc && (rc = drive_keys_choose(&keys, s->csd_url, &detail)) != 0)
        hill_fail(why, rc, "--csd-peer %.200s: %.300s", s->csd_peer, detail.text);
    struct relay *r = rc ? NULL : calloc(1, sizeof *r);
    if (!rc && !r)
        rc = hill_fail(why, HILL_E_NOMEM, "no memory for a relay");
    if (!rc)
        rc = drive_link_connect(&r->link, s->csd_url, &keys, why);
    explicit_bzero(&keys, sizeof keys);
    if (rc) {
        free(r);
        return rc;
    }
    r->worker = worker;
    *out = r;
    return 0;
}

void relay_end(struct relay *r)
{
    if (!r)
        return;
    while (r->open) {
        struct open_command *c = r->open;
        r->open = c->next;
        free(c);
    }
    free(r->held);
    r->held = NULL;
    memset(r->in_flight, 0, sizeof r->in_flight);
    r->party = NULL;
    drive_link_set_doorbell(r->link, NULL);
}

void relay_close(struct relay *r)
{
    if (!r)
        return;
    relay_end(r);
    drive_link_close(r->link);
    free(r);
}

void relay_set_doorbell(struct relay *r, struct shm_doorbell *bell)
{
    drive_link_set_doorbell(r->link, bell);
}

const char *relay_device(const struct relay *r, uint64_t *resident_bytes)
{
    *resident_bytes = r->resident_bytes;
    return r->device;
}

void relay_tell(struct relay *r, const Hill__Message *message)
{
    drive_link_tell(r->link, message); /* a lost link is found elsewhere */
}

/* ---- what the drive says ----------------------------------------------------------------- */

static int take_control(struct relay *r, const struct drive_message *m, struct hill_why *why)
{
    Hill__Message *message;
    int rc = drive_control_read(m, &message, why);
    if (rc)
        return rc;
    if (message->body_case == HILL__MESSAGE__BODY_READY) {
        r->ready_epoch = message->ready->epoch;
        r->resident_bytes = message->ready->resident_bytes;
        snprintf(r->device, sizeof r->device, "%s", message->ready->device);
    } else if (message->body_case == HILL__MESSAGE__BODY_FAILURE) {
        r->failed = message->failure->code < 0 ? message->failure->code : HILL_E_PROTOCOL;
        hill_fail(&r->why, r->failed, "%.400s", message->failure->text);
    } else if (message->body_case == HILL__MESSAGE__BODY_CSD_MODEL_COUNTERS) {
        worker_link_send(r->worker, message);
    } else {
        rc = hill_fail(why, HILL_E_PROTOCOL, "a control message of kind %d",
                       (int)message->body_case);
    }
    proto_free(message);
    return rc;
}

static struct open_command **find(struct relay *r, uint64_t tag, uint32_t type)
{
    struct open_command **at = &r->open;
    while (*at && ((*at)->tag != tag || (type && (*at)->type != type)))
        at = &(*at)->next;
    return at;
}

static int take_entries(struct relay *r, struct open_command *c, const struct drive_message *m,
                        struct hill_why *why)
{
    const struct record_fetch *record = (const void *)c->record;
    const struct fetch_item *items = (const struct fetch_item *)(record + 1);
    struct shm_arena *staging = &r->party->arena;
    uint64_t entry = kv_entry_bytes(&r->party->layout.geometry);
    if (m->frame.a != c->got || m->frame.b > record->n_entries - c->got ||
        m->bytes != m->frame.b * entry)
        return hill_fail(why, HILL_E_PROTOCOL, "%u bytes as entries %u.. of a FETCH of %u",
                         m->bytes, m->frame.a, record->n_entries);
    for (uint32_t i = 0; i < m->frame.b; i++) {
        const struct fetch_item *item = &items[m->frame.a + i];
        bool there = item->staging_slot < staging->slot_count &&
                     shm_arena_generation(staging, item->staging_slot) == item->generation;
        if (there)
            memcpy(shm_arena_slot(staging, item->staging_slot), m->payload + i * entry, entry);
        c->stale |= !there;
    }
    c->got += m->frame.b;
    return 0;
}

static int take_keys(struct relay *r, struct open_command *c, const struct drive_message *m,
                     struct hill_why *why)
{
    const struct record_read_keys *record = (const void *)c->record;
    uint32_t room = r->party->key_windows ? r->party->key_window_bytes : 0;
    if (m->frame.b || m->frame.a != c->got || m->bytes > room - c->got)
        return hill_fail(why, HILL_E_PROTOCOL, "%u bytes of keys at %u of a window of %u", m->bytes,
                         m->frame.a, room);
    memcpy(r->party->key_windows + (uint64_t)record->window * room + c->got, m->payload, m->bytes);
    c->got += m->bytes;
    return 0;
}

static int take_data(struct relay *r, const struct drive_message *m, struct hill_why *why)
{
    struct open_command *c = *find(r, m->frame.tag, m->frame.b ? RECORD_FETCH : RECORD_READ_KEYS);
    if (!c)
        return hill_fail(why, HILL_E_PROTOCOL, "data of a command that is not open");
    return c->type == RECORD_FETCH ? take_entries(r, c, m, why) : take_keys(r, c, m, why);
}

/* The answer to an open command, which it closes. */
static int close_command(struct relay *r, struct record_completion *record, struct hill_why *why)
{
    struct open_command **at = find(r, record->tag, record->command), *c = *at;
    if (!c)
        return hill_fail(why, HILL_E_PROTOCOL, "a completion of a command that is not open");
    uint64_t wanted = c->type == RECORD_FETCH
                          ? ((const struct record_fetch *)(const void *)c->record)->n_entries
                          : record->link_key_bytes;
    bool reads = c->type == RECORD_FETCH || c->type == RECORD_READ_KEYS;
    if (reads && !record->status && c->got != wanted)
        return hill_fail(why, HILL_E_PROTOCOL, "%u of %llu came before the completion of a %s",
                         c->got, (unsigned long long)wanted, record_name(c->type));
    if (c->stale && !record->status) {
        record->status = HILL_E_PROTOCOL;
        record->count = 0;
    }
    r->in_flight[c->ring] -= c->bytes;
    r->completed++;
    *at = c->next;
    free(c);
    return 0;
}

static int check_record(struct relay *r, struct drive_message *m, struct hill_why *why)
{
    const struct party *p = r->party;
    uint32_t ring = m->frame.a, type = m->frame.b;
    bool fits = (ring == RING_SCORE && type == RECORD_SCORE_BLOCK) ||
                (ring == RING_COMPLETION && type == RECORD_COMPLETION);
    if (!fits || m->bytes > shm_ring_payload_max(&p->ends[ring]))
        return hill_fail(why, HILL_E_PROTOCOL, "a record of type %u for ring %u", type, ring);
    int rc =
        record_check(type, m->payload, m->bytes, &p->layout.geometry, p->layout.n_sequences, why);
    return rc || type != RECORD_COMPLETION ? rc : close_command(r, (void *)m->payload, why);
}

/* 1: it is in its ring; 0: no room for some ms. */
static int push(struct relay *r, struct drive_message *m)
{
    struct shm_ring_end *end = &r->party->ends[m->frame.a];
    int rc = shm_ring_push(end, m->frame.b, m->payload, m->bytes);
    if (rc != HILL_E_WOULD_BLOCK)
        return rc ? rc : 1;
    rc = shm_ring_wait(end, m->bytes, clock_deadline_ms(HELD_MS));
    return rc == HILL_E_TIMEOUT ? 0 : rc;
}

/* Of an epoch whose rings are not there yet, or any more: dropped. *keep: it is for a ring. */
static int take(struct relay *r, struct drive_message *m, bool *keep, struct hill_why *why)
{
    bool serving = r->party && r->ready_epoch == r->epoch;
    int rc = 0;
    *keep = false;
    if (m->frame.kind == DRIVE_CONTROL)
        return take_control(r, m, why);
    if (m->frame.kind != DRIVE_DATA && m->frame.kind != DRIVE_RECORD)
        return hill_fail(why, HILL_E_PROTOCOL, "a message of kind %u", m->frame.kind);
    if (serving)
        rc = m->frame.kind == DRIVE_DATA ? take_data(r, m, why) : check_record(r, m, why);
    *keep = serving && !rc && m->frame.kind == DRIVE_RECORD;
    return rc;
}

/* What is held, into its ring: 1, or 0 while that is full. */
static int push_held(struct relay *r, bool *own)
{
    int rc = push(r, r->held);
    if (rc == 0)
        return 0;
    free(r->held);
    r->held = NULL;
    *own = rc < 0;
    return rc;
}

/* 1: something has come; 0: nothing, or its ring is full. */
static int take_all(struct relay *r, bool *own, struct hill_why *why)
{
    struct drive_message *m;
    int moved = 0;
    *own = false;
    for (;;) {
        int rc = r->held ? push_held(r, own) : 1;
        if (rc != 1)
            return rc ? rc : moved;
        m = drive_link_poll(r->link);
        if (!m)
            return moved;
        bool keep;
        rc = take(r, m, &keep, why);
        if (keep)
            r->held = m;
        else
            free(m);
        if (rc)
            return rc;
        moved = 1;
    }
}

/* ---- commands ---------------------------------------------------------------------------- */

static uint64_t tag_of(uint32_t type, const void *payload, uint32_t bytes)
{
    uint64_t tag = 0;
    if (type == RECORD_AGENT_QUERY && bytes >= sizeof(struct record_agent_query))
        return ((const struct record_agent_query *)payload)->query_id;
    if (bytes >= sizeof(struct record_header) + sizeof tag)
        memcpy(&tag, (const uint8_t *)payload + sizeof(struct record_header), sizeof tag);
    return tag;
}

/* NULL: no memory. */
static struct open_command *copy_command(uint32_t ring, uint32_t type, const void *payload,
                                         uint32_t bytes)
{
    struct open_command *c = malloc(sizeof *c + bytes);
    if (!c)
        return NULL;
    *c = (struct open_command){.type = type, .ring = ring, .bytes = bytes + OVERHEAD};
    memcpy(c->record, payload, bytes);
    c->tag = tag_of(type, c->record, bytes);
    return c;
}

static void note_open(struct relay *r, struct open_command *c)
{
    struct open_command **last = &r->open;
    while (*last)
        last = &(*last)->next;
    *last = c;
    r->in_flight[c->ring] += c->bytes;
}

/* A record that nobody would answer does not go: the scorer has not sent it. */
static bool is_whole(const struct relay *r, uint32_t type, const void *record, uint32_t bytes)
{
    struct hill_why why = {""};
    int rc = record_check(type, record, bytes, &r->party->layout.geometry,
                          r->party->layout.n_sequences, &why);
    if (rc)
        log_warn("dropped a bad record for the drive: %s", why.text);
    return !rc && ((const struct record_header *)record)->epoch == r->epoch;
}

/* The next record of a ring: 1 it went, 0 there is none or no credit now. */
static int send_one(struct relay *r, enum layout_ring ring)
{
    struct shm_ring_end *end = &r->party->ends[ring];
    uint32_t type, bytes;
    const void *payload;
    int rc = shm_ring_peek(end, &type, &payload, &bytes);
    if (rc)
        return rc == HILL_E_WOULD_BLOCK ? 0 : rc;
    if (r->in_flight[ring] && r->in_flight[ring] + bytes + OVERHEAD > end->capacity / 2)
        return 0;
    struct open_command *c = copy_command(ring, type, payload, bytes);
    if (!c)
        return HILL_E_NOMEM;
    bool whole = is_whole(r, type, c->record, bytes);
    if (whole) {
        const struct drive_frame frame = {.kind = DRIVE_RECORD, .a = ring, .b = type};
        rc = drive_link_send(r->link, &frame, c->record, bytes);
    }
    if (whole && !rc)
        note_open(r, c);
    else
        free(c);
    if (rc) /* lost: it is found so */
        return rc == HILL_E_WOULD_BLOCK || rc == HILL_E_PEER_GONE ? 0 : rc;
    shm_ring_release(end);
    return 1;
}

/* What has come on the command ring before a record came on the other goes before that [I18]. */
static int send_all(struct relay *r)
{
    const void *payload;
    uint32_t type, bytes;
    int rc, moved = 0;
    while ((rc = send_one(r, RING_COMMAND)) == 1)
        moved = 1;
    if (rc || shm_ring_peek(&r->party->ends[RING_BACKGROUND], &type, &payload, &bytes))
        return rc ? rc : moved;
    while ((rc = send_one(r, RING_COMMAND)) == 1)
        moved = 1;
    if (rc ||
        shm_ring_peek(&r->party->ends[RING_COMMAND], &type, &payload, &bytes) != HILL_E_WOULD_BLOCK)
        return rc ? rc : moved; /* one is left there for want of credit */
    rc = send_one(r, RING_BACKGROUND);
    return rc < 0 ? rc : moved | rc;
}

int relay_turn(struct relay *r, uint64_t *done, bool *own, struct hill_why *why)
{
    *own = false;
    *done = 0;
    uint64_t before = r->completed;
    int came = take_all(r, own, why);
    *done = r->completed - before;
    if (came < 0)
        return came;
    if (r->failed) {
        *why = r->why;
        return r->failed;
    }
    int lost = drive_link_lost(r->link, why);
    if (lost)
        return lost;
    int sent = send_all(r);
    *own = sent < 0;
    /* what is held has waited in push(): a longer sleep would miss the room for it */
    return sent < 0 ? sent : came | sent | (r->held != NULL);
}

/* ---- an epoch ---------------------------------------------------------------------------- */

/* Until `there`, the drive is lost, or the caller's wait ends. */
static int await(struct relay *r, bool (*there)(struct relay *), int64_t deadline_ns,
                 const struct party_wait *wait, struct hill_why *why)
{
    for (;;) {
        struct shm_doorbell *bell = drive_link_doorbell(r->link);
        uint32_t seen = shm_doorbell_read(bell);
        bool own;
        int rc = take_all(r, &own, why);
        if (rc >= 0 && r->failed) {
            *why = r->why;
            return r->failed;
        }
        if (rc >= 0 && there(r))
            return 0;
        if (rc >= 0)
            rc = drive_link_lost(r->link, why);
        if (!rc)
            rc = wait->waiting(wait->context, why);
        if (!rc && clock_now_ns() >= deadline_ns)
            rc = hill_fail(why, HILL_E_TIMEOUT, "the drive was not ready within %d s",
                           READY_MS / 1000);
        if (rc < 0)
            return rc;
        shm_doorbell_wait(bell, seen, clock_deadline_ms(SLICE_MS), 0);
    }
}

static bool is_up(struct relay *r)
{
    return drive_link_is_up(r->link);
}

static bool is_ready(struct relay *r)
{
    return r->ready_epoch == r->epoch;
}

int relay_begin(struct relay *r, const Hill__Message *configure, struct party *party,
                const struct party_wait *wait, struct hill_why *why)
{
    r->epoch = configure->configure->epoch;
    r->ready_epoch = 0;
    int rc = await(r, is_up, INT64_MAX, wait, why); /* the link has a deadline of its own */
    if (rc)
        return rc;
    relay_tell(r, configure);
    rc = await(r, is_ready, clock_deadline_ms(READY_MS), wait, why);
    if (!rc)
        r->party = party;
    return rc;
}
