/*
 * tests/chaos/chaos.c - kills or stops a random process of a running pipeline at random moments,
 * and asks whether every request still ends as if nothing had been.
 *
 * usage: chaos RUN-FOLDER ROUNDS SECONDS SEED PREDICT PROMPT-FILE...
 *   as many requests at once as there are prompt files; it ends after ROUNDS rounds or SECONDS
 *   seconds (0: no limit), whichever is first
 * A round sends all requests, and at a moment drawn from the time that they took undisturbed sends
 * SIGKILL or (one time in four) SIGSTOP to the GPU worker, the scorer, the agent or the
 * coordinator. Somebody must start a killed coordinator again. One that is stopped goes on
 * (SIGCONT) after CHAOS_STOPPED_MS, which is longer than a worker may be silent; every other one
 * ("hang") does not, and somebody must kill it. Half the moments are drawn from the prompts' part,
 * half from the decode's, which begins when each request has a token. Tokens, finish reason and
 * both hashes must be those of the undisturbed run; afterwards the pipeline must be ready, with as
 * many segments, files in the run folder, token logs and descriptors in the coordinator as before.
 * Printed: one JSON object on stdout, with every round (samples). Times, from the signal on:
 *   detected   the status no longer says that this process is ready; the connection is lost
 *   started    a new process is there; ready: it is ready (weights loaded, segments mapped), of a
 *              coordinator: its pipeline is, and of a stopped one: it answers again
 *   pause      of each request that had begun and was not over: the longest time in which it did
 *              not get on, from the signal or a later sign to the next one: a token, or more of its
 *              prompt read than ever before (said every 0.2 s; after a coordinator's death not)
 * Environment: CHAOS_SEGMENTS, how this pipeline's segments begin; CHAOS_LOGS, the folder of its
 * token logs; CHAOS_STOPPED_MS.
 * Exit codes: 0 all as it should be, 1 not, 100 wrong use.
 * Who calls it: tests/chaos/run. Concurrency: one thread.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/chaos/asking.h"
#include "tests/chaos/tally.h"

#define ROUND_LIMIT_MS 300000 /* a request that is not over then is lost */
#define POLL_MS        10     /* how often the status is asked for while a worker is away */
/* A coordinator that died before it heard that a client has its answer leaves that request's token
 * log, and the next one waits for the client as long as --recovery-timeout says: 60 s. */
#define SETTLE_MS      75000
#define SETTLE_POLL_MS 5
#define ASK_NS         (2 * 1000000000ll) /* a client that asks no more for 20 s is taken for gone */

struct chaos {
    struct asking asking;
    const char *run_dir;
    int64_t stopped_ms; /* so long a coordinator is */
    uint32_t n_over;
    uint64_t random;
    bool reference; /* the run that the others are compared with */
    int64_t began_ns, prompts_ns,
        whole_ns;          /* of the undisturbed run: until all prompts were read */
    Hill__Message *status; /* the last one */
    uint32_t n_statuses;
    bool status_owed;
    int64_t asked_ns; /* when the status was asked for last */
    /* of this round */
    int64_t signal_ns, detected_ns, started_ns, ready_ns; /* 0: not yet */
    int64_t continue_ns; /* when the stopped coordinator goes on; 0: none is stopped */
    uint32_t victim;
    int32_t pid;
    struct tally tally;
    uint32_t n_wrong, n_failed, n_leaks;
};

static void die(const char *what, const struct hill_why *why)
{
    fprintf(stderr, "chaos: %s: %s\n", what, why->text);
    exit(1);
}

static uint64_t draw(struct chaos *c, uint64_t below)
{
    c->random ^= c->random << 13;
    c->random ^= c->random >> 7;
    c->random ^= c->random << 17;
    return c->random % below;
}

/* ---- requests ------------------------------------------------------------------------------- */

static void ask_status(struct chaos *c)
{
    struct hill_why why;
    Hill__StatusRequest request = HILL__STATUS_REQUEST__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    message.body_case = HILL__MESSAGE__BODY_STATUS_REQUEST;
    message.status_request = &request;
    if (client_send(&c->asking.client, &message, &why))
        die("asking for the status", &why);
    c->status_owed = true;
    c->asked_ns = clock_now_ns();
}

/* It got on. A request that had not begun when the signal came has no pause by it. */
static void note_time(const struct chaos *c, struct asked *a, int64_t now)
{
    int64_t from = a->last_ns > c->signal_ns ? a->last_ns : c->signal_ns;
    if (c->signal_ns && a->last_ns && now - from > a->pause_ns)
        a->pause_ns = now - from;
    a->last_ns = now;
}

static void take_text(struct chaos *c, const Hill__Text *text, int64_t now)
{
    struct asked *a = asking_find(&c->asking, text->request_id);
    if (!a || !asking_text(&c->asking, a, text))
        return;
    note_time(c, a, now);
    if (c->reference && a->n == 1 && now - c->began_ns > c->prompts_ns)
        c->prompts_ns = now - c->began_ns;
}

/* What is read again is no progress. */
static void take_progress(struct chaos *c, const Hill__PrefillProgress *p, int64_t now)
{
    struct asked *a = asking_find(&c->asking, p->request_id);
    if (!a || p->tokens_done <= a->read)
        return;
    a->read = p->tokens_done;
    note_time(c, a, now);
}

static void take_summary(struct chaos *c, const Hill__Summary *s, int64_t now)
{
    struct asked *a = asking_find(&c->asking, s->request_id);
    if (!a)
        return;
    asking_over(&c->asking, a);
    c->n_over++;
    if (now - c->began_ns > c->whole_ns && c->reference)
        c->whole_ns = now - c->began_ns;
    if (s->finish != HILL__FINISH_REASON__FINISH_LENGTH) {
        snprintf(a->failure, sizeof a->failure, "%.190s", s->code ? s->text : "another finish");
        return;
    }
    uint64_t selection = s->scorer ? s->scorer->selection_hash : 0;
    uint64_t logits = s->gpu ? s->gpu->logits_hash : 0;
    if (c->reference) {
        a->n_wanted = a->n;
        memcpy(a->wanted, a->got, a->n * sizeof *a->got);
        a->selection_hash = selection;
        a->logits_hash = logits;
        return;
    }
    a->differs |= a->n != a->n_wanted || logits != a->logits_hash ||
                  memcmp(a->got, a->wanted, a->n_wanted * sizeof *a->got) != 0 ||
                  (s->scorer && selection != a->selection_hash);
    c->tally.n_without_stats += s->scorer ? 0 : 1;
}

/* ---- the victim ----------------------------------------------------------------------------- */

static const Hill__WorkerStatus *worker(const struct chaos *c, uint32_t w)
{
    const Hill__StatusReply *s = c->status ? c->status->status_reply : NULL;
    if (s && w == VICTIM_COORDINATOR)
        return s->coordinator;
    return s && w < s->n_workers ? s->workers[w] : NULL;
}

static bool is_ready(const Hill__WorkerStatus *w)
{
    return strcmp(w->state, "ready") == 0;
}

static void watch_coordinator(struct chaos *c, int64_t now)
{
    const Hill__StatusReply *s = c->status->status_reply;
    if (s->coordinator->pid == c->pid) { /* it was stopped */
        c->ready_ns = c->continue_ns ? 0 : now;
        return;
    }
    if (!c->started_ns)
        c->started_ns = now;
    if (s->ready)
        c->ready_ns = now;
}

/* What the newest status says of the process that was shot. */
static void watch_victim(struct chaos *c, int64_t now)
{
    const Hill__WorkerStatus *w = worker(c, c->victim);
    if (!c->signal_ns || !w || c->ready_ns)
        return;
    if (c->victim == VICTIM_COORDINATOR) {
        watch_coordinator(c, now);
        return;
    }
    if (!c->detected_ns && (w->pid != c->pid || !is_ready(w)))
        c->detected_ns = now;
    if (!c->started_ns && w->pid != c->pid && w->pid > 0)
        c->started_ns = now;
    if (c->started_ns && is_ready(w))
        c->ready_ns = now;
}

static void take(struct chaos *c, Hill__Message *message)
{
    int64_t now = clock_now_ns();
    if (message->body_case == HILL__MESSAGE__BODY_ACCEPTED) {
        asking_accepted(&c->asking, message->accepted);
    } else if (message->body_case == HILL__MESSAGE__BODY_TEXT) {
        take_text(c, message->text, now);
    } else if (message->body_case == HILL__MESSAGE__BODY_PREFILL_PROGRESS) {
        take_progress(c, message->prefill_progress, now);
    } else if (message->body_case == HILL__MESSAGE__BODY_SUMMARY) {
        take_summary(c, message->summary, now);
    } else if (message->body_case == HILL__MESSAGE__BODY_STATUS_REPLY) {
        proto_free(c->status);
        c->status = message;
        c->n_statuses++;
        c->status_owed = false;
        watch_victim(c, now);
        return;
    } else if (message->body_case == HILL__MESSAGE__BODY_REPLY && message->reply->code) {
        fprintf(stderr, "chaos: refused: %s\n", message->reply->text);
        exit(1);
    }
    proto_free(message);
}

/* Another coordinator owes nothing that its predecessor was asked for. */
static void look_at_connection(struct chaos *c)
{
    if (!asking_look(&c->asking))
        return;
    c->status_owed = false;
    if (c->signal_ns && c->victim == VICTIM_COORDINATOR && !c->detected_ns)
        c->detected_ns = clock_now_ns();
}

/* Take what comes until then. */
static void listen_until(struct chaos *c, int64_t deadline)
{
    for (;;) {
        struct hill_why why = {""};
        Hill__Message *message = NULL;
        int code = client_receive(&c->asking.client, deadline, &message, &why);
        look_at_connection(c);
        if (code == HILL_E_TIMEOUT)
            return;
        if (code)
            die("listening", &why);
        take(c, message);
    }
}

static void fresh_status(struct chaos *c)
{
    int64_t limit = clock_deadline_ms(CLIENT_ANSWER_MS);
    struct hill_why why = {"no answer to the status in 10 s"};
    uint32_t seen = c->n_statuses;
    while (c->n_statuses == seen && clock_now_ns() < limit) {
        if (!c->status_owed && !c->asking.away)
            ask_status(c);
        listen_until(c, clock_deadline_ms(1));
    }
    if (c->n_statuses == seen)
        die("status", &why);
}

static bool is_reading(const struct chaos *c)
{
    bool reading = false;
    for (uint32_t i = 0; i < c->asking.n; i++)
        reading |= c->asking.requests[i].n == 0 && !c->asking.requests[i].over;
    return reading;
}

static void shoot(struct chaos *c, struct sample *out)
{
    c->victim = (uint32_t)draw(c, VICTIMS);
    out->action = draw(c, 4) == 0 ? ACTION_STOP : ACTION_KILL;
    if (out->action == ACTION_STOP && c->victim == VICTIM_COORDINATOR && draw(c, 2))
        out->action = ACTION_HANG;
    out->worker = c->victim;
    const Hill__WorkerStatus *w;
    struct hill_why why = {"it is not there"};
    int64_t end = clock_deadline_ms(SETTLE_MS);
    do { /* on a busy machine it may just be replaced, for a heartbeat that came late */
        fresh_status(c);
        w = worker(c, c->victim);
        if ((!w || w->pid <= 0) && clock_now_ns() >= end)
            die("a worker", &why);
    } while (!w || w->pid <= 0);
    out->phase = c->n_over == c->asking.n ? PHASE_IDLE
                 : is_reading(c)          ? PHASE_PREFILL
                                          : PHASE_DECODE;
    c->pid = w->pid;
    c->signal_ns = clock_now_ns();
    if (c->victim == VICTIM_COORDINATOR && out->action == ACTION_STOP)
        c->continue_ns = c->signal_ns + CLOCK_MS(c->stopped_ms);
    kill(c->pid, out->action == ACTION_KILL ? SIGKILL : SIGSTOP);
}

/* ---- what must not grow --------------------------------------------------------------------- */

static uint32_t count_entries(const char *folder, const char *prefix)
{
    uint32_t n = 0;
    DIR *open = opendir(folder);
    for (const struct dirent *e; open && (e = readdir(open));)
        n += e->d_name[0] != '.' && strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    if (open)
        closedir(open);
    return n;
}

/* What each of the coordinator's descriptors is. */
static void say_descriptors(const struct chaos *c)
{
    char path[300], what[200];
    fprintf(stderr, "chaos: descriptors:");
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d",
                 (int)c->status->status_reply->coordinator->pid, fd);
        ssize_t n = readlink(path, what, sizeof what - 1);
        if (n > 0)
            fprintf(stderr, " %d %.*s,", fd, (int)n, what);
    }
    fprintf(stderr, "\n");
}

static struct held count_held(const struct chaos *c)
{
    char folder[64];
    const Hill__StatusReply *s = c->status->status_reply;
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)s->coordinator->pid);
    return (struct held){.descriptors = count_entries(folder, ""),
                         .files = count_entries(c->run_dir, ""),
                         .logs = count_entries(getenv("CHAOS_LOGS"), ""),
                         .segments = count_entries("/dev/shm", getenv("CHAOS_SEGMENTS"))};
}

static bool settled(const struct chaos *c)
{
    const Hill__StatusReply *s = c->status->status_reply;
    bool all = s->ready && s->requests_running + s->requests_waiting == 0;
    for (uint32_t w = 0; w < s->n_workers; w++)
        all &= is_ready(s->workers[w]);
    return all && (!c->signal_ns || c->ready_ns);
}

/* Ready, idle and with no more than before; what it holds. */
static struct held settle(struct chaos *c, const struct held *before)
{
    int64_t limit = clock_deadline_ms(SETTLE_MS);
    for (;;) {
        fresh_status(c);
        struct held now = count_held(c);
        bool same = settled(c) && (!before || !held_more(&now, before));
        if (same || clock_now_ns() >= limit)
            return now;
        listen_until(c, clock_deadline_ms(SETTLE_POLL_MS));
    }
}

/* ---- a round -------------------------------------------------------------------------------- */

static void begin_round(struct chaos *c)
{
    c->n_over = 0;
    c->signal_ns = c->detected_ns = c->started_ns = c->ready_ns = c->continue_ns = 0;
    c->began_ns = clock_now_ns();
    asking_begin(&c->asking);
}

/* A stopped coordinator goes on when it is time. */
static void let_go_on(struct chaos *c)
{
    if (!c->continue_ns || clock_now_ns() < c->continue_ns)
        return;
    kill(c->pid, SIGCONT);
    c->continue_ns = 0;
}

/* A turn of waiting: POLL_MS at most. */
static void follow(struct chaos *c)
{
    bool watches = c->signal_ns && !c->ready_ns;
    let_go_on(c);
    if (!c->status_owed && !c->asking.away && (watches || clock_now_ns() - c->asked_ns > ASK_NS))
        ask_status(c);
    listen_until(c, clock_deadline_ms(POLL_MS));
}

static void see_it_through(struct chaos *c)
{
    int64_t limit = clock_deadline_ms(ROUND_LIMIT_MS);
    while ((c->n_over < c->asking.n || (c->signal_ns && !c->ready_ns)) && clock_now_ns() < limit)
        follow(c);
}

/* Until the moment of this round's signal. */
static void wait_for_moment(struct chaos *c)
{
    int64_t limit = clock_deadline_ms(ROUND_LIMIT_MS);
    bool decodes = draw(c, 2);
    int64_t most = decodes ? c->whole_ns - c->prompts_ns : c->prompts_ns;
    int64_t after = (int64_t)draw(c, (uint64_t)most + 1);
    while (decodes && is_reading(c) && clock_now_ns() < limit)
        follow(c);
    listen_until(c, (decodes ? clock_now_ns() : c->began_ns) + after);
}

/* Between the signal and then; -1: not seen. */
static double since_signal_ms(const struct chaos *c, int64_t then)
{
    return then ? (double)(then - c->signal_ns) / 1e6 : -1;
}

static void judge_round(struct chaos *c, uint32_t round, struct sample *s)
{
    s->detected_ms = since_signal_ms(c, c->detected_ns);
    s->started_ms = since_signal_ms(c, c->started_ns);
    s->ready_ms = since_signal_ms(c, c->ready_ns);
    for (uint32_t i = 0; i < c->asking.n; i++) {
        const struct asked *a = &c->asking.requests[i];
        if (a->pause_ns)
            s->pauses_ms[s->n_pauses++] = (double)a->pause_ns / 1e6;
        c->n_failed += !a->over || a->failure[0];
        c->n_wrong += a->over && !a->failure[0] && a->differs;
        if (!a->over || a->failure[0] || a->differs)
            fprintf(stderr, "chaos: round %u (%s of %s): request %u %s\n", round,
                    action_name(s->action), worker_name(s->worker), i,
                    !a->over        ? "is not over"
                    : a->failure[0] ? a->failure
                                    : "answers otherwise than undisturbed");
    }
    tally_add(&c->tally, s);
}

static void run_round(struct chaos *c, uint32_t round, const struct held *before)
{
    struct sample s = {0};
    begin_round(c);
    wait_for_moment(c);
    shoot(c, &s);
    see_it_through(c);
    struct held after = settle(c, before);
    s.round_ms = (double)(clock_now_ns() - c->began_ns) / 1e6;
    judge_round(c, round, &s);
    if (!settled(c) || held_more(&after, before)) {
        c->n_leaks++;
        fprintf(stderr,
                "chaos: round %u: %s; %u descriptors, %u files, %u logs, %u segments "
                "(%u, %u, %u, %u)\n",
                round, settled(c) ? "something was left" : "it is not ready again",
                after.descriptors, after.files, after.logs, after.segments, before->descriptors,
                before->files, before->logs, before->segments);
        if (after.descriptors > before->descriptors)
            say_descriptors(c);
    }
}

/* ---- life ----------------------------------------------------------------------------------- */

static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *text = malloc(1 << 20);
    if (!file || !text) {
        fprintf(stderr, "chaos: cannot read %s: %s\n", path, strerror(errno));
        exit(100);
    }
    *bytes = fread(text, 1, 1 << 20, file);
    fclose(file);
    return text;
}

static void open_all(struct chaos *c, int n_prompts, char **prompts)
{
    struct hill_why why = {""};
    if (client_open(&c->asking.client, c->run_dir, &why))
        die("connecting", &why);
    for (int i = 0; i < n_prompts; i++) {
        struct asked *a = &c->asking.requests[i];
        a->prompt = read_file(prompts[i], &a->prompt_bytes);
        a->wanted = calloc(c->asking.predict, sizeof(uint32_t));
        a->got = calloc(c->asking.predict, sizeof(uint32_t));
        if (!a->wanted || !a->got)
            exit(1);
    }
    c->asking.n = (uint32_t)n_prompts;
}

/* Undisturbed twice: the first run builds what is built once, and both must agree. */
static void run_reference(struct chaos *c)
{
    struct hill_why why = {"an undisturbed request failed or answered otherwise than before"};
    for (int turn = 0; turn < 2; turn++) {
        c->reference = turn == 0;
        c->prompts_ns = turn ? c->prompts_ns : 0;
        begin_round(c);
        see_it_through(c);
        for (uint32_t i = 0; i < c->asking.n; i++) {
            const struct asked *a = &c->asking.requests[i];
            if (!a->over || a->failure[0] || a->differs)
                die("reference", &why);
        }
    }
    /* the moments are drawn from a run with everything warm */
    c->reference = true;
    c->prompts_ns = c->whole_ns = 0;
    begin_round(c);
    see_it_through(c);
    c->reference = false;
}

static void close_all(struct chaos *c)
{
    for (uint32_t i = 0; i < c->asking.n; i++) {
        free(c->asking.requests[i].prompt);
        free(c->asking.requests[i].wanted);
        free(c->asking.requests[i].got);
    }
    proto_free(c->status);
    client_close(&c->asking.client);
    tally_finish(&c->tally);
}

int main(int argc, char **argv)
{
    static struct chaos c;
    const char *stopped = getenv("CHAOS_STOPPED_MS");
    if (argc < 7 || argc - 6 > (int)REQUESTS_MAX || !getenv("CHAOS_SEGMENTS") ||
        !getenv("CHAOS_LOGS") || !stopped) {
        fprintf(stderr, "usage: chaos RUN-FOLDER ROUNDS SECONDS SEED PREDICT PROMPT-FILE...\n");
        return 100;
    }
    c.run_dir = argv[1];
    c.stopped_ms = strtol(stopped, NULL, 10);
    uint32_t rounds = (uint32_t)strtoul(argv[2], NULL, 10), done = 0;
    int64_t seconds = strtol(argv[3], NULL, 10);
    uint64_t seed = strtoull(argv[4], NULL, 10);
    c.random = seed * 0x9e3779b97f4a7c15ull + 1;
    c.asking.next_key = c.random;
    c.asking.predict = (uint32_t)strtoul(argv[5], NULL, 10);
    open_all(&c, argc - 6, argv + 6);
    run_reference(&c);
    struct held before = settle(&c, NULL);
    int64_t end = seconds ? clock_deadline_ms(seconds * 1000) : CLOCK_NEVER;
    while ((!rounds || done < rounds) && clock_now_ns() < end)
        run_round(&c, ++done, &before);
    printf("{\"seed\":%" PRIu64 ",\"rounds\":%u,\"requests\":%u,\"wrong\":%u,\"failed\":%u,"
           "\"leaks\":%u,\"without_stats\":%u,\"undisturbed_ms\":%.1f,",
           seed, done, done * c.asking.n, c.n_wrong, c.n_failed, c.n_leaks, c.tally.n_without_stats,
           (double)c.whole_ns / 1e6);
    tally_print_json(&c.tally, stdout);
    printf("}\n");
    bool bad = c.n_wrong || c.n_failed || c.n_leaks || !done;
    close_all(&c);
    return bad;
}
