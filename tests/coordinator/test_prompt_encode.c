/* Tests of prompt_encode (coordinator/service_intake.c): what cannot fit is not encoded. */
#include "tests/model/tokenizer_checks.h"

#include "coordinator/service.h"

#define CTX 1000u

static void more_bytes_than_tokens_can_hold(void **state)
{
    (void)state;
    static const char *const more[] = {"abcd"}, *const merges[] = {"a b", "c d", "ab cd"};
    struct hill_why why = {""};
    struct writer w = writer_new();
    byte_vocabulary(&w, "gpt-2", more, 1, merges, 3);
    struct tokenizer *t = open_tokenizer(&w, &why);
    assert_int_equal(tokenizer_longest(t), 4);
    const size_t bytes = 4 * (CTX + 1);
    char *text = malloc(bytes);
    memset(text, 'z', bytes);
    Hill__PromptPiece piece = HILL__PROMPT_PIECE__INIT, *pieces[] = {&piece, &piece};
    struct prompt_sent sent = {.text = {bytes, (uint8_t *)text}};
    uint32_t *tokens = NULL;
    uint64_t count = 0;
    assert_int_equal(prompt_encode(t, &sent, CTX, &tokens, &count, &why), HILL_E_TOO_LONG);
    assert_string_equal(why.text, "the prompt's 4004 bytes are at least 1001 tokens and exceed the "
                                  "context of 1000 tokens");
    assert_null(tokens);
    sent.text.len--; /* it may fit: the tokens decide, elsewhere */
    assert_int_equal(prompt_encode(t, &sent, CTX, &tokens, &count, &why), 0);
    assert_int_equal(count, bytes - 1);
    free(tokens);
    tokens = NULL;
    piece.text = (ProtobufCBinaryData){bytes / 2, (uint8_t *)text};
    sent = (struct prompt_sent){.pieces = pieces, .n_pieces = 2};
    assert_int_equal(prompt_encode(t, &sent, CTX, &tokens, &count, &why), HILL_E_TOO_LONG);
    assert_null(tokens);
    free(text);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_bytes_than_tokens_can_hold)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
