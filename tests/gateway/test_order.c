/*
 * test_order.c - a request body as what is asked for: every field's type, range and place, what is
 * refused by name, the bounds of JSON. Bodies are written by hand, as a client writes them.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/fill.h"
#include "gateway/json_bounds.h"
#include "gateway/order.h"
#include "kv/select.h"
#include "proto/options_hill.h"

#define HELLO "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]"

static struct order order;
static struct api_error error;

static int read_it(enum order_kind kind, const char *body)
{
    order_finish(&order);
    error = (struct api_error){0};
    return order_read(&order, kind, body, strlen(body), &error);
}

static void taken(enum order_kind kind, const char *body)
{
    if (read_it(kind, body))
        fail_msg("%s: %s", body, error.text);
}

static void refused(enum order_kind kind, const char *body, const char *code, const char *words)
{
    if (read_it(kind, body) == 0)
        fail_msg("%s was taken", body);
    assert_int_equal(error.status, 400);
    assert_string_equal(error.code, code);
    if (!strstr(error.text, words))
        fail_msg("%s: '%s' is not in '%s'", body, words, error.text);
    assert_null(strchr(error.text, '\n'));
}

static void test_what_is_not_said_is_the_command_lines_default(void **state)
{
    (void)state;
    taken(ORDER_CHAT, "{" HELLO "}");
    assert_int_equal(order.n_messages, 1);
    assert_int_equal(order.messages[0].role, CHAT_USER);
    assert_memory_equal(order.messages[0].text, "hello", 5);
    assert_int_equal(order.predict, HILL_PREDICT_UNTIL_CONTEXT);
    assert_true(order.temperature == 0.8 && order.top_p == 0.95 && order.min_p == 0.05);
    assert_true(order.repeat_penalty == 1 && order.top_k == 40 && order.seed == 0);
    assert_int_equal(order.unset, HILL_SAMPLING_ALL);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\",\"temperature\":0.8,\"top_k\":null,\"min_p\":0}");
    assert_int_equal(order.unset,
                     HILL_SAMPLING_TOP_K | HILL_SAMPLING_TOP_P | HILL_SAMPLING_REPEAT_PENALTY);
    taken(ORDER_CHAT, "{" HELLO "}");
    assert_true(order.cache_prompt);
    assert_false(order.stream || order.ignore_eos || order.parse_special || order.has_alpha);
}

static void test_every_field_is_taken(void **state)
{
    (void)state;
    taken(ORDER_CHAT,
          "{" HELLO ",\"model\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
          "\"max_completion_tokens\":7,\"temperature\":0,\"top_k\":3,\"top_p\":0.5,\"min_p\":0.25,"
          "\"repeat_penalty\":1.5,\"seed\":12,\"stop\":[\"a\",\"bc\"],\"ignore_eos\":true,"
          "\"return_progress\":true,\"budget\":64,\"policy\":\"full\",\"user\":{\"any\":1},\"cache_"
          "prompt\":false}");
    assert_false(order.cache_prompt);
    assert_true(order.stream && order.include_usage && order.ignore_eos && order.progress);
    assert_int_equal(order.predict, 7);
    assert_true(order.temperature == 0 && order.top_k == 3 && order.top_p == 0.5);
    assert_true(order.min_p == 0.25 && order.repeat_penalty == 1.5 && order.seed == 12);
    assert_int_equal(order.unset, 0);
    assert_int_equal(order.n_stops, 2);
    assert_memory_equal(order.stops[1].text, "bc", 2);
    assert_true(order.has_budget && order.budget == 64 && order.has_policy);
    assert_int_equal(order.policy, KV_POLICY_FULL);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\",\"max_tokens\":2.0,\"stop\":\"x\",\"alpha\":0.1}");
    assert_int_equal(order.predict, 2);
    assert_true(order.n_stops == 1 && order.has_alpha && order.alpha == 0.1);
    taken(ORDER_COMPLETION, "{\"prompt\":[5,6],\"n_predict\":-1}");
    assert_true(order.n_ids == 2 && order.ids[1] == 6);
    assert_int_equal(order.predict, HILL_PREDICT_UNTIL_CONTEXT);
    taken(ORDER_COMPLETION, "{\"prompt\":[[5,6,7]]}");
    assert_true(order.n_ids == 3 && order.ids[2] == 7);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\",\"stop\":[\"\",\"ab\",\"\"]}");
    assert_true(order.n_stops == 1 && order.stops[0].bytes == 2);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\",\"stop\":\"\"}");
    assert_int_equal(order.n_stops, 0);
    taken(ORDER_COMPLETION, "{\"prompt\":[\"one\"],\"seed\":0,\"top_k\":-1}");
    assert_true(order.prompt_bytes == 3 && order.seed == UINT64_C(1) << 32 && order.top_k == 0);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\",\"seed\":-1}");
    assert_int_equal(order.seed, 0);
    assert_false(order.prompt_only);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\",\"n_predict\":0}");
    assert_true(order.prompt_only && order.predict == 1);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\",\"max_tokens\":1000000000000}");
    assert_int_equal(order.predict, 16777216);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\",\"seed\":-2}");
    assert_true(order.seed == UINT64_MAX - 1);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\",\"seed\":4294967297}");
    assert_true(order.seed == 4294967297u);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\",\"seed\":9223372036854775807}");
    assert_true(order.seed == INT64_MAX);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\",\"seed\":7e3}");
    assert_true(order.seed == 7000);
    refused(ORDER_COMPLETION, "{\"prompt\":\"p\",\"seed\":1e19}", "wrong_type", "seed");
}

/* As editors and OpenAI's libraries send them. */
static void test_hints_change_nothing(void **state)
{
    (void)state;
    taken(ORDER_CHAT,
          "{" HELLO ",\"prediction\":{\"type\":\"content\",\"content\":\"guess\"},\"store\":true,"
          "\"metadata\":{\"a\":\"b\"},\"service_tier\":\"auto\",\"user\":\"u\","
          "\"safety_identifier\":\"s\",\"prompt_cache_key\":\"k\",\"verbosity\":\"low\"}");
#define HINTS                                                                                      \
    ",\"samplers\":[\"top_k\",\"infill\"],\"response_fields\":[\"content\"],\"n_indent\":4}"
    taken(ORDER_CHAT, "{" HELLO HINTS);
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\"" HINTS);
    taken(ORDER_INFILL, "{\"input_prefix\":\"a\",\"input_suffix\":\"b\"" HINTS);
}

/* As llama.cpp's page and llama.vscode send them: steps of the sampler that are off. */
static void test_what_is_off_changes_nothing(void **state)
{
    (void)state;
#define OFF                                                                                        \
    ",\"samplers\":\"edkypmxt\",\"dynatemp_range\":0,\"dynatemp_exponent\":1,"                     \
    "\"xtc_probability\":0,\"xtc_threshold\":0.1,\"typical_p\":1,\"top_n_sigma\":-1,"              \
    "\"dry_multiplier\":0,\"dry_base\":1.75,\"dry_allowed_length\":2,"                             \
    "\"dry_penalty_last_n\":-1,\"dry_sequence_breakers\":[\"\\n\",\":\"],\"mirostat\":0,"          \
    "\"mirostat_tau\":5,\"mirostat_eta\":0.1,\"min_keep\":0,\"repeat_last_n\":64,"                 \
    "\"t_max_prompt_ms\":0,\"t_max_predict_ms\":0"
    static const char *const on[] = {"dynatemp_range\":0.5", "xtc_probability\":0.5",
                                     "typical_p\":0.9",      "top_n_sigma\":1",
                                     "dry_multiplier\":0.8", "mirostat\":2",
                                     "min_keep\":3",         "t_max_predict_ms\":500"};
    char body[300], name[40];
    taken(ORDER_CHAT, "{" HELLO OFF "}");
    taken(ORDER_COMPLETION, "{\"prompt\":\"p\"" OFF "}");
    taken(ORDER_INFILL, "{\"input_prefix\":\"a\",\"input_suffix\":\"b\"" OFF "}");
    for (unsigned i = 0; i < sizeof on / sizeof *on; i++) {
        snprintf(body, sizeof body, "{" HELLO ",\"%s}", on[i]);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(on[i], "\""), on[i]);
        refused(ORDER_CHAT, body, "not_served", name);
    }
    /* llama.vim's, of what is filled in */
    taken(ORDER_INFILL,
          "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"t_max_predict_ms\":1000}");
}

static void test_null_is_no_field(void **state)
{
    (void)state;
    taken(ORDER_CHAT, "{" HELLO ",\"max_tokens\":null,\"stop\":null,\"tools\":null,\"n\":null}");
    assert_int_equal(order.predict, HILL_PREDICT_UNTIL_CONTEXT);
    taken(ORDER_CHAT, "{" HELLO ",\"response_format\":{\"type\":\"json_object\",\"schema\":null},"
                      "\"stream\":true,\"stream_options\":{\"include_usage\":null},"
                      "\"chat_template_kwargs\":{\"enable_thinking\":null}}");
    assert_true(order.json && !order.include_usage && !order.no_think);
    taken(ORDER_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\",\"name\":null},"
                      "{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":null,"
                      "\"refusal\":null,\"audio\":null,\"function_call\":null,"
                      "\"reasoning_content\":null},{\"role\":\"user\",\"content\":\"q\"}],"
                      "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                      "\"description\":null,\"parameters\":null,\"strict\":null}}]}");
    assert_int_equal(order.n_messages, 3);
    refused(ORDER_CHAT, "{\"messages\":null}", "missing_field", "messages");
    refused(ORDER_CHAT, "{" HELLO ",\"nonsense\":null}", "unknown_field", "nonsense");
}

static void test_a_wrong_type_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const wrong[] = {"max_tokens\":\"7\"",
                                        "max_tokens\":1.5",
                                        "temperature\":\"0\"",
                                        "stream\":1",
                                        "stop\":7",
                                        "seed\":\"x\"",
                                        "seed\":0.5",
                                        "stream_options\":true",
                                        "ignore_eos\":\"yes\"",
                                        "top_p\":true",
                                        "model\":7",
                                        "return_progress\":0"};
    char body[300], name[40];
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(body, sizeof body, "{" HELLO ",\"%s}", wrong[i]);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(wrong[i], "\""), wrong[i]);
        refused(ORDER_CHAT, body, "wrong_type", name);
        assert_string_equal(error.param, name);
    }
    refused(ORDER_CHAT, "{" HELLO ",\"max_tokens\":7,\"n_predict\":7}", "excluded", "max_tokens");
    refused(ORDER_COMPLETION, "{\"prompt\":{}}", "wrong_type", "prompt");
    refused(ORDER_COMPLETION, "{\"prompt\":[1,\"x\"]}", "wrong_type", "prompt[1]");
    refused(ORDER_COMPLETION, "{\"prompt\":[1,-1]}", "wrong_type", "prompt[1]");
    refused(ORDER_DETOKENIZE, "{\"tokens\":[4294967295]}", "wrong_type", "tokens[0]");
}

static void test_out_of_range_is_refused_with_the_range(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "temperature\":-0.1", "temperature\":1001", "top_p\":1.1",        "min_p\":-1",
        "repeat_penalty\":0", "max_tokens\":-2",    "top_k\":99999999",   "alpha\":0",
        "alpha\":1.5",        "policy\":\"best\"",  "temperature\":1e999"};
    char body[300];
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(body, sizeof body, "{" HELLO ",\"%s}", wrong[i]);
        assert_int_equal(read_it(ORDER_CHAT, body), -1);
        assert_int_equal(error.status, 400);
    }
    for (uint32_t policy = 0; policy < KV_POLICY_COUNT; policy++)
        refused(ORDER_CHAT, "{" HELLO ",\"policy\":\"best\"}", "out_of_range",
                kv_policy_name(policy));
    refused(ORDER_CHAT, "{" HELLO ",\"alpha\":0.1,\"budget\":9}", "excluded", "alpha and budget");
    refused(ORDER_CHAT, "{" HELLO ",\"stream_options\":{\"include_usage\":true}}", "excluded",
            "stream");
}

static void test_what_is_not_served_is_refused_unless_it_asks_for_nothing(void **state)
{
    (void)state;
    taken(ORDER_CHAT, "{" HELLO ",\"n\":1,\"presence_penalty\":0.0,\"logprobs\":false,\"tools\":[],"
                      "\"tool_choice\":\"auto\",\"response_format\":{\"type\":\"text\"},"
                      "\"logit_bias\":{},\"frequency_penalty\":0}");
    refused(ORDER_CHAT, "{" HELLO ",\"n\":2}", "not_served", "n: one answer");
    refused(ORDER_CHAT, "{" HELLO ",\"top_logprobs\":2}", "not_served", "alternatives");
    refused(ORDER_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":2}", "not_served", "alternatives");
    refused(ORDER_CHAT, "{" HELLO ",\"logprobs\":0}", "wrong_type", "logprobs");
    taken(ORDER_CHAT, "{" HELLO ",\"logprobs\":true,\"top_logprobs\":0}");
    assert_true(order.logprobs);
    taken(ORDER_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":0}");
    assert_true(order.logprobs);
    refused(ORDER_CHAT, "{" HELLO ",\"tools\":[{}]}", "not_served", "tools");
    refused(ORDER_COMPLETION, "{\"prompt\":\"x\",\"echo\":true}", "not_served", "echo");
    refused(ORDER_COMPLETION, "{\"prompt\":[\"a\",\"b\"]}", "not_served", "one prompt");
    refused(ORDER_COMPLETION, "{\"prompt\":[[1],[2]]}", "not_served", "one prompt");
    refused(ORDER_COMPLETION, "{\"prompt\":[[1,\"x\"]]}", "wrong_type", "prompt[1]");
    refused(ORDER_COMPLETION, "{\"prompt\":[[[1]]]}", "wrong_type", "prompt");
    refused(ORDER_CHAT, "{" HELLO ",\"temprature\":1}", "unknown_field", "temprature");
    refused(ORDER_COMPLETION, "{" HELLO ",\"prompt\":\"x\"}", "unknown_field", "messages");
    refused(ORDER_CHAT, "{" HELLO ",\"stream\":true,\"stream_options\":{\"x\":1}}", "unknown_field",
            "stream_options.x");
}

#define FORMAT(of) "{" HELLO ",\"response_format\":" of "}"
#define ADD        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]"

static void test_json_without_a_schema(void **state)
{
    (void)state;
    taken(ORDER_CHAT, FORMAT("{\"type\":\"text\"}"));
    assert_false(order.json);
    taken(ORDER_CHAT, FORMAT("{\"type\":\"json_object\"}"));
    assert_true(order.json);
    taken(ORDER_CHAT, FORMAT("{\"type\":\"json_object\",\"schema\":{}}"));
    assert_true(order.json);
    taken(ORDER_COMPLETION, "{\"prompt\":\"x\",\"response_format\":{\"type\":\"json_object\"}}");
    assert_true(order.json);
    taken(ORDER_CHAT, FORMAT("null"));
    assert_false(order.json);
    refused(ORDER_CHAT, FORMAT("{\"type\":\"json_object\",\"schema\":{\"type\":\"object\"}}"),
            "not_served", "no schema");
    refused(ORDER_CHAT, FORMAT("{\"type\":\"json_schema\",\"json_schema\":{}}"), "not_served",
            "no schema");
    refused(ORDER_CHAT, FORMAT("{\"type\":\"xml\"}"), "out_of_range", "xml");
    refused(ORDER_CHAT, FORMAT("{}"), "wrong_type", "an object with a type");
    refused(ORDER_CHAT, FORMAT("\"json_object\""), "wrong_type", "an object with a type");
    refused(ORDER_CHAT, FORMAT("{\"type\":\"json_object\"}," ADD), "excluded", "tools");
    taken(ORDER_CHAT, FORMAT("{\"type\":\"json_object\"},\"tool_choice\":\"none\"," ADD));
}

#define KWARGS(of) "{" HELLO ",\"chat_template_kwargs\":" of "}"

static void test_thinking(void **state)
{
    (void)state;
    taken(ORDER_CHAT, "{" HELLO "}");
    assert_false(order.no_think);
    taken(ORDER_CHAT, KWARGS("{\"enable_thinking\":false}"));
    assert_true(order.no_think);
    taken(ORDER_CHAT, KWARGS("{\"enable_thinking\":true}"));
    assert_false(order.no_think);
    taken(ORDER_CHAT, KWARGS("{\"enable_thinking\":null}"));
    taken(ORDER_CHAT, KWARGS("{}"));
    assert_false(order.no_think);
    refused(ORDER_CHAT, KWARGS("{\"enable_thinking\":false,\"colour\":1}"), "not_served",
            "chat_template_kwargs.colour");
    refused(ORDER_CHAT, KWARGS("{\"enable_thinking\":\"false\"}"), "wrong_type",
            "chat_template_kwargs.enable_thinking has to be true or false");
    refused(ORDER_CHAT, KWARGS("[]"), "wrong_type", "an object");
#define EFFORT(of) "{" HELLO ",\"reasoning_effort\":" of "}"
    taken(ORDER_CHAT, EFFORT("\"none\""));
    assert_true(order.no_think);
    taken(ORDER_CHAT, EFFORT("\"minimal\",\"chat_template_kwargs\":{}"));
    assert_true(order.no_think);
    taken(ORDER_CHAT, EFFORT("\"high\",\"verbosity\":\"low\",\"prompt_cache_retention\":\"24h\""));
    assert_false(order.no_think);
    refused(ORDER_CHAT, EFFORT("1"), "wrong_type", "reasoning_effort");
    refused(ORDER_COMPLETION, "{\"prompt\":\"x\",\"chat_template_kwargs\":{}}", "unknown_field",
            "chat_template_kwargs");
}

static void test_how_reasoning_is_answered(void **state)
{
    (void)state;
#define REASONING(format) "{" HELLO ",\"reasoning_format\":" format "}"
    taken(ORDER_CHAT, "{" HELLO "}");
    assert_true(order.split_reasoning);
    taken(ORDER_CHAT, REASONING("\"none\""));
    assert_false(order.split_reasoning);
    taken(ORDER_CHAT, REASONING("\"auto\""));
    assert_true(order.split_reasoning);
    taken(ORDER_CHAT, REASONING("\"deepseek\""));
    assert_true(order.split_reasoning);
    taken(ORDER_COMPLETION, "{\"prompt\":\"x\",\"reasoning_format\":\"none\"}");
    refused(ORDER_CHAT, REASONING("\"deepseek-legacy\""), "out_of_range",
            "reasoning_format is deepseek-legacy, not none, auto or deepseek");
    refused(ORDER_CHAT, REASONING("\"\""), "out_of_range", "reasoning_format is ,");
    refused(ORDER_CHAT, REASONING("true"), "wrong_type", "reasoning_format has to be a text");
    /* what clients send back */
    taken(ORDER_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
                      "\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\"},"
                      "{\"role\":\"user\",\"content\":\"q\"}]}");
    assert_true(order.n_messages == 3 && order.messages[1].bytes == 1);
}

static void test_an_answer_that_has_begun(void **state)
{
    (void)state;
    static const char begun[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
                                "{\"role\":\"assistant\",\"content\":\"He\"}]";
    char body[300];
    taken(ORDER_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}");
    assert_true(order.n_messages == 1 && order.begun_bytes == 0);
    snprintf(body, sizeof body, "%s}", begun);
    taken(ORDER_CHAT, body);
    assert_true(order.n_messages == 1 && order.messages[0].role == CHAT_USER);
    assert_true(order.begun_bytes == 2 && memcmp(order.begun, "He", 2) == 0);
    snprintf(body, sizeof body, "%s,\"response_format\":{\"type\":\"json_object\"}}", begun);
    refused(ORDER_CHAT, body, "excluded", "begun");
    snprintf(body, sizeof body, "%s," ADD "}", begun); /* its calls would begin within it */
    taken(ORDER_CHAT, body);
    assert_true(order.n_messages == 2 && order.begun_bytes == 0);
}

static void test_infill(void **state)
{
    (void)state;
    taken(ORDER_INFILL, "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"prompt\":\"c\","
                        "\"n_predict\":4,\"stream\":true,\"input_extra\":[]}");
    assert_string_equal(json_string_value(order.before), "a");
    assert_string_equal(json_string_value(order.after), "b");
    assert_memory_equal(order.prompt, "c", 1);
    refused(ORDER_INFILL, "{\"input_prefix\":\"a\"}", "missing_field", "input_suffix");
    refused(ORDER_INFILL, "{\"input_suffix\":\"a\"}", "missing_field", "input_prefix");
    refused(ORDER_INFILL, "{\"input_prefix\":1}", "wrong_type", "input_prefix");
    refused(ORDER_INFILL, "{\"input_extra\":{}}", "wrong_type", "input_extra");
    refused(ORDER_INFILL, "{\"input_extra\":[{\"text\":\"x\"},{}]}", "wrong_type",
            "input_extra[1]");
    refused(ORDER_INFILL, "{\"input_extra\":[{\"text\":\"x\",\"filename\":1}]}", "wrong_type",
            "input_extra[0]");
    refused(ORDER_COMPLETION, "{\"prompt\":\"x\",\"input_prefix\":\"a\"}", "unknown_field",
            "input_prefix");
}

/* The pieces of an infill; what is no control token is in brackets. */
static void filled(const char *body, bool files, const char *wanted)
{
    char got[400] = "";
    size_t n, used = 0;
    taken(ORDER_INFILL, body);
    struct prompt_piece *pieces = fill_pieces(&order, files, &n);
    assert_non_null(pieces);
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(got + used, sizeof got - used,
                                 pieces[i].kind == PROMPT_SPECIAL ? "%.*s" : "[%.*s]",
                                 (int)pieces[i].bytes, pieces[i].text);
    free(pieces);
    assert_string_equal(got, wanted);
}

static void test_infill_beside_other_files(void **state)
{
    (void)state;
#define GAP   "<|fim_prefix|>[a][c]<|fim_suffix|>[b]<|fim_middle|>"
#define EXTRA "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"prompt\":\"c\",\"input_extra\":"
    filled(EXTRA "[]}", true, GAP);
    filled(EXTRA "[{\"filename\":\"x.c\",\"text\":\"<|file_sep|>\"},{\"text\":\"two\"},"
                 "{\"filename\":null,\"text\":\"three\"}]}",
           true,
           "<|repo_name|>[myproject\n]<|file_sep|>[x.c][\n][<|file_sep|>]<|file_sep|>[tmp][\n][two]"
           "<|file_sep|>[tmp][\n][three]<|file_sep|>[filename][\n]" GAP);
    filled(EXTRA "[{\"filename\":\"x.c\",\"text\":\"one\"}]}", false, GAP);
}

static void test_messages(void **state)
{
    (void)state;
    taken(
        ORDER_CHAT,
        "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"b\\u0000c\"}]},{\"role\":\"user\",\"content\":\"q\","
        "\"name\":\"n\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[],"
        "\"refusal\":null},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"z\"}]}]}");
    assert_int_equal(order.n_messages, 4);
    assert_int_equal(order.messages[0].role, CHAT_SYSTEM);
    assert_int_equal(order.messages[0].bytes, 5);
    assert_memory_equal(order.messages[0].text, "a\nb\0c", 5);
    assert_int_equal(order.messages[2].role, CHAT_ASSISTANT);
    assert_memory_equal(order.messages[3].text, "z", 1);
#define PARTS(role, a, b)                                                                          \
    "{\"role\":\"" role "\",\"content\":[{\"type\":\"text\",\"text\":\"" a                         \
    "\"},{\"type\":\"text\",\"text\":\"" b "\"}]}"
    taken(ORDER_CHAT, "{\"messages\":[" PARTS("user", "", "q") "," PARTS("user", "q", "") "," PARTS(
                          "assistant", "He", "llo") "]}");
    assert_true(order.messages[0].bytes == 1 && order.messages[1].bytes == 2);
    assert_memory_equal(order.messages[1].text, "q\n", 2);
    assert_true(order.begun_bytes == 5 && memcmp(order.begun, "Hello", 5) == 0);
#define ONE(text) "{\"messages\":[{" text "}]}"
    refused(ORDER_CHAT, "{\"messages\":[]}", "bad_message", "messages");
    refused(ORDER_CHAT, "{\"messages\":\"hello\"}", "bad_message", "messages");
    refused(ORDER_CHAT, "{\"messages\":[7]}", "bad_message", "messages[0]");
    refused(ORDER_CHAT, ONE("\"content\":\"x\""), "bad_message", "messages[0].role");
    refused(ORDER_CHAT, ONE("\"role\":\"user\""), "bad_message", "messages[0].content");
    refused(ORDER_CHAT, ONE("\"role\":\"root\",\"content\":\"x\""), "bad_message", "role");
    taken(ORDER_CHAT, ONE("\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"x\""));
    assert_int_equal(order.messages[0].role, CHAT_TOOL);
    refused(ORDER_CHAT, ONE("\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[{}]"),
            "bad_message", "assistant");
    taken(ORDER_CHAT, ONE("\"role\":\"assistant\",\"content\":[],\"tool_calls\":[{\"function\":{"
                          "\"name\":\"f\",\"arguments\":\"{}\"}}]"));
    assert_int_equal(order.messages[0].bytes, 0);
    refused(ORDER_CHAT, ONE("\"role\":\"assistant\",\"tool_calls\":[{}]"), "bad_message",
            "arguments");
    refused(ORDER_CHAT, ONE("\"role\":\"user\",\"content\":\"x\",\"colour\":1"), "bad_message",
            "messages[0].colour");
    refused(ORDER_CHAT, ONE("\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]"),
            "bad_message", "image_url");
    refused(ORDER_CHAT, ONE("\"role\":\"user\",\"content\":[{\"type\":\"text\"}]"), "bad_message",
            "messages[0].content");
    refused(ORDER_CHAT, ONE("\"role\":\"user\",\"content\":[]"), "bad_message",
            "messages[0].content");
}

static void test_json_is_bounded(void **state)
{
    (void)state;
    size_t n = 3 * JSON_VALUES_BOUND;
    char *large = malloc(n + 1), deep[300];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    refused(ORDER_CHAT, deep, "json_too_deep", "deeper");
    for (size_t i = 0; i < n; i++)
        large[i] = i == 0 ? '[' : i % 2 ? '1' : ',';
    large[n] = '\0';
    refused(ORDER_CHAT, large, "json_too_large", "values");
    free(large);
    refused(ORDER_CHAT, "", "bad_json", "no body");
    refused(ORDER_CHAT, "[1]", "bad_json", "no object");
    refused(ORDER_CHAT, "{\"a\":1} x", "bad_json", "line 1");
    taken(ORDER_COMPLETION, "\xEF\xBB\xBF{\"prompt\":\"p\"}"); /* a byte order mark */
    refused(ORDER_CHAT, "\xEF\xBB\xBF", "bad_json", "no body");
    refused(ORDER_CHAT, "{\"a\":1,\"a\":2}", "bad_json", "a");
    refused(ORDER_CHAT, "{\"prompt\":\"\xff\"}", "bad_json", "line 1");
    /* brackets and commas within a text are text */
    taken(ORDER_COMPLETION,
          "{\"prompt\":\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[[[[\"}");
    order_finish(&order);
}

static void test_integers_beyond_64_bits(void **state)
{
    (void)state;
#define SCHEMA(maximum)                                                                            \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"              \
    "\"maximum\":" maximum ",\"minimum\":0,\"description\":\"\\\"18446744073709551616\"}}}]"
    taken(ORDER_CHAT, "{" HELLO "," SCHEMA("18446744073709551615") ",\"seed\":9007199254740993}");
    json_t *parameters =
        json_object_get(json_object_get(json_array_get(order.tools, 0), "function"), "parameters");
    assert_true(json_number_value(json_object_get(parameters, "maximum")) == 0x1p64);
    /* other values stay what they are */
    assert_true(json_is_integer(json_object_get(parameters, "minimum")));
    assert_string_equal(json_string_value(json_object_get(parameters, "description")),
                        "\"18446744073709551616");
    assert_true(order.seed == 9007199254740993);
    taken(ORDER_CHAT, "{" HELLO "," SCHEMA("-9223372036854775809") "}");
    taken(ORDER_COMPLETION, "{\"prompt\":[1,2],\"max_tokens\":99999999999999999999,"
                            "\"metadata\":[9223372036854775808,-9223372036854775808]}");
    assert_int_equal(order.n_ids, 2);
    refused(ORDER_CHAT, "{" HELLO ",\"seed\":9223372036854775808}", "wrong_type", "seed");
    refused(ORDER_COMPLETION, "{\"prompt\":[1,18446744073709551616]}", "wrong_type", "prompt[1]");
    refused(ORDER_CHAT, "{\"user\":18446744073709551616x}", "bad_json", "line 1");
    refused(ORDER_CHAT, "{\"user\":018446744073709551616}", "bad_json", "line 1");
    refused(ORDER_CHAT, "{\"user\":18446744073709551616", "bad_json", "line 1");
    order_finish(&order);
}

static void test_tokens(void **state)
{
    (void)state;
    taken(ORDER_TOKENIZE, "{\"content\":\"\",\"with_pieces\":true,\"add_special\":true}");
    assert_true(order.with_pieces && order.add_special && order.parse_special);
    taken(ORDER_DETOKENIZE, "{\"tokens\":[]}");
    assert_int_equal(order.n_ids, 0);
    refused(ORDER_TOKENIZE, "{}", "missing_field", "content");
    refused(ORDER_DETOKENIZE, "{}", "missing_field", "tokens");
    refused(ORDER_CHAT, "{}", "missing_field", "messages");
    order_finish(&order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_not_said_is_the_command_lines_default),
        cmocka_unit_test(test_every_field_is_taken),
        cmocka_unit_test(test_hints_change_nothing),
        cmocka_unit_test(test_what_is_off_changes_nothing),
        cmocka_unit_test(test_null_is_no_field),
        cmocka_unit_test(test_a_wrong_type_is_refused_by_name),
        cmocka_unit_test(test_out_of_range_is_refused_with_the_range),
        cmocka_unit_test(test_what_is_not_served_is_refused_unless_it_asks_for_nothing),
        cmocka_unit_test(test_json_without_a_schema),
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_how_reasoning_is_answered),
        cmocka_unit_test(test_an_answer_that_has_begun),
        cmocka_unit_test(test_infill),
        cmocka_unit_test(test_infill_beside_other_files),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_json_is_bounded),
        cmocka_unit_test(test_integers_beyond_64_bits),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
