/*
 * coordinator/service_intake.c - what clients ask for: a prompt tokenised, admitted and queued, a
 * request cancelled.
 *
 * Who calls it: service.c, service_restore.c. Failure: what cannot be taken is answered by a Reply
 * with a code and one line and changes nothing. Concurrency: one thread.
 */
#include "coordinator/service.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/fault.h"

static uint64_t random_seed(void)
{
    uint32_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint32_t)clock_now_ns();
    return seed ? seed : 1;
}

_Static_assert((int)PROMPT_SPECIAL == HILL__PROMPT_KIND__PROMPT_SPECIAL &&
                   (int)PROMPT_LITERAL == HILL__PROMPT_KIND__PROMPT_LITERAL,
               "kinds of pieces go over the wire as they are");

/* Token ids as they were sent: none outside the vocabulary. */
static int copy_token_ids(const struct tokenizer *tokenizer, const struct prompt_sent *sent,
                          uint32_t **tokens, uint64_t *count, struct hill_why *why)
{
    size_t n = sent->n_ids;
    for (size_t i = 0; i < n; i++)
        if (sent->ids[i] >= tokenizer_vocab_size(tokenizer))
            return hill_fail(why, HILL_E_INVALID, "token id %u is outside the vocabulary of %u",
                             sent->ids[i], tokenizer_vocab_size(tokenizer));
    *tokens = malloc(n * sizeof **tokens);
    if (!*tokens)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a prompt of %zu tokens", n);
    memcpy(*tokens, sent->ids, n * sizeof **tokens);
    *count = n;
    return 0;
}

/* Encoding takes its time, in which this loop does nothing else: not for what cannot fit. */
static int check_bytes(const struct tokenizer *tokenizer, const struct prompt_sent *sent,
                       uint32_t ctx_tokens, struct hill_why *why)
{
    uint64_t bytes = sent->text.len, longest = tokenizer_longest(tokenizer);
    for (size_t i = 0; i < sent->n_pieces; i++)
        bytes += sent->pieces[i]->text.len;
    if (bytes / longest <= ctx_tokens)
        return 0;
    return hill_fail(why, HILL_E_TOO_LONG,
                     "the prompt's %" PRIu64 " bytes are at least %" PRIu64
                     " tokens and exceed the context of %u tokens",
                     bytes, bytes / longest, ctx_tokens);
}

int prompt_encode(const struct tokenizer *tokenizer, const struct prompt_sent *sent,
                  uint32_t ctx_tokens, uint32_t **tokens, uint64_t *count, struct hill_why *why)
{
    int code = check_bytes(tokenizer, sent, ctx_tokens, why);
    if (code)
        return code;
    if (sent->n_ids)
        return copy_token_ids(tokenizer, sent, tokens, count, why);
    size_t n = sent->n_pieces;
    struct prompt_piece whole = {(const char *)sent->text.data, sent->text.len, PROMPT_TEXT};
    struct prompt_piece *pieces = n ? malloc(n * sizeof *pieces) : &whole;
    if (!pieces)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a prompt of %zu pieces", n);
    for (size_t i = 0; i < n; i++)
        pieces[i] = (struct prompt_piece){(const char *)sent->pieces[i]->text.data,
                                          sent->pieces[i]->text.len,
                                          (enum prompt_kind)sent->pieces[i]->kind};
    code = sent->goes_on
               ? tokenizer_encode_more(tokenizer, pieces, n ? n : 1, tokens, count)
               : tokenizer_encode_pieces(tokenizer, pieces, n ? n : 1, true, tokens, count);
    if (n)
        free(pieces);
    return code ? hill_fail(why, code, "cannot tokenise the prompt: %s", hill_strerror(code)) : 0;
}

/* The tokens of a finished request, and the prompt's behind them. */
static int encode_after(const struct service *sv, uint64_t id, const struct prompt_sent *sent,
                        uint32_t **tokens, uint64_t *count, struct hill_why *why)
{
    const struct prefix_entry *before;
    struct prompt_sent more = *sent;
    uint32_t *own = NULL;
    int code = prefix_find_named(sv, id, &before, why);
    more.goes_on = true;
    if (!code)
        code = prompt_encode(sv->settings->tokenizer, &more, sv->settings->epoch.plan.ctx_tokens,
                             &own, count, why);
    if (!code && *count == 0)
        code = hill_fail(why, HILL_E_INVALID, "the prompt is empty");
    if (!code && !(*tokens = malloc((before->n_tokens + *count) * sizeof **tokens)))
        code = hill_fail(why, HILL_E_NOMEM, "out of memory for a prompt of %u tokens",
                         before->n_tokens);
    if (!code) {
        memcpy(*tokens, before->tokens, before->n_tokens * sizeof **tokens);
        memcpy(*tokens + before->n_tokens, own, *count * sizeof **tokens);
        *count += before->n_tokens;
    }
    free(own);
    return code;
}

/* Tokenise and admit; *request is new and in no queue. */
static int make_request(struct service *sv, const Hill__Generate *generate, struct request **out,
                        struct hill_why *why)
{
    const struct settings *s = sv->settings;
    uint32_t *tokens = NULL;
    uint64_t count = 0;
    struct kv_selection_settings selection = s->epoch.plan.selection;
    if (generate->selection)
        selection = selection_from_wire(generate->selection);
    const struct prompt_sent sent = {.text = generate->prompt,
                                     .pieces = generate->pieces,
                                     .n_pieces = generate->n_pieces,
                                     .ids = generate->token_ids,
                                     .n_ids = generate->n_token_ids};
    int code = generate->after ? encode_after(sv, generate->after, &sent, &tokens, &count, why)
                               : prompt_encode(s->tokenizer, &sent, s->epoch.plan.ctx_tokens,
                                               &tokens, &count, why);
    if (code)
        return code;
    uint32_t n_prompt = count < UINT32_MAX ? (uint32_t)count : UINT32_MAX,
             ctx = s->epoch.plan.ctx_tokens;
    uint32_t predict = generate->predict;
    bool at_most = generate->at_most || predict == HILL_PREDICT_UNTIL_CONTEXT;
    if (predict == HILL_PREDICT_UNTIL_CONTEXT)
        predict = n_prompt < ctx ? ctx - n_prompt : 1;
    if (generate->score_from >= n_prompt && n_prompt) {
        free(tokens);
        return hill_fail(why, HILL_E_INVALID,
                         "nothing to score: the prompt has %u tokens, scoring begins at %u",
                         n_prompt, generate->score_from);
    }
    uint32_t n_forced = generate->score_from ? n_prompt - generate->score_from : 0;
    if (n_forced) {
        n_prompt = generate->score_from;
        predict = n_forced;
    }
    if (!n_prompt)
        code = hill_fail(why, HILL_E_INVALID, "the prompt is empty");
    else if (at_most && !n_forced)
        code = settings_admit_most(s, &selection, n_prompt, 1, &predict, why);
    else
        code = settings_admit(s, &selection, n_prompt, predict, why);
    if (code) {
        free(tokens);
        return code;
    }
    struct request *r = request_create(&sv->book, tokens, n_prompt, predict);
    if (!r || request_set_forced(r, n_forced)) {
        request_destroy(r);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a request of %u tokens", n_prompt);
    }
    r->selection = selection;
    r->ignore_eos = generate->ignore_eos || n_forced;
    r->answer_end = model_answer_end(s->tokenizer, (const char *)generate->answer_end.data,
                                     generate->answer_end.len);
    r->want_progress = generate->want_progress;
    r->want_passages = generate->want_passages;
    r->prefix.off = generate->no_prefix_cache;
    r->prefix.conversation = generate->conversation;
    r->prefix.after = generate->after;
    request_set_sampling(r, generate->sampling);
    sampling_fill(&r->sampling, &s->sampling);
    if (request_keep_logprobs(r)) {
        request_destroy(r);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a request of %u tokens", n_prompt);
    }
    if (!r->sampling.seed)
        r->sampling.seed = random_seed();
    request_begin_text(r, s->tokenizer); /* nothing is restored: needs no memory */
    *out = r;
    return 0;
}

int request_room(struct service *sv, struct hill_why *why)
{
    if (sv->supervisor->ending)
        return hill_fail(why, HILL_E_PEER_GONE, "the pipeline is ending");
    return sv->book.n_waiting >= REQUEST_WAITING_MAX
               ? hill_fail(why, HILL_E_BUSY, "%u requests wait already; try again later",
                           REQUEST_WAITING_MAX)
               : 0;
}

int request_accept(struct service *sv, const struct proto_address *from, struct request *r,
                   const char *save_path, uint64_t key, struct hill_why *why)
{
    if (save_path[0] && !(r->save_path = strdup(save_path))) {
        request_destroy(r);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a request");
    }
    r->client = *from;
    r->accepted_ns = r->client_seen_ns = clock_now_ns();
    r->key = key;
    request_book_add(&sv->book, r); /* there is room: request_room has looked */
    request_log_begin(sv, r);
    FAULT_POINT(coordinator, log, created);
    request_send_accepted(sv, r, 0);
    log_info("request %" PRIu64 ": %u %s tokens, at most %u to predict", r->id, r->n_prompt,
             r->restore_path ? "restored" : "prompt", r->predict);
    return 0;
}

void request_take_generate(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const Hill__Generate *generate = a->message->generate;
    struct hill_why why = {{0}};
    struct request *r = NULL;
    if (follow_instead(sv, &a->from, generate->key))
        return;
    int code = request_room(sv, &why);
    if (!code)
        code = make_request(sv, generate, &r, &why);
    if (!code)
        code = request_accept(sv, &a->from, r, generate->save_path, generate->key, &why);
    if (code)
        router_reply(sv->router, &a->from, code, why.text);
}

void request_take_cancel(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const Hill__Cancel *cancel = a->message->cancel;
    request_book_heard(&sv->book, &a->from, false, clock_now_ns());
    struct request *r = request_book_find(&sv->book, &a->from, cancel->request_id);
    if (r)
        request_cancel(sv, r);
    else if (cancel->request_id)
        router_reply(sv->router, &a->from, HILL_E_INVALID,
                     "there is no such request of this client");
    /* Without a number, of a client that has not heard of one: its request was refused meanwhile,
     * and another answer would be taken for one to the client's next request. */
}
