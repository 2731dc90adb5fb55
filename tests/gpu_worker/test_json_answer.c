/*
 * tests/gpu_worker/test_json_answer.c - answers that are held to JSON, against jansson, which
 * shares no code with the automaton.
 *
 * Random objects, as jansson writes them, are taken; what is taken of changed ones, jansson reads;
 * tokens drawn at random through the sampler, of vocabularies made of pieces that cut marks, words,
 * escapes and characters anywhere, make answers that jansson reads. HILL_TEST_SEED, printed. With
 * HILL_JSON_VOCAB=MODEL.gguf: what a token costs with that vocabulary, instead.
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

#include "base/clock.h"
#include "gpu_worker/json_answer.h"

static uint64_t seed, drawn;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(sampler_random(seed, drawn++) * n);
}

/* How many bytes are taken. */
static size_t taken_of(const char *text, size_t n, struct json_acceptor *json)
{
    json_acceptor_init(json);
    for (size_t i = 0; i < n; i++)
        if (!json_acceptor_take(json, (uint8_t)text[i]))
            return i;
    return n;
}

static void whole(const char *text)
{
    struct json_acceptor json;
    size_t n = strlen(text), taken = taken_of(text, n, &json);
    if (taken != n || !json_acceptor_is_complete(&json))
        fail_msg("%s: %zu of %zu bytes taken", text, taken, n);
}

/* The last byte is the one that is not taken. */
static void cut(const char *text)
{
    struct json_acceptor json;
    assert_int_equal(taken_of(text, strlen(text), &json), strlen(text) - 1);
}

static void examples(void **state)
{
    (void)state;
    whole("{}");
    whole(" {\n \"a\" : [ ] , \"b\":[1,-0,0.5,1e5,-12.75E-3 , true,false,null,{}]\t}");
    whole("{\"\\u00e9\\\"\\\\\\/"
          "\\b\\f\\n\\r\\t\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\\uD83D\\ude00\"}");
    cut("[");    /* an object is wanted */
    cut("{}\n"); /* nothing follows it */
    cut("{,");
    cut("{\"a\",");
    cut("{\"a\":1,}");
    cut("{\"a\":[1,]");
    cut("{\"a\":[}");
    cut("{\"a\":01");
    cut("{\"a\":-,");
    cut("{\"a\":1.}");
    cut("{\"a\":1e}");
    cut("{\"a\":1e123"); /* of no number that a double holds, perhaps */
    cut("{\"a\":12345678901234567");
    cut("{\"a\":trux");
    cut("{\"a\":\"\n");
    cut("{\"a\":\"\\x");
    cut("{\"a\":\"\\u0000"); /* NUL */
    cut("{\"a\":\"\\ude");   /* the second half alone */
    cut("{\"a\":\"\\ud83d ");
    cut("{\"a\":\"\\ud83d\\n");
    cut("{\"a\":\"\\ud83d\\u0");
    cut("{\"a\":\"\\ud83d\\ud8");
    cut("{\"a\":\"\x80");
    cut("{\"a\":\"\xc0");
    cut("{\"a\":\"\xe0\x9f");
    cut("{\"a\":\"\xed\xa0"); /* a surrogate in UTF-8 */
    cut("{\"a\":\"\xf4\x90");
    cut("{\"a\":\"\xe2\x82\"");
}

static void depth_and_white_space_are_bounded(void **state)
{
    (void)state;
    char text[200] = "{\"a\":";
    for (unsigned i = 1; i < JSON_DEPTH_MAX; i++)
        strcat(text, "[");
    strcat(text, "{");
    cut(text);
    memset(text, ' ', sizeof text);
    text[JSON_WHITE_SPACE_MAX + 1] = 0;
    cut(text);
}

/* ---- random objects -------------------------------------------------------------------------- */

static json_t *random_string(void)
{
    static const char *const parts[] = {
        "a", "word ", "\"",   "\\", "\n", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
        "/", "\x7f",  "\x01", "{",  "]"};
    char text[64] = "";
    for (uint32_t n = below(8); n--;)
        strcat(text, parts[below(sizeof parts / sizeof *parts)]);
    return json_string(text);
}

static json_t *random_value(unsigned depth)
{
    json_t *value;
    switch (below(depth ? 9 : 7)) {
    case 0:
        return json_true();
    case 1:
        return json_null();
    case 2:
        return json_integer((json_int_t)below(1u << 30) - (1 << 29));
    case 3:
        return json_real((below(1u << 20) - 5e5) / 64);
    case 4:
        return json_real(1.0 / (1 + below(1000)) * 1e-9);
    case 5:
    case 6:
        return random_string();
    case 7:
        value = json_array();
        for (uint32_t n = below(4); n--;)
            json_array_append_new(value, random_value(depth - 1));
        return value;
    default:
        value = json_object();
        for (uint32_t n = below(4); n--;) {
            json_t *key = random_string();
            json_object_set_new(value, json_string_value(key), random_value(depth - 1));
            json_decref(key);
        }
        return value;
    }
}

static char *random_text(void)
{
    static const size_t flags[] = {JSON_COMPACT, JSON_INDENT(2), JSON_ENSURE_ASCII,
                                   JSON_ESCAPE_SLASH | JSON_INDENT(1), 0};
    json_t *value = json_object();
    for (uint32_t n = below(5); n--;)
        json_object_set_new(value, (const char[]){(char)('a' + n), 0}, random_value(4));
    char *text = json_dumps(value, flags[below(5)] | JSON_REAL_PRECISION(15));
    json_decref(value);
    assert_non_null(text);
    return text;
}

static void what_jansson_writes_is_taken(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 3000; round++) {
        char *text = random_text();
        whole(text);
        free(text);
    }
}

static void what_is_taken_jansson_reads(void **state)
{
    (void)state;
    static const char bytes[] = "{}[]\",:\\u0123eE+-.tfn dD8\x80\xbf\xc3\xe2\xed\xf0";
    unsigned still = 0;
    for (unsigned round = 0; round < 30000; round++) {
        struct json_acceptor json;
        char *text = random_text();
        size_t n = strlen(text);
        for (uint32_t changes = 1 + below(3); changes--;)
            text[below((uint32_t)n)] = bytes[below(sizeof bytes - 1)];
        if (taken_of(text, n, &json) == n && json_acceptor_is_complete(&json)) {
            json_error_t error;
            json_t *read = json_loadb(text, n, 0, &error);
            if (!read)
                fail_msg("round %u: %.*s: %s", round, (int)n, text, error.text);
            json_decref(read);
            still++;
        }
        free(text);
    }
    assert_true(still > 1000);
}

/* ---- random tokens --------------------------------------------------------------------------- */

#define PIECES 1200u

/* Every byte, then cuts of random texts: marks in the middle of tokens, characters and escapes in
 * halves. Token 0 has no bytes, the last one stops. */
static struct json_tokens *random_tokens(void)
{
    struct gguf_string pieces[PIECES];
    static char bytes[256], cuts[PIECES][9];
    struct json_tokens *tokens;
    pieces[0] = (struct gguf_string){"", 0};
    for (unsigned i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        pieces[1 + i] = (struct gguf_string){&bytes[i], 1};
    }
    for (unsigned i = 257; i < PIECES; i++) {
        char *text = random_text();
        uint32_t n = (uint32_t)strlen(text), from = below(n), most = n - from < 8 ? n - from : 8;
        uint32_t length = 1 + below(most);
        memcpy(cuts[i], text + from, length);
        pieces[i] = (struct gguf_string){cuts[i], length};
        free(text);
    }
    assert_int_equal(json_tokens_make(&tokens, pieces, PIECES), 0);
    return tokens;
}

/* Does a token lead out of what is open? Those are liked, so that answers end. */
static bool closes(const struct json_tokens *t, uint32_t id)
{
    uint8_t last = t->offsets[id] < t->offsets[id + 1] ? t->bytes[t->offsets[id + 1] - 1] : 0;
    return last == '}' || last == ']' || last == '"';
}

/* One answer, into text; the ids into ids. Returns how many. */
static uint32_t make_answer(const struct json_tokens *tokens, struct sampler *s, uint32_t *ids,
                            char *text, size_t *bytes)
{
    const uint32_t stop = PIECES - 1;
    struct json_answer answer = {.stops = &stop, .n_stops = 1};
    const struct sampler_filter filter = {json_answer_allows, &answer};
    static float logits[PIECES];
    uint32_t n = 0;
    *bytes = 0;
    assert_int_equal(json_answer_begin(&answer, tokens, NULL, 0), 0);
    while (!json_answer_is_complete(&answer)) {
        for (uint32_t i = 0; i < PIECES; i++)
            logits[i] = (float)below(1000) / 100 + (n > 30 && closes(tokens, i) ? n / 8.0f : 0);
        uint32_t id = sampler_pick(s, logits, NULL, 0, drawn++, &filter);
        assert_true(id != SAMPLER_NO_TOKEN && id != stop && id != 0);
        assert_true(n < 2000);
        ids[n++] = id;
        uint32_t length = tokens->offsets[id + 1] - tokens->offsets[id];
        memcpy(text + *bytes, tokens->bytes + tokens->offsets[id], length);
        *bytes += length;
        assert_int_equal(json_answer_take(&answer, id), 0);
    }
    assert_false(json_answer_allows(&answer, 1 + ' '));
    return n;
}

/* A request that goes on after any of its tokens is where it was. */
static void goes_on(const struct json_tokens *tokens, const uint32_t *ids, uint32_t n)
{
    struct json_answer first = {0}, second = {0};
    uint32_t at = below(n);
    assert_int_equal(json_answer_begin(&first, tokens, NULL, 0), 0);
    for (uint32_t i = 0; i < at; i++)
        assert_int_equal(json_answer_take(&first, ids[i]), 0);
    assert_int_equal(json_answer_begin(&second, tokens, ids, at), 0);
    assert_false(json_answer_is_complete(&second));
    for (uint32_t i = 0; i < PIECES; i++)
        assert_int_equal(json_answer_allows(&first, i), json_answer_allows(&second, i));
    assert_int_equal(json_answer_begin(&second, tokens, ids, n), 0);
    assert_true(json_answer_is_complete(&second));
    assert_int_equal(json_answer_begin(&second, tokens, (const uint32_t[]){0}, 1), HILL_E_INVALID);
}

static void answers_of_random_tokens_are_json(void **state)
{
    (void)state;
    static const struct sampler_settings how[] = {{0, 40, 1, 0, 1, 1},
                                                  {1, 40, 0.95f, 0.05f, 1, 2},
                                                  {5, 0, 1, 0, 1, 3},
                                                  {1, PIECES, 1, 0, 1.2f, 4}};
    static uint32_t ids[2000];
    static char text[2000 * 8];
    for (unsigned vocabulary = 0; vocabulary < 4; vocabulary++) {
        struct json_tokens *tokens = random_tokens();
        struct sampler s;
        assert_int_equal(sampler_init(&s, PIECES), 0);
        for (unsigned round = 0; round < 40; round++) {
            json_error_t error;
            size_t bytes;
            s.settings = how[round % 4];
            uint32_t n = make_answer(tokens, &s, ids, text, &bytes);
            json_t *read = json_loadb(text, bytes, 0, &error);
            if (!json_is_object(read))
                fail_msg("%.*s: %s", (int)bytes, text, error.text);
            json_decref(read);
            goes_on(tokens, ids, n);
        }
        sampler_finish(&s);
        json_tokens_close(tokens);
    }
}

static void a_vocabulary_without_a_way_on_is_told(void **state)
{
    (void)state;
    const struct gguf_string pieces[] = {{"x", 1}, {"[", 1}, {"{}", 2}};
    const float logits[] = {3, 2, 1};
    struct json_tokens *tokens;
    struct json_answer answer = {0};
    struct sampler s;
    const struct sampler_filter filter = {json_answer_allows, &answer};
    assert_int_equal(sampler_init(&s, 3), 0);
    for (unsigned n = 2; n <= 3; n++)
        for (unsigned hot = 0; hot < 2; hot++) {
            uint32_t wanted = n == 3 ? 2 : SAMPLER_NO_TOKEN;
            assert_int_equal(json_tokens_make(&tokens, pieces, n), 0);
            assert_int_equal(json_answer_begin(&answer, tokens, NULL, 0), 0);
            s.settings = (struct sampler_settings){(float)hot, 40, 1, 0, 1, 1};
            assert_int_equal(sampler_pick(&s, logits, NULL, 0, 0, &filter), wanted);
            json_tokens_close(tokens);
        }
    sampler_finish(&s);
}

/* ---- what it costs --------------------------------------------------------------------------- */

/* Of a token, with the filter and without: microseconds. Random logits, which know nothing of JSON:
 * a trained model's first choices are allowed oftener. */
static void measure(const struct json_tokens *tokens, const char *name, float temperature)
{
    struct sampler s;
    struct json_answer answer = {0};
    const struct sampler_filter filter = {json_answer_allows, &answer};
    float *logits = malloc(sizeof *logits * tokens->n);
    int64_t free_ns = 0, held_ns = 0, most_ns = 0;
    unsigned n = 0;
    assert_int_equal(sampler_init(&s, tokens->n), 0);
    s.settings = (struct sampler_settings){temperature, 40, 0.95f, 0.05f, 1, 7};
    for (unsigned round = 0; round < 30; round++) {
        assert_int_equal(json_answer_begin(&answer, tokens, NULL, 0), 0);
        for (unsigned i = 0; i < 20 && !json_answer_is_complete(&answer); i++, n++) {
            for (uint32_t v = 0; v < tokens->n; v++)
                logits[v] = (float)sampler_random(seed, drawn++) * 20;
            int64_t began = clock_now_ns();
            sampler_pick(&s, logits, NULL, 0, n, NULL);
            int64_t between = clock_now_ns();
            uint32_t id = sampler_pick(&s, logits, NULL, 0, n, &filter);
            json_answer_take(&answer, id);
            int64_t took = clock_now_ns() - between;
            free_ns += between - began;
            held_ns += took;
            most_ns = took > most_ns ? took : most_ns;
        }
    }
    printf("%s, %u tokens, %s: %.0f us a token, %.0f at most; without %.0f (%u tokens)\n", name,
           tokens->n, temperature > 0 ? "sampled of 40" : "greedy", held_ns * 1e-3 / n,
           most_ns * 1e-3, free_ns * 1e-3 / n, n);
    sampler_finish(&s);
    free(logits);
}

static int measure_all(const char *path)
{
    struct gguf_file *file;
    struct json_tokens *tokens;
    struct hill_why why;
    if (gguf_open(&file, path, &why)) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    int64_t began = clock_now_ns();
    if (json_tokens_open(&tokens, file, &why)) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    printf("%s: its tokens' bytes in %.0f ms\n", path, (clock_now_ns() - began) * 1e-6);
    measure(tokens, path, 0);
    measure(tokens, path, 0.8f);
    json_tokens_close(tokens);
    gguf_close(file);
    return 0;
}

int main(void)
{
    const char *given = getenv("HILL_TEST_SEED"), *model = getenv("HILL_JSON_VOCAB");
    seed = given ? strtoull(given, NULL, 10) : 20261122;
    printf("HILL_TEST_SEED=%llu\n", (unsigned long long)seed);
    if (model)
        return measure_all(model);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(examples),
        cmocka_unit_test(depth_and_white_space_are_bounded),
        cmocka_unit_test(what_jansson_writes_is_taken),
        cmocka_unit_test(what_is_taken_jansson_reads),
        cmocka_unit_test(answers_of_random_tokens_are_json),
        cmocka_unit_test(a_vocabulary_without_a_way_on_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
