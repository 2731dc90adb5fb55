/* coordinator/pipeline.c - the loop; see pipeline.h. */
#include "coordinator/pipeline.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <zmq.h>

#include "base/clock.h"
#include "coordinator/notify.h"
#include "coordinator/service.h"

#define AWAY_NS      CLOCK_MS(250) /* a loop that is late by less is not away */
#define IDS_AN_EPOCH UINT64_C(1000000)

struct pipeline {
    struct router router;
    struct supervisor supervisor;
    struct service service;
    struct notify notify;
    enum phase { PHASE_STARTING, PHASE_READY, PHASE_RECOVERING, PHASE_ENDING } phase;
    int signal_fd, ready_fd;
};

int pipeline_open(struct pipeline **out, struct settings *settings, struct run_folder *folder,
                  int signal_fd, int ready_fd, int alive_fd, struct hill_why *why)
{
    struct pipeline *p = calloc(1, sizeof *p);
    struct supervisor_hooks hooks;
    *out = p;
    if (!p)
        return hill_fail(why, HILL_E_NOMEM, "out of memory");
    p->signal_fd = signal_fd;
    p->ready_fd = ready_fd;
    notify_open(&p->notify, clock_now_ns());
    notify_alive(&p->notify, alive_fd, clock_now_ns());
    notify_send(&p->notify, "STATUS=starting the workers");
    int code = router_open(&p->router, folder->path, &p->supervisor.workers, why);
    if (!code) {
        service_open(&p->service, settings, &p->router, &p->supervisor, &hooks);
        supervisor_open(&p->supervisor, settings, folder, &p->router, &hooks);
        requests_take_over(&p->service);
        if (p->service.book.parked || coordinator_restarts())
            supervisor_expect_ready(&p->supervisor, p->service.book.parked != NULL);
        code = supervisor_begin(&p->supervisor, why);
        if (!supervisor_kept_tiers(&p->supervisor)) /* before any client asks: nothing is there */
            request_book_stay_away(&p->service.book, false);
        else /* an id names what is kept: a new request has none that the last coordinator gave */
            request_book_skip_id(&p->service.book, p->supervisor.epoch * IDS_AN_EPOCH);
    }
    if (code) {
        pipeline_close(p);
        *out = NULL;
    }
    return code;
}

void pipeline_close(struct pipeline *p)
{
    if (!p)
        return;
    supervisor_close(&p->supervisor);
    service_close(&p->service);
    router_close(&p->router);
    notify_close(&p->notify);
    if (p->ready_fd >= 0)
        close(p->ready_fd);
    free(p);
}

static void take_signals(struct pipeline *p)
{
    struct signalfd_siginfo info;
    while (read(p->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        bool interrupted = info.ssi_signo == SIGINT;
        if (p->supervisor.ending) {
            log_warn("asked to end for the second time: killing the workers");
            supervisor_kill_all(&p->supervisor);
        } else {
            supervisor_end(&p->supervisor, interrupted ? HILL_E_CANCELLED : 0,
                           interrupted ? "interrupted" : "asked to by a signal");
        }
    }
}

static void announce(struct pipeline *p)
{
    const struct epoch_settings *epoch = &p->supervisor.settings->epoch;
    p->supervisor.announced = true;
    log_info("ready: epoch %u, %s", p->supervisor.epoch,
             epoch->csd_attached ? epoch->csd_url : "no CSD");
    if (p->ready_fd < 0)
        return;
    if (write(p->ready_fd, "ready\n", 6) != 6)
        log_warn("telling that the pipeline is ready failed: %s; going on", strerror(errno));
    close(p->ready_fd);
    p->ready_fd = -1;
}

/* The service manager hears of a change. */
static void tell_phase(struct pipeline *p)
{
    const struct supervisor *s = &p->supervisor;
    bool ready = supervisor_ready(s);
    enum phase now = s->ending                    ? PHASE_ENDING
                     : ready                      ? PHASE_READY
                     : p->phase == PHASE_STARTING ? PHASE_STARTING
                                                  : PHASE_RECOVERING;
    char text[sizeof s->end_why.text + 64];
    if (now == p->phase)
        return;
    if (now == PHASE_ENDING)
        snprintf(text, sizeof text, "STOPPING=1\nSTATUS=ending: %s", s->end_why.text);
    else if (now == PHASE_READY)
        snprintf(text, sizeof text, "%sSTATUS=ready: epoch %u",
                 p->phase == PHASE_STARTING ? "READY=1\n" : "", s->epoch);
    else
        snprintf(text, sizeof text, "STATUS=waiting for the workers of epoch %u", s->epoch);
    notify_send(&p->notify, text);
    p->phase = now;
}

static void tick(struct pipeline *p)
{
    int64_t now = clock_now_ns();
    notify_tick(&p->notify, now);
    supervisor_tick(&p->supervisor, now);
    if (service_tick(&p->service, now)) {
        if (!p->supervisor.announced)
            announce(p);
        supervisor_settled(&p->supervisor);
        if (supervisor_ready(&p->supervisor)) /* a change of the drive may have begun an epoch */
            requests_start(&p->service, now);
    }
    tell_phase(p);
}

static int64_t next_ns(const struct pipeline *p)
{
    int64_t next = supervisor_next_ns(&p->supervisor), other = service_next_ns(&p->service);
    next = other < next ? other : next;
    int64_t notify = notify_next_ns(&p->notify);
    return notify < next ? notify : next;
}

static long wait_ms(int64_t until_ns)
{
    int64_t now = clock_now_ns();
    if (until_ns == CLOCK_NEVER)
        return -1;
    return until_ns <= now ? 0 : (long)((until_ns - now + 999999) / 1000000);
}

/* Until something has come, or is due. */
static int await(struct pipeline *p, int64_t until_ns, struct hill_why *why)
{
    zmq_pollitem_t items[4 + WORKER_COUNT] = {{p->router.worker_socket, 0, ZMQ_POLLIN, 0},
                                              {p->router.heartbeat_socket, 0, ZMQ_POLLIN, 0},
                                              {p->router.control_socket, 0, ZMQ_POLLIN, 0},
                                              {NULL, p->signal_fd, ZMQ_POLLIN, 0}};
    enum worker who[WORKER_COUNT];
    int n = 0;
    for (enum worker w = 0; w < WORKER_COUNT; w++) {
        int fd = supervisor_watch_fd(&p->supervisor, w);
        if (fd < 0)
            continue;
        items[4 + n] = (zmq_pollitem_t){NULL, fd, ZMQ_POLLIN, 0};
        who[n++] = w;
    }
    if (zmq_poll(items, 4 + n, wait_ms(until_ns)) < 0 && errno != EINTR)
        return hill_fail(why, HILL_E_IO, "waiting for messages failed: %s", zmq_strerror(errno));
    for (int i = 0; i < n; i++)
        if (items[4 + i].revents)
            supervisor_child_ended(&p->supervisor, who[i]);
    return 0;
}

/* What came while nobody looked has not been heard yet: no worker was silent for that. */
static int64_t forgive(struct pipeline *p, int64_t expected_ns)
{
    int64_t now = clock_now_ns();
    if (now > expected_ns && now - expected_ns > AWAY_NS)
        supervisor_away(&p->supervisor, now);
    return now;
}

int pipeline_run(struct pipeline *p, struct hill_why *why)
{
    struct supervisor *s = &p->supervisor;
    int64_t woken = clock_now_ns();
    while (!s->ending || worker_table_any_running(&s->workers)) {
        int64_t began = forgive(p, woken); /* what the messages asked for took long */
        tick(p);
        if (s->ending && !worker_table_any_running(&s->workers))
            break;
        int64_t due = next_ns(p);
        int code = await(p, due, why);
        if (code)
            return code;
        woken =
            forgive(p, due > began ? due : began); /* the tick did, or the process stood still */
        router_turn(&p->router);
        take_signals(p);
    }
    *why = s->end_why;
    return s->end_code;
}
