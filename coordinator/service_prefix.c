/*
 * coordinator/service_prefix.c - what a request takes over from finished ones, and what it leaves.
 *
 * A request that starts takes its longest prefix (prefix/prefix_store.h) and runs on the slot that
 * has it; one that has none runs on a slot that holds nothing, or what was used longest ago. A
 * request that ends with entries kept is put on its slot. A new epoch begins with empty tiers for
 * all but those that run: nothing is kept. Who calls it: service_requests.c, service_intake.c.
 * Concurrency: one thread. Failure: what is not kept is computed.
 */
#include "coordinator/service.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kv/plane.h"

_Static_assert(REQUEST_PARALLEL_MAX <= PREFIX_SEQUENCES_MAX, "a slot for each sequence");

bool requests_can_go_on(const struct service *sv)
{
    const struct epoch_settings *s = &sv->settings->epoch; /* these start with empty tiers: */
    return !s->trace_path[0] && !s->record_path[0];
}

bool requests_are_entries(const struct service *sv)
{
    return requests_can_go_on(sv) &&
           !kv_policy_reads_keys(sv->settings->epoch.plan.selection.policy);
}

bool request_keeps(const struct service *sv, const struct request *r)
{
    return requests_are_entries(sv) && !r->prefix.off && !r->n_forced;
}

void request_take_prefix(struct service *sv, struct request *r)
{
    bool taken[PREFIX_SEQUENCES_MAX] = {false}, room = false;
    for (uint32_t i = 0; i < sv->book.parallel; i++) {
        taken[i] =
            i != r->sequence && (sv->book.slot_taken[i] || request_book_is_reserved(&sv->book, i));
        room |= !taken[i] && !prefix_store_holds(&sv->prefixes, i);
    }
    r->prefix.hit = (struct prefix_hit){0};
    if (r->returns) { /* its own entries are there */
        r->returns = false;
        return;
    }
    if (request_keeps(sv, r) && !r->restore_path) {
        bool fresh = !r->n_tokens; /* else: decoded entries could make other tokens than it has */
        const struct prefix_query query = {r->prompt, r->n_prompt,
                                           fresh ? r->prefix.conversation : 0,
                                           fresh ? r->prefix.after : 0, room};
        r->prefix.hit = prefix_store_find(&sv->prefixes, &query, taken);
    }
    const struct prefix_hit *hit = &r->prefix.hit;
    if (hit->n_tokens > hit->n_plain && !r->prefix.decoded) {
        r->prefix.decoded = true;
        request_log_decoded(r);
    }
    if (hit->request || hit->n_history)
        log_info("request %" PRIu64
                 ": %u of its %u prompt tokens are there, %u of them decoded; its "
                 "history has %u",
                 r->id, hit->n_tokens, r->n_prompt, hit->n_tokens - hit->n_plain, hit->n_history);
    uint32_t slot = r->sequence; /* the one that has been free for longest */
    if (hit->request)
        slot = hit->sequence;
    else if (prefix_store_holds(&sv->prefixes, slot))
        slot = prefix_store_slot(&sv->prefixes, sv->book.parallel, taken);
    request_book_move(&sv->book, r, slot);
    free(r->prefix.taken.tokens);
    r->prefix.taken = prefix_store_take(&sv->prefixes, slot);
}

void request_return_prefix(struct service *sv, struct request *r)
{
    prefix_store_give_back(&sv->prefixes, r->sequence, &r->prefix.taken);
}

bool request_fill_reuse(const struct request *r, Hill__Reuse *out)
{
    hill__reuse__init(out);
    out->identity = r->prefix.hit.request;
    out->tokens = r->prefix.hit.n_tokens;
    out->plain = r->prefix.hit.n_plain;
    return r->prefix.hit.request && r->attempts == 1; /* later ones: the slot has been cleared */
}

/* Of what came decoded out of the drive's store the length is not known. */
uint32_t request_resume_plain(const struct request *r)
{
    if (r->restore_path || r->prefix.drive_decoded)
        return 0;
    return r->prefix.decoded ? r->prefix.hit.n_plain : r->n_prompt;
}

/* Of its prompt, all attempts together. */
uint32_t request_reused(const struct request *r)
{
    const Hill__Done *done = r->done ? r->done->done : NULL;
    if (!done)
        return 0;
    return done->resumed_tokens && !done->reused_tokens && r->recovery.resumed
               ? r->prefix.hit.n_tokens
               : done->reused_tokens;
}

/* Of these: not plain. */
uint32_t request_reused_decoded(const struct request *r)
{
    const Hill__Done *done = r->done ? r->done->done : NULL;
    uint32_t reused = request_reused(r);
    uint32_t plain = done && done->reused_tokens ? done->reused_plain : r->prefix.hit.n_plain;
    return reused > plain ? reused - plain : 0;
}

/* How many of its tokens have entries that are everybody's. What was taken over and is not plain
 * makes all that follows it not plain. */
static uint32_t plain_tokens(const struct service *sv, const struct request *r)
{
    const struct prefix_hit *hit = &r->prefix.hit;
    uint32_t decoded = request_reused_decoded(r);
    /* a coordinator before this one took decoded entries over, and nobody knows which */
    bool lost = r->prefix.decoded && !hit->n_tokens;
    /* the attempt before this one may have taken some from the drive's store: no Done tells */
    bool untold = r->recovery.resumed && !r->recovery.in_prompt && r->prefix.conversation &&
                  sv->settings->prefix_dir[0];
    if (r->restore_path || lost || untold)
        return 0;
    return decoded                        ? request_reused(r) - decoded
           : hit->n_plain < hit->n_tokens ? hit->n_plain
                                          : r->n_prompt;
}

void request_leave_prefix(struct service *sv, const struct request *r, bool finished)
{
    uint32_t n = r->n_prompt + r->n_tokens;
    uint32_t kept = r->stats ? r->stats->sequence_stats->kept_tokens : 0;
    if (!kept || !request_keeps(sv, r))
        return;
    uint32_t *tokens = malloc((size_t)n * sizeof *tokens);
    if (!tokens)
        return;
    memcpy(tokens, r->prompt, (size_t)r->n_prompt * sizeof *tokens);
    memcpy(tokens + r->n_prompt, r->tokens, (size_t)r->n_tokens * sizeof *tokens);
    uint32_t plain = plain_tokens(sv, r);
    struct prefix_entry e = {.request = r->id,
                             .conversation = r->prefix.conversation,
                             .tokens = tokens,
                             .n_tokens = n,
                             .n_kept = kept < n ? kept : n,
                             .finished = finished};
    e.n_plain = plain < e.n_kept ? plain : e.n_kept;
    log_info("request %" PRIu64 ": the entries of %u of its tokens stay", r->id, e.n_kept);
    if (prefix_store_put(&sv->prefixes, r->sequence, &e))
        log_warn("request %" PRIu64 ": out of memory for keeping its tokens", r->id);
    free(tokens);
}

/* The request that a prompt names. */
int prefix_find_named(const struct service *sv, uint64_t id, const struct prefix_entry **out,
                      struct hill_why *why)
{
    const struct prefix_entry *e = prefix_store_request(&sv->prefixes, id);
    *out = e;
    if (!requests_are_entries(sv)) /* entries alone are not all that it would need */
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "this pipeline keeps no finished requests: policy %s, or a trace or a "
                         "recording",
                         kv_policy_name(sv->settings->epoch.plan.selection.policy));
    for (const struct request *r = sv->book.running; r; r = r->next)
        if (r->id == id)
            return hill_fail(why, HILL_E_INVALID, "request %" PRIu64 " runs still", id);
    if (!e)
        return hill_fail(why, HILL_E_INVALID,
                         "request %" PRIu64
                         " is not kept: there is none of that number, or its room "
                         "went to others",
                         id);
    return e->finished
               ? 0
               : hill_fail(why, HILL_E_INVALID,
                           "request %" PRIu64 " was cancelled: nothing goes on after it", id);
}
