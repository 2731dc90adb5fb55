/*
 * tests/net/slow_link.c - a link with delay and loss between this network namespace and another
 * one, for kernels without netem.
 *
 * usage: slow_link NAMESPACE DEVICE DELAY_MS LOSS_PERCENT SEED
 *
 * What: two TUN devices of that name, one here and one in NAMESPACE (of ip netns). A packet that
 * goes into one comes out of the other DELAY_MS later, in order, or, of 100 packets LOSS_PERCENT,
 * never. "ready" on stdout: they are there, and want addresses. Ends with its parent or by a
 * signal; the last line on stderr is how many packets came and how many were lost. Who calls it:
 * tests/long/remote_drive.sh. Failure: one line, exit 77 where this is not allowed, else 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"

#define PACKET_MAX 65536
#define QUEUED_MAX 4096u /* packets on their way in one direction; what is more is lost */

struct packet {
    int64_t due_ns;
    uint32_t bytes;
    uint8_t *data;
};

struct way {
    int from, to;
    struct packet queue[QUEUED_MAX];
    uint32_t head, n;
};

static volatile sig_atomic_t ended;
static struct way ways[2];
static uint64_t state, n_came, n_lost;

static void end(int signal)
{
    (void)signal;
    ended = 1;
}

static int refuse(const char *what)
{
    int code = errno == EPERM || errno == EACCES || errno == ENOENT || errno == ENODEV ? 77 : 1;
    fprintf(stderr, "slow_link: %s: %s\n", what, strerror(errno));
    return code;
}

/* In the namespace that this thread is in. */
static int open_tun(const char *device)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    strncpy(request.ifr_name, device, IFNAMSIZ - 1);
    if (fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static uint32_t next_random(uint32_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % below;
}

/* What has come in is on its way, or lost. */
static void take(struct way *w, int64_t delay_ns, uint32_t loss_percent)
{
    static uint8_t buffer[PACKET_MAX];
    ssize_t n;
    while ((n = read(w->from, buffer, sizeof buffer)) > 0) {
        struct packet *p = &w->queue[(w->head + w->n) % QUEUED_MAX];
        n_came++;
        if (next_random(100) < loss_percent || w->n == QUEUED_MAX ||
            !(p->data = malloc((size_t)n))) {
            n_lost++;
            continue;
        }
        memcpy(p->data, buffer, (size_t)n);
        p->bytes = (uint32_t)n;
        p->due_ns = clock_now_ns() + delay_ns;
        w->n++;
    }
}

/* What has arrived comes out; when the next one does. */
static int64_t give(struct way *w)
{
    while (w->n && w->queue[w->head].due_ns <= clock_now_ns()) {
        struct packet *p = &w->queue[w->head];
        n_lost += write(w->to, p->data, p->bytes) != (ssize_t)p->bytes; /* the device is down */
        free(p->data);
        w->head = (w->head + 1) % QUEUED_MAX;
        w->n--;
    }
    return w->n ? w->queue[w->head].due_ns : clock_now_ns() + CLOCK_MS(1000);
}

static void run(int64_t delay_ns, uint32_t loss_percent)
{
    struct pollfd polled[2] = {{ways[0].from, POLLIN, 0}, {ways[1].from, POLLIN, 0}};
    while (!ended) {
        int64_t next = give(&ways[0]), other = give(&ways[1]);
        int64_t wait_ns = (next < other ? next : other) - clock_now_ns();
        struct timespec wait = {wait_ns > 0 ? wait_ns / 1000000000 : 0,
                                wait_ns > 0 ? wait_ns % 1000000000 : 0};
        if (ppoll(polled, 2, &wait, NULL) < 0 && errno != EINTR)
            return;
        take(&ways[0], delay_ns, loss_percent);
        take(&ways[1], delay_ns, loss_percent);
    }
}

int main(int argc, char **argv)
{
    char path[128];
    if (argc != 6)
        return fprintf(stderr, "usage: slow_link NAMESPACE DEVICE DELAY_MS LOSS_PERCENT SEED\n"), 1;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGTERM, end);
    signal(SIGINT, end);
    snprintf(path, sizeof path, "/var/run/netns/%s", argv[1]);
    int here = open_tun(argv[2]), namespace = open(path, O_RDONLY | O_CLOEXEC);
    if (here < 0 || namespace < 0 || setns(namespace, CLONE_NEWNET))
        return refuse(here < 0 ? "a TUN device" : path);
    int there = open_tun(argv[2]);
    if (there < 0)
        return refuse("a TUN device in the namespace");
    ways[0].from = ways[1].to = here;
    ways[1].from = ways[0].to = there;
    state = strtoull(argv[5], NULL, 10);
    puts("ready");
    fflush(stdout);
    run(CLOCK_MS(atoi(argv[3])), (uint32_t)atoi(argv[4]));
    fprintf(stderr, "slow_link: %llu packets, %llu of them lost\n", (unsigned long long)n_came,
            (unsigned long long)n_lost);
    return 0;
}
