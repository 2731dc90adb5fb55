/* coordinator/pipeline.c - sockets, the loop, timers and the end; see pipeline.h. */
#include "coordinator/pipeline_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <zmq.h>

#include "base/clock.h"

#define REAP_DELAY_MS 100  /* lets a dying worker's last words arrive before its end is acted on */
#define LINGER_MS     1000 /* lets the last summaries leave */

/* ---- sockets ----------------------------------------------------------------------------- */

static void *bind_socket(struct pipeline *p, const char *name, int linger_ms, struct hill_why *why)
{
    char address[HILL_PATH_BYTES + 32];
    int one = 1, unlimited = 0;
    int64_t largest = PROTO_MESSAGE_MAX + 4096;
    snprintf(address, sizeof address, "ipc://%s/%s", p->folder->path, name);
    void *socket = zmq_socket(p->context, ZMQ_ROUTER);
    if (!socket) {
        hill_fail(why, HILL_E_NOMEM, "cannot open a ZeroMQ socket: %s", zmq_strerror(errno));
        return NULL;
    }
    /* mandatory: sending to a peer that is gone is an error, not silence; no high-water mark: a
     * slow reader's backlog is bounded by the tokens of its request */
    zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest);
    if (zmq_bind(socket, address)) {
        hill_fail(why, HILL_E_IO, "cannot bind %.200s: %s", address, zmq_strerror(errno));
        zmq_close(socket);
        return NULL;
    }
    return socket;
}

int pipeline_open(struct pipeline **out, struct settings *settings, struct run_folder *folder,
                  int signal_fd, int ready_fd, struct hill_why *why)
{
    struct pipeline *p = calloc(1, sizeof *p);
    *out = p;
    if (!p)
        return hill_fail(why, HILL_E_NOMEM, "out of memory");
    p->settings = settings;
    p->folder = folder;
    p->signal_fd = signal_fd;
    p->ready_fd = ready_fd;
    p->started_ns = clock_now_ns();
    p->reap_at_ns = CLOCK_NEVER;
    request_book_init(&p->book, settings->epoch.plan.n_sequences);
    worker_table_init(&p->workers, settings->epoch.csd_attached);
    p->context = zmq_ctx_new();
    if (p->context && (p->worker_socket = bind_socket(p, "worker.sock", 0, why)) &&
        (p->heartbeat_socket = bind_socket(p, "heartbeat.sock", 0, why)) &&
        (p->control_socket = bind_socket(p, "control.sock", LINGER_MS, why))) {
        epoch_begin(p, "the first one");
        *why = p->end_why;
        if (!p->ending)
            return 0;
    }
    int code = p->ending ? p->end_code : HILL_E_IO;
    pipeline_close(p);
    *out = NULL;
    return code;
}

void pipeline_close(struct pipeline *p)
{
    if (!p)
        return;
    epoch_remove_segments(p);
    request_book_finish(&p->book);
    proto_free(p->live);
    if (p->control_socket)
        zmq_close(p->control_socket);
    if (p->heartbeat_socket)
        zmq_close(p->heartbeat_socket);
    if (p->worker_socket)
        zmq_close(p->worker_socket);
    if (p->context)
        zmq_ctx_term(p->context);
    if (p->ready_fd >= 0)
        close(p->ready_fd);
    free(p);
}

/* ---- the end ----------------------------------------------------------------------------- */

void pipeline_end(struct pipeline *p, int code, const char *text)
{
    if (p->ending)
        return;
    p->ending = true;
    p->end_code = code;
    snprintf(p->end_why.text, sizeof p->end_why.text, "%s", text);
    bool asked_for = !code || code == HILL_E_CANCELLED;
    if (asked_for && p->announced)
        log_info("ending: %s", text);
    requests_end_all(
        p, asked_for ? HILL__FINISH_REASON__FINISH_CANCEL : HILL__FINISH_REASON__FINISH_ERROR,
        asked_for ? 0 : code, asked_for ? "the pipeline is ending" : text);
    change_finish(p, HILL_E_PEER_GONE, "the pipeline is ending");
    profile_interrupt(p);
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        worker_table_want(&p->workers, w, false, clock_now_ns());
}

static void kill_workers(struct pipeline *p)
{
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (worker_running(&p->workers.rows[w]))
            kill(p->workers.rows[w].pid, SIGKILL);
}

static void take_signals(struct pipeline *p)
{
    struct signalfd_siginfo info;
    while (read(p->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) {
            if (p->reap_at_ns == CLOCK_NEVER)
                p->reap_at_ns = clock_now_ns() + (p->ending ? 0 : CLOCK_MS(REAP_DELAY_MS));
        } else if (p->ending) {
            log_warn("asked to end for the second time: killing the workers");
            kill_workers(p);
        } else {
            pipeline_end(p, info.ssi_signo == SIGINT ? HILL_E_CANCELLED : 0,
                         info.ssi_signo == SIGINT ? "interrupted" : "asked to by a signal");
        }
    }
}

/* ---- what time brings -------------------------------------------------------------------- */

static void do_action(struct pipeline *p, enum worker w, enum worker_action action)
{
    struct worker_row *row = &p->workers.rows[w];
    if (action == WORKER_DO_START && !p->epoch_delayed && !p->ending) {
        worker_start(p, w);
    } else if (action == WORKER_DO_TERMINATE) {
        log_warn("%s (pid %d) %s: SIGTERM, SIGKILL in 5 s", row->name, (int)row->pid,
                 row->state == WORKER_STARTED ? "has not said Hello within 10 s"
                                              : "has missed its heartbeats for 3 s");
        worker_terminate(p, w, "because it hangs");
    } else if (action == WORKER_DO_KILL) {
        log_warn("%s (pid %d) does not end: SIGKILL", row->name, (int)row->pid);
        kill(row->pid, SIGKILL);
        worker_table_killed(&p->workers, w);
    }
}

static void announce(struct pipeline *p)
{
    p->announced = true;
    log_info("ready: epoch %u, %s", p->epoch,
             p->settings->epoch.csd_attached ? p->settings->csd_url : "no CSD");
    if (p->ready_fd < 0)
        return;
    if (write(p->ready_fd, "ready\n", 6) != 6)
        log_warn("telling that the pipeline is ready failed: %s; going on", strerror(errno));
    close(p->ready_fd);
    p->ready_fd = -1;
}

static void tick(struct pipeline *p)
{
    int64_t now = clock_now_ns();
    if (now >= p->reap_at_ns)
        workers_reap(p);
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        do_action(p, w, worker_table_due(&p->workers, w, now));
    requests_tick(p, now);
    if (p->ending) {
        enum worker w = worker_table_stop_next(&p->workers);
        if (w != WORKER_COUNT)
            worker_terminate(p, w, "in order");
    } else if (p->epoch_exists && worker_table_ready(&p->workers) && profile_tick(p, now)) {
        if (!p->announced)
            announce(p);
        if (p->change == CHANGE_UNDO)
            change_finish(p, p->change_code, p->change_text);
        else
            change_finish(p, 0, p->change == CHANGE_ATTACH ? "attached" : "detached");
        requests_start(p, now);
    }
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static long wait_ms(const struct pipeline *p)
{
    int64_t now = clock_now_ns();
    int64_t next =
        earlier(p->reap_at_ns, earlier(worker_table_next_ns(&p->workers), requests_next_ns(p)));
    next = earlier(next, profile_next_ns(p));
    if (next == CLOCK_NEVER)
        return -1;
    return next <= now ? 0 : (long)((next - now + 999999) / 1000000);
}

int pipeline_run(struct pipeline *p, struct hill_why *why)
{
    while (!p->ending || worker_table_any_running(&p->workers)) {
        tick(p);
        if (p->ending && !worker_table_any_running(&p->workers))
            break;
        zmq_pollitem_t items[] = {{p->worker_socket, 0, ZMQ_POLLIN, 0},
                                  {p->heartbeat_socket, 0, ZMQ_POLLIN, 0},
                                  {p->control_socket, 0, ZMQ_POLLIN, 0},
                                  {NULL, p->signal_fd, ZMQ_POLLIN, 0}};
        if (zmq_poll(items, 4, wait_ms(p)) < 0 && errno != EINTR)
            return hill_fail(why, HILL_E_IO, "waiting for messages failed: %s",
                             zmq_strerror(errno));
        /* heartbeats first: whoever is checked for silence has been heard out */
        serve_heartbeats(p);
        serve_workers(p);
        serve_clients(p);
        take_signals(p);
    }
    *why = p->end_why;
    return p->end_code;
}
