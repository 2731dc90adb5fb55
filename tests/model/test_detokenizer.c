/*
 * tests/model/test_detokenizer.c - streaming detokenisation: whole characters only, damage as
 * U+FFFD. The vocabulary is the 256 bytes, so a token is a byte.
 */
#include "tests/model/tokenizer_checks.h"

#define BAD "\xEF\xBF\xBD"

static int open_bytes_vocabulary(void **state)
{
    struct hill_why why;
    struct writer w = writer_new();
    byte_vocabulary(&w, "gpt-2", NULL, 0, NULL, 0);
    *state = open_tokenizer(&w, &why);
    return 0;
}

static int close_vocabulary(void **state)
{
    tokenizer_close(*state);
    return 0;
}

/* Push the bytes one by one, then flush; each push stays within its room. */
static void check_stream(const struct tokenizer *t, const char *bytes, uint64_t n,
                         const char *expected)
{
    struct detokenizer stream;
    char out[4096];
    uint64_t used = 0;
    detokenizer_init(&stream, t, true);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t wrote = detokenizer_push(&stream, (uint8_t)bytes[i], out + used);
        assert_true(wrote <= detokenizer_room(&stream, (uint8_t)bytes[i]));
        used += wrote;
    }
    used += detokenizer_flush(&stream, out + used);
    assert_int_equal(detokenizer_flush(&stream, out + used), 0);
    assert_int_equal(used, strlen(expected));
    assert_memory_equal(out, expected, used);
}

static void characters_come_out_whole(void **state)
{
    struct detokenizer stream;
    char out[16];
    detokenizer_init(&stream, *state, true);
    assert_int_equal(detokenizer_push(&stream, 0xF0, out), 0);
    assert_int_equal(detokenizer_push(&stream, 0x9F, out), 0);
    assert_int_equal(detokenizer_push(&stream, 0x98, out), 0);
    assert_int_equal(detokenizer_push(&stream, 0x80, out), 4);
    assert_memory_equal(out, "\xF0\x9F\x98\x80", 4);
    assert_int_equal(detokenizer_push(&stream, 'a', out), 1);
}

static void valid_text_passes_unchanged(void **state)
{
    const char *text = "a\xC3\xA9\xE6\xBC\xA2\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF z";
    check_stream(*state, text, strlen(text), text);
}

static void invalid_bytes_become_replacements(void **state)
{
    check_stream(*state, "\x80", 1, BAD);
    check_stream(*state, "\xC0\xAF", 2, BAD BAD);                 /* overlong */
    check_stream(*state, "\xE0\x80\x80", 3, BAD BAD BAD);         /* overlong */
    check_stream(*state, "\xED\xA0\x80", 3, BAD BAD BAD);         /* surrogate */
    check_stream(*state, "\xF4\x90\x80\x80", 4, BAD BAD BAD BAD); /* above U+10FFFF */
    check_stream(*state, "\xF5\xFF", 2, BAD BAD);
    check_stream(*state,
                 "\xE6\xBC"
                 "a",
                 3, BAD "a"); /* broken off: the a is not lost */
    check_stream(*state, "\xE6\xC3\xA9", 3, BAD "\xC3\xA9");
}

static void unfinished_character_is_flushed(void **state)
{
    check_stream(*state, "ab\xF0\x9F\x98", 5, "ab" BAD);
}

static void leading_space_goes_only_at_the_start(void **state)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>",
                                         "\xE2\x96\x81"
                                         "a"};
    struct hill_why why;
    struct detokenizer stream;
    char out[16];
    (void)state;
    struct writer w = writer_new();
    key_text(&w, "tokenizer.ggml.model", "llama");
    key_texts(&w, "tokenizer.ggml.tokens", tokens, 4);
    struct tokenizer *t = open_tokenizer(&w, &why);
    detokenizer_init(&stream, t, false);
    assert_int_equal(detokenizer_push(&stream, 3, out), 1);
    assert_int_equal(detokenizer_push(&stream, 3, out), 2);
    assert_memory_equal(out, " a", 2);
    detokenizer_init(&stream, t, true);
    assert_int_equal(detokenizer_push(&stream, 3, out), 2);
    tokenizer_close(t);
}

static void control_tokens_are_spelt_on_demand(void **state)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "\xE2\x96\x81", "b"};
    static const uint32_t types[] = {2, 3, 3, 1, 5}, spelt[] = {5, 3, 4, 1, 0};
    struct hill_why why;
    (void)state;
    struct writer w = writer_new();
    key_text(&w, "tokenizer.ggml.model", "llama");
    key_texts(&w, "tokenizer.ggml.tokens", tokens, 5);
    key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 5);
    for (uint32_t i = 0; i < 5; i++)
        put_u32(&w.values, types[i]);
    struct tokenizer *t = open_tokenizer(&w, &why);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(tokenizer_piece(t, i).length, i == 3);
        assert_int_equal(tokenizer_spelling(t, i).length, spelt[i]);
    }
    assert_memory_equal(tokenizer_spelling(t, 1).data, "<s>", 3);
    assert_memory_equal(tokenizer_spelling(t, 3).data, " ", 1);
    assert_int_equal(tokenizer_spelling(t, 5).length, 0);
    tokenizer_close(t);
}

/* What comes out is valid UTF-8, whatever goes in; PCRE2 is not asked, the standard's table is. */
static bool valid_utf8(const uint8_t *s, uint64_t n)
{
    for (uint64_t i = 0; i < n;) {
        uint32_t c = s[i], more = c < 0x80   ? 0
                                  : c < 0xC0 ? 9
                                  : c < 0xE0 ? 1
                                  : c < 0xF0 ? 2
                                  : c < 0xF8 ? 3
                                             : 9;
        static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
        if (more == 9 || i + more >= n)
            return false;
        c &= more ? 0x3Fu >> more : 0x7F;
        for (uint32_t k = 1; k <= more; k++) {
            if ((s[i + k] & 0xC0) != 0x80)
                return false;
            c = c << 6 | (s[i + k] & 0x3F);
        }
        if (c < least[more] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
            return false;
        i += more + 1;
    }
    return true;
}

static void random_bytes_come_out_as_utf8(void **state)
{
    uint64_t random = test_seed();
    char text[300], out[1024];
    for (int round = 0; round < 3000; round++) {
        struct detokenizer stream;
        uint64_t n = random_text(&random, text, sizeof text), used = 0;
        bool sound = valid_utf8((const uint8_t *)text, n);
        detokenizer_init(&stream, *state, true);
        for (uint64_t i = 0; i < n; i++) {
            used += detokenizer_push(&stream, (uint8_t)text[i], out + used);
            assert_true(valid_utf8((const uint8_t *)out, used));
        }
        used += detokenizer_flush(&stream, out + used);
        assert_true(valid_utf8((const uint8_t *)out, used));
        if (sound) {
            assert_int_equal(used, n);
            assert_memory_equal(out, text, n);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_come_out_whole),
        cmocka_unit_test(valid_text_passes_unchanged),
        cmocka_unit_test(invalid_bytes_become_replacements),
        cmocka_unit_test(unfinished_character_is_flushed),
        cmocka_unit_test(leading_space_goes_only_at_the_start),
        cmocka_unit_test(control_tokens_are_spelt_on_demand),
        cmocka_unit_test(random_bytes_come_out_as_utf8),
    };
    return cmocka_run_group_tests(tests, open_bytes_vocabulary, close_vocabulary);
}
