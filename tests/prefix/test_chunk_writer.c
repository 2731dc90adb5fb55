/*
 * tests/prefix/test_chunk_writer.c - the queue before the prefix store's drive: random jobs whose
 * writing is held and let go, against a list of what was given. HILL_TEST_SEED draws others.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prefix/chunk_writer.h"
#include "tests/draws.h"
#include "tests/rounds.h"

enum { BYTES = 300, ROOM = 5 * BYTES, JOBS = TEST_ROUNDS(20000) };

/* A drive that does as many jobs as it is let, and fails those of some slots. */
static struct drive {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t let, done, woken;
    uint64_t stamps[JOBS]; /* in the order of writing */
} drive = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static uint8_t byte_of(uint64_t stamp, uint32_t i)
{
    return (uint8_t)(stamp * 31 + i);
}

static bool fails(uint64_t stamp)
{
    return stamp % 7 == 0;
}

static int write_job(void *context, const struct chunk_job *job, struct hill_why *why)
{
    struct drive *d = context;
    pthread_mutex_lock(&d->lock);
    while (d->done == d->let)
        pthread_cond_wait(&d->changed, &d->lock);
    d->stamps[d->done++] = job->chunk.stamp;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (uint32_t i = 0; i < job->bytes; i++)
        if (((const uint8_t *)job->entries)[i] != byte_of(job->chunk.stamp, i))
            abort();
    return fails(job->chunk.stamp) ? hill_fail(why, HILL_E_NOSPACE, "slot %u is full", job->slot)
                                   : 0;
}

static void count_wake(void *context)
{
    ++*(uint64_t *)context; /* under the writer's lock */
}

static void let(uint64_t n)
{
    pthread_mutex_lock(&drive.lock);
    drive.let += n;
    pthread_cond_signal(&drive.changed);
    pthread_mutex_unlock(&drive.lock);
}

static int give(struct chunk_writer *w, enum chunk_job_kind kind, uint64_t stamp)
{
    uint8_t entries[BYTES];
    struct chunk_job job = {.kind = kind, .slot = (uint32_t)stamp, .chunk.stamp = stamp};
    job.bytes = kind == CHUNK_JOB_PUT ? BYTES : 0;
    for (uint32_t i = 0; i < job.bytes; i++)
        entries[i] = byte_of(stamp, i);
    int rc = chunk_writer_give(w, &job, entries);
    memset(entries, 0, sizeof entries); /* it has its own */
    return rc;
}

/* Those that failed so far are told in their order. */
static void take_failed(struct chunk_writer *w, const uint64_t *given, uint64_t *next)
{
    struct chunk_job job;
    while (chunk_writer_take_failed(w, &job)) {
        while (!fails(given[*next]))
            ++*next;
        assert_int_equal(job.chunk.stamp, given[(*next)++]);
        assert_int_equal(job.rc, HILL_E_NOSPACE);
        assert_non_null(strstr(job.why.text, "is full"));
        assert_null(job.entries);
    }
}

static void test_random_jobs(void **unused)
{
    (void)unused;
    static uint64_t given[JOBS];
    static enum chunk_job_kind kinds[JOBS];
    struct chunk_writer *w;
    uint64_t n = 0, stamp = 0, failed = 0, refused = 0, in_queue = 0;
    assert_int_equal(chunk_writer_open(&w, ROOM, write_job, &drive), 0);
    chunk_writer_wake(w, count_wake, &drive.woken);
    while (n < JOBS) {
        enum chunk_job_kind kind = draw(4) ? CHUNK_JOB_PUT : 1 + draw(2);
        int rc = give(w, kind, ++stamp);
        if (rc == 0) {
            kinds[n] = kind;
            given[n++] = stamp;
        } else { /* five are on their way, and none was done meanwhile that was let */
            assert_int_equal(rc, HILL_E_WOULD_BLOCK);
            assert_int_equal(kind, CHUNK_JOB_PUT);
            refused++;
            let(1 + draw(8));
        }
        in_queue = 0;
        for (uint64_t i = n - chunk_writer_given(w) + chunk_writer_done(w); i < n; i++)
            in_queue += kinds[i] == CHUNK_JOB_PUT;
        assert_true(in_queue <= ROOM / BYTES);
        uint8_t entries[BYTES];
        uint64_t one = given[n - 1 - draw(n < 8 ? (uint32_t)n : 8)];
        int found = chunk_writer_find(w, one, entries);
        for (uint32_t i = 0; found > 0 && i < BYTES; i++)
            assert_int_equal(entries[i], byte_of(one, i));
        assert_true(found >= 0 || fails(one));
        if (draw(3) == 0)
            take_failed(w, given, &failed);
    }
    let(JOBS);
    assert_int_equal(chunk_writer_flush_until(w, INT64_MAX), 0);
    assert_int_equal(chunk_writer_done(w), n);
    assert_int_equal(chunk_writer_given(w), n);
    take_failed(w, given, &failed);
    while (failed < n)
        assert_false(fails(given[failed++]));
    chunk_writer_wake(w, NULL, NULL);
    chunk_writer_close(w);
    assert_int_equal(drive.done, n);
    assert_int_equal(drive.woken, n);
    assert_memory_equal(drive.stamps, given, n * sizeof *given);
    assert_true(refused > 0);
}

/* A drive that does nothing: what is under way can be read, a CLEAR is taken, a close waits. */
static void test_a_drive_that_hangs(void **unused)
{
    (void)unused;
    struct chunk_writer *w;
    uint8_t entries[BYTES];
    memset(&drive.let, 0, sizeof drive - offsetof(struct drive, let));
    assert_int_equal(chunk_writer_open(&w, ROOM, write_job, &drive), 0);
    for (uint64_t stamp = 1; stamp <= 5; stamp++)
        assert_int_equal(give(w, CHUNK_JOB_PUT, stamp), 0);
    assert_false(chunk_writer_has_room(w, 1));
    assert_int_equal(give(w, CHUNK_JOB_PUT, 6), HILL_E_WOULD_BLOCK);
    assert_int_equal(give(w, CHUNK_JOB_CLEAR, 8), 0);
    assert_int_equal(chunk_writer_find(w, 1, entries), 1);
    assert_int_equal(chunk_writer_find(w, 5, entries), 1);
    assert_int_equal(entries[7], byte_of(5, 7));
    assert_int_equal(chunk_writer_find(w, 6, entries), 0);
    assert_int_equal(chunk_writer_done(w), 0);
    assert_int_equal(chunk_writer_flush_until(w, 0), 5);
    let(6);
    chunk_writer_close(w);
    assert_int_equal(drive.done, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_jobs),
        cmocka_unit_test(test_a_drive_that_hangs),
    };
    draws_seed(20261122);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
