/*
 * coordinator/service_restore.c - a saved session (session/session.h) becomes a request like any
 * other: its file's header and tokens are looked at here, the entries are the workers' business.
 *
 * Who calls it: service.c. Failure: a Reply with a code and one line; nothing else changes.
 * Concurrency: one thread.
 */
#include "coordinator/service.h"

#include <stdlib.h>
#include <string.h>

#include "session/session.h"

/* What the file says of the request; *tokens is the caller's. */
static int read_session(struct service *sv, const char *path, struct session_header *header,
                        uint32_t **tokens, struct hill_why *why)
{
    struct session_file file;
    struct session_terms here;
    session_fill_terms(sv, &sv->settings->epoch.plan.selection, &here);
    int code = session_open(&file, path, why);
    if (!code)
        code = session_compare(&file.header, &here, path, why);
    if (!code && !(*tokens = calloc(file.header.n_tokens, sizeof **tokens)))
        code = hill_fail(why, HILL_E_NOMEM, "out of memory for %u tokens", file.header.n_tokens);
    if (!code)
        code = session_read_tokens(&file, *tokens, why);
    *header = file.header;
    session_close(&file);
    return code;
}

static int admit(const struct service *sv, uint32_t n_tokens, uint32_t *predict, const char *path,
                 struct hill_why *why)
{
    const struct settings *s = sv->settings;
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

static int make_request(struct service *sv, const Hill__RestoreSession *order, struct request **out,
                        struct hill_why *why)
{
    struct session_header header;
    uint32_t *tokens = NULL, predict = order->predict;
    int code = read_session(sv, order->path, &header, &tokens, why);
    if (!code)
        code = admit(sv, header.n_tokens, &predict, order->path, why);
    if (code) {
        free(tokens);
        return code;
    }
    struct request *r = request_create(&sv->book, tokens, header.n_tokens, predict);
    if (!r)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a request of %u tokens",
                         header.n_tokens);
    r->selection = sv->settings->epoch.plan.selection;
    r->ignore_eos = order->ignore_eos || header.ignore_eos;
    r->want_progress = order->want_progress;
    fill_sampling(&r->sampling, &header);
    r->restore_path = strdup(order->path);
    if (!r->restore_path || request_begin_text(r, sv->settings->tokenizer)) {
        request_destroy(r);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a request");
    }
    *out = r;
    return 0;
}

void session_take_restore(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const Hill__RestoreSession *order = a->message->restore_session;
    struct hill_why why = {{0}};
    struct request *r = NULL;
    if (follow_instead(sv, &a->from, order->key))
        return;
    int code = request_room(sv, &why);
    if (!code)
        code = make_request(sv, order, &r, &why);
    if (!code)
        code = request_accept(sv, &a->from, r, order->save_path, order->key, &why);
    if (code)
        router_reply(sv->router, &a->from, code, why.text);
}
