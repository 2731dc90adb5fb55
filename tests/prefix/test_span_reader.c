/*
 * tests/prefix/test_span_reader.c - a drive that does not answer keeps nobody from closing: the
 * reader is left behind, and ends by itself when the drive answers after all.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "prefix/span_reader.h"

#define HUNG_FD 4242

static int answer[2]; /* a pipe: the hung drive answers when it is closed */
static _Atomic int reads, answered;

/* In the place of the C library's: that file is on a drive which does not answer, others are of
 * zeros. */
ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    char byte;
    (void)at;
    atomic_fetch_add(&reads, 1);
    if (fd == HUNG_FD && read(answer[0], &byte, 1) != 0)
        return -1;
    memset(to, 0, bytes);
    atomic_fetch_add(&answered, 1);
    return (ssize_t)bytes;
}

static void count(void *context)
{
    atomic_fetch_add((_Atomic int *)context, 1);
}

static _Atomic int released;

static bool unreleased(void)
{
    return atomic_load(&released) == 0;
}

static bool none_begun(void)
{
    return atomic_load(&reads) == 0;
}

static bool some_open(void)
{
    return atomic_load(&answered) < atomic_load(&reads);
}

static void wait_while(bool (*condition)(void))
{
    for (int64_t until = clock_deadline_ms(20000); condition(); usleep(1000))
        assert_true(clock_now_ns() < until);
}

static void a_hung_drive_is_left_behind(void **state)
{
    static uint8_t memory[8][16];
    static _Atomic int woken;
    struct span spans[8];
    struct span_reader *reader;
    uint64_t job;
    (void)state;
    assert_int_equal(pipe(answer), 0);
    assert_int_equal(span_reader_open(&reader, count, &woken), 0);
    for (int i = 0; i < 8; i++)
        spans[i] = (struct span){HUNG_FD, 0, sizeof memory[i], memory[i]};
    assert_int_equal(span_reader_give(reader, spans, 8, &job), 0);
    wait_while(none_begun);
    assert_false(span_reader_close(reader, count, &released));
    assert_true(some_open());
    assert_true(unreleased());
    assert_int_equal(close(answer[1]), 0);
    wait_while(unreleased);
    assert_false(some_open());
    assert_int_equal(atomic_load(&released), 1);
    assert_true(atomic_load(&reads) < 8); /* what nobody had begun with was given up */
    assert_int_equal(atomic_load(&woken), 0);
    close(answer[0]);
}

static bool read_and_close(void)
{
    static uint8_t memory[64][16];
    struct span spans[64];
    struct span_reader *reader;
    uint64_t job;
    memset(memory, 0xa5, sizeof memory);
    assert_int_equal(span_reader_open(&reader, NULL, NULL), 0);
    for (int i = 0; i < 64; i++)
        spans[i] = (struct span){0, 0, sizeof memory[i], memory[i]};
    assert_int_equal(span_reader_give(reader, spans, 64, &job), 0);
    while (!span_reader_done(reader, job))
        usleep(100);
    assert_int_equal(memory[63][15], 0);
    return span_reader_close(reader, NULL, NULL);
}

static void a_drive_that_answers_is_waited_for(void **state)
{
    int tries = 0;
    (void)state;
    while (!read_and_close()) /* on a machine so busy that threads do not end in two seconds */
        assert_true(++tries < 5);
    assert_true(span_reader_close(NULL, NULL, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hung_drive_is_left_behind),
        cmocka_unit_test(a_drive_that_answers_is_waited_for),
    };
    return cmocka_run_group_tests_name("span_reader", tests, NULL, NULL);
}
