/*
 * tests/model/test_tokenizer_bpe.c - byte-level BPE: merges worked by hand, pre-tokens, and a plain
 * oracle.
 */
#include "tests/model/tokenizer_checks.h"

static struct tokenizer *open_bpe(const char *pre, const char *const *more, uint64_t n_more,
                                  const char *const *merges, uint64_t n_merges)
{
    struct hill_why why;
    struct writer w = writer_new();
    byte_vocabulary(&w, pre, more, n_more, merges, n_merges);
    struct tokenizer *t = open_tokenizer(&w, &why);
    assert_string_equal(why.text, "");
    return t;
}

static void merges_go_by_rank(void **state)
{
    static const char *const more[] = {"ll", "he", "hell", "hello", "\xC4\xA0hello"};
    static const char *const merges[] = {"l l", "h e", "he ll", "hell o", "\xC4\xA0 hello"};
    (void)state;
    struct tokenizer *t = open_bpe("gpt-2", more, 5, merges, 5);
    CHECK_IDS(t, "hello", true, 259);
    CHECK_IDS(t, "hello hello", true, 259, 260);
    CHECK_IDS(t, "hell", true, 258);
    CHECK_IDS(t, "ello", true, 'e', 256, 'o');
    CHECK_IDS(t, "lll", true, 256, 'l'); /* of equal pairs the left one first */
    CHECK_IDS(t, "", true, -1);
    tokenizer_close(t);
}

static void the_lower_rank_wins_over_the_left_pair(void **state)
{
    static const char *const more[] = {"ab", "bc"};
    static const char *const merges[] = {"b c", "a b"};
    (void)state;
    struct tokenizer *t = open_bpe("gpt-2", more, 2, merges, 2);
    CHECK_IDS(t, "abc", true, 'a', 257);
    tokenizer_close(t);
}

static void merge_into_no_token_is_ignored(void **state)
{
    static const char *const more[] = {"abc", "bc"};
    static const char *const merges[] = {"a b", "b c", "ab c", "a bc", "nonsense", ""};
    (void)state;
    struct tokenizer *t = open_bpe("gpt-2", more, 2, merges, 6);
    CHECK_IDS(t, "abc", true, 256); /* by b+c, a+bc: "ab" is no token */
    tokenizer_close(t);
}

static void vocabulary_of_bytes_needs_no_merges(void **state)
{
    char text[256];
    (void)state;
    for (int byte = 0; byte < 256; byte++)
        text[byte] = (char)byte;
    for (int with_key = 0; with_key < 2; with_key++) {
        struct tokenizer *t =
            open_bpe("gpt-2", NULL, 0, with_key ? (const char *const[]){""} : NULL, 0);
        uint32_t *ids;
        uint64_t count;
        assert_int_equal(tokenizer_encode(t, text, 256, true, &ids, &count), 0);
        assert_int_equal(count, 256);
        for (uint32_t i = 0; i < 256; i++) {
            assert_int_equal(ids[i], i);
            assert_int_equal(tokenizer_piece(t, i).length, 1);
            assert_int_equal((uint8_t)tokenizer_piece(t, i).data[0], i);
        }
        free(ids);
        check_round_trip(t, text, 256);
        tokenizer_close(t);
    }
}

static void pre_tokenizers_cut_numbers_differently(void **state)
{
    static const char *const more[] = {"12", "34"};
    static const char *const merges[] = {"3 4", "1 2"};
    (void)state;
    struct tokenizer *t = open_bpe("gpt-2", more, 2, merges, 2);
    CHECK_IDS(t, "1234", false, 256, 257);
    tokenizer_close(t);
    t = open_bpe("llama-bpe", more, 2, merges, 2);
    CHECK_IDS(t, "1234", false, 256, '3', '4');
    tokenizer_close(t);
    t = open_bpe("qwen2", more, 2, merges, 2);
    CHECK_IDS(t, "1234", false, '1', '2', '3', '4');
    tokenizer_close(t);
}

static void pre_tokenizers_cut_contractions_and_spaces(void **state)
{
    static const char *const more[] = {"'t", "'T", "\xC4\xA0\xC4\xA0", "!\xC4\x8A", "nt"};
    static const char *const merges[] = {"' t", "' T", "\xC4\xA0 \xC4\xA0", "! \xC4\x8A", "n t"};
    (void)state;
    struct tokenizer *t = open_bpe("gpt-2", more, 5, merges, 5);
    CHECK_IDS(t, "n't", false, 'n', 256);
    CHECK_IDS(t, "n'T", false, 'n', '\'', 'T');
    CHECK_IDS(t, "   a", false, 258, ' ', 'a'); /* two spaces, then " a" */
    CHECK_IDS(t, "!\n", false, '!', '\n');
    tokenizer_close(t);
    t = open_bpe("llama-bpe", more, 5, merges, 5);
    CHECK_IDS(t, "n'T", false, 'n', 257);
    CHECK_IDS(t, "!\n", false, 259);
    tokenizer_close(t);
    t = open_bpe("default", more, 5, merges, 5); /* punctuation is cut off first */
    CHECK_IDS(t, "n't", false, 'n', '\'', 't');
    tokenizer_close(t);
}

static void llama_bpe_takes_whole_tokens_and_adds_bos(void **state)
{
    static const char *const more[] = {"<s>", "abc"};
    struct hill_why why;
    (void)state;
    struct writer w = writer_new();
    byte_vocabulary(&w, "llama-bpe", more, 2, NULL, 0);
    key_u32(&w, "tokenizer.ggml.bos_token_id", 256);
    struct tokenizer *t = open_tokenizer(&w, &why);
    CHECK_IDS(t, "abc", true, 256, 257);
    CHECK_IDS(t, "abc", false, 257);
    tokenizer_close(t);
    t = open_bpe("gpt-2", more, 2, NULL, 0);
    CHECK_IDS(t, "abc", true, 'a', 'b', 'c');
    tokenizer_close(t);
}

/* ---- pre-tokens, seen whole ----------------------------------------------------------------- */

enum { SPLIT_BYTES = 40, SPLIT_MERGES = (SPLIT_BYTES + 1) * SPLIT_BYTES * (SPLIT_BYTES - 1) / 6 };

/* Every part of the text is a token, and any two parts that touch merge: each pre-token becomes one
 * token. */
static struct tokenizer *open_merging(const char *pre, const char *text)
{
    static char *more[SPLIT_BYTES * SPLIT_BYTES / 2], *merges[SPLIT_MERGES];
    char spelt[2 * SPLIT_BYTES + 4] = "";
    int at[SPLIT_BYTES + 1] = {0}, n = (int)strlen(text);
    uint64_t n_more = 0, n_merges = 0;
    assert_true(n <= SPLIT_BYTES);
    for (int i = 0; i < n; i++) {
        spell_byte((uint8_t)text[i], spelt + at[i]);
        at[i + 1] = (int)strlen(spelt);
    }
    for (int start = 0; start < n; start++)
        for (int end = start + 2; end <= n; end++) {
            assert_true(asprintf(&more[n_more++], "%.*s", at[end] - at[start], spelt + at[start]) >
                        0);
            for (int middle = start + 1; middle < end; middle++)
                assert_true(asprintf(&merges[n_merges++], "%.*s %.*s", at[middle] - at[start],
                                     spelt + at[start], at[end] - at[middle],
                                     spelt + at[middle]) > 0);
        }
    struct tokenizer *t =
        open_bpe(pre, (const char *const *)more, n_more, (const char *const *)merges, n_merges);
    while (n_more)
        free(more[--n_more]);
    while (n_merges)
        free(merges[--n_merges]);
    return t;
}

/* The pre-tokens of the text that these make, one after the other. */
static void check_split(const char *pre, const char *const *expected)
{
    char text[SPLIT_BYTES + 1] = "";
    uint32_t *ids;
    uint64_t count, i = 0;
    for (const char *const *one = expected; *one; one++) {
        assert_true(strlen(text) + strlen(*one) <= SPLIT_BYTES);
        strcat(text, *one);
    }
    struct tokenizer *t = open_merging(pre, text);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), false, &ids, &count), 0);
    for (; i < count && expected[i]; i++) {
        struct gguf_string piece = tokenizer_piece(t, ids[i]);
        if (piece.length != strlen(expected[i]) ||
            memcmp(piece.data, expected[i], piece.length) != 0)
            fail_msg("%s: pre-token %lu is '%.*s', not '%s'", pre, (unsigned long)i,
                     (int)piece.length, piece.data, expected[i]);
    }
    assert_true(i == count && !expected[i]);
    free(ids);
    tokenizer_close(t);
}
#define CHECK_SPLIT(pre, ...) check_split(pre, (const char *const[]){__VA_ARGS__, NULL})

/* As Python's module regex splits by the patterns in llama.cpp. */
static void families_split_as_their_patterns(void **state)
{
    (void)state;
    CHECK_SPLIT("qwen2", "a", " ", " ", "1", "2", "'s", "!\n", " b", "'S", " \n\n", "c");
    CHECK_SPLIT("minicpm5", "a", "  ", "123", "4", "'s", "!\n", " b", "'S");
    CHECK_SPLIT("seed-coder", "don", "'T", " a", "+b", "!", "\n\n", " x", "1", "2");
    CHECK_SPLIT("viking", "Hei", ",", " maailma", "(", "1", ")", " ab", "1", "2", " c", "\u2026",
                "x's", "  \n");
    CHECK_SPLIT("bloom", "Hei", ",", " maailma", "(", "1", ")", " ab12", " c", "\u060c", "x's",
                "! ", " d");
    CHECK_SPLIT("ufakzeka", "Ali", "'de", " ", "1", "2", "!\n", "'S");
    CHECK_SPLIT("laguna", "a", " ", "\n\n", " b", "'s", " ", "\n");
    CHECK_SPLIT("exaone-moe", "the cat", "'s", " ", "1", "2", " e\u0301 x", "/\n", " \n", "a b",
                " ", " c");
    CHECK_SPLIT("spark2_5", "ab", ".cd", " ", "1", "2", "\n", "\n", " ", " x", "(", "\u6f22\u5b57");
    CHECK_SPLIT("youtu", "\ud55c\uad6d", "\u3001", "\u6f22\u5b57", "ab", "C's", "1", "2", "!/\n");
}

static void names_split_as_the_one_they_equal(void **state)
{
    static const char *const equal[][2] = {{"kormo", "qwen2"},           {"f2llmv2", "qwen2"},
                                           {"solar-open", "qwen2"},      {"bailingmoe", "qwen2"},
                                           {"bailingmoe2", "qwen2"},     {"llada-moe", "qwen2"},
                                           {"mellum2", "smollm"},        {"glm5", "glm4"},
                                           {"talkie", "gpt-4o"},         {"minimax-m2", "gpt-4o"},
                                           {"joyai-llm", "deepseek-v3"}, {"hy_v4", "deepseek-v3"},
                                           {"poro-chat", "bloom"},       {"gpt3-finnish", "bloom"}};
    static const char text[] = "aB's 1234+c'S  (\n \n.d/\n!";
    (void)state;
    for (unsigned i = 0; i < sizeof equal / sizeof equal[0]; i++) {
        uint32_t *ids[2];
        uint64_t count[2];
        for (int side = 0; side < 2; side++) {
            struct tokenizer *t = open_merging(equal[i][side], text);
            assert_int_equal(
                tokenizer_encode(t, text, strlen(text), true, &ids[side], &count[side]), 0);
            tokenizer_close(t);
        }
        assert_int_equal(count[0], count[1]);
        assert_memory_equal(ids[0], ids[1], count[0] * sizeof *ids[0]);
        free(ids[0]);
        free(ids[1]);
    }
}

static void some_take_whole_tokens_without_a_merge(void **state)
{
    static const char *const whole[] = {"glm5", "minicpm5", "youtu"}, *const more[] = {"abc"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct tokenizer *t = open_bpe(whole[i], more, 1, NULL, 0);
        CHECK_IDS(t, "abc", true, 256);
        tokenizer_close(t);
    }
    struct tokenizer *t = open_bpe("seed-coder", more, 1, NULL, 0);
    CHECK_IDS(t, "abc", true, 'a', 'b', 'c');
    tokenizer_close(t);
}

static void unknown_pre_tokenizer_is_refused_by_name(void **state)
{
    struct gguf_file *file;
    struct tokenizer *t;
    struct hill_why why;
    (void)state;
    struct writer w = writer_new();
    byte_vocabulary(&w, "marvin-42", NULL, 0, NULL, 0);
    assert_int_equal(open_writer(&file, &w, &why), 0);
    assert_int_equal(tokenizer_open(&t, file, &why), HILL_E_UNSUPPORTED);
    assert_null(t);
    assert_non_null(strstr(why.text, "'marvin-42'"));
    gguf_close(file);
}

static void no_pre_tokenizer_is_the_default_with_a_warning(void **state)
{
    struct hill_why why;
    (void)state;
    struct writer w = writer_new();
    byte_vocabulary(&w, NULL, NULL, 0, NULL, 0);
    struct tokenizer *t = open_tokenizer(&w, &why);
    assert_non_null(strstr(why.text, "names no pre-tokenizer"));
    CHECK_IDS(t, "hi", true, 'h', 'i');
    tokenizer_close(t);
}

/* What ends an answer by its text, whatever the file names as EOS. */
static void tokens_that_end_an_answer_are_known_by_their_text(void **state)
{
    static const char *const more[] = {"<|im_end|>",
                                       "<|endoftext|>",
                                       "<|repo_name|>",
                                       "<|file_sep|>",
                                       "<|fim_pad|>",
                                       "[EOT]",
                                       "<|fim_prefix|>",
                                       "<|im_start|>",
                                       "<\xEF\xBD\x9C"
                                       "end\xE2\x96\x81"
                                       "of\xE2\x96\x81"
                                       "sentence\xEF\xBD\x9C>"};
    struct hill_why why;
    (void)state;
    struct writer w = writer_new();
    byte_vocabulary(&w, "gpt-2", more, 9, NULL, 0);
    struct tokenizer *t = open_tokenizer(&w, &why);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(tokenizer_is_end(t, 256 + i), i != 6 && i != 7);
    tokenizer_close(t);
}

static void end_tokens(const char *const *more, uint64_t n, const bool *ends)
{
    struct hill_why why;
    struct writer w = writer_new();
    byte_vocabulary(&w, "gpt-2", more, n, NULL, 0);
    key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 256 + n);
    for (uint64_t i = 0; i < 256 + n; i++)
        put_u32(&w.values, i < 256 ? 1 : 4);
    struct tokenizer *t = open_tokenizer(&w, &why);
    for (uint32_t i = 0; i < n; i++)
        if (tokenizer_is_end(t, 256 + i) != ends[i])
            fail_msg("'%s' %s", more[i], ends[i] ? "does not end an answer" : "ends an answer");
    tokenizer_close(t);
}

/* Where a token's text means another thing in one family than in all others. */
static void what_else_is_in_the_vocabulary_says_what_ends(void **state)
{
    static const char *const llama[] = {"</s>", "<|end|>", "<|return|>", "[e~[", "<|flush|>"},
                             *const tuned[] = {"</s>", "<end_of_turn>"},
                             *const gemma[] = {"</s>", "<end_of_turn>", "<bos>"},
                             *const gemma4[] = {"</s>", "<|tool_response>", "<turn|>", "<bos>"},
                             *const gpt_oss[] = {"<|end|>", "<|return|>", "<|call|>"},
                             *const solar[] = {"<|end|>", "<|flush|>", "<|calls|>"};
    (void)state;
    end_tokens(llama, 5, (const bool[]){true, true, true, true, true});
    end_tokens(tuned, 2, (const bool[]){true, true});
    end_tokens(gemma, 3, (const bool[]){false, true, false});
    end_tokens(gemma4, 4, (const bool[]){false, true, true, false});
    end_tokens(gpt_oss, 3, (const bool[]){false, true, true});
    end_tokens(solar, 3, (const bool[]){false, true, true});
}

/* A tag of HTML in Gemma's answer is text, and is typed as any other. */
static void html_of_gemma_is_text(void **state)
{
    static const char *const more[] = {"<s>", "</s>", "<end_of_turn>", "<bos>"};
    struct hill_why why;
    (void)state;
    struct writer w = writer_new();
    byte_vocabulary(&w, "gpt-2", more, 4, NULL, 0);
    key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 260);
    for (int i = 0; i < 260; i++)
        put_u32(&w.values, i < 256 ? 1 : 4);
    struct tokenizer *t = open_tokenizer(&w, &why);
    CHECK_IDS(t, "<s>a</s>", false, 256, 'a', 257);
    check_round_trip(t, "<s>a</s>", 8);
    tokenizer_close(t);
}

static void tokens_between_files_end_an_answer(void **state)
{
    static const char *const more[] = {"<pad>", "<repo>", "<sep>", "<pre>"};
    struct hill_why why;
    (void)state;
    struct writer w = writer_new();
    byte_vocabulary(&w, "gpt-2", more, 4, NULL, 0);
    key_u32(&w, "tokenizer.ggml.fim_pad_token_id", 256);
    key_u32(&w, "tokenizer.ggml.fim_rep_token_id", 257);
    key_u32(&w, "tokenizer.ggml.fim_sep_token_id", 258);
    key_u32(&w, "tokenizer.ggml.fim_pre_token_id", 259);
    struct tokenizer *t = open_tokenizer(&w, &why);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(tokenizer_is_end(t, 256 + i), i != 3);
    tokenizer_close(t);
}

static void special_tokens_outside_the_vocabulary_are_none(void **state)
{
    static const char *const more[] = {"<|im_end|>", "</s>"};
    struct hill_why why;
    (void)state;
    struct writer w = writer_new();
    byte_vocabulary(&w, "gpt-2", more, 2, NULL, 0);
    key_u32(&w, "tokenizer.ggml.bos_token_id", 4294967295u);
    key_u32(&w, "tokenizer.ggml.eos_token_id", 257);
    key_bool(&w, "tokenizer.ggml.add_bos_token", 1);
    struct tokenizer *t = open_tokenizer(&w, &why);
    assert_int_equal(tokenizer_vocab_size(t), 258);
    assert_int_equal(tokenizer_bos(t), TOKEN_NONE);
    assert_int_equal(tokenizer_eos(t), 257);
    assert_true(tokenizer_is_end(t, 256) && tokenizer_is_end(t, 257));
    assert_false(tokenizer_is_end(t, 'a') || tokenizer_is_end(t, TOKEN_NONE));
    assert_int_equal(tokenizer_piece(t, 256).length, 0);
    assert_int_equal(tokenizer_piece(t, TOKEN_NONE).length, 0);
    CHECK_IDS(t, "a", true, 'a');
    tokenizer_close(t);
}

static void user_defined_tokens_are_cut_out_longest_first(void **state)
{
    static const char *const more[] = {"<a>", "<a><b>", "<c>"};
    struct hill_why why;
    (void)state;
    struct writer w = writer_new();
    byte_vocabulary(&w, "gpt-2", more, 3, NULL, 0);
    key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 259);
    for (int i = 0; i < 259; i++)
        put_u32(&w.values, i < 256 ? 1 : i < 258 ? 4 : 3); /* <c> is a control token */
    struct tokenizer *t = open_tokenizer(&w, &why);
    CHECK_IDS(t, "x<a><b><a>y<a>", false, 'x', 257, 256, 'y', 256);
    CHECK_IDS(t, "<c>", false, '<', 'c', '>'); /* spelt out, it stays text */
    tokenizer_close(t);
}

static void byte_without_any_token_is_refused(void **state)
{
    static const char *const tokens[] = {"a", "b"};
    struct hill_why why;
    uint32_t *ids;
    uint64_t count;
    (void)state;
    struct writer w = writer_new();
    key_text(&w, "tokenizer.ggml.model", "gpt2");
    key_texts(&w, "tokenizer.ggml.tokens", tokens, 2);
    struct tokenizer *t = open_tokenizer(&w, &why);
    CHECK_IDS(t, "ab", false, 0, 1);
    assert_int_equal(tokenizer_encode(t, "abc", 3, false, &ids, &count), HILL_E_UNSUPPORTED);
    assert_null(ids);
    tokenizer_close(t);
}

/* ---- against an oracle ---------------------------------------------------------------------- */

enum { RANDOM_TOKENS = 40, WORD = 60 };

/* Merge as the definition says: again and again the lowest rank, from the left. */
static uint64_t oracle(char parts[][16], uint64_t n, char left[][16], char right[][16], int merges)
{
    for (;;) {
        for (int rank = 0; rank < merges; rank++)
            for (uint64_t i = 0; i + 1 < n; i++)
                if (!strcmp(parts[i], left[rank]) && !strcmp(parts[i + 1], right[rank])) {
                    strcat(parts[i], parts[i + 1]);
                    memmove(parts[i + 1], parts[i + 2], (n - i - 2) * 16);
                    n--;
                    goto merged;
                }
        return n;
    merged:;
    }
}

/* Pair tokens at random into new ones; returns how many came out. */
static int random_merges(uint64_t *random, char made[][16], char left[][16], char right[][16])
{
    int n = 0;
    for (int tries = 0; tries < 400 && n < RANDOM_TOKENS; tries++) {
        const char *halves[2];
        char single[2][2] = {{0}};
        for (int h = 0; h < 2; h++) {
            uint64_t pick = next_random(random) % (uint64_t)(n + 3);
            single[h][0] = (char)('a' + pick);
            halves[h] = pick < 3 ? single[h] : made[pick - 3];
        }
        bool is_new = strlen(halves[0]) + strlen(halves[1]) <= 7;
        for (int i = 0; i < n && is_new; i++)
            is_new = strcmp(left[i], halves[0]) || strcmp(right[i], halves[1]);
        if (!is_new)
            continue;
        strcpy(left[n], halves[0]);
        strcpy(right[n], halves[1]);
        strcpy(made[n], halves[0]);
        strcat(made[n++], halves[1]); /* at most 7 characters */
    }
    return n;
}

static void random_vocabularies_merge_as_the_definition(void **state)
{
    uint64_t random = test_seed();
    (void)state;
    for (int round = 0; round < 60; round++) {
        char made[RANDOM_TOKENS][16], left[RANDOM_TOKENS][16], right[RANDOM_TOKENS][16];
        char lines[RANDOM_TOKENS][40], word[WORD + 1] = "", parts[WORD + 2][16];
        const char *more[RANDOM_TOKENS], *merges[RANDOM_TOKENS];
        int n = random_merges(&random, made, left, right);
        for (int i = 0; i < n; i++) {
            snprintf(lines[i], sizeof lines[i], "%s %s", left[i], right[i]);
            more[i] = made[i];
            merges[i] = lines[i];
        }
        struct tokenizer *t = open_bpe("gpt-2", more, (uint64_t)n, merges, (uint64_t)n);
        for (int texts = 0; texts < 20; texts++) {
            uint64_t length = next_random(&random) % WORD, count;
            uint32_t *ids;
            for (uint64_t i = 0; i < length; i++) {
                word[i] = (char)('a' + next_random(&random) % 3);
                snprintf(parts[i], 16, "%c", word[i]);
            }
            uint64_t expected = oracle(parts, length, left, right, n);
            assert_int_equal(tokenizer_encode(t, word, length, false, &ids, &count), 0);
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
    static const char *const more[] = {"ab", "abc", "\xC3\x83\xC2\xA9", "12"};
    static const char *const merges[] = {"a b", "ab c", "\xC3\x83 \xC2\xA9", "1 2"};
    static const char *const pre[] = {"gpt-2",     "llama-bpe", "qwen2",      "default",
                                      "starcoder", "viking",    "exaone-moe", "youtu"};
    uint64_t random = test_seed();
    char text[600];
    (void)state;
    for (unsigned p = 0; p < sizeof pre / sizeof pre[0]; p++) {
        struct tokenizer *t = open_bpe(pre[p], more, 4, merges, 4);
        for (int i = 0; i < 300; i++)
            check_round_trip(t, text, random_text(&random, text, sizeof text));
        tokenizer_close(t);
    }
}

/* A quadratic encoder would need hours for these; the alarm ends the test then. */
static void long_texts_take_no_quadratic_time(void **state)
{
    static const char *const more[] = {"aa", "aaaa", "aaaaaaaa", "\xC4\xA0\xC4\xA0"};
    static const char *const merges[] = {"a a", "aa aa", "aaaa aaaa", "\xC4\xA0 \xC4\xA0"};
    static const char *const pre[] = {"llama-bpe", "viking", "exaone-moe", "spark2_5"};
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES);
    uint32_t *ids;
    uint64_t count;
    (void)state;
    assert_non_null(text);
    alarm(120);
    for (unsigned i = 0; i < sizeof pre / sizeof pre[0]; i++) {
        struct tokenizer *t = open_bpe(pre[i], more, 4, merges, 4);
        memset(text, 'a', BYTES);
        assert_int_equal(tokenizer_encode(t, text, BYTES, false, &ids, &count), 0);
        assert_int_equal(count, BYTES / 8);
        free(ids);
        memset(text, ' ', BYTES);
        assert_int_equal(tokenizer_encode(t, text, BYTES, false, &ids, &count), 0);
        assert_int_equal(count, BYTES / 2);
        free(ids);
        tokenizer_close(t);
    }
    alarm(0);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_go_by_rank),
        cmocka_unit_test(the_lower_rank_wins_over_the_left_pair),
        cmocka_unit_test(merge_into_no_token_is_ignored),
        cmocka_unit_test(vocabulary_of_bytes_needs_no_merges),
        cmocka_unit_test(pre_tokenizers_cut_numbers_differently),
        cmocka_unit_test(pre_tokenizers_cut_contractions_and_spaces),
        cmocka_unit_test(llama_bpe_takes_whole_tokens_and_adds_bos),
        cmocka_unit_test(families_split_as_their_patterns),
        cmocka_unit_test(names_split_as_the_one_they_equal),
        cmocka_unit_test(some_take_whole_tokens_without_a_merge),
        cmocka_unit_test(unknown_pre_tokenizer_is_refused_by_name),
        cmocka_unit_test(no_pre_tokenizer_is_the_default_with_a_warning),
        cmocka_unit_test(tokens_that_end_an_answer_are_known_by_their_text),
        cmocka_unit_test(what_else_is_in_the_vocabulary_says_what_ends),
        cmocka_unit_test(html_of_gemma_is_text),
        cmocka_unit_test(tokens_between_files_end_an_answer),
        cmocka_unit_test(special_tokens_outside_the_vocabulary_are_none),
        cmocka_unit_test(user_defined_tokens_are_cut_out_longest_first),
        cmocka_unit_test(byte_without_any_token_is_refused),
        cmocka_unit_test(random_vocabularies_merge_as_the_definition),
        cmocka_unit_test(any_bytes_survive_a_round_trip),
        cmocka_unit_test(long_texts_take_no_quadratic_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
