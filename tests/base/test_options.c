/* Tests of base/options.[ch]: sources and their order, strict values,
 * refusals, help. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/options.h"

static const struct option_spec specs[] = {
    {.name = "ctx-size",
     .letter = "c",
     .type = OPTION_INTEGER,
     .min = 0,
     .max = 1000,
     .fallback = "7",
     .value = "N",
     .help = "h"},
    {.name = "parallel",
     .letter = "np",
     .type = OPTION_INTEGER,
     .min = 1,
     .max = 1,
     .fallback = "1",
     .value = "N",
     .note = "one only",
     .help = "h"},
    {.name = "alpha",
     .type = OPTION_REAL,
     .min = 0,
     .min_open = true,
     .max = 1,
     .fallback = "0.2",
     .value = "A",
     .help = "h"},
    {.name = "beta",
     .type = OPTION_REAL,
     .min = 0,
     .max = 9,
     .choices = "auto",
     .fallback = "auto",
     .value = "B",
     .help = "h"},
    {.name = "hot-mb",
     .type = OPTION_SIZE,
     .min = 0.0009765625,
     .max = 4096,
     .value = "SIZE",
     .unset_help = "a share",
     .help = "h"},
    {.name = "policy",
     .type = OPTION_CHOICE,
     .choices = "full|hillinfer",
     .refused = "h2o|leoam",
     .fallback = "hillinfer",
     .value = "P",
     .help = "h"},
    {.name = "model", .letter = "m", .type = OPTION_PATH, .value = "FILE", .help = "h"},
    {.name = "prompt", .letter = "p", .type = OPTION_STRING, .value = "TEXT", .help = "h"},
    {.name = "json", .type = OPTION_FLAG, .help = "h"},
};
static const struct option_spec foreign_specs[] = {
    {.name = "temp", .type = OPTION_REAL, .min = 0, .max = 9, .value = "T", .help = "h"}};
static const struct option_table tables[] = {
    {.title = "all", .specs = specs, .count = sizeof specs / sizeof specs[0]},
    {.title = "others", .specs = foreign_specs, .count = 1, .foreign = true},
};
static const struct option_hint hints[] = {{"-ngl|--gpu-layers", "leave it out"},
                                           {"--warmth", "say --temp"}};
static const struct option_program program = {.name = "prog",
                                              .usage = "[OPTIONS]",
                                              .summary = "s",
                                              .example = "prog -c 5",
                                              .tables = tables,
                                              .n_tables = 2,
                                              .hints = hints,
                                              .n_hints = 2,
                                              .positional_max = 1};

static struct options *options;
static struct hill_why why;

/* Arguments end with NULL; the result is in `options`. */
static int parse(const char *first, ...)
{
    char *argv[32] = {(char *)"prog"};
    int argc = 1;
    va_list args;
    va_start(args, first);
    for (const char *a = first; a; a = va_arg(args, const char *))
        argv[argc++] = (char *)a;
    va_end(args);
    options_free(options);
    why.text[0] = '\0';
    return options_parse(&options, &program, argc, argv, NULL, &why);
}

static void expect_refused(const char *word_in_why)
{
    assert_null(options);
    assert_non_null(strstr(why.text, word_in_why));
    assert_null(strchr(why.text, '\n'));
}

static char file_path[64];

static const char *write_file(const char *text)
{
    snprintf(file_path, sizeof file_path, "/tmp/hill-options-%d.ini", (int)getpid());
    FILE *file = fopen(file_path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return file_path;
}

static int reset(void **state)
{
    (void)state;
    options_free(options);
    options = NULL;
    unsetenv("HILL_CTX_SIZE");
    unsetenv("HILL_CONFIG");
    unsetenv("HILL_TEMP");
    unsetenv("HILL_JSON");
    unlink(file_path);
    return 0;
}

/* ---- sources ----------------------------------------------------------------------------- */

static void test_default_holds_when_nothing_is_given(void **state)
{
    (void)state;
    assert_int_equal(parse(NULL, NULL), 0);
    assert_int_equal(options_integer(options, "ctx-size"), 7);
    assert_int_equal(options_source(options, "ctx-size"), OPTION_FROM_DEFAULT);
    assert_false(options_is_set(options, "hot-mb"));
    assert_false(options_flag(options, "json"));
    assert_true(options_is_word(options, "beta"));
}

static void test_sources_in_order(void **state)
{
    (void)state;
    const char *ini = write_file("ctx-size = 100\nalpha = 0.5\n[hillinfer]\nhot-mb = 3\n");
    assert_int_equal(parse("--config", ini, NULL), 0);
    assert_int_equal(options_integer(options, "ctx-size"), 100);
    setenv("HILL_CTX_SIZE", "200", 1);
    assert_int_equal(parse("--config", ini, NULL), 0);
    assert_int_equal(options_integer(options, "ctx-size"), 200);
    assert_true(options_real(options, "alpha") == 0.5);
    assert_int_equal(options_bytes(options, "hot-mb"), 3 << 20);
    assert_int_equal(parse("-c", "300", "--config", ini, NULL), 0);
    assert_int_equal(options_integer(options, "ctx-size"), 300);
    assert_int_equal(options_source(options, "ctx-size"), OPTION_FROM_ARGUMENT);
}

static void test_config_from_the_environment(void **state)
{
    (void)state;
    setenv("HILL_CONFIG", write_file("ctx-size = 11\n"), 1);
    assert_int_equal(parse(NULL, NULL), 0);
    assert_int_equal(options_integer(options, "ctx-size"), 11);
}

static void test_empty_variable_counts_as_unset(void **state)
{
    (void)state;
    setenv("HILL_CTX_SIZE", "", 1);
    assert_int_equal(parse(NULL, NULL), 0);
    assert_int_equal(options_integer(options, "ctx-size"), 7);
}

static void test_bad_variable_is_refused_by_its_name(void **state)
{
    (void)state;
    setenv("HILL_CTX_SIZE", "12x", 1);
    assert_int_equal(parse("-c", "5", NULL), HILL_E_INVALID);
    expect_refused("HILL_CTX_SIZE");
}

static void test_spellings(void **state)
{
    (void)state;
    assert_int_equal(parse("--ctx-size=5", "-np", "1", "-p", "-n 5 --x", "--json", "word", NULL),
                     0);
    assert_int_equal(options_integer(options, "ctx-size"), 5);
    assert_string_equal(options_text(options, "prompt"), "-n 5 --x");
    assert_true(options_flag(options, "json"));
    assert_string_equal(options_positional(options, 0), "word");
    assert_int_equal(parse("--", "--json", NULL), 0);
    assert_string_equal(options_positional(options, 0), "--json");
    assert_false(options_flag(options, "json"));
}

static void test_last_argument_wins(void **state)
{
    (void)state;
    assert_int_equal(parse("-c", "5", "-c", "6", NULL), 0);
    assert_int_equal(options_integer(options, "ctx-size"), 6);
}

/* ---- numbers ----------------------------------------------------------------------------- */

static void test_integers_are_strict(void **state)
{
    (void)state;
    static const char *const bad[] = {"12x", "",     " 5",   "5 ", "0x10", "1e3",
                                      "5.0", "5.",   "--5",  "+",  "-",    "99999999999999999999",
                                      "nan", "five", "1001", "-1"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (parse("-c", bad[i], NULL) != HILL_E_INVALID)
            fail_msg("'%s' was taken for an integer", bad[i]);
        expect_refused("-c");
    }
    assert_int_equal(parse("-c", "1000", NULL), 0);
    assert_int_equal(parse("-c", "0", NULL), 0);
}

static void test_reals_are_strict(void **state)
{
    (void)state;
    static const char *const bad[] = {"0",     "-0.1", "1.0000001", "nan",  "inf",    "1e999",
                                      "0.2.1", "0,2",  "",          "0.5x", "0x1p-1", "auto"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (parse("--alpha", bad[i], NULL) != HILL_E_INVALID)
            fail_msg("'%s' was taken for an alpha", bad[i]);
    assert_int_equal(parse("--alpha", "1", NULL), 0);
    assert_int_equal(parse("--alpha", ".25", NULL), 0);
    assert_true(options_real(options, "alpha") == 0.25);
    assert_int_equal(parse("--alpha", "1e-3", NULL), 0);
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"1", 1 << 20},
                {"0.5", 1 << 19},
                {"3M", 3 << 20},
                {"64K", 64 << 10},
                {"1.5G", UINT64_C(3) << 29},
                {"2g", UINT64_C(2) << 30}};
    for (unsigned i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(parse("--hot-mb", good[i].text, NULL), 0);
        assert_int_equal(options_bytes(options, "hot-mb"), good[i].bytes);
    }
    static const char *const bad[] = {"0",  "-1",   "1MB", "K", "1 M", "5G",
                                      "1T", "1e30", "1P",  "",  "0.5K"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (parse("--hot-mb", bad[i], NULL) != HILL_E_INVALID)
            fail_msg("'%s' was taken for a size", bad[i]);
}

static void test_note_of_a_range_is_said(void **state)
{
    (void)state;
    assert_int_equal(parse("-np", "2", NULL), HILL_E_INVALID);
    expect_refused("one only");
}

/* ---- words ------------------------------------------------------------------------------- */

static void test_choices(void **state)
{
    (void)state;
    assert_int_equal(parse("--policy", "full", NULL), 0);
    static const char *const bad[] = {"ful", "full|hillinfer", "", "FULL", "hill"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (parse("--policy", bad[i], NULL) != HILL_E_INVALID)
            fail_msg("'%s' was taken for a policy", bad[i]);
    assert_int_equal(parse("--policy", "h2o", NULL), HILL_E_INVALID);
    expect_refused("not in this version");
}

static void test_word_or_number(void **state)
{
    (void)state;
    assert_int_equal(parse("--beta", "0.25", NULL), 0);
    assert_false(options_is_word(options, "beta"));
    assert_true(options_real(options, "beta") == 0.25);
    assert_int_equal(parse("--beta", "automatic", NULL), HILL_E_INVALID);
    expect_refused("auto");
}

static void test_paths(void **state)
{
    (void)state;
    assert_int_equal(parse("-m", "", NULL), HILL_E_INVALID);
    char *longer = malloc(10000);
    memset(longer, 'a', 9999);
    longer[9999] = '\0';
    assert_int_equal(parse("-m", longer, NULL), HILL_E_INVALID);
    assert_int_equal(parse("-p", longer, NULL), 0);
    assert_int_equal(strlen(options_text(options, "prompt")), 9999);
    free(longer);
}

/* ---- refusals ---------------------------------------------------------------------------- */

static void test_unknown_and_leftover_arguments(void **state)
{
    (void)state;
    assert_int_equal(parse("--ctx", "5", NULL), HILL_E_INVALID);
    expect_refused("--ctx");
    assert_int_equal(parse("-x", NULL), HILL_E_INVALID);
    expect_refused("-x");
    assert_int_equal(parse("--=5", NULL), HILL_E_INVALID);
    assert_int_equal(parse("-ngl", "9", NULL), HILL_E_INVALID);
    assert_string_equal(why.text, "unknown option -ngl: leave it out");
    assert_int_equal(parse("--warmth=9", NULL), HILL_E_INVALID);
    assert_string_equal(why.text, "unknown option --warmth: say --temp");
    assert_int_equal(parse("--warm", NULL), HILL_E_INVALID);
    assert_string_equal(why.text, "unknown option --warm");
    assert_int_equal(parse("-c", NULL), HILL_E_INVALID);
    expect_refused("needs a value");
    assert_int_equal(parse("one", "two", NULL), HILL_E_INVALID);
    expect_refused("two");
    assert_int_equal(parse("--json=maybe", NULL), HILL_E_INVALID);
    assert_int_equal(parse("--temp", "1", NULL), HILL_E_INVALID); /* another program's */
}

static void test_file_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"ctxsize = 5\n", "ctxsize"},     {"ctx-size = 5\nctx-size = 6\n", "twice"},
        {"ctx-size\n", "line 1"},         {"[other]\nctx-size = 5\n", "other"},
        {"ctx-size = 12x\n", "line 1"},   {"config = /tmp/x\n", "config"},
        {"HILL_CTX_SIZE = 5\n", "HILL_"}, {"ctx-size = 5\n  alpha = 0.5\n", "twice"},
        {"json = maybe\n", "maybe"},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (parse("--config", write_file(bad[i].text), NULL) != HILL_E_INVALID)
            fail_msg("taken for a configuration file: %s", bad[i].text);
        expect_refused(bad[i].word);
    }
}

static void test_file_line_too_long_is_refused_not_cut(void **state)
{
    (void)state;
    char text[1000];
    memset(text, 'a', sizeof text);
    memcpy(text, "model = ", 8);
    strcpy(text + 900, "\n");
    assert_int_equal(parse("--config", write_file(text), NULL), HILL_E_INVALID);
    expect_refused("longer");
}

static void test_file_that_is_missing(void **state)
{
    (void)state;
    assert_int_equal(parse("--config", "/nonexistent/x.ini", NULL), HILL_E_INVALID);
    expect_refused("/nonexistent/x.ini");
    assert_int_equal(parse("--config", "/tmp", NULL), HILL_E_INVALID);
    expect_refused("/tmp: Is a directory");
}

static void test_foreign_names_pass_in_file_and_environment(void **state)
{
    (void)state;
    setenv("HILL_TEMP", "hot", 1);
    assert_int_equal(parse("--config", write_file("temp = 3\njson = yes\n"), NULL), 0);
    assert_true(options_flag(options, "json"));
}

/* ---- help -------------------------------------------------------------------------------- */

static void test_help_names_everything(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    options_help(memory, &program);
    fclose(memory);
    static const char *const words[] = {"usage: prog",
                                        "example: prog -c 5",
                                        "-c, --ctx-size N",
                                        "0 to 1000",
                                        "default 7",
                                        "-np, --parallel",
                                        "above 0 to 1",
                                        "default auto",
                                        "default a share",
                                        "full|hillinfer",
                                        "--json",
                                        "exit codes",
                                        "130",
                                        "HILL_HOT_MB",
                                        "--config"};
    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strstr(text, words[i]))
            fail_msg("--help does not say '%s'", words[i]);
    assert_null(strstr(text, "--temp"));
    free(text);
}

static void test_help_wins_but_is_not_taken_from_a_value(void **state)
{
    (void)state;
    enum option_question question;
    char *asked[] = {(char *)"prog", (char *)"-c", (char *)"bad", (char *)"--help"};
    assert_int_equal(options_parse(&options, &program, 4, asked, &question, &why), 0);
    assert_int_equal(question, OPTIONS_HELP);
    char *value[] = {(char *)"prog", (char *)"-p", (char *)"--help"};
    assert_int_equal(options_parse(&options, &program, 3, value, &question, &why), 0);
    assert_int_equal(question, OPTIONS_NONE);
    assert_string_equal(options_text(options, "prompt"), "--help");
}

#define T(test) cmocka_unit_test_teardown(test, reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_default_holds_when_nothing_is_given),
        T(test_sources_in_order),
        T(test_config_from_the_environment),
        T(test_empty_variable_counts_as_unset),
        T(test_bad_variable_is_refused_by_its_name),
        T(test_spellings),
        T(test_last_argument_wins),
        T(test_integers_are_strict),
        T(test_reals_are_strict),
        T(test_sizes),
        T(test_note_of_a_range_is_said),
        T(test_choices),
        T(test_word_or_number),
        T(test_paths),
        T(test_unknown_and_leftover_arguments),
        T(test_file_refusals),
        T(test_file_line_too_long_is_refused_not_cut),
        T(test_file_that_is_missing),
        T(test_foreign_names_pass_in_file_and_environment),
        T(test_help_names_everything),
        T(test_help_wins_but_is_not_taken_from_a_value),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
