/*
 * tests/model/test_tokenizer_spm.c - SentencePiece-style encoding and streaming detokenisation.
 */
#include "tests/model/tokenizer_checks.h"

#define SP "\xE2\x96\x81"

enum { FIRST = 259 }; /* <unk> <s> </s>, 256 bytes, then the words */

/* Words with scores -1, -2, ...: the earlier the better, or those given. */
static struct writer spm(const char *const *words, const float *scores, uint32_t n)
{
    struct writer w = writer_new();
    key_text(&w, "tokenizer.ggml.model", "llama");
    key_array(&w, "tokenizer.ggml.tokens", 8, FIRST + n);
    put_text(&w.values, "<unk>");
    put_text(&w.values, "<s>");
    put_text(&w.values, "</s>");
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        put_text(&w.values, text);
    }
    for (uint32_t i = 0; i < n; i++)
        put_text(&w.values, words[i]);
    key_array(&w, "tokenizer.ggml.scores", GGUF_F32, FIRST + n);
    for (uint32_t i = 0; i < FIRST + n; i++) {
        float score = i < FIRST ? 0 : scores ? scores[i - FIRST] : (float)FIRST - (float)i - 1;
        put(&w.values, &score, 4);
    }
    key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, FIRST + n);
    for (uint32_t i = 0; i < FIRST + n; i++)
        put_u32(&w.values, i == 0 ? 2 : i < 3 ? 3 : i < FIRST ? 6 : 1);
    return w;
}

static struct tokenizer *open_spm(const char *const *words, uint32_t n, bool space_prefix)
{
    struct hill_why why;
    struct writer w = spm(words, NULL, n);
    key_bool(&w, "tokenizer.ggml.add_space_prefix", space_prefix);
    return open_tokenizer(&w, &why);
}

static void best_score_merges_first(void **state)
{
    static const char *const words[] = {"bc", "ab", "a", "b", "c", SP "a", SP};
    (void)state;
    struct tokenizer *t = open_spm(words, 7, false);
    CHECK_IDS(t, "abc", true, 1, FIRST + 2, FIRST);
    CHECK_IDS(t, "ab c", true, 1, FIRST + 1, FIRST + 6, FIRST + 4);
    tokenizer_close(t);
}

/* Of parts that are tokens, with the best score of all: but it is a control token. */
static void typed_text_merges_into_no_control_token(void **state)
{
    static const char *const words[] = {"</", "s>", "<", "/", "s", ">"};
    (void)state;
    struct tokenizer *t = open_spm(words, 6, false);
    CHECK_IDS(t, "</s>", true, 1, FIRST, FIRST + 1);
    tokenizer_close(t);
}

static void space_prefix_is_added_once(void **state)
{
    static const char *const words[] = {SP "a", "a", SP};
    (void)state;
    struct tokenizer *t = open_spm(words, 3, true);
    CHECK_IDS(t, "aa", true, 1, FIRST, FIRST + 1);
    CHECK_IDS(t, " a", true, 1, FIRST + 2, FIRST);
    CHECK_IDS(t, "", true, 1);
    tokenizer_close(t);
}

static void what_the_vocabulary_lacks_is_spelt_in_bytes(void **state)
{
    static const char *const words[] = {"a", SP};
    (void)state;
    struct tokenizer *t = open_spm(words, 2, false);
    CHECK_IDS(t,
              "\xC3\xA9"
              "a",
              false, 3 + 0xC3, 3 + 0xA9, FIRST);
    CHECK_IDS(t, "\xFF\n", false, 3 + 0xFF, 3 + '\n');
    CHECK_IDS(t, "a\xE2", false, FIRST, 3 + 0xE2);
    CHECK_IDS(t, "\xE6\xBC a", false, 3 + 0xE6, 3 + 0xBC, FIRST + 1,
              FIRST); /* the space stays whole */
    tokenizer_close(t);
}

static void special_pieces_are_empty_and_spaces_are_spaces(void **state)
{
    static const char *const words[] = {SP "hi" SP};
    (void)state;
    struct tokenizer *t = open_spm(words, 1, true);
    assert_int_equal(tokenizer_piece(t, 1).length, 0);
    assert_int_equal(tokenizer_piece(t, FIRST).length, 4);
    assert_memory_equal(tokenizer_piece(t, FIRST).data, " hi ", 4);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_true(tokenizer_is_end(t, 2));
    tokenizer_close(t);
}

static void damaged_columns_are_refused(void **state)
{
    static const char *const tokens[] = {"a", "b"};
    static const char *const columns[] = {"tokenizer.ggml.scores", "tokenizer.ggml.token_type"};
    (void)state;
    for (int bad = 0; bad < 5; bad++) {
        struct writer w = writer_new();
        struct gguf_file *file;
        struct tokenizer *t;
        struct hill_why why;
        key_text(&w, "tokenizer.ggml.model", bad == 3 ? "bert" : "llama");
        if (bad != 4)
            key_texts(&w, "tokenizer.ggml.tokens", tokens, 2);
        if (bad == 2) {
            key_array(&w, columns[0], GGUF_F32, 2); /* not a number */
            put_u64(&w.values, UINT64_MAX);
        } else if (bad < 2) {
            key_array(&w, columns[bad], bad ? GGUF_I32 : GGUF_F32, 1);
            put_u32(&w.values, 1);
        }
        assert_int_equal(open_writer(&file, &w, &why), 0);
        assert_int_equal(tokenizer_open(&t, file, &why),
                         bad == 3 ? HILL_E_UNSUPPORTED : HILL_E_DAMAGED);
        assert_null(t);
        assert_true(why.text[0] != 0);
        gguf_close(file);
    }
}

/* ---- against an oracle ---------------------------------------------------------------------- */

enum { WORDS = 30, TEXT = 50 };

static int find_word(const char *const *words, const char *text)
{
    for (int i = 0; i < WORDS; i++)
        if (!strcmp(words[i], text))
            return i;
    return -1;
}

/* Again and again the neighbours that make the word of the highest score, from the left. */
static int oracle(char parts[][TEXT + 1], int n, const char *const *words, const float *scores)
{
    for (;;) {
        int best = -1, best_word = -1;
        for (int i = 0; i + 1 < n; i++) {
            char joined[2 * TEXT + 2];
            strcpy(joined, parts[i]);
            strcat(joined, parts[i + 1]);
            int word = find_word(words, joined);
            if (word >= 0 && (best < 0 || scores[word] > scores[best_word])) {
                best = i;
                best_word = word;
            }
        }
        if (best < 0)
            return n;
        strcpy(parts[best], words[best_word]);
        memmove(parts[best + 1], parts[best + 2], (size_t)(n - best - 2) * (TEXT + 1));
        n--;
    }
}

static void random_vocabularies_merge_as_the_definition(void **state)
{
    uint64_t random = test_seed();
    struct hill_why why;
    (void)state;
    for (int round = 0; round < 60; round++) {
        char store[WORDS][8], text[TEXT + 1] = "", parts[TEXT + 2][TEXT + 1];
        const char *words[WORDS];
        float scores[WORDS];
        for (int i = 0; i < WORDS; i++)
            words[i] = "";
        for (int i = 0; i < WORDS;) {
            uint64_t length = 1 + next_random(&random) % 6, bits = next_random(&random);
            for (uint64_t c = 0; c < length; c++)
                store[i][c] = (char)('a' + (bits >> c & 1));
            store[i][length] = 0;
            scores[i] = -(float)(next_random(&random) % 8); /* ties on purpose */
            if (find_word(words, store[i]) >= 0)
                continue;
            words[i] = store[i];
            i++;
        }
        struct writer w = spm(words, scores, WORDS);
        key_bool(&w, "tokenizer.ggml.add_space_prefix", 0);
        struct tokenizer *t = open_tokenizer(&w, &why);
        for (int texts = 0; texts < 20; texts++) {
            int length = (int)(next_random(&random) % TEXT);
            uint32_t *ids;
            uint64_t count;
            for (int i = 0; i < length; i++) {
                text[i] = (char)('a' + next_random(&random) % 2);
                snprintf(parts[i], 2, "%c", text[i]);
            }
            int expected = oracle(parts, length, words, scores);
            assert_int_equal(tokenizer_encode(t, text, (uint64_t)length, false, &ids, &count), 0);
            assert_int_equal(count, expected);
            for (uint64_t i = 0; i < count; i++) {
                struct gguf_string piece = tokenizer_piece(t, ids[i]);
                assert_int_equal(piece.length, strlen(parts[i]));
                assert_memory_equal(piece.data, parts[i], piece.length);
            }
            free(ids);
        }
        tokenizer_close(t);
    }
}

static void any_bytes_survive_a_round_trip(void **state)
{
    static const char *const words[] = {"ab", "abc", "a", SP SP, SP "a", "\xC3\xA9", SP};
    uint64_t random = test_seed();
    char text[600];
    (void)state;
    struct tokenizer *t = open_spm(words, 7, false);
    for (int i = 0; i < 1000; i++)
        check_round_trip(t, text, random_text(&random, text, sizeof text));
    tokenizer_close(t);
}

/* A quadratic encoder would need hours for this; the alarm ends the test then. */
static void long_text_takes_no_quadratic_time(void **state)
{
    static const char *const words[] = {"a", "aa", "aaaa", "aaaaaaaa"};
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES);
    uint32_t *ids;
    uint64_t count;
    (void)state;
    assert_non_null(text);
    memset(text, 'a', BYTES);
    struct tokenizer *t = open_spm(words, 4, false);
    alarm(120);
    assert_int_equal(tokenizer_encode(t, text, BYTES, false, &ids, &count), 0);
    alarm(0);
    assert_int_equal(count, BYTES / 8);
    free(ids);
    free(text);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(best_score_merges_first),
        cmocka_unit_test(typed_text_merges_into_no_control_token),
        cmocka_unit_test(space_prefix_is_added_once),
        cmocka_unit_test(what_the_vocabulary_lacks_is_spelt_in_bytes),
        cmocka_unit_test(special_pieces_are_empty_and_spaces_are_spaces),
        cmocka_unit_test(damaged_columns_are_refused),
        cmocka_unit_test(random_vocabularies_merge_as_the_definition),
        cmocka_unit_test(any_bytes_survive_a_round_trip),
        cmocka_unit_test(long_text_takes_no_quadratic_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
