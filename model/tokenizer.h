/*
 * model/tokenizer.h - text to token ids and back, from GGUF metadata.
 *
 * What: tokenizer.ggml.model "llama" (SentencePiece-style: scores decide merges, U+2581 for space,
 * byte tokens <0xXX> for what the vocabulary lacks, add_space_prefix), "gpt2" (byte-level BPE:
 * merges ranked, pre-tokenizer patterns through PCRE2 by tokenizer.ggml.pre; the names are in
 * docs/models.md, another one is refused) and "gemma4" (ranked merges of characters, the rest as in
 * "llama"). BOS/EOS ids outside the vocabulary mean "none". Ids equal those of the models' own
 * tokenizers, but for bytes that are no UTF-8: those are encoded as they are, one by one, so that
 * every text comes back.
 * Who calls it: coordinator, gpu_worker (JSON answers, probe heads), chat/, tools/bench,
 * tools/eval. Concurrency: read-only after open; a stream per request.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/gguf.h"

#define TOKEN_NONE UINT32_MAX

struct tokenizer;

/* The tokenizer copies what it needs: file may be closed. On success why->text is a warning or
 * empty. HILL_E_DAMAGED, HILL_E_UNSUPPORTED (the tokenizer's kind, its pre-tokenizer),
 * HILL_E_NOMEM. */
int tokenizer_open(struct tokenizer **out, const struct gguf_file *file, struct hill_why *why);
void tokenizer_close(struct tokenizer *tokenizer);

uint32_t tokenizer_vocab_size(const struct tokenizer *tokenizer);
/* No token stands for more bytes of a text, but for marks to which the white space behind them
 * belongs (Phi-3): these stand for any number. */
uint64_t tokenizer_longest(const struct tokenizer *tokenizer);
uint32_t tokenizer_bos(const struct tokenizer *tokenizer); /* TOKEN_NONE when there is none */
uint32_t tokenizer_eos(const struct tokenizer *tokenizer);
/* EOS, EOT, EOM, what stands between files, and tokens that docs/models.md names. */
bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t token);

/* true when encoding puts a space before the text (add_space_prefix of a "llama" vocabulary). */
bool tokenizer_adds_space_prefix(const struct tokenizer *tokenizer);

/* Which tokens spelt out in a piece of a prompt become those tokens. User-defined tokens are runs
 * of white space, HTML tags, letters, and in some files the marks of a chat. */
enum prompt_kind {
    PROMPT_TEXT,    /* user-defined tokens; control tokens stay text (llama.cpp's default) */
    PROMPT_SPECIAL, /* control, unknown and user-defined tokens: a template's own text */
    PROMPT_LITERAL, /* a person's words in a chat: no control token, and of the user-defined ones none
                     * that looks like a mark (from '<' or '[' to '>' or ']') */
};

struct prompt_piece {
    const char *text; /* any bytes; no NUL needed */
    uint64_t bytes;
    enum prompt_kind kind;
};

/* Encode the pieces as one text: tokens and pre-tokens may reach over the pieces' borders, but a
 * recognised token lies wholly in pieces of a kind that allow such a token. add_bos: BOS as the
 * metadata asks, unless a PROMPT_SPECIAL piece has spelt BOS at the very start (never EOS: the text
 * goes on). *tokens is malloc'ed, NULL after an error: HILL_E_NOMEM, HILL_E_TOO_LONG (over 1 GiB),
 * HILL_E_UNSUPPORTED (a byte for which the vocabulary has neither a token nor an unknown token).
 * Time O(n log n). */
int tokenizer_encode_pieces(const struct tokenizer *tokenizer, const struct prompt_piece *pieces,
                            uint64_t n_pieces, bool add_bos, uint32_t **tokens, uint64_t *count);

/* The same of text that goes on after other tokens: nothing is put before it. */
int tokenizer_encode_more(const struct tokenizer *tokenizer, const struct prompt_piece *pieces,
                          uint64_t n_pieces, uint32_t **tokens, uint64_t *count);

/* One piece of PROMPT_TEXT. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, uint64_t length,
                     bool add_bos, uint32_t **tokens, uint64_t *count);

/* What stands around a model's reasoning in its answer. Where a vocabulary has these as control
 * tokens they have bytes nevertheless: a reader of the answer needs the border. */
struct reasoning_tags {
    const char *begin, *end;
};
enum { REASONING_TAGS = 2 };
extern const struct reasoning_tags reasoning_tags[REASONING_TAGS];
bool tokenizer_is_reasoning_tag(const struct tokenizer *tokenizer, uint32_t token);

/* Bytes of one token; special/control tokens give none, but reasoning_tags. Valid while the
 * tokenizer lives. */
struct gguf_string tokenizer_piece(const struct tokenizer *tokenizer, uint32_t token);
/* The same, but control and unknown tokens as the vocabulary spells them. */
struct gguf_string tokenizer_spelling(const struct tokenizer *tokenizer, uint32_t token);

/* Streaming detokenisation that never cuts a UTF-8 character. */
struct detokenizer {
    const struct tokenizer *tokenizer;
    uint8_t pending[4]; /* an incomplete character */
    uint32_t n_pending;
    bool at_start; /* the first piece's leading space is dropped where add_space_prefix added one */
};

/* continuation: the text follows a prompt, so a leading space is kept. */
void detokenizer_init(struct detokenizer *stream, const struct tokenizer *tokenizer,
                      bool continuation);
/* Append the complete characters that token makes to out (capacity at least detokenizer_room; no
 * NUL is added); returns the bytes written. Bytes that can never become UTF-8 come out as U+FFFD.
 */
uint64_t detokenizer_push(struct detokenizer *stream, uint32_t token, char *out);
uint64_t detokenizer_room(const struct detokenizer *stream, uint32_t token);
/* What is left of an incomplete character, as U+FFFD: 0 or 3 bytes. */
uint64_t detokenizer_flush(struct detokenizer *stream, char *out);
