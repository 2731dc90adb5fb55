/*
 * tools/bench/bench_ring.c - figure "ring": shared-memory rings beside ZeroMQ ipc, between two
 * processes.
 *
 * What: streams of records of one size from this process to a child (the sender copies each record
 * in, the receiver reads every byte), and round trips of 64-byte records, with both ends spinning,
 * asleep, or waiting as the workers do; bare futexes show what the machine itself takes. Each
 * method gets a fresh child a round, in turn. A stream's time is from the first record to the
 * receiver's answer to the last. ZeroMQ: PAIR sockets over ipc, the same records, the same reading,
 * no high-water mark changed. Concurrency: two processes pinned to two CPUs (both to one where
 * there is only one). Failure: status 1 when the child fails or a stream's sum is wrong; nothing is
 * left behind (anonymous shared memory, an abstract socket name).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <zmq.h>

#include "base/clock.h"
#include "base/relax.h"
#include "base/error.h"
#include "tools/bench/harness.h"
#include "shm/ring.h"

#define RING_BYTES   (1u << 20)
#define RECORD_TYPE  1u
#define BATCH        32u
#define TRIP_BYTES   64u
#define PATIENCE_MS  30000
#define PAUSE_NS     100000
#define WORKER_NS    20000 /* what csd_agent/agent.c spins; gpu_worker/dataplane.c ten times that */
#define MAX_TRIPS    20000u
#define RECORD_BYTES 65536u

/* worker: spin for a moment, then sleep, as the processes of a pipeline do */
enum wait_kind { WAIT_SPIN, WAIT_SLEEP, WAIT_WORKER };

/* Shared by the two processes. */
struct shared {
    struct shm_doorbell parent_bell, child_bell;
    _Alignas(64) _Atomic uint32_t parent_word; /* bare futexes */
    _Alignas(64) _Atomic uint32_t child_word;
    _Alignas(64) uint8_t to_child[SHM_RING_HEADER_BYTES + RING_BYTES];
    _Alignas(64) uint8_t to_parent[SHM_RING_HEADER_BYTES + RING_BYTES];
};

/* A way to move records: ring or ZeroMQ. One end of it; private memory of a process. */
struct link {
    struct shm_ring_end out, in;
    void *context, *socket;                 /* ZeroMQ */
    _Atomic uint32_t *own_word, *peer_word; /* bare futexes */
    uint32_t seen;
    bool zmq, futex;
    enum wait_kind wait;
    uint32_t batch; /* ring: records shown and released together */
};

static struct shared *shared;
static char endpoint[64];
static uint8_t source[RECORD_BYTES];

/* ---- links ---------------------------------------------------------------------------------- */

static void link_open(struct link *link, bool parent)
{
    if (link->zmq) {
        link->context = zmq_ctx_new();
        link->socket = zmq_socket(link->context, ZMQ_PAIR);
        int linger = 0, patience = PATIENCE_MS; /* a dead child must not be waited for for ever */
        zmq_setsockopt(link->socket, ZMQ_LINGER, &linger, sizeof(linger));
        zmq_setsockopt(link->socket, ZMQ_RCVTIMEO, &patience, sizeof(patience));
        zmq_setsockopt(link->socket, ZMQ_SNDTIMEO, &patience, sizeof(patience));
        if ((parent ? zmq_bind(link->socket, endpoint) : zmq_connect(link->socket, endpoint)) != 0)
            bench_fail("ZeroMQ %s: %s", endpoint, zmq_strerror(errno));
        return;
    }
    link->own_word = parent ? &shared->parent_word : &shared->child_word;
    link->peer_word = parent ? &shared->child_word : &shared->parent_word;
    struct shm_doorbell *own = parent ? &shared->parent_bell : &shared->child_bell;
    struct shm_doorbell *peer = parent ? &shared->child_bell : &shared->parent_bell;
    void *out = parent ? shared->to_child : shared->to_parent;
    void *in = parent ? shared->to_parent : shared->to_child;
    uint64_t room = shm_ring_bytes(RING_BYTES);
    if (shm_ring_open(&link->out, out, room, true, own, peer) != 0 ||
        shm_ring_open(&link->in, in, room, false, own, peer) != 0)
        bench_fail("opening the rings failed");
}

static void link_close(struct link *link)
{
    if (link->zmq) {
        zmq_close(link->socket);
        zmq_ctx_term(link->context);
        return;
    }
    shm_ring_close(&link->out);
    shm_ring_close(&link->in);
}

/* Until the ring end can go on: spinning never sleeps, sleeping never spins, workers do both. */
static void ring_wait(struct link *link, struct shm_ring_end *end, uint32_t bytes)
{
    if (link->batch > 0) { /* streams wait as the workers do */
        if (shm_ring_wait(end, bytes, clock_deadline_ms(PATIENCE_MS)) != 0)
            bench_fail("the other process is gone");
        return;
    }
    if (link->wait == WAIT_SPIN) {
        cpu_relax();
        return;
    }
    uint32_t type, size, seen = shm_doorbell_read(end->own);
    const void *payload;
    if (shm_ring_peek(end, &type, &payload, &size) == HILL_E_WOULD_BLOCK &&
        shm_doorbell_wait(end->own, seen, clock_deadline_ms(PATIENCE_MS),
                          link->wait == WAIT_WORKER ? WORKER_NS : 0) != 0)
        bench_fail("the other process is gone");
}

static void ring_send(struct link *link, const void *record, uint32_t bytes, bool last)
{
    static uint32_t staged;
    void *payload;
    int rc;
    while ((rc = shm_ring_reserve(&link->out, bytes, &payload)) == HILL_E_WOULD_BLOCK)
        ring_wait(link, &link->out, bytes);
    if (rc != 0)
        bench_fail("sending failed: %s", hill_strerror(rc));
    memcpy(payload, record, bytes);
    if (link->batch <= 1 || last || ++staged % link->batch == 0)
        shm_ring_publish(&link->out, RECORD_TYPE, bytes);
    else
        shm_ring_stage(&link->out, RECORD_TYPE, bytes);
}

/* What the kernel asks for two wake-ups, with nothing moved: no order weaker than seq_cst is worth
 * a thought here. */
static void futex_send(struct link *link)
{
    atomic_fetch_add_explicit(link->peer_word, 1, memory_order_seq_cst);
    syscall(SYS_futex, link->peer_word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void futex_receive(struct link *link)
{
    while (atomic_load_explicit(link->own_word, memory_order_seq_cst) == link->seen)
        syscall(SYS_futex, link->own_word, FUTEX_WAIT, link->seen, NULL, NULL, 0);
    link->seen++;
}

static void link_send(struct link *link, const void *record, uint32_t bytes, bool last)
{
    if (link->futex) {
        futex_send(link);
        return;
    }
    if (!link->zmq) {
        ring_send(link, record, bytes, last);
        return;
    }
    int flags = link->wait == WAIT_SPIN ? ZMQ_DONTWAIT : 0;
    while (zmq_send(link->socket, record, bytes, flags) < 0)
        if (errno != EINTR && (errno != EAGAIN || flags == 0))
            bench_fail("ZeroMQ send: %s", zmq_strerror(errno));
}

/* Every 8 bytes of a record, four sums so that reading is not bound by one addition's latency. */
static uint64_t read_record(const void *record, uint32_t bytes)
{
    uint64_t sum[4] = {0}, words[4];
    for (uint32_t i = 0; i + 32 <= bytes; i += 32) {
        memcpy(words, (const uint8_t *)record + i, 32);
        for (int j = 0; j < 4; j++)
            sum[j] += words[j];
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}

static uint64_t ring_receive(struct link *link)
{
    static uint32_t skipped;
    uint32_t type, bytes;
    const void *payload;
    int rc;
    while ((rc = shm_ring_peek(&link->in, &type, &payload, &bytes)) == HILL_E_WOULD_BLOCK)
        ring_wait(link, &link->in, 0);
    if (rc != 0)
        bench_fail("receiving failed: %s", hill_strerror(rc));
    uint64_t sum = read_record(payload, bytes);
    if (link->batch <= 1 || ++skipped % link->batch == 0)
        shm_ring_release(&link->in);
    else
        shm_ring_skip(&link->in);
    return sum;
}

static uint64_t link_receive(struct link *link)
{
    if (link->futex) {
        futex_receive(link);
        return 1;
    }
    if (!link->zmq)
        return ring_receive(link);
    zmq_msg_t message;
    zmq_msg_init(&message);
    int flags = link->wait == WAIT_SPIN ? ZMQ_DONTWAIT : 0;
    while (zmq_msg_recv(&message, link->socket, flags) < 0)
        if (errno != EINTR && (errno != EAGAIN || flags == 0))
            bench_fail("ZeroMQ receive: %s", zmq_strerror(errno));
    uint64_t sum = read_record(zmq_msg_data(&message), (uint32_t)zmq_msg_size(&message));
    zmq_msg_close(&message);
    return sum;
}

/* ---- the child ------------------------------------------------------------------------------ */

struct task {
    struct link link;
    uint32_t record_bytes;
    uint64_t records; /* a stream's; 0: round trips */
    uint32_t trips;
    int64_t pause_ns; /* before each trip, so that the child is asleep */
    bool unpinned;    /* the scheduler places both processes, as it does those of a pipeline */
};

static uint64_t answer_words[TRIP_BYTES / 8];

static void answer(struct link *link, uint64_t value)
{
    uint32_t batch = link->batch;
    link->batch = batch > 0 ? 1 : 0; /* an answer is shown at once */
    answer_words[0] = value;
    link_send(link, answer_words, TRIP_BYTES, true);
    link->batch = batch;
}

static uint64_t receive_answer(struct link *link)
{
    uint32_t batch = link->batch;
    link->batch = batch > 0 ? 1 : 0;
    uint64_t sum = link_receive(link);
    link->batch = batch;
    return sum;
}

static void child_part(struct task *task)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!task->unpinned)
        bench_pin(1);
    link_open(&task->link, false);
    answer(&task->link, 1); /* here and open */
    if (task->records > 0) {
        uint64_t sum = 0;
        for (uint64_t i = 0; i < task->records; i++)
            sum += link_receive(&task->link);
        answer(&task->link, sum);
    }
    for (uint32_t i = 0; i < task->trips; i++)
        answer(&task->link, link_receive(&task->link));
    receive_answer(&task->link); /* goodbye: what we sent has arrived */
    link_close(&task->link);
    _exit(0);
}

static pid_t start_child(struct task *task)
{
    shm_doorbell_init(&shared->parent_bell);
    shm_doorbell_init(&shared->child_bell);
    /* relaxed, both: before the fork */
    atomic_store_explicit(&shared->parent_word, 0, memory_order_relaxed);
    atomic_store_explicit(&shared->child_word, 0, memory_order_relaxed);
    if (shm_ring_init(shared->to_child, RING_BYTES, 0) != 0 ||
        shm_ring_init(shared->to_parent, RING_BYTES, 0) != 0)
        bench_fail("laying out the rings failed");
    fflush(stdout); /* a failing child must not print what we have printed */
    pid_t child = fork();
    if (child < 0)
        bench_fail("starting a child failed: %s", strerror(errno));
    if (child == 0)
        child_part(task);
    link_open(&task->link, true);
    if (receive_answer(&task->link) != 1)
        bench_fail("the child did not say that it is ready");
    return child;
}

static void end_child(struct task *task, pid_t child)
{
    int status;
    answer(&task->link, 0);
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_fail("the child failed");
    link_close(&task->link);
}

/* ---- measuring ------------------------------------------------------------------------------ */

static double run_stream(struct task *task)
{
    pid_t child = start_child(task);
    int64_t start = clock_now_ns();
    for (uint64_t i = 0; i < task->records; i++)
        link_send(&task->link, source, task->record_bytes, i + 1 == task->records);
    uint64_t sum = receive_answer(&task->link);
    double seconds = (double)(clock_now_ns() - start) * 1e-9;
    if (sum != read_record(source, task->record_bytes) * task->records)
        bench_fail("the receiver read other bytes than were sent");
    end_child(task, child);
    return seconds;
}

/* Nanoseconds of each round trip into times. */
static void run_trips(struct task *task, double *times)
{
    if (task->unpinned)
        bench_unpin();
    pid_t child = start_child(task);
    for (uint32_t i = 0; i < task->trips; i++) {
        if (task->pause_ns > 0)
            nanosleep(&(struct timespec){.tv_nsec = task->pause_ns}, NULL);
        int64_t start = clock_now_ns();
        link_send(&task->link, source, TRIP_BYTES, true);
        link_receive(&task->link);
        times[i] = (double)(clock_now_ns() - start);
    }
    end_child(task, child);
    bench_pin(0);
}

static void measure_streams(const struct bench_options *options)
{
    static const struct {
        const char *name;
        bool zmq;
        uint32_t batch;
    } methods[] = {{"ring, each record shown", false, 1},
                   {"ring, up to 32 records shown together", false, BATCH},
                   {"ZeroMQ ipc", true, 1}};
    static const struct {
        uint32_t bytes;
        uint64_t total;
    } sizes[] = {{64, 64ull << 20}, {4096, 1ull << 30}, {65536, 2ull << 30}};
    printf("\n| record | method | GB/s, median | lowest - highest | records/s |\n");
    printf("|---:|---|---:|---:|---:|\n");
    for (uint32_t s = 0; s < 3; s++) {
        struct bench_samples seconds[3] = {0};
        uint64_t records = (options->quick ? sizes[s].total / 64 : sizes[s].total) / sizes[s].bytes;
        for (uint32_t round = 1; round <= options->rounds; round++) {
            for (uint32_t m = 0; m < 3; m++) {
                /* a batch must not fill the ring */
                uint32_t fit = RING_BYTES / 4 / sizes[s].bytes;
                uint32_t batch = methods[m].batch < fit ? methods[m].batch : fit;
                struct task task = {
                    .link = {.zmq = methods[m].zmq, .batch = batch, .wait = WAIT_SLEEP},
                    .record_bytes = sizes[s].bytes,
                    .records = records};
                bench_progress(round, options->rounds, methods[m].name);
                bench_sample(&seconds[m], run_stream(&task));
            }
            bench_progress(round, options->rounds, "");
        }
        for (uint32_t m = 0; m < 3; m++) {
            double bytes = (double)records * sizes[s].bytes;
            printf("| %u B | %s | %.2f | %.2f - %.2f | %.0f |\n", sizes[s].bytes, methods[m].name,
                   bytes / bench_median(&seconds[m]) * 1e-9,
                   bytes / bench_highest(&seconds[m]) * 1e-9,
                   bytes / bench_lowest(&seconds[m]) * 1e-9,
                   (double)records / bench_median(&seconds[m]));
        }
    }
}

static const struct {
    const char *name;
    enum { RING, FUTEX, ZMQ } kind;
    enum wait_kind wait;
    int64_t pause_ns;
    uint32_t trips;
    bool unpinned;
} trips[] = {
    {"ring, both spin, pinned", RING, WAIT_SPIN, 0, 20000, false},
    {"ring, waiting as the workers do", RING, WAIT_WORKER, 0, 10000, true},
    {"ring, waiting as the workers do, after a pause", RING, WAIT_WORKER, PAUSE_NS, 2000, true},
    {"ring, both sleep at once", RING, WAIT_SLEEP, 0, 10000, true},
    {"ring, both sleep at once, after a pause", RING, WAIT_SLEEP, PAUSE_NS, 2000, true},
    {"bare futex, both sleep, after a pause", FUTEX, WAIT_SLEEP, PAUSE_NS, 2000, true},
    {"ZeroMQ ipc, both sleep", ZMQ, WAIT_SLEEP, 0, 10000, true},
    {"ZeroMQ ipc, both sleep, after a pause", ZMQ, WAIT_SLEEP, PAUSE_NS, 2000, true},
    {"ring, waiting as the workers do, after a pause, pinned", RING, WAIT_WORKER, PAUSE_NS, 2000,
     false},
    {"ring, both sleep at once, pinned", RING, WAIT_SLEEP, 0, 10000, false},
    {"ring, both sleep at once, after a pause, pinned", RING, WAIT_SLEEP, PAUSE_NS, 2000, false},
    {"bare futex, both sleep, after a pause, pinned", FUTEX, WAIT_SLEEP, PAUSE_NS, 2000, false},
    {"ZeroMQ ipc, both poll without waiting, pinned", ZMQ, WAIT_SPIN, 0, 10000, false},
    {"ZeroMQ ipc, both sleep, pinned", ZMQ, WAIT_SLEEP, 0, 10000, false},
    {"ZeroMQ ipc, both sleep, after a pause, pinned", ZMQ, WAIT_SLEEP, PAUSE_NS, 2000, false},
};
enum { TRIPS = sizeof(trips) / sizeof(trips[0]) };
static struct bench_samples trip_median[TRIPS], trip_tail[TRIPS];

static void measure_trips(const struct bench_options *options)
{
    static double times[MAX_TRIPS];
    for (uint32_t round = 1; round <= options->rounds; round++) {
        for (uint32_t m = 0; m < TRIPS; m++) {
            if (trips[m].wait == WAIT_SPIN && bench_cpus() < 2)
                continue; /* two spinners on one CPU measure the scheduler */
            struct task task = {.link = {.zmq = trips[m].kind == ZMQ,
                                         .futex = trips[m].kind == FUTEX,
                                         .wait = trips[m].wait},
                                .record_bytes = TRIP_BYTES,
                                .trips = trips[m].trips / (options->quick ? 10 : 1),
                                .pause_ns = trips[m].pause_ns,
                                .unpinned = trips[m].unpinned};
            bench_progress(round, options->rounds, trips[m].name);
            run_trips(&task, times);
            bench_sample(&trip_median[m], bench_quantile(times, task.trips, 0.5) * 1e-3);
            bench_sample(&trip_tail[m], bench_quantile(times, task.trips, 0.99) * 1e-3);
        }
        bench_progress(round, options->rounds, "");
    }
}

static void print_trips(void)
{
    printf(
        "\nRound trip of a 64-byte record, microseconds (the median of the rounds' medians and "
        "99th percentiles). Pinned: a CPU each; otherwise the scheduler places both, as it does "
        "the processes of a pipeline. After a pause: the sender rests 100 us before each, so that "
        "the receiver sleeps deeply. As the agent does: both spin for up to %d us, then sleep. "
        "A bare futex moves nothing: it is what the kernel and the machine take for two "
        "wake-ups.\n\n",
        WORKER_NS / 1000);
    printf("| method | median | lowest - highest round | 99 %% |\n|---|---:|---:|---:|\n");
    for (uint32_t m = 0; m < TRIPS; m++) {
        if (trip_median[m].count > 0)
            printf("| %s | %.2f | %.2f - %.2f | %.2f |\n", trips[m].name,
                   bench_median(&trip_median[m]), bench_lowest(&trip_median[m]),
                   bench_highest(&trip_median[m]), bench_median(&trip_tail[m]));
    }
}

/* Both ends asleep: the ring beside ZeroMQ, under the same conditions. */
static void print_asleep(void)
{
    printf("\nBoth asleep, the same way for both, medians in microseconds:\n\n"
           "| | ring | ZeroMQ ipc |\n|---|---:|---:|\n");
    for (uint32_t m = 0; m < TRIPS; m++) {
        if (trips[m].kind != RING || trips[m].wait != WAIT_SLEEP)
            continue;
        for (uint32_t z = 0; z < TRIPS; z++)
            if (trips[z].kind == ZMQ && trips[z].wait == WAIT_SLEEP &&
                trips[z].pause_ns == trips[m].pause_ns && trips[z].unpinned == trips[m].unpinned)
                printf("| %s, %s | %.2f | %.2f |\n",
                       trips[m].unpinned ? "placed by the scheduler" : "pinned to a CPU each",
                       trips[m].pause_ns ? "after a pause" : "back to back",
                       bench_median(&trip_median[m]), bench_median(&trip_median[z]));
    }
}

int main(int argc, char **argv)
{
    struct bench_options options = bench_start("ring", argc, argv);
    int major, minor, patch;
    uint64_t state = 42;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        bench_fail("no shared memory: %s", strerror(errno));
    snprintf(endpoint, sizeof(endpoint), "ipc://@hill-bench-%d", (int)getpid());
    for (uint32_t i = 0; i < sizeof(source); i++)
        source[i] = (uint8_t)bench_random(&state);
    bench_pin(0);
    zmq_version(&major, &minor, &patch);
    printf("## Rings between two processes\n\n");
    printf("Ring of %u KiB beside ZeroMQ %d.%d.%d ipc (PAIR), streams between two processes pinned "
           "to %s; %u "
           "rounds, methods in turn.\n",
           RING_BYTES >> 10, major, minor, patch, bench_cpus() > 1 ? "a CPU each" : "one CPU",
           options.rounds);
    printf("The sender copies each record in, the receiver reads every byte of it where it lies. "
           "Records shown together never take more than a quarter of the ring.\n");
    measure_streams(&options);
    measure_trips(&options);
    print_trips();
    print_asleep();
    return 0;
}
