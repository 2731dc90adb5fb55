/*
 * test_http_parts.c - routes, keys, foreign origins, texts as JSON, and answers that jansson reads
 * back.
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

#include <jansson.h>

#include "base/error.h"
#include "gateway/answers.h"
#include "gateway/http_guard.h"
#include "gateway/meters.h"
#include "gateway/routes.h"

/* ---- routes ---- */

static void expect_route(const char *method, const char *path, int status, enum endpoint wanted)
{
    struct route route;
    struct api_error error = {0};
    int code = route_find(&route, method, path, &error);
    if (code ? error.status != status : status != 200 || route.endpoint != wanted)
        fail_msg("%s %s: %d %s", method, path, error.status, error.text);
}

static void test_routes(void **state)
{
    (void)state;
    expect_route("GET", "/health", 200, ENDPOINT_HEALTH);
    expect_route("HEAD", "/v1/models", 200, ENDPOINT_MODELS);
    expect_route("GET", "/v1/models/a/b", 200, ENDPOINT_MODEL);
    expect_route("POST", "/v1/chat/completions", 200, ENDPOINT_CHAT);
    expect_route("POST", "/v1/completions", 200, ENDPOINT_COMPLETIONS);
    expect_route("GET", "/v1/chat/completions", 405, 0);
    expect_route("POST", "/metrics", 405, 0);
    expect_route("POST", "/v1/embeddings", 501, 0);
    expect_route("POST", "/v1/audio/speech", 501, 0);
    expect_route("GET", "/", 200, ENDPOINT_PAGE);
    expect_route("GET", "/v1/models/", 404, 0);
    expect_route("POST", "/v1/chat/completions/", 404, 0);
    expect_route("GET", "/../etc/passwd", 404, 0);
    expect_route("GET", "", 404, 0);
}

/* ---- keys ---- */

static void test_keys(void **state)
{
    (void)state;
    struct api_keys keys = {.n = 0};
    struct hill_why why;
    char path[] = "/tmp/hill-test-keys-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && dprintf(fd, "# keys\n\nsecond-key\r\nthird\n") > 0);
    close(fd);
    assert_int_equal(api_keys_add(&keys, "first", 5, "--api-key", &why), 0);
    assert_int_equal(api_keys_read(&keys, path, &why), 0);
    assert_int_equal(keys.n, 3);
    assert_int_equal(api_keys_find(&keys, "first", 5), 0);
    assert_int_equal(api_keys_find(&keys, "second-key", 10), 1);
    assert_int_equal(api_keys_find(&keys, "third", 5), 2);
    assert_int_equal(api_keys_find(&keys, "", 0), -1);
    assert_int_equal(api_keys_find(&keys, "firs", 4), -1);
    assert_int_equal(api_keys_find(&keys, "firstfirst", 10), -1);
    assert_int_equal(api_keys_find(&keys, "First", 5), -1);
    assert_string_equal(api_keys_bearer("bearer  x"), "x");
    assert_null(api_keys_bearer("Basic x"));
    assert_null(api_keys_bearer(NULL));
    assert_int_equal(api_keys_add(&keys, "a b", 3, "--api-key", &why), HILL_E_INVALID);
    assert_int_equal(api_keys_add(&keys, "", 0, "--api-key", &why), HILL_E_INVALID);
    unlink(path);
    assert_int_equal(api_keys_read(&keys, path, &why), HILL_E_INVALID);
    api_keys_finish(&keys);
}

/* ---- foreign pages ---- */

static void test_foreign_pages(void **state)
{
    (void)state;
    struct gateway_settings s = {.host = "127.0.0.1"};
    assert_null(http_guard_why_not(&s, "127.0.0.1:8080", NULL));
    assert_null(http_guard_why_not(&s, "localhost:1", NULL));
    assert_null(http_guard_why_not(&s, "[::1]:1", NULL));
    assert_null(http_guard_why_not(&s, NULL, NULL));
    assert_non_null(http_guard_why_not(&s, "evil.example:8080", NULL));
    assert_non_null(http_guard_why_not(&s, "127.0.0.1.evil.example", NULL));
    assert_null(http_guard_why_not(&s, "localhost:1", "http://localhost:1"));
    assert_non_null(http_guard_why_not(&s, "localhost:1", "http://localhost:2"));
    assert_non_null(http_guard_why_not(&s, "localhost:1", "null"));
    assert_null(http_guard_why_not(&s, "localhost", "https://localhost")); /* a proxy with TLS */
    assert_non_null(http_guard_why_not(&s, "localhost", "https://localhost.evil"));
    assert_non_null(http_guard_why_not(&s, "localhost", "ftp://localhost"));
    s.cors = "https://chat.example";
    assert_null(http_guard_why_not(&s, "localhost:1", "https://chat.example"));
    assert_non_null(http_guard_why_not(&s, "localhost:1", "https://chat.example.evil"));
    assert_string_equal(http_guard_allow(&s, "https://chat.example"), "https://chat.example");
    assert_null(http_guard_allow(&s, "https://other"));
    s.cors = "*";
    assert_string_equal(http_guard_allow(&s, "https://other"), "*");
    s = (struct gateway_settings){.host = "192.0.2.1", .keys.n = 1};
    assert_null(http_guard_why_not(&s, "chat.example", NULL)); /* the key decides */
    s = (struct gateway_settings){.host = "0.0.0.0"};          /* --insecure */
    assert_null(http_guard_why_not(&s, "192.0.2.1:8080", NULL));
    assert_null(http_guard_why_not(&s, "[2001:db8::1]:8080", NULL));
    assert_null(http_guard_why_not(&s, "localhost:8080", NULL));
    assert_non_null(http_guard_why_not(&s, "evil.example:8080", NULL));
    assert_non_null(http_guard_why_not(&s, "192.0.2.1.evil.example", NULL));
    s = (struct gateway_settings){.host = "unix:/x"}; /* a browser gets there through a proxy */
    assert_null(http_guard_why_not(&s, "localhost", "https://localhost"));
    assert_null(http_guard_why_not(&s, "127.0.0.1:8080", NULL));
    assert_null(http_guard_why_not(&s, NULL, NULL));
    assert_non_null(http_guard_why_not(&s, "evil.example", "http://evil.example"));
    assert_non_null(http_guard_why_not(&s, "evil.example", NULL));
    s.keys.n = 1;
    assert_null(http_guard_why_not(&s, "chat.example", "https://chat.example"));
    assert_true(gateway_is_loopback("127.9.9.9") && gateway_is_loopback("::1"));
    assert_true(gateway_is_loopback("unix:/x") && !gateway_is_loopback("0.0.0.0"));
    assert_false(gateway_is_loopback("::") || gateway_is_loopback("localhost.evil"));
}

/* ---- JSON ---- */

static void test_any_bytes_are_a_json_string(void **state)
{
    (void)state;
    unsigned seed = 5;
    for (unsigned round = 0; round < 2000; round++) {
        char bytes[24];
        struct text_buffer out = {0};
        size_t n = (size_t)rand_r(&seed) % sizeof bytes;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (char)(round % 2 ? rand_r(&seed) : rand_r(&seed) % 128);
        text_add_json(&out, bytes, n);
        json_t *back = json_loadb(out.bytes, out.length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_true(json_is_string(back));
        json_t *same = json_stringn(bytes, n); /* NULL: no UTF-8 */
        assert_true(same ? json_equal(back, same)
                         : strstr(json_string_value(back), "\xEF\xBF\xBD") != NULL ||
                               json_string_length(back) != strlen(json_string_value(back)));
        json_decref(same);
        json_decref(back);
        text_finish(&out);
    }
}

static json_t *parse(const char *text, size_t bytes)
{
    json_error_t why;
    json_t *object = json_loadb(text, bytes, 0, &why);
    if (!object)
        fail_msg("%s: %.*s", why.text, (int)bytes, text);
    return object;
}

static const struct answer_head head = {true, true, "chatcmpl-1", "m \"q\"", 1700000000};
static const struct answer_figures figures = {3, 2, 1, true, 10, 20};

static void test_an_infill(void **state)
{
    (void)state;
    struct answer_head own = head;
    struct text_buffer out = {0};
    const struct answer_parts answer = {.text = {.bytes = (char *)"a\n", .length = 2}};
    const char *text, *type;
    int stop, predicted;
    own.chat = false;
    own.fill = true;
    own.stop_type = "eos";
    answer_whole(&out, &own, &answer, "stop", &figures, NULL);
    json_t *json = parse(out.bytes, out.length);
    assert_int_equal(json_unpack(json, "{s:s, s:b, s:s, s:i, s:{s:F}}", "content", &text, "stop",
                                 &stop, "stop_type", &type, "tokens_predicted", &predicted,
                                 "timings", "predicted_ms", &(double){0}),
                     0);
    assert_string_equal(text, "a\n");
    assert_string_equal(type, "eos");
    assert_true(stop && predicted == 2);
    json_decref(json);
    out.length = 0;
    answer_begin(&out, &own);
    answer_chunk(&out, &own, "x", 1, NULL);
    answer_end(&out, &own, "stop", &figures);
    text_add(&out, "", 1);
    assert_non_null(strstr(out.bytes, "data: {\"index\":0,\"content\":\"x\",\"tokens\":[],"
                                      "\"stop\":false}\n\ndata: {\"index\":0,\"content\":\"\""));
    assert_null(strstr(out.bytes, "[DONE]"));
    text_finish(&out);
}

static void test_a_whole_answer(void **state)
{
    (void)state;
    for (int chat = 0; chat < 2; chat++) {
        struct text_buffer out = {0};
        struct answer_head own = head;
        const char *object, *text, *finish, *model;
        json_int_t total;
        own.chat = chat;
        const struct answer_parts answer = {.text = {.bytes = (char *)"a\n", .length = 2}};
        answer_whole(&out, &own, &answer, "stop", &figures, NULL);
        json_t *json = parse(out.bytes, out.length), *choice;
        assert_int_equal(json_unpack(json, "{s:s, s:s, s:[o], s:{s:I}}", "object", &object, "model",
                                     &model, "choices", &choice, "usage", "total_tokens", &total),
                         0);
        assert_string_equal(model, "m \"q\"");
        assert_int_equal(total, 5);
        assert_int_equal(
            chat ? json_unpack(choice, "{s:{s:s}, s:s}", "message", "content", &text,
                               "finish_reason", &finish)
                 : json_unpack(choice, "{s:s, s:s}", "text", &text, "finish_reason", &finish),
            0);
        assert_string_equal(object, chat ? "chat.completion" : "text_completion");
        assert_string_equal(text, "a\n");
        assert_string_equal(finish, "stop");
        json_decref(json);
        text_finish(&out);
    }
}

static void test_reasoning_stands_before_the_text(void **state)
{
    (void)state;
    struct text_buffer out = {0};
    const struct answer_parts cut = {.reasoning = {.bytes = (char *)"\"a\"", .length = 3}};
    answer_whole(&out, &head, &cut, "length", &figures, NULL);
    answer_reasoning(&out, &head, &cut.reasoning, NULL);
    text_add(&out, "", 1);
    assert_non_null(strstr(out.bytes, "\"message\":{\"role\":\"assistant\",\"reasoning_content\":"
                                      "\"\\\"a\\\"\",\"content\":\"\","));
    assert_non_null(strstr(out.bytes, "\"delta\":{\"reasoning_content\":\"\\\"a\\\"\"},"));
    text_finish(&out);
}

static void test_a_stream_is_events_of_json(void **state)
{
    (void)state;
    struct text_buffer out = {0};
    unsigned events = 0, usages = 0;
    answer_begin(&out, &head);
    answer_progress(&out, &head, 100, 40, 5);
    answer_comment(&out);
    answer_chunk(&out, &head, "x", 1, NULL);
    answer_end(&out, &head, "length", &figures);
    text_add(&out, "", 1);
    for (char *at = out.bytes, *end; (end = strstr(at, "\n\n")); at = end + 2) {
        if (at[0] == ':')
            continue;
        assert_memory_equal(at, "data: ", 6);
        events++;
        if (strncmp(at + 6, "[DONE]", 6) == 0) {
            assert_string_equal(end + 2, "");
            continue;
        }
        json_t *json = parse(at + 6, (size_t)(end - at - 6)),
               *usage = json_object_get(json, "usage");
        assert_non_null(usage);
        usages += json_is_object(usage);
        json_decref(json);
    }
    assert_int_equal(events, 6);
    assert_int_equal(usages, 1);
    text_finish(&out);
}

static void test_an_error_has_openais_shape(void **state)
{
    (void)state;
    struct text_buffer out = {0};
    struct api_error error;
    const char *message, *type, *param;
    api_refuse(&error, 400, NULL, "p", "line\none \"%s\"", "x");
    api_error_write(&out, &error);
    json_t *json = parse(out.bytes, out.length);
    assert_int_equal(json_unpack(json, "{s:{s:s, s:s, s:s, s:n}}", "error", "message", &message,
                                 "type", &type, "param", &param, "code"),
                     0);
    assert_string_equal(message, "line one \"x\"");
    assert_string_equal(type, "invalid_request_error");
    assert_string_equal(param, "p");
    json_decref(json);
    text_finish(&out);
    api_refuse_as(&error, HILL_E_INVALID, "x");
    assert_int_equal(error.status, 400);
    api_refuse_as(&error, HILL_E_PROTOCOL, "x"); /* the pipeline's own mistake */
    assert_int_equal(error.status, 500);
}

static json_t *write_logprobs(struct logprobs *l)
{
    struct text_buffer out = {0};
    logprobs_write(&out, l);
    json_t *json = json_loadb(out.bytes, out.length, JSON_DECODE_ANY, NULL);
    assert_non_null(json);
    text_finish(&out);
    return json;
}

static void test_logprobs_come_with_their_text(void **state)
{
    (void)state;
    struct logprobs l = {.wanted = true, .chat = true};
    const char *token;
    double logprob;
    json_int_t first, last;
    logprobs_add(&l, "ab", 2, -0.5, true);
    logprobs_add(&l, "", 0, -1, true); /* within a character */
    logprobs_add(&l, "\xc3\xa9", 2, -2, true);
    logprobs_add(&l, "!", 1, 0, false); /* more of the same token */
    logprobs_add(&l, "held", 4, -3, true);
    logprobs_sure(&l, 2);
    json_t *json = write_logprobs(&l);
    assert_int_equal(json_unpack(json, "{s:[{s:s, s:F, s:[I, I], s:[]}]}", "content", "token",
                                 &token, "logprob", &logprob, "bytes", &first, &last,
                                 "top_logprobs"),
                     0);
    assert_string_equal(token, "ab");
    assert_true(logprob == -0.5 && first == 'a' && last == 'b');
    assert_int_equal(json_array_size(json_object_get(json, "content")), 1);
    json_decref(json);
    logprobs_sure(&l, 3);
    l.chat = false;
    json = write_logprobs(&l);
    assert_int_equal(json_array_size(json_object_get(json, "tokens")), 2);
    assert_int_equal(json_unpack(json, "{s:[s, s], s:[F, F], s:[I, I]}", "tokens", &token, &token,
                                 "token_logprobs", &logprob, &logprob, "text_offset", &first,
                                 &last),
                     0);
    assert_string_equal(token, "\xc3\xa9!");
    assert_true(logprob == -2 && first == 2 && last == 2);
    json_decref(json);
    logprobs_finish(&l);
    json = write_logprobs(&l);
    assert_true(json_is_null(json));
    json_decref(json);
}

static void test_offsets_count_characters(void **state)
{
    (void)state;
    static const char *const tokens[] = {"na\xc3\xafve", " ", "\xf0\x9f\x98\x80\xe2\x82\xac", "!"};
    struct logprobs l = {.wanted = true};
    json_int_t offsets[4];
    for (unsigned i = 0; i < 4; i++) {
        logprobs_add(&l, tokens[i], strlen(tokens[i]), -1, true);
        logprobs_sure(&l, strlen(tokens[i]));
    }
    json_t *json = write_logprobs(&l);
    assert_int_equal(json_unpack(json, "{s:[I, I, I, I]}", "text_offset", &offsets[0], &offsets[1],
                                 &offsets[2], &offsets[3]),
                     0);
    assert_true(offsets[0] == 0 && offsets[1] == 5 && offsets[2] == 6 && offsets[3] == 8);
    json_decref(json);
    logprobs_finish(&l);
}

/* ---- metrics ---- */

static void test_times_are_a_histogram(void **state)
{
    (void)state;
    struct meters meters = {0};
    Hill__StatusReply status = HILL__STATUS_REPLY__INIT;
    struct text_buffer out = {0};
    meters_time(&meters.first_token, 0.005);
    meters_time(&meters.first_token, 0.006);
    meters_time(&meters.first_token, 1000);
    meters_write(&out, &meters, &status);
    text_add(&out, "", 1);
    assert_false(out.failed);
    assert_non_null(strstr(out.bytes, "first_token_seconds_bucket{le=\"0.005\"} 1\n"));
    assert_non_null(strstr(out.bytes, "first_token_seconds_bucket{le=\"0.01\"} 2\n"));
    assert_non_null(strstr(out.bytes, "first_token_seconds_bucket{le=\"120\"} 2\n"));
    assert_non_null(strstr(out.bytes, "first_token_seconds_bucket{le=\"+Inf\"} 3\n"));
    text_finish(&out);
}

static void test_what_was_written_to_flash(void **state)
{
    (void)state;
    struct meters meters = {0};
    Hill__StatusReply status = HILL__STATUS_REPLY__INIT;
    Hill__CsdModelCounters counters = HILL__CSD_MODEL_COUNTERS__INIT;
    struct text_buffer out = {0};
    counters.payload_bytes = 1;
    counters.written_bytes = 8192;
    counters.directory_bytes = 4096;
    status.uptime_seconds = 2.5;
    meters_write(&out, &meters, &status);
    text_add(&out, "", 1);
    assert_null(strstr(out.bytes, "flash_written"));
    text_finish(&out);
    status.csd_model_counters = &counters;
    meters_write(&out, &meters, &status);
    text_add(&out, "", 1);
    assert_non_null(strstr(out.bytes, "\nhillinfer_flash_written_bytes_total 12288\n"));
    assert_non_null(strstr(out.bytes, "\nhillinfer_uptime_seconds 2.5\n"));
    text_finish(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_foreign_pages),
        cmocka_unit_test(test_any_bytes_are_a_json_string),
        cmocka_unit_test(test_an_infill),
        cmocka_unit_test(test_a_whole_answer),
        cmocka_unit_test(test_reasoning_stands_before_the_text),
        cmocka_unit_test(test_a_stream_is_events_of_json),
        cmocka_unit_test(test_an_error_has_openais_shape),
        cmocka_unit_test(test_logprobs_come_with_their_text),
        cmocka_unit_test(test_offsets_count_characters),
        cmocka_unit_test(test_times_are_a_histogram),
        cmocka_unit_test(test_what_was_written_to_flash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
