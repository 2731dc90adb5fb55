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
#include "coordinator/service.h"

struct pipeline {
    struct router router;
    struct supervisor supervisor;
    struct service service;
    int signal_fd, ready_fd;
};

int pipeline_open(struct pipeline **out, struct settings *settings, struct run_folder *folder,
                  int signal_fd, int ready_fd, struct hill_why *why)
{
    struct pipeline *p = calloc(1, sizeof *p);
    struct supervisor_hooks hooks;
    *out = p;
    if (!p)
        return hill_fail(why, HILL_E_NOMEM, "out of memory");
    p->signal_fd = signal_fd;
    p->ready_fd = ready_fd;
    int code = router_open(&p->router, folder->path, &p->supervisor.workers, why);
    if (!code) {
        service_open(&p->service, settings, &p->router, &p->supervisor, &hooks);
        code = supervisor_open(&p->supervisor, settings, folder, &p->router, &hooks, why);
    }
    if (!code)
        requests_take_over(&p->service);
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
    if (p->ready_fd >= 0)
        close(p->ready_fd);
    free(p);
}

static void take_signals(struct pipeline *p)
{
    struct signalfd_siginfo info;
    while (read(p->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        bool interrupted = info.ssi_signo == SIGINT;
        if (info.ssi_signo == SIGCHLD) {
            supervisor_child_ended(&p->supervisor);
        } else if (p->supervisor.ending) {
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

static void tick(struct pipeline *p)
{
    int64_t now = clock_now_ns();
    supervisor_tick(&p->supervisor, now);
    if (service_tick(&p->service, now)) {
        if (!p->supervisor.announced)
            announce(p);
        supervisor_settled(&p->supervisor);
        requests_start(&p->service, now);
    }
}

static long wait_ms(const struct pipeline *p)
{
    int64_t now = clock_now_ns();
    int64_t next = supervisor_next_ns(&p->supervisor), other = service_next_ns(&p->service);
    next = other < next ? other : next;
    if (next == CLOCK_NEVER)
        return -1;
    return next <= now ? 0 : (long)((next - now + 999999) / 1000000);
}

int pipeline_run(struct pipeline *p, struct hill_why *why)
{
    struct supervisor *s = &p->supervisor;
    while (!s->ending || worker_table_any_running(&s->workers)) {
        tick(p);
        if (s->ending && !worker_table_any_running(&s->workers))
            break;
        zmq_pollitem_t items[] = {{p->router.worker_socket, 0, ZMQ_POLLIN, 0},
                                  {p->router.heartbeat_socket, 0, ZMQ_POLLIN, 0},
                                  {p->router.control_socket, 0, ZMQ_POLLIN, 0},
                                  {NULL, p->signal_fd, ZMQ_POLLIN, 0}};
        if (zmq_poll(items, 4, wait_ms(p)) < 0 && errno != EINTR)
            return hill_fail(why, HILL_E_IO, "waiting for messages failed: %s",
                             zmq_strerror(errno));
        router_turn(&p->router);
        take_signals(p);
    }
    *why = s->end_why;
    return s->end_code;
}
