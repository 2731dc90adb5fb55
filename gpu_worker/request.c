/*
 * gpu_worker/request.c - the life of one request. See request.h.
 *
 * Prefill: unit u + 1 (a chunk of a layer) computes while the entries of unit u are read straight
 * into APPEND records. gpu_busy_ms + gpu_idle_ms = the decode's wall time; idle is the time its
 * steps spent waiting for selections. The logits hash covers every row of logits that a token was
 * taken from, so it says whether two runs computed the same bits.
 */
#include "gpu_worker/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash_state.h"
#include "base/log.h"
#include "base/stage_trace.h"
#include "gpu_worker/logits_file.h"

#define DEVICE_POLL_NS 1000000ll /* between looks at a device that does not ring */
#define PROMPT_PIECE   (256u << 10)
#define UNIT_WAIT_MS   300000 /* a layer of a chunk, on the slowest device; a piece of its past */
#define LOAD_TOKENS    2048u  /* at a time: some milliseconds */
#define PAST_TURN_MS   20     /* others may wait so long for their step, as for a unit */

/* ---- arrive ---- */

static void refuse(struct worker *w, const Hill__Prefill *prefill, int code, const char *text)
{
    Hill__Done done = HILL__DONE__INIT;
    done.request_id = prefill->request_id;
    done.finish = HILL__FINISH_REASON__FINISH_ERROR;
    done.code = code;
    done.text = (char *)text;
    worker_link_send(w->link, &PROTO_MESSAGE(DONE, done, &done));
}

/* The vocabulary's bytes are made once, for the first request that needs them. */
static int hold_to_json(struct request *r, struct hill_why *why)
{
    struct worker *w = r->w;
    struct hill_why reason;
    int rc = w->json ? 0 : json_tokens_open(&w->json, w->file, &reason);
    if (rc)
        return hill_fail(why, rc, "no answer can be held to JSON: %s", reason.text);
    r->json.stops = r->prefill->stop_tokens;
    r->json.n_stops = r->prefill->n_stop_tokens;
    return json_answer_begin(&r->json, w->json, NULL, 0); /* of no tokens: it cannot fail */
}

/* Takes the message, unless it fails. */
static int make_request(struct worker *w, Hill__Message *message, struct request **out,
                        struct hill_why *why)
{
    const Hill__Prefill *p = message->prefill;
    const Hill__Sampling *s = p->sampling;
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the request");
    *r = (struct request){
        .w = w,
        .message = message,
        .prefill = p,
        .arrival = w->n_arrived++,
        .sequence = p->sequence,
        .prompt = (uint32_t)p->n_tokens,
        .first_prompt = (uint32_t)p->n_tokens,
        .predict = p->predict,
        .whole_prefix = p->whole_prefix,
        .sampling = {s->temperature, s->top_k, s->top_p, s->min_p, s->repeat_penalty, s->seed},
        .started_ns = clock_now_ns()};
    r->tokens = malloc(sizeof *r->tokens * ((uint64_t)p->n_tokens + p->predict));
    r->hash = hash_state_create();
    int rc = 0;
    if (!r->tokens || !r->hash)
        rc = hill_fail(why, HILL_E_NOMEM, "no memory for the request");
    else if (s->json && !p->n_forced)
        rc = hold_to_json(r, why);
    if (rc) {
        r->message = NULL;
        request_free(r);
        return rc;
    }
    memcpy(r->tokens, p->tokens, sizeof *r->tokens * p->n_tokens);
    r->n_tokens = r->prompt;
    XXH64_reset(r->hash, 0);
    *out = r;
    return 0;
}

void request_arrive(struct worker *w, Hill__Message *message)
{
    const Hill__Prefill *p = message->prefill;
    struct request *r = NULL;
    struct hill_why why;
    int rc;
    if (!w->ready || w->pending)
        refuse(w, p, HILL_E_WOULD_BLOCK, "the gpu worker is not configured"); /* asked again */
    else if (p->sequence >= w->n_sequences)
        refuse(w, p, HILL_E_INVALID, "the gpu worker has no such sequence");
    else if (w->requests[p->sequence])
        refuse(w, p, HILL_E_PROTOCOL, "the gpu worker runs another request on the sequence");
    else if ((rc = make_request(w, message, &r, &why)) != 0)
        refuse(w, p, rc, why.text);
    if (!r) {
        proto_free(message);
        return;
    }
    w->requests[r->sequence] = r;
    w->n_requests++;
}

void request_cancel(struct worker *w, uint64_t request_id)
{
    for (uint32_t i = 0; i < w->n_sequences; i++)
        if (w->requests[i] && w->requests[i]->prefill->request_id == request_id)
            w->requests[i]->cancelled = true;
}

void request_note_taken(struct worker *w, const Hill__Taken *taken)
{
    for (size_t k = 0; k < taken->n_request_ids; k++)
        for (uint32_t i = 0; i < w->n_sequences; i++)
            if (w->requests[i] && w->requests[i]->prefill->request_id == taken->request_ids[k])
                w->requests[i]->taken = taken->tokens[k];
}

void request_free(struct request *r)
{
    struct worker *w = r->w;
    if (w->requests[r->sequence] == r) {
        w->requests[r->sequence] = NULL;
        w->n_requests--;
    }
    save_drop(r);
    restore_drop(r);
    past_drop(r);
    mend_drop(r);
    selected_drop(r);
    stored_drop(r);
    XXH64_freeState(r->hash);
    free(r->tokens);
    proto_free(r->message);
    free(r);
}

/* ---- begin ---- */

static int admit(const struct request *r, struct hill_why *why)
{
    const struct worker *w = r->w;
    if ((uint64_t)r->prompt + r->predict > w->settings.plan.ctx_tokens)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "%u prompt and %u new tokens exceed the context of %u", r->prompt,
                         r->predict, w->settings.plan.ctx_tokens);
    for (uint32_t i = 0; i < r->prompt; i++)
        if (r->tokens[i] >= w->hparams.n_vocab)
            return hill_fail(why, HILL_E_INVALID,
                             "token %u of the prompt is outside the vocabulary", i);
    for (size_t i = 0; i < r->prefill->n_forced; i++)
        if (r->prefill->forced[i] >= w->hparams.n_vocab)
            return hill_fail(why, HILL_E_INVALID, "forced token %zu is outside the vocabulary", i);
    if (r->prefill->restore && !request_asks_session(r))
        return 0; /* nothing of it is computed */
    uint32_t past = request_asks_session(r) ? request_session_tokens(r) - 1 : 0; /* or one more */
    uint64_t needed = engine_kv_bytes_needed(w->engine, past, r->prompt - past);
    if (r->prefill->reuse) { /* whole, when the tiers have it no longer */
        uint32_t reuse = r->prefill->reuse->tokens;
        uint64_t after = engine_kv_bytes_needed(w->engine, reuse, r->prompt - reuse);
        needed = after > needed ? after : needed;
    }
    if (request_weighs(r))
        needed += engine_mass_bytes_needed(w->engine, r->prompt);
    if (w->settings.gpu_kv_cap_bytes && needed > w->settings.gpu_kv_cap_bytes)
        return hill_fail(
            why, HILL_E_NOSPACE,
            "a prompt of %u tokens needs %.1f MiB of GPU memory for KV, the cap is %.1f", r->prompt,
            needed / 1048576.0, w->settings.gpu_kv_cap_bytes / 1048576.0);
    return 0;
}

/* For the recording: the Prefill message, in pieces that every append ring takes. */
static int push_prompt(struct request *r, struct hill_why *why)
{
    size_t total = hill__message__get_packed_size(r->message);
    uint8_t *packed = malloc(total + 1);
    if (!packed)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for recording a prompt");
    hill__message__pack(r->message, packed);
    int rc = 0;
    for (size_t at = 0; !rc && at < total;) {
        uint32_t n = total - at < PROMPT_PIECE ? (uint32_t)(total - at) : PROMPT_PIECE;
        struct dataplane *plane = &r->w->plane;
        uint32_t bytes = (uint32_t)sizeof(struct record_prompt) + n;
        void *payload;
        r->w->waiting = r;
        rc = dataplane_reserve(plane, plane->append, bytes, &payload, worker_deadline(), why);
        r->w->waiting = NULL;
        if (rc)
            break;
        *(struct record_prompt *)payload = (struct record_prompt){.header = request_header(r, 0),
                                                                  .total_bytes = (uint32_t)total,
                                                                  .first_byte = (uint32_t)at,
                                                                  .n_bytes = n};
        memcpy((struct record_prompt *)payload + 1, packed + at, n);
        shm_ring_publish(plane->append, RECORD_PROMPT, bytes);
        at += n;
    }
    free(packed);
    return rc;
}

int request_begin(struct request *r, struct hill_why *why)
{
    const Hill__Selection *s = r->prefill->selection;
    int rc = away_plan(r, why);
    if (rc)
        return rc;
    r->reads_hot = r->w->reads_hot && !r->w->model.figures.on;
    struct record_seq_begin begin = {
        .header = request_header(r, 0),
        .request_id = r->prefill->request_id,
        .prompt_tokens = request_index(r, request_entries(r)),
        .max_tokens = request_index(r, r->prompt + r->predict),
        .alpha = s->alpha,
        .budget = s->budget,
        .sinks = s->sinks,
        .window = s->window,
        .policy = s->policy,
        .importance = (uint16_t)s->importance, /* these two are checked, too */
        .granularity = (uint16_t)s->granularity,
        .reads_hot = r->reads_hot,
        .exact_below = (uint16_t)s->exact_below, /* at most KV_EXACT_BELOW_MAX: validated */
        .identity = r->prefill->identity,
        .past_tokens = r->prefill->restore ? request_session_entries(r) : 0,
    };
    resume_offer(r, &begin);
    if (r->prefill->reuse && !r->prompt_kept.units && !r->holds_chosen) {
        begin.after = r->prefill->reuse->identity;
        begin.after_tokens = r->prefill->reuse->tokens;
    }
    rc = admit(r, why);
    if (!rc && r->w->settings.record_path[0])
        rc = push_prompt(r, why);
    if (!rc)
        rc = request_push(r, RECORD_SEQ_BEGIN, &begin, sizeof begin, why);
    if (rc)
        return rc;
    FAULT_POINT(gpu_worker, begin, pushed);
    r->begun = true;
    r->begun_ns = clock_now_ns();
    r->w->ready_owed[r->sequence]++;
    r->state = REQUEST_BEGINNING;
    return 0;
}

/* Answers come in the order of the SEQ_BEGINs: only the last one owed is this request's. */
void request_take_ready(struct worker *w, const struct record_seq_ready *record)
{
    uint32_t sequence = record->header.sequence;
    struct request *r = w->requests[sequence];
    if (!w->ready_owed[sequence] || --w->ready_owed[sequence] || !r ||
        r->state != REQUEST_BEGINNING)
        return;
    r->ready = true;
    r->ready_status = record->status;
    r->hot_offset = record->hot_offset;
    r->hot_entries = record->hot_entries;
    r->kept_tokens = record->kept_tokens;
    r->kept_step = record->header.step;
    r->kept_layer = record->header.layer;
    r->replay_to = record->replay_to;
    if (mend_take(r, record))
        r->ready_status = HILL_E_NOMEM;
}

void request_spoil_ready(struct worker *w, int code)
{
    for (uint32_t i = 0; i < w->n_sequences; i++) {
        struct request *r = w->requests[i];
        if (!r || r->state != REQUEST_BEGINNING || r->ready)
            continue;
        r->ready = true;
        r->ready_status = code;
        w->ready_owed[i] = 0;
    }
}

/* Tokens of an earlier request have their entries: what follows them is computed. */
static int begin_after(struct request *r, struct hill_why *why)
{
    if (r->kept_tokens != r->prefill->reuse->tokens)
        return hill_fail(why, HILL_E_PROTOCOL, "the scorer keeps %u tokens, which is not offered",
                         r->kept_tokens);
    r->reused = r->kept_tokens;
    request_note_beginning(r);
    return stored_begin(r, r->prefill->reuse->plain, why);
}

int request_check_ready(struct request *r, struct hill_why *why)
{
    int status = r->ready_status;
    if (!r->ready)
        return clock_now_ns() < r->begun_ns + WORKER_WAIT_MS * 1000000ll
                   ? 0
                   : hill_fail(why, HILL_E_TIMEOUT,
                               "the scorer sent no answer to SEQ_BEGIN in time");
    if (status)
        return hill_fail(why, status < 0 ? status : HILL_E_PROTOCOL,
                         "the scorer refuses the sequence: %s", hill_strerror(status));
    int rc = r->reads_hot
                 ? engine_place_hot(r->w->engine, 64ull * r->hot_offset, r->hot_entries, why)
                 : 0;
    /* of a session whose first step was not whole there are its entries alone */
    if (!rc && r->kept_tokens && resume_hopes(r) && r->kept_tokens >= request_index(r, r->prompt)) {
        away_resume(r);
        return resume_begin(r, why);
    }
    if (!rc && r->holds_chosen)
        return selected_begin(r, why);
    if (!rc && r->kept_tokens && r->prefill->reuse && !r->prompt_kept.units)
        return begin_after(r, why);
    if (!rc && r->prefill->restore)
        return restore_begin(r, why);
    return rc ? rc : stored_begin(r, 0, why);
}

/* ---- prefill ---- */

/* Buffers of earlier prompts are not to take it beyond the cap, within which it was admitted. */
static int make_room(struct request *r, uint32_t n_past, struct hill_why *why)
{
    const struct worker *w = r->w;
    uint32_t n = r->prompt - n_past;
    uint64_t more = 0;
    if (r->selected)
        more = engine_probe_bytes_needed(w->engine, n_past, n, w->store->keys->shape.n_probes);
    else if (request_weighs(r))
        more = engine_mass_bytes_needed(w->engine, n);
    return engine_prefill_within(w->engine, n_past, n, more, w->settings.gpu_kv_cap_bytes, why);
}

int request_begin_prefill(struct request *r, uint32_t n_past, struct hill_why *why)
{
    struct engine *engine = r->w->engine;
    r->unit = r->queued = 0;
    int rc = make_room(r, n_past, why);
    if (!rc)
        rc = n_past ? engine_prefill_begin(engine, n_past, r->prompt - n_past, why)
                    : resume_prompt(r, why);
    if (!rc && r->selected)
        rc = engine_prefill_select(engine, why);
    if (!rc && request_weighs(r))
        rc = engine_prefill_weigh(engine, why);
    if (!rc && logits_file_wants_prompt())
        engine_prefill_whole(engine);
    if (rc)
        return rc;
    r->n_past = r->loaded = n_past;
    r->units = engine_prefill_units(engine);
    r->state = REQUEST_LOADING;
    return n_past && !r->selected ? past_open(r, why) : 0;
}

/* Queue units up to `end`, as far as their past is there. */
static int enqueue(struct request *r, uint32_t end, struct hill_why *why)
{
    int rc = 0;
    if (r->selected)
        return 0; /* selected_pump queues them */
    for (; !rc && r->queued < end && r->queued < r->units; r->queued += rc ? 0 : 1) {
        if (!past_is_there(r, engine_prefill_unit(r->w->engine, r->queued).layer))
            return 0;
        rc = engine_prefill_enqueue(r->w->engine, r->queued, why);
    }
    return rc;
}

bool request_computes_unit(const struct request *r)
{
    return r->state == REQUEST_PREFILL && (r->queued > r->unit || r->unit == r->units);
}

int request_load(struct request *r, struct hill_why *why)
{
    uint32_t rest = r->prompt - r->loaded, n = rest < LOAD_TOKENS ? rest : LOAD_TOKENS;
    int rc = engine_prefill_tokens(r->w->engine, r->tokens + r->loaded, n, why);
    r->loaded += n;
    request_progress(r, 0);
    if (rc || r->loaded < r->prompt)
        return rc;
    r->state = REQUEST_PREFILL;
    return enqueue(r, r->unit + 1, why);
}

int request_await_unit(struct request *r, bool alone, struct hill_why *why)
{
    struct worker *w = r->w;
    int64_t deadline = clock_deadline_ms(UNIT_WAIT_MS), turn = clock_deadline_ms(PAST_TURN_MS);
    if (r->unit == r->units)
        return 0; /* all of it was computed by an earlier process */
    STAGE_BEGIN(prefill, r->sequence, 0, engine_prefill_unit(w->engine, r->unit).layer);
    for (int rc = 0;;) {
        int moved = r->selected ? selected_pump(r, why) : past_pump(r, why);
        if (r->state != REQUEST_PREFILL)
            return moved < 0 ? moved : 0; /* all of its past is to come first, after all */
        rc = moved < 0 ? moved : enqueue(r, r->unit + (alone ? 2 : 1), why);
        if (!rc && request_computes_unit(r))
            rc = alone ? engine_prefill_done(w->engine, r->unit, why)
                       : engine_prefill_settled(w->engine, why);
        if (rc > 0)
            STAGE_END(prefill, 0);
        if (rc)
            return rc < 0 ? rc : 0;
        if (!alone && !request_computes_unit(r) && clock_now_ns() >= turn)
            return 0;
        if (moved) { /* all of a layer's past may take longer */
            deadline = clock_deadline_ms(UNIT_WAIT_MS);
            continue;
        }
        if (clock_now_ns() >= deadline)
            return hill_fail(why, HILL_E_NODEV, "a unit of the prompt has not gone on for %d s",
                             UNIT_WAIT_MS / 1000);
        w->waiting = r;
        rc = worker_waiting(w, why);
        w->waiting = NULL;
        request_progress(r, r->unit);
        if (rc)
            return rc;
        dataplane_sleep(&w->plane, dataplane_seen(&w->plane), clock_now_ns() + DEVICE_POLL_NS);
    }
}

/* Read the unit's entries straight into APPEND records. */
static int append_entries(struct request *r, struct hill_why *why)
{
    struct worker *w = r->w;
    struct dataplane *plane = &w->plane;
    struct engine_unit u = engine_prefill_unit(w->engine, r->unit);
    uint32_t at_once = layout_append_tokens_max(&plane->party.layout);
    uint32_t passed = resume_passed(r, &u);
    if (passed == u.count)
        return engine_prefill_pass(w->engine, r->unit, why);
    for (uint32_t first = passed; first < u.count; first += at_once) {
        uint32_t n = u.count - first < at_once ? u.count - first : at_once;
        uint32_t bytes = (uint32_t)sizeof(struct record_append) + n * worker_entry_bytes(w);
        void *payload;
        w->waiting = r;
        int rc = dataplane_reserve(plane, plane->append, bytes, &payload, worker_deadline(), why);
        w->waiting = NULL;
        if (rc)
            return rc;
        FAULT_POINT(gpu_worker, append, reserved);
        struct record_append *append = payload;
        *append = (struct record_append){.header = request_header(r, u.layer),
                                         .first = request_index(r, u.first) + first,
                                         .n_tokens = n};
        rc = engine_prefill_read(w->engine, r->unit, first, n, append + 1, why);
        if (rc)
            return rc;
        shm_ring_publish(plane->append, RECORD_APPEND, bytes);
        FAULT_POINT(gpu_worker, append, pushed);
        if (u.first + first == 0)
            r->first_append = n;
    }
    return 0;
}

/* After a layer's last entries: what the prompt's queries have attended to there. */
static int append_mass(struct request *r, uint32_t layer, struct hill_why *why)
{
    int rc = 0;
    for (uint32_t first = 0; !rc && first < r->prompt;) {
        struct record_mass *record;
        rc = request_reserve_mass(r, layer, first, r->prompt - first, &record, why);
        if (!rc)
            rc = engine_prefill_mass(r->w->engine, layer, first, record->n_tokens,
                                     (float *)(void *)(record + 1), why);
        if (rc)
            return rc;
        first += record->n_tokens;
        request_publish_mass(r, record);
    }
    return rc;
}

static int append_unit(struct request *r, struct hill_why *why)
{
    struct worker *w = r->w;
    struct engine_unit u = engine_prefill_unit(w->engine, r->unit);
    int rc = enqueue(r, r->unit + 2, why);
    FAULT_POINT(gpu_worker, unit, computed);
    STAGE_BEGIN(append, r->sequence, 0, u.layer);
    if (!rc)
        rc = r->selected ? selected_pass_unit(r, why) : 0;
    if (!rc && (!r->selected || r->holds_chosen))
        rc = append_entries(r, why);
    if (!rc && request_weighs(r) && u.first + u.count == r->prompt)
        rc = append_mass(r, u.layer, why);
    if (!rc)
        rc = engine_prefill_save(w->engine, r->unit, why);
    if (rc)
        return rc;
    STAGE_END(append, (uint64_t)u.count * worker_entry_bytes(w));
    FAULT_POINT(gpu_worker, unit, appended);
    request_progress(r, ++r->unit);
    worker_unit_of_work(w);
    return 0;
}

/* The scorer has all entries of the prompt. */
static int end_prefill(struct request *r, struct hill_why *why)
{
    int rc = request_push_step_end(r, request_index(r, r->prompt), why);
    FAULT_POINT(gpu_worker, prefill, ended);
    r->state = REQUEST_DECODE;
    return rc;
}

int request_append_unit(struct request *r, struct hill_why *why)
{
    struct worker *w = r->w;
    int rc = r->unit < r->units ? append_unit(r, why) : 0;
    if (rc || r->unit < r->units)
        return rc;
    past_drop(r);
    if (r->predicted || r->over) /* computed again, for its entries alone */
        return end_prefill(r, why);
    rc = logits_file_prompt(w, r->n_past, r->prompt, why);
    if (!rc)
        rc = engine_prefill_logits(w->engine, w->logits, why);
    r->prompt_done_ns = clock_now_ns();
    r->chose = r->selected;
    r->state = REQUEST_FILLING;
    if (!rc && r->holds_chosen)
        away_end(r);
    return rc || r->selected ? rc : end_prefill(r, why);
}

/* ---- tokens ---- */

static bool is_stop(const struct request *r, uint32_t token)
{
    for (size_t i = 0; i < r->prefill->n_stop_tokens; i++)
        if (r->prefill->stop_tokens[i] == token)
            return true;
    return false;
}

/* 1: the request is at its end. */
static int take(struct request *r, uint32_t token, double logprob)
{
    if (!r->prefill->n_forced && is_stop(r, token)) {
        r->tokens[r->n_tokens] = token; /* for a session; there is room: it is not the last */
        r->finish = HILL__FINISH_REASON__FINISH_STOP;
        return 1;
    }
    request_send_token(r, token, logprob);
    r->tokens[r->n_tokens++] = token;
    r->finish = HILL__FINISH_REASON__FINISH_LENGTH;
    return ++r->predicted == r->predict || json_answer_is_complete(&r->json);
}

/* What the sampler makes of w->logits. */
static int pick(struct request *r, uint32_t *token, struct hill_why *why)
{
    struct worker *w = r->w;
    const struct sampler_filter json = {json_answer_allows, &r->json};
    w->sampler.settings = r->sampling;
    *token = sampler_pick(&w->sampler, w->logits, r->tokens, r->n_tokens, r->n_tokens,
                          r->json.tokens ? &json : NULL);
    if (*token == SAMPLER_NO_TOKEN || (r->json.tokens && json_answer_take(&r->json, *token)))
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "the model's vocabulary has no token with which the JSON goes on");
    return 0;
}

int request_take_token(struct request *r, struct hill_why *why)
{
    struct worker *w = r->w;
    uint32_t token;
    double logprob = 0;
    int late = resume_hash(r, why);
    if (late)
        return late;
    logits_file_step(w);
    if (!sampler_has_numbers(w->logits, w->hparams.n_vocab))
        return hill_fail(why, HILL_E_DAMAGED,
                         "the logits of step %u are no numbers: a damaged model, or one whose "
                         "activations overflow",
                         r->step);
    if (r->prefill->n_forced) { /* as many as predict */
        token = r->prefill->forced[r->predicted];
    } else {
        int rc = pick(r, &token, why);
        if (rc)
            return rc;
    }
    bool wanted = r->prefill->n_forced || r->prefill->sampling->logprobs;
    if (wanted && sampler_logprob(w->logits, w->hparams.n_vocab, token, &logprob))
        return hill_fail(why, HILL_E_DAMAGED, "the logits of step %u are not all numbers", r->step);
    return take(r, token, logprob);
}

int request_take_restored(struct request *r)
{
    return take(r, r->prefill->n_forced ? r->prefill->forced[0] : r->restored_token, 0);
}

/* ---- the end ---- */

static void send_done(struct request *r, int rc, const char *text)
{
    Hill__Done done = HILL__DONE__INIT;
    int64_t ended_ns = clock_now_ns(), prompt_ns = r->prompt_done_ns ? r->prompt_done_ns : ended_ns;
    double decode_ms = (ended_ns - prompt_ns) * 1e-6;
    done.request_id = r->prefill->request_id;
    /* r->finish also says whether the newest token has been through the layers: here it has not */
    bool whole = json_answer_is_complete(&r->json);
    done.finish = rc == 0                  ? whole ? HILL__FINISH_REASON__FINISH_STOP : r->finish
                  : rc == HILL_E_CANCELLED ? HILL__FINISH_REASON__FINISH_CANCEL
                                           : HILL__FINISH_REASON__FINISH_ERROR;
    done.code = rc;
    done.text = (char *)(rc ? text : "");
    done.save_failed = rc && r->saved_at_end;
    done.logits_hash = XXH64_digest(r->hash);
    done.predicted_tokens = r->predicted;
    done.resumed_tokens = r->resumed;
    done.reused_tokens = r->reused;
    done.session_tokens = r->session_entries;
    done.reused_plain = r->n_plain < r->reused ? r->n_plain : r->reused;
    done.drive_tokens = r->drive_tokens;
    done.drive_ms = r->drive_ms;
    done.drive_saved_ms = r->saved_ms;
    done.left_chunks = r->left_chunks;
    done.selected = r->chose;
    done.loaded_bytes = r->loaded_bytes;
    done.loaded_entries = r->loaded_entries;
    done.later_bytes = r->later_bytes;
    done.probe_ms = r->probe_ms;
    done.cached_bytes = r->cached_bytes;
    done.away_tokens = r->n_away;
    done.cached_gpu_bytes = r->cached_gpu_bytes;
    done.prompt_ms = (prompt_ns - r->started_ns) * 1e-6;
    done.predicted_ms = decode_ms;
    done.gpu_idle_ms = r->idle_ns * 1e-6;
    done.gpu_busy_ms = decode_ms > done.gpu_idle_ms ? decode_ms - done.gpu_idle_ms : 0;
    done.gpu_upload_bytes = r->upload_bytes;
    done.weights_read_bytes = r->weights_read;
    done.attended_bytes = r->attended_bytes;
    done.link_gpu_bytes = r->link_bytes;
    done.link_gpu_ns = r->link_ns;
    done.gpu_resident_bytes = engine_kv_bytes(r->w->engine);
    done.longest_gap_ms = r->longest_gap_ns * 1e-6;
    done.token_median_ms = step_times_token_ms(&r->times);
    done.idle_median_ms = step_times_idle_ms(&r->times);
    worker_link_send(r->w->link, &PROTO_MESSAGE(DONE, done, &done));
}

static void end_sequence(struct request *r, int rc)
{
    struct hill_why why;
    struct dataplane *plane = &r->w->plane;
    struct record_seq_end end = {.header = request_header(r, 0),
                                 .request_id = r->prefill->request_id,
                                 .status = r->over ? 0 : rc,
                                 .keep = r->prefill->keep && !r->holds_chosen};
    /* the goodbye itself is not to be cancelled: nobody is w->waiting */
    if (rc == HILL_E_ENTRY && !r->saved_at_end)
        return; /* what is kept of it is looked at in a new epoch, and it goes on */
    if (r->begun && dataplane_push(plane, plane->append, RECORD_SEQ_END, &end, sizeof end,
                                   clock_deadline_ms(5000), &why))
        log_warn("the scorer was not told that request %llu ended: %s",
                 (unsigned long long)r->prefill->identity, why.text);
}

void request_end(struct request *r, int rc, const char *text)
{
    unsigned long long id = r->prefill->identity;
    resume_end_hash(r);
    end_sequence(r, rc);
    if (rc && rc != HILL_E_CANCELLED)
        log_debug("request %llu failed: %s", id, text);
    else
        log_debug(
            "request %llu on sequence %u: %u prompt tokens, %u predicted, longest gap between "
            "two tokens %.1f ms",
            id, r->sequence, r->prompt, r->predicted, r->longest_gap_ns * 1e-6);
    send_done(r, rc, text);
    request_free(r);
}
