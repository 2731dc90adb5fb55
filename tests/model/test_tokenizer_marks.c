/*
 * tests/model/test_tokenizer_marks.c - prompts of several pieces: which spelt-out tokens count in
 * which kind of piece, tokens over the pieces' borders, BOS that a template spells, and the random
 * property that a literal piece never makes a control token.
 */
#include "tests/model/tokenizer_checks.h"

enum { IM_START = 256, IM_END, TABLE, SPACES, AB, BOS, UNKNOWN, N_TOKENS };

/* The bytes, then a chat's marks: control, control, user-defined markup, user-defined white space,
 * a merged token, BOS, unknown. */
static struct tokenizer *open_chat(bool add_bos)
{
    static const char *const more[] = {"<|im_start|>", "<|im_end|>", "<table>", "   ",
                                       "ab",           "<s>",        "<unk>"};
    static const char *const merges[] = {"a b"};
    static const uint32_t types[] = {3, 3, 4, 4, 1, 3, 2};
    struct hill_why why;
    struct writer w = writer_new();
    byte_vocabulary(&w, "gpt-2", more, N_TOKENS - 256, merges, 1);
    key_u32(&w, "tokenizer.ggml.bos_token_id", BOS);
    key_bool(&w, "tokenizer.ggml.add_bos_token", add_bos);
    key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, N_TOKENS);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        put_u32(&w.values, i < 256 ? 1 : types[i - 256]);
    struct tokenizer *t = open_tokenizer(&w, &why);
    assert_string_equal(why.text, "");
    return t;
}

static void check_pieces(const struct tokenizer *t, const struct prompt_piece *pieces, uint64_t n,
                         const int *expected)
{
    uint32_t *ids;
    uint64_t count, wanted = 0;
    assert_int_equal(tokenizer_encode_pieces(t, pieces, n, true, &ids, &count), 0);
    while (expected[wanted] >= 0)
        wanted++;
    for (uint64_t i = 0; i < wanted && i < count; i++)
        if (ids[i] != (uint32_t)expected[i])
            fail_msg("token %lu is %u, not %d", (unsigned long)i, ids[i], expected[i]);
    assert_int_equal(count, wanted);
    free(ids);
}
#define PIECE(string, kind)                                                                        \
    {                                                                                              \
        string, sizeof(string) - 1, kind                                                           \
    }
#define CHECK(t, pieces, ...)                                                                      \
    check_pieces(t, pieces, sizeof(pieces) / sizeof(pieces)[0], (const int[]){__VA_ARGS__, -1})

static void kinds_decide_which_tokens_count(void **state)
{
    (void)state;
    struct tokenizer *t = open_chat(false);
    const struct prompt_piece text[] = {PIECE("<unk>x<table>", PROMPT_TEXT)};
    CHECK(t, text, '<', 'u', 'n', 'k', '>', 'x', TABLE);
    const struct prompt_piece special[] = {PIECE("<|im_start|>x<unk><table>", PROMPT_SPECIAL)};
    CHECK(t, special, IM_START, 'x', UNKNOWN, TABLE);
    const struct prompt_piece literal[] = {PIECE("<s>   <table>", PROMPT_LITERAL)};
    CHECK(t, literal, '<', 's', '>', SPACES, '<', 't', AB, 'l', 'e', '>');
    tokenizer_close(t);
}

/* Nor do merges make one: SentencePiece's knows none, and a BPE file could list them. */
static void merges_make_no_control_token(void **state)
{
    static const char *const pres[] = {"gpt-2", "glm5"}, *const more[] = {"ab"},
                             *const merges[] = {"a b"};
    (void)state;
    for (int i = 0; i < 2; i++) { /* glm5: also where a word is a token whole */
        struct hill_why why;
        struct writer w = writer_new();
        byte_vocabulary(&w, pres[i], more, 1, merges, 1);
        key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 257);
        for (uint32_t token = 0; token < 257; token++)
            put_u32(&w.values, token < 256 ? 1 : 3);
        struct tokenizer *t = open_tokenizer(&w, &why);
        const struct prompt_piece text[] = {PIECE("ab", PROMPT_TEXT)};
        CHECK(t, text, 'a', 'b');
        const struct prompt_piece special[] = {PIECE("ab", PROMPT_SPECIAL)};
        CHECK(t, special, 256);
        tokenizer_close(t);
    }
}

static void a_person_cannot_end_its_turn(void **state)
{
    (void)state;
    struct tokenizer *t = open_chat(false);
    const struct prompt_piece chat[] = {PIECE("<|im_start|>", PROMPT_SPECIAL),
                                        PIECE("<|im_end|>", PROMPT_LITERAL),
                                        PIECE("<|im_end|>", PROMPT_SPECIAL)};
    CHECK(t, chat, IM_START, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>', IM_END);
    /* nor by a part of it that the template's text completes */
    const struct prompt_piece parts[] = {PIECE("<|im_", PROMPT_LITERAL),
                                         PIECE("end|>", PROMPT_SPECIAL)};
    CHECK(t, parts, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    tokenizer_close(t);
}

static void pieces_are_one_text(void **state)
{
    (void)state;
    struct tokenizer *t = open_chat(false);
    const struct prompt_piece merged[] = {PIECE("xa", PROMPT_SPECIAL), PIECE("", PROMPT_LITERAL),
                                          PIECE("b", PROMPT_LITERAL)};
    CHECK(t, merged, 'x', AB);
    const struct prompt_piece cut[] = {PIECE("<|im_", PROMPT_SPECIAL), PIECE("", PROMPT_LITERAL),
                                       PIECE("end|>", PROMPT_SPECIAL)};
    CHECK(t, cut, IM_END);
    const struct prompt_piece spaces[] = {PIECE(" ", PROMPT_SPECIAL), PIECE("  ", PROMPT_LITERAL)};
    CHECK(t, spaces, SPACES);
    const struct prompt_piece nothing[] = {PIECE("", PROMPT_SPECIAL)};
    CHECK(t, nothing, -1);
    check_pieces(t, nothing, 0, (const int[]){-1});
    tokenizer_close(t);
}

static void bos_comes_once(void **state)
{
    (void)state;
    struct tokenizer *t = open_chat(true);
    const struct prompt_piece spelt[] = {PIECE("<s>x<s>", PROMPT_SPECIAL)};
    CHECK(t, spelt, BOS, 'x', BOS);
    const struct prompt_piece twice[] = {PIECE("<s><s>", PROMPT_SPECIAL)};
    CHECK(t, twice, BOS, BOS); /* the template's two */
    const struct prompt_piece typed[] = {PIECE("<s>x", PROMPT_LITERAL)};
    CHECK(t, typed, BOS, '<', 's', '>', 'x');
    const struct prompt_piece plain[] = {PIECE("x", PROMPT_SPECIAL)};
    CHECK(t, plain, BOS, 'x');
    tokenizer_close(t);
}

/* The border of a model's reasoning is text of its answer, and a control token in a prompt. */
static void tags_of_reasoning_are_said_but_not_typed(void **state)
{
    enum { THINK = 256, THINK_END, INST, END };
    static const char *const more[] = {"[THINK]", "[/THINK]", "[INST]", "</s>"};
    static const char *const said[] = {"[THINK]", "[/THINK]", "", ""};
    struct hill_why why;
    struct detokenizer stream;
    char out[64];
    (void)state;
    struct writer w = writer_new();
    byte_vocabulary(&w, "tekken", more, 4, NULL, 0);
    key_u32(&w, "tokenizer.ggml.eos_token_id", END);
    key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 260);
    for (uint32_t i = 0; i < 260; i++)
        put_u32(&w.values, i < 256 ? 1 : 3);
    struct tokenizer *t = open_tokenizer(&w, &why);
    detokenizer_init(&stream, t, true);
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t n = detokenizer_push(&stream, THINK + i, out);
        assert_int_equal(n, strlen(said[i]));
        assert_memory_equal(out, said[i], n);
        assert_int_equal(tokenizer_spelling(t, THINK + i).length, strlen(more[i]));
        assert_int_equal(tokenizer_is_end(t, THINK + i), i == 3);
        assert_int_equal(tokenizer_is_reasoning_tag(t, THINK + i), i < 2);
    }
    const struct prompt_piece own[] = {PIECE("[THINK]a[/THINK]", PROMPT_SPECIAL)};
    CHECK(t, own, THINK, 'a', THINK_END);
    const struct prompt_piece words[] = {PIECE("[THINK]", PROMPT_TEXT), PIECE("[/", PROMPT_LITERAL),
                                         PIECE("THINK]", PROMPT_SPECIAL)};
    CHECK(t, words, '[', 'T', 'H', 'I', 'N', 'K', ']', '[', '/', 'T', 'H', 'I', 'N', 'K', ']');
    tokenizer_close(t);
}

static void literal_pieces_never_make_a_control_token(void **state)
{
    static const char *const bits[] = {"<|im_start|>", "<|im_end|>", "<s>", "<unk>", "<|im_",
                                       "end|>",        "a",          "b",   "   ",   "<table>"};
    uint64_t random = test_seed();
    (void)state;
    struct tokenizer *t = open_chat(false);
    for (int round = 0; round < 2000; round++) {
        struct prompt_piece pieces[8];
        char whole[256] = "", again[256] = "";
        uint32_t *ids;
        uint64_t n = next_random(&random) % 8, count, controls = 0, most = 0;
        for (uint64_t i = 0; i < n; i++) {
            const char *bit = bits[next_random(&random) % (sizeof bits / sizeof bits[0])];
            enum prompt_kind kind = next_random(&random) % 3;
            pieces[i] = (struct prompt_piece){bit, strlen(bit), kind};
            strcat(whole, bit);
            most += kind == PROMPT_SPECIAL;
        }
        assert_int_equal(tokenizer_encode_pieces(t, pieces, n, false, &ids, &count), 0);
        for (uint64_t i = 0; i < count; i++) {
            bool control = ids[i] == IM_START || ids[i] == IM_END || ids[i] == BOS;
            static const char *const spelt[] = {"<|im_start|>", "<|im_end|>", "", "", "",
                                                "<s>",          "<unk>"};
            struct gguf_string piece = tokenizer_piece(t, ids[i]);
            controls += control || ids[i] == UNKNOWN;
            if (control || ids[i] == UNKNOWN)
                strcat(again, spelt[ids[i] - 256]);
            else
                strncat(again, piece.data, piece.length);
        }
        assert_string_equal(again, whole);
        assert_true(controls <= most); /* each lies wholly in special pieces */
        free(ids);
    }
    tokenizer_close(t);
}

static void phi_3_takes_the_space_behind_its_marks(void **state)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "<|user|>", "a", "\xE2\x96\x81"};
    static const uint32_t types[] = {2, 3, 3, 3, 1, 1};
    struct hill_why why;
    (void)state;
    for (int phi = 0; phi < 2; phi++) {
        struct writer w = writer_new();
        key_text(&w, "general.architecture", phi ? "phi3" : "llama");
        key_text(&w, "tokenizer.ggml.model", "llama");
        key_texts(&w, "tokenizer.ggml.tokens", tokens, 6);
        key_bool(&w, "tokenizer.ggml.add_bos_token", 0);
        key_bool(&w, "tokenizer.ggml.add_space_prefix", 0);
        key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 6);
        for (int i = 0; i < 6; i++)
            put_u32(&w.values, types[i]);
        struct tokenizer *t = open_tokenizer(&w, &why);
        const struct prompt_piece text[] = {PIECE("<|user|>  a<s> a", PROMPT_SPECIAL)};
        if (phi)
            CHECK(t, text, 3, 4, 1, 5, 4);
        else
            CHECK(t, text, 3, 5, 5, 4, 1, 5, 4);
        tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_decide_which_tokens_count),
        cmocka_unit_test(merges_make_no_control_token),
        cmocka_unit_test(a_person_cannot_end_its_turn),
        cmocka_unit_test(pieces_are_one_text),
        cmocka_unit_test(bos_comes_once),
        cmocka_unit_test(tags_of_reasoning_are_said_but_not_typed),
        cmocka_unit_test(literal_pieces_never_make_a_control_token),
        cmocka_unit_test(phi_3_takes_the_space_behind_its_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
