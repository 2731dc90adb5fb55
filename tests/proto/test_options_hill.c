/* Tests of proto/options_hill.[ch]: the tables of HillInfer's own options, and what is read of
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kv/score.h"
#include "proto/drive_url.h"
#include "proto/envelope.h"
#include "proto/options_hill.h"
#include "tests/proto/configure.h"

static struct options *options;
static struct hill_why why;
static struct epoch_settings epoch;

static int reset(void **state)
{
    (void)state;
    options_free(options);
    options = NULL;
    return 0;
}

static int parse(struct hill_pipeline_options *pipeline, struct hill_request_options *request,
                 const char *first, ...)
{
    const struct option_table all[3] = {
        HILL_COMMON_TABLE,
        {.title = "p", .specs = hill_pipeline_specs, .count = hill_pipeline_count},
        {.title = "r", .specs = hill_request_specs, .count = hill_request_count}};
    static struct option_table kept[3];
    memcpy(kept, all, sizeof all);
    static struct option_program both = {
        .name = "hill", .usage = "", .summary = "", .example = "", .tables = kept, .n_tables = 3};
    both.hints = hill_hints;
    both.n_hints = hill_hint_count;
    char *argv[32] = {(char *)"hill"};
    int argc = 1;
    va_list args;
    va_start(args, first);
    for (const char *a = first; a; a = va_arg(args, const char *))
        argv[argc++] = (char *)a;
    va_end(args);
    options_free(options);
    int code = options_parse(&options, &both, argc, argv, NULL, &why);
    if (!code && pipeline)
        code = hill_pipeline_read(pipeline, &epoch, options, &why);
    if (!code && request)
        code = hill_request_read(request, options, &why);
    return code;
}

static void test_pipeline_defaults(void **state)
{
    (void)state;
    struct hill_pipeline_options p;
    assert_int_equal(parse(&p, NULL, "-m", "x", NULL), 0);
    assert_true(epoch.plan.selection.alpha == 0.2 && epoch.beta == 0.25 && epoch.beta_auto);
    assert_int_equal(epoch.plan.selection.sinks, 4);
    assert_int_equal(epoch.plan.selection.window, 32);
    assert_int_equal(epoch.block_tokens, 256);
    assert_int_equal(epoch.plan.selection.budget, 0);
    assert_false(p.no_csd);
    assert_null(p.csd_url);
    assert_int_equal(epoch.plan.selection.policy, KV_POLICY_HILLINFER);
    assert_int_equal(epoch.plan.selection.importance, KV_IMPORTANCE_HEADS);
    assert_int_equal(epoch.placement, HILL__PLACEMENT__PLACEMENT_RECENCY);
    assert_int_equal(epoch.speculate, HILL__SPECULATE__SPECULATE_OFF);
    assert_int_equal(epoch.simd, HILL__SIMD__SIMD_AUTO);
}

/* What the table accepts no worker refuses. */
static void test_the_largest_values_are_configured(void **state)
{
    (void)state;
    struct hill_pipeline_options p;
    assert_int_equal(parse(&p, NULL, "-m", "x", "-t", "1025", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--block-tokens", "4097", NULL), HILL_E_INVALID);
    assert_int_equal(
        parse(&p, NULL, "-m", "x", "-t", "1024", "--block-tokens", "4096", "-np", "64", NULL), 0);
    const struct layout_input layout = {{2, 4, 2, 32, 8}, 256, epoch.plan.n_sequences};
    struct epoch_settings s = make_settings(&layout, 1), read;
    struct epoch_wire wire;
    s.threads = p.threads;
    s.block_tokens = epoch.block_tokens;
    epoch_settings_to_wire(&wire, &s);
    assert_int_equal(proto_validate(&wire.message, &why), 0);
    assert_int_equal(epoch_settings_read(&read, &wire.configure, &why), 0);
}

static void test_where_a_drives_flash_lies(void **state)
{
    static const char *const none[] = {"file:",     "xrt:a", "xrt:,xclbin=b", "tcp://h:1",
                                       "/dev/null", "xrt:",  "none",          ""};
    char file[HILL_PATH_BYTES];
    (void)state;
    assert_true(hill_drive_file("file:a,b", file));
    assert_string_equal(file, "a,b");
    assert_true(hill_drive_file("xrt:/dev/n,xclbin=b,device=2", file));
    assert_string_equal(file, "/dev/n");
    for (unsigned i = 0; i < sizeof none / sizeof *none; i++)
        assert_false(hill_drive_file(none[i], file));
}

static void test_a_relative_drive_is_of_the_folder(void **state)
{
    (void)state;
    static const char *const same[] = {"file:/a/b,c", "tcp://h:1", "xrt:/d,xclbin=/k,device=u",
                                       "none", ""};
    char out[HILL_PATH_BYTES], too_long[HILL_PATH_BYTES];
    assert_int_equal(chdir("/usr"), 0);
    for (unsigned i = 0; i < sizeof same / sizeof *same; i++) {
        assert_int_equal(drive_url_absolute(out, same[i], &why), 0);
        assert_string_equal(out, same[i]);
    }
    assert_int_equal(drive_url_absolute(out, "file:a,xclbin=b", &why), 0);
    assert_string_equal(out, "file:/usr/a,xclbin=b");
    assert_int_equal(drive_url_absolute(out, "xrt:d/e,xclbin=k,device=u", &why), 0);
    assert_string_equal(out, "xrt:/usr/d/e,xclbin=/usr/k,device=u");
    assert_int_equal(drive_url_absolute(out, "xrt:/d,xclbin=k", &why), 0);
    assert_string_equal(out, "xrt:/d,xclbin=/usr/k");
    snprintf(too_long, sizeof too_long, "file:%0*d", (int)sizeof too_long - 8, 0);
    assert_int_equal(drive_url_absolute(out, too_long, &why), HILL_E_INVALID);
}

static void test_several_drives(void **state)
{
    (void)state;
    struct hill_pipeline_options p;
    assert_int_equal(parse(&p, NULL, "-m", "x", "--csd", "file:a,b", "--csd", "tcp://h:1", "--csd",
                           "file:c", "--csd-key", "k", "--csd-peer", "k", "--csd-model", "flash=1",
                           "--csd-model", "flash=2", "--csd-model", "off", NULL),
                     0);
    assert_int_equal(p.n_csd, 3);
    assert_true(p.csd[0].length == 8 && strncmp(p.csd[0].url, "file:a,b", 8) == 0);
    assert_true(p.csd[2].length == 6 && strncmp(p.csd[2].url, "file:c", 6) == 0);
    assert_true(p.csd_models[0].flash == 1 && p.csd_models[1].flash == 2 && !p.csd_models[2].on);
    assert_true(epoch.csd_model.flash == 1);
    assert_int_equal(
        parse(&p, NULL, "-m", "x", "--csd", "file:a,file:b", "--csd-model", "flash=3", NULL), 0);
    assert_true(p.n_csd == 2 && p.csd_models[1].flash == 3);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--csd", "file:a,b", NULL), 0);
    assert_int_equal(p.n_csd, 0); /* one: a comma in a name is one */
    assert_int_equal(
        parse(&p, NULL, "-m", "x", "--csd", "xrt:a,xclbin=b,device=1,xrt:c,xclbin=d", NULL), 0);
    assert_true(p.n_csd == 2 && p.csd[1].length == 14);
    static const char *const refused[][6] = {
        {"file:a", "--csd", "file:b", "--csd", "file:a"},
        {"file:a,file:b,file:c,file:d,file:e"},
        {"file:a", "--csd", "none"},
        {"file:a", "--csd", "tcp://h:1"},
        {"file:a,file:"},
        {"file:a,xrt:0"},
        {"file:a,file:b", "--record", "r"},
        {"file:a", "--csd-model", "flash=1", "--csd-model", "flash=2"},
        {"file:a,file:b,file:c", "--csd-model", "flash=1;flash=2"},
    };
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char *const *r = refused[i];
        if (parse(&p, NULL, "-m", "x", "--csd", r[0], r[1], r[2], r[3], r[4], r[5], NULL) !=
            HILL_E_INVALID)
            fail_msg("--csd %s ... is taken", r[0]);
    }
}

static void test_recovery_and_flushing(void **state)
{
    (void)state;
    struct hill_pipeline_options p;
    assert_int_equal(parse(&p, NULL, "-m", "x", NULL), 0);
    assert_int_equal(p.recovery_ms, 60000);
    assert_int_equal(p.log_flush_ms, -1);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--recovery-timeout", "0.25", NULL), 0);
    assert_int_equal(p.recovery_ms, 250);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--log-fsync", "token", NULL), 0);
    assert_int_equal(p.log_flush_ms, 0);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--log-fsync", "20", NULL), 0);
    assert_int_equal(p.log_flush_ms, 20);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--log-fsync", "0", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--log-fsync", "often", NULL), HILL_E_INVALID);
}

/* Each word that a table takes is the choice of that name. */
static void test_choices_become_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *option, *word;
        int number;
    } cases[] = {
        {"--simd", "reference", HILL__SIMD__SIMD_REFERENCE},
        {"--simd", "avx2", HILL__SIMD__SIMD_AVX2},
        {"--simd", "avx512", HILL__SIMD__SIMD_AVX512},
        {"--simd", "avx512vnni", HILL__SIMD__SIMD_AVX512VNNI},
        {"--speculate", "on", HILL__SPECULATE__SPECULATE_ON},
        {"--speculate", "verify", HILL__SPECULATE__SPECULATE_VERIFY},
        {"--placement", "recency", HILL__PLACEMENT__PLACEMENT_RECENCY},
        {"--placement", "lfu", HILL__PLACEMENT__PLACEMENT_LFU},
        {"--policy", "full", KV_POLICY_FULL},
        {"--policy", "h2o", KV_POLICY_H2O},
        {"--policy", "oracle", KV_POLICY_ORACLE},
        {"--policy", "leoam", KV_POLICY_LEOAM},
        {"--policy", "prefetch", KV_POLICY_PREFETCH},
        {"--policy", "host-digest", KV_POLICY_HOST_DIGEST},
        {"--importance", "sum", KV_IMPORTANCE_SUM},
        {"--importance", "max", KV_IMPORTANCE_MAX},
    };
    struct hill_pipeline_options p;
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *option = cases[i].option;
        assert_int_equal(parse(&p, NULL, "-m", "x", option, cases[i].word, NULL), 0);
        int got = strcmp(option, "--simd") == 0        ? (int)epoch.simd
                  : strcmp(option, "--speculate") == 0 ? (int)epoch.speculate
                  : strcmp(option, "--placement") == 0 ? (int)epoch.placement
                  : strcmp(option, "--policy") == 0    ? (int)epoch.plan.selection.policy
                                                       : (int)epoch.plan.selection.importance;
        assert_int_equal(got, cases[i].number);
    }
}

static void test_pipeline_refusals(void **state)
{
    (void)state;
    struct hill_pipeline_options p;
    assert_int_equal(parse(&p, NULL, NULL, NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--alpha", "0.1", "--budget", "100", NULL),
                     HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--budget", "35", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--csd", "none", "--cold-mb", "5", NULL),
                     HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--csd", "tcp://h:1", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--csd", "tcp://h:1", "--csd-key", "k", NULL),
                     HILL_E_INVALID);
    assert_int_equal(
        parse(&p, NULL, "-m", "x", "--csd", "tcp://h", "--csd-key", "k", "--csd-peer", "p", NULL),
        HILL_E_INVALID);
    assert_int_equal(
        parse(&p, NULL, "-m", "x", "--csd", "tcp://h:1", "--csd-key", "k", "--csd-peer", "p", NULL),
        0);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--csd", "file:", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--score-bits", "5", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--csd", "xrt:0", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--csd-digests", "none", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--speculate", "some", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--exact-layers", "0", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--rows-in-flight", "0", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--rows-in-flight", "3", NULL), 0);
    assert_int_equal(epoch.plan.rows_in_flight, 3);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--policy", "some", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--policy", "h2o", "--digest-mb", "1.5", NULL),
                     HILL_E_INVALID);
    assert_int_equal(
        parse(&p, NULL, "-m", "x", "--policy", "host-digest", "--digest-mb", "1", NULL), 0);
    assert_int_equal(epoch.plan.digest_cache_bytes, 1u << 20);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--digest-mb", "1.5", NULL), 0);
    assert_int_equal(epoch.plan.digest_cache_bytes, 3u << 19);
    assert_false(epoch.plan.lends_digests);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--digest-mb", "0", NULL), 0);
    assert_true(epoch.plan.digest_cache_bytes == 0 && !epoch.plan.lends_digests);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--digest-mb", "some", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", NULL), 0);
    assert_true(epoch.plan.digest_cache_bytes == 0 && epoch.plan.lends_digests);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--policy", "h2o", "--digest-mb", "auto", NULL), 0);
    assert_false(kv_plan_lends(&epoch.plan));
    assert_int_equal(parse(&p, NULL, "-m", "x", "--csd-dram-mb", "1.5", NULL), 0);
    assert_int_equal(epoch.csd_dram_bytes, 3u << 19);
    static const char *const no_digests[][2] = {
        {"--csd-digests", "cast"}, {"--policy", "h2o"}, {"--policy", "host-digest"}};
    for (unsigned i = 0; i < sizeof no_digests / sizeof *no_digests; i++) {
        assert_int_equal(parse(&p, NULL, "-m", "x", "--csd-dram-mb", "1.5", no_digests[i][0],
                               no_digests[i][1], NULL),
                         HILL_E_INVALID);
        assert_non_null(strstr(why.text, no_digests[i][1]));
        assert_non_null(strstr(why.text, "--csd-dram-mb"));
    }
    assert_int_equal(parse(&p, NULL, "-m", "x", "--budget", "36", "--csd", "none", NULL), 0);
    assert_true(p.no_csd);
    assert_int_equal(epoch.plan.geometry.digest_bits, 8);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--score-bits", "4", NULL), 0);
    assert_int_equal(epoch.plan.geometry.digest_bits, 4);
}

/* Whatever the source of --alpha and --budget: the environment here is a source as any other. */
static void test_a_share_or_a_budget_turns_exact_below_off(void **state)
{
    (void)state;
    static const struct {
        const char *variable, *value, *words[4];
        uint32_t expected;
    } cases[] = {
        {NULL, NULL, {"--window", "16"}, 2048},
        {NULL, NULL, {"--policy", "h2o"}, 2048},
        {NULL, NULL, {"--alpha", "0.2"}, 0},
        {NULL, NULL, {"--budget", "100"}, 0},
        {NULL, NULL, {"--exact-below", "300"}, 300},
        {NULL, NULL, {"--exact-below", "0"}, 0},
        {NULL, NULL, {"--exact-below", "65535"}, 65535},
        {NULL, NULL, {"--alpha", "0.2", "--exact-below", "300"}, 300},
        {NULL, NULL, {"--exact-below", "2048", "--budget", "100"}, 2048},
        {"HILL_ALPHA", "0.3", {"--window", "16"}, 0},
        {"HILL_BUDGET", "99", {"--window", "16"}, 0},
        {"HILL_ALPHA", "0.3", {"--exact-below", "2048"}, 2048},
        {"HILL_EXACT_BELOW", "77", {"--alpha", "0.2"}, 77},
        {"HILL_EXACT_BELOW", "77", {"--exact-below", "78"}, 78},
    };
    struct hill_pipeline_options p;
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const *w = cases[i].words;
        if (cases[i].variable)
            setenv(cases[i].variable, cases[i].value, 1);
        assert_int_equal(parse(&p, NULL, "-m", "x", w[0], w[1], w[2], w[3], NULL), 0);
        assert_int_equal(epoch.plan.selection.exact_below, cases[i].expected);
        if (cases[i].variable)
            unsetenv(cases[i].variable);
    }
    assert_int_equal(parse(&p, NULL, "-m", "x", "--exact-below", "65536", NULL), HILL_E_INVALID);
    assert_int_equal(parse(&p, NULL, "-m", "x", "--exact-below", "-1", NULL), HILL_E_INVALID);
}

static void test_request(void **state)
{
    (void)state;
    struct hill_request_options r;
    assert_int_equal(parse(NULL, &r, "-p", "x", NULL), 0);
    assert_true(r.temperature == 0.8 && r.top_p == 0.95 && r.min_p == 0.05 &&
                r.repeat_penalty == 1);
    assert_int_equal(r.top_k, 40);
    assert_int_equal(r.unset, HILL_SAMPLING_ALL);
    assert_int_equal(r.predict, HILL_PREDICT_UNTIL_CONTEXT);
    assert_int_equal(r.seed, 0);
    assert_int_equal(parse(NULL, &r, "-f", "x", "-n", "9", "-s", "0", NULL), 0);
    assert_int_equal(r.predict, 9);
    assert_int_not_equal(r.seed, 0);
    setenv("HILL_MIN_P", "0.05", 1); /* the default, but said */
    assert_int_equal(parse(NULL, &r, "-p", "x", "--temp", "0.8", "--repeat-penalty", "2", NULL), 0);
    assert_int_equal(r.unset, HILL_SAMPLING_TOP_K | HILL_SAMPLING_TOP_P);
    unsetenv("HILL_MIN_P");
    assert_int_equal(parse(NULL, &r, NULL, NULL), HILL_E_INVALID);
    assert_int_equal(parse(NULL, &r, "-p", "x", "-f", "y", NULL), HILL_E_INVALID);
    assert_int_equal(parse(NULL, &r, "-p", "x", "-n", "0", NULL), HILL_E_INVALID);
    assert_int_equal(parse(NULL, &r, "-p", "x", "-s", "4294967296", NULL), HILL_E_INVALID);
    assert_int_equal(parse(NULL, &r, "-p", "x", "--chat-template", "x", NULL), HILL_E_INVALID);
    assert_non_null(strstr(why.text, "--chat-template-file"));
}

static void test_of_two_the_one_whose_source_counts_more_holds(void **state)
{
    (void)state;
    char ini[] = "/tmp/hill-options-XXXXXX";
    struct hill_request_options r;
    setenv("HILL_FILE", "of the environment", 1);
    assert_int_equal(parse(NULL, &r, "-p", "x", NULL), 0);
    assert_true(r.prompt && strcmp(r.prompt, "x") == 0 && !r.file);
    assert_int_equal(parse(NULL, &r, "-f", "y", NULL), 0);
    assert_true(!r.prompt && strcmp(r.file, "y") == 0);
    setenv("HILL_PROMPT", "of the environment", 1);
    assert_int_equal(parse(NULL, &r, NULL, NULL), HILL_E_INVALID);
    assert_string_equal(why.text, "--prompt and --file exclude each other");
    unsetenv("HILL_FILE");
    assert_int_equal(parse(NULL, &r, "-f", "y", NULL), 0);
    assert_true(!r.prompt && strcmp(r.file, "y") == 0);
    int fd = mkstemp(ini);
    assert_true(fd >= 0 && dprintf(fd, "file = of the INI file\nspecial = yes\n") > 0);
    close(fd);
    setenv("HILL_TOKEN_IDS", "1", 1);
    assert_int_equal(parse(NULL, &r, "--config", ini, NULL), 0);
    assert_true(r.prompt && !r.file && r.token_ids && !r.special);
    assert_int_equal(parse(NULL, &r, "--config", ini, "--special", NULL), 0);
    assert_true(r.special && !r.token_ids);
    assert_int_equal(parse(NULL, &r, "--special", "--token-ids", NULL), HILL_E_INVALID);
    unsetenv("HILL_TOKEN_IDS");
    unsetenv("HILL_PROMPT");
    unlink(ini);
}

static void test_run_dir_too_long_for_sockets(void **state)
{
    (void)state;
    char out[HILL_PATH_BYTES], path[128];
    memset(path, 'a', sizeof path);
    path[HILL_RUN_DIR_MAX] = '\0';
    assert_int_equal(parse(NULL, NULL, "--run-dir", path, NULL), 0);
    assert_int_equal(hill_run_dir(out, options, &why), 0);
    path[HILL_RUN_DIR_MAX] = 'a';
    path[HILL_RUN_DIR_MAX + 1] = '\0';
    assert_int_equal(parse(NULL, NULL, "--run-dir", path, NULL), 0);
    assert_int_equal(hill_run_dir(out, options, &why), HILL_E_INVALID);
}

static void test_every_default_of_the_tables_is_valid_and_unique(void **state)
{
    (void)state;
    assert_int_equal(parse(NULL, NULL, NULL, NULL), 0);
    const struct option_spec *all[] = {hill_common_specs, hill_pipeline_specs, hill_request_specs};
    unsigned counts[] = {hill_common_count, hill_pipeline_count, hill_request_count};
    for (unsigned t = 0; t < 3; t++)
        for (unsigned i = 0; i < counts[t]; i++)
            for (unsigned u = 0; u < 3; u++)
                for (unsigned j = 0; j < counts[u]; j++) {
                    const struct option_spec *a = &all[t][i], *b = &all[u][j];
                    if (a != b) {
                        assert_string_not_equal(a->name, b->name);
                        assert_false(a->letter && b->letter && strcmp(a->letter, b->letter) == 0);
                    }
                }
}

#define T(test) cmocka_unit_test_teardown(test, reset)

int main(void)
{
    unsetenv("HILL_EXACT_BELOW"); /* which the tests' runs set */
    const struct CMUnitTest tests[] = {
        T(test_pipeline_defaults),
        T(test_the_largest_values_are_configured),
        T(test_where_a_drives_flash_lies),
        T(test_a_relative_drive_is_of_the_folder),
        T(test_several_drives),
        T(test_recovery_and_flushing),
        T(test_choices_become_numbers),
        T(test_pipeline_refusals),
        T(test_a_share_or_a_budget_turns_exact_below_off),
        T(test_request),
        T(test_of_two_the_one_whose_source_counts_more_holds),
        T(test_run_dir_too_long_for_sockets),
        T(test_every_default_of_the_tables_is_valid_and_unique),
    };
    return cmocka_run_group_tests_name("options_hill", tests, NULL, NULL);
}
