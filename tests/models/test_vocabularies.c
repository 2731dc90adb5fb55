/*
 * tests/models/test_vocabularies.c - the tokenisations that llama.cpp ships with its vocabularies.
 *
 * $HILL_VOCABS is a folder with ggml-vocab-NAME.gguf, NAME.gguf.inp (texts) and NAME.gguf.out (ids
 * of the models' own tokenizers), as in llama.cpp's models/. Every one of a kind that is supported
 * must be exact, of the others each is refused by name; and every vocabulary gives random text and
 * random bytes back. Skips without the folder.
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/model/tokenizer_checks.h"

#define SEPARATOR "\n__ggml_vocab_test__\n"

enum { ROUND_TRIPS = 400, TEXT_BYTES = 300 };

/* Kinds that are refused, by the words of the refusal. */
static const struct {
    const char *name, *word;
} refused[] = {{"bert-bge", "'bert'"}, {"nomic-bert-moe", "'t5'"}};

/* These must be exact when they are there: a table that lost a name would pass unseen otherwise. */
static const char *const exact[] = {"command-r", "deepseek-coder", "deepseek-llm", "falcon",
                                    "gemma-4",   "gpt-2",          "llama-bpe",    "llama-spm",
                                    "mpt",       "phi-3",          "qwen2",        "qwen35",
                                    "refact",    "starcoder"};

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, file) < (1 << 20) - 1);
    fclose(file);
    return text;
}

/* The name between "ggml-vocab-" and ".gguf". */
static void name_of(const char *path, char out[64])
{
    const char *start = strstr(path, "ggml-vocab-") + strlen("ggml-vocab-");
    snprintf(out, 64, "%.*s", (int)(strstr(start, ".gguf") - start), start);
}

static int open_file(const char *path, struct tokenizer **out, struct hill_why *why)
{
    struct gguf_file *file;
    int code = gguf_open(&file, path, why);
    if (code)
        return code;
    code = tokenizer_open(out, file, why);
    gguf_close(file);
    return code;
}

/* The texts of .inp against the lines of .out; how many, 0 when the files are not there. */
static unsigned check_texts(const struct tokenizer *t, const char *path, const char *name)
{
    char inp[512], out[512];
    snprintf(inp, sizeof inp, "%s.inp", path);
    snprintf(out, sizeof out, "%s.out", path);
    char *texts = read_text(inp), *lines = read_text(out), *text = texts, *line = lines, *end;
    unsigned checked = 0;
    while (texts && lines && (end = strstr(text, SEPARATOR))) {
        uint32_t *ids;
        uint64_t count, i = 0;
        char *line_end = strchr(line, '\n');
        assert_non_null(line_end);
        *line_end = 0;
        assert_int_equal(tokenizer_encode(t, text, (uint64_t)(end - text), false, &ids, &count), 0);
        for (char *rest = line;; i++) {
            char *next;
            unsigned long wanted = strtoul(rest, &next, 10);
            if (next == rest)
                break;
            if (i >= count || ids[i] != wanted)
                fail_msg("%s: text %u '%.*s': token %lu is %d, not %lu", name, checked,
                         (int)(end - text), text, (unsigned long)i, i < count ? (int)ids[i] : -1,
                         wanted);
            rest = next;
        }
        if (i != count)
            fail_msg("%s: text %u: %lu tokens, not %lu", name, checked, (unsigned long)count,
                     (unsigned long)i);
        free(ids);
        checked++;
        text = end + strlen(SEPARATOR);
        line = line_end + 1;
    }
    free(texts);
    free(lines);
    return checked;
}

/* Random UTF-8 of all planes and classes that pre-tokenizers tell apart, or plain bytes. */
static uint64_t random_bytes(uint64_t *state, char *out)
{
    static const uint32_t ranges[][2] = {
        {' ', '~'},       {' ', ' '},         {'\n', '\r'},       {0xA0, 0x24F},
        {0x300, 0x36F},   {0x370, 0x5FF},     {0x900, 0x97F},     {0xE00, 0xE7F},
        {0x2000, 0x206F}, {0x3040, 0x30FF},   {0x4E00, 0x9FFF},   {0xAC00, 0xD7A3},
        {0xFF00, 0xFFEF}, {0x1F300, 0x1F6FF}, {0x20000, 0x2A6DF}, {0x10000, 0x10FFFF}};
    uint64_t used = 0, length = next_random(state) % TEXT_BYTES;
    bool bytes = next_random(state) % 4 == 0;
    while (used + 4 < length) {
        const uint32_t *range = ranges[next_random(state) % (sizeof ranges / sizeof ranges[0])];
        uint32_t c = range[0] + (uint32_t)(next_random(state) % (range[1] - range[0] + 1));
        if (bytes) {
            out[used++] = (char)next_random(state);
        } else if (c < 0x80) {
            out[used++] = (char)c;
        } else {
            unsigned more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
            out[used++] = (char)((0xFF00 >> (more + 1) & 0xFF) | c >> 6 * more);
            while (more--)
                out[used++] = (char)(0x80 | (c >> 6 * more & 0x3F));
        }
    }
    return used;
}

/* Bytes that are refused or become the unknown token: some vocabularies (DeepSeek's, Falcon's) lack
 * bytes that their training text never had. */
static void find_missing_bytes(const struct tokenizer *t, bool missing[256])
{
    for (int byte = 0; byte < 256; byte++) {
        char text = (char)byte;
        uint32_t *ids;
        uint64_t count;
        int code = tokenizer_encode(t, &text, 1, false, &ids, &count);
        assert_true(code == 0 || code == HILL_E_UNSUPPORTED);
        missing[byte] = code != 0 || (count == 1 && tokenizer_piece(t, ids[0]).length == 0);
        free(ids);
    }
}

static bool has_missing(const bool missing[256], const char *text, uint64_t length)
{
    for (uint64_t i = 0; i < length; i++)
        if (missing[(uint8_t)text[i]])
            return true;
    return false;
}

/* decode(encode(x)) = x, but for the space that a "llama" vocabulary puts before the text. */
static void check_round_trips(const struct tokenizer *t, const char *name, uint64_t *random)
{
    char text[TEXT_BYTES];
    bool missing[256];
    find_missing_bytes(t, missing);
    for (int round = 0; round < ROUND_TRIPS; round++) {
        uint64_t length = random_bytes(random, text), count, at = 0;
        uint32_t *ids;
        int code = tokenizer_encode(t, text, length, false, &ids, &count);
        bool lossy = has_missing(missing, text, length);
        assert_true(code == 0 || (lossy && code == HILL_E_UNSUPPORTED));
        /* U+2581 is how some vocabularies spell a space */
        if (lossy || memmem(text, length, "\xE2\x96\x81", 3)) {
            free(ids);
            continue;
        }
        for (uint64_t i = 0; i < count; i++) {
            struct gguf_string piece = tokenizer_piece(t, ids[i]);
            if (i == 0 && tokenizer_adds_space_prefix(t)) {
                assert_true(piece.length > 0 && piece.data[0] == ' ');
                piece.data++;
                piece.length--;
            }
            if (piece.length > length - at || memcmp(piece.data, text + at, piece.length) != 0)
                fail_msg("%s: round %d: token %lu (%u) is not what stands at byte %lu", name, round,
                         (unsigned long)i, ids[i], (unsigned long)at);
            at += piece.length;
        }
        if (at != length)
            fail_msg("%s: round %d: %lu of %lu bytes came back", name, round, (unsigned long)at,
                     (unsigned long)length);
        free(ids);
    }
}

static void every_vocabulary_is_exact_or_refused(void **state)
{
    char pattern[512], done[4096] = " ";
    glob_t found;
    uint64_t random = test_seed();
    (void)state;
    snprintf(pattern, sizeof pattern, "%s/ggml-vocab-*.gguf", getenv("HILL_VOCABS"));
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct hill_why why = {""};
        struct tokenizer *t;
        char name[64];
        const char *word = NULL;
        name_of(found.gl_pathv[i], name);
        for (unsigned r = 0; r < sizeof refused / sizeof refused[0]; r++)
            if (strcmp(refused[r].name, name) == 0)
                word = refused[r].word;
        int code = open_file(found.gl_pathv[i], &t, &why);
        if (word) {
            assert_int_equal(code, HILL_E_UNSUPPORTED);
            assert_non_null(strstr(why.text, word));
            print_message("%s: refused (%s)\n", name, why.text);
            continue;
        }
        if (code)
            fail_msg("%s: %s", name, why.text);
        unsigned texts = check_texts(t, found.gl_pathv[i], name);
        check_round_trips(t, name, &random);
        print_message("%s: %u texts exact, %d round trips\n", name, texts, ROUND_TRIPS);
        if (texts)
            snprintf(done + strlen(done), sizeof done - strlen(done), "%s ", name);
        tokenizer_close(t);
    }
    globfree(&found);
    for (unsigned i = 0; i < sizeof exact / sizeof exact[0]; i++) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, " %s ", exact[i]);
        if (!strstr(done, wanted))
            fail_msg("%s was not checked: is it in the folder?", exact[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_vocabulary_is_exact_or_refused)};
    const char *folder = getenv("HILL_VOCABS");
    if (!folder || !*folder) {
        puts("skipped: HILL_VOCABS names no folder of vocabularies (llama.cpp's models/)");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
