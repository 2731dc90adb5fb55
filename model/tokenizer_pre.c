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

#include "base/grow.h"
#include "base/utf8.h"
#include "model/tokenizer_internal.h"

#define WHITE                                                                                      \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define S           "[" WHITE "]"
#define TAIL        S "+(?![^" WHITE "])|" S "+"
#define OTHER       " ?[^" WHITE "\\p{L}\\p{N}]+"
#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" OTHER "|" TAIL
#define CONTRACTION "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
#define AFTER_WORD  OTHER "[\\r\\n]*|" S "*[\\r\\n]+|" TAIL
/* words: what letters are to the family, with what may stand before them */
#define LLAMA3_LIKE(words, number) CONTRACTION "|" words "|" number "|" AFTER_WORD
#define WORD                       "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
/* letters with their case: a word breaks where a small one is followed by a capital */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_WORDS(tail)                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" tail "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER    \
    "*" tail
#define AFTER_CASED   OTHER "[\\r\\n/]*|" S "*[\\r\\n]+|" TAIL
#define DEEPSEEK_CJK  "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define DEEPSEEK3_CJK "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
/* a mark of a sentence ends a word */
#define BLOOM " ?[^" WHITE "(|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
#define YOUTU_SCRIPTS                                                                              \
    "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}"     \
    "\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|"       \
    "[\\x{3105}-\\x{312f}]+|" DEEPSEEK3_CJK
/* the list of cased letters that DeepSeek LLM's tokenizer.json spells out */
#define DEEPSEEK_CASED                                                                             \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}"                          \
    "\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}"                  \
    "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}"                         \
    "\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}"                 \
    "\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}"                 \
    "\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}"                 \
    "\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}"                            \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"                           \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"                 \
    "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}"                  \
    "\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}"                   \
    "\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}"                  \
    "\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"                  \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"                  \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"                 \
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"               \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}"                              \
    "\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"

enum { MOST_PATTERNS = 6 };

struct family {
    const char *patterns[MOST_PATTERNS];
    bool ignore_merges, add_bos;
};

enum {
    FAMILY_DEFAULT,
    FAMILY_GPT2,
    FAMILY_DIGITS,
    FAMILY_FALCON,
    FAMILY_LLAMA3,
    FAMILY_LLAMA3_PLAIN,
    FAMILY_LLAMA3_WHOLE,
    FAMILY_QWEN2,
    FAMILY_QWEN35,
    FAMILY_TEKKEN,
    FAMILY_GPT4O,
    FAMILY_DEEPSEEK_LLM,
    FAMILY_DEEPSEEK_CODER,
    FAMILY_DEEPSEEK3,
    FAMILY_MINICPM5,
    FAMILY_SEED_CODER,
    FAMILY_BLOOM,
    FAMILY_VIKING,
    FAMILY_UFAKZEKA,
    FAMILY_LAGUNA,
    FAMILY_EXAONE_MOE,
    FAMILY_SPARK,
    FAMILY_YOUTU,
};

/* Sources: the tokenizer.json of the models; "default" is llama.cpp's for files that name none;
 * from FAMILY_MINICPM5 on the patterns that llama.cpp has (src/llama-vocab.cpp). */
static const struct family families[] = {
    [FAMILY_DEFAULT] = {{"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false},
    [FAMILY_GPT2] = {{GPT2}, false, false},
    [FAMILY_DIGITS] = {{"\\p{N}", GPT2}, false, false},
    [FAMILY_FALCON] = {{"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}, false, false},
    [FAMILY_LLAMA3] = {{LLAMA3_LIKE(WORD, "\\p{N}{1,3}")}, true, true},
    [FAMILY_LLAMA3_PLAIN] = {{LLAMA3_LIKE(WORD, "\\p{N}{1,3}")}, false, false},
    [FAMILY_LLAMA3_WHOLE] = {{LLAMA3_LIKE(WORD, "\\p{N}{1,3}")}, true, false},
    [FAMILY_QWEN2] = {{LLAMA3_LIKE(WORD, "\\p{N}")}, false, false},
    [FAMILY_QWEN35] = {{CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WHITE
                                    "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" S "*[\\r\\n]+|" TAIL},
                       false,
                       false},
    [FAMILY_TEKKEN] = {{CASED_WORDS("") "|\\p{N}|" AFTER_CASED}, true, true},
    [FAMILY_GPT4O] = {{CASED_WORDS("(?:" CONTRACTION ")?") "|\\p{N}{1,3}|" AFTER_CASED},
                      false,
                      false},
    [FAMILY_DEEPSEEK_LLM] = {{"[\\r\\n]", S "?[" DEEPSEEK_CASED "]+",
                              S "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}"
                                "\\x{3000}-\\x{3002}]+",
                              S "+\\z", DEEPSEEK_CJK, "\\p{N}+"},
                             false,
                             false},
    [FAMILY_DEEPSEEK_CODER] = {{"[\\r\\n]", S "?\\p{L}+", S "?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"},
                               false,
                               false},
    [FAMILY_DEEPSEEK3] = {{"\\p{N}{1,3}", DEEPSEEK3_CJK,
                           "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                           "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" S "*[\\r\\n]+|" TAIL},
                          false,
                          false},
    [FAMILY_MINICPM5] = {{"\\p{N}{1,3}", LLAMA3_LIKE(WORD, "\\p{N}+")}, true, false},
    [FAMILY_SEED_CODER] = {{CONTRACTION "|" WORD "|\\p{N}|" OTHER "|" S "*[\\r\\n]+|" TAIL},
                           false,
                           false},
    [FAMILY_BLOOM] = {{BLOOM}, false, false},
    [FAMILY_VIKING] = {{BLOOM, "\\p{N}"}, false, false},
    [FAMILY_UFAKZEKA] = {{WORD "|\\p{N}|" AFTER_WORD}, false, false},
    [FAMILY_LAGUNA] = {{"[^\\n]+|\\n+", LLAMA3_LIKE(WORD, "\\p{N}")}, false, false},
    /* words with one space between them are one pre-token */
    [FAMILY_EXAONE_MOE] = {{CONTRACTION
                            "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}\\p{M}*+(?: ?\\p{L}\\p{M}*+)*+"
                            "|\\p{N}|" OTHER "[\\r\\n]?|" S "*[\\r\\n]+|" TAIL},
                           false,
                           false},
    [FAMILY_SPARK] = {{"\\p{N}", DEEPSEEK3_CJK,
                       "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                       "| ?[\\p{P}\\p{S}]+|[\\r\\n]|" TAIL},
                      false,
                      false},
    [FAMILY_YOUTU] = {{YOUTU_SCRIPTS, CASED_WORDS("(?:" CONTRACTION ")?") "|\\p{N}|" AFTER_CASED},
                      true,
                      false},
};

static const struct {
    const char *name;
    int family;
} names[] = {
    {"default", FAMILY_DEFAULT},
    {"gpt-2", FAMILY_GPT2},
    {"gpt2", FAMILY_GPT2},
    {"phi-2", FAMILY_GPT2},
    {"mpt", FAMILY_GPT2},
    {"olmo", FAMILY_GPT2},
    {"jais", FAMILY_GPT2},
    {"roberta-bpe", FAMILY_GPT2},
    {"gigachat", FAMILY_GPT2},
    {"exaone4", FAMILY_GPT2},
    {"a.x-4.0", FAMILY_GPT2},
    {"mellum", FAMILY_GPT2},
    {"trillion", FAMILY_GPT2},
    {"granite-docling", FAMILY_GPT2},
    {"starcoder", FAMILY_DIGITS},
    {"refact", FAMILY_DIGITS},
    {"command-r", FAMILY_DIGITS},
    {"smollm", FAMILY_DIGITS},
    {"codeshell", FAMILY_DIGITS},
    {"exaone", FAMILY_DIGITS},
    {"minerva-7b", FAMILY_DIGITS},
    {"mellum2", FAMILY_DIGITS},
    {"falcon", FAMILY_FALCON},
    {"llama-bpe", FAMILY_LLAMA3},
    {"llama3", FAMILY_LLAMA3},
    {"llama-v3", FAMILY_LLAMA3},
    {"falcon3", FAMILY_LLAMA3},
    {"falcon-h1", FAMILY_LLAMA3},
    {"pixtral", FAMILY_LLAMA3},
    {"midm-2.0", FAMILY_LLAMA3},
    {"lfm2", FAMILY_LLAMA3},
    {"dbrx", FAMILY_LLAMA3_PLAIN},
    {"smaug-bpe", FAMILY_LLAMA3_PLAIN},
    {"chatglm-bpe", FAMILY_LLAMA3_PLAIN},
    {"glm4", FAMILY_LLAMA3_WHOLE},
    {"glm5", FAMILY_LLAMA3_WHOLE},
    {"qwen2", FAMILY_QWEN2},
    {"stablelm2", FAMILY_QWEN2},
    {"deepseek-r1-qwen", FAMILY_QWEN2},
    {"megrez", FAMILY_QWEN2},
    {"hunyuan", FAMILY_QWEN2},
    {"grok-2", FAMILY_QWEN2},
    {"kormo", FAMILY_QWEN2},
    {"f2llmv2", FAMILY_QWEN2},
    {"solar-open", FAMILY_QWEN2},
    {"bailingmoe", FAMILY_QWEN2},
    {"bailingmoe2", FAMILY_QWEN2},
    {"llada-moe", FAMILY_QWEN2},
    {"qwen35", FAMILY_QWEN35},
    {"tekken", FAMILY_TEKKEN},
    {"gpt-4o", FAMILY_GPT4O},
    {"llama4", FAMILY_GPT4O},
    {"kanana2", FAMILY_GPT4O},
    {"talkie", FAMILY_GPT4O},
    {"minimax-m2", FAMILY_GPT4O},
    {"deepseek-llm", FAMILY_DEEPSEEK_LLM},
    {"deepseek-coder", FAMILY_DEEPSEEK_CODER},
    {"deepseek-v3", FAMILY_DEEPSEEK3},
    {"hunyuan-dense", FAMILY_DEEPSEEK3},
    {"joyai-llm", FAMILY_DEEPSEEK3},
    {"hy_v4", FAMILY_DEEPSEEK3},
    {"minicpm5", FAMILY_MINICPM5},
    {"seed-coder", FAMILY_SEED_CODER},
    {"bloom", FAMILY_BLOOM},
    {"poro-chat", FAMILY_BLOOM},
    {"gpt3-finnish", FAMILY_BLOOM},
    {"viking", FAMILY_VIKING},
    {"ufakzeka", FAMILY_UFAKZEKA},
    {"laguna", FAMILY_LAGUNA},
    {"exaone-moe", FAMILY_EXAONE_MOE},
    {"spark2_5", FAMILY_SPARK},
    {"youtu", FAMILY_YOUTU},
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
    char word[48] = "";
    for (uint64_t i = 0; i < name.length && i < sizeof word - 1; i++)
        word[i] = name.data[i] >= ' ' && name.data[i] <= '~' ? name.data[i] : '?';
    const struct family *family = name.length ? find_family(name) : &families[FAMILY_DEFAULT];
    if (!family)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "the pre-tokenizer '%s' (tokenizer.ggml.pre) is unknown: it would have to "
                         "be guessed how the model cuts its text",
                         word);
    struct pre_tokenizer *pre = calloc(1, sizeof *pre);
    if (!pre)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the pre-tokenizer");
    pre->family = family;
    int rc = compile(pre, why);
    if (rc) {
        pre_tokenizer_close(pre);
        return rc;
    }
    if (!name.length)
        hill_fail(why, 0,
                  "the model names no pre-tokenizer (tokenizer.ggml.pre), as old files do: the "
                  "default one is used");
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
    if (!GROW(cuts->ends, cuts->capacity, cuts->count + 1))
        return HILL_E_NOMEM;
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
