/*
 * coordinator/serve_sessions.c - sessions saved and restored (session/session.h).
 *
 * What: the terms that a session is saved under; a client's order to save a running request, handed
 * on to the GPU worker and answered when it has; a session's file looked at, header and tokens, and
 * made a request like any other. The entries are the workers' business. Who calls it:
 * serve_clients.c, serve_workers.c, requests.c. Failure: a Reply with a code and one line; nothing
 * else changes. Concurrency: one thread.
 */
#include "coordinator/pipeline_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "session/session_writer.h"

#define TAIL_TOKENS 8u /* more than an unfinished character has */

_Static_assert(sizeof(struct session_terms) == PROTO_SESSION_TERMS_BYTES, "SessionFile.terms");

static void fill_terms(struct pipeline *p, const struct kv_selection_settings *selection,
                       struct session_terms *out)
{
    const struct settings *s = p->settings;
    const struct kv_geometry *g = &s->epoch.plan.geometry;
    if (!p->model_identity)
        p->model_identity = gguf_identity(s->model);
    *out = (struct session_terms){.model_bytes = gguf_file_bytes(s->model),
                                  .model_identity = p->model_identity,
                                  .n_layers = g->n_layers,
                                  .n_heads = g->n_heads,
                                  .n_kv_heads = g->n_kv_heads,
                                  .head_dim = g->head_dim,
                                  .n_embd = s->epoch.plan.n_embd,
                                  .n_vocab = s->epoch.plan.n_vocab,
                                  .policy = selection->policy,
                                  .importance = selection->importance,
                                  .alpha = selection->alpha,
                                  .budget = selection->budget,
                                  .sinks = selection->sinks,
                                  .window = selection->window,
                                  .score_bits = s->epoch.plan.geometry.digest_bits,
                                  /* verify: the exact queries decide */
                                  .speculate = s->epoch.speculate == HILL__SPECULATE__SPECULATE_ON
                                                   ? s->epoch.exact_layers
                                                   : 0};
}

void session_to_wire(struct pipeline *p, const struct request *r, const char *path,
                     struct session_terms *terms, Hill__SessionFile *out)
{
    fill_terms(p, &r->selection, terms);
    hill__session_file__init(out);
    out->path = (char *)path;
    out->terms.data = (uint8_t *)terms;
    out->terms.len = sizeof *terms;
}

/* ---- save --------------------------------------------------------------------------------- */

static struct request *find_running(const struct request_book *book, uint64_t id)
{
    struct request *r = book->running;
    if (id == 0)
        return book->n_running == 1 ? r : NULL;
    while (r && r->id != id)
        r = r->next;
    return r;
}

void session_take_save(struct pipeline *p, const struct proto_address *from,
                       const Hill__SaveSession *order)
{
    struct request *r = find_running(&p->book, order->request_id);
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Save save = HILL__SAVE__INIT;
    Hill__SessionFile file;
    struct session_terms terms;
    if (!r || r->state != REQUEST_RUNNING) {
        client_reply(p, from, HILL_E_INVALID,
                     order->request_id ? "no such request runs: hillctl status lists those that do"
                                       : "not exactly one request runs: say which");
        return;
    }
    if (r->saving_path) {
        client_reply(p, from, HILL_E_BUSY, "the request is being saved already");
        return;
    }
    r->saving_path = strdup(order->path);
    if (!r->saving_path) {
        client_reply(p, from, HILL_E_NOMEM, "out of memory");
        return;
    }
    r->saver = *from;
    session_to_wire(p, r, order->path, &terms, &file);
    save.request_id = r->wire_id;
    save.file = &file;
    message.body_case = HILL__MESSAGE__BODY_SAVE;
    message.save = &save;
    if (worker_send(p, WORKER_GPU, &message))
        session_save_lost(p, r, "the GPU worker is gone");
}

void session_save_lost(struct pipeline *p, struct request *r, const char *reason)
{
    char text[300];
    if (!r->saving_path)
        return;
    snprintf(text, sizeof text, "request %" PRIu64 " was not saved: %.200s", r->id, reason);
    client_reply(p, &r->saver, HILL_E_PEER_GONE, text);
    free(r->saving_path);
    r->saving_path = NULL;
}

void session_save_interrupted(struct pipeline *p, struct request *r)
{
    if (r->saving_path)
        session_writer_clear(r->saving_path);
    if (r->save_path)
        session_writer_clear(r->save_path); /* at its end, which comes again */
    session_save_lost(p, r, "a worker died meanwhile; ask again");
}

void session_on_saved(struct pipeline *p, struct request *r, const Hill__Saved *saved)
{
    char text[2200];
    if (!r->saving_path)
        return;
    snprintf(text, sizeof text, "request %" PRIu64 ": %u tokens, %.1f MiB, saved in %.2000s", r->id,
             saved->tokens, (double)saved->bytes / 1048576.0, r->saving_path);
    client_reply(p, &r->saver, saved->code, saved->code ? saved->text : text);
    free(r->saving_path);
    r->saving_path = NULL;
}

/* ---- restore ------------------------------------------------------------------------------ */

/* What the file says of the request; *tokens is the caller's. */
static int read_session(struct pipeline *p, const char *path, struct session_header *header,
                        uint32_t **tokens, struct hill_why *why)
{
    struct session_file file;
    struct session_terms here;
    fill_terms(p, &p->settings->epoch.plan.selection, &here);
    int code = session_open(&file, path, why);
    if (!code)
        code = session_compare(&file.header.terms, &here, path, why);
    if (!code && !(*tokens = calloc(file.header.n_tokens, sizeof **tokens)))
        code = hill_fail(why, HILL_E_NOMEM, "out of memory for %u tokens", file.header.n_tokens);
    if (!code)
        code = session_read_tokens(&file, *tokens, why);
    *header = file.header;
    session_close(&file);
    return code;
}

static int admit(const struct pipeline *p, uint32_t n_tokens, uint32_t *predict, const char *path,
                 struct hill_why *why)
{
    const struct settings *s = p->settings;
    uint32_t ctx = s->epoch.plan.ctx_tokens;
    if (*predict == HILL_PREDICT_UNTIL_CONTEXT)
        *predict = n_tokens < ctx ? ctx - n_tokens : 1;
    if ((uint64_t)n_tokens + *predict > ctx)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "the %u tokens of session %.300s and %u to predict exceed the context of "
                         "%u tokens",
                         n_tokens, path, *predict, ctx);
    /* no prompt takes GPU memory */
    return settings_admit(s, &s->epoch.plan.selection, 1, n_tokens + *predict - 1, why);
}

static void fill_sampling(Hill__Sampling *out, const struct session_header *h)
{
    hill__sampling__init(out);
    out->temperature = h->temperature;
    out->top_k = h->top_k;
    out->top_p = h->top_p;
    out->min_p = h->min_p;
    out->repeat_penalty = h->repeat_penalty;
    out->seed = h->seed;
}

/* The text goes on where the saved one's stopped, also within a character. */
static int resume_text(struct request *r, const struct tokenizer *tokenizer)
{
    detokenizer_init(&r->text, tokenizer, true);
    for (uint32_t i = r->n_prompt > TAIL_TOKENS ? r->n_prompt - TAIL_TOKENS : 0; i < r->n_prompt;
         i++) {
        char *text = malloc(detokenizer_room(&r->text, r->prompt[i]) + 1);
        if (!text)
            return HILL_E_NOMEM;
        detokenizer_push(&r->text, r->prompt[i], text);
        free(text);
    }
    return 0;
}

static int make_request(struct pipeline *p, const Hill__RestoreSession *order, struct request **out,
                        struct hill_why *why)
{
    struct session_header header;
    uint32_t *tokens = NULL, predict = order->predict;
    int code = read_session(p, order->path, &header, &tokens, why);
    if (!code)
        code = admit(p, header.n_tokens, &predict, order->path, why);
    if (code) {
        free(tokens);
        return code;
    }
    struct request *r = request_create(&p->book, tokens, header.n_tokens, predict);
    if (!r)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a request of %u tokens",
                         header.n_tokens);
    r->selection = p->settings->epoch.plan.selection;
    r->ignore_eos = order->ignore_eos || header.ignore_eos;
    r->want_progress = order->want_progress;
    fill_sampling(&r->sampling, &header);
    r->restore_path = strdup(order->path);
    if (!r->restore_path || resume_text(r, p->settings->tokenizer)) {
        request_destroy(r);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a request");
    }
    *out = r;
    return 0;
}

void session_take_restore(struct pipeline *p, const struct proto_address *from,
                          const Hill__RestoreSession *order)
{
    struct hill_why why = {{0}};
    struct request *r = NULL;
    int code = request_room(p, &why);
    if (!code)
        code = make_request(p, order, &r, &why);
    if (!code)
        code = request_accept(p, from, r, order->save_path, &why);
    if (code)
        client_reply(p, from, code, why.text);
}
