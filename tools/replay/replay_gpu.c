/*
 * tools/replay/replay_gpu.c - the GPU worker alone, see replay.h.
 *
 * Two threads: the process's own is the worker's data loop, as always; the player's reads its
 * append and query rings and answers. A request's Prefill is given when all requests before it have
 * done what they had done when it began. One that was cancelled or failed then, or is cut off by
 * the recording's end, is cancelled when it goes on beyond what was recorded.
 *
 * Places: several requests may be answered in another order than then, so staging slots are taken
 * from an arena of the player's own, and a hot slot that another request still reads with other
 * bytes in it is replaced by a spare one. Memory is laid out before the worker attaches it; the
 * player alone writes staging and hot.
 */
#include "tools/replay/replay.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/log.h"
#include "tools/replay/replay_script.h"
#include "gpu_worker/worker.h"
#include "kv/plan.h"

#define STUCK_NS CLOCK_MS(60000)
#define RUN_ID   UINT64_C(0x5245504c00000000) /* | pid: nobody else's */

/* A request as it goes on. */
struct play {
    const struct script_request *script;
    uint32_t next[SCRIPT_RINGS];
    bool given, begun, ended;
    bool beyond;                         /* it does what was not recorded, and has been cancelled */
    XXH64_state_t *hashes[SCRIPT_RINGS]; /* the rings are not seen in step */
};

struct hot_slot {
    const uint8_t *entry;      /* what lies in it */
    uint32_t sequence, answer; /* the one that named it last, from 1 */
};

struct seat { /* of a sequence */
    struct play *play;
    uint32_t answers, read; /* given so far; the first so many have been read (enum query_kind) */
    struct {
        uint32_t *slots, n;
    } staging[2];        /* of the newest answer, and of the one before it */
    uint32_t known_step; /* the newest with known queries, or UINT32_MAX */
    uint32_t next_spare; /* of its spare hot slots */
};

struct replay {
    struct recording_file *file;
    struct script script;
    struct play *plays; /* [script.n_requests] */
    struct seat seats[KV_MAX_SEQUENCES];
    uint32_t n_sequences, entry_bytes;
    struct epoch_settings settings; /* as recorded, but for the segments' names and sizes */
    struct party scorer;            /* that is stood in for */
    struct hot_slot *hot_slots;     /* [n_hot], without the spare ones */
    uint32_t n_hot;                 /* as recorded; then 2 * gpu_slots spare ones a sequence */
    struct worker_link *link;
    _Atomic bool ready;   /* the worker is; written by its thread */
    _Atomic bool stopped; /* the worker has ended by itself */
    int64_t ready_ns, moved_ns, over_ns;
    uint64_t n_in;
    int status; /* of the player, with why */
    struct hill_why *why;
};

static int fail(struct replay *r, int code, uint64_t event, const char *what, uint32_t type)
{
    return r->status = hill_fail(
               r->why, code, "the replay differs from the recording at event %" PRIu64 ": %s %s",
               event, what, record_name(type));
}

/* ---- comparing ---------------------------------------------------------------------------- */

/* A record with what may differ set to 0: returns how many bytes of it are in head. */
static uint32_t masked_head(uint32_t type, const void *payload, struct record_query *head)
{
    if (type != RECORD_QUERY)
        return 0;
    memcpy(head, payload, sizeof *head);
    head->query_id = 0;
    return sizeof *head;
}

static bool same_record(const struct recording_event *then, uint32_t type, const void *payload,
                        uint32_t bytes)
{
    struct record_query a, b;
    if (then->type != type || then->bytes != bytes)
        return false;
    uint32_t head = masked_head(type, then->payload, &a);
    if (head && (masked_head(type, payload, &b), memcmp(&a, &b, head) != 0))
        return false;
    return memcmp(then->payload + head, (const uint8_t *)payload + head, bytes - head) == 0;
}

static void add_to_hash(XXH64_state_t *hash, uint32_t type, const void *payload, uint32_t bytes)
{
    struct record_query query;
    uint32_t fields[2] = {type, bytes}, head = masked_head(type, payload, &query);
    XXH64_update(hash, fields, sizeof fields);
    XXH64_update(hash, &query, head);
    XXH64_update(hash, (const uint8_t *)payload + head, bytes - head);
}

/* ---- messages ----------------------------------------------------------------------------- */

static int cancel(struct replay *r, struct play *play)
{
    Hill__Cancel body = HILL__CANCEL__INIT;
    body.request_id = play->script->request_id;
    Hill__Message *copy = proto_copy(&PROTO_MESSAGE(CANCEL, cancel, &body));
    if (!copy)
        return r->status = hill_fail(r->why, HILL_E_NOMEM, "out of memory");
    play->beyond = true;
    return worker_link_give(r->link, copy);
}

/* It goes on where the recording has nothing. */
static int goes_beyond(struct replay *r, struct play *play, uint32_t type)
{
    const struct script_request *s = play->script;
    if (s->natural)
        return fail(r, HILL_E_DAMAGED,
                    s->lines[SCRIPT_APPEND][s->n_lines[SCRIPT_APPEND] - 1].record.number,
                    "the request had ended, and there comes a", type);
    return cancel(r, play);
}

static int give_prefill(struct replay *r, struct play *play)
{
    struct hill_why why = {""};
    Hill__Message *m =
        hill__message__unpack(NULL, play->script->prompt_bytes, play->script->prompt);
    if (!m || m->body_case != HILL__MESSAGE__BODY_PREFILL || proto_validate(m, &why) ||
        m->prefill->sequence != play->script->sequence) {
        proto_free(m);
        return r->status = hill_fail(r->why, HILL_E_DAMAGED,
                                     "the recording makes no sense at event %" PRIu64
                                     ": its PROMPT is no prefill message %s",
                                     play->script->begun, why.text);
    }
    if (m->prefill->save)
        hill__session_file__free_unpacked(m->prefill->save, NULL);
    m->prefill->save = NULL;
    m->prefill->anew = true;   /* of a recorded request nothing is kept (resume.c) */
    m->prefill->ahead_max = 0; /* nobody says Taken */
    play->given = true;
    r->moved_ns = clock_now_ns();
    return worker_link_give(r->link, m);
}

/* Has it done all that it had done when event `number` was seen? */
static bool is_past(const struct play *play, uint64_t number)
{
    const struct script_request *s = play->script;
    for (int ring = 0; ring < SCRIPT_RINGS && !play->beyond && !play->ended; ring++)
        if (play->next[ring] < s->n_lines[ring] &&
            s->lines[ring][play->next[ring]].record.number < number)
            return false;
    return true;
}

static void give_due(struct replay *r)
{
    for (uint32_t i = 0; i < r->script.n_requests && !r->status; i++) {
        struct play *play = &r->plays[i];
        if (play->given)
            continue;
        for (uint32_t j = 0; j < i; j++)
            if (!is_past(&r->plays[j], play->script->begun) ||
                (r->plays[j].script->sequence == play->script->sequence && !r->plays[j].ended))
                return;
        give_prefill(r, play);
    }
}

/* ---- answers ------------------------------------------------------------------------------ */

static const uint8_t *entry_at(const struct play *play, uint32_t layer, uint32_t position)
{
    const struct script_request *s = play->script;
    return position < s->max_tokens ? s->entries[(size_t)layer * s->max_tokens + position] : NULL;
}

static void *room(struct replay *r, uint32_t bytes)
{
    void *payload = NULL;
    for (int64_t start = clock_now_ns(); clock_now_ns() - start < STUCK_NS;) {
        uint32_t seen = shm_doorbell_read(r->scorer.bell);
        if (shm_ring_reserve(&r->scorer.ends[RING_SELECTION], bytes, &payload) == 0)
            return payload;
        shm_doorbell_wait(r->scorer.bell, seen, clock_deadline_ms(10), 0);
    }
    r->status = hill_fail(r->why, HILL_E_TIMEOUT, "the worker takes no answers");
    return NULL;
}

static void give_staging_back(struct replay *r, struct seat *seat, int which)
{
    shm_arena_give(&r->scorer.arena, seat->staging[which].n, seat->staging[which].slots);
    seat->staging[which].n = 0;
}

/* What a query says of earlier answers: all are read, or all but the newest, or those of earlier
 * steps. */
static void note_read(struct replay *r, struct seat *seat, uint32_t kind, uint32_t step)
{
    bool known = kind == QUERY_KNOWN;
    if (known && seat->known_step == step)
        return;
    seat->known_step = known ? step : UINT32_MAX;
    seat->next_spare = known ? 0 : seat->answers % 2 * r->settings.gpu_slots;
    give_staging_back(r, seat, 1);
    if (kind == QUERY_EXACT || kind == QUERY_KNOWN) {
        give_staging_back(r, seat, 0);
        seat->read = seat->answers;
        return;
    }
    uint32_t *slots = seat->staging[1].slots;
    seat->staging[1] = seat->staging[0];
    seat->staging[0].slots = slots;
    seat->staging[0].n = 0;
    seat->read = seat->answers ? seat->answers - 1 : 0;
}

static int stage_uploads(struct replay *r, struct seat *seat, uint32_t layer,
                         struct record_selection *answer)
{
    struct selected_item *items = (struct selected_item *)(answer + 1);
    struct selected_upload *uploads = (struct selected_upload *)(items + answer->n_selected);
    uint32_t *slots = seat->staging[0].slots;
    if (shm_arena_take(&r->scorer.arena, answer->n_uploads, slots))
        return HILL_E_DAMAGED;
    seat->staging[0].n = answer->n_uploads;
    for (uint32_t u = 0, i = 0; u < answer->n_uploads; u++, i++) {
        while (i < answer->n_selected && items[i].gpu_slot != uploads[u].gpu_slot)
            i++;
        const uint8_t *entry =
            i < answer->n_selected ? entry_at(seat->play, layer, items[i].position) : NULL;
        if (!entry)
            return HILL_E_DAMAGED;
        memcpy(shm_arena_slot(&r->scorer.arena, slots[u]), entry, r->entry_bytes);
        uploads[u].staging_slot = slots[u];
        uploads[u].generation = shm_arena_generation(&r->scorer.arena, slots[u]);
    }
    return 0;
}

/* Does another request read other bytes in it? */
static bool is_read(const struct replay *r, const struct hot_slot *slot, uint32_t sequence)
{
    return slot->entry && slot->sequence != sequence &&
           slot->answer > r->seats[slot->sequence].read;
}

static int place_hot(struct replay *r, uint32_t sequence, uint32_t layer,
                     struct record_selection *answer)
{
    struct seat *seat = &r->seats[sequence];
    struct selected_item *items = (struct selected_item *)(answer + 1);
    uint8_t *entries = shm_segment_payload(&r->scorer.hot);
    for (uint32_t i = 0; i < answer->n_selected; i++) {
        uint32_t slot = items[i].gpu_slot & ~SELECTED_HOT;
        if (!(items[i].gpu_slot & SELECTED_HOT))
            continue;
        const uint8_t *entry = entry_at(seat->play, layer, items[i].position);
        if (!entry || slot >= r->n_hot)
            return HILL_E_DAMAGED;
        struct hot_slot *hot = &r->hot_slots[slot];
        if (hot->entry != entry && is_read(r, hot, sequence)) {
            if (seat->next_spare == 2 * r->settings.gpu_slots)
                return HILL_E_DAMAGED;
            slot = r->n_hot + 2 * sequence * r->settings.gpu_slots + seat->next_spare++;
            items[i].gpu_slot = SELECTED_HOT | slot;
        } else if (hot->entry == entry) {
            continue; /* the bytes stay, whoever reads them */
        } else {
            *hot = (struct hot_slot){entry, sequence, seat->answers};
        }
        memcpy(entries + (uint64_t)slot * r->entry_bytes, entry, r->entry_bytes);
    }
    return 0;
}

static int answer_query(struct replay *r, struct seat *seat, const struct script_line *line,
                        const struct record_query *asked)
{
    const struct recording_event *then = &line->answer;
    note_read(r, seat, asked->kind, asked->header.step);
    if (asked->kind == QUERY_AHEAD)
        return 0;    /* it has no answer */
    if (!then->kind) /* the recording ends before, or the request did */
        return seat->play->script->natural ? fail(r, HILL_E_DAMAGED, line->record.number,
                                                  "there is no answer to the", RECORD_QUERY)
                                           : cancel(r, seat->play);
    struct record_selection *answer = room(r, then->bytes);
    if (!answer)
        return r->status;
    memcpy(answer, then->payload, then->bytes);
    uint32_t layer = asked->header.layer, k = answer->n_selected;
    answer->query_id = asked->query_id;
    seat->answers++;
    int rc = k > r->settings.gpu_slots || answer->n_uploads > r->settings.gpu_slots ? HILL_E_DAMAGED
             : answer->status                                                       ? 0
                              : stage_uploads(r, seat, layer, answer);
    if (!rc)
        rc = place_hot(r, asked->header.sequence, layer, answer);
    if (rc)
        return r->status = hill_fail(r->why, rc,
                                     "the recording makes no sense at event %" PRIu64
                                     ": a SELECTION names what was not appended",
                                     then->number);
    shm_ring_publish(&r->scorer.ends[RING_SELECTION], RECORD_SELECTION, then->bytes);
    return 0;
}

static int answer_begin(struct replay *r, struct play *play)
{
    const struct recording_event *then = &play->script->ready;
    if (!then->kind)
        return cancel(r, play);
    struct record_seq_ready *answer = room(r, sizeof *answer);
    if (!answer)
        return r->status;
    memcpy(answer, then->payload, sizeof *answer);
    if (answer->hot_entries) {
        answer->hot_offset = 0;
        answer->hot_entries = r->n_hot + 2 * r->n_sequences * r->settings.gpu_slots;
    }
    shm_ring_publish(&r->scorer.ends[RING_SELECTION], RECORD_SEQ_READY, sizeof *answer);
    return 0;
}

static int answer_end(struct replay *r, struct seat *seat, const struct record_seq_end *end)
{
    struct record_seq_stats *answer = room(r, sizeof *answer);
    if (!answer)
        return r->status;
    *answer = (struct record_seq_stats){.header = end->header, .request_id = end->request_id};
    shm_ring_publish(&r->scorer.ends[RING_SELECTION], RECORD_SEQ_STATS, sizeof *answer);
    note_read(r, seat, QUERY_EXACT, 0);
    seat->play->ended = true;
    seat->play = NULL;
    return 0;
}

/* ---- what the worker publishes ------------------------------------------------------------ */

static int begin(struct replay *r, const struct record_seq_begin *record, struct seat *seat)
{
    for (uint32_t i = 0; i < r->script.n_requests; i++) {
        struct play *play = &r->plays[i];
        if (!play->given || play->begun || play->script->request_id != record->request_id)
            continue;
        play->begun = true;
        seat->play = play;
        return 0;
    }
    return r->status = hill_fail(r->why, HILL_E_PROTOCOL, "a request began that was not given");
}

/* Did a request that was cancelled or failed in mid-step say here that its reads are over, and now
 * it asks for its next layer? The entry that it appended with that query may come later. */
static bool ends_step(const struct script_request *s, enum script_ring ring, uint32_t next,
                      uint32_t type)
{
    return !s->natural && ring == SCRIPT_QUERY && next + 1 == s->n_lines[ring] &&
           s->lines[ring][next].record.type == RECORD_READS_DONE && type == RECORD_QUERY;
}

/* The next one of its request in its ring, compared; NULL: of one that is cut off, or it differs.
 */
static const struct script_line *next_line(struct replay *r, struct play *play,
                                           enum script_ring ring, uint32_t type,
                                           const void *payload, uint32_t bytes)
{
    const struct script_request *s = play->script;
    const struct script_line *line = &s->lines[ring][play->next[ring]];
    bool none = play->next[ring] == s->n_lines[ring];
    if (play->beyond)
        return NULL;
    if (none || (line->record.type == RECORD_SEQ_END && type != RECORD_SEQ_END) ||
        ends_step(s, ring, play->next[ring], type)) {
        goes_beyond(r, play, type);
        return NULL;
    }
    if (!same_record(&line->record, type, payload, bytes)) {
        fail(r, HILL_E_DAMAGED, line->record.number,
             line->record.type == type ? "other bytes in the" : "another record: a", type);
        return NULL;
    }
    play->next[ring]++;
    add_to_hash(play->hashes[ring], type, payload, bytes);
    r->n_in++;
    return line;
}

static bool take_ring(struct replay *r, struct shm_ring_end *end, enum script_ring ring);

/* What was published before it lies in the query ring by now. */
static int before_end(struct replay *r, const struct play *play)
{
    const struct script_request *s = play->script;
    take_ring(r, &r->scorer.ends[RING_QUERY], SCRIPT_QUERY);
    uint32_t next = play->next[SCRIPT_QUERY];
    if (!r->status && s->natural && next < s->n_lines[SCRIPT_QUERY])
        fail(r, HILL_E_DAMAGED, s->lines[SCRIPT_QUERY][next].record.number, "missing is a",
             s->lines[SCRIPT_QUERY][next].record.type);
    return r->status;
}

static int take(struct replay *r, enum script_ring ring, uint32_t type, const void *payload,
                uint32_t bytes)
{
    const struct record_header *header = payload;
    struct seat *seat = &r->seats[header->sequence];
    if (type == RECORD_SEQ_BEGIN && begin(r, payload, seat))
        return r->status;
    if (!seat->play)
        return 0; /* reads of a request that is over are done */
    if (type == RECORD_SEQ_END && before_end(r, seat->play))
        return r->status;
    const struct script_line *line = next_line(r, seat->play, ring, type, payload, bytes);
    if (r->status)
        return r->status;
    if (type == RECORD_SEQ_END)
        return answer_end(r, seat, payload);
    if (line && type == RECORD_SEQ_BEGIN)
        return answer_begin(r, seat->play);
    if (line && type == RECORD_READS_DONE)
        seat->read = seat->answers; /* in place; staging is free at the next query */
    return line && type == RECORD_QUERY ? answer_query(r, seat, line, payload) : 0;
}

static bool take_ring(struct replay *r, struct shm_ring_end *end, enum script_ring ring)
{
    uint32_t type, bytes;
    const void *payload;
    bool moved = false;
    while (!r->status && shm_ring_peek(end, &type, &payload, &bytes) == 0) {
        int rc =
            record_check(type, payload, bytes, &r->file->layout.geometry, r->n_sequences, r->why);
        r->status = rc ? rc : take(r, ring, type, payload, bytes);
        shm_ring_release(end);
        r->moved_ns = clock_now_ns();
        moved = true;
    }
    return moved;
}

/* ---- the player --------------------------------------------------------------------------- */

static bool all_ended(const struct replay *r)
{
    for (uint32_t i = 0; i < r->script.n_requests; i++)
        if (!r->plays[i].ended)
            return false;
    return true;
}

static void check_stuck(struct replay *r)
{
    if (clock_now_ns() - r->moved_ns < STUCK_NS)
        return;
    for (uint32_t i = 0; i < r->script.n_requests; i++) {
        const struct play *p = &r->plays[i];
        for (int ring = 0; ring < SCRIPT_RINGS && p->given && !p->ended; ring++)
            if (p->next[ring] < p->script->n_lines[ring]) {
                const struct recording_event *e = &p->script->lines[ring][p->next[ring]].record;
                fail(r, HILL_E_DAMAGED, e->number, "missing is a", e->type);
                return;
            }
    }
    r->status = hill_fail(r->why, HILL_E_TIMEOUT, "the worker does nothing");
}

static void *player_main(void *argument)
{
    struct replay *r = argument;
    pthread_setname_np(pthread_self(), "player");
    /* acquire: pair with the releases in take_message and run */
    while (!atomic_load_explicit(&r->ready, memory_order_acquire)) {
        if (atomic_load_explicit(&r->stopped, memory_order_acquire))
            return NULL;
        usleep(1000); /* the model is being loaded */
    }
    epoch_unlink(r->settings.run_id,
                 r->settings.epoch); /* whatever happens from here on, nothing stays */
    r->ready_ns = r->moved_ns = clock_now_ns();
    while (!r->status && !all_ended(r) &&
           !atomic_load_explicit(&r->stopped, memory_order_acquire)) {
        uint32_t seen = shm_doorbell_read(r->scorer.bell);
        give_due(r);
        bool moved = take_ring(r, &r->scorer.ends[RING_APPEND], SCRIPT_APPEND);
        moved |= take_ring(r, &r->scorer.ends[RING_QUERY], SCRIPT_QUERY);
        if (moved || r->status)
            continue;
        check_stuck(r);
        shm_doorbell_wait(r->scorer.bell, seen, clock_deadline_ms(100), 20000);
    }
    r->over_ns = clock_now_ns();
    worker_link_stop(r->link);
    return NULL;
}

/* The worker's thread: what it tells a coordinator. */
static void take_message(void *context, const Hill__Message *message)
{
    struct replay *r = context;
    if (message->body_case == HILL__MESSAGE__BODY_READY)
        atomic_store_explicit(&r->ready, true, memory_order_release); /* pairs with player_main */
    else if (message->body_case == HILL__MESSAGE__BODY_FAILURE)
        log_error("%s", message->failure->text);
}

/* ---- memory ------------------------------------------------------------------------------- */

static uint32_t recorded_hot_entries(const struct script *script)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < script->n_requests; i++) {
        const struct recording_event *e = &script->requests[i].ready;
        uint32_t n =
            e->kind ? ((const struct record_seq_ready *)(const void *)e->payload)->hot_entries : 0;
        most = n > most ? n : most;
    }
    return most;
}

/* What was read in place; nothing: the worker finds no such segment, and says so. */
static int size_hot(struct replay *r)
{
    uint64_t n = r->n_hot + 2 * (uint64_t)r->n_sequences * r->settings.gpu_slots;
    r->settings.hot_bytes = 0;
    if (r->n_hot == 0)
        return 0;
    if (n >= SELECTED_HOT)
        return hill_fail(r->why, HILL_E_UNSUPPORTED,
                         "the recording's hot pool is too large to be replayed");
    r->settings.hot_bytes = n * r->entry_bytes + 64; /* a vector may be read past the last value */
    r->hot_slots = calloc(r->n_hot, sizeof *r->hot_slots);
    return r->hot_slots
               ? 0
               : hill_fail(r->why, HILL_E_NOMEM, "out of memory for %u hot slots", r->n_hot);
}

static int open_memory(struct replay *r)
{
    r->settings.csd_attached = false; /* the worker has no rings with the agent */
    int rc = size_hot(r);
    if (!rc)
        rc = epoch_create(&r->settings, r->why);
    if (!rc)
        rc = party_attach(&r->scorer, PARTY_SCORER, &r->settings, r->why);
    return rc ? rc : party_open(&r->scorer, NULL, r->why);
}

static int make_plays(struct replay *r)
{
    bool whole = true;
    r->plays = calloc(r->script.n_requests, sizeof *r->plays);
    for (uint32_t i = 0; r->plays && i < r->script.n_requests; i++) {
        r->plays[i].script = &r->script.requests[i];
        for (int ring = 0; ring < SCRIPT_RINGS; ring++) {
            XXH64_state_t *hash = r->plays[i].hashes[ring] = XXH64_createState();
            whole = whole && hash;
            if (hash)
                XXH64_reset(hash, 0);
        }
    }
    for (uint32_t i = 0; i < 2 * r->n_sequences; i++)
        whole = (r->seats[i / 2].staging[i % 2].slots =
                     calloc(r->settings.gpu_slots, sizeof(uint32_t))) &&
                whole;
    return r->plays && whole ? 0 : hill_fail(r->why, HILL_E_NOMEM, "out of memory");
}

static int prepare(struct replay *r)
{
    int rc = script_read(&r->script, r->file, r->why);
    if (rc)
        return rc;
    r->settings = r->file->settings;
    r->settings.run_id = RUN_ID | (uint32_t)getpid();
    r->settings.record_path = "";
    r->entry_bytes = kv_entry_bytes(&r->file->layout.geometry);
    r->n_sequences = r->file->layout.n_sequences;
    r->n_hot = recorded_hot_entries(&r->script);
    rc = make_plays(r);
    if (!rc)
        rc = open_memory(r);
    if (!rc && worker_link_open_alone(&r->link, HILL__ROLE__ROLE_GPU_WORKER, "hill-gpu-worker",
                                      take_message, r))
        rc = hill_fail(r->why, HILL_E_NOMEM, "out of memory");
    return rc;
}

static int give_configure(struct replay *r)
{
    struct epoch_wire wire;
    epoch_settings_to_wire(&wire, &r->settings);
    Hill__Message *copy = proto_copy(&wire.message);
    return copy ? worker_link_give(r->link, copy)
                : hill_fail(r->why, HILL_E_NOMEM, "out of memory");
}

static void finish(struct replay *r)
{
    if (r->settings.run_id)
        epoch_unlink(r->settings.run_id, r->settings.epoch);
    party_leave(&r->scorer);
    for (uint32_t i = 0; r->plays && i < r->script.n_requests; i++)
        for (int ring = 0; ring < SCRIPT_RINGS; ring++)
            XXH64_freeState(r->plays[i].hashes[ring]);
    for (uint32_t i = 0; i < 2 * r->n_sequences; i++)
        free(r->seats[i / 2].staging[i % 2].slots);
    free(r->hot_slots);
    free(r->plays);
    script_free(&r->script);
    worker_link_close(r->link);
}

/* ---- all ---------------------------------------------------------------------------------- */

static uint64_t hash_of_all(const struct replay *r)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < r->script.n_requests; i++)
        for (int ring = 0; ring < SCRIPT_RINGS; ring++) {
            uint64_t one = XXH64_digest(r->plays[i].hashes[ring]);
            hash = XXH64(&one, sizeof one, hash);
        }
    return hash;
}

static int run(struct replay *r)
{
    struct worker worker = {.link = r->link};
    pthread_t player;
    int rc = give_configure(r);
    if (rc)
        return rc;
    if (pthread_create(&player, NULL, player_main, r))
        return hill_fail(r->why, HILL_E_NOMEM, "cannot start a thread");
    rc = worker_run(&worker);
    atomic_store_explicit(&r->stopped, true, memory_order_release); /* pairs with player_main */
    pthread_join(player, NULL);
    worker_finish(&worker);
    if (r->status)
        return r->status;
    if (rc)
        return hill_fail(r->why, rc, "the worker ended: %s", hill_strerror(rc));
    return all_ended(r) ? 0 : hill_fail(r->why, HILL_E_CANCELLED, "interrupted");
}

int replay_gpu_worker(struct recording_file *file, const char *url, struct replay_result *result,
                      struct hill_why *why)
{
    static struct replay r; /* zeroed; large for a stack */
    r.file = file;
    r.why = why;
    (void)url;
    int rc = prepare(&r);
    if (!rc)
        rc = run(&r);
    if (!rc)
        *result = (struct replay_result){r.script.n_requests, r.n_in, hash_of_all(&r),
                                         r.over_ns - r.ready_ns, 0};
    finish(&r);
    return rc;
}
