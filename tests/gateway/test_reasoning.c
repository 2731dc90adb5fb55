/*
 * test_reasoning.c - a model's reasoning beside its answer: texts written by hand, cut at every
 * byte; random texts in random pieces against a plain search of the whole text; prompts of
 * templates that begin an answer inside a thought.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/reasoning.h"
#include "model/chat_formats.h"
#include "model/chat_template.h"

#define ROUNDS 20000
#define SPACE  " \t\r\n\v\f"

/* How an answer begins: by the template, and with what has been said of it; and whether nothing of
 * it is left out. */
struct beginning {
    const struct reasoning_tags *opened;
    const char *begun;
    bool verbatim;
};

/* The answer, fed in pieces that end where `ends` has a byte other than 0: REASONING|TEXT. */
static char *split(struct beginning how, const char *answer, const char *ends)
{
    struct reasoning_reader reader = {0};
    struct text_buffer reasoning = {0}, text = {0};
    size_t length = strlen(answer), from = 0;
    reader.verbatim = how.verbatim;
    reasoning_begin(&reader, how.opened, how.begun, strlen(how.begun));
    for (size_t to = 1; to <= length; to++)
        if (to == length || ends[to]) {
            reasoning_feed(&reader, answer + from, to - from, &reasoning, &text);
            from = to;
        }
    reasoning_flush(&reader, &reasoning, &text);
    text_puts(&reasoning, "|");
    text_add(&reasoning, text.bytes, text.length);
    text_add(&reasoning, "", 1);
    assert_false(text.failed);
    text_finish(&text);
    reasoning_finish(&reader);
    return reasoning.bytes;
}

static void expect(struct beginning how, const char *answer, const char *ends, const char *wanted)
{
    char *got = split(how, answer, ends);
    if (strcmp(got, wanted) != 0)
        fail_msg("'%s' behind '%s'%s: '%s', not '%s'", answer, how.begun,
                 how.opened ? ", opened" : "", got, wanted);
    free(got);
}

/* Whole, a byte at a time, and in two at every byte. */
static void splits(struct beginning how, const char *answer, const char *wanted)
{
    char ends[256] = {0};
    assert_true(strlen(answer) < sizeof ends);
    for (size_t cut = 0; cut < strlen(answer); cut++) {
        ends[cut] = 1;
        expect(how, answer, ends, wanted);
        ends[cut] = 0;
    }
    memset(ends, 1, sizeof ends);
    expect(how, answer, ends, wanted);
}

static const struct beginning plain = {NULL, ""}, opened = {&reasoning_tags[0], ""},
                              mistral = {&reasoning_tags[1], ""};

static void test_an_answer_that_begins_with_a_thought(void **state)
{
    (void)state;
    splits(plain, "<think>\nOne and\n\none.\n</think>\n\nTwo.\n", "One and\n\none.|Two.\n");
    splits(plain, " \n<think>a</think>b", "a|b");
    splits(plain, "<think>\n\n</think>\n\nTwo.", "|Two.");
    splits(plain, "<think></think>", "|");
    splits(plain, "<think> a < b </ </thin </think></think> c", "a < b </ </thin|</think> c");
    splits(plain, "<think>a</think> <think>b</think>", "a|<think>b</think>");
}

static void test_an_answer_without_one_stays(void **state)
{
    (void)state;
    splits(plain, " Two.\n ", "| Two.\n ");
    splits(plain, "a <think>b</think> c", "|a <think>b</think> c");
    splits(plain, " <thin>", "| <thin>");
    splits(plain, " <thin", "| <thin");
    splits(plain, "</think> a", "|</think> a");
    splits(plain, " \n", "| \n");
    splits(plain, "", "|");
}

static void test_one_that_is_cut_is_reasoning(void **state)
{
    (void)state;
    splits(plain, "<think>\nOne and \n", "One and|");
    splits(plain, "<think>a </thi", "a </thi|");
    splits(plain, "<think> \n", "|");
    splits(opened, " a\n", "a|");
    splits(opened, " <thi ", "<thi|");
    splits(opened, " ", "|");
}

static void test_a_template_that_begins_with_one(void **state)
{
    (void)state;
    splits(opened, "One.\n</think>\n\nTwo.", "One.|Two.");
    splits(opened, "\n<think>\nOne.</think>Two.", "One.|Two.");
    splits(opened, "</think> Two.", "|Two.");
}

/* The tag that ends reasoning is the one that belongs to its first. */
static void test_the_tags_of_mistral(void **state)
{
    (void)state;
    splits(plain, "[THINK]\nOne [1].\n[/THINK]\nTwo.", "One [1].|Two.");
    splits(plain, "[THINK]a</think> [/THIN [/THINK]b", "a</think> [/THIN|b");
    splits(plain, "<think>a[/THINK]</think>b", "a[/THINK]|b");
    splits(plain, "[THINK]a</think>", "a</think>|");
    splits(plain, "[THIN] [/THINK]", "|[THIN] [/THINK]");
    splits(plain, "[1, 2]", "|[1, 2]");
    splits(plain, "[THINK]a[/THINK][THINK]b", "a|[THINK]b");
    splits(mistral, "One.[/THINK]Two.", "One.|Two.");
    splits(mistral, "[THINK]One.</think>[/THINK]Two.", "One.</think>|Two.");
    splits(mistral, "<think>One.[/THINK]Two.", "<think>One.|Two.");
    splits((struct beginning){NULL, "[THINK]One"}, " more[/THINK]Two.", " more|Two.");
}

static void test_an_answer_that_goes_on(void **state)
{
    (void)state;
    splits((struct beginning){NULL, "Two"}, " <think>and", "| <think>and");
    splits((struct beginning){NULL, "<think>One"}, " more</think> Two.", " more|Two.");
    splits((struct beginning){NULL, "<think>One</think>"}, "\n\nTwo.", "|Two.");
    splits((struct beginning){NULL, "<think>One</think> T"}, " wo.", "| wo.");
    splits((struct beginning){opened.opened, "One"}, " more</think>Two.", " more|Two.");
    splits((struct beginning){opened.opened, "One</think>Two"}, " three", "| three");
}

/* For a client that wants both as one text, and calls behind the reasoning alone. */
static void test_nothing_is_left_out(void **state)
{
    (void)state;
    const struct beginning as_it_came = {NULL, "", true}, within = {&reasoning_tags[0], "", true};
    splits(as_it_came, " <think>\n One \n</think>\n\n Two.\n",
           " <think>\n One \n</think>\n\n |Two.\n");
    splits(as_it_came, "<think> a </thi \n", "<think> a </thi \n|");
    splits(as_it_came, " Two.\n ", "| Two.\n ");
    splits(as_it_came, "[THINK] [/THINK]", "[THINK] [/THINK]|");
    splits(within, "\n One </think>Two", "\n One </think>|Two");
    splits(within, " \n", " \n|");
}

static void test_a_reader_that_was_not_begun(void **state)
{
    (void)state;
    struct reasoning_reader reader = {0};
    struct text_buffer reasoning = {0}, text = {0};
    reasoning_feed(&reader, "<think>a</think> ", 17, &reasoning, &text);
    assert_int_equal(text.length, 17);
    reasoning_flush(&reader, &reasoning, &text);
    assert_int_equal(reasoning.length, 0);
    reasoning_finish(&reader);
    text_finish(&text);
}

/* What is certain is out at once: a stream shows it as it comes. */
static void test_nothing_waits_longer_than_it_must(void **state)
{
    (void)state;
    struct reasoning_reader reader = {0};
    struct text_buffer reasoning = {0}, text = {0};
    reasoning_begin(&reader, NULL, "", 0);
    reasoning_feed(&reader, "<think>\nOne, <", 14, &reasoning, &text);
    assert_int_equal(reasoning.length, 4);
    reasoning_feed(&reader, " two </t", 8, &reasoning, &text);
    assert_int_equal(reasoning.length, 10);
    reasoning_feed(&reader, "hink>\n\nT", 8, &reasoning, &text);
    assert_int_equal(text.length, 1);
    reasoning_finish(&reader);
    text_finish(&reasoning);
    text_finish(&text);
}

/* ---- random texts ---- */

/* Of the whole text: REASONING|TEXT. tags: those of the reasoning that is open, or NULL. */
static void oracle(const struct reasoning_tags *tags, const char *answer, char *out)
{
    const char *at = answer + strspn(answer, SPACE), *end;
    bool thinks = strncmp(at, "<think>", 7) == 0 && tags != &reasoning_tags[1],
         brackets = strncmp(at, "[THINK]", 7) == 0 && tags != &reasoning_tags[0];
    if (!thinks && !brackets && !tags) {
        sprintf(out, "|%s", answer);
        return;
    }
    at += thinks || brackets ? 7 : 0;
    at += strspn(at, SPACE);
    end = strstr(at, brackets || tags == &reasoning_tags[1] ? "[/THINK]" : "</think>");
    size_t n = end ? (size_t)(end - at) : strlen(at);
    while (n && strchr(SPACE, at[n - 1]))
        n--;
    sprintf(out, "%.*s|%s", (int)n, at, end ? end + 8 + strspn(end + 8, SPACE) : "");
}

static void test_as_a_search_of_the_whole_text(void **state)
{
    (void)state;
    static const char *const words[] = {"<think>", "</think>", " ",       "\n",       "a",
                                        "b",       "<",        "</",      "th",       "ink>",
                                        "\v",      "<think",   "[THINK]", "[/THINK]", "[/"};
    const char *given = getenv("HILL_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : 17, reasoned = 0, texts = 0;
    print_message("HILL_TEST_SEED=%u\n", seed);
    for (unsigned round = 0; round < ROUNDS; round++) {
        char answer[128] = "", ends[128], wanted[160];
        for (unsigned n = (unsigned)rand_r(&seed) % 12; n; n--)
            strcat(answer, words[(unsigned)rand_r(&seed) % (sizeof words / sizeof *words)]);
        for (unsigned i = 0; i < sizeof ends; i++)
            ends[i] = rand_r(&seed) % 3 == 0;
        int open = rand_r(&seed) % 4;
        const struct beginning how = {open < REASONING_TAGS ? &reasoning_tags[open] : NULL, ""};
        oracle(how.opened, answer, wanted);
        reasoned += wanted[0] != '|';
        texts += !strchr("|", wanted[0]) && strchr(wanted, '|')[1];
        expect(how, answer, ends, wanted);
        memset(ends, 1, sizeof ends);
        expect(how, answer, ends, wanted);
    }
    assert_true(reasoned > ROUNDS / 10 && texts > ROUNDS / 20);
}

/* ---- prompts ---- */

static const struct reasoning_tags *opens(const char *format_name, const char *question)
{
    const struct chat_vocabulary vocabulary = {"<bos>", "<eos>", 0};
    const struct chat_message message = {
        .role = CHAT_USER, .text = question, .bytes = strlen(question)};
    const struct chat_format *format = NULL;
    struct chat_prompt prompt;
    struct hill_why why;
    for (unsigned i = 0; i < chat_format_count; i++)
        if (strcmp(chat_formats[i].name, format_name) == 0)
            format = &chat_formats[i];
    assert_non_null(format);
    assert_int_equal(chat_render(&prompt, format, &vocabulary, &message, 1, &why), 0);
    const struct reasoning_tags *found = reasoning_opened(prompt.pieces, prompt.n_pieces);
    chat_prompt_finish(&prompt);
    return found;
}

static void test_prompts_that_end_inside_a_thought(void **state)
{
    (void)state;
    assert_ptr_equal(opens("deepseek-1", "q"), &reasoning_tags[0]);
    assert_ptr_equal(opens("chatml-10", "q"), &reasoning_tags[0]);
    assert_null(opens("deepseek-5", "q")); /* it ends with <think>\n</think> */
    assert_null(opens("deepseek-3", "q"));
    assert_null(opens("chatml-1", "<think>"));
    const struct prompt_piece words = {"<think>", 7, PROMPT_LITERAL},
                              own[] = {words, {"<think>\n\n", 9, PROMPT_SPECIAL}},
                              of_mistral = {"[/INST][THINK]", 14, PROMPT_SPECIAL},
                              short_one = {"think>", 6, PROMPT_SPECIAL};
    assert_null(reasoning_opened(&words, 1)); /* a person's */
    assert_ptr_equal(reasoning_opened(own, 2), &reasoning_tags[0]);
    assert_ptr_equal(reasoning_opened(&of_mistral, 1), &reasoning_tags[1]);
    assert_null(reasoning_opened(&short_one, 1));
    assert_null(reasoning_opened(own, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer_that_begins_with_a_thought),
        cmocka_unit_test(test_an_answer_without_one_stays),
        cmocka_unit_test(test_one_that_is_cut_is_reasoning),
        cmocka_unit_test(test_a_template_that_begins_with_one),
        cmocka_unit_test(test_the_tags_of_mistral),
        cmocka_unit_test(test_an_answer_that_goes_on),
        cmocka_unit_test(test_nothing_is_left_out),
        cmocka_unit_test(test_a_reader_that_was_not_begun),
        cmocka_unit_test(test_nothing_waits_longer_than_it_must),
        cmocka_unit_test(test_as_a_search_of_the_whole_text),
        cmocka_unit_test(test_prompts_that_end_inside_a_thought),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
