/* coordinator/request_book.c - see request_book.h. */
#include "coordinator/request_book.h"

#include <stdlib.h>
#include <string.h>

void request_book_init(struct request_book *book, uint32_t parallel)
{
    *book = (struct request_book){.next_id = 1, .next_attempt = 1, .parallel = parallel};
}

void request_book_finish(struct request_book *book)
{
    while (book->first)
        request_book_remove(book, book->first);
    while (book->running)
        request_book_remove(book, book->running);
    while (book->parked)
        request_book_remove(book, book->parked);
}

struct request *request_create(struct request_book *book, uint32_t *prompt, uint32_t n_prompt,
                               uint32_t predict)
{
    struct request *request = calloc(1, sizeof *request);
    uint32_t *tokens = calloc(predict ? predict : 1, sizeof *tokens);
    if (!request || !tokens) {
        free(request);
        free(tokens);
        free(prompt);
        return NULL;
    }
    request->id = book->next_id++;
    request->prompt = prompt;
    request->n_prompt = n_prompt;
    request->predict = predict;
    request->tokens = tokens;
    request->answer_end = TOKEN_NONE;
    hill__sampling__init(&request->sampling);
    return request;
}

void request_destroy(struct request *request)
{
    if (!request)
        return;
    proto_free(request->done);
    proto_free(request->stats);
    proto_free(request->first_done);
    token_log_close(request->log);
    free(request->prefix.taken.tokens);
    free(request->logprobs);
    free(request->restore_path);
    free(request->save_path);
    free(request->saving_path);
    free(request->prompt);
    free(request->tokens);
    free(request);
}

void request_set_sampling(struct request *request, const Hill__Sampling *sampling)
{
    request->sampling = *sampling;
    request->sampling.base.n_unknown_fields = 0;
    request->sampling.base.unknown_fields = NULL;
}

int request_set_forced(struct request *request, uint32_t n)
{
    request->n_forced = n;
    request->logprobs = n ? calloc(n, sizeof *request->logprobs) : NULL;
    return n && !request->logprobs ? HILL_E_NOMEM : 0;
}

int request_keep_logprobs(struct request *request)
{
    if (!request->sampling.logprobs || request->logprobs)
        return 0;
    request->logprobs = calloc(request->predict, sizeof *request->logprobs);
    return request->logprobs ? 0 : HILL_E_NOMEM;
}

void request_keep_id(struct request_book *book, struct request *request, uint64_t id)
{
    request->id = id;
    request_book_skip_id(book, id);
}

void request_book_skip_id(struct request_book *book, uint64_t id)
{
    if (book->next_id <= id)
        book->next_id = id + 1;
}

/* ---- the queue and those that run ---------------------------------------------------------- */

/* Lists are in the order of ids, which is that of arrival. */
static void link_by_id(struct request **at, struct request *request)
{
    while (*at && (*at)->id < request->id)
        at = &(*at)->next;
    request->next = *at;
    *at = request;
}

static bool unlink_from(struct request **at, const struct request *request)
{
    while (*at && *at != request)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = request->next;
    return true;
}

int request_book_add(struct request_book *book, struct request *request)
{
    if (book->n_waiting >= REQUEST_WAITING_MAX)
        return HILL_E_BUSY;
    request->state = REQUEST_WAITING;
    link_by_id(&book->first, request);
    book->n_waiting++;
    return 0;
}

void request_book_claim(struct request_book *book, struct request *request, uint64_t attempt)
{
    if (book->next_attempt <= attempt)
        book->next_attempt = attempt + 1;
    request->started = attempt;
    for (struct request *r = book->parked; r; r = r->next)
        if (r->sequence == request->sequence && r->started < attempt)
            r->returns = false;
        else if (r->sequence == request->sequence && r->started > attempt)
            request->returns = false;
}

/* Who left something on it that waits for its client? */
bool request_book_is_reserved(const struct request_book *book, uint32_t slot)
{
    for (const struct request *r = book->parked; r; r = r->next)
        if (r->returns && r->sequence == slot)
            return true;
    return false;
}

/* The slot that has been free for longest: the scorer may still be clearing up what the others
 * held. */
static uint32_t oldest_free_slot(const struct request_book *book)
{
    uint32_t best = book->parallel;
    for (uint32_t i = 0; i < book->parallel; i++)
        if (!book->slot_taken[i] && !request_book_is_reserved(book, i) &&
            (best == book->parallel || book->slot_freed[i] < book->slot_freed[best]))
            best = i;
    return best;
}

static bool may_start(const struct request_book *book, const struct request *request)
{
    if (book->n_running >= book->parallel)
        return false;
    for (const struct request *r = book->running; r; r = r->next)
        if (r->refused && r->id < request->id)
            return false; /* the room that the next one takes may be what it was refused for */
    return !request->refused || !book->n_running || book->n_freed != request->freed_seen;
}

/* Who returns to a slot that is free; else who came first. */
static struct request *next_to_start(const struct request_book *book)
{
    for (struct request *r = book->first; r; r = r->next)
        if (r->returns && !book->slot_taken[r->sequence])
            return r;
    return book->first;
}

bool request_book_next_returns(const struct request_book *book)
{
    const struct request *request = next_to_start(book);
    return request && request->returns;
}

struct request *request_book_advance(struct request_book *book)
{
    struct request *request = next_to_start(book);
    if (!request || !may_start(book, request))
        return NULL;
    bool back = request->returns && !book->slot_taken[request->sequence];
    uint32_t slot = back ? request->sequence : oldest_free_slot(book);
    if (slot == book->parallel)
        return NULL;
    unlink_from(&book->first, request);
    book->n_waiting--;
    request->state = REQUEST_INTERRUPTED;
    request->returns = back; /* until its prefix has been looked for */
    request->sequence = slot;
    book->slot_taken[request->sequence] = true;
    link_by_id(&book->running, request);
    book->n_running++;
    return request;
}

bool request_book_returns(const struct request_book *book)
{
    const struct request *lists[] = {book->first, book->parked};
    for (unsigned i = 0; i < 2; i++)
        for (const struct request *r = lists[i]; r; r = r->next)
            if (r->returns)
                return true;
    return false;
}

void request_book_stay_away(struct request_book *book, bool only_awaited)
{
    for (struct request *r = book->parked; r; r = r->next)
        r->returns = false;
    for (struct request *r = only_awaited ? NULL : book->first; r; r = r->next)
        r->returns = false;
}

void request_book_move(struct request_book *book, struct request *request, uint32_t sequence)
{
    book->slot_taken[request->sequence] = false;
    book->slot_taken[sequence] = true;
    request->sequence = sequence;
}

/* True: it was running and its slot is free again. */
static bool leave_slot(struct request_book *book, struct request *request)
{
    if (!unlink_from(&book->running, request))
        return false;
    book->n_running--;
    book->slot_taken[request->sequence] = false;
    book->slot_freed[request->sequence] = ++book->n_freed;
    return true;
}

int request_book_refused(struct request_book *book, struct request *request)
{
    bool alone = book->n_running == 1;
    if (alone && request->refused_alone >= REQUEST_ALONE_MAX)
        return HILL_E_TIMEOUT;
    request->refused_alone = alone ? request->refused_alone + 1 : 0;
    request->attempts--;
    request->fruitless--;
    request_interrupt(request, true);
    uint64_t freed_by_others = book->n_freed - request->freed_seen;
    leave_slot(book, request);
    /* its own slot tells nothing; what the others gave back meanwhile does */
    request->freed_seen = book->n_freed - freed_by_others;
    request->refused = true;
    request->state = REQUEST_WAITING;
    link_by_id(&book->first, request);
    book->n_waiting++;
    return 0;
}

void request_sent(struct request *request)
{
    if (!request->first_done) /* else statistics are waited for anew */
        request->outage_ns = 0;
}

void request_taken_up(struct request *request)
{
    request->refused = false;
    request->refused_alone = 0;
    request->outage_ns = 0;
}

/* Of any list. */
static void leave(struct request_book *book, struct request *request)
{
    if (leave_slot(book, request) || unlink_from(&book->parked, request))
        return;
    if (unlink_from(&book->first, request))
        book->n_waiting--;
}

void request_book_park(struct request_book *book, struct request *request, enum request_state state,
                       int64_t deadline_ns)
{
    leave(book, request);
    request->state = state;
    request->deadline_ns = deadline_ns;
    request->wire_id = 0;
    link_by_id(&book->parked, request);
    book->n_done += state == REQUEST_DELIVERED;
}

void request_book_unpark(struct request_book *book, struct request *request)
{
    leave(book, request);
    request->state = REQUEST_WAITING;
    link_by_id(&book->first, request);
    book->n_waiting++;
}

void request_book_remove(struct request_book *book, struct request *request)
{
    leave(book, request);
    book->n_done += request->state != REQUEST_DELIVERED;
    request_destroy(request);
}

struct request *request_book_by_key(const struct request_book *book, uint64_t key)
{
    struct request *lists[] = {book->running, book->first, book->parked};
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++)
        for (struct request *r = lists[i]; r; r = r->next)
            if (key && r->key == key && r->state != REQUEST_DELIVERED)
                return r;
    return NULL;
}

bool request_same_client(const struct request *request, const struct proto_address *client)
{
    return proto_same_address(&request->client, client);
}

struct request *request_book_find(const struct request_book *book,
                                  const struct proto_address *client, uint64_t id)
{
    struct request *lists[] = {book->running, book->first}, *found = NULL;
    for (unsigned i = 0; i < 2; i++)
        for (struct request *r = lists[i]; r; r = r->next)
            if (request_same_client(r, client) && (id ? r->id == id : !found || r->id > found->id))
                found = r;
    return found;
}

void request_book_heard(struct request_book *book, const struct proto_address *client, bool asks,
                        int64_t now_ns)
{
    struct request *lists[] = {book->running, book->first};
    for (unsigned i = 0; i < 2; i++)
        for (struct request *r = lists[i]; r; r = r->next)
            if (request_same_client(r, client)) {
                r->client_seen_ns = now_ns;
                r->client_asks |= asks;
            }
}

struct request *request_book_by_wire(const struct request_book *book, uint64_t wire_id)
{
    struct request *r = book->running;
    while (r && (!r->wire_id || r->wire_id != wire_id))
        r = r->next;
    return r;
}

/* ---- attempts ---------------------------------------------------------------------------- */

static bool ended_well(const Hill__Done *done)
{
    return done->finish == HILL__FINISH_REASON__FINISH_STOP ||
           done->finish == HILL__FINISH_REASON__FINISH_LENGTH;
}

static void forget_end(struct request *request)
{
    proto_free(request->done);
    proto_free(request->stats);
    request->done = request->stats = NULL;
}

int request_begin_attempt(struct request_book *book, struct request *request, int64_t now_ns)
{
    if (request->fruitless >= REQUEST_ATTEMPTS_MAX)
        return HILL_E_PEER_GONE;
    request->attempts++;
    request->fruitless++;
    request->recovery.resumed = request->recovery.in_prompt = false;
    request->freed_seen = book->n_freed;
    request->wire_id = book->next_attempt++;
    request->n_attempt = request->attempt_from = request->n_taken = 0;
    request->prefill_ns = now_ns;
    request->prefill_share = 0;
    request->progress_ns = 0;
    request->failure_code = 0;
    request->failure_text[0] = '\0';
    if (request->done) { /* request_repeat_end: its answer is whole, whatever comes of this */
        proto_free(request->first_done);
        request->first_done = request->done;
        request->done = NULL;
    }
    forget_end(request);
    request->state = REQUEST_RUNNING;
    return 0;
}

static void lose_units(struct request_recovery *r)
{
    r->units_lost = r->units_done > r->units_lost ? r->units_done : r->units_lost;
    r->units_done = 0;
}

void request_interrupt(struct request *request, bool counts)
{
    struct request_recovery *r = &request->recovery;
    if (!counts && request->state == REQUEST_RUNNING && request->fruitless)
        request->fruitless--;
    lose_units(r);
    request->wire_id = 0;
    forget_end(request);
    request->state = REQUEST_INTERRUPTED;
}

bool request_repeat_end(struct request *request)
{
    if (!request->done || request->stats || request->state == REQUEST_CANCELLING ||
        !ended_well(request->done->done) || request->n_attempt < request->n_tokens)
        return false;
    lose_units(&request->recovery);
    request->state = REQUEST_INTERRUPTED;
    return true;
}

bool request_take_first_end(struct request *request)
{
    if (!request->first_done)
        return false;
    forget_end(request);
    request->done = request->first_done;
    request->first_done = NULL;
    return true;
}

void request_not_sent(struct request *request)
{
    request->attempts--;
    request->fruitless--;
    request_interrupt(request, true);
}

/* ---- going on ---------------------------------------------------------------------------- */

void request_note_state(struct request *request, uint32_t index, const void *bytes, size_t n)
{
    struct request_recovery *r = &request->recovery;
    if (n != sizeof *r->states)
        return;
    memcpy(&r->states[index % REQUEST_STATES], bytes, n);
    if (r->states_to != index)
        r->states_from = index;
    r->states_to = index + 1;
    if (r->states_to - r->states_from > REQUEST_STATES)
        r->states_from = r->states_to - REQUEST_STATES;
}

/* h2o needs the sums as they were after that step, and fewer of them are kept. */
uint32_t request_ahead_max(const struct request *request)
{
    _Static_assert(KV_MASS_STEPS > 2 && KV_MASS_STEPS <= REQUEST_STATES, "0 is no limit");
    return (request->selection.policy == KV_POLICY_H2O ? KV_MASS_STEPS : REQUEST_STATES) - 2;
}

const struct hash_state *request_state_after(const struct request *request, uint32_t index)
{
    const struct request_recovery *r = &request->recovery;
    return index >= r->states_from && index < r->states_to ? &r->states[index % REQUEST_STATES]
                                                           : NULL;
}

/* The last token is made again, so that an attempt always ends as others do. */
uint32_t request_resume_states(const struct request *request, uint32_t *first,
                               struct hash_state states[REQUEST_STATES])
{
    const struct request_recovery *r = &request->recovery;
    uint32_t n = 0;
    *first = r->states_from;
    bool last_alone = request->n_tokens == request->predict && *first + 1 == request->n_tokens;
    if (r->barred || last_alone || r->states_to != request->n_tokens)
        return 0;
    for (uint32_t i = *first; i < request->n_tokens; i++)
        states[n++] = r->states[i % REQUEST_STATES];
    return n;
}

int request_take_resumed(struct request *request, uint32_t tokens, int64_t now_ns)
{
    struct request_recovery *r = &request->recovery;
    if (request->n_attempt || r->resumed || tokens == 0 || tokens > request->n_tokens)
        return HILL_E_PROTOCOL;
    request->n_attempt = tokens;
    request->attempt_from = tokens - 1;
    request->attempt_first_ns = request->attempt_last_ns = now_ns;
    r->resumed = true;
    r->recoveries++;
    r->units_done = r->units_lost;
    r->units_lost = 0;
    return 0;
}

int request_take_units(struct request *request, uint64_t units, uint64_t repeated)
{
    struct request_recovery *r = &request->recovery;
    if (request->n_attempt || r->resumed || units == 0)
        return HILL_E_PROTOCOL;
    r->resumed = r->in_prompt = true;
    r->recoveries++;
    r->units_repeated += repeated;
    r->units_done =
        units + repeated; /* those beyond, if there were any, are counted as they come */
    return 0;
}

void request_note_units(struct request *request, uint64_t done)
{
    struct request_recovery *r = &request->recovery;
    if (done <= r->units_done)
        return;
    uint64_t again = done < r->units_lost ? done : r->units_lost;
    if (again > r->units_done)
        r->units_repeated += again - r->units_done;
    r->units_done = done;
}

bool request_begin_anew(struct request *request)
{
    if (!request->recovery.resumed || request->state != REQUEST_RUNNING)
        return false;
    request->recovery.barred = true;
    request_interrupt(request, true);
    return true;
}

int request_take_token(struct request *request, uint32_t index, uint32_t token, int64_t now_ns)
{
    if (index != request->n_attempt || index >= request->predict || request->done)
        return HILL_E_PROTOCOL;
    if (request->n_forced && token != request->prompt[request->n_prompt + index])
        return HILL_E_UNSUPPORTED;
    if (!request->first_token_ns)
        request->first_token_ns = now_ns;
    request->attempt_last_ns = now_ns;
    if (!request->n_attempt++)
        request->attempt_first_ns = now_ns;
    if (index < request->n_tokens) {
        request->recovery.steps_repeated++;
        return request->tokens[index] == token ? 0 : HILL_E_DAMAGED;
    }
    request->tokens[request->n_tokens++] = token;
    request->fruitless = 0;
    request->recovery.barred = request->recovery.damaged = false;
    return 1;
}

int request_take_done(struct request *request, Hill__Message *message, int64_t now_ns)
{
    if (request->done)
        return HILL_E_PROTOCOL;
    bool well = ended_well(message->done);
    request->done = message;
    request->deadline_ns = now_ns + (well ? REQUEST_STATS_NS : REQUEST_STATS_ERR_NS);
    request->state = REQUEST_FINISHING;
    return 0;
}

int request_take_stats(struct request *request, Hill__Message *message)
{
    if (request->stats)
        return HILL_E_PROTOCOL;
    request->stats = message;
    return 0;
}

bool request_is_over(const struct request *request, int64_t now_ns)
{
    bool overdue = request->state == REQUEST_FINISHING && now_ns >= request->deadline_ns;
    return request->done && (request->stats || overdue);
}
