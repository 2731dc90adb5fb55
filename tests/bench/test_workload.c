/* tests/bench/test_workload.c - which session counts as a workload's own, and what a name says. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kv/select.h"
#include "session/session.h"
#include "tools/bench/workload.h"

static char folder[64];

static const struct workload real = {.name = "x",
                                     .tokens = 30,
                                     .geometry = {3, 4, 2, 8},
                                     .model_bytes = 123456,
                                     .model_identity = 99};

static int make_folder(void **unused)
{
    (void)unused;
    snprintf(folder, sizeof folder, "/tmp/hill-workload-XXXXXX");
    return mkdtemp(folder) && setenv("BENCH_SESSIONS", folder, 1) == 0 ? 0 : -1;
}

static int remove_folder(void **unused)
{
    (void)unused;
    static const char *const names[] = {"x.session", "x-h2o.session"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    unsetenv("BENCH_SESSIONS");
    return rmdir(folder);
}

/* As saved after one token: the header, and zeros for the rest. */
static void write_session(uint32_t n_prompt, uint32_t n_decoded, uint64_t identity, uint16_t policy)
{
    char path[256];
    struct session_header h = {.terms = {.model_bytes = 123456,
                                         .model_identity = identity,
                                         .n_layers = 3,
                                         .n_heads = 4,
                                         .n_kv_heads = 2,
                                         .head_dim = 8,
                                         .n_embd = 32,
                                         .n_vocab = 1000,
                                         .policy = policy,
                                         .alpha = 0.2,
                                         .sinks = 4,
                                         .window = 8,
                                         .score_bits = 8},
                               .top_p = 1,
                               .repeat_penalty = 1,
                               .n_prompt = n_prompt,
                               .n_tokens = n_prompt + n_decoded,
                               .n_entries = n_prompt + n_decoded - 1,
                               .entry_bytes = 64,
                               .step = n_decoded - 1,
                               .first_append = 3,
                               .device = "cpu"};
    session_seal(&h);
    workload_session_file(&real, policy == KV_POLICY_H2O ? "h2o" : "hillinfer", path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(&h, sizeof h, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(truncate(path, (off_t)session_file_bytes(&h)), 0);
}

static void test_a_session_of_the_model_and_the_length_counts(void **unused)
{
    (void)unused;
    assert_false(workload_has_session(&real, "hillinfer"));
    write_session(30, 1, 99, KV_POLICY_HILLINFER);
    assert_true(workload_has_session(&real, "hillinfer"));
    assert_true(workload_has_session(&real, "leoam")); /* restores under all but h2o */
    assert_false(workload_has_session(&real, "h2o"));
    write_session(30, 1, 99, KV_POLICY_H2O);
    assert_true(workload_has_session(&real, "h2o"));
}

static void test_one_of_another_file_or_length_does_not(void **unused)
{
    (void)unused;
    write_session(30, 1, 98, KV_POLICY_HILLINFER);
    assert_false(workload_has_session(&real, "hillinfer"));
    write_session(29, 1, 99, KV_POLICY_HILLINFER);
    assert_false(workload_has_session(&real, "hillinfer"));
    write_session(30, 2, 99, KV_POLICY_HILLINFER); /* it has decoded: bound to its policy */
    assert_false(workload_has_session(&real, "hillinfer"));
}

static void test_a_damaged_one_does_not(void **unused)
{
    (void)unused;
    char path[256];
    write_session(30, 1, 99, KV_POLICY_HILLINFER);
    workload_session_file(&real, "hillinfer", path);
    assert_int_equal(truncate(path, 1000), 0);
    assert_false(workload_has_session(&real, "hillinfer"));
}

static void test_a_name_says_model_length_and_text(void **unused)
{
    (void)unused;
    struct workload w;
    workload_open(&w, "hill-ref-512-heldout");
    assert_string_equal(w.missing, "");
    assert_string_equal(w.text, "heldout");
    assert_int_equal(w.tokens, 512);
    assert_int_equal(w.geometry.n_layers, 6); /* docs/hill-ref.md */
    assert_true(w.model_identity != 0);
}

static void test_a_model_that_is_not_there_is_named(void **unused)
{
    (void)unused;
    struct workload w;
    setenv("HILL_MODELS", "/tmp/hill-no-models", 1);
    workload_open(&w, "qwen0.5b-16384-moby");
    assert_non_null(strstr(w.missing, "/tmp/hill-no-models/qwen2.5-coder-0.5b"));
    assert_false(workload_make_session(&w, "hillinfer"));
    unsetenv("HILL_MODELS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_session_of_the_model_and_the_length_counts,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_one_of_another_file_or_length_does_not, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_a_damaged_one_does_not, make_folder, remove_folder),
        cmocka_unit_test(test_a_name_says_model_length_and_text),
        cmocka_unit_test(test_a_model_that_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
