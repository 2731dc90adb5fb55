/*
 * coordinator/service_saves.c - sessions saved: the terms of a session, and a client's order to
 * save a running request, handed on to the GPU worker and answered when it has.
 *
 * Who calls it: service.c, service_requests.c, service_restore.c. Failure: a Reply with a code and
 * one line; nothing else changes. Concurrency: one thread.
 */
#include "coordinator/service.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/whole_io.h"
#include "session/session.h"
#include "session/session_writer.h"

_Static_assert(sizeof(struct session_terms) == PROTO_SESSION_TERMS_BYTES, "SessionFile.terms");

void session_fill_terms(struct service *sv, const struct kv_selection_settings *selection,
                        struct session_terms *out)
{
    const struct settings *s = sv->settings;
    const struct kv_geometry *g = &s->epoch.plan.geometry;
    if (!sv->model_identity)
        sv->model_identity = gguf_identity(s->model);
    *out = (struct session_terms){
        .model_bytes = gguf_file_bytes(s->model),
        .model_identity = sv->model_identity,
        .n_layers = g->n_layers,
        .n_heads = g->n_heads,
        .n_kv_heads = g->n_kv_heads,
        .head_dim = g->head_dim,
        .n_embd = s->epoch.plan.n_embd,
        .n_vocab = s->epoch.plan.n_vocab,
        .policy = (uint16_t)selection->policy,
        .exact_below = (uint16_t)selection->exact_below,
        .importance = (uint16_t)selection->importance,
        .granularity = (uint16_t)selection->granularity,
        .alpha = selection->alpha,
        .budget = selection->budget,
        .sinks = selection->sinks,
        .window = selection->window,
        .score_bits = s->epoch.plan.geometry.digest_bits,
        /* verify: the exact queries decide */
        .speculate =
            s->epoch.speculate == HILL__SPECULATE__SPECULATE_ON ? s->epoch.exact_layers : 0,
        .rope_choice = model_rope_choice(&s->hparams, s->epoch.plan.ctx_tokens)};
}

void session_to_wire(struct service *sv, const struct request *r, const char *path,
                     struct session_terms *terms, Hill__SessionFile *out)
{
    session_fill_terms(sv, &r->selection, terms);
    hill__session_file__init(out);
    out->path = (char *)path;
    out->terms.data = (uint8_t *)terms;
    out->terms.len = sizeof *terms;
}

static struct request *find_running(const struct request_book *book, uint64_t id)
{
    struct request *r = book->running;
    if (id == 0)
        return book->n_running == 1 ? r : NULL;
    while (r && r->id != id)
        r = r->next;
    return r;
}

void session_take_save(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const struct proto_address *from = &a->from;
    const Hill__SaveSession *order = a->message->save_session;
    struct request *r = find_running(&sv->book, order->request_id);
    Hill__Save save = HILL__SAVE__INIT;
    Hill__SessionFile file;
    struct session_terms terms;
    if (!r || r->state != REQUEST_RUNNING) {
        router_reply(sv->router, from, HILL_E_INVALID,
                     order->request_id ? "no such request runs: hillctl status lists those that do"
                                       : "not exactly one request runs: say which");
        return;
    }
    if (r->saving_path) {
        router_reply(sv->router, from, HILL_E_BUSY, "the request is being saved already");
        return;
    }
    r->saving_path = strdup(order->path);
    if (!r->saving_path) {
        router_reply(sv->router, from, HILL_E_NOMEM, "out of memory");
        return;
    }
    r->saver = *from;
    session_to_wire(sv, r, order->path, &terms, &file);
    save.request_id = r->wire_id;
    save.file = &file;
    if (router_to_worker(sv->router, WORKER_GPU, &PROTO_MESSAGE(SAVE, save, &save)))
        session_save_lost(sv, r, "the GPU worker is gone");
}

void session_save_lost(struct service *sv, struct request *r, const char *reason)
{
    char text[300];
    if (!r->saving_path)
        return;
    snprintf(text, sizeof text, "request %" PRIu64 " was not saved: %.200s", r->id, reason);
    router_reply(sv->router, &r->saver, HILL_E_PEER_GONE, text);
    free(r->saving_path);
    r->saving_path = NULL;
}

void session_save_interrupted(struct service *sv, struct request *r)
{
    if (r->saving_path)
        session_writer_clear(r->saving_path);
    if (r->save_path)
        session_writer_clear(r->save_path); /* at its end, which comes again */
    session_save_lost(sv, r, "a worker died meanwhile; ask again");
}

static bool is_stop(const struct service *sv, const struct request *r, uint32_t token)
{
    bool stop = token == r->answer_end;
    for (uint32_t i = 0; i < sv->settings->n_stop_tokens; i++)
        stop |= token == sv->settings->stop_tokens[i];
    return stop && !r->ignore_eos;
}

/* With a stop token behind it, or with as many tokens as were asked for: else the file is of a save
 * that was ordered meanwhile. */
static bool is_whole_answer(const struct service *sv, const struct request *r,
                            const uint32_t *tokens, uint32_t n)
{
    uint32_t known = r->n_prompt + r->n_tokens;
    if (n < known || memcmp(tokens, r->prompt, r->n_prompt * sizeof *tokens) != 0 ||
        memcmp(tokens + r->n_prompt, r->tokens, r->n_tokens * sizeof *tokens) != 0)
        return false;
    return n == known ? r->n_tokens == r->predict : n == known + 1 && is_stop(sv, r, tokens[known]);
}

static bool read_whole_answer(struct service *sv, const struct request *r,
                              struct session_header *out)
{
    struct session_file file;
    struct session_terms here;
    uint32_t *tokens = NULL;
    session_fill_terms(sv, &r->selection, &here);
    bool whole = !session_open(&file, r->save_path, NULL) &&
                 !session_compare(&file.header, &here, r->save_path, NULL) &&
                 (tokens = malloc(sizeof *tokens * file.header.n_tokens)) &&
                 !session_read_tokens(&file, tokens, NULL) &&
                 is_whole_answer(sv, r, tokens, file.header.n_tokens);
    *out = file.header;
    session_close(&file);
    free(tokens);
    return whole;
}

bool session_take_saved_end(struct service *sv, struct request *r)
{
    struct session_header header;
    Hill__Done *done = r->done ? r->done->done : NULL;
    bool failed = done && done->finish == HILL__FINISH_REASON__FINISH_ERROR && !done->save_failed;
    if (!failed || !r->restore_path || !r->save_path || !read_whole_answer(sv, r, &header))
        return false;
    if (whole_flush_folder(r->save_path)) /* who renamed the file may have died before that */
        return false;
    Hill__Done fresh = HILL__DONE__INIT; /* nothing of the attempt that has failed */
    fresh.request_id = done->request_id;
    fresh.text = done->text;
    if (*fresh.text)
        *fresh.text = '\0';
    *done = fresh;
    XXH64_state_t *hash = hash_state_create();
    if (hash && hash_state_load(hash, &header.logits_hash))
        done->logits_hash = XXH64_digest(hash);
    XXH64_freeState(hash);
    done->finish = r->n_tokens == r->predict ? HILL__FINISH_REASON__FINISH_LENGTH
                                             : HILL__FINISH_REASON__FINISH_STOP;
    proto_free(r->stats);
    r->stats = NULL;
    return true;
}

void session_on_saved(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const Hill__Saved *saved = a->message->saved;
    struct request *r = request_book_by_wire(&sv->book, saved->request_id);
    char text[2200];
    if (!r || !r->saving_path)
        return;
    snprintf(text, sizeof text, "request %" PRIu64 ": %u tokens, %.1f MiB, saved in %.2000s", r->id,
             saved->tokens, (double)saved->bytes / 1048576.0, r->saving_path);
    router_reply(sv->router, &r->saver, saved->code, saved->code ? saved->text : text);
    free(r->saving_path);
    r->saving_path = NULL;
}
