/*
 * gpu_worker/request.c - one request: prefill, then a token at a time, with the scorer at the other
 * end of the rings.
 *
 * Prefill: unit u + 1 (a chunk of a layer) computes while the entries of unit u are read into
 * APPEND records. Step s >= 1 takes token s - 1 at position p = prompt + s - 1. For each layer:
 * QUERY (N = p), APPEND of the new entry, SELECTION back, its uploads (read by the device straight
 * from staging, which the scorer leaves alone until the next QUERY), attention over the selected
 * entries and the new one. Then STEP_END and the next token. gpu_busy_ms + gpu_idle_ms = the
 * decode's wall time; idle is the time spent waiting for selections. How it ends: stop token,
 * length, cancel, an error (all with SEQ_END and Done), or silently when a new epoch comes: the
 * coordinator sends the request again. A scorer that died is waited for (a new epoch will tell)
 * before the request fails. Called by main.c.
 */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/log.h"
#include "gpu_worker/worker.h"

#define WAIT_MS        60000
#define PROGRESS_NS    (150 * 1000000ll)
#define DEVICE_POLL_NS 1000000ll /* between looks at a device that does not ring */

struct request {
    struct worker *w;
    const Hill__Prefill *prefill;
    uint32_t sequence, step, prompt, predict;
    uint32_t *tokens; /* [prompt + predict]: the sequence so far */
    uint32_t n_tokens, predicted;
    bool begun; /* SEQ_BEGIN is out: SEQ_END is owed */
    XXH64_state_t *hash;
    int64_t started_ns, prompt_done_ns, ended_ns, idle_ns, progress_ns;
    uint64_t upload_bytes;
    Hill__FinishReason finish;
};

static int64_t wait_deadline(void)
{
    return clock_deadline_ms(WAIT_MS);
}

static struct record_header make_header(const struct request *r, uint32_t layer)
{
    return (struct record_header){r->w->epoch, r->sequence, r->step, layer};
}

static uint32_t entry_bytes(const struct request *r)
{
    return kv_entry_bytes(&r->w->plane.settings.layout.geometry);
}

static void unit_of_work(struct request *r)
{
    worker_link_work_done(r->w->link, ++r->w->work_done);
}

/* ---- begin and end ---- */

static int admit(const struct request *r, struct hill_why *why)
{
    const struct worker *w = r->w;
    if ((uint64_t)r->prompt + r->predict > w->ctx_tokens)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "%u prompt and %u new tokens exceed the context of %u", r->prompt,
                         r->predict, w->ctx_tokens);
    if (r->sequence >= w->plane.settings.layout.n_sequences)
        return hill_fail(why, HILL_E_INVALID, "no sequence %u", r->sequence);
    for (uint32_t i = 0; i < r->prompt; i++)
        if (r->prefill->tokens[i] >= w->hparams.n_vocab)
            return hill_fail(why, HILL_E_INVALID,
                             "token %u of the prompt is outside the vocabulary", i);
    uint64_t needed = engine_kv_bytes_needed(w->engine, r->prompt);
    if (w->gpu_kv_cap_bytes && needed > w->gpu_kv_cap_bytes)
        return hill_fail(
            why, HILL_E_NOSPACE,
            "a prompt of %u tokens needs %.1f MiB of GPU memory for KV, the cap is %.1f", r->prompt,
            needed / 1048576.0, w->gpu_kv_cap_bytes / 1048576.0);
    return 0;
}

static int begin_sequence(struct request *r, struct hill_why *why)
{
    struct dataplane *plane = &r->w->plane;
    const Hill__Selection *s = r->prefill->selection;
    struct record_seq_begin begin = {
        .header = make_header(r, 0),
        .request_id = r->prefill->request_id,
        .prompt_tokens = r->prompt,
        .max_tokens = r->prompt + r->predict,
        .alpha = s->alpha,
        .budget = s->budget,
        .sinks = s->sinks,
        .window = s->window,
        .policy = s->policy,
        .importance = s->importance,
    };
    int rc = dataplane_push(plane, &plane->append, RECORD_SEQ_BEGIN, &begin, sizeof begin,
                            wait_deadline(), why);
    if (rc)
        return rc;
    r->begun = true;
    int status = 0;
    for (r->w->ready_owed++; r->w->ready_owed > 0; r->w->ready_owed--) {
        const void *payload;
        rc = dataplane_receive(plane, RECORD_SEQ_READY, 0, &payload, wait_deadline(), why);
        if (rc)
            return rc;
        status = ((const struct record_seq_ready *)payload)->status;
        shm_ring_release(&plane->selection);
    }
    return status ? hill_fail(why, status < 0 ? status : HILL_E_PROTOCOL,
                              "the scorer refuses the sequence: %s", hill_strerror(status))
                  : 0;
}

static int push_step_end(struct request *r, uint32_t n_tokens, struct hill_why *why)
{
    struct record_step_end end = {.header = make_header(r, 0), .n_tokens = n_tokens};
    return dataplane_push(&r->w->plane, &r->w->plane.append, RECORD_STEP_END, &end, sizeof end,
                          wait_deadline(), why);
}

/* ---- prefill ---- */

static void send_progress(struct request *r, uint32_t done, uint32_t total)
{
    int64_t now = clock_now_ns();
    if (done < total && now < r->progress_ns + PROGRESS_NS)
        return;
    r->progress_ns = now;
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Progress progress = HILL__PROGRESS__INIT;
    progress.request_id = r->prefill->request_id;
    progress.units_done = done;
    progress.units_total = total;
    message.body_case = HILL__MESSAGE__BODY_PROGRESS;
    message.progress = &progress;
    worker_link_send(r->w->link, &message);
}

/* Until the unit's entries are computed; control messages are looked at meanwhile. */
static int await_unit(struct request *r, uint32_t unit, uint32_t total, struct hill_why *why)
{
    for (;;) {
        int rc = engine_prefill_done(r->w->engine, unit, why);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        if (worker_interrupted(r->w))
            return hill_fail(why, HILL_E_CANCELLED, "interrupted during prefill");
        send_progress(r, unit, total);
        dataplane_sleep(&r->w->plane, dataplane_seen(&r->w->plane),
                        clock_now_ns() + DEVICE_POLL_NS);
    }
}

/* Read the unit's entries straight into APPEND records. */
static int append_unit(struct request *r, uint32_t unit, struct hill_why *why)
{
    struct dataplane *plane = &r->w->plane;
    struct engine_unit u = engine_prefill_unit(r->w->engine, unit);
    uint32_t at_once = layout_append_tokens_max(&plane->settings.layout);
    for (uint32_t first = 0; first < u.count; first += at_once) {
        uint32_t n = u.count - first < at_once ? u.count - first : at_once;
        uint32_t bytes = (uint32_t)sizeof(struct record_append) + n * entry_bytes(r);
        void *payload;
        int rc = dataplane_reserve(plane, &plane->append, bytes, &payload, wait_deadline(), why);
        if (rc)
            return rc;
        struct record_append *append = payload;
        *append = (struct record_append){
            .header = make_header(r, u.layer), .first = u.first + first, .n_tokens = n};
        rc = engine_prefill_read(r->w->engine, unit, first, n, append + 1, why);
        if (rc)
            return rc;
        shm_ring_publish(&plane->append, RECORD_APPEND, bytes);
    }
    return 0;
}

static int run_prefill(struct request *r, struct hill_why *why)
{
    struct engine *engine = r->w->engine;
    int rc = engine_prefill_begin(engine, r->tokens, r->prompt, why);
    uint32_t total = rc ? 0 : engine_prefill_units(engine);
    if (!rc)
        rc = engine_prefill_enqueue(engine, 0, why);
    for (uint32_t unit = 0; !rc && unit < total; unit++) {
        if (unit + 1 < total)
            rc = engine_prefill_enqueue(engine, unit + 1, why);
        if (!rc)
            rc = await_unit(r, unit, total, why);
        if (!rc)
            rc = append_unit(r, unit, why);
        if (!rc && worker_interrupted(r->w))
            rc = hill_fail(why, HILL_E_CANCELLED, "interrupted during prefill");
        send_progress(r, unit + 1, total);
        unit_of_work(r);
    }
    if (!rc)
        rc = engine_prefill_logits(engine, r->w->logits, why);
    return rc ? rc : push_step_end(r, r->prompt, why);
}

/* ---- decode ---- */

/* The device has read staging: it must have been what the selection said all the time. */
static int confirm_uploads(struct worker *w, struct hill_why *why)
{
    uint32_t n = w->n_uploads_given;
    w->n_uploads_given = 0;
    return dataplane_check_staged(&w->plane, w->uploads_given, n, why);
}

static int push_query(struct request *r, uint32_t layer, uint32_t n_before, uint32_t query_id,
                      struct hill_why *why)
{
    struct dataplane *plane = &r->w->plane;
    const struct model_hparams *hp = &r->w->hparams;
    uint32_t e = entry_bytes(r), q_bytes = 4 * hp->n_heads * hp->head_dim;
    void *to_query, *to_append;
    int rc =
        dataplane_reserve(plane, &plane->query, (uint32_t)sizeof(struct record_query) + q_bytes,
                          &to_query, wait_deadline(), why);
    if (!rc)
        rc = dataplane_reserve(plane, &plane->append, (uint32_t)sizeof(struct record_append) + e,
                               &to_append, wait_deadline(), why);
    if (rc)
        return rc;
    struct record_query *query = to_query;
    struct record_append *append = to_append;
    *query =
        (struct record_query){make_header(r, layer), query_id, QUERY_EXACT, hp->n_heads, n_before};
    *append =
        (struct record_append){.header = make_header(r, layer), .first = n_before, .n_tokens = 1};
    rc = engine_step_query(r->w->engine, layer, (float *)(query + 1), append + 1, why);
    if (!rc)
        rc = confirm_uploads(r->w, why);
    if (rc)
        return rc;
    shm_ring_publish(&plane->query, RECORD_QUERY, (uint32_t)sizeof *query + q_bytes);
    shm_ring_publish(&plane->append, RECORD_APPEND, (uint32_t)sizeof *append + e);
    return 0;
}

/* The uploads' slots in staging, checked; the device copies them while it works on the layer. */
static int apply_uploads(struct request *r, uint32_t layer, const struct selected_upload *uploads,
                         uint32_t n, struct hill_why *why)
{
    struct worker *w = r->w;
    if (n > w->gpu_slots)
        return hill_fail(why, HILL_E_PROTOCOL, "%u uploads for %u GPU slots", n, w->gpu_slots);
    int rc = dataplane_check_staged(&w->plane, uploads, n, why);
    for (uint32_t i = 0; !rc && i < n; i++) {
        w->uploads[i] = (struct engine_upload){uploads[i].staging_slot, uploads[i].gpu_slot};
        w->uploads_given[i] = uploads[i];
    }
    w->n_uploads_given = rc ? 0 : n;
    r->upload_bytes += (uint64_t)n * entry_bytes(r);
    return rc ? rc : engine_step_upload(w->engine, layer, n, w->uploads, why);
}

/* Positions ascend below N and slots lie in the table: what the attention relies on. */
static int check_items(const struct request *r, const struct selected_item *items, uint32_t n,
                       uint32_t n_before, struct hill_why *why)
{
    if (n > r->w->gpu_slots || n > n_before)
        return hill_fail(why, HILL_E_PROTOCOL, "a selection of %u entries of %u with %u GPU slots",
                         n, n_before, r->w->gpu_slots);
    for (uint32_t i = 0; i < n; i++)
        if (items[i].gpu_slot >= r->w->gpu_slots || items[i].position >= n_before ||
            (i && items[i].position <= items[i - 1].position))
            return hill_fail(
                why, HILL_E_PROTOCOL,
                "item %u of a selection (position %u, slot %u) is out of range or order", i,
                items[i].position, items[i].gpu_slot);
    return 0;
}

static int use_selection(struct request *r, uint32_t layer, uint32_t n_before,
                         const struct record_selection *s, struct hill_why *why)
{
    struct worker *w = r->w;
    const struct selected_item *items = (const struct selected_item *)(s + 1);
    if (s->status)
        return hill_fail(why, s->status < 0 ? s->status : HILL_E_PROTOCOL,
                         "the scorer cannot select for layer %u: %s", layer,
                         hill_strerror(s->status));
    if (s->header.layer != layer || s->header.sequence != r->sequence)
        return hill_fail(why, HILL_E_PROTOCOL,
                         "a selection of layer %u answers a query of layer %u", s->header.layer,
                         layer);
    int rc = check_items(r, items, s->n_selected, n_before, why);
    if (!rc)
        rc = apply_uploads(r, layer, (const struct selected_upload *)(items + s->n_selected),
                           s->n_uploads, why);
    for (uint32_t i = 0; !rc && i < s->n_selected; i++)
        w->item_slots[i] = items[i].gpu_slot;
    if (!rc)
        rc = engine_step_attend(w->engine, layer, s->n_selected, w->item_slots, why);
    return rc;
}

static int run_layer(struct request *r, uint32_t layer, uint32_t n_before, struct hill_why *why)
{
    struct dataplane *plane = &r->w->plane;
    uint32_t query_id = r->w->next_query_id++;
    int rc = push_query(r, layer, n_before, query_id, why);
    if (rc)
        return rc;
    const void *payload;
    int64_t start = clock_now_ns();
    rc = dataplane_receive(plane, RECORD_SELECTION, query_id, &payload, wait_deadline(), why);
    r->idle_ns += clock_now_ns() - start;
    if (rc)
        return rc;
    rc = use_selection(r, layer, n_before, payload, why);
    shm_ring_release(&plane->selection);
    return rc;
}

/* The newest token goes through the layers: its logits. */
static int run_step(struct request *r, struct hill_why *why)
{
    uint32_t n_before = r->n_tokens - 1;
    r->step++;
    int rc = engine_step_begin(r->w->engine, r->tokens[n_before], n_before, why);
    for (uint32_t layer = 0; !rc && layer < r->w->hparams.n_layers; layer++)
        rc = run_layer(r, layer, n_before, why);
    if (!rc)
        rc = engine_step_logits(r->w->engine, r->w->logits, why);
    if (!rc)
        rc = confirm_uploads(r->w, why);
    unit_of_work(r);
    return rc ? rc : push_step_end(r, n_before + 1, why);
}

static void send_token(struct request *r, uint32_t token)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Token body = HILL__TOKEN__INIT;
    body.request_id = r->prefill->request_id;
    body.index = r->predicted;
    body.token = token;
    message.body_case = HILL__MESSAGE__BODY_TOKEN;
    message.token = &body;
    worker_link_send(r->w->link, &message);
}

static bool is_stop(const struct request *r, uint32_t token)
{
    for (size_t i = 0; i < r->prefill->n_stop_tokens; i++)
        if (r->prefill->stop_tokens[i] == token)
            return true;
    return false;
}

/* A token from the logits of the last step. True when the request is at its end. */
static bool take_token(struct request *r)
{
    struct worker *w = r->w;
    XXH64_update(r->hash, w->logits, sizeof *w->logits * w->hparams.n_vocab);
    uint32_t token = sampler_pick(&w->sampler, w->logits, r->tokens, r->n_tokens, r->n_tokens);
    if (is_stop(r, token)) {
        r->finish = HILL__FINISH_REASON__FINISH_STOP;
        return true;
    }
    send_token(r, token);
    r->tokens[r->n_tokens++] = token;
    r->finish = HILL__FINISH_REASON__FINISH_LENGTH;
    return ++r->predicted == r->predict;
}

static int generate(struct request *r, struct hill_why *why)
{
    int rc = admit(r, why);
    if (!rc)
        rc = begin_sequence(r, why);
    if (!rc)
        rc = run_prefill(r, why);
    r->prompt_done_ns = clock_now_ns();
    while (!rc && !take_token(r)) {
        if (worker_interrupted(r->w))
            return hill_fail(why, HILL_E_CANCELLED, "interrupted during decode");
        rc = run_step(r, why);
    }
    return rc;
}

/* ---- the end ---- */

static void send_done(struct request *r, int rc, const char *text)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Done done = HILL__DONE__INIT;
    double decode_ms = (r->ended_ns - r->prompt_done_ns) * 1e-6;
    done.request_id = r->prefill->request_id;
    done.finish = rc == 0                  ? r->finish
                  : rc == HILL_E_CANCELLED ? HILL__FINISH_REASON__FINISH_CANCEL
                                           : HILL__FINISH_REASON__FINISH_ERROR;
    done.code = rc;
    done.text = (char *)(rc ? text : "");
    done.logits_hash = XXH64_digest(r->hash);
    done.predicted_tokens = r->predicted;
    done.prompt_ms = (r->prompt_done_ns - r->started_ns) * 1e-6;
    done.predicted_ms = decode_ms;
    done.gpu_idle_ms = r->idle_ns * 1e-6;
    done.gpu_busy_ms = decode_ms > done.gpu_idle_ms ? decode_ms - done.gpu_idle_ms : 0;
    done.gpu_upload_bytes = r->upload_bytes;
    done.gpu_resident_bytes = engine_kv_bytes(r->w->engine);
    message.body_case = HILL__MESSAGE__BODY_DONE;
    message.done = &done;
    worker_link_send(r->w->link, &message);
}

/* A dead scorer means a new epoch: wait for it. True when it came. */
static bool await_new_epoch(struct worker *w)
{
    int64_t deadline = wait_deadline();
    while (!worker_interrupted(w) && clock_now_ns() < deadline)
        dataplane_sleep(&w->plane, dataplane_seen(&w->plane), deadline);
    return w->pending || worker_link_stopping(w->link);
}

static void end_sequence(struct request *r)
{
    struct hill_why why;
    struct dataplane *plane = &r->w->plane;
    struct record_seq_end end = {.header = make_header(r, 0), .request_id = r->prefill->request_id};
    if (!r->begun)
        return;
    r->w->cancelled = false; /* the goodbye itself is not to be cancelled */
    int rc = dataplane_push(plane, &plane->append, RECORD_SEQ_END, &end, sizeof end,
                            clock_deadline_ms(5000), &why);
    if (rc)
        log_warn("the scorer was not told that request %llu ended: %s",
                 (unsigned long long)end.request_id, why.text);
}

static int init_request(struct request *r, struct worker *w)
{
    const Hill__Prefill *p = w->request->prefill;
    *r = (struct request){.w = w,
                          .prefill = p,
                          .sequence = p->sequence,
                          .prompt = (uint32_t)p->n_tokens,
                          .predict = p->predict,
                          .started_ns = clock_now_ns()};
    r->prompt_done_ns = r->ended_ns = r->started_ns;
    r->tokens = malloc(sizeof *r->tokens * ((uint64_t)p->n_tokens + p->predict));
    r->hash = XXH64_createState();
    if (!r->tokens || !r->hash)
        return HILL_E_NOMEM;
    memcpy(r->tokens, p->tokens, sizeof *r->tokens * p->n_tokens);
    r->n_tokens = r->prompt;
    XXH64_reset(r->hash, 0);
    const Hill__Sampling *s = p->sampling;
    w->sampler.settings = (struct sampler_settings){s->temperature, s->top_k,          s->top_p,
                                                    s->min_p,       s->repeat_penalty, s->seed};
    return 0;
}

/* What the outcome means for the process: only a failed device ends it. */
static int conclude(struct request *r, int rc, const struct hill_why *why)
{
    struct worker *w = r->w;
    r->ended_ns = clock_now_ns();
    if (rc == HILL_E_NODEV) {
        log_error("the device failed in request %llu: %s",
                  (unsigned long long)r->prefill->request_id, why->text);
        worker_link_failure(w->link, rc, why->text, true, r->prefill->request_id);
        return rc;
    }
    bool leave = w->pending || worker_link_stopping(w->link);
    if (!leave && rc == HILL_E_PEER_GONE)
        leave = await_new_epoch(w);
    if (leave) {
        log_info("request %llu is let go: %s", (unsigned long long)r->prefill->request_id,
                 rc ? why->text : "stopping");
        return 0;
    }
    end_sequence(r);
    if (rc && rc != HILL_E_CANCELLED)
        log_info("request %llu failed: %s", (unsigned long long)r->prefill->request_id, why->text);
    send_done(r, rc, why->text);
    return 0;
}

int request_run(struct worker *w)
{
    struct request r;
    struct hill_why why = {.text = ""};
    w->running_request = true;
    w->n_uploads_given = 0;
    int rc = init_request(&r, w);
    if (rc)
        hill_fail(&why, rc, "no memory for a request of %u tokens", r.prompt);
    else
        rc = generate(&r, &why);
    if (r.hash)
        rc = conclude(&r, rc, &why);
    else
        worker_link_failure(w->link, rc, why.text, true, w->request->prefill->request_id);
    XXH64_freeState(r.hash);
    free(r.tokens);
    proto_free(w->request);
    w->request = NULL;
    w->running_request = false;
    w->cancelled = false;
    return rc;
}
