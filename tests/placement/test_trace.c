/*
 * Trace files: what is written comes back; damage is found wherever it is.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "placement/trace.h"

static char path[64];

static const struct trace_settings settings = {
    .geometry = {2, 4, 2, 8}, .sinks = 1, .window = 2, .alpha = 0.5, .model = "small"};

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/hill-test-trace-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

/* Three records: with scores, empty without, odd counts. */
static void write_three(void)
{
    static const uint32_t words[] = {0, 2 | TRACE_COLD, 3 | TRACE_GPU};
    static const uint16_t scores[] = {9, 8, 7, 65535, 0};
    struct trace_writer *w;
    struct hill_why why;
    assert_int_equal(trace_open(&w, path, &settings, &why), 0);
    struct trace_query q = {.request = 77,
                            .sequence = 1,
                            .step = 5,
                            .layer = 1,
                            .n_tokens = 5,
                            .n_selected = 3,
                            .words = words,
                            .scores = scores};
    assert_int_equal(trace_query(w, &q), 0);
    q.n_selected = 0;
    q.scores = NULL;
    assert_int_equal(trace_query(w, &q), 0);
    q.n_selected = 1;
    q.layer = 0;
    assert_int_equal(trace_query(w, &q), 0);
    assert_int_equal(trace_close(w), 0);
}

static uint8_t *load(size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(65536);
    *bytes = fread(data, 1, 65536, f);
    fclose(f);
    return data;
}

static void store(const uint8_t *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

static void what_is_written_comes_back(void **state)
{
    (void)state;
    struct trace_file *f;
    struct hill_why why;
    const uint32_t *words;
    const uint16_t *scores;
    write_three();
    assert_int_equal(trace_file_open(&f, path, &why), 0);
    assert_null(trace_file_tail(f));
    assert_int_equal(trace_file_count(f), 3);
    assert_string_equal(trace_file_settings(f)->model, "small");
    assert_true(trace_file_settings(f)->alpha == 0.5);
    const struct trace_record *r = trace_file_record(f, 0);
    assert_int_equal(r->request, 77);
    assert_int_equal(r->step, 5);
    assert_int_equal(trace_file_read(f, 0, &words, &scores, &why), 0);
    assert_int_equal(words[1], 2 | TRACE_COLD);
    assert_int_equal(words[2], 3 | TRACE_GPU);
    assert_int_equal(scores[3], 65535);
    assert_int_equal(trace_file_read(f, 2, &words, &scores, &why), 0);
    assert_null(scores);
    assert_int_equal(words[0], 0);
    trace_file_close(f);
}

static void records_larger_than_the_buffer(void **state)
{
    (void)state;
    uint32_t n = TRACE_BUFFER_BYTES / 2 + 12345;
    uint32_t *words = malloc(n * sizeof *words);
    uint16_t *scores = malloc(n * sizeof *scores);
    struct trace_writer *w;
    struct trace_file *f;
    struct hill_why why;
    const uint32_t *back;
    const uint16_t *scores_back;
    for (uint32_t i = 0; i < n; i++) {
        words[i] = i;
        scores[i] = (uint16_t)(i * 7);
    }
    assert_int_equal(trace_open(&w, path, &settings, &why), 0);
    struct trace_query q = {.n_tokens = n, .n_selected = n, .words = words, .scores = scores};
    assert_int_equal(trace_query(w, &q), 0);
    assert_int_equal(trace_query(w, &q), 0);
    assert_int_equal(trace_close(w), 0);
    assert_int_equal(trace_file_open(&f, path, &why), 0);
    assert_int_equal(trace_file_count(f), 2);
    assert_int_equal(trace_file_read(f, 1, &back, &scores_back, &why), 0);
    assert_memory_equal(back, words, n * sizeof *words);
    assert_memory_equal(scores_back, scores, n * sizeof *scores);
    trace_file_close(f);
    free(words);
    free(scores);
}

static void every_flipped_byte_is_found(void **state)
{
    (void)state;
    size_t bytes;
    write_three();
    uint8_t *data = load(&bytes);
    for (size_t i = 0; i < bytes; i++) {
        struct trace_file *f = NULL;
        struct hill_why why = {{0}};
        data[i] ^= (uint8_t)(1 + i % 255);
        store(data, bytes);
        int rc = trace_file_open(&f, path, &why);
        assert_true(rc == HILL_E_DAMAGED || rc == HILL_E_UNSUPPORTED);
        assert_null(f);
        assert_non_null(strstr(why.text, path));
        assert_null(strchr(why.text, '\n'));
        if (i >= sizeof(struct trace_header))
            assert_non_null(strstr(why.text, "record "));
        data[i] ^= (uint8_t)(1 + i % 255);
    }
    free(data);
}

static void every_truncation_keeps_the_whole_records(void **state)
{
    (void)state;
    size_t bytes;
    write_three();
    uint8_t *data = load(&bytes);
    /* payloads: 3 words and 5 scores: 24 bytes with padding; none; 1 word: 8 bytes */
    const size_t ends[] = {256, 256 + 64 + 24, 256 + 64 + 24 + 64, 256 + 64 + 24 + 64 + 64 + 8};
    assert_int_equal(bytes, ends[3]);
    for (size_t cut = 0; cut <= bytes; cut++) {
        struct trace_file *f = NULL;
        struct hill_why why;
        uint32_t whole = 0;
        store(data, cut);
        int rc = trace_file_open(&f, path, &why);
        if (cut < ends[0]) {
            assert_int_equal(rc, HILL_E_DAMAGED);
            continue;
        }
        while (whole < 3 && ends[whole + 1] <= cut)
            whole++;
        assert_int_equal(rc, 0);
        assert_int_equal(trace_file_count(f), whole);
        assert_int_equal(trace_file_tail(f) == NULL, cut == ends[whole]);
        trace_file_close(f);
    }
    free(data);
}

static void foreign_files_are_named(void **state)
{
    (void)state;
    struct trace_file *f;
    struct hill_why why;
    uint8_t text[1000];
    memset(text, 'x', sizeof text);
    store(text, sizeof text);
    assert_int_equal(trace_file_open(&f, path, &why), HILL_E_DAMAGED);
    assert_non_null(strstr(why.text, "no KV trace"));
    assert_int_equal(trace_file_open(&f, "/tmp", &why), HILL_E_DAMAGED);
    assert_int_not_equal(trace_file_open(&f, "/tmp/hill-no-such-trace", &why), 0);
    assert_non_null(strstr(why.text, "/tmp/hill-no-such-trace"));
}

static void unsound_queries_are_not_written(void **state)
{
    (void)state;
    static const uint32_t twice[] = {3, 3}, beyond[] = {1, 5};
    struct trace_writer *w;
    struct trace_file *f;
    struct hill_why why;
    assert_int_equal(trace_open(&w, path, &settings, &why), 0);
    struct trace_query q = {.n_tokens = 5, .n_selected = 2, .words = twice};
    assert_int_equal(trace_query(w, &q), HILL_E_INVALID);
    q.words = beyond;
    assert_int_equal(trace_query(w, &q), HILL_E_INVALID);
    q.n_tokens = 0;
    q.n_selected = 0;
    assert_int_equal(trace_query(w, &q), HILL_E_INVALID);
    q.n_tokens = KV_MAX_TOKENS + 1;
    assert_int_equal(trace_query(w, &q), HILL_E_INVALID);
    assert_int_equal(trace_close(w), 0);
    assert_int_equal(trace_file_open(&f, path, &why), 0);
    assert_int_equal(trace_file_count(f), 0);
    trace_file_close(f);
}

static void a_full_disk_is_reported_and_stays(void **state)
{
    (void)state;
    static uint16_t scores[600000];
    struct trace_writer *w;
    struct hill_why why;
    if (access("/dev/full", W_OK))
        skip();
    assert_int_equal(trace_open(&w, "/dev/full", &settings, &why), 0);
    struct trace_query q = {.n_tokens = 600000, .scores = scores};
    assert_int_equal(trace_query(w, &q), HILL_E_NOSPACE);
    assert_int_equal(trace_query(w, &q), HILL_E_NOSPACE);
    assert_int_equal(trace_close(w), HILL_E_NOSPACE);
    assert_int_equal(trace_open(&w, "/dev/full", &settings, &why), 0);
    assert_int_equal(trace_close(w), HILL_E_NOSPACE);
    assert_int_not_equal(trace_open(&w, "/tmp/hill-no-such-folder/x", &settings, &why), 0);
    assert_non_null(strstr(why.text, "/tmp/hill-no-such-folder/x"));
}

static void a_new_trace_leaves_what_is_there(void **unused)
{
    (void)unused;
    char name[TRACE_NAME_BYTES], wanted[80];
    struct trace_writer *w;
    struct trace_file *file;
    struct hill_why why;
    write_three();
    for (unsigned i = 2; i < 4; i++) {
        assert_int_equal(trace_open_new(&w, path, &settings, name, &why), 0);
        snprintf(wanted, sizeof wanted, "%s.%u", path, i);
        assert_string_equal(name, wanted);
        assert_int_equal(trace_flush(w), 0);
        assert_int_equal(trace_close(w), 0);
    }
    for (unsigned i = 2; i < 4; i++) {
        snprintf(name, sizeof name, "%s.%u", path, i);
        assert_int_equal(unlink(name), 0);
    }
    assert_int_equal(trace_file_open(&file, path, &why), 0);
    assert_int_equal(trace_file_count(file), 3);
    trace_file_close(file);
    assert_int_equal(trace_open_new(&w, "/nowhere/at/all", &settings, name, &why), HILL_E_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(records_larger_than_the_buffer),
        cmocka_unit_test(every_flipped_byte_is_found),
        cmocka_unit_test(every_truncation_keeps_the_whole_records),
        cmocka_unit_test(foreign_files_are_named),
        cmocka_unit_test(unsound_queries_are_not_written),
        cmocka_unit_test(a_new_trace_leaves_what_is_there),
        cmocka_unit_test(a_full_disk_is_reported_and_stays),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
