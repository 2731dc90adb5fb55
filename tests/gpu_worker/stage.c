/*
 * tests/gpu_worker/stage.c - the played coordinator and scorer: control messages, rings, epochs.
 * Interface: stage.h.
 */
#include "tests/gpu_worker/stage.h"

static void *stage_bind(struct stage *s, const char *file)
{
    char address[128];
    snprintf(address, sizeof address, "ipc://%s/%s", s->dir, file);
    void *socket = zmq_socket(s->context, ZMQ_ROUTER);
    assert_int_equal(zmq_bind(socket, address), 0);
    return socket;
}

static void stage_leave_epoch(struct stage *s)
{
    party_leave(&s->party);
    epoch_unlink(s->settings.run_id, s->settings.epoch);
    for (uint32_t i = 0; i < STAGE_LANES; i++)
        s->lanes[i].n_taken[0] = s->lanes[i].n_taken[1] = 0;
}

void stage_enter_epoch(struct stage *s)
{
    struct epoch_settings *settings = &s->settings;
    struct hill_why why = {0};
    uint64_t entries = (uint64_t)STAGE_LANES * s->m.shape.n_layers * STAGE_CTX;
    stage_leave_epoch(s);
    settings->epoch++;
    settings->hot_bytes = settings->epoch % 2 ? STAGE_HOT_OFFSET + entries * s->entry_bytes : 0;
    if (epoch_create(settings, &why) || party_attach(&s->party, PARTY_SCORER, settings, &why) ||
        party_open(&s->party, NULL, &why))
        fail_msg("%s", why.text);
}

static struct shm_ring_end *stage_end(struct stage *s, enum layout_ring ring)
{
    return &s->party.ends[ring];
}

static uint32_t stage_hot_slot(const struct stage *s, uint32_t sequence, uint32_t layer,
                               uint32_t position)
{
    return (sequence * s->m.shape.n_layers + layer) * STAGE_CTX + position;
}

static void stage_to_hot(struct stage *s, uint32_t sequence, uint32_t layer, uint32_t position)
{
    if (s->party.hot.base)
        memcpy((uint8_t *)shm_segment_payload(&s->party.hot) + STAGE_HOT_OFFSET +
                   (size_t)stage_hot_slot(s, sequence, layer, position) * s->entry_bytes,
               s->lanes[sequence].entries[layer] + (size_t)position * s->entry_bytes,
               s->entry_bytes);
}

/* What an earlier attempt has left, as of the last token that is kept. */
static void stage_take_up(struct stage *s, uint32_t sequence, uint32_t prompt,
                          struct record_seq_ready *ready)
{
    struct stage_lane *lane = &s->lanes[sequence];
    ready->kept_tokens = lane->kept_tokens;
    ready->header.step = lane->kept_tokens - prompt;
    ready->replay_to = lane->replay_to;
    ready->n_damaged = lane->n_damaged;
    lane->n_steps = lane->expect_step = ready->header.step + 1;
    for (uint32_t l = 0; l < s->m.shape.n_layers; l++)
        lane->appended[l] = lane->kept_tokens;
    for (uint32_t i = 0; i < lane->n_damaged; i++)
        memset(lane->entries[lane->damaged[i].layer] +
                   (size_t)lane->damaged[i].position * s->entry_bytes,
               0x7d, s->entry_bytes);
    for (uint32_t l = 0; l < s->m.shape.n_layers; l++)
        for (uint32_t p = 0; p < lane->kept_tokens; p++)
            stage_to_hot(s, sequence, l, p);
}

static void stage_take_begin(struct stage *s, const struct record_seq_begin *r)
{
    struct stage_lane *lane = &s->lanes[r->header.sequence];
    struct {
        struct record_seq_ready ready;
        struct damaged_entry damaged[RECORD_DAMAGED_MAX];
    } out = {.ready = {.header = r->header}};
    lane->reads_hot = r->reads_hot;
    assert_true(!lane->reads_hot || s->party.hot.base);
    if (lane->reads_hot) {
        out.ready.hot_offset = STAGE_HOT_OFFSET / 64;
        out.ready.hot_entries = stage_hot_slot(s, STAGE_LANES, 0, 0);
    }
    lane->adopt_min = r->adopt_min;
    lane->adopt_max = r->adopt_max;
    lane->n_reads_done = 0;
    lane->n_begins++;
    lane->n_steps = lane->n_queries = 0;
    lane->declined_step = lane->silent_step = 0;
    lane->expect_step = 1;
    lane->expect_layer = 0;
    lane->n_mended = lane->n_stalled = 0;
    lane->n_reads = lane->n_read = lane->read_layers = lane->read_end = 0;
    memset(lane->n_kinds, 0, sizeof lane->n_kinds);
    memset(lane->appended, 0, sizeof lane->appended);
    memset(lane->resident, 0, sizeof lane->resident);
    if (r->adopt_max && lane->kept_tokens)
        stage_take_up(s, r->header.sequence, r->prompt_tokens, &out.ready);
    memcpy(out.damaged, lane->damaged, sizeof out.damaged);
    uint32_t bytes = (uint32_t)(sizeof out.ready + out.ready.n_damaged * sizeof *out.damaged);
    if (!lane->keeps_silent)
        assert_int_equal(shm_ring_push(stage_end(s, RING_SELECTION), RECORD_SEQ_READY, &out, bytes),
                         0);
}

/* A damaged entry that has been made again: the next one that is owed. */
static bool stage_take_mended(struct stage_lane *lane, const struct record_append *a)
{
    const struct damaged_entry *next = &lane->damaged[lane->n_mended];
    if (lane->n_mended == lane->n_damaged || !lane->kept_tokens ||
        a->first >= lane->appended[a->header.layer])
        return false;
    assert_int_equal(a->first, next->position);
    assert_int_equal(a->header.layer, next->layer);
    assert_int_equal(a->n_tokens, 1);
    lane->n_mended++;
    return true;
}

static void stage_take_entries(struct stage *s, const struct record_append *a)
{
    uint32_t layer = a->header.layer;
    struct stage_lane *lane = &s->lanes[a->header.sequence];
    assert_true(a->first + a->n_tokens <= STAGE_CTX);
    if (!stage_take_mended(lane, a)) {
        assert_int_equal(a->first, lane->appended[layer]); /* in order, each once */
        lane->appended[layer] += a->n_tokens;
    }
    memcpy(lane->entries[layer] + (size_t)a->first * s->entry_bytes, a + 1,
           (size_t)a->n_tokens * s->entry_bytes);
    for (uint32_t i = 0; i < a->n_tokens; i++)
        stage_to_hot(s, a->header.sequence, layer, a->first + i);
}

static void stage_take_append(struct stage *s, uint32_t type, const void *payload)
{
    const struct record_header *header = payload;
    struct stage_lane *lane = &s->lanes[header->sequence];
    assert_int_equal(header->epoch, s->settings.epoch);
    if (type == RECORD_SEQ_BEGIN) {
        stage_take_begin(s, payload);
    } else if (type == RECORD_APPEND) {
        stage_take_entries(s, payload);
    } else if (type == RECORD_STEP_END) {
        if (lane->kept_tokens) /* nothing before all of them has come */
            assert_int_equal(lane->n_mended, lane->n_damaged);
        for (uint32_t l = 0; l < s->m.shape.n_layers; l++)
            assert_int_equal(lane->appended[l],
                             ((const struct record_step_end *)payload)->n_tokens);
        assert_int_equal(header->step, lane->n_steps++);
    } else {
        assert_int_equal(type, RECORD_SEQ_END);
        lane->n_ends++;
    }
}

static uint32_t stage_slot(uint32_t position)
{
    return (position * 5 + 11) % STAGE_CTX; /* a permutation: 5 and 192 share no factor */
}

static bool stage_in_place(const struct stage *s, const struct stage_lane *lane, uint32_t position)
{
    return lane->reads_hot && (s->all_hot || position % 2 == 0);
}

static void stage_give(struct stage *s, struct stage_lane *lane, uint32_t which)
{
    if (lane->n_taken[which])
        shm_arena_give(&s->party.arena, lane->n_taken[which], lane->taken[which]);
    lane->n_taken[which] = 0;
}

/* What the kind of a query says has been read is free, and at once something else. */
static void stage_free_staging(struct stage *s, struct stage_lane *lane, uint32_t kind)
{
    for (uint32_t which = kind == QUERY_EXACT || kind == QUERY_KNOWN ? 0 : 1; which < 2; which++) {
        for (uint32_t i = 0; i < lane->n_taken[which]; i++)
            memset(shm_arena_slot(&s->party.arena, lane->taken[which][i]), 0x7d, s->entry_bytes);
        stage_give(s, lane, which);
    }
    if (kind == QUERY_EXACT || kind == QUERY_KNOWN)
        return;
    memcpy(lane->taken[1], lane->taken[0], sizeof lane->taken[0]);
    lane->n_taken[1] = lane->n_taken[0];
    lane->n_taken[0] = 0;
}

/* Every layer of every step is asked for once, in order, with the kind that it must have. */
static void stage_check_order(const struct stage *s, struct stage_lane *lane,
                              const struct record_query *q)
{
    Hill__Speculate mode = s->settings.speculate;
    bool guessed =
        mode != HILL__SPECULATE__SPECULATE_OFF && q->header.layer >= s->settings.exact_layers;
    bool known = s->policy == KV_POLICY_FULL && lane->reads_hot && !lane->declined_step;
    lane->n_kinds[q->kind]++;
    if (q->kind == QUERY_AHEAD) { /* before the one that it is ahead of */
        assert_true(mode == HILL__SPECULATE__SPECULATE_VERIFY && guessed);
        assert_int_equal(q->header.step, lane->expect_step);
        assert_int_equal(q->header.layer, lane->expect_layer);
        return;
    }
    if (q->kind == QUERY_KNOWN) /* where others of the step are not known, it is exact */
        assert_true(known);
    else
        assert_int_equal(q->kind, guessed && mode == HILL__SPECULATE__SPECULATE_ON
                                      ? QUERY_SPECULATIVE
                                      : QUERY_EXACT);
    assert_int_equal(q->header.step, lane->expect_step);
    assert_int_equal(q->header.layer, lane->expect_layer);
    if (++lane->expect_layer == s->m.shape.n_layers) {
        lane->expect_layer = 0;
        lane->expect_step++;
    }
}

static void stage_answer(struct stage *s, const struct record_query *q)
{
    struct stage_lane *lane = &s->lanes[q->header.sequence];
    uint32_t layer = q->header.layer, n = q->n_tokens, n_uploads = 0, number = ++lane->n_queries;
    if (number == lane->stall_at)
        return;
    for (uint32_t i = lane->resident[layer]; i < n; i++)
        n_uploads += !stage_in_place(s, lane, i);
    stage_free_staging(s, lane, q->kind);
    assert_int_equal(shm_arena_take(&s->party.arena, n_uploads, lane->taken[0]), 0);
    lane->n_taken[0] = n_uploads;
    uint32_t bytes = (uint32_t)(sizeof(struct record_selection) + n * sizeof(struct selected_item) +
                                n_uploads * sizeof(struct selected_upload));
    void *payload;
    assert_int_equal(shm_ring_reserve(stage_end(s, RING_SELECTION), bytes, &payload), 0);
    struct record_selection *out = payload;
    struct selected_item *items = (struct selected_item *)(out + 1);
    struct selected_upload *uploads = (struct selected_upload *)(items + n);
    *out = (struct record_selection){q->header, q->query_id, n, n_uploads,
                                     number == lane->refuse_at ? HILL_E_DAMAGED : 0};
    for (uint32_t i = 0; i < n; i++)
        items[i] = (struct selected_item){
            i, stage_in_place(s, lane, i)
                   ? SELECTED_HOT | stage_hot_slot(s, q->header.sequence, layer, i)
                   : stage_slot(i)};
    if (number == lane->wild_at)
        items[0].gpu_slot = SELECTED_HOT | stage_hot_slot(s, STAGE_LANES, 0, 0);
    lane->n_in_place += !lane->reads_hot ? 0 : s->all_hot ? n : (n + 1) / 2;
    for (uint32_t i = 0, position = lane->resident[layer]; i < n_uploads; i++, position++) {
        uint32_t slot = lane->taken[0][i];
        position += stage_in_place(s, lane, position);
        memcpy(shm_arena_slot(&s->party.arena, slot),
               lane->entries[layer] + (size_t)position * s->entry_bytes, s->entry_bytes);
        uploads[i] = (struct selected_upload){slot, shm_arena_generation(&s->party.arena, slot),
                                              stage_slot(position), 0};
        uploads[i].generation -= number == lane->old_generation_at;
    }
    lane->resident[layer] = n;
    shm_ring_publish(stage_end(s, RING_SELECTION), RECORD_SELECTION, bytes);
}

static void stage_send(struct stage *s, Hill__Message *message)
{
    assert_int_equal(proto_send(s->control, &s->worker, message), 0);
}

void stage_cancel(struct stage *s, const struct stage_lane *lane)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Cancel cancel = HILL__CANCEL__INIT;
    cancel.request_id = lane->request_id;
    message.body_case = HILL__MESSAGE__BODY_CANCEL;
    message.cancel = &cancel;
    stage_send(s, &message);
}

/* All known queries of a step, and it is not asked for with any again. */
static bool stage_declines(struct stage *s, struct stage_lane *lane, const struct record_query *q)
{
    struct record_selection out = {q->header, q->query_id, 0, 0, HILL_E_WOULD_BLOCK};
    if (q->kind != QUERY_KNOWN || !lane->decline_from || q->header.step < lane->decline_from)
        return false;
    lane->declined_step = lane->declined_step ? lane->declined_step : q->header.step;
    if (lane->cancelled_then)
        lane->cancelled_then->cancel_at = lane->cancelled_then->n_queries + 1;
    lane->cancelled_then = NULL;
    assert_int_equal(q->header.step, lane->declined_step);
    lane->n_kinds[QUERY_KNOWN]++;
    assert_int_equal(
        shm_ring_push(stage_end(s, RING_SELECTION), RECORD_SELECTION, &out, sizeof out), 0);
    return true;
}

static void stage_take_query(struct stage *s, const struct record_query *q)
{
    struct stage_lane *lane = &s->lanes[q->header.sequence];
    assert_true(lane->appended[q->header.layer] >= q->n_tokens); /* N is appended before */
    if (stage_declines(s, lane, q) || lane->silent_step == q->header.step)
        return;
    stage_check_order(s, lane, q);
    if (q->kind == QUERY_AHEAD)
        return; /* nothing has to be brought ahead */
    if (lane->n_queries + 1 == lane->cancel_at) {
        lane->cancel_at = 0;
        lane->n_queries++;
        lane->silent_step = q->kind == QUERY_KNOWN ? q->header.step : 0;
        stage_cancel(s, lane);
    } else {
        stage_answer(s, q);
    }
}

/* ---- reads ---- */

/* A scorer answers no READ over an entry that is damaged still: who asks for one waits for ever. */
static void stage_check_read(struct stage_lane *lane, const struct record_read *r)
{
    for (uint32_t i = lane->n_mended; i < lane->n_damaged; i++)
        assert_false(lane->damaged[i].layer == r->header.layer &&
                     lane->damaged[i].position >= r->first &&
                     lane->damaged[i].position < r->first + r->n_tokens);
    assert_int_equal(r->what, READ_ENTRIES);
    lane->n_reads++;
    lane->n_read += r->n_tokens;
    if (r->header.layer >= lane->read_layers)
        lane->read_layers = r->header.layer + 1;
    if (r->first + r->n_tokens > lane->read_end)
        lane->read_end = r->first + r->n_tokens;
}

static void stage_answer_read(struct stage *s, const struct record_read *r)
{
    struct stage_lane *lane = &s->lanes[r->header.sequence];
    uint32_t n = lane->refuse_reads ? 0 : r->n_tokens;
    uint32_t bytes = (uint32_t)(sizeof(struct record_entries) + n * sizeof(struct staged_entry));
    void *payload;
    stage_free_staging(s, lane, r->ahead ? QUERY_SPECULATIVE : QUERY_EXACT);
    assert_int_equal(shm_arena_take(&s->party.arena, n, lane->taken[0]), 0);
    lane->n_taken[0] = n;
    assert_int_equal(shm_ring_reserve(stage_end(s, RING_SELECTION), bytes, &payload), 0);
    struct record_entries *out = payload;
    struct staged_entry *slots = (struct staged_entry *)(out + 1);
    *out = (struct record_entries){
        .header = r->header, .read_id = r->read_id, .n_entries = n, .status = lane->refuse_reads};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = lane->taken[0][i];
        memcpy(shm_arena_slot(&s->party.arena, slot),
               lane->entries[r->header.layer] + (size_t)(r->first + i) * s->entry_bytes,
               s->entry_bytes);
        slots[i] = (struct staged_entry){slot, shm_arena_generation(&s->party.arena, slot)};
    }
    shm_ring_publish(stage_end(s, RING_SELECTION), RECORD_ENTRIES, bytes);
}

static void stage_take_read(struct stage *s, const struct record_read *r)
{
    struct stage_lane *lane = &s->lanes[r->header.sequence];
    stage_check_read(lane, r);
    if (!lane->stall_reads) {
        stage_answer_read(s, r);
        return;
    }
    assert_true(lane->n_stalled < 2); /* as many as fit into staging */
    lane->stalled[lane->n_stalled++] = *r;
}

void stage_answer_reads(struct stage *s, struct stage_lane *lane)
{
    lane->stall_reads = false;
    for (uint32_t i = 0; i < lane->n_stalled; i++)
        stage_answer_read(s, &lane->stalled[i]);
    lane->n_stalled = 0;
}

static void stage_pump_appends(struct stage *s)
{
    struct hill_why why = {0};
    uint32_t type, bytes;
    const void *payload;
    while (stage_end(s, RING_APPEND)->ring &&
           shm_ring_peek(stage_end(s, RING_APPEND), &type, &payload, &bytes) == 0) {
        if (record_check(type, payload, bytes, &s->settings.plan.geometry, STAGE_LANES, &why))
            fail_msg("%s", why.text);
        stage_take_append(s, type, payload);
        shm_ring_release(stage_end(s, RING_APPEND));
    }
}

static void stage_pump_rings(struct stage *s)
{
    struct hill_why why = {0};
    uint32_t type, bytes, lanes = 0; /* a bit each */
    const void *payload;
    stage_pump_appends(s);
    while (stage_end(s, RING_QUERY)->ring &&
           shm_ring_peek(stage_end(s, RING_QUERY), &type, &payload, &bytes) == 0) {
        if (record_check(type, payload, bytes, &s->settings.plan.geometry, STAGE_LANES, &why))
            fail_msg("%s", why.text);
        if (type == RECORD_READS_DONE) {
            struct stage_lane *lane = &s->lanes[((const struct record_header *)payload)->sequence];
            assert_true(lane->reads_hot);
            lane->n_reads_done++;
        } else if (type == RECORD_READ) {
            stage_pump_appends(s);
            stage_take_read(s, payload);
        } else {
            assert_int_equal(type, RECORD_QUERY);
            stage_pump_appends(s); /* with guesses the worker is ahead of what was taken */
            stage_take_query(s, payload);
            lanes |= 1u << ((const struct record_header *)payload)->sequence;
        }
        shm_ring_release(stage_end(s, RING_QUERY));
    }
    if ((uint32_t)__builtin_popcount(lanes) > s->most_at_once)
        s->most_at_once = (uint32_t)__builtin_popcount(lanes);
}

/* NULL: of a request that was sent to no lane. */
static struct stage_lane *stage_lane_of(struct stage *s, uint64_t request_id)
{
    for (uint32_t i = 0; i < STAGE_LANES; i++)
        if (s->lanes[i].request_id == request_id)
            return &s->lanes[i];
    return NULL;
}

static void stage_take_token(struct stage *s, const Hill__Token *token)
{
    struct stage_lane *lane = stage_lane_of(s, token->request_id);
    assert_non_null(lane);
    assert_false(lane->done);
    assert_int_equal(token->index, lane->n_tokens);
    assert_true(lane->n_tokens < STAGE_TOKENS);
    assert_int_equal(token->logits_state.len, sizeof *lane->states);
    memcpy(&lane->states[lane->n_tokens], token->logits_state.data, sizeof *lane->states);
    lane->tokens[lane->n_tokens++] = token->token;
}

static void stage_take_done(struct stage *s, const Hill__Done *done)
{
    struct stage_lane *lane = stage_lane_of(s, done->request_id);
    if (!lane) {
        s->n_refused++;
        s->refused_code = done->code;
        return;
    }
    assert_false(lane->done); /* once */
    lane->done = true;
    lane->finish = done->finish;
    lane->code = done->code;
    lane->logits_hash = done->logits_hash;
    lane->done_tokens = done->predicted_tokens;
    lane->busy_ms = done->gpu_busy_ms;
    lane->upload_bytes = done->gpu_upload_bytes;
    lane->weights_read = done->weights_read_bytes;
    lane->attended_bytes = done->attended_bytes;
    lane->link_bytes = done->link_gpu_bytes;
    lane->link_ns = done->link_gpu_ns;
    lane->idle_ms = done->gpu_idle_ms;
    lane->decode_ms = done->predicted_ms;
    lane->gap_ms = done->longest_gap_ms;
}

static void stage_take_message(struct stage *s, const Hill__Message *message)
{
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_READY:
        assert_int_equal(message->ready->epoch, s->settings.epoch);
        s->n_ready++;
        break;
    case HILL__MESSAGE__BODY_TOKEN:
        stage_take_token(s, message->token);
        break;
    case HILL__MESSAGE__BODY_DONE:
        stage_take_done(s, message->done);
        break;
    case HILL__MESSAGE__BODY_RESUMED:
        s->resumed_tokens = message->resumed->tokens;
        s->entries_repeated = message->resumed->entries_repeated;
        break;
    case HILL__MESSAGE__BODY_FAILURE:
        print_message("failure: %s\n", message->failure->text);
        s->n_failures++;
        break;
    case HILL__MESSAGE__BODY_HELLO:
    case HILL__MESSAGE__BODY_PROGRESS:
        break;
    default:
        fail_msg("an unexpected message %d", (int)message->body_case);
    }
}

void stage_pump(struct stage *s)
{
    Hill__Message *message;
    struct proto_address from;
    stage_pump_rings(s);
    while (proto_receive(s->control, &from, &message, NULL) == 0) {
        s->worker = from;
        stage_take_message(s, message);
        proto_free(message);
    }
    while (proto_receive(s->heartbeat, &from, &message, NULL) == 0)
        proto_free(message);
    usleep(200);
}

void stage_configure(struct stage *s)
{
    struct epoch_wire wire;
    epoch_settings_to_wire(&wire, &s->settings);
    stage_send(s, &wire.message);
}

void stage_set_model(struct stage *s, const char *text)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__CsdModel figures;
    assert_int_equal(csd_model_parse(&s->settings.csd_model, text, NULL), 0);
    proto_set_csd_model(&figures, &s->settings.csd_model);
    message.body_case = HILL__MESSAGE__BODY_CSD_MODEL;
    message.csd_model = &figures;
    stage_send(s, &message);
}

void stage_say_taken(struct stage *s, const struct stage_lane *lane, uint32_t tokens)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Taken taken = HILL__TAKEN__INIT;
    uint64_t id = lane->request_id;
    taken.request_ids = &id;
    taken.tokens = &tokens;
    taken.n_request_ids = taken.n_tokens = 1;
    message.body_case = HILL__MESSAGE__BODY_TAKEN;
    message.taken = &taken;
    stage_send(s, &message);
}

uint64_t stage_send_request(struct stage *s, uint32_t sequence, const uint32_t *tokens, uint32_t n,
                            uint32_t predict, uint32_t stop)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Prefill p = HILL__PREFILL__INIT;
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Selection selection = HILL__SELECTION__INIT;
    selection.alpha = 1;
    selection.policy = (Hill__Policy)s->policy;
    sampling.top_p = sampling.repeat_penalty = 1;
    sampling.json = s->json;
    p.request_id = ++s->n_requests;
    p.sequence = sequence;
    p.tokens = (uint32_t *)tokens;
    p.n_tokens = n;
    p.predict = predict;
    p.ahead_max = s->ahead_max;
    p.sampling = &sampling;
    p.selection = &selection;
    p.stop_tokens = &stop;
    p.n_stop_tokens = stop != UINT32_MAX;
    p.identity = s->resume ? 1000 + sequence : 0;
    p.resume = (Hill__Resume *)s->resume;
    message.body_case = HILL__MESSAGE__BODY_PREFILL;
    message.prefill = &p;
    stage_send(s, &message);
    return p.request_id;
}

void stage_request(struct stage *s, uint32_t sequence, const uint32_t *tokens, uint32_t n,
                   uint32_t predict, uint32_t stop)
{
    struct stage_lane *lane = &s->lanes[sequence];
    lane->n_tokens = 0;
    lane->done = false;
    lane->request_id = stage_send_request(s, sequence, tokens, n, predict, stop);
}

bool stage_open(struct stage *s, const struct random_shape *shape)
{
    struct hill_why why = {0};
    char program[4096];
    snprintf(program, sizeof program, "%s/hill-gpu-worker",
             getenv("HILL_BIN") ? getenv("HILL_BIN") : "build/bin");
    if (access(program, X_OK) != 0) {
        printf("no %s (HILL_BIN): skipped\n", program);
        return false;
    }
    memset(s, 0, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "/tmp/hill-test-gpu-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->model, sizeof s->model, "%s/model.gguf", s->dir);
    struct blob bytes = random_model_build(&s->m, shape, 5);
    FILE *f = fopen(s->model, "wb");
    assert_int_equal(fwrite(bytes.data, 1, bytes.size, f), bytes.size);
    fclose(f);
    free(bytes.data);
    assert_int_equal(gguf_open(&s->m.file, s->model, &why), 0);
    assert_int_equal(model_hparams_read(&s->m.hp, s->m.file, &why), 0);
    s->settings = (struct epoch_settings){
        .run_id = test_run_id(),
        .plan = {.geometry = {shape->n_layers, shape->n_heads, shape->n_kv_heads, shape->head_dim},
                 .n_embd = shape->n_embd,
                 .n_ff = shape->n_ff,
                 .n_vocab = shape->n_vocab,
                 .ctx_tokens = STAGE_CTX,
                 .batch_tokens = 32,
                 .n_sequences = STAGE_LANES,
                 .selection.alpha = 1},
        .model_path = s->model,
        .device = "",
        .csd_url = "",
        .trace_path = "",
        .record_path = "",
        .threads = 1,
        .gpu_kv_cap_bytes = 64 << 20,
        .gpu_slots = STAGE_CTX,
        .staging_slots = STAGE_LANES * 2 * STAGE_CTX,
        .block_tokens = 256};
    s->entry_bytes = kv_entry_bytes(&s->settings.plan.geometry);
    for (uint32_t i = 0; i < STAGE_LANES; i++)
        for (uint32_t l = 0; l < shape->n_layers; l++)
            s->lanes[i].entries[l] = calloc(STAGE_CTX, s->entry_bytes);
    pid_t self = getpid();
    s->context = zmq_ctx_new();
    s->control = stage_bind(s, "worker.sock");
    s->heartbeat = stage_bind(s, "heartbeat.sock");
    s->pid = fork();
    if (s->pid == 0) {
        test_die_with_parent(self);
        execl(program, program, "--run-dir", s->dir, "--log-level", "warn", (char *)NULL);
        _exit(127);
    }
    STAGE_UNTIL(s, s->worker.length > 0);
    return true;
}

int stage_close(struct stage *s)
{
    int status = -1;
    char path[128];
    kill(s->pid, SIGTERM);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    stage_leave_epoch(s);
    zmq_close(s->control);
    zmq_close(s->heartbeat);
    zmq_ctx_term(s->context);
    for (uint32_t i = 0; i < STAGE_LANES; i++)
        for (uint32_t l = 0; l < s->m.shape.n_layers; l++)
            free(s->lanes[i].entries[l]);
    random_model_free(&s->m);
    static const char *const files[] = {"model.gguf", "worker.sock", "heartbeat.sock"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", s->dir, files[i]);
        unlink(path);
    }
    rmdir(s->dir);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
