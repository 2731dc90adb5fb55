/*
 * test_service_model.c - which token ends the answers of a chat: the first control token of what a
 * template puts after an answer, or a token that is spelt like a mark.
 */
#include "coordinator/service.h"
#include "tests/model/tokenizer_checks.h"

enum { IM_START = 256, IM_END, END, SPACES, N_TOKENS };

/* The bytes, two control tokens, and two user-defined ones: a mark and white space. */
static struct tokenizer *open_chat(void)
{
    static const char *const more[] = {"<|im_start|>", "<|im_end|>", "<|end|>", "   "};
    static const uint32_t types[] = {3, 3, 4, 4};
    struct hill_why why;
    struct writer w = writer_new();
    byte_vocabulary(&w, "gpt-2", more, N_TOKENS - 256, NULL, 0);
    key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, N_TOKENS);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        put_u32(&w.values, i < 256 ? 1 : types[i - 256]);
    return open_tokenizer(&w, &why);
}

static uint32_t end_of(const struct tokenizer *t, const char *text)
{
    return model_answer_end(t, text, strlen(text));
}

static void the_first_control_token_ends_an_answer(void **state)
{
    (void)state;
    struct tokenizer *t = open_chat();
    assert_int_equal(end_of(t, "<|im_end|>\n<|im_start|>user\n"), IM_END);
    assert_int_equal(end_of(t, "\n\n<|im_start|>user\n"), IM_START);
    assert_int_equal(end_of(t, "   <|end|>\n<|im_start|>"), END);
    tokenizer_close(t);
}

static void a_text_without_one_ends_none(void **state)
{
    (void)state;
    struct tokenizer *t = open_chat();
    assert_int_equal(end_of(t, ""), TOKEN_NONE);
    assert_int_equal(end_of(t, "\n\nUser: "), TOKEN_NONE);
    assert_int_equal(end_of(t, "   <>[]"), TOKEN_NONE);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_control_token_ends_an_answer),
        cmocka_unit_test(a_text_without_one_ends_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
