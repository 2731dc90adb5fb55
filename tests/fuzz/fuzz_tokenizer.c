/*
 * tests/fuzz/fuzz_tokenizer.c - any text through every family of tokenizers.
 *
 * What: byte 0 chooses the vocabulary (a byte-level one with each family of pre-tokenizer patterns,
 * and a SentencePiece one), byte 1 the kinds of the pieces, which the rest is cut into at bytes 0.
 * Ids are in the vocabulary; what a byte-level vocabulary makes of plain text has the text's bytes.
 * fuzz_model varies vocabularies, this one texts. Failure: sanitizer findings; abort() where that
 * does not hold. Who calls it: libFuzzer (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/vocabularies.h"

#define PIECES_MAX 5

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const struct tokenizer *tokenizer, const uint32_t *tokens, uint64_t count)
{
    struct detokenizer stream;
    detokenizer_init(&stream, tokenizer, false);
    for (uint64_t i = 0; i < count; i++) {
        if (tokens[i] >= tokenizer_vocab_size(tokenizer))
            abort();
        uint64_t room = detokenizer_room(&stream, tokens[i]);
        char *out = malloc(room + 1);
        if (!out || detokenizer_push(&stream, tokens[i], out) > room)
            abort();
        free(out);
    }
    char rest[8];
    detokenizer_flush(&stream, rest);
}

/* The tokens' bytes, one after the other, are the text's. */
static void check_bytes(const struct tokenizer *tokenizer, const uint32_t *tokens, uint64_t count,
                        const char *text, uint64_t bytes)
{
    uint64_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        struct gguf_string piece = tokenizer_piece(tokenizer, tokens[i]);
        if (piece.length > bytes - at || memcmp(text + at, piece.data, piece.length) != 0)
            abort();
        at += piece.length;
    }
    if (at != bytes)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct prompt_piece pieces[PIECES_MAX];
    uint32_t *tokens = NULL;
    uint64_t count = 0;
    unsigned n = 0;
    if (size < 2)
        return 0;
    unsigned which = data[0] % N_VOCABULARIES;
    const struct tokenizer *tokenizer = vocabulary(which);
    char *text = malloc(size); /* without a NUL at the end */
    if (!text)
        abort();
    memcpy(text, data + 2, size - 2);
    uint64_t bytes = size - 2;
    for (uint64_t at = 0; data[1] && n < PIECES_MAX && at <= bytes; n++) {
        const char *end = n + 1 < PIECES_MAX ? memchr(text + at, 0, bytes - at) : NULL;
        uint64_t length = end ? (uint64_t)(end - text) - at : bytes - at;
        pieces[n] = (struct prompt_piece){text + at, length, (data[1] >> n) % 3};
        at += length + 1;
    }
    int rc = data[1] ? tokenizer_encode_pieces(tokenizer, pieces, n, data[1] & 128, &tokens, &count)
                     : tokenizer_encode(tokenizer, text, bytes, false, &tokens, &count);
    if (rc == 0) {
        decode(tokenizer, tokens, count);
        if (!data[1] && which != VOCABULARY_SPM)
            check_bytes(tokenizer, tokens, count, text, bytes);
    } else if (tokens || which != VOCABULARY_SPM) {
        abort(); /* a vocabulary with all bytes spells every text */
    }
    free(tokens);
    free(text);
    return 0;
}
