/*
 * test_chat_template.c - chat formats against what Jinja rendered (chat_expected.json, written by
 * tests/oracle/chat_templates.py), recognition, pieces, and refusals.
 *
 * "test_chat_template render" reads one JSON object from stdin instead, {template, bos, eos,
 * talks}, and writes what each of the talks becomes, or null for a template that is not known: for
 * test_chat_oracle.sh.
 */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/chat_formats.h"
#include "model/chat_template.h"

#define TALK_MESSAGES_MAX 64u
#define NOON              1700000000 /* some day */

static const struct chat_vocabulary llama2 = {"<s>", "</s>", NOON};

static unsigned talk_messages(struct chat_message *out, const json_t *talk)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    static const char before[] = "<tool_response>\n", after[] = "\n</tool_response>";
    unsigned count = 0;
    for (; count < json_array_size(talk) && count < TALK_MESSAGES_MAX; count++) {
        const json_t *said = json_array_get(talk, count), *text = json_object_get(said, "content");
        const char *role = json_string_value(json_object_get(said, "role"));
        unsigned r = 0;
        while (strcmp(roles[r], role) != 0)
            r++;
        out[count] = (struct chat_message){(enum chat_role)r, json_string_value(text),
                                           json_string_length(text)};
        if (r == CHAT_TOOL) {
            out[count].before = before;
            out[count].before_bytes = sizeof before - 1;
            out[count].added = after;
            out[count].added_bytes = sizeof after - 1;
        }
    }
    return count;
}

/* All pieces as one text, malloc'ed. */
static char *join(const struct chat_prompt *prompt)
{
    uint64_t bytes = 0, at = 0;
    for (uint64_t i = 0; i < prompt->n_pieces; i++)
        bytes += prompt->pieces[i].bytes;
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    for (uint64_t i = 0; i < prompt->n_pieces; at += prompt->pieces[i++].bytes)
        memcpy(text + at, prompt->pieces[i].text, prompt->pieces[i].bytes);
    text[bytes] = '\0';
    return text;
}

/* NULL: refused. */
static char *render_talk(const struct chat_format *format, const struct chat_vocabulary *vocabulary,
                         const json_t *talk)
{
    struct chat_message messages[TALK_MESSAGES_MAX];
    struct chat_prompt prompt;
    struct hill_why why = {""};
    unsigned count = talk_messages(messages, talk);
    int code = chat_render(&prompt, format, vocabulary, messages, count, &why);
    if (code && code != HILL_E_INVALID)
        fail_msg("%s: %s", chat_format_name(format), why.text);
    if (code)
        return NULL;
    char *text = join(&prompt);
    chat_prompt_finish(&prompt);
    return text;
}

/* The oracle writes DATE and the form for the day on which it ran. */
static char *with_date(const char *text)
{
    char *copy = strdup(text), form[40], date[40];
    const time_t noon = NOON;
    struct tm parts;
    char *at = copy ? strstr(copy, "DATE%") : NULL;
    if (!at)
        return copy;
    size_t length = at[strlen("DATE%")] == 'Y'   ? strlen("%Y-%m-%d")
                    : at[strlen("DATE%")] == 'd' ? strlen("%d %b %Y")
                                                 : strlen("%B %d, %Y");
    memcpy(form, at + 4, length);
    form[length] = '\0';
    localtime_r(&noon, &parts);
    size_t written = strftime(date, sizeof date, form, &parts);
    char *out = malloc(strlen(copy) + written + 1);
    sprintf(out, "%.*s%s%s", (int)(at - copy), copy, date, at + 4 + length);
    free(copy);
    return out;
}

static const struct chat_format *named(const char *name)
{
    for (unsigned i = 0; i < chat_format_count; i++)
        if (strcmp(chat_formats[i].name, name) == 0)
            return &chat_formats[i];
    return NULL;
}

static void formats_render_as_jinja_did(void **state)
{
    (void)state;
    json_error_t error;
    json_t *root = json_load_file("tests/model/chat_expected.json", 0, &error);
    if (!root)
        fail_msg("chat_expected.json:%d: %s", error.line, error.text);
    json_t *talks = json_object_get(root, "talks"), *formats = json_object_get(root, "formats");
    assert_int_equal(json_array_size(formats), chat_format_count);
    assert_int_equal(json_array_size(talks), 4);
    unsigned any_order = 0; /* the last talk's */
    for (size_t i = 0; i < json_array_size(formats); i++) {
        const json_t *row = json_array_get(formats, i), *texts = json_object_get(row, "texts");
        const struct chat_format *format = named(json_string_value(json_object_get(row, "format")));
        assert_non_null(format);
        for (size_t t = 0; t < json_array_size(talks); t++) {
            char *got = render_talk(format, &llama2, json_array_get(talks, t));
            const json_t *text = json_array_get(texts, t); /* null: refused */
            char *wanted = with_date(json_is_null(text) ? "" : json_string_value(text));
            if (!got != json_is_null(text) || strcmp(got ? got : "", wanted) != 0)
                fail_msg("%s, talk %zu:\n%s\nwanted:\n%s", format->name, t, got ? got : "refused",
                         wanted);
            any_order += got && t == 3;
            free(got);
            free(wanted);
        }
    }
    assert_true(any_order > 10 && any_order < chat_format_count);
    json_decref(root);
}

static void table_of_hashes_is_sorted_and_points_at_formats(void **state)
{
    (void)state;
    assert_true(chat_known_count > 0);
    for (unsigned i = 0; i < chat_known_count; i++) {
        assert_true(i == 0 || chat_known[i - 1].hash < chat_known[i].hash);
        assert_true(chat_known[i].format < chat_format_count);
    }
}

/* The plainest ChatML template: every turn as it is. */
static const char chatml[] = "{% for message in messages %}{{'<|im_start|>' + message['role'] + "
                             "'\\n' + message['content'] + "
                             "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
                             "'<|im_start|>assistant\\n' }}{% endif %}";

static void a_known_text_is_found_and_a_changed_one_is_not(void **state)
{
    (void)state;
    char other[sizeof chatml + 2];
    const uint64_t bytes = sizeof chatml - 1;
    const struct chat_format *format = chat_format_find(chatml, bytes);
    assert_non_null(format);
    assert_string_equal(chat_format_name(format), "chatml-1");
    snprintf(other, sizeof other, "%s\n", chatml); /* Jinja drops one newline */
    assert_ptr_equal(chat_format_find(other, bytes + 1), format);
    snprintf(other, sizeof other, "%s\r\n", chatml);
    assert_ptr_equal(chat_format_find(other, bytes + 2), format);
    snprintf(other, sizeof other, "%s\n\n", chatml);
    assert_null(chat_format_find(other, bytes + 2));
    for (uint64_t i = 0; i < bytes; i++) {
        memcpy(other, chatml, bytes);
        other[i] ^= 1;
        assert_null(chat_format_find(other, bytes));
    }
    assert_null(chat_format_find("", 0));
}

static struct chat_message message(enum chat_role role, const char *text)
{
    return (struct chat_message){role, text, strlen(text)};
}

/* What llama.cpp renders for " s ", " u ", " a " and " v ", and for " u " alone. */
static void names_of_llama_cpps_formats_are_known(void **state)
{
    static const struct {
        const char *name, *talk, *alone;
    } cases[] = {
        {"chatml",
         "<|im_start|>system\n s <|im_end|>\n<|im_start|>user\n u <|im_end|>\n"
         "<|im_start|>assistant\n a <|im_end|>\n<|im_start|>user\n v <|im_end|>\n"
         "<|im_start|>assistant\n",
         "<|im_start|>user\n u <|im_end|>\n<|im_start|>assistant\n"},
        {"gemma",
         "<start_of_turn>user\ns\n\nu<end_of_turn>\n<start_of_turn>model\na<end_of_turn>\n"
         "<start_of_turn>user\nv<end_of_turn>\n<start_of_turn>model\n",
         "<start_of_turn>user\nu<end_of_turn>\n<start_of_turn>model\n"},
        {"llama2", "[INST]  s \n u  [/INST] a </s>[INST]  v  [/INST]", "[INST]  u  [/INST]"},
        {"llama2-sys", "[INST] <<SYS>>\n s \n<</SYS>>\n\n u  [/INST] a </s>[INST]  v  [/INST]",
         "[INST]  u  [/INST]"},
        {"llama2-sys-bos",
         "[INST] <<SYS>>\n s \n<</SYS>>\n\n u  [/INST] a </s><s>[INST]  v  [/INST]",
         "[INST]  u  [/INST]"},
        {"llama3",
         "<|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\na<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nv<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n",
         "<|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"mistral-v1", " [INST]  s \n\n u  [/INST]  a </s> [INST]  v  [/INST]",
         " [INST]  u  [/INST]"},
        {"mistral-v3", "[INST]  s \n\n u [/INST] a</s>[INST]  v [/INST]", "[INST]  u [/INST]"},
        {"mistral-v3-tekken", "[INST] s \n\n u [/INST] a </s>[INST] v [/INST]", "[INST] u [/INST]"},
        {"mistral-v7",
         "[SYSTEM_PROMPT]  s [/SYSTEM_PROMPT][INST]  u [/INST]  a </s>[INST]  v [/INST]",
         "[INST]  u [/INST]"},
        {"mistral-v7-tekken",
         "[SYSTEM_PROMPT] s [/SYSTEM_PROMPT][INST] u [/INST] a </s>[INST] v [/INST]",
         "[INST] u [/INST]"},
        {"phi3",
         "<|system|>\n s <|end|>\n<|user|>\n u <|end|>\n<|assistant|>\n a <|end|>\n"
         "<|user|>\n v <|end|>\n<|assistant|>\n",
         "<|user|>\n u <|end|>\n<|assistant|>\n"},
        {"phi4",
         "<|im_start|>system<|im_sep|> s <|im_end|><|im_start|>user<|im_sep|> u "
         "<|im_end|><|im_start|>assistant<|im_sep|> a <|im_end|><|im_start|>user<|im_sep|> v "
         "<|im_end|><|im_start|>assistant<|im_sep|>",
         "<|im_start|>user<|im_sep|> u <|im_end|><|im_start|>assistant<|im_sep|>"},
        {"zephyr",
         "<|system|>\n s <|endoftext|>\n<|user|>\n u <|endoftext|>\n<|assistant|>\n a "
         "<|endoftext|>\n<|user|>\n v <|endoftext|>\n<|assistant|>\n",
         "<|user|>\n u <|endoftext|>\n<|assistant|>\n"},
    };
    const struct chat_message talk[] = {message(CHAT_SYSTEM, " s "), message(CHAT_USER, " u "),
                                        message(CHAT_ASSISTANT, " a "), message(CHAT_USER, " v ")};
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (unsigned alone = 0; alone < 2; alone++) {
            const char *name = cases[i].name;
            const struct chat_format *format = chat_format_find(name, strlen(name));
            struct chat_prompt prompt;
            struct hill_why why = {""};
            if (!format ||
                chat_render(&prompt, format, &llama2, talk + alone, alone ? 1u : 4u, &why))
                fail_msg("%s: %s", name, why.text);
            char *text = join(&prompt);
            assert_string_equal(text, alone ? cases[i].alone : cases[i].talk);
            free(text);
            chat_prompt_finish(&prompt);
        }
    assert_non_null(chat_format_find("chatml\n", 7));
    assert_null(chat_format_find("chatm", 5));
    assert_null(chat_format_find("vicuna", 6)); /* llama.cpp's, but not known here */
    assert_int_equal(chat_template_name("vicuna\r\n", 8), 6);
    assert_int_equal(chat_template_name(chatml, sizeof chatml - 1), 0);
    assert_int_equal(chat_template_name("", 0), 0);
    assert_int_equal(chat_format_tools(chat_format_find("chatml", 6)), CHAT_TOOLS_TAGS);
    assert_int_equal(chat_format_tools(chat_format_find("llama3", 6)), CHAT_TOOLS_JSON);
    assert_int_equal(chat_format_tools(chat_format_find("phi4", 4)), CHAT_TOOLS_NONE);
}

static void words_of_a_person_are_a_piece_of_their_own(void **state)
{
    (void)state;
    const struct chat_message talk[] = {
        message(CHAT_SYSTEM, "<|im_end|>S"), message(CHAT_USER, "<|im_end|>U"),
        message(CHAT_ASSISTANT, "<|im_end|>A"), message(CHAT_USER, "<|im_start|>V")};
    const enum prompt_kind kinds[] = {PROMPT_LITERAL, PROMPT_LITERAL, PROMPT_TEXT, PROMPT_LITERAL};
    struct chat_prompt prompt;
    struct hill_why why = {""};
    const struct chat_format *format = named("chatml-1");
    assert_int_equal(chat_render(&prompt, format, &llama2, talk, 4, &why), 0);
    assert_int_equal(prompt.n_pieces, 9);
    for (unsigned i = 0; i < 9; i++) {
        const struct prompt_piece *piece = &prompt.pieces[i];
        const struct chat_message *m = &talk[i / 2];
        assert_int_equal(piece->kind, i % 2 ? kinds[i / 2] : PROMPT_SPECIAL);
        if (i % 2) {
            assert_int_equal(piece->bytes, m->bytes);
            assert_memory_equal(piece->text, m->text, m->bytes);
        }
    }
    assert_string_equal(prompt.answer_end, "<|im_end|>\n<|im_start|>user\n");
    chat_prompt_finish(&prompt);
}

static void white_space_is_pythons(void **state)
{
    (void)state;
    static const char space[] =
        " \t\n\v\f\r\x1c\x1f\xc2\x85\xc2\xa0\xe1\x9a\x80\xe2\x80\x80\xe2\x80"
        "\x8a\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaf\xe2\x81\x9f\xe3\x80\x80";
    char text[128];
    int bytes = snprintf(text, sizeof text, "%sx%s", space, space);
    assert_int_equal(chat_space_left(text, (uint64_t)bytes), sizeof space - 1);
    assert_int_equal(chat_space_right(text, (uint64_t)bytes), sizeof space - 1);
    assert_int_equal(chat_space_right(space, sizeof space - 1), sizeof space - 1);
    assert_int_equal(chat_space_left("\xe2\x80\x8bx", 4), 0); /* U+200B is none */
    assert_int_equal(chat_space_right("\xe2\x80", 2), 0);     /* half a character */
    assert_int_equal(chat_space_left("", 0), 0);
}

static void a_conversation_out_of_turn_is_refused(void **state)
{
    (void)state;
    const struct chat_message s = message(CHAT_SYSTEM, "s"), u = message(CHAT_USER, "u"),
                              a = message(CHAT_ASSISTANT, "a");
    const struct chat_message wrong[][3] = {{s},       {a},       {s, a},   {u, a}, {a, u},
                                            {u, s, a}, {s, a, s}, {u, u},   {u, s}, {s, a, u},
                                            {s, s, u}, {a, s, u}, {u, u, s}};
    const unsigned counts[] = {1, 1, 2, 2, 2, 3, 3, 2, 2, 3, 3, 3, 3};
    const bool in_any_order[] = {[7] = true, true, true, true, [12] = true};
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++)
        for (unsigned free_order = 0; free_order < 2; free_order++) {
            const struct chat_format *format = named(free_order ? "chatml-1" : "gemma-1");
            struct chat_prompt prompt;
            struct hill_why why = {""};
            int wanted = free_order && in_any_order[i] ? 0 : HILL_E_INVALID;
            assert_int_equal(chat_render(&prompt, format, &llama2, wrong[i], counts[i], &why),
                             wanted);
            assert_int_equal(why.text[0] != '\0', wanted != 0);
            assert_int_equal(prompt.pieces != NULL, wanted == 0);
            chat_prompt_finish(&prompt);
        }
    struct hill_why why = {""};
    assert_int_equal(chat_check(NULL, NULL, 0, &why), HILL_E_INVALID);
    assert_int_equal(chat_check(NULL, wrong[7], 2, &why), HILL_E_INVALID); /* not known */
}

/* ---- for test_chat_oracle.sh --------------------------------------------------------------- */

static int render_stdin(void)
{
    json_error_t error;
    json_t *request = json_loadf(stdin, 0, &error), *answer = json_array(), *talk;
    size_t i;
    if (!request)
        return 100;
    const json_t *text = json_object_get(request, "template");
    const struct chat_vocabulary vocabulary = {json_string_value(json_object_get(request, "bos")),
                                               json_string_value(json_object_get(request, "eos")),
                                               NOON};
    const struct chat_format *format =
        chat_format_find(json_string_value(text), json_string_length(text));
    if (!format)
        return puts("null") < 0;
    json_array_foreach(json_object_get(request, "talks"), i, talk)
    {
        char *got = render_talk(format, &vocabulary, talk);
        json_array_append_new(answer, got ? json_string(got) : json_null());
        free(got);
    }
    int code = json_dumpf(answer, stdout, JSON_COMPACT);
    json_decref(answer);
    json_decref(request);
    return code ? 1 : 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_render_as_jinja_did),
        cmocka_unit_test(table_of_hashes_is_sorted_and_points_at_formats),
        cmocka_unit_test(a_known_text_is_found_and_a_changed_one_is_not),
        cmocka_unit_test(names_of_llama_cpps_formats_are_known),
        cmocka_unit_test(words_of_a_person_are_a_piece_of_their_own),
        cmocka_unit_test(white_space_is_pythons),
        cmocka_unit_test(a_conversation_out_of_turn_is_refused),
    };
    if (argc > 1 && strcmp(argv[1], "render") == 0)
        return render_stdin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
