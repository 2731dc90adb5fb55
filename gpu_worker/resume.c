/*
 * gpu_worker/resume.c - a request goes on where an earlier attempt was interrupted.
 *
 * The coordinator has the tokens, and the state of the hash over the logits after the newest of
 * them; the scorer has the entries, up to a step that it names in SEQ_READY. From there the request
 * decodes: its first steps may make tokens that the coordinator has already and compares. Of the
 * prompt damaged entries alone are computed (mend.h). An attempt that was interrupted in its prompt
 * keeps the units that are there, or a session's entries.
 * Who calls it: request.c, schedule.c. Concurrency: the data loop's thread. Failure:
 * HILL_E_PROTOCOL for what was not offered; the request ends.
 */
#include <string.h>

#include "base/log.h"
#include "gpu_worker/logits_file.h"
#include "gpu_worker/request.h"

/* Does the answer's JSON end with these tokens? */
static bool ends_json(const struct request *r, uint32_t n)
{
    struct json_answer whole = r->json;
    return whole.tokens &&
           !json_answer_begin(&whole, whole.tokens, r->prefill->resume->tokens, n) &&
           json_answer_is_complete(&whole);
}

/* Tokens that an attempt can go on with: not the last, so that it ends as others do. */
static uint32_t usable_tokens(const struct request *r)
{
    const Hill__Resume *m = r->prefill->resume;
    uint32_t n = m ? (uint32_t)m->n_tokens : 0;
    n = n < r->predict ? n : r->predict - 1;
    return n && ends_json(r, n) ? n - 1 : n;
}

bool resume_hopes(const struct request *r)
{
    return r->prefill->resume && usable_tokens(r) > r->prefill->resume->first_state;
}

/* Whose prompt it is, and all that its units follow from. */
static uint64_t prompt_name(const struct request *r)
{
    return XXH3_64bits_withSeed(r->tokens, sizeof *r->tokens * r->prompt, r->prefill->identity);
}

/* A recording has whole prompts; what they attend to, and the logits of all tokens, are not
 * kept. */
static bool keeps_prompt(const struct request *r)
{
    return r->prefill->identity && r->w->plane.party.prompt.base && !r->prefill->restore &&
           !request_weighs(r) && !logits_file_wants_prompt() && !r->w->settings.record_path[0] &&
           !r->holds_chosen;
}

/* A recording has whole sessions; sums of attention are not kept. */
static bool keeps_session(const struct request *r)
{
    return r->prefill->identity && !r->prefill->anew && !request_weighs(r) &&
           !r->w->settings.record_path[0];
}

void resume_offer(struct request *r, struct record_seq_begin *begin)
{
    if (!resume_hopes(r) && r->prefill->restore) {
        begin->adopt_max = keeps_session(r) ? request_session_entries(r) : 0;
        return;
    }
    if (!resume_hopes(r)) {
        bool found = keeps_prompt(r) && !r->prefill->anew &&
                     engine_prompt_find(r->w->engine, prompt_name(r), r->prompt, &r->prompt_kept);
        if (r->prompt_kept.damaged)
            log_warn("request %llu: what is kept of its prompt is damaged: %s",
                     (unsigned long long)r->prefill->identity,
                     found ? "its newest unit, or entries that the tiers may have"
                           : "it is computed anew");
        if (!found)
            r->prompt_kept = (struct engine_prompt){0};
        begin->adopt_max = found ? r->prompt : 0; /* from none of them on */
        return;
    }
    /* the token after which it goes on has no entry: its step makes one */
    uint32_t prompt = request_index(r, r->prompt);
    begin->adopt_min = r->prefill->resume->first_state ? prompt + r->prefill->resume->first_state
                                                       : request_index(r, request_entries(r));
    begin->adopt_max = prompt + usable_tokens(r) - 1;
}

void request_note_beginning(struct request *r)
{
    uint32_t at_once = layout_append_tokens_max(&r->w->plane.party.layout);
    uint32_t chunk = r->w->settings.plan.batch_tokens;
    r->first_append = r->prompt < chunk ? r->prompt : chunk;
    r->first_append = r->first_append < at_once ? r->first_append : at_once;
}

/* The same of one that was a session before. At its path another file may lie by now. */
static void find_beginning(struct request *r)
{
    const Hill__SessionFile *from = r->prefill->restore;
    request_note_beginning(r);
    if (!from || !from->first_append)
        return;
    r->first_prompt = from->n_prompt;
    r->first_append = from->first_append;
}

static int load_hash(struct request *r, uint32_t index, struct hill_why *why)
{
    const Hill__Resume *m = r->prefill->resume;
    struct hash_state state;
    memcpy(&state, m->logits_states.data + (index - m->first_state) * sizeof state, sizeof state);
    return hash_state_load(r->hash, &state)
               ? 0
               : hill_fail(why, HILL_E_PROTOCOL, "the logits' hash is of another xxHash");
}

int resume_hash(struct request *r, struct hill_why *why)
{
    if (r->hash_late && r->predicted == r->prefill->resume->first_state) {
        r->hash_late = false;
        return load_hash(r, r->predicted, why);
    }
    XXH64_update(r->hash, r->w->logits, sizeof *r->w->logits * r->w->hparams.n_vocab);
    return 0;
}

/* Until this attempt has come to the newest token that the client has, its own hash is of fewer
 * steps than the client has tokens, or of the rows that are made again alone. */
void resume_end_hash(struct request *r)
{
    const Hill__Resume *m = r->prefill->resume;
    struct hill_why why;
    if (!m || (r->predicted >= m->n_tokens && !r->hash_late))
        return;
    if (load_hash(r, (uint32_t)m->n_tokens - 1, &why))
        XXH64_reset(r->hash, 0);
}

void resume_tell(const struct request *r, uint32_t units, uint32_t repeated)
{
    Hill__Resumed body = HILL__RESUMED__INIT;
    body.request_id = r->prefill->request_id;
    body.tokens = r->predicted;
    body.units = units;
    body.units_repeated = repeated;
    body.entries_repeated = mend_entries(r);
    worker_link_send(r->w->link, &PROTO_MESSAGE(RESUMED, resumed, &body));
}

int resume_begin(struct request *r, struct hill_why *why)
{
    const Hill__Resume *m = r->prefill->resume;
    uint32_t last = r->kept_tokens - request_index(r, r->prompt); /* the newest that stands */
    r->hash_late = r->replay_to && last < m->first_state;
    if (!resume_hopes(r) || (last < m->first_state && !r->hash_late) || last >= usable_tokens(r))
        return hill_fail(why, HILL_E_PROTOCOL, "the scorer keeps %u tokens, which is not offered",
                         r->kept_tokens);
    for (uint32_t i = 0; i <= last; i++)
        if (m->tokens[i] >= r->w->hparams.n_vocab)
            return hill_fail(why, HILL_E_INVALID,
                             "token %u of the answer is outside the vocabulary", i);
    int rc = r->hash_late ? 0 : load_hash(r, last, why);
    if (rc)
        return rc;
    memcpy(r->tokens + r->prompt, m->tokens, (last + 1) * sizeof *r->tokens);
    r->predicted = r->resumed = last + 1;
    r->n_tokens = r->prompt + r->predicted;
    if (r->json.tokens &&
        json_answer_begin(&r->json, r->json.tokens, r->tokens + r->prompt, r->predicted))
        return hill_fail(why, HILL_E_PROTOCOL, "the answer so far begins no JSON");
    r->n_plain = r->holds_chosen ? r->n_plain : m->plain;
    r->step = r->kept_step;
    r->finish = HILL__FINISH_REASON__FINISH_LENGTH;
    r->prompt_done_ns = r->token_ns = clock_now_ns();
    find_beginning(r);
    r->state = REQUEST_DECODE;
    log_debug("request %llu goes on after %u tokens and %u of its answer",
              (unsigned long long)r->prefill->identity, r->prompt, r->predicted);
    resume_tell(r, 0, 0);
    return mend_begin(r, why);
}

/* ---- a prompt ------------------------------------------------------------------------------- */

/* Room for it where it outlives this process? Not at the cost of the next epoch's segments. */
static bool fill_prompt(struct request *r)
{
    const struct worker *w = r->w;
    struct hill_why why;
    uint64_t leave = w->plane.party.rings.total_bytes + w->plane.party.staging.total_bytes;
    if (!keeps_prompt(r))
        return false;
    if (!shm_segment_fill(&w->plane.party.prompt, engine_prompt_bytes(w->engine, r->prompt), leave,
                          &why))
        return true;
    log_debug("request %llu: its prompt is not kept while it is computed: %s",
              (unsigned long long)r->prefill->identity, why.text);
    return false;
}

/* The unit with the first entry that the scorer lacks. */
static uint32_t first_lacking(const struct request *r)
{
    uint32_t batch = r->w->settings.plan.batch_tokens, chunks = (r->prompt + batch - 1) / batch;
    return r->kept_tokens < r->prompt ? r->kept_layer * chunks + r->kept_tokens / batch
                                      : (r->kept_layer + 1) * chunks;
}

uint32_t resume_passed(const struct request *r, const struct engine_unit *u)
{
    if (u->layer != r->kept_layer || !r->kept_tokens)
        return u->layer < r->kept_layer ? u->count : 0;
    uint32_t beyond = r->kept_tokens > u->first ? r->kept_tokens - u->first : 0;
    return beyond < u->count ? beyond : u->count;
}

int resume_prompt(struct request *r, struct hill_why *why)
{
    struct engine *e = r->w->engine;
    uint32_t lacking = first_lacking(r), units = r->prompt_kept.units;
    bool keeps = fill_prompt(r);
    struct engine_keep keep = {.name = prompt_name(r)};
    keep.goes_on = keeps && units && lacking >= r->prompt_kept.oldest;
    keep.first_unit = lacking < units ? lacking : units;
    int rc = engine_prefill_begin_kept(e, r->prompt, keeps ? &keep : NULL, why);
    find_beginning(r); /* its first entries may be out already */
    if (rc || !keep.goes_on)
        return rc;
    r->unit = keep.first_unit;
    r->queued = engine_prefill_queued(e);
    log_debug("request %llu goes on after %u units of its prompt; the tiers lack those from %u on",
              (unsigned long long)r->prefill->identity, units, lacking);
    resume_tell(r, units, r->prompt_kept.begun);
    return 0;
}
