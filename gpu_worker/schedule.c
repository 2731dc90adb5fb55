/*
 * gpu_worker/schedule.c - who runs when: one prompt at a time, in the order of arrival, and between
 * its (layer, chunk) units a decode step of all sequences that decode.
 *
 * A turn: end what was cancelled; some of what is saved; a piece of the prompt; a step; the
 * prompt's unit goes to the scorer. So a sequence waits between two tokens for one unit of someone
 * else's prompt at most, and requests join and leave between steps. What goes wrong with one
 * request ends that one. A dead scorer and a new epoch end all: silently, since the coordinator
 * sends them again; a scorer that died is waited for (a new epoch will tell) before requests fail.
 * Called by worker.c. Concurrency: one thread.
 */
#include "base/log.h"
#include "gpu_worker/request.h"

static bool leaving(const struct worker *w)
{
    return w->pending || worker_link_stopping(w->link);
}

/* ---- records in ---- */

int schedule_take_records(struct worker *w, struct hill_why *why)
{
    struct dataplane *plane = &w->plane;
    const void *payload;
    uint32_t type;
    for (;;) {
        int rc = dataplane_next(plane, &type, &payload, why);
        if (rc == HILL_E_PROTOCOL) { /* whose it was cannot be known */
            step_fail_waiting(w, rc, "a record from the scorer is malformed");
            request_spoil_ready(w, rc);
            continue;
        }
        if (rc)
            return rc == HILL_E_WOULD_BLOCK ? 0 : rc;
        if (type == RECORD_SEQ_READY)
            request_take_ready(w, payload);
        else if (type == RECORD_SELECTION && !step_take_selection(w, payload))
            plane->dropped++;
        else if (type == RECORD_MASS && !save_take_masses(w, payload))
            plane->dropped++;
        else if (type == RECORD_ENTRIES && !save_take_entries(w, payload) &&
                 !past_take_entries(w, payload) && !stored_take_entries(w, payload))
            plane->dropped++;
        shm_ring_release(plane->selection);
    }
}

/* ---- failures ---- */

/* A dead scorer means a new epoch: wait for it, once for all requests. True when it came. */
static bool await_new_epoch(struct worker *w)
{
    if (!w->peer_gone_ns)
        w->peer_gone_ns = clock_now_ns();
    int64_t deadline = w->peer_gone_ns + WORKER_WAIT_MS * 1000000ll;
    while (!worker_poll(w) && clock_now_ns() < deadline)
        dataplane_sleep(&w->plane, dataplane_seen(&w->plane), deadline);
    return leaving(w);
}

static int device_failed(struct worker *w, const struct request *r, const struct hill_why *why)
{
    log_error("the device failed in request %llu: %s", (unsigned long long)r->prefill->identity,
              why->text);
    worker_link_failure(w->link, HILL_E_NODEV, why->text, true, r->prefill->request_id);
    return HILL_E_NODEV;
}

/* A request's outcome: it ends, unless all are to be let go. Not 0 when the process must end. */
static int conclude(struct worker *w, struct request *r, int rc, const struct hill_why *why)
{
    if (rc == HILL_E_NODEV)
        return device_failed(w, r, why);
    if (leaving(w) || (rc == HILL_E_PEER_GONE && await_new_epoch(w)))
        return 0;
    request_end(r, rc, why->text);
    return 0;
}

/* ---- a turn ---- */

static int end_cancelled(struct worker *w)
{
    struct hill_why why = {.text = "cancelled"};
    int rc = 0;
    for (uint32_t i = 0; !rc && i < w->n_sequences; i++)
        if (w->requests[i] && w->requests[i]->cancelled)
            rc = conclude(w, w->requests[i], HILL_E_CANCELLED, &why);
    return rc;
}

static bool is_before(const struct request *a, const struct request *b)
{
    bool first = resume_hopes(a);
    return first != resume_hopes(b) ? first : a->arrival < b->arrival;
}

/* What a request leaves in the prefix store the next prompt may begin with. */
static bool some_leave(const struct worker *w)
{
    for (uint32_t i = 0; i < w->n_sequences; i++)
        if (w->requests[i] && stored_owes(w->requests[i]))
            return true;
    return false;
}

/* The request whose prompt is computed, or whose turn it is. NULL: none. */
static struct request *next_prompt(struct worker *w)
{
    struct request *oldest = NULL;
    for (uint32_t i = 0; i < w->n_sequences; i++) {
        struct request *r = w->requests[i];
        if (!r || r->state == REQUEST_DECODE)
            continue;
        if (r->state != REQUEST_WAITING)
            return r;
        if (!oldest || is_before(r, oldest))
            oldest = r;
    }
    return oldest && some_leave(w) ? NULL : oldest;
}

/* A bounded piece of the prompt's way to its units. */
static int advance(struct request *r, bool alone, struct hill_why *why)
{
    switch (r->state) {
    case REQUEST_WAITING:
        return request_begin(r, why);
    case REQUEST_BEGINNING:
        return request_check_ready(r, why);
    case REQUEST_FETCHING:
        if (away_comes_late(r))
            return selected_begin_again(r);
        return selected_suits(r) ? selected_begin(r, why) : stored_turn(r, why);
    case REQUEST_LOADING:
        return request_load(r, why);
    case REQUEST_PREFILL:
        return request_await_unit(r, alone, why);
    case REQUEST_RESTORING:
        return restore_turn(r, why);
    case REQUEST_RESTORED:
        return request_begin_prefill(r, r->n_past, why);
    case REQUEST_FILLING:
        return selected_fill(r, why);
    case REQUEST_MENDING:
        return mend_turn(r, why);
    default:
        return 0;
    }
}

/* A file has to be written before anything else happens to it. */
static bool owes(const struct request *r)
{
    return save_owed(r) || stored_owes(r);
}

/* Its last token is out, and nothing keeps it: while the coordinator lacks a token the sequence
 * stays, so that one that hangs or dies costs no request; entries that still come, or are computed
 * after all, are waited for. */
static bool may_end(const struct request *r)
{
    return r->over && r->state == REQUEST_DECODE && !owes(r) && request_is_heard(r);
}

/* A token was taken: rc 1 when it was the last. */
static int after_token(struct worker *w, struct request *r, int rc, const struct hill_why *why)
{
    if (rc > 0)
        r->over = true;
    if (rc > 0 && !may_end(r))
        return 0; /* turn_ends ends it */
    return rc ? conclude(w, r, rc > 0 ? 0 : rc, why) : 0;
}

/* The first token comes out of the prompt itself. */
static int append_unit(struct worker *w, struct request *r)
{
    struct hill_why why = {.text = ""};
    int rc = request_append_unit(r, &why);
    bool first =
        !r->predicted && !r->over && (r->state == REQUEST_DECODE || r->state == REQUEST_FILLING);
    if (!rc && first)
        rc = request_take_token(r, &why);
    return after_token(w, r, rc, &why);
}

/* A restored prompt's answer begins with a token that is known. */
static int begin_answer(struct worker *w, struct request *r)
{
    const struct hill_why none = {.text = ""};
    return after_token(w, r, request_take_restored(r), &none);
}

/* The answer to a READ of what it owes is awaited. */
static bool reads(const struct request *r)
{
    return save_reads(r) || stored_reads(r);
}

/* Some of what it owes. The scorer's answers are waited for until then: the next turn may come a
 * unit of somebody's prompt later. */
static int pay(struct request *r, int64_t until, bool *moved, struct hill_why *why)
{
    struct worker *w = r->w;
    int rc;
    do {
        uint32_t seen = dataplane_seen(&w->plane);
        /* the prefix store first, unless a save is under way: prompts wait for it (some_leave),
         * and a save lasts as long as its disk wants */
        bool saves = save_owed(r) && !r->stored && (r->save || !stored_owes(r));
        rc = saves ? save_turn(r, why) : stored_leave(r, why);
        *moved |= rc != 0;
        if (rc || !reads(r))
            continue;
        w->waiting = r;
        rc = worker_waiting(w, why);
        w->waiting = NULL;
        if (!rc && reads(r)) /* the answer may have come before `seen` */
            dataplane_sleep(&w->plane, seen, until);
        rc = rc ? rc : 1;
    } while (rc > 0 && owes(r) && clock_now_ns() < until);
    return rc;
}

/* Go on with what is to be saved, and end what can end. moved: none of it only waits. */
static int turn_ends(struct worker *w, bool *moved)
{
    int64_t until = 0; /* for all together */
    int end = 0;
    for (uint32_t i = 0; !end && i < w->n_sequences; i++) {
        struct request *r = w->requests[i];
        struct hill_why why = {.text = ""};
        int rc = 0;
        if (r && owes(r)) {
            until = until ? until : clock_now_ns() + restore_turn_ns();
            rc = pay(r, until, moved, &why);
        }
        if (rc < 0)
            end = conclude(w, r, rc, &why);
        else if (r && may_end(r))
            end = conclude(w, r, r->over_rc, &r->over_why);
    }
    return end;
}

static bool steps(const struct request *r)
{
    return r->state == REQUEST_DECODE && !owes(r) && !r->over && request_may_step(r);
}

static uint32_t gather_rows(struct worker *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_sequences; i++)
        if (w->requests[i] && steps(w->requests[i]))
            w->step.members[n++].request = w->requests[i];
    w->step.n_members = n;
    return n;
}

/* A member after the step: its token, or its end. */
static int take_row(struct worker *w, uint32_t row)
{
    struct step_member *m = &w->step.members[row];
    if (!m->rc)
        m->rc = engine_step_logits(w->engine, row, w->logits, &m->why);
    return after_token(w, m->request, m->rc ? m->rc : request_take_token(m->request, &m->why),
                       &m->why);
}

static int run_step(struct worker *w)
{
    struct hill_why why = {.text = ""};
    uint32_t n = w->step.n_members;
    int rc = step_run(w, &why), end = 0;
    for (uint32_t i = 0; !end && i < n; i++)
        end = rc ? conclude(w, w->step.members[i].request, rc, &why) : take_row(w, i);
    w->step.n_members = 0;
    return end;
}

/* Nothing to compute: the scorer's answer to SEQ_BEGIN is awaited, or a message. */
static int sleep_once(struct worker *w, struct request *r, uint32_t seen, struct hill_why *why)
{
    w->waiting = r;
    int rc = worker_waiting(w, why);
    w->waiting = NULL;
    if (!rc && !r->ready && !dataplane_sleep(&w->plane, seen, worker_deadline()))
        (void)shm_ring_peer_alive(w->plane.selection); /* dead: the ring says so once empty */
    return rc;
}

/* Whose the ring's failure is, when no prompt is under way: anybody's. */
static struct request *any_request(const struct worker *w)
{
    uint32_t i = 0;
    while (!w->requests[i])
        i++;
    return w->requests[i];
}

/* Only a disk or the scorer can move on what is being saved, the coordinator what it lacks. */
static void sleep_decoding(struct worker *w, uint32_t seen)
{
    if (!dataplane_sleep(&w->plane, seen, stored_deadline(w, worker_deadline())))
        (void)shm_ring_peer_alive(w->plane.selection); /* dead: the ring says so once empty */
}

static int run_turn(struct worker *w)
{
    struct hill_why why = {.text = ""};
    bool saved = false;
    uint32_t seen = dataplane_seen(&w->plane);
    if (worker_poll(w))
        return 0;
    int rc = schedule_take_records(w, &why);
    int end = rc ? 0 : end_cancelled(w);
    if (!rc && !end)
        end = turn_ends(w, &saved);
    if (end || !w->n_requests)
        return end;
    struct request *r = next_prompt(w);
    bool in_prefill = r && r->state == REQUEST_PREFILL;
    bool in_restore = r && r->state == REQUEST_RESTORING && r->prefill->from_prompt;
    uint32_t n_rows = gather_rows(w);
    if (!rc && !end && r)
        rc = advance(r, n_rows == 0, &why);
    if (!rc && !end && r && r->state == REQUEST_BEGINNING && !n_rows)
        rc = sleep_once(w, r, seen, &why);
    if (rc) { /* of the prompt, or of the ring with nobody else to hear it */
        if (!r)
            r = any_request(w);
        w->step.n_members = 0;
        return conclude(w, r, rc, &why);
    }
    if (!end && n_rows)
        end = run_step(w);
    else if (!end && !r && !saved)
        sleep_decoding(w, seen);
    if (!end && !leaving(w) && in_prefill && request_computes_unit(r))
        end = append_unit(w, r);
    if (!end && !leaving(w) && in_restore && r->state == REQUEST_DECODE)
        end = begin_answer(w, r);
    return end;
}

/* HILL_TEST_TURN_MS: a request lasts until a test has done to it what it does. */
static void wait_until(int64_t ns)
{
    struct timespec at = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

int schedule_run(struct worker *w)
{
    int end = 0;
    while (!end && w->n_requests && !leaving(w)) {
        int64_t began = clock_now_ns();
        end = run_turn(w);
        if (w->turn_ns)
            wait_until(began + w->turn_ns);
    }
    return end;
}
