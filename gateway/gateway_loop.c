/* gateway/gateway_loop.c - see gateway_loop.h. */
#include "gateway/gateway_loop.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <zmq.h>

#include "base/clock.h"
#include "base/grow.h"
#include "base/log.h"
#include "gateway/http_server.h"

#define FIXED 6u /* descriptors beside the jobs' lines */

struct loop {
    struct gateway gateway;
    struct http_server *http;
    int signal_fd;
    zmq_pollitem_t *items;
    size_t room;
};

static void add(struct loop *l, size_t *n, void *socket, int fd)
{
    l->items[(*n)++] = (zmq_pollitem_t){.socket = socket, .fd = fd, .events = ZMQ_POLLIN};
}

/* What is waited for. HILL_E_NOMEM. */
static int collect(struct loop *l, size_t *n)
{
    size_t wanted = FIXED;
    int http[2];
    for (const struct job *job = l->gateway.jobs; job; job = job->next)
        wanted++;
    if (!GROW(l->items, l->room, wanted))
        return HILL_E_NOMEM;
    *n = 0;
    http_server_descriptors(l->http, http);
    add(l, n, NULL, l->signal_fd);
    add(l, n, NULL, l->gateway.render_fd);
    add(l, n, NULL, http[0]);
    add(l, n, NULL, http[1]);
    if (l->gateway.upstream.open) {
        add(l, n, l->gateway.upstream.client.socket, 0);
        add(l, n, l->gateway.upstream.client.monitor, 0);
    }
    for (const struct job *job = l->gateway.jobs; job; job = job->next)
        if (job->line)
            add(l, n, job->line, 0);
    return 0;
}

static long until_next_ms(const struct loop *l)
{
    int64_t now = clock_now_ns(), next = http_server_next_ns(l->http, now),
            upstream = upstream_next_ns(&l->gateway.upstream);
    next = upstream < next ? upstream : next;
    for (const struct job *job = l->gateway.jobs; job; job = job->next) {
        int64_t own = job_next_ns(job);
        next = job->changed && !job->orphan ? now : own < next ? own : next;
    }
    if (next == CLOCK_NEVER)
        return -1;
    return next <= now ? 0 : (long)((next - now) / 1000000 + 1);
}

/* Jobs whose client is gone or has its answer, and that are over at the coordinator. */
static void sweep(struct gateway *g)
{
    for (struct job *job = g->jobs, *next; job; job = next) {
        next = job->next;
        bool idle = job->state == JOB_OVER && (!job->render || render_is_done(job->render));
        if (job->orphan && idle)
            job_destroy(job);
    }
}

static bool interrupted(const struct loop *l)
{
    struct signalfd_siginfo info;
    return read(l->signal_fd, &info, sizeof info) == (ssize_t)sizeof info;
}

static void turn(struct loop *l)
{
    uint64_t rendered;
    if (read(l->gateway.render_fd, &rendered, sizeof rendered) < 0)
        rendered = 0; /* nothing was */
    upstream_tick(&l->gateway.upstream, l->gateway.generating > 0, clock_now_ns());
    for (struct job *job = l->gateway.jobs; job; job = job->next) {
        job_receive(job);
        job_tick(job, clock_now_ns());
    }
    http_server_turn(l->http);
    sweep(&l->gateway);
}

static int run(struct loop *l, struct hill_why *why)
{
    for (;;) {
        size_t n;
        if (collect(l, &n))
            return hill_fail(why, HILL_E_NOMEM, "out of memory for the connections");
        zmq_poll(l->items, (int)n, until_next_ms(l));
        if (interrupted(l))
            return 0;
        turn(l);
        if (l->gateway.upstream.ended) {
            log_info("the pipeline in %s has ended", l->gateway.upstream.run_dir);
            return 0;
        }
    }
}

int gateway_serve(const struct gateway_settings *settings, const char *run_dir, int listen_fd,
                  int signal_fd, struct hill_why *why)
{
    struct loop loop = {.signal_fd = signal_fd, .gateway = {.settings = settings, .render_fd = -1}};
    upstream_init(&loop.gateway.upstream, run_dir, &settings->template);
    loop.gateway.render_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int code = loop.gateway.render_fd < 0
                   ? hill_fail(why, HILL_E_NOMEM, "no descriptor for the gateway's loop")
                   : http_server_open(&loop.http, &loop.gateway, listen_fd, why);
    if (code == 0)
        code = run(&loop, why);
    else
        close(listen_fd);
    http_server_close(loop.http);
    while (loop.gateway.jobs)
        job_destroy(loop.gateway.jobs);
    upstream_close(&loop.gateway.upstream);
    if (loop.gateway.render_fd >= 0)
        close(loop.gateway.render_fd);
    free(loop.items);
    return code;
}
