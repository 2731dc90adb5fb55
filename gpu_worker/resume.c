/*
 * gpu_worker/resume.c - a request goes on where an earlier attempt was interrupted.
 *
 * The coordinator has the tokens, and the state of the hash over the logits after the newest of
 * them; the scorer has the entries, up to a step that it names in SEQ_READY. From there the request
 * decodes: its first steps may make tokens that the coordinator has already and compares. Nothing of
 * the prompt is computed. Who calls it: request.c, schedule.c. Concurrency: the data loop's thread.
 * Failure: HILL_E_PROTOCOL for what was not offered; the request ends.
 */
#include <string.h>

#include "base/log.h"
#include "gpu_worker/request.h"
#include "session/session.h"

/* Tokens that an attempt can go on with: not the last, so that it ends as others do. */
static uint32_t usable_tokens(const struct request *r)
{
    const Hill__Resume *m = r->prefill->resume;
    uint32_t n = m ? (uint32_t)m->n_tokens : 0;
    return n < r->predict ? n : r->predict - 1;
}

bool resume_hopes(const struct request *r)
{
    return r->prefill->resume && usable_tokens(r) > r->prefill->resume->first_state;
}

void resume_offer(const struct request *r, struct record_seq_begin *begin)
{
    if (!resume_hopes(r))
        return;
    /* the token after which it goes on has no entry: its step makes one */
    begin->adopt_min = r->prompt + r->prefill->resume->first_state;
    begin->adopt_max = r->prompt + usable_tokens(r) - 1;
}

void request_note_beginning(struct request *r)
{
    uint32_t at_once = layout_append_tokens_max(&r->w->plane.party.layout);
    uint32_t chunk = r->w->settings.plan.batch_tokens;
    r->first_append = r->prompt < chunk ? r->prompt : chunk;
    r->first_append = r->first_append < at_once ? r->first_append : at_once;
}

/* The same of one that was a session before. */
static void find_beginning(struct request *r)
{
    struct session_file file = {0};
    struct hill_why why;
    request_note_beginning(r);
    if (!r->prefill->restore || session_open(&file, r->prefill->restore->path, &why))
        return;
    r->first_prompt = file.header.n_prompt;
    r->first_append = file.header.first_append;
    session_close(&file);
}

static void tell(const struct request *r)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Resumed body = HILL__RESUMED__INIT;
    body.request_id = r->prefill->request_id;
    body.tokens = r->predicted;
    message.body_case = HILL__MESSAGE__BODY_RESUMED;
    message.resumed = &body;
    worker_link_send(r->w->link, &message);
}

int resume_begin(struct request *r, struct hill_why *why)
{
    const Hill__Resume *m = r->prefill->resume;
    uint32_t last = r->kept_tokens - r->prompt; /* the newest token that stands */
    struct hash_state state;
    if (!resume_hopes(r) || last < m->first_state || last >= usable_tokens(r))
        return hill_fail(why, HILL_E_PROTOCOL, "the scorer keeps %u tokens, which is not offered",
                         r->kept_tokens);
    for (uint32_t i = 0; i <= last; i++)
        if (m->tokens[i] >= r->w->hparams.n_vocab)
            return hill_fail(why, HILL_E_INVALID,
                             "token %u of the answer is outside the vocabulary", i);
    memcpy(&state, m->logits_states.data + (last - m->first_state) * sizeof state, sizeof state);
    if (!hash_state_load(r->hash, &state))
        return hill_fail(why, HILL_E_PROTOCOL, "the logits' hash is of another xxHash");
    memcpy(r->tokens + r->prompt, m->tokens, (last + 1) * sizeof *r->tokens);
    r->predicted = r->resumed = last + 1;
    r->n_tokens = r->prompt + r->predicted;
    r->step = r->kept_step;
    r->finish = HILL__FINISH_REASON__FINISH_LENGTH;
    r->prompt_done_ns = r->token_ns = clock_now_ns();
    find_beginning(r);
    r->state = REQUEST_DECODE;
    log_debug("request %llu goes on after %u tokens and %u of its answer",
              (unsigned long long)r->prefill->request_id, r->prompt, r->predicted);
    tell(r);
    return 0;
}
