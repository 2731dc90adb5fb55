/*
 * model/detokenizer.c - tokens to text as they come, in whole UTF-8 characters. See tokenizer.h.
 *
 * Bytes wait in pending while they may still become a character. A byte that breaks the character
 * off turns what waits into one U+FFFD and is looked at afresh, so nothing valid behind damage is
 * lost.
 */
#include <string.h>

#include "base/utf8.h"
#include "model/tokenizer.h"

void detokenizer_init(struct detokenizer *stream, const struct tokenizer *tokenizer,
                      bool continuation)
{
    *stream =
        (struct detokenizer){.tokenizer = tokenizer,
                             .at_start = !continuation && tokenizer_adds_space_prefix(tokenizer)};
}

uint64_t detokenizer_flush(struct detokenizer *stream, char *out)
{
    if (!stream->n_pending)
        return 0;
    stream->n_pending = 0;
    memcpy(out, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
    return UTF8_REPLACEMENT_BYTES;
}

static uint64_t push_byte(struct detokenizer *stream, uint8_t byte, char *out)
{
    uint64_t written = 0;
    if (stream->n_pending && !utf8_continues(stream->pending, stream->n_pending, byte))
        written = detokenizer_flush(stream, out);
    if (!stream->n_pending && utf8_announced(byte) == 0) {
        memcpy(out + written, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
        return written + UTF8_REPLACEMENT_BYTES;
    }
    stream->pending[stream->n_pending++] = byte;
    if (stream->n_pending < utf8_announced(stream->pending[0]))
        return written;
    memcpy(out + written, stream->pending, stream->n_pending);
    written += stream->n_pending;
    stream->n_pending = 0;
    return written;
}

uint64_t detokenizer_push(struct detokenizer *stream, uint32_t token, char *out)
{
    struct gguf_string piece = tokenizer_piece(stream->tokenizer, token);
    uint64_t written = 0, i = 0;
    if (piece.length && stream->at_start) {
        i = piece.data[0] == ' ';
        stream->at_start = false;
    }
    for (; i < piece.length; i++)
        written += push_byte(stream, (uint8_t)piece.data[i], out + written);
    return written;
}

uint64_t detokenizer_room(const struct detokenizer *stream, uint32_t token)
{
    /* every byte, and what waits, may turn into U+FFFD */
    return (tokenizer_piece(stream->tokenizer, token).length + 1) * UTF8_REPLACEMENT_BYTES;
}
