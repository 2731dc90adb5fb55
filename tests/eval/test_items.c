/*
 * Task files (whole, damaged), texts cut into pieces, and the grading rules, worked by hand.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/eval/grade.h"

static char path[64];
static struct item_list list;
static struct hill_why why;

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/hill-test-items-XXXXXX");
    int fd = mkstemp(path);
    memset(&list, 0, sizeof list);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    items_free(&list);
    return unlink(path);
}

static void put(const char *text, size_t bytes)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static int read_text(const char *text)
{
    put(text, strlen(text));
    return items_read_tasks(&list, path, 0, &why);
}

#define GOOD "{\"task\":\"key\",\"prompt\":\"a b\",\"answers\":[\"1\",\"2\"]}\n"

static void members_are_taken(void **state)
{
    (void)state;
    assert_int_equal(read_text(GOOD "\n  \n"
                                    "{\"seed\":3,\"task\":\"k-2K\",\"prompt\":\"\\u00e9\\n\","
                                    "\"answers\":[\"x\"],\"match\":\"start\",\"predict\":7}"),
                     0);
    assert_int_equal(list.count, 2);
    const struct item *a = &list.items[0], *b = &list.items[1];
    char place[96];
    snprintf(place, sizeof place, "%s:4", path);
    assert_string_equal(a->group, "key");
    assert_string_equal(a->prompt, "a b");
    assert_int_equal(a->n_answers, 2);
    assert_string_equal(a->answers[1], "2");
    assert_int_equal(a->rule, ITEM_LINE);
    assert_int_equal(a->predict, 0);
    assert_string_equal(b->place, place);
    assert_string_equal(b->prompt, "\xc3\xa9\n");
    assert_int_equal(b->prompt_bytes, 3);
    assert_int_equal(b->rule, ITEM_START);
    assert_int_equal(b->predict, 7);
}

#define CHOICE                                                                                     \
    "{\"task\":\"c\",\"prompt\":\"a b\",\"choices\":[\"x\",\"yz \",\"\\u00e9\"],\"gold\":1}\n"

static void choices_are_items(void **state)
{
    (void)state;
    static const char *const texts[] = {"a b x", "a b yz ", "a b \xc3\xa9"};
    static const uint32_t bytes[] = {1, 3, 2};
    assert_int_equal(read_text(GOOD CHOICE GOOD), 0);
    assert_int_equal(list.count, 5);
    for (uint32_t i = 0; i < 3; i++) {
        const struct item *item = &list.items[1 + i];
        char place[96];
        snprintf(place, sizeof place, "%s:2 choice %u", path, i);
        assert_true(item->is_choice && item_is_scored(item) && !item->is_text);
        assert_string_equal(item->place, place);
        assert_string_equal(item->prompt, texts[i]);
        assert_int_equal(item->prompt_bytes, strlen(texts[i]));
        assert_int_equal(item->context_bytes, 3);
        assert_int_equal(item->choice, i);
        assert_int_equal(item->choice_bytes, bytes[i]);
        assert_int_equal(item->n_choices, 3);
        assert_int_equal(item->gold, 1);
        for (uint32_t j = 0; j < i; j++)
            assert_true(item->hash != list.items[1 + j].hash);
    }
    assert_false(list.items[4].is_choice);
}

/* Questions count, not their choices. */
static void the_limit_keeps_whole_questions(void **state)
{
    (void)state;
    put(CHOICE CHOICE CHOICE GOOD, strlen(CHOICE CHOICE CHOICE GOOD));
    assert_int_equal(items_read_tasks(&list, path, 2, &why), 0);
    assert_int_equal(list.count, 7);
    assert_int_equal(list.items[5].choice, 2);
    assert_string_equal(list.items[6].group, "key");
}

/* 10, 30, 12 | 5 | 11 tokens; the question goes as a whole. */
static void what_is_too_long_is_left_out(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {10, 30, 12, 5, 11};
    uint32_t longest = 0;
    assert_int_equal(read_text(CHOICE GOOD GOOD), 0);
    for (unsigned i = 0; i < 5; i++)
        list.items[i].n_tokens = tokens[i];
    list.items[4].predict = 2;
    assert_int_equal(items_fit(&list, 30, &longest, &why), 0);
    assert_int_equal(list.count, 5);
    assert_int_equal(longest, 30);
    assert_int_equal(items_fit(&list, 13, &longest, &why), 0);
    assert_int_equal(list.count, 2);
    assert_int_equal(longest, 13);
    assert_int_equal(items_fit(&list, 12, &longest, &why), 0);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.items[0].n_tokens, 5);
    assert_int_equal(items_fit(&list, 4, &longest, &why), HILL_E_INVALID);
    assert_int_equal(list.count, 0);
}

/* Each is refused in one line that names the file and line 2. */
static void damaged_lines_are_named(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "{",
        "[]",
        "\"text\"",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":[\"1\"]",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":[\"1\"]} trailing",
        "{\"task\":\"k\",\"task\":\"l\",\"prompt\":\"p\",\"answers\":[\"1\"]}",
        "{\"prompt\":\"p\",\"answers\":[\"1\"]}",
        "{\"task\":\"\",\"prompt\":\"p\",\"answers\":[\"1\"]}",
        "{\"task\":\"a|b\",\"prompt\":\"p\",\"answers\":[\"1\"]}",
        "{\"task\":5,\"prompt\":\"p\",\"answers\":[\"1\"]}",
        "{\"task\":\"k\",\"answers\":[\"1\"]}",
        "{\"task\":\"k\",\"prompt\":\"\",\"answers\":[\"1\"]}",
        "{\"task\":\"k\",\"prompt\":\"a\\u0000b\",\"answers\":[\"1\"]}",
        "{\"task\":\"k\",\"prompt\":\"\xff\",\"answers\":[\"1\"]}",
        "{\"task\":\"k\",\"prompt\":\"p\"}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":\"1\"}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":[]}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":[\"1\",2]}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":[\"\"]}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":[\"1\"],\"match\":\"some\"}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":[\"1\"],\"match\":1}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":[\"1\"],\"predict\":0}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":[\"1\"],\"predict\":4097}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":[\"1\"],\"predict\":1.5}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"answers\":[\"1\"],\"chat\":1}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"choices\":[\"1\",\"2\"]}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"choices\":[\"1\",\"2\"],\"gold\":2}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"choices\":[\"1\",\"2\"],\"gold\":-1}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"choices\":[\"1\",\"2\"],\"gold\":\"1\"}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"choices\":[\"1\"],\"gold\":0}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"choices\":\"1\",\"gold\":0}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"choices\":[\"1\",\"\"],\"gold\":0}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"choices\":[\"1\",2],\"gold\":0}",
        "{\"task\":\"k\",\"prompt\":\"p \",\"choices\":[\"1\",\"2\"],\"gold\":0}",
        "{\"task\":\"k\",\"prompt\":\"p\",\"choices\":[\"1\",\"2\"],\"gold\":0,"
        "\"answers\":[\"1\"]}",
    };
    char text[512], begin[96];
    snprintf(begin, sizeof begin, "%s:2 is no task: ", path);
    for (unsigned i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        snprintf(text, sizeof text, GOOD "%s\n" GOOD, lines[i]);
        if (read_text(text) != HILL_E_DAMAGED || strncmp(why.text, begin, strlen(begin)) != 0 ||
            strchr(why.text, '\n'))
            fail_msg("line %u, %s: %s", i, lines[i], why.text);
        items_free(&list);
    }
}

static void a_nul_byte_is_named(void **state)
{
    (void)state;
    static const char text[] = GOOD "\0\n" GOOD;
    put(text, sizeof text - 1);
    assert_int_equal(items_read_tasks(&list, path, 0, &why), HILL_E_DAMAGED);
    assert_non_null(strstr(why.text, ":2 is no task"));
}

static void files_without_tasks(void **state)
{
    (void)state;
    assert_int_equal(read_text("\n"), HILL_E_DAMAGED);
    assert_non_null(strstr(why.text, "holds no task"));
    assert_int_equal(items_read_tasks(&list, "/nowhere/t.jsonl", 0, &why), HILL_E_INVALID);
    assert_non_null(strstr(why.text, "/nowhere/t.jsonl"));
    assert_int_equal(items_read_tasks(&list, "/tmp", 0, &why), HILL_E_INVALID);
}

static void the_limit_is_each_tasks_own(void **state)
{
    (void)state;
    static const char text[] =
        GOOD GOOD "{\"task\":\"l\",\"prompt\":\"p\",\"answers\":[\"1\"]}\n" GOOD;
    put(text, sizeof text - 1);
    assert_int_equal(items_read_tasks(&list, path, 2, &why), 0);
    assert_int_equal(list.count, 3);
    assert_string_equal(list.items[2].group, "l");
    assert_int_equal(items_read_tasks(&list, path, 2, &why), 0); /* in all files together */
    assert_int_equal(list.count, 4);
}

static void what_a_person_wrote_changes_the_hash(void **state)
{
    (void)state;
    static const char *const texts[] = {
        GOOD,
        "{\"task\":\"kez\",\"prompt\":\"a b\",\"answers\":[\"1\",\"2\"]}",
        "{\"task\":\"key\",\"prompt\":\"a c\",\"answers\":[\"1\",\"2\"]}",
        "{\"task\":\"key\",\"prompt\":\"a b\",\"answers\":[\"12\"]}",
        "{\"task\":\"key\",\"prompt\":\"a b\",\"answers\":[\"2\",\"1\"]}",
        "{\"task\":\"key\",\"prompt\":\"a b\",\"answers\":[\"1\",\"2\"],\"match\":\"all\"}",
        "{\"task\":\"key\",\"prompt\":\"a b\",\"answers\":[\"1\",\"2\"],\"predict\":3}",
        "{\"task\":\"key\",\"prompt\":\"a b\",\"answers\":[\"1\",\"2\"],\"chat\":true}",
        /* two items each: the border between prompt and choice counts */
        "{\"task\":\"key\",\"prompt\":\"a\",\"choices\":[\"b\",\"b c\"],\"gold\":0}",
        "{\"task\":\"key\",\"prompt\":\"a b\",\"choices\":[\"c\",\"d\"],\"gold\":0}",
    };
    for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_int_equal(read_text(texts[i]), 0);
    assert_int_equal(read_text(" {\"answers\":[\"1\",\"2\"], \"prompt\":\"a b\",\"task\":\"key\"}"),
                     0);
    size_t n = list.count - 1;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(list.items[i].hash != list.items[j].hash);
    assert_true(list.items[n].hash == list.items[0].hash); /* only the order of members differs */
}

static void texts_are_cut_between_characters(void **state)
{
    (void)state;
    const struct item_text_order order = {64, 3, 5};
    char text[200];
    for (unsigned i = 0; i < sizeof text; i += 2)
        memcpy(text + i, "\xc3\xa9", 2);
    put(text, sizeof text);
    assert_int_equal(items_read_text(&list, path, &order, &why), 0);
    assert_int_equal(list.count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_true(list.items[i].is_text);
        assert_int_equal(list.items[i].n_scored, 5);
        assert_int_equal(list.items[i].prompt_bytes % 2, 0);
        assert_memory_equal(list.items[i].prompt, text, list.items[i].prompt_bytes);
        assert_true(list.items[i].prompt_bytes >= 62 && list.items[i].prompt_bytes <= 64);
    }
    const struct item_text_order large = {201, 3, 5};
    assert_int_equal(items_read_text(&list, path, &large, &why), HILL_E_DAMAGED);
    text[7] = '\0';
    put(text, sizeof text);
    assert_int_equal(items_read_text(&list, path, &order, &why), HILL_E_DAMAGED);
}

static bool grade(enum item_rule rule, const char *first, const char *second, const char *text)
{
    char *answers[] = {(char *)first, (char *)second};
    const struct item item = {.answers = answers, .n_answers = second ? 2 : 1, .rule = rule};
    return grade_answer(&item, text, strlen(text));
}

static void the_line_rule(void **state)
{
    (void)state;
    assert_true(grade(ITEM_LINE, "51", NULL, " 51."));
    assert_true(grade(ITEM_LINE, "51", NULL, "51"));
    assert_true(grade(ITEM_LINE, "51", NULL, "\n it is 51, 52"));
    assert_false(grade(ITEM_LINE, "51", NULL, " no\n51"));
    assert_false(grade(ITEM_LINE, "51", NULL, ""));
    assert_true(grade(ITEM_LINE, "51", "52", " 51, 52."));
    assert_false(grade(ITEM_LINE, "51", "52", " 52, 51."));
    assert_false(grade(ITEM_LINE, "51", "52", " 51."));
    assert_false(grade(ITEM_LINE, "51", "51", " 51."));
}

static void answers_are_whole_words(void **state)
{
    (void)state;
    assert_false(grade(ITEM_CONTAINS, "51", NULL, "5123"));
    assert_false(grade(ITEM_CONTAINS, "51", NULL, "351"));
    assert_true(grade(ITEM_CONTAINS, "51", NULL, "5123 51"));
    assert_false(grade(ITEM_CONTAINS, "cat", NULL, "cat\xc3\xa9"));
    assert_true(grade(ITEM_CONTAINS, "(51)", NULL, "a(51)b"));
    assert_false(grade(ITEM_CONTAINS, "Rome", NULL, "rome"));
}

static void the_other_rules(void **state)
{
    (void)state;
    assert_true(grade(ITEM_CONTAINS, "51", "52", "x\n52"));
    assert_false(grade(ITEM_CONTAINS, "51", "52", "53"));
    assert_true(grade(ITEM_START, "51", "52", " \n 52 51"));
    assert_false(grade(ITEM_START, "51", "52", "is 52"));
    assert_false(grade(ITEM_START, "51", "52", "521"));
    assert_true(grade(ITEM_ALL, "51", "52", "52\n51"));
    assert_true(grade(ITEM_NUMBER, "51", NULL, "line 7: <51>."));
    assert_true(grade(ITEM_NUMBER, "51", NULL, "x51"));
    assert_false(grade(ITEM_NUMBER, "51", NULL, "it is 51, of line 7"));
    assert_false(grade(ITEM_NUMBER, "51", NULL, "5123"));
    assert_false(grade(ITEM_NUMBER, "51", NULL, "351"));
    assert_false(grade(ITEM_NUMBER, "51", NULL, "none"));
    assert_false(grade(ITEM_ALL, "51", "52", "52"));
}

int main(void)
{
#define WITH_FILE(test) cmocka_unit_test_setup_teardown(test, make_path, remove_path)
    const struct CMUnitTest tests[] = {
        WITH_FILE(members_are_taken),
        WITH_FILE(choices_are_items),
        WITH_FILE(the_limit_keeps_whole_questions),
        WITH_FILE(what_is_too_long_is_left_out),
        WITH_FILE(damaged_lines_are_named),
        WITH_FILE(a_nul_byte_is_named),
        WITH_FILE(files_without_tasks),
        WITH_FILE(the_limit_is_each_tasks_own),
        WITH_FILE(what_a_person_wrote_changes_the_hash),
        WITH_FILE(texts_are_cut_between_characters),
        cmocka_unit_test(the_line_rule),
        cmocka_unit_test(answers_are_whole_words),
        cmocka_unit_test(the_other_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
