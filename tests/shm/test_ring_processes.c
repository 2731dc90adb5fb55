/*
 * tests/shm/test_ring_processes.c - shm/ring and shm/doorbell between processes, over a real
 * segment: streams in both directions, wake-up of a sleeping end, and ends killed with SIGKILL.
 *
 * The child's part runs between fork and _exit and reports by its exit status; a child that hangs
 * is ended by its alarm.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/ring.h"
#include "shm/segment.h"
#include "tests/shm/run_id.h"
#include "tests/shm/oracle.h"

#define START         (UINT32_MAX - 3)
#define FINGERPRINT   0x5e97
#define SEED          4711
#define STREAM_BYTES  (8u << 20)
#define CHILD_LIMIT_S 60
#define PATIENCE_MS   20000
#define KILL_ROUNDS   8

/* the payload of the segment */
struct shared {
    struct shm_doorbell producer_bell, consumer_bell;
    _Alignas(64) uint8_t ring[];
};

struct fixture {
    struct shm_segment segment;
    char name[SHM_NAME_BYTES];
    uint32_t capacity;
};

static void fixture_init(struct fixture *fixture, uint32_t capacity)
{
    shm_segment_name(fixture->name, test_run_id(), 1, "test");
    fixture->capacity = capacity;
    assert_int_equal(shm_segment_create(&fixture->segment, fixture->name,
                                        sizeof(struct shared) + shm_ring_bytes(capacity),
                                        FINGERPRINT, 1, NULL),
                     0);
    struct shared *shared = shm_segment_payload(&fixture->segment);
    shm_doorbell_init(&shared->producer_bell);
    shm_doorbell_init(&shared->consumer_bell);
    assert_int_equal(shm_ring_init(shared->ring, capacity, START), 0);
}

static void fixture_finish(struct fixture *fixture)
{
    shm_segment_detach(&fixture->segment);
    assert_int_equal(shm_segment_unlink(fixture->name), 0);
}

/* Attach by name, as another process does, and open an end. */
static int open_end(const struct fixture *fixture, struct shm_segment *segment,
                    struct shm_ring_end *end, bool producer)
{
    int rc = shm_segment_attach(segment, fixture->name, FINGERPRINT, 1, NULL);
    if (rc)
        return rc;
    struct shared *shared = shm_segment_payload(segment);
    uint64_t space = shm_segment_payload_bytes(segment) - offsetof(struct shared, ring);
    return shm_ring_open(end, shared->ring, space, producer,
                         producer ? &shared->producer_bell : &shared->consumer_bell,
                         producer ? &shared->consumer_bell : &shared->producer_bell);
}

typedef int child_part(const struct fixture *fixture, int pipe_fd);

/* Run part in a child; *pipe_fd reads what it writes. */
static pid_t start_child(child_part *part, const struct fixture *fixture, int *pipe_fd)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(pipes[0]);
        alarm(CHILD_LIMIT_S);
        _exit(part(fixture, pipes[1]) ? 1 : 0);
    }
    close(pipes[1]);
    *pipe_fd = pipes[0];
    return child;
}

static void assert_ended_well(pid_t child, int pipe_fd)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(pipe_fd);
}

static void assert_was_killed(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void wait_for_byte(int fd)
{
    char byte;
    assert_int_equal(read(fd, &byte, 1), 1);
}

static int say(int fd)
{
    return write(fd, "x", 1) == 1 ? 0 : -1;
}

/* ---- streams ---------------------------------------------------------------------------- */

/* Push records from number `first` on until `bytes` of payload went out; < 0: why it stopped. */
static int send_stream(struct shm_ring_end *end, uint64_t first, uint64_t bytes)
{
    uint32_t max = shm_ring_payload_max(end);
    uint64_t sent = 0;
    for (uint64_t i = first; sent < bytes;) {
        uint32_t size = oracle_size(SEED, i, max);
        void *payload;
        int rc = shm_ring_reserve(end, size, &payload);
        if (rc == HILL_E_WOULD_BLOCK)
            rc = shm_ring_wait(end, size, clock_deadline_ms(PATIENCE_MS));
        else if (rc == 0) {
            oracle_fill(SEED, i, payload, size);
            shm_ring_publish(end, oracle_type(SEED, i), size);
            sent += size;
            i++;
        }
        if (rc)
            return rc;
    }
    return 0;
}

/* Read records from number *next on until something ends it; HILL_E_DAMAGED when one is wrong. */
static int read_stream(struct shm_ring_end *end, uint64_t *next, uint64_t *bytes)
{
    uint32_t max = shm_ring_payload_max(end);
    for (;;) {
        uint32_t type, size;
        const void *payload;
        int rc = shm_ring_peek(end, &type, &payload, &size);
        if (rc == HILL_E_WOULD_BLOCK)
            rc = shm_ring_wait(end, 0, clock_deadline_ms(PATIENCE_MS));
        else if (rc == 0) {
            if (type != oracle_type(SEED, *next) || size != oracle_size(SEED, *next, max) ||
                !oracle_matches(SEED, *next, payload, size))
                return HILL_E_DAMAGED;
            shm_ring_release(end);
            *bytes += size;
            ++*next;
        }
        if (rc)
            return rc;
    }
}

static int child_sends(const struct fixture *fixture, int pipe_fd)
{
    struct shm_segment segment;
    struct shm_ring_end end;
    (void)pipe_fd;
    int rc = open_end(fixture, &segment, &end, true);
    if (!rc)
        rc = send_stream(&end, 0, STREAM_BYTES);
    if (!rc)
        shm_ring_close(&end);
    return rc;
}

static int child_reads(const struct fixture *fixture, int pipe_fd)
{
    struct shm_segment segment;
    struct shm_ring_end end;
    uint64_t next = 0, bytes = 0;
    (void)pipe_fd;
    int rc = open_end(fixture, &segment, &end, false);
    if (!rc)
        rc = read_stream(&end, &next, &bytes);
    return rc == HILL_E_PEER_GONE && bytes >= STREAM_BYTES ? 0 : -1;
}

static void a_child_sends_millions_of_bytes(void **state)
{
    (void)state;
    struct fixture fixture;
    struct shm_segment segment;
    struct shm_ring_end end;
    uint64_t next = 0, bytes = 0;
    int pipe_fd;
    fixture_init(&fixture, 16384);
    pid_t child = start_child(child_sends, &fixture, &pipe_fd);
    assert_int_equal(open_end(&fixture, &segment, &end, false), 0);
    assert_int_equal(read_stream(&end, &next, &bytes), HILL_E_PEER_GONE);
    assert_true(bytes >= STREAM_BYTES);
    assert_ended_well(child, pipe_fd);
    shm_ring_close(&end);
    shm_segment_detach(&segment);
    fixture_finish(&fixture);
}

static void a_child_reads_millions_of_bytes(void **state)
{
    (void)state;
    struct fixture fixture;
    struct shm_segment segment;
    struct shm_ring_end end;
    int pipe_fd;
    fixture_init(&fixture, 16384);
    pid_t child = start_child(child_reads, &fixture, &pipe_fd);
    assert_int_equal(open_end(&fixture, &segment, &end, true), 0);
    assert_int_equal(send_stream(&end, 0, STREAM_BYTES), 0);
    shm_ring_close(&end);
    assert_ended_well(child, pipe_fd);
    shm_segment_detach(&segment);
    fixture_finish(&fixture);
}

/* ---- wake-ups --------------------------------------------------------------------------- */

/* The other end acts while we sleep; how long after it acted did we wake? The life check of
 * shm_ring_wait would end a lost wake-up's sleep within 100 ms, hence a bound well below that, and
 * the median, because a busy machine may delay some. */
#define WAKE_ROUNDS 15
#define WAKE_MS     50
#define ASLEEP_US   30000

static int compare_times(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void assert_woken_soon(int64_t *late_ns)
{
    qsort(late_ns, WAKE_ROUNDS, sizeof *late_ns, compare_times);
    assert_true(late_ns[WAKE_ROUNDS / 2] < CLOCK_MS(WAKE_MS));
}

static int child_publishes_now_and_then(const struct fixture *fixture, int pipe_fd)
{
    struct shm_segment segment;
    struct shm_ring_end end;
    (void)pipe_fd;
    int rc = open_end(fixture, &segment, &end, true);
    for (int i = 0; i < WAKE_ROUNDS && !rc; i++) {
        usleep(ASLEEP_US);
        int64_t now = clock_now_ns();
        rc = shm_ring_push(&end, 1, &now, sizeof now);
    }
    return rc;
}

static void a_sleeping_consumer_is_woken(void **state)
{
    (void)state;
    struct fixture fixture;
    struct shm_segment segment;
    struct shm_ring_end end;
    int64_t late_ns[WAKE_ROUNDS];
    int pipe_fd;
    fixture_init(&fixture, 4096);
    assert_int_equal(open_end(&fixture, &segment, &end, false), 0);
    pid_t child = start_child(child_publishes_now_and_then, &fixture, &pipe_fd);
    for (int i = 0; i < WAKE_ROUNDS; i++) {
        uint32_t type, size;
        const void *payload;
        int64_t acted;
        assert_int_equal(shm_ring_wait(&end, 0, clock_deadline_ms(PATIENCE_MS)), 0);
        int64_t woken = clock_now_ns();
        assert_int_equal(shm_ring_peek(&end, &type, &payload, &size), 0);
        assert_int_equal(size, sizeof acted);
        memcpy(&acted, payload, sizeof acted);
        late_ns[i] = woken - acted;
        shm_ring_release(&end);
    }
    assert_woken_soon(late_ns);
    assert_ended_well(child, pipe_fd);
    shm_ring_close(&end);
    shm_segment_detach(&segment);
    fixture_finish(&fixture);
}

/* Says through the pipe when it released a record. */
static int child_releases_now_and_then(const struct fixture *fixture, int pipe_fd)
{
    struct shm_segment segment;
    struct shm_ring_end end;
    int rc = open_end(fixture, &segment, &end, false);
    for (int i = 0; i < WAKE_ROUNDS && !rc; i++) {
        uint32_t type, size;
        const void *payload;
        usleep(ASLEEP_US);
        rc = shm_ring_peek(&end, &type, &payload, &size);
        if (rc)
            break;
        int64_t now = clock_now_ns();
        shm_ring_release(&end);
        if (write(pipe_fd, &now, sizeof now) != (ssize_t)sizeof now)
            return -1;
    }
    return rc;
}

static void a_sleeping_producer_is_woken(void **state)
{
    (void)state;
    struct fixture fixture;
    struct shm_segment segment;
    struct shm_ring_end end;
    int64_t late_ns[WAKE_ROUNDS];
    uint8_t record[48] = {1};
    int pipe_fd;
    fixture_init(&fixture, 4096);
    assert_int_equal(open_end(&fixture, &segment, &end, true), 0);
    while (shm_ring_push(&end, 1, record, sizeof record) == 0)
        ;
    pid_t child = start_child(child_releases_now_and_then, &fixture, &pipe_fd);
    for (int i = 0; i < WAKE_ROUNDS; i++) {
        int64_t acted;
        assert_int_equal(shm_ring_wait(&end, sizeof record, clock_deadline_ms(PATIENCE_MS)), 0);
        int64_t woken = clock_now_ns();
        assert_int_equal(shm_ring_push(&end, 1, record, sizeof record), 0);
        assert_int_equal(read(pipe_fd, &acted, sizeof acted), sizeof acted);
        late_ns[i] = woken - acted;
    }
    assert_woken_soon(late_ns);
    assert_ended_well(child, pipe_fd);
    shm_ring_close(&end);
    shm_segment_detach(&segment);
    fixture_finish(&fixture);
}

/* ---- killed ends ------------------------------------------------------------------------ */

#define BEFORE_THE_KILL 5

static int child_dies_in_a_record(const struct fixture *fixture, int pipe_fd)
{
    struct shm_segment segment;
    struct shm_ring_end end;
    void *payload;
    int rc = open_end(fixture, &segment, &end, true);
    for (uint64_t i = 0; i < BEFORE_THE_KILL && !rc; i++) {
        rc = shm_ring_reserve(&end, oracle_size(SEED, i, 200), &payload);
        if (rc)
            return rc;
        oracle_fill(SEED, i, payload, oracle_size(SEED, i, 200));
        shm_ring_publish(&end, oracle_type(SEED, i), oracle_size(SEED, i, 200));
    }
    if (!rc)
        rc = shm_ring_reserve(&end, 1000, &payload);
    if (rc)
        return rc;
    memset(payload, 0xee, 500);
    rc = say(pipe_fd);
    for (;;)
        pause();
}

static void a_producer_killed_in_a_record_is_drained_and_gone(void **state)
{
    (void)state;
    struct fixture fixture;
    struct shm_segment segment;
    struct shm_ring_end end;
    int pipe_fd;
    fixture_init(&fixture, 4096);
    assert_int_equal(open_end(&fixture, &segment, &end, false), 0);
    pid_t child = start_child(child_dies_in_a_record, &fixture, &pipe_fd);
    wait_for_byte(pipe_fd);
    int64_t killed = clock_now_ns();
    assert_int_equal(kill(child, SIGKILL), 0); /* not waited for: a zombie is dead, too */
    for (uint64_t i = 0; i < BEFORE_THE_KILL; i++) {
        uint32_t type, size;
        const void *payload;
        assert_int_equal(shm_ring_wait(&end, 0, CLOCK_NEVER), 0);
        assert_int_equal(shm_ring_peek(&end, &type, &payload, &size), 0);
        assert_int_equal(type, oracle_type(SEED, i));
        assert_int_equal(size, oracle_size(SEED, i, 200));
        assert_true(oracle_matches(SEED, i, payload, size));
        shm_ring_release(&end);
    }
    assert_int_equal(shm_ring_wait(&end, 0, CLOCK_NEVER), HILL_E_PEER_GONE);
    assert_true(clock_now_ns() - killed < CLOCK_MS(20000)); /* some 0.1 s; a busy machine */
    assert_false(shm_ring_peer_alive(&end));
    assert_was_killed(child);
    close(pipe_fd);
    shm_ring_close(&end);
    shm_segment_detach(&segment);
    fixture_finish(&fixture);
}

static int child_sends_for_ever(const struct fixture *fixture, int pipe_fd)
{
    struct shm_segment segment;
    struct shm_ring_end end;
    int rc = open_end(fixture, &segment, &end, true);
    if (!rc)
        rc = say(pipe_fd);
    return rc ? rc : send_stream(&end, 0, UINT64_MAX);
}

/* Kills it: at a time of its own, wherever it is. */
static int child_kills_its_parents_other_child(pid_t victim, useconds_t after_us)
{
    usleep(after_us);
    return kill(victim, SIGKILL);
}

static void a_producer_killed_anywhere_leaves_whole_records(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < KILL_ROUNDS; round++) {
        struct fixture fixture;
        struct shm_segment segment;
        struct shm_ring_end end;
        uint64_t next = 0, bytes = 0;
        int pipe_fd;
        fixture_init(&fixture, 4096);
        assert_int_equal(open_end(&fixture, &segment, &end, false), 0);
        pid_t child = start_child(child_sends_for_ever, &fixture, &pipe_fd);
        wait_for_byte(pipe_fd);
        pid_t killer = fork();
        assert_true(killer >= 0);
        if (killer == 0)
            _exit(child_kills_its_parents_other_child(child,
                                                      (useconds_t)(oracle_hash(round, 0) % 20000)));
        assert_int_equal(read_stream(&end, &next, &bytes), HILL_E_PEER_GONE);
        int status;
        assert_int_equal(waitpid(killer, &status, 0), killer);
        assert_int_equal(status, 0);
        assert_was_killed(child);
        close(pipe_fd);
        shm_ring_close(&end);
        shm_segment_detach(&segment);
        fixture_finish(&fixture);
    }
}

static int child_peeks_and_stays(const struct fixture *fixture, int pipe_fd)
{
    struct shm_segment segment;
    struct shm_ring_end end;
    uint32_t type, size;
    const void *payload;
    int rc = open_end(fixture, &segment, &end, false);
    for (int i = 0; i < 2 && !rc; i++) {
        rc = shm_ring_wait(&end, 0, clock_deadline_ms(PATIENCE_MS));
        if (!rc)
            rc = shm_ring_peek(&end, &type, &payload, &size);
        if (!rc && i == 0)
            shm_ring_release(&end);
    }
    if (!rc)
        rc = say(pipe_fd);
    while (!rc)
        pause();
    return rc;
}

static void a_killed_consumer_is_gone_and_can_be_followed(void **state)
{
    (void)state;
    struct fixture fixture;
    struct shm_segment segment, other;
    struct shm_ring_end end, successor;
    int pipe_fd, rc;
    uint32_t pushed = 0, type, size;
    const void *payload;
    fixture_init(&fixture, 4096);
    assert_int_equal(open_end(&fixture, &segment, &end, true), 0);
    pid_t child = start_child(child_peeks_and_stays, &fixture, &pipe_fd);
    assert_int_equal(shm_ring_push(&end, pushed++, "record", 6), 0);
    assert_int_equal(shm_ring_push(&end, pushed++, "record", 6), 0);
    wait_for_byte(pipe_fd);
    assert_int_equal(open_end(&fixture, &other, &successor, false), HILL_E_BUSY);
    shm_segment_detach(&other);
    while ((rc = shm_ring_push(&end, pushed, "record", 6)) == 0)
        pushed++;
    assert_int_equal(rc, HILL_E_WOULD_BLOCK);
    int64_t killed = clock_now_ns();
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(shm_ring_wait(&end, 6, CLOCK_NEVER), HILL_E_PEER_GONE);
    assert_true(clock_now_ns() - killed < CLOCK_MS(20000)); /* some 0.1 s; a busy machine */
    assert_was_killed(child);
    /* what it had only peeked is there for its successor, and all that follows */
    assert_int_equal(open_end(&fixture, &other, &successor, false), 0);
    for (uint32_t i = 1; i < pushed; i++) {
        assert_int_equal(shm_ring_peek(&successor, &type, &payload, &size), 0);
        assert_int_equal(type, i);
        shm_ring_release(&successor);
    }
    assert_int_equal(shm_ring_peek(&successor, &type, &payload, &size), HILL_E_WOULD_BLOCK);
    close(pipe_fd);
    shm_ring_close(&successor);
    shm_ring_close(&end);
    shm_segment_detach(&other);
    shm_segment_detach(&segment);
    fixture_finish(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_sends_millions_of_bytes),
        cmocka_unit_test(a_child_reads_millions_of_bytes),
        cmocka_unit_test(a_sleeping_consumer_is_woken),
        cmocka_unit_test(a_sleeping_producer_is_woken),
        cmocka_unit_test(a_producer_killed_in_a_record_is_drained_and_gone),
        cmocka_unit_test(a_producer_killed_anywhere_leaves_whole_records),
        cmocka_unit_test(a_killed_consumer_is_gone_and_can_be_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
