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

/* A session and what is asked of it. */
struct restoring {
    const Hill__RestoreSession *order;
    struct kv_selection_settings selection;
    struct session_header header;
    uint32_t *tokens;           /* the prompt, and room for n_forced more; the request's later */
    uint32_t n_prompt, predict; /* n_prompt: tokens of the session that are the prompt now, and the
                                   question's */
    uint32_t *question;         /* [n_question], NULL: none is asked */
    uint32_t n_question;
    bool from_prompt;
};

static int read_question(const struct service *sv, struct restoring *x, struct hill_why *why)
{
    const struct prompt_sent sent = {.pieces = x->order->pieces,
                                     .n_pieces = x->order->n_pieces,
                                     .ids = x->order->token_ids,
                                     .n_ids = x->order->n_token_ids,
                                     .goes_on = true};
    uint64_t count = 0;
    if (!sent.n_pieces && !sent.n_ids)
        return 0;
    if (x->selection.policy == KV_POLICY_H2O)
        return hill_fail(
            why, HILL_E_UNSUPPORTED,
            "policy h2o ranks by what all queries have attended to, and a question on "
            "a session does not add to that: send document and question as one prompt");
    uint32_t ctx = sv->settings->epoch.plan.ctx_tokens;
    int code = prompt_encode(sv->settings->tokenizer, &sent, ctx, &x->question, &count, why);
    if (!code && (count == 0 || count > ctx))
        return count ? hill_fail(why, HILL_E_TOO_LONG, "the question is longer than the context")
                     : hill_fail(why, HILL_E_INVALID, "the question is empty");
    x->n_question = (uint32_t)count;
    return code;
}

/* With from_prompt the newest token is the answer's first and not the prompt's last. A question on
 * a document that was saved with -n 1 is meant for the document. */
static int count_prompt(struct restoring *x, struct hill_why *why)
{
    const struct session_header *h = &x->header;
    bool prompt_alone = h->step == 0 && h->n_tokens == h->n_prompt + 1 && h->n_prompt > 0;
    x->from_prompt = x->order->from_prompt || (x->n_question && prompt_alone);
    x->n_prompt = h->n_tokens - (x->from_prompt ? 1 : 0);
    if (!x->from_prompt || prompt_alone)
        return 0;
    return hill_fail(why, HILL_E_INVALID,
                     "session %.300s has %u tokens after its prompt of %u: that prompt can be "
                     "answered again only from a session with one",
                     x->order->path, h->n_tokens - h->n_prompt, h->n_prompt);
}

static int read_tokens(struct restoring *x, struct session_file *file, struct hill_why *why)
{
    size_t room = (size_t)file->header.n_tokens + x->order->n_forced + x->n_question;
    if (!(x->tokens = calloc(room, sizeof *x->tokens)))
        return hill_fail(why, HILL_E_NOMEM, "out of memory for %zu tokens", room);
    int code = session_read_tokens(file, x->tokens, why);
    if (!code && x->order->n_forced)
        memcpy(x->tokens + x->n_prompt, x->order->forced, x->order->n_forced * sizeof *x->tokens);
    if (!code && x->n_question)
        memcpy(x->tokens + x->n_prompt, x->question, x->n_question * sizeof *x->tokens);
    x->n_prompt += x->n_question;
    return code;
}

static int read_session(struct service *sv, struct restoring *x, struct hill_why *why)
{
    struct session_file file;
    struct session_terms here;
    session_fill_terms(sv, &x->selection, &here);
    int code = session_open(&file, x->order->path, why);
    if (!code)
        code = session_compare(&file.header, &here, x->order->path, why);
    if (!code) {
        x->header = file.header;
        code = count_prompt(x, why);
    }
    if (!code)
        code = read_tokens(x, &file, why);
    session_close(&file);
    return code;
}

static int admit(const struct service *sv, struct restoring *x, struct hill_why *why)
{
    const struct settings *s = sv->settings;
    uint32_t ctx = s->epoch.plan.ctx_tokens, n_tokens = x->n_prompt;
    x->predict = x->order->n_forced ? (uint32_t)x->order->n_forced : x->order->predict;
    bool at_most = x->predict == HILL_PREDICT_UNTIL_CONTEXT;
    if (at_most)
        x->predict = n_tokens < ctx ? ctx - n_tokens : 1;
    if ((uint64_t)n_tokens + x->predict > ctx)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "the %u tokens of session %.300s and %u to predict exceed the context of "
                         "%u tokens",
                         n_tokens, x->order->path, x->predict, ctx);
    /* only the question takes GPU memory as a prompt; its layer's keys are the whole sequence's */
    uint32_t computed = x->n_question ? n_tokens : 1;
    uint32_t before = n_tokens - computed, n = before + x->predict;
    if (!at_most)
        return settings_admit(s, &x->selection, computed, n, why);
    int code = settings_admit_most(s, &x->selection, computed, before + 1, &n, why);
    x->predict = n - before;
    return code;
}

static int check_forced(const struct service *sv, const Hill__RestoreSession *order,
                        struct hill_why *why)
{
    uint32_t n_vocab = tokenizer_vocab_size(sv->settings->tokenizer);
    for (size_t i = 0; i < order->n_forced; i++)
        if (order->forced[i] >= n_vocab)
            return hill_fail(why, HILL_E_INVALID, "token id %u is outside the vocabulary of %u",
                             order->forced[i], n_vocab);
    return 0;
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

/* Takes the tokens over. */
static int create(struct service *sv, struct restoring *x, struct request **out,
                  struct hill_why *why)
{
    const Hill__RestoreSession *order = x->order;
    struct request *r = request_create(&sv->book, x->tokens, x->n_prompt, x->predict);
    if (!r)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a request of %u tokens",
                         x->n_prompt);
    r->selection = x->selection;
    r->from_prompt = x->from_prompt;
    r->n_question = x->n_question;
    int code = request_set_forced(r, (uint32_t)order->n_forced);
    r->ignore_eos = order->ignore_eos || x->header.ignore_eos || r->n_forced;
    r->want_progress = order->want_progress;
    fill_sampling(&r->sampling, &x->header);
    r->restore_checksum = x->header.checksum;
    r->restore_n_prompt = x->header.n_prompt;
    r->restore_first_append = x->header.first_append;
    r->restore_path = strdup(order->path);
    if (code || !r->restore_path || request_begin_text(r, sv->settings->tokenizer)) {
        request_destroy(r);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a request");
    }
    *out = r;
    return 0;
}

static int make_request(struct service *sv, const Hill__RestoreSession *order, struct request **out,
                        struct hill_why *why)
{
    struct restoring x = {.order = order, .selection = sv->settings->epoch.plan.selection};
    if (order->selection)
        x.selection = selection_from_wire(order->selection);
    int code = check_forced(sv, order, why);
    if (!code)
        code = read_question(sv, &x, why);
    if (!code)
        code = read_session(sv, &x, why);
    if (!code)
        code = admit(sv, &x, why);
    free(x.question);
    if (!code)
        return create(sv, &x, out, why);
    free(x.tokens);
    return code;
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
