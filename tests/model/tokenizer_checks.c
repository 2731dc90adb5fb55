/*
 * tests/model/tokenizer_checks.c - opening a tokenizer, comparing ids and round trips. Interface:
 * tokenizer_checks.h.
 */
#include "tests/model/tokenizer_checks.h"

struct tokenizer *open_tokenizer(struct writer *w, struct hill_why *why)
{
    struct gguf_file *file;
    struct tokenizer *tokenizer;
    if (open_writer(&file, w, why) || tokenizer_open(&tokenizer, file, why))
        fail_msg("%s", why->text);
    gguf_close(file); /* it must have copied what it needs */
    return tokenizer;
}

void check_ids(const struct tokenizer *t, const char *text, bool special, const int *expected)
{
    uint32_t *ids;
    uint64_t count, n = 0;
    assert_int_equal(tokenizer_encode(t, text, strlen(text), special, &ids, &count), 0);
    while (expected[n] >= 0)
        n++;
    for (uint64_t i = 0; i < n && i < count; i++)
        if (ids[i] != (uint32_t)expected[i])
            fail_msg("'%s': token %lu is %u, not %d", text, (unsigned long)i, ids[i], expected[i]);
    if (count != n)
        fail_msg("'%s': %lu tokens, not %lu", text, (unsigned long)count, (unsigned long)n);
    free(ids);
}

void check_round_trip(const struct tokenizer *t, const char *text, uint64_t length)
{
    uint32_t *ids;
    uint64_t count, at = 0;
    assert_int_equal(tokenizer_encode(t, text, length, false, &ids, &count), 0);
    for (uint64_t i = 0; i < count; i++) {
        struct gguf_string piece = tokenizer_piece(t, ids[i]);
        assert_true(piece.length <= length - at);
        assert_memory_equal(piece.data, text + at, piece.length);
        at += piece.length;
    }
    assert_int_equal(at, length);
    free(ids);
}

uint64_t test_seed(void)
{
    const char *text = getenv("HILL_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 20260101;
    print_message("seed %llu (set HILL_TEST_SEED to choose)\n", (unsigned long long)seed);
    return seed ? seed : 1;
}

uint64_t random_text(uint64_t *state, char *out, uint64_t most)
{
    static const char *const bits[] = {" ",
                                       "  ",
                                       "\n",
                                       "a",
                                       "abc",
                                       "12345",
                                       "'ll",
                                       "\xC3\xA9",
                                       "\xE6\xBC\xA2",
                                       "\xF0\x9F\x98\x80",
                                       "\xFF",
                                       "\xE6\xBC",
                                       "\xC0",
                                       "!?"};
    uint64_t used = 0, length = next_random(state) % most;
    while (used + 8 < length) {
        const char *bit = bits[next_random(state) % (sizeof bits / sizeof bits[0])];
        memcpy(out + used, bit, strlen(bit));
        used += strlen(bit);
        if (next_random(state) % 4 == 0)
            out[used++] = (char)next_random(state);
    }
    return used;
}
