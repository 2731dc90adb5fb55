/*
 * model/tokenizer_pre.c - cut a text into the pre-tokens that BPE merges never cross. See
 * tokenizer_internal.h.
 *
 * A pre-tokenizer is a list of patterns. Each splits every piece that the ones before it left into
 * its matches and the gaps between them, a piece being a subject of its own (so a look-ahead ends
 * at its end). Bytes that are not UTF-8 form pieces of their own, which no pattern sees.
 *
 * PCRE2's \s knows U+180E and Unicode's White_Space does not, so white space is spelt out.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer_internal.h"
#include "model/utf8.h"

#define WHITE                                                                                      \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define S           "[" WHITE "]"
#define TAIL        S "+(?![^" WHITE "])|" S "+"
#define OTHER       " ?[^" WHITE "\\p{L}\\p{N}]+"
#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" OTHER "|" TAIL
#define CONTRACTION "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
#define LLAMA3_LIKE(number)                                                                        \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" number "|" OTHER "[\\r\\n]*|" S "*[\\r\\n]+"     \
                "|" TAIL

enum { MOST_PATTERNS = 4 };

struct family {
    const char *patterns[MOST_PATTERNS];
    bool ignore_merges, add_bos;
};

enum {
    FAMILY_DEFAULT,
    FAMILY_GPT2,
    FAMILY_DIGITS,
    FAMILY_LLAMA3,
    FAMILY_LLAMA3_PLAIN,
    FAMILY_QWEN2
};

/* Sources: the tokenizer.json of the models; "default" is llama.cpp's for files that name none. */
static const struct family families[] = {
    [FAMILY_DEFAULT] = {{"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false},
    [FAMILY_GPT2] = {{GPT2}, false, false},
    [FAMILY_DIGITS] = {{"\\p{N}", GPT2}, false, false},
    [FAMILY_LLAMA3] = {{LLAMA3_LIKE("\\p{N}{1,3}")}, true, true},
    [FAMILY_LLAMA3_PLAIN] = {{LLAMA3_LIKE("\\p{N}{1,3}")}, false, false},
    [FAMILY_QWEN2] = {{LLAMA3_LIKE("\\p{N}")}, false, false},
};

static const struct {
    const char *name;
    int family;
} names[] = {
    {"default", FAMILY_DEFAULT},
    {"", FAMILY_DEFAULT},
    {"gpt-2", FAMILY_GPT2},
    {"gpt2", FAMILY_GPT2},
    {"phi-2", FAMILY_GPT2},
    {"mpt", FAMILY_GPT2},
    {"olmo", FAMILY_GPT2},
    {"jais", FAMILY_GPT2},
    {"roberta-bpe", FAMILY_GPT2},
    {"gigachat", FAMILY_GPT2},
    {"starcoder", FAMILY_DIGITS},
    {"refact", FAMILY_DIGITS},
    {"command-r", FAMILY_DIGITS},
    {"smollm", FAMILY_DIGITS},
    {"codeshell", FAMILY_DIGITS},
    {"exaone", FAMILY_DIGITS},
    {"minerva-7b", FAMILY_DIGITS},
    {"llama-bpe", FAMILY_LLAMA3},
    {"llama3", FAMILY_LLAMA3},
    {"llama-v3", FAMILY_LLAMA3},
    {"falcon3", FAMILY_LLAMA3},
    {"dbrx", FAMILY_LLAMA3_PLAIN},
    {"smaug-bpe", FAMILY_LLAMA3_PLAIN},
    {"chatglm-bpe", FAMILY_LLAMA3_PLAIN},
    {"qwen2", FAMILY_QWEN2},
    {"stablelm2", FAMILY_QWEN2},
    {"deepseek-r1-qwen", FAMILY_QWEN2},
    {"megrez", FAMILY_QWEN2},
};

struct pre_tokenizer {
    const struct family *family;
    pcre2_code *codes[MOST_PATTERNS];
    uint32_t n_codes;
};

static const struct family *find_family(struct gguf_string name)
{
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (name.length == strlen(names[i].name) &&
            memcmp(name.data, names[i].name, name.length) == 0)
            return &families[names[i].family];
    return NULL;
}

static int compile(struct pre_tokenizer *pre, struct hill_why *why)
{
    for (; pre->n_codes < MOST_PATTERNS && pre->family->patterns[pre->n_codes]; pre->n_codes++) {
        int error;
        PCRE2_SIZE at;
        pcre2_code *code =
            pcre2_compile((PCRE2_SPTR)pre->family->patterns[pre->n_codes], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
        if (!code) {
            PCRE2_UCHAR text[128] = "";
            pcre2_get_error_message(error, text, sizeof text);
            return hill_fail(why, HILL_E_UNSUPPORTED, "cannot compile a pre-tokenizer pattern: %s",
                             (char *)text);
        }
        pcre2_jit_compile(
            code, PCRE2_JIT_COMPLETE); /* without it the interpreter gives the same matches */
        pre->codes[pre->n_codes] = code;
    }
    return 0;
}

int pre_tokenizer_open(struct pre_tokenizer **out, struct gguf_string name, struct hill_why *why)
{
    struct pre_tokenizer *pre = calloc(1, sizeof *pre);
    if (!pre)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the pre-tokenizer");
    pre->family = find_family(name);
    bool known = pre->family != NULL;
    if (!known)
        pre->family = &families[FAMILY_GPT2];
    int rc = compile(pre, why);
    if (rc) {
        pre_tokenizer_close(pre);
        return rc;
    }
    if (!known) {
        char word[48] = "";
        for (uint64_t i = 0; i < name.length && i < sizeof word - 1; i++)
            word[i] = name.data[i] >= ' ' && name.data[i] <= '~' ? name.data[i] : '?';
        hill_fail(why, 0,
                  "pre-tokenizer '%s' is unknown, gpt-2's is used: the text may be cut into "
                  "other tokens than the model was trained on",
                  word);
    }
    *out = pre;
    return 0;
}

void pre_tokenizer_close(struct pre_tokenizer *pre)
{
    if (!pre)
        return;
    for (uint32_t i = 0; i < pre->n_codes; i++)
        pcre2_code_free(pre->codes[i]);
    free(pre);
}

bool pre_tokenizer_ignores_merges(const struct pre_tokenizer *pre)
{
    return pre->family->ignore_merges;
}

bool pre_tokenizer_adds_bos(const struct pre_tokenizer *pre)
{
    return pre->family->add_bos;
}

/* ---- splitting ------------------------------------------------------------------------------ */

static int add_cut(struct cuts *cuts, uint64_t end)
{
    if (cuts->count == cuts->capacity) {
        uint64_t more = cuts->capacity ? cuts->capacity * 2 : 256;
        uint64_t *moved = realloc(cuts->ends, more * sizeof *moved);
        if (!moved)
            return HILL_E_NOMEM;
        cuts->ends = moved;
        cuts->capacity = more;
    }
    cuts->ends[cuts->count++] = end;
    return 0;
}

struct splitter {
    const struct pre_tokenizer *pre;
    const uint8_t *text;
    pcre2_match_data *match;
    pcre2_match_context *context;
    struct cuts *cuts;
};

/* JIT code has a small stack of its own; a text that overflows it goes to the interpreter. */
static int match_at(const struct splitter *s, const pcre2_code *code, const uint8_t *piece,
                    uint64_t length, uint64_t offset)
{
    int rc = pcre2_match(code, piece, length, offset, PCRE2_NO_UTF_CHECK, s->match, s->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, piece, length, offset, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match,
                         s->context);
    return rc;
}

/* Split the valid UTF-8 in start..end by the patterns from level on. Depth: MOST_PATTERNS. */
static int split_piece(const struct splitter *s, uint64_t start, uint64_t end, uint32_t level)
{
    if (start == end)
        return 0;
    if (level == s->pre->n_codes)
        return add_cut(s->cuts, end);
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(s->match);
    uint64_t done = 0, length = end - start;
    while (done < length) {
        int rc = match_at(s, s->pre->codes[level], s->text + start, length, done);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return HILL_E_NOMEM; /* the patterns are ours: only memory can run out */
        uint64_t from = found[0], to = found[1]; /* the next level overwrites them */
        rc = split_piece(s, start + done, start + from, level + 1);
        if (!rc)
            rc = split_piece(s, start + from, start + to, level + 1);
        if (rc)
            return rc;
        done = to;
    }
    return split_piece(s, start + done, end, level + 1);
}

/* Walk the text in runs of valid and of invalid bytes. */
static int split_runs(const struct splitter *s, uint64_t length)
{
    int rc = 0;
    for (uint64_t at = 0; !rc && at < length;) {
        uint64_t end = at;
        uint32_t bytes;
        while (end < length && (bytes = utf8_char_bytes(s->text + end, length - end)) > 0)
            end += bytes;
        rc = split_piece(s, at, end, 0);
        for (at = end; at < length && utf8_char_bytes(s->text + at, length - at) == 0;)
            at++;
        if (!rc && at > end)
            rc = add_cut(s->cuts, at);
    }
    return rc;
}

int pre_tokenizer_split(const struct pre_tokenizer *pre, const uint8_t *text, uint64_t length,
                        struct cuts *cuts)
{
    struct splitter s = {.pre = pre, .text = text, .cuts = cuts};
    int rc = HILL_E_NOMEM;
    s.match = pcre2_match_data_create(1, NULL);
    s.context = pcre2_match_context_create(NULL);
    if (s.match && s.context) {
        /* a run of white space backtracks once a character, so the default limit would bound the
         * text */
        pcre2_set_match_limit(s.context, UINT32_MAX);
        rc = split_runs(&s, length);
    }
    pcre2_match_data_free(s.match);
    pcre2_match_context_free(s.context);
    return rc;
}
