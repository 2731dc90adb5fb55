/*
 * The results file that lets a run go on, the matrix of settings, and the table, worked by hand.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/eval/tables.h"

static char path[64];
static struct hill_why why;
static struct results *results;
static const struct subject subject = {.fingerprint = 7};
static char *answers[] = {(char *)"51"};
static struct item items[] = {
    {.group = (char *)"key", .place = (char *)"t:1", .answers = answers, .n_answers = 1, .hash = 1},
    {.group = (char *)"key", .place = (char *)"t:2", .answers = answers, .n_answers = 1, .hash = 2},
    {.group = (char *)"copy",
     .place = (char *)"t:3",
     .answers = answers,
     .n_answers = 1,
     .hash = 3},
    {.group = (char *)"book", .place = (char *)"b:0", .is_text = true, .n_scored = 4, .hash = 4},
};
static const struct item_list list = {items, 4, 4};
static struct matrix matrix;

static const struct matrix_order small = {"full,hillinfer", "0.1", NULL, "sum", "8", "off", 4, 32};

static int set_up(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/hill-test-results-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 || close(fd) || matrix_build(&matrix, &small, &why);
}

static int tear_down(void **state)
{
    (void)state;
    results_close(results);
    results = NULL;
    matrix_free(&matrix);
    return unlink(path);
}

static uint64_t key_of(unsigned item, unsigned row)
{
    const struct job job = {&items[item], &matrix.rows[row]};
    return results_key(&subject, &job);
}

static void add(unsigned item, unsigned row, const char *text, double logprob)
{
    const struct job job = {&items[item], &matrix.rows[row]};
    const struct answer answer = {.text = (char *)text,
                                  .text_bytes = strlen(text),
                                  .logprob = logprob,
                                  .n_scored = job.item->n_scored,
                                  .selected = 100 * (row + 1)};
    assert_int_equal(results_add(results, results_key(&subject, &job), &job, &answer, &why), 0);
}

static void reopen(void)
{
    results_close(results);
    assert_int_equal(results_open(&results, path, &why), 0);
}

static void append_text(const char *text)
{
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static long file_bytes(void)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    fclose(file);
    return bytes;
}

/* ---- the file ------------------------------------------------------------------------------ */

static void what_was_added_is_found_again(void **state)
{
    (void)state;
    reopen();
    add(0, 0, " 51.", 0);
    add(1, 1, " 52 \"\\\n\t\xc3\xa9", 0);
    add(3, 1, "", -2.5);
    assert_true(results_find(results, key_of(0, 0))->right);
    reopen();
    assert_int_equal(results_count(results), 3);
    assert_true(results_find(results, key_of(0, 0))->right);
    assert_false(results_find(results, key_of(1, 1))->right);
    const struct result *text = results_find(results, key_of(3, 1));
    assert_float_equal(text->logprob, -2.5, 1e-12);
    assert_int_equal(text->n_scored, 4);
    assert_int_equal(text->selected, 200);
    assert_null(results_find(results, key_of(0, 1)));
    assert_null(results_find(results, key_of(1, 0)));
}

static void model_setting_and_item_make_the_key(void **state)
{
    (void)state;
    const struct subject other = {.fingerprint = 8};
    const struct job job = {&items[0], &matrix.rows[0]};
    assert_true(key_of(0, 0) != key_of(0, 1));
    assert_true(key_of(0, 0) != key_of(1, 0));
    assert_true(key_of(0, 0) != results_key(&other, &job));
}

static void a_line_without_its_end_is_cut_off(void **state)
{
    (void)state;
    reopen();
    add(0, 0, "51", 0);
    long whole = file_bytes();
    append_text("{\"key\":\"0123456789abcdef\",\"right\":true,\"sele");
    reopen();
    assert_int_equal(results_count(results), 1);
    assert_int_equal(file_bytes(), whole);
    add(1, 0, "51", 0);
    reopen();
    assert_int_equal(results_count(results), 2);
}

static void a_damaged_line_is_named(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "no JSON\n",
        "[]\n",
        "{\"right\":true,\"selected\":1}\n",
        "{\"key\":\"0123456789ABCDEF\",\"right\":true,\"selected\":1}\n",
        "{\"key\":\"0123456789abcdef0\",\"right\":true,\"selected\":1}\n",
        "{\"key\":\"0123456789abcdef\",\"selected\":1}\n",
        "{\"key\":\"0123456789abcdef\",\"right\":true,\"selected\":-1}\n",
        "{\"key\":\"0123456789abcdef\",\"right\":true,\"selected\":4294967296}\n",
        "{\"key\":\"0123456789abcdef\",\"logprob\":0.5,\"scored\":1,\"selected\":1}\n",
        "{\"key\":\"0123456789abcdef\",\"logprob\":-0.5,\"scored\":0,\"selected\":1}\n",
        "\n",
    };
    char begin[96];
    snprintf(begin, sizeof begin, "%s:2 is no result: ", path);
    for (unsigned i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        assert_int_equal(truncate(path, 0), 0);
        reopen();
        add(0, 0, "51", 0);
        append_text(lines[i]);
        results_close(results);
        long bytes = file_bytes();
        int code = results_open(&results, path, &why);
        if (code != HILL_E_DAMAGED || strncmp(why.text, begin, strlen(begin)) != 0)
            fail_msg("line %u: %d, %s", i, code, why.text);
        assert_null(results);
        assert_int_equal(file_bytes(), bytes); /* a damaged file is left as it is */
    }
}

static void one_run_at_a_time(void **state)
{
    (void)state;
    struct results *second = NULL;
    reopen();
    assert_int_equal(results_open(&second, path, &why), HILL_E_BUSY);
    assert_null(second);
    assert_int_equal(results_open(&second, "/nowhere/r.jsonl", &why), HILL_E_IO);
}

/* ---- the matrix ---------------------------------------------------------------------------- */

static void full_is_there_once(void **state)
{
    (void)state;
    const struct matrix_order order = {
        "full,hillinfer,window", "0.05,0.1", "64", "sum,max", "8,4", "off", 4, 32};
    struct matrix m;
    unsigned full = 0, window = 0, hillinfer = 0;
    assert_int_equal(matrix_build(&m, &order, &why), 0);
    assert_int_equal(m.n_pipelines, 2);
    for (uint32_t i = 0; i < m.n_rows; i++) {
        full += strcmp(m.rows[i].name, "full") == 0;
        window += m.rows[i].window_only;
        hillinfer += strcmp(m.rows[i].name, "hillinfer") == 0;
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(m.rows[i].text, m.rows[j].text);
    }
    assert_int_equal(full, 1);
    assert_int_equal(window, 3);
    assert_int_equal(hillinfer, 3 * 2 + 3); /* 4 bits with the first importance alone */
    matrix_free(&m);
}

static void window_takes_all_that_the_budget_allows(void **state)
{
    (void)state;
    const struct matrix_order order = {"hillinfer,window", "0.1", "64", "sum", "8", "off", 4, 32};
    Hill__Selection s;
    struct matrix m;
    assert_int_equal(matrix_build(&m, &order, &why), 0);
    assert_int_equal(m.n_rows, 4);
    setting_selection(&m.rows[0], 1000, &s);
    assert_int_equal(s.window, 32);
    assert_int_equal(s.budget, 0);
    setting_selection(&m.rows[2], 1001, &s); /* ceil(100.1) */
    assert_int_equal(s.budget, 101);
    assert_int_equal(s.sinks, 4);
    assert_int_equal(s.window, 97);
    setting_selection(&m.rows[3], 1000, &s);
    assert_int_equal(s.budget, 64);
    assert_int_equal(s.window, 60);
    setting_selection(&m.rows[2], 100, &s); /* no less than sinks and --window */
    assert_int_equal(s.budget, 36);
    matrix_free(&m);
}

static void wrong_words_are_named(void **state)
{
    (void)state;
    static const struct {
        struct matrix_order order;
        const char *named;
    } cases[] = {
        {{"fall", "0.1", NULL, "sum", "8", "off", 4, 32}, "fall"},
        {{"full,full", "0.1", NULL, "sum", "8", "off", 4, 32}, "full twice"},
        {{"hillinfer,", "0.1", NULL, "sum", "8", "off", 4, 32}, "--policy"},
        {{"hillinfer", "0", NULL, "sum", "8", "off", 4, 32}, "--alpha: 0"},
        {{"hillinfer", "1.1", NULL, "sum", "8", "off", 4, 32}, "--alpha: 1.1"},
        {{"hillinfer", "0.1x", NULL, "sum", "8", "off", 4, 32}, "--alpha: 0.1x"},
        {{"hillinfer", "nan", NULL, "sum", "8", "off", 4, 32}, "--alpha: nan"},
        {{"hillinfer", NULL, "35", "sum", "8", "off", 4, 32}, "--budget: 35 is less"},
        {{"hillinfer", NULL, "-1", "sum", "8", "off", 4, 32}, "--budget: -1"},
        {{"hillinfer", NULL, "99999999999", "sum", "8", "off", 4, 32}, "--budget: 99999999999"},
        {{"hillinfer", "0.1", NULL, "mean", "8", "off", 4, 32}, "mean"},
        {{"hillinfer", NULL, NULL, "sum", "8", "off", 4, 32}, "nothing to compare"},
        {{"hillinfer", "0.1234567890123456", NULL, "sum", "8", "off", 4, 32}, "--alpha"},
    };
    struct matrix m;
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int code = matrix_build(&m, &cases[i].order, &why);
        if (code != HILL_E_INVALID || !strstr(why.text, cases[i].named))
            fail_msg("case %u: %d, %s", i, code, why.text);
        assert_null(m.rows);
    }
}

/* ---- the table ----------------------------------------------------------------------------- */

static void table_worked_by_hand(void **state)
{
    (void)state;
    struct table t;
    reopen();
    add(0, 0, "51", 0);
    add(1, 0, "51", 0);
    add(2, 0, "52", 0);
    add(3, 0, "", -4 * log(2)); /* every token 1/2: perplexity 2 */
    add(0, 1, "51", 0);
    add(1, 1, "x", 0);
    assert_int_equal(table_build(&t, &subject, &list, &matrix, results, &why), 0);
    assert_int_equal(t.n_columns, 3);
    assert_int_equal(t.n_tasks, 2);
    assert_string_equal(t.columns[2].name, "book");
    assert_float_equal(t.rows[0].accuracy, 0.5, 1e-12); /* key 2 of 2, copy 0 of 1 */
    assert_float_equal(t.rows[0].perplexity, 2, 1e-9);
    assert_float_equal(t.rows[0].selected, 100, 1e-12);
    assert_true(isnan(t.rows[0].worst));
    assert_true(isnan(t.rows[1].accuracy)); /* copy has no result yet */
    assert_true(isnan(t.rows[1].perplexity));
    assert_float_equal(t.rows[1].worst, -50, 1e-9);
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    assert_non_null(to);
    assert_int_equal(table_print(&t, to, &why), 0);
    fclose(to);
    assert_non_null(strstr(text, "key, % (2) | copy, % (1) | book, perplexity (1) |"));
    assert_non_null(
        strstr(text, "| full | all | - | - | - | 100.0 | 0.0 | 2 | 50.0 | - | 100 |\n"));
    assert_non_null(
        strstr(text, "| hillinfer | 10 % | sum | 8 | off | 50.0 | - | - | - | -50.0 | 200 |\n"));
    free(text);
    table_free(&t);
}

static void a_cell_says_when_items_are_missing(void **state)
{
    (void)state;
    struct table t;
    char *text = NULL;
    size_t bytes;
    reopen();
    add(0, 0, "51", 0);
    assert_int_equal(table_build(&t, &subject, &list, &matrix, results, &why), 0);
    FILE *to = open_memstream(&text, &bytes);
    assert_int_equal(table_print(&t, to, &why), 0);
    fclose(to);
    assert_non_null(strstr(text, "| full | all | - | - | - | 100.0 (1 of 2) | - | - |"));
    assert_non_null(
        strstr(text, "\nCommits of hill-eval, with the results of each: unknown (1).\n"));
    free(text);
    table_free(&t);
}

static void the_plot_has_a_line_a_policy(void **state)
{
    (void)state;
    struct table t;
    char *text = NULL;
    size_t bytes;
    reopen();
    for (unsigned row = 0; row < 2; row++)
        for (unsigned item = 0; item < 3; item++)
            add(item, row, item < 2 ? "51" : "52", 0);
    assert_int_equal(table_build(&t, &subject, &list, &matrix, results, &why), 0);
    FILE *to = open_memstream(&text, &bytes);
    table_write_plot(&t, "a 'title'\n", "x.svg", to);
    fclose(to);
    assert_non_null(strstr(text, "set output 'x.svg'\n"));
    assert_non_null(strstr(text, "'a ''title'''\n"));
    assert_non_null(strstr(text, "title 'full'"));
    assert_non_null(strstr(text, "title 'hillinfer, INT8, sum'"));
    assert_non_null(strstr(text, "\n100 50\ne\n200 50\ne\n"));
    assert_null(strstr(text, "perplexity"));
    free(text);
    table_free(&t);
}

/* ---- multiple choice ----------------------------------------------------------------------- */

#define CHOICE_ITEM(question, index, of, right, length)                                            \
    {                                                                                              \
        .is_choice = true, .group = (char *)"pick", .place = (char *)"t",                          \
        .hash = 100 * question + index, .choice = index, .n_choices = of, .gold = right,           \
        .choice_bytes = length, .n_scored = 2                                                      \
    }

/* Question 1: gold 1; 2: gold 0; 3: gold 2. */
static struct item choice_items[] = {
    CHOICE_ITEM(1, 0, 2, 1, 10), CHOICE_ITEM(1, 1, 2, 1, 20), CHOICE_ITEM(2, 0, 2, 0, 4),
    CHOICE_ITEM(2, 1, 2, 0, 4),  CHOICE_ITEM(3, 0, 3, 2, 5),  CHOICE_ITEM(3, 1, 3, 2, 5),
    CHOICE_ITEM(3, 2, 3, 2, 5),
};

static void add_choices(unsigned row, const double *logprobs, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        const struct job job = {&choice_items[i], &matrix.rows[row]};
        const struct answer answer = {.logprob = logprobs[i], .n_scored = 2, .selected = 10};
        assert_int_equal(results_add(results, results_key(&subject, &job), &job, &answer, &why), 0);
    }
}

/* full: question 1 by sum is choice 0 (-4 over -6), wrong; by bytes choice 1 (-0.3 over -0.4),
 * right. 2: both -3, so the first, right. 3: choice 2, right.
 * hillinfer: 1: choice 1, right both ways. 2: choice 1, wrong both ways. 3: one is missing. */
static void choices_worked_by_hand(void **state)
{
    (void)state;
    static const double full[] = {-4, -6, -3, -3, -9, -8, -7},
                        hillinfer[] = {-7, -6, -3.5, -3, -1, -2};
    const struct item_list choices = {choice_items, 7, 7};
    struct table t;
    char *text = NULL;
    size_t bytes;
    reopen();
    add_choices(0, full, 7);
    add_choices(1, hillinfer, 6);
    reopen(); /* as another run finds them */
    assert_int_equal(results_count(results), 13);
    assert_int_equal(table_build(&t, &subject, &choices, &matrix, results, &why), 0);
    assert_int_equal(t.n_columns, 2);
    assert_int_equal(t.columns[0].n_items, 3);
    assert_false(t.columns[0].by_bytes);
    assert_true(t.columns[1].by_bytes);
    assert_int_equal(t.rows[0].cells[0].right, 2);
    assert_int_equal(t.rows[0].cells[1].right, 3);
    assert_int_equal(t.rows[1].cells[0].n, 2);
    assert_int_equal(t.rows[1].cells[0].right, 1);
    assert_int_equal(t.rows[1].cells[0].won, 1);
    assert_int_equal(t.rows[1].cells[0].lost, 1);
    assert_int_equal(t.rows[1].cells[1].won, 0);
    assert_int_equal(t.rows[1].cells[1].lost, 1);
    assert_float_equal(t.rows[0].accuracy, 2 / 3.0, 1e-12); /* without the column by bytes */
    FILE *to = open_memstream(&text, &bytes);
    assert_int_equal(table_print(&t, to, &why), 0);
    fclose(to);
    assert_non_null(strstr(text, " pick, % (3) | pick, by bytes, % (3) | mean, %"));
    assert_non_null(strstr(text, "| full | all | - | - | - | 66.7 | 100.0 | 66.7 | - | 10 |\n"));
    assert_non_null(strstr(
        text, "| hillinfer | 10 % | sum | 8 | off | 50.0 (2 of 3) | 50.0 (2 of 3) | 50.0 |"));
    assert_non_null(
        strstr(text, "| hillinfer | 10 % | sum | 8 | off | 1 / 1, p 1 | 0 / 1, p 1 |\n"));
    free(text);
    table_free(&t);
}

/* 2 (C(8,0) + C(8,1)) / 2^8 = 18 / 256; 2 / 2^10; 2 (1 + 5 + 10) / 2^5 = 1. */
static void mcnemar_worked_by_hand(void **state)
{
    (void)state;
    assert_float_equal(table_mcnemar(0, 0), 1, 0);
    assert_float_equal(table_mcnemar(4, 4), 1, 0);
    assert_float_equal(table_mcnemar(1, 7), 18 / 256.0, 1e-12);
    assert_float_equal(table_mcnemar(7, 1), 18 / 256.0, 1e-12);
    assert_float_equal(table_mcnemar(0, 10), 2 / 1024.0, 1e-12);
    assert_float_equal(table_mcnemar(2, 3), 1, 1e-12);
    /* a wide split of many: below what a double tells from 0 in a naive sum of counts */
    assert_true(table_mcnemar(0, 1000) > 0 && table_mcnemar(0, 1000) < 1e-290);
}

int main(void)
{
#define WITH_FILE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_FILE(what_was_added_is_found_again),
        WITH_FILE(model_setting_and_item_make_the_key),
        WITH_FILE(a_line_without_its_end_is_cut_off),
        WITH_FILE(a_damaged_line_is_named),
        WITH_FILE(one_run_at_a_time),
        cmocka_unit_test(full_is_there_once),
        cmocka_unit_test(window_takes_all_that_the_budget_allows),
        cmocka_unit_test(wrong_words_are_named),
        WITH_FILE(table_worked_by_hand),
        WITH_FILE(a_cell_says_when_items_are_missing),
        WITH_FILE(choices_worked_by_hand),
        cmocka_unit_test(mcnemar_worked_by_hand),
        WITH_FILE(the_plot_has_a_line_a_policy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
