/* Tests of coordinator/token_log.[ch]: written, read back, cut at every byte, every byte changed, a
 * disk that is full. Uses a folder in memory: it writes thousands of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "coordinator/token_log.h"

#define RUN_ID 77u
#define TOKENS 5u

static char folder[64], path[128];
static uint8_t file[4096];
static size_t file_bytes;

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/dev/shm/hill-token-log-%d", (int)getpid());
    snprintf(path, sizeof path, "%s/1.log", folder);
    return mkdir(folder, 0700);
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

/* A log with an order of three prompt tokens, and n tokens 100, 101 ... */
static struct token_log *make_log(int flush_ms, uint32_t n)
{
    static uint32_t prompt[] = {11, 12, 13};
    static uint8_t terms[PROTO_SESSION_TERMS_BYTES];
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Selection selection = HILL__SELECTION__INIT;
    Hill__Prefill prefill = HILL__PREFILL__INIT;
    Hill__RequestOrder order = HILL__REQUEST_ORDER__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    sampling.top_p = sampling.repeat_penalty = 1;
    selection.alpha = 0.2;
    prefill.tokens = prompt;
    prefill.n_tokens = 3;
    prefill.predict = 8;
    prefill.sampling = &sampling;
    prefill.selection = &selection;
    order.request_id = 4;
    order.key = 99;
    order.prefill = &prefill;
    order.terms = (ProtobufCBinaryData){sizeof terms, terms};
    message.body_case = HILL__MESSAGE__BODY_REQUEST_ORDER;
    message.request_order = &order;
    struct token_log *log;
    struct hill_why why;
    if (token_log_create(&log, path, RUN_ID, flush_ms, &message, &why))
        fail_msg("%s", why.text);
    for (uint32_t i = 0; i < n; i++) {
        struct token_log_token token = {i, 100 + i, -0.5 * i, 1000 * i, {0}};
        token.logits.state[0] = (uint8_t)i;
        assert_int_equal(token_log_append(log, &token, 0, &why), 0);
    }
    return log;
}

static void read_bytes(void)
{
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, file, sizeof file);
    assert_true(n > 0 && n < (ssize_t)sizeof file);
    file_bytes = (size_t)n;
    close(fd);
}

static void write_bytes(const uint8_t *bytes, size_t count)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(write(fd, bytes, count), count);
    close(fd);
}

/* What a new coordinator finds; the code. */
static int reopen(struct token_log_contents *contents)
{
    struct token_log *log;
    struct hill_why why = {""};
    int code = token_log_open(&log, path, RUN_ID, TOKEN_LOG_FLUSH_NEVER, contents, &why);
    token_log_close(log);
    assert_int_equal(code != 0, why.text[0] != 0);
    if (code)
        assert_non_null(strstr(why.text, path));
    return code;
}

static void check_tokens(const struct token_log_contents *c, uint32_t n)
{
    assert_int_equal(c->n_tokens, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(c->tokens[i].token, 100 + i);
        assert_true(c->tokens[i].logprob == -0.5 * i);
        assert_int_equal(c->tokens[i].since_ns, 1000 * i);
        assert_int_equal(c->tokens[i].logits.state[0], i);
    }
}

static void reads_back_what_was_written(void **state)
{
    (void)state;
    struct token_log_contents c;
    struct stat info;
    token_log_close(make_log(TOKEN_LOG_FLUSH_NEVER, TOKENS));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(reopen(&c), 0);
    const Hill__RequestOrder *order = c.order->request_order;
    assert_int_equal(order->request_id, 4);
    assert_int_equal(order->key, 99);
    assert_int_equal(order->prefill->n_tokens, 3);
    assert_int_equal(order->prefill->tokens[2], 13);
    check_tokens(&c, TOKENS);
    assert_int_equal(c.restarts, 0);
    assert_int_equal(c.torn_bytes, 0);
    token_log_contents_finish(&c);
    token_log_remove(NULL);
    token_log_close(NULL);
}

static void counts_restarts_and_those_without_a_token(void **state)
{
    (void)state;
    struct token_log_contents c;
    struct token_log *log;
    token_log_close(make_log(TOKEN_LOG_FLUSH_NEVER, 1));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(reopen(&c), 0);
        assert_int_equal(c.restarts, i);
        assert_int_equal(c.fruitless, i);
        token_log_contents_finish(&c);
    }
    assert_int_equal(token_log_open(&log, path, RUN_ID, TOKEN_LOG_FLUSH_NEVER, &c, NULL), 0);
    token_log_contents_finish(&c);
    struct token_log_token token = {1, 101, -0.5, 1000, {.state = {1}}};
    assert_false(c.decoded || c.selected);
    assert_int_equal(token_log_note_decoded(log, 9, NULL), 0);
    assert_int_equal(token_log_note_selected(log, NULL), 0);
    assert_int_equal(token_log_append(log, &token, 0, NULL), 0);
    token_log_close(log);
    assert_int_equal(reopen(&c), 0);
    check_tokens(&c, 2);
    assert_true(c.decoded && c.selected);
    assert_int_equal(c.restarts, 4);
    assert_int_equal(c.fruitless, 0);
    token_log_contents_finish(&c);
}

/* A log of another version, whose records have other sizes, is refused as that. */
static void another_version_is_named(void **state)
{
    (void)state;
    struct token_log_contents c;
    struct token_log *log;
    struct token_log_header header;
    struct hill_why why = {""};
    token_log_close(make_log(TOKEN_LOG_FLUSH_NEVER, 1));
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &header, sizeof header, 0), sizeof header);
    header.version--;
    assert_int_equal(pwrite(fd, &header, sizeof header, 0), sizeof header);
    close(fd);
    assert_int_equal(token_log_open(&log, path, RUN_ID, TOKEN_LOG_FLUSH_NEVER, &c, &why),
                     HILL_E_DAMAGED);
    assert_non_null(strstr(why.text, "has version 3, this program has 4"));
}

/* The newest slot counts, also of one that another coordinator has gone on with. */
static void says_which_slot_it_had(void **state)
{
    (void)state;
    struct token_log_contents c;
    struct token_log *log = make_log(TOKEN_LOG_FLUSH_NEVER, 1);
    struct stat before;
    token_log_close(log);
    assert_int_equal(token_log_open(&log, path, RUN_ID, TOKEN_LOG_FLUSH_NEVER, &c, NULL), 0);
    assert_false(c.started);
    token_log_contents_finish(&c);
    assert_int_equal(token_log_start(log, 3, 40, NULL), 0);
    assert_int_equal(token_log_start(log, 6, 50, NULL), 0);
    assert_int_equal(stat(path, &before), 0);
    token_log_close(log);
    assert_int_equal(reopen(&c), 0);
    assert_true(c.started);
    assert_int_equal(c.sequence, 6);
    assert_int_equal(c.attempt, 50);
    check_tokens(&c, 1);
    assert_int_equal(truncate(path, before.st_size - 1), 0); /* torn: the one before */
    token_log_contents_finish(&c);
    assert_int_equal(reopen(&c), 0);
    assert_int_equal(c.sequence, 3);
    assert_int_equal(c.attempt, 40);
    assert_false(c.damaged);
    token_log_contents_finish(&c);
}

/* Whatever was written last: the records before it stay, and the log goes on behind them. */
static void a_tail_that_is_torn_anywhere_is_cut(void **state)
{
    (void)state;
    token_log_close(make_log(TOKEN_LOG_FLUSH_NEVER, TOKENS));
    read_bytes();
    size_t each = sizeof(struct token_log_record) + sizeof(struct token_log_token);
    size_t first = file_bytes - TOKENS * each;
    for (size_t cut = 0; cut <= file_bytes; cut++) {
        struct token_log_contents c;
        write_bytes(file, cut);
        int code = reopen(&c);
        assert_int_equal(code, cut < first ? HILL_E_DAMAGED : 0);
        if (code)
            continue;
        check_tokens(&c, (uint32_t)((cut - first) / each));
        assert_int_equal(c.torn_bytes, (cut - first) % each);
        assert_false(c.damaged);
        token_log_contents_finish(&c);
        struct token_log_contents again; /* the cut one has its RESTARTED behind the last token */
        assert_int_equal(reopen(&again), 0);
        check_tokens(&again, (uint32_t)((cut - first) / each));
        assert_int_equal(again.restarts, 1);
        assert_int_equal(again.torn_bytes, 0);
        token_log_contents_finish(&again);
    }
}

/* One changed byte is never taken for what was written: the log ends before its record. */
static void no_changed_byte_is_taken(void **state)
{
    (void)state;
    token_log_close(make_log(TOKEN_LOG_FLUSH_NEVER, TOKENS));
    read_bytes();
    size_t each = sizeof(struct token_log_record) + sizeof(struct token_log_token);
    size_t first = file_bytes - TOKENS * each;
    for (size_t at = 0; at < file_bytes; at++) {
        for (unsigned flip = 1; flip < 256; flip <<= 1) {
            struct token_log_contents c;
            file[at] ^= (uint8_t)flip;
            write_bytes(file, file_bytes);
            file[at] ^= (uint8_t)flip;
            int code = reopen(&c);
            assert_int_equal(code, at < first ? HILL_E_DAMAGED : 0);
            if (code)
                continue;
            check_tokens(&c, (uint32_t)((at - first) / each));
            assert_true(c.torn_bytes > 0);
            assert_true(c.damaged);
            token_log_contents_finish(&c);
        }
    }
}

/* Records that are right in themselves, but not where they are. */
static void a_doubled_or_missing_record_ends_the_log(void **state)
{
    (void)state;
    struct token_log_contents c;
    token_log_close(make_log(TOKEN_LOG_FLUSH_NEVER, TOKENS));
    read_bytes();
    size_t each = sizeof(struct token_log_record) + sizeof(struct token_log_token);
    size_t first = file_bytes - TOKENS * each;
    uint8_t changed[sizeof file];
    memcpy(changed, file, first + 2 * each);
    memcpy(changed + first + 2 * each, file + first + each, (TOKENS - 1) * each);
    write_bytes(changed, file_bytes);
    assert_int_equal(reopen(&c), 0);
    check_tokens(&c, 2);
    assert_true(c.damaged);
    token_log_contents_finish(&c);
    memcpy(changed + first + each, file + first + 2 * each, (TOKENS - 2) * each);
    write_bytes(changed, file_bytes - each);
    assert_int_equal(reopen(&c), 0);
    check_tokens(&c, 1);
    assert_true(c.damaged);
    token_log_contents_finish(&c);
}

static void another_run_folders_log_is_refused(void **state)
{
    (void)state;
    struct token_log_contents c;
    struct token_log *log;
    struct hill_why why;
    token_log_close(make_log(TOKEN_LOG_FLUSH_NEVER, 1));
    assert_int_equal(token_log_open(&log, path, RUN_ID + 1, TOKEN_LOG_FLUSH_NEVER, &c, &why),
                     HILL_E_DAMAGED);
    assert_non_null(strstr(why.text, "run_id"));
    assert_null(log);
}

static void a_log_that_is_there_is_not_written_over(void **state)
{
    (void)state;
    Hill__Message empty = HILL__MESSAGE__INIT;
    struct token_log *log;
    token_log_close(make_log(TOKEN_LOG_FLUSH_NEVER, 1));
    assert_int_equal(token_log_create(&log, path, RUN_ID, TOKEN_LOG_FLUSH_NEVER, &empty, NULL),
                     HILL_E_INVALID);
    assert_null(log);
    assert_int_equal(access(path, F_OK), 0);
}

/* A file size limit stands for a full disk: the record that has no room ends the log, those before
 * it stay, and later ones are not written behind a gap. */
static void a_record_without_room_ends_the_log(void **state)
{
    (void)state;
    struct rlimit before, tight;
    struct token_log_contents c;
    struct hill_why why = {""};
    struct token_log_token token = {2, 102, -1, 2000, {0}};
    struct token_log *log = make_log(TOKEN_LOG_FLUSH_NEVER, 2);
    read_bytes();
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    tight = before;
    tight.rlim_cur = file_bytes + 7;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    assert_int_equal(token_log_append(log, &token, 0, &why), HILL_E_NOSPACE);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_non_null(strstr(why.text, path));
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, file_bytes);
    token.index = 3;
    assert_int_equal(token_log_append(log, &token, 0, &why), 0);
    token_log_close(log);
    assert_int_equal(reopen(&c), 0);
    check_tokens(&c, 2);
    assert_int_equal(c.torn_bytes, 0);
    token_log_contents_finish(&c);
}

static void flushes_when_it_is_told_to(void **state)
{
    (void)state;
    struct token_log_token token = {0, 100, 0, 0, {0}};
    struct token_log *log = make_log(TOKEN_LOG_FLUSH_NEVER, 0);
    assert_int_equal(token_log_append(log, &token, 5, NULL), 0);
    assert_int_equal(token_log_flush_ns(log), CLOCK_NEVER);
    token_log_remove(log);
    log = make_log(TOKEN_LOG_FLUSH_EACH, 0);
    assert_int_equal(token_log_append(log, &token, 5, NULL), 0);
    assert_int_equal(token_log_flush_ns(log), CLOCK_NEVER); /* it is done */
    token_log_remove(log);
    log = make_log(20, 0);
    assert_int_equal(token_log_append(log, &token, 5, NULL), 0);
    assert_int_equal(token_log_flush_ns(log), 5 + CLOCK_MS(20));
    token.index = 1;
    assert_int_equal(token_log_append(log, &token, 9, NULL), 0);
    assert_int_equal(token_log_flush_ns(log), 5 + CLOCK_MS(20)); /* the oldest decides */
    assert_int_equal(token_log_flush(log, 5 + CLOCK_MS(20) - 1, NULL), 0);
    assert_int_equal(token_log_flush_ns(log), 5 + CLOCK_MS(20));
    assert_int_equal(token_log_flush(log, 5 + CLOCK_MS(20), NULL), 0);
    assert_int_equal(token_log_flush_ns(log), CLOCK_NEVER);
    token_log_remove(log);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* The log's descriptor becomes that of a device that takes all bytes and cannot be flushed. */
static void a_flush_that_fails_is_told_once(void **state)
{
    (void)state;
    struct token_log_token token = {0, 100, 0, 0, {0}};
    struct token_log *log = make_log(TOKEN_LOG_FLUSH_EACH, 0);
    struct hill_why why = {""};
    struct stat own, info;
    int sink = open("/dev/null", O_RDWR), found = 0;
    assert_int_equal(stat(path, &own), 0);
    for (int fd = 3; fd < 64; fd++)
        if (fstat(fd, &info) == 0 && info.st_ino == own.st_ino && info.st_dev == own.st_dev)
            found += dup2(sink, fd) == fd;
    assert_int_equal(found, 1);
    assert_true(token_log_append(log, &token, 5, &why) < 0);
    assert_non_null(strstr(why.text, "flushing"));
    token.index = 1;
    assert_int_equal(token_log_append(log, &token, 9, &why), 0);
    assert_int_equal(token_log_flush_ns(log), CLOCK_NEVER);
    token_log_remove(log);
    close(sink);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_back_what_was_written, setup, teardown),
        cmocka_unit_test_setup_teardown(counts_restarts_and_those_without_a_token, setup, teardown),
        cmocka_unit_test_setup_teardown(says_which_slot_it_had, setup, teardown),
        cmocka_unit_test_setup_teardown(another_version_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(a_tail_that_is_torn_anywhere_is_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(no_changed_byte_is_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(a_doubled_or_missing_record_ends_the_log, setup, teardown),
        cmocka_unit_test_setup_teardown(another_run_folders_log_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_log_that_is_there_is_not_written_over, setup, teardown),
        cmocka_unit_test_setup_teardown(a_record_without_room_ends_the_log, setup, teardown),
        cmocka_unit_test_setup_teardown(flushes_when_it_is_told_to, setup, teardown),
        cmocka_unit_test_setup_teardown(a_flush_that_fails_is_told_once, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
