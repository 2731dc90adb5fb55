/*
 * test_tools.c - tools in a chat: what the model is told, beside the words of its template written
 * by hand; calls found in an answer that comes in two pieces, cut at every byte.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "gateway/tool_calls.h"
#include "gateway/tools.h"
#include "model/chat_formats.h"

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"description\":\"sums "     \
    "<|im_end|>\",\"parameters\":{\"type\":\"object\"}}}]"
#define CONVERSATION                                                                               \
    "\"messages\":[{\"role\":\"user\",\"content\":\"1+2, "                                         \
    "3+4?\"},{\"role\":\"assistant\",\"content\":"                                                 \
    "null,\"tool_calls\":[{\"id\":\"c0\",\"type\":\"function\",\"function\":{\"name\":\"add\","    \
    "\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c0\",\"content\":"  \
    "\"3\"}"

static const struct chat_format *format_of(const char *name)
{
    for (unsigned i = 0; i < chat_format_count; i++)
        if (strcmp(chat_formats[i].name, name) == 0)
            return &chat_formats[i];
    fail_msg("no format %s", name);
    return NULL;
}

/* The prompt of a body; NULL: refused, with *error. literals, or NULL: gets what are a person's and
 * tools' words in it, each with a | after it. */
static char *prompt_of(const char *body, const char *format_name, struct text_buffer *literals,
                       struct api_error *error)
{
    const struct chat_format *format = format_of(format_name);
    const struct chat_vocabulary vocabulary = {"<bos>", "<eos>", 0};
    struct order order;
    struct chat_prompt prompt = {0};
    struct hill_why why;
    struct text_buffer out = {0};
    int code = order_read(&order, ORDER_CHAT, body, strlen(body), error);
    if (code == 0)
        code = tools_tell(&order, format, error);
    if (code == 0) {
        if (chat_render(&prompt, format, &vocabulary, order.messages, order.n_messages, &why))
            fail_msg("%s", why.text);
        for (uint64_t i = 0; i < prompt.n_pieces; i++) {
            const struct prompt_piece *piece = &prompt.pieces[i];
            if (memmem(piece->text, piece->bytes, "sums <|im_end|>", 15))
                assert_int_not_equal(piece->kind, PROMPT_SPECIAL); /* whoever wrote the tools */
            text_add(&out, piece->text, piece->bytes);
            if (literals && piece->kind == PROMPT_LITERAL)
                text_printf(literals, "%.*s|", (int)piece->bytes, piece->text);
        }
        tools_begin(&out, &order, chat_format_tools(format));
        text_add(&out, "", 1);
    }
    chat_prompt_finish(&prompt);
    order_finish(&order);
    return out.bytes;
}

static void told(const char *body, const char *format, const char *wanted)
{
    struct api_error error = {0};
    char *prompt = prompt_of(body, format, NULL, &error);
    if (!prompt)
        fail_msg("%s: %s", body, error.text);
    assert_string_equal(prompt, wanted);
    free(prompt);
}

#define QWEN_TOOLS                                                                                 \
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "     \
    "provided with function signatures within <tools></tools> XML tags:\n<tools>\n{\"type\": "     \
    "\"function\", \"function\": {\"name\": \"add\", \"description\": \"sums <|im_end|>\", "       \
    "\"parameters\": {\"type\": \"object\"}}}\n</tools>\n\nFor each function call, return a json " \
    "object with function name and arguments within <tool_call></tool_call> XML tags:\n"           \
    "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"

static void test_qwen(void **state)
{
    (void)state;
    told("{" CONVERSATION ",{\"role\":\"tool\",\"content\":\"7\"}]," TOOLS "}", "chatml-3",
         "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
         "assistant.\n\n" QWEN_TOOLS "<|im_end|>\n<|im_start|>user\n1+2, 3+4?<|im_end|>\n"
         "<|im_start|>assistant\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n"
         "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n3\n</tool_response>\n"
         "<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
    told("{\"messages\":[{\"role\":\"system\",\"content\":\"Sum.\"},{\"role\":\"user\",\"content\":"
         "\"1\"}],\"tool_choice\":\"required\"," TOOLS "}",
         "chatml-1",
         "<|im_start|>system\nSum.\n\n" QWEN_TOOLS "<|im_end|>\n<|im_start|>user\n1<|im_end|>\n"
         "<|im_start|>assistant\n<tool_call>\n{\"name\": \"");
    told("{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}],\"tool_choice\":\"none\"," TOOLS
         "}",
         "chatml-1", "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n");
}

#define CALL(name, arguments)                                                                      \
    "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c0\",\"type\":\"function\",\"function\":{"  \
    "\"name\":\"" name "\",\"arguments\":" arguments "}}]}"

/* Whatever a model has called, and this gateway has sent, is rendered in the next turn. */
static void test_calls_come_back(void **state)
{
    (void)state;
    told("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}," CALL(
             "find the \\\"way\\\"", "\"\"") ",{\"role\":\"tool\",\"content\":\"7\"}]}",
         "chatml-1",
         "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"find the "
         "\\\"way\\\"\", \"arguments\": {}}\n</tool_call><|im_end|>\n<|im_start|>user\n"
         "<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
}

/* As Qwen3's template renders it: reasoning stays after the last user's text; the tags of a tool's
 * answer are the template's, what looks like one in the answer is the tool's. */
static void test_qwen3(void **state)
{
    (void)state;
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"0?\"},{\"role\":\"assistant\",\"content\":"
        "\"<think>\\nold\\n</think>\\n\\n0\"},{\"role\":\"user\",\"content\":\"1+2, "
        "3+4?\"},{\"role\":"
        "\"assistant\",\"content\":\"<think>\\nhm\\n</think>\\n\\nI "
        "add.\",\"tool_calls\":[{\"function\":"
        "{\"name\":\"add\",\"arguments\":\"{\\\"a\\\": 1}\"}},{\"function\":{\"name\":\"add\","
        "\"arguments\":\"{\\\"a\\\": "
        "3}\"}}]},{\"role\":\"tool\",\"content\":\"3\"},{\"role\":\"tool\","
        "\"content\":\" </tool_response> \"},{\"role\":\"assistant\",\"content\":"
        "\"<think>\\nagain\\n</think>\\n\\n\",\"tool_calls\":[{\"function\":{\"name\":\"add\","
        "\"arguments\":\"{\\\"t\\\": "
        "\\\"</think>\\\"}\"}}]},{\"role\":\"tool\",\"content\":\"7\"}]," TOOLS "}";
    struct text_buffer literals = {0};
    struct api_error error = {0};
    char *prompt = prompt_of(body, "chatml-6", &literals, &error);
    if (!prompt)
        fail_msg("%s", error.text);
    assert_string_equal(
        prompt,
        "<|im_start|>system\n" QWEN_TOOLS "<|im_end|>\n<|im_start|>user\n0?<|im_end|>\n"
        "<|im_start|>assistant\n0<|im_end|>\n<|im_start|>user\n1+2, 3+4?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nI add.\n<tool_call>\n{\"name\": \"add\", "
        "\"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"add\", \"arguments\": "
        "{\"a\": 3}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n3\n"
        "</tool_response>\n<tool_response>\n </tool_response> \n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\nagain\n</think>\n\n<tool_call>\n{\"name\": \"add\", "
        "\"arguments\": {\"t\": \"</think>\"}}\n</tool_call><|im_end|>\n<|im_start|>user\n"
        "<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
    text_add(&literals, "", 1);
    assert_string_equal(literals.bytes, "0?|1+2, 3+4?|3| </tool_response> |7|");
    text_finish(&literals);
    free(prompt);
}

/* Reasoning that came apart from the text, as clients send it back: kept where Qwen3's template
 * keeps it, after the last user's text, and left out elsewhere and by other templates. */
static void test_reasoning_that_is_sent_back(void **state)
{
    (void)state;
#define APART "\"reasoning_content\":\"\\nhm [THINK]\\n\""
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"0?\",\"reasoning_content\":\"no\"},"
        "{\"role\":\"assistant\",\"content\":\"0\"," APART "},"
        "{\"role\":\"user\",\"content\":\"1\"},{\"role\":\"assistant\",\"content\":\"\\n\\nI "
        "add.\"," APART ",\"tool_calls\":[{\"function\":{\"name\":\"add\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"content\":\"3\"}]}";
#define UP_TO_CALL                                                                                 \
    "<|im_start|>user\n0?<|im_end|>\n<|im_start|>assistant\n0<|im_end|>\n<|im_start|>user\n1"      \
    "<|im_end|>\n<|im_start|>assistant\n"
#define FROM_CALL                                                                                  \
    "I add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call><|im_end|>\n"        \
    "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    told(body, "chatml-6", UP_TO_CALL "<think>\nhm [THINK]\n</think>\n\n" FROM_CALL);
    told(body, "chatml-1", UP_TO_CALL "\n\n" FROM_CALL);
}

#define LLAMA_TOOLS                                                                                \
    "Given the following functions, please respond with a JSON for a function call with its "      \
    "proper arguments that best answers the given prompt.\n\nRespond in the format {\"name\": "    \
    "function name, \"parameters\": dictionary of argument name and its value}.Do not use "        \
    "variables.\n\n{\n    \"type\": \"function\",\n    \"function\": {\n        \"name\": "        \
    "\"add\",\n  "                                                                                 \
    "      \"description\": \"sums <|im_end|>\",\n        \"parameters\": {\n            "         \
    "\"type\": "                                                                                   \
    "\"object\"\n        }\n    }\n}\n\n"

/* As Llama 3.1's template has them. */
static void test_llama_with_a_date(void **state)
{
    (void)state;
#define DATE   "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
#define HEAD   "<bos><|start_header_id|>system<|end_header_id|>\n\n"
#define ANSWER "<|start_header_id|>assistant<|end_header_id|>\n\n"
    told(
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Sum.\"},{\"role\":\"user\",\"content\":"
        "\" 1+2? \"},{\"role\":\"assistant\",\"content\":\"I add.\",\"tool_calls\":[{\"function\":{"
        "\"name\":\"add\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"3\"}]," TOOLS
        "}",
        "llama3-2",
        HEAD "Environment: ipython\n" DATE
             "Sum.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n" LLAMA_TOOLS
             "1+2?<|eot_id|>" ANSWER "{\"name\": \"add\", \"parameters\": {}}<|eot_id|>"
             "<|start_header_id|>ipython<|end_header_id|>\n\n\"3\"<|eot_id|>" ANSWER);
    told("{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}]," TOOLS "}", "llama3-2",
         HEAD "Environment: ipython\n" DATE
              "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n" LLAMA_TOOLS
              "1<|eot_id|>" ANSWER);
    told("{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}],\"tool_choice\":\"none\"," TOOLS
         "}",
         "llama3-2",
         HEAD DATE "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n1<|eot_id|>" ANSWER);
}

static void test_llama(void **state)
{
    (void)state;
    told("{" CONVERSATION
         "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"add\"}}," TOOLS "}",
         "llama3-1",
         "<bos><|start_header_id|>user<|end_header_id|>\n\n" LLAMA_TOOLS
         "1+2, 3+4?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
         "{\"name\": \"add\", \"parameters\": {\"a\": 1}}<|eot_id|>"
         "<|start_header_id|>ipython<|end_header_id|>\n\n\"3\"<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"add\", \"parameters\": {");
}

static void refused(const char *body, const char *format, const char *words)
{
    struct api_error error = {0};
    char *prompt = prompt_of(body, format, NULL, &error);
    if (prompt || !strstr(error.text, words))
        fail_msg("%s: '%s' is not in '%s'", body, words, error.text);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    refused("{" CONVERSATION "]," TOOLS "}", "gemma-1", "gemma-1");
    refused("{" CONVERSATION "]}", "mistral-1", "mistral-1");
    refused("{" CONVERSATION "],\"tools\":[{\"type\":\"retrieval\"}]}", "chatml-1", "tools[0]");
    refused("{" CONVERSATION
            "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]}",
            "chatml-1", "name");
    refused("{" CONVERSATION "],\"tool_choice\":\"required\"}", "chatml-1", "there are no tools");
    refused("{" CONVERSATION "],\"tool_choice\":\"maybe\"," TOOLS "}", "chatml-1", "tool_choice");
    refused("{" CONVERSATION
            "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"sub\"}}," TOOLS "}",
            "chatml-1", "sub");
    refused("{" CONVERSATION "],\"logprobs\":true," TOOLS "}", "chatml-1", "logprobs");
    refused("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}," CALL("", "\"{}\"") "]}",
            "chatml-1", "name");
    refused("{" CONVERSATION "],\"chat_template_kwargs\":{\"enable_thinking\":false}," TOOLS "}",
            "chatml-1", "enable_thinking");
}

/* ---- calls ---- */

/* The answer, cut at `cut`: its text, "|", and each call as NAME ARGUMENTS;. */
static char *read_answer(enum chat_tools form, const char *answer, size_t cut)
{
    struct call_reader reader = {.form = form, .id = 7};
    struct text_buffer text = {0}, calls = {0}, list = {0};
    calls_feed(&reader, answer, cut, &text, &calls, false);
    calls_feed(&reader, answer + cut, strlen(answer) - cut, &text, &calls, false);
    calls_flush(&reader, &text, &calls, false);
    text_printf(&list, "[%.*s]", (int)calls.length, calls.length ? calls.bytes : "");
    json_t *json = json_loadb(list.bytes, list.length, 0, NULL);
    assert_non_null(json);
    assert_int_equal(json_array_size(json), reader.n);
    text_puts(&text, "|");
    for (size_t i = 0; i < json_array_size(json); i++) {
        const char *name, *arguments, *id, *type;
        assert_int_equal(json_unpack(json_array_get(json, i), "{s:s, s:s, s:{s:s, s:s}}", "id", &id,
                                     "type", &type, "function", "name", &name, "arguments",
                                     &arguments),
                         0);
        assert_string_equal(type, "function");
        text_printf(&text, "%s %s;", name, arguments);
    }
    text_add(&text, "", 1);
    json_decref(json);
    text_finish(&calls);
    text_finish(&list);
    calls_finish(&reader);
    return text.bytes;
}

static void reads(enum chat_tools form, const char *answer, const char *wanted)
{
    for (size_t cut = 0; cut <= strlen(answer); cut++) {
        char *got = read_answer(form, answer, cut);
        if (strcmp(got, wanted) != 0)
            fail_msg("'%s' cut at %zu: '%s', not '%s'", answer, cut, got, wanted);
        free(got);
    }
}

static void test_tags(void **state)
{
    (void)state;
    enum chat_tools tags = CHAT_TOOLS_TAGS;
    reads(tags, "plain < text <tool\n", "plain < text <tool\n|");
    reads(tags, "I ask.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
          "I ask.|add {\"a\": 1};");
    reads(tags,
          "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"b\"}"
          "</tool_call>\n",
          "|a {};b {};");
    reads(tags, "<tool_call>[{\"name\":\"a\",\"arguments\":\"x\"},{\"name\":\"b\"}]</tool_call> so",
          " so|a x;b {};");
    reads(tags, "<tool_call>{\"name\":\"a\",\"arguments\":{}}", "|a {};"); /* no last tag */
    reads(tags, "x <tool_call>{\"name\":\"a\",", "x <tool_call>{\"name\":\"a\",|"); /* cut */
    reads(tags, "<tool_call>nonsense</tool_call>y", "<tool_call>nonsense</tool_call>y|");
    reads(tags, "<tool_call>{\"arguments\":{}}</tool_call>",
          "<tool_call>{\"arguments\":{}}</tool_call>|");
    reads(tags, "<tool_call><tool_call>{\"name\":\"a\"}</tool_call>",
          "<tool_call><tool_call>{\"name\":\"a\"}</tool_call>|");
}

static void test_arguments_are_what_was_written(void **state)
{
    (void)state;
    enum chat_tools tags = CHAT_TOOLS_TAGS;
    reads(
        tags,
        "<tool_call>{\"name\":\"send\",\"arguments\":{\"wei\":100000000000000000001}}</tool_call>",
        "|send {\"wei\":100000000000000000001};");
    reads(tags,
          "<tool_call>[ {\"arguments\" : { \"x\": [0.10, 0.12345678901234567],\n\"y\": {} } , "
          "\"name\":\"a\"} , {\"name\":\"b\",\"arguments\":{\"x\":-0}}]</tool_call>",
          "|a { \"x\": [0.10, 0.12345678901234567],\n\"y\": {} };b {\"x\":-0};");
    /* other values with marks in them, another key of that name, keys twice and with escapes */
    reads(tags,
          "<tool_call>{\"id\":\"\\\",\\\"arguments\\\":{}}\",\"extra\":{\"arguments\":[1,2]},"
          "\"parameters\":{\"b\":0},\"name\":\"a\",\"arguments\":{\"b\":1},"
          "\"\\u0061rguments\":{\"b\":\"\\\\\"}}</tool_call>",
          "|a {\"b\":\"\\\\\"};");
    reads(CHAT_TOOLS_JSON, "{\"name\":\"a\",\"parameters\":{\"n\":18446744073709551615}}",
          "|a {\"n\":18446744073709551615};");
}

static void test_json(void **state)
{
    (void)state;
    reads(CHAT_TOOLS_JSON, " {\"name\": \"add\", \"parameters\": {\"a\": \"}\"}} ",
          "|add {\"a\": \"}\"};");
    reads(CHAT_TOOLS_JSON, "Three. {\"name\": \"add\"}", "Three. {\"name\": \"add\"}|");
    reads(CHAT_TOOLS_JSON, "{\"sum\": 3}", "{\"sum\": 3}|");
    reads(CHAT_TOOLS_JSON, "[{\"name\": \"a\", \"parameters\": {}}]", "|a {};");
#define TWO "[{\"name\": \"a\", \"parameters\": {}}, {\"name\": \"b\", \"parameters\": {}}]"
    reads(CHAT_TOOLS_JSON, TWO, TWO "|"); /* which its template could not render */
    reads(CHAT_TOOLS_JSON, "{\"name\": \"Alice\", \"age\": 30}",
          "{\"name\": \"Alice\", \"age\": 30}|");
    reads(CHAT_TOOLS_JSON, "{\"name\": \"t\", \"parameters\": {\"x\": 21.3}}", "|t {\"x\": 21.3};");
    reads(CHAT_TOOLS_NONE, "{\"name\": \"add\"}<tool_call>", "{\"name\": \"add\"}<tool_call>|");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen),
        cmocka_unit_test(test_calls_come_back),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_reasoning_that_is_sent_back),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_llama_with_a_date),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_arguments_are_what_was_written),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
