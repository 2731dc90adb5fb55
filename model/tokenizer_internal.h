/*
 * model/tokenizer_internal.h - what the files of the tokenizer share. Nobody outside model/
 * includes it.
 *
 * tokenizer.c         open, close, questions about tokens, encode
 * tokenizer_marks.c   cuts tokens that are spelt out in a text out of it
 * tokenizer_vocab.c   reads tokens, scores and types; the hash table of token texts; pieces
 * tokenizer_spm.c     SentencePiece-style encoding
 * tokenizer_bpe.c     byte-level BPE: merges, encoding
 * tokenizer_merge.c   the merge loop that both use
 * tokenizer_pre.c     pre-tokenizer patterns (PCRE2)
 */
#pragma once

#include "model/bytes_map.h"
#include "model/tokenizer.h"

enum tokenizer_kind {
    TOKENIZER_SPM,   /* scores decide merges */
    TOKENIZER_BPE,   /* ranked merges of bytes within pre-tokens */
    TOKENIZER_CHARS, /* ranked merges of characters within lines; spaces and bytes as in SPM */
};

/* tokenizer.ggml.token_type */
enum token_type {
    TOKEN_UNDEFINED = 0,
    TOKEN_NORMAL,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED,
    TOKEN_UNUSED,
    TOKEN_BYTE,
};

struct token {
    struct gguf_string text;  /* as the vocabulary spells it */
    struct gguf_string piece; /* the bytes it stands for */
    float score;
    uint8_t type;
    bool ends;         /* generation stops at it */
    bool strips_right; /* white space behind it in the text belongs to it */
    bool is_reasoning_tag;
};

/* Is the token found as it is spelt, before anything merges? */
static inline bool token_is_mark(const struct token *token)
{
    return token->type == TOKEN_CONTROL || token->type == TOKEN_UNKNOWN ||
           token->type == TOKEN_USER_DEFINED;
}

/* The marks (control, unknown and user-defined tokens) of one length, found by their first byte,
 * then by look-up. */
struct mark_length {
    uint64_t length;
    uint64_t first_bytes[4]; /* bit set */
};

struct bpe_merge {
    uint32_t
        pair[2]; /* symbols: token ids, or n_tokens + byte for a byte without a token; the key */
    uint32_t result; /* token id */
    uint32_t rank;
};

struct pre_tokenizer;

struct tokenizer {
    enum tokenizer_kind kind;
    uint32_t n_tokens;
    struct token *tokens;
    char *text_bytes, *piece_bytes; /* what the tokens' texts and pieces point into */
    struct bytes_map by_text;
    uint64_t longest; /* bytes of the longest text */
    uint32_t bos, eos, unknown;
    bool add_bos, add_space_prefix;
    struct mark_length *mark_lengths; /* longest first */
    uint64_t n_mark_lengths;
    uint32_t byte_symbols[256]; /* the token of a byte, or n_tokens + byte: there is none */
    /* ranked merges only */
    bool ignore_merges; /* a pre-token that is a token is taken whole */
    struct bpe_merge *merges;
    struct bytes_map by_pair;  /* pair -> index into merges */
    struct pre_tokenizer *pre; /* of bytes only */
};

/* A growing list of token ids; error stays set: out of memory, or a byte without a token. */
struct token_list {
    uint32_t *items;
    uint64_t count, capacity;
    int error;
};

void token_list_add(struct token_list *list, uint32_t token); /* token_list.c */

struct merge_scratch;

/* ---- tokenizer_vocab.c ---- */

int tokenizer_read_vocab(struct tokenizer *t, const struct gguf_file *file, struct hill_why *why);
/* TOKEN_NONE when no token is spelt so. */
uint32_t tokenizer_lookup(const struct tokenizer *t, const void *text, uint64_t length);
/* The same of text without marks: no mark, whatever merges the file has. */
uint32_t tokenizer_lookup_plain(const struct tokenizer *t, const void *text, uint64_t length);
/* Append the token of a byte, the unknown token, or set list->error. */
void tokenizer_add_byte(const struct tokenizer *t, uint8_t byte, struct token_list *list);
/* GPT-2's printable stand-in of each byte: a code point below U+0200. */
uint32_t tokenizer_byte_code_point(uint8_t byte);
/* The text with its spaces as U+2581, and one before it when asked; malloc'ed, NULL: no memory. */
uint8_t *tokenizer_escape_spaces(const uint8_t *text, uint64_t length, bool space_prefix,
                                 uint64_t *escaped_length);
/* Characters of the text as symbols behind those that are there; a byte of no character is one. A
 * symbol's id is its token, or TOKEN_NONE. 0 or HILL_E_NOMEM. */
int tokenizer_add_characters(const struct tokenizer *t, const uint8_t *text, uint64_t start,
                             uint64_t end, struct merge_scratch *scratch);

/* ---- tokenizer_merge.c ---- */

/* A run of text that acts as one; a list linked by indices. length 0: merged into its left
 * neighbour. */
struct symbol {
    uint32_t previous, next; /* SYMBOL_END at the ends */
    uint32_t offset, length; /* in the text */
    uint32_t id;             /* token id or, below the tokens, what the tokenizer makes of it */
};
#define SYMBOL_END UINT32_MAX

struct merge_step {
    double priority; /* the highest first; equal ones from the left */
    uint32_t left, right, length, id;
};

/* Scratch memory of one encode call, reused from text to text. */
struct merge_scratch {
    struct symbol *symbols;
    uint64_t n_symbols, symbol_capacity;
    struct merge_step *heap;
    uint64_t n_heap, heap_capacity;
};

/* May left and right become one symbol? Fill priority and id. */
typedef bool merge_lookup(const struct tokenizer *t, const uint8_t *text, const struct symbol *left,
                          const struct symbol *right, double *priority, uint32_t *id);

void merge_scratch_finish(struct merge_scratch *scratch);
/* Append a symbol behind the others. 0 or HILL_E_NOMEM. */
int merge_add_symbol(struct merge_scratch *scratch, uint32_t offset, uint32_t length, uint32_t id);
/* Merge until nothing can be; the survivors have length > 0 and stand in order. O(n log n). */
int merge_run(const struct tokenizer *t, const uint8_t *text, struct merge_scratch *scratch,
              merge_lookup *lookup);

/* ---- tokenizer_marks.c ---- */

/* Fill mark_lengths from the tokens' types, strips_right from what is known of the model. 0 or
 * HILL_E_NOMEM. */
int tokenizer_collect_marks(struct tokenizer *t, const struct gguf_file *file);

/* A prompt as one text; ends[i] is where piece i ends, kinds[i] its kind. */
struct marked_text {
    const uint8_t *text;
    const uint64_t *ends;
    const enum prompt_kind *kinds;
    uint64_t n_pieces;
};
/* Hand the text on in order: plain runs, and the marks that their pieces allow. */
struct mark_sink {
    void (*plain)(void *context, const uint8_t *text, uint64_t length);
    void (*mark)(void *context, uint32_t token);
    void *context;
};
void tokenizer_cut_marks(const struct tokenizer *t, const struct marked_text *text,
                         const struct mark_sink *sink);

/* ---- the two encoders; text contains no mark ---- */

void spm_encode(const struct tokenizer *t, const uint8_t *text, uint64_t length, bool space_prefix,
                struct merge_scratch *scratch, struct token_list *list);

int bpe_read(struct tokenizer *t, const struct gguf_file *file, struct hill_why *why);
void bpe_encode(const struct tokenizer *t, const uint8_t *text, uint64_t length,
                struct merge_scratch *scratch, struct token_list *list);
void chars_encode(const struct tokenizer *t, const uint8_t *text, uint64_t length,
                  struct merge_scratch *scratch, struct token_list *list);

/* ---- tokenizer_pre.c ---- */

/* name: tokenizer.ggml.pre. Empty: the default patterns and a warning in why. An unknown one:
 * HILL_E_UNSUPPORTED. */
int pre_tokenizer_open(struct pre_tokenizer **out, struct gguf_string name, struct hill_why *why);
void pre_tokenizer_close(struct pre_tokenizer *pre);
bool pre_tokenizer_ignores_merges(const struct pre_tokenizer *pre);
bool pre_tokenizer_adds_bos(const struct pre_tokenizer *pre);

/* Where pre-tokens end: offsets in rising order, the last equal to length. Every byte is in exactly
 * one. */
struct cuts {
    uint64_t *ends;
    uint64_t count, capacity;
};
int pre_tokenizer_split(const struct pre_tokenizer *pre, const uint8_t *text, uint64_t length,
                        struct cuts *cuts);
