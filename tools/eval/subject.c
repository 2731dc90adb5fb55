/* tools/eval/subject.c - see subject.h. */
#include "tools/eval/subject.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define SHARE_BYTES (1u << 20)

static int hash_share(FILE *file, XXH64_state_t *state, uint8_t *buffer)
{
    size_t got = fread(buffer, 1, SHARE_BYTES, file);
    if (ferror(file))
        return HILL_E_IO;
    XXH64_update(state, buffer, got);
    return 0;
}

static int take_fingerprint(struct subject *s, struct hill_why *why)
{
    FILE *file = fopen(s->path, "rb");
    uint8_t *buffer = malloc(SHARE_BYTES);
    XXH64_state_t *state = XXH64_createState();
    int64_t bytes = -1;
    int code = file && buffer && state ? 0 : HILL_E_NOMEM;
    if (!file)
        code = hill_from_errno(errno);
    if (code == 0) {
        XXH64_reset(state, 0);
        code = hash_share(file, state, buffer);
    }
    if (code == 0 && (fseek(file, 0, SEEK_END) || (bytes = ftell(file)) < 0))
        code = HILL_E_IO;
    if (code == 0 && bytes > (int64_t)SHARE_BYTES && fseek(file, -(long)SHARE_BYTES, SEEK_END))
        code = HILL_E_IO;
    if (code == 0)
        code = hash_share(file, state, buffer);
    if (code == 0) {
        XXH64_update(state, &bytes, sizeof bytes);
        s->fingerprint = XXH64_digest(state);
    }
    XXH64_freeState(state);
    free(buffer);
    if (file)
        fclose(file);
    return code ? hill_fail(why, code, "reading the model %s failed: %s", s->path,
                            hill_strerror(code))
                : 0;
}

int subject_open(struct subject *s, const char *path, struct hill_why *why)
{
    struct gguf_file *file = NULL;
    memset(s, 0, sizeof *s);
    if ((size_t)snprintf(s->path, sizeof s->path, "%s", path) >= sizeof s->path)
        return hill_fail(why, HILL_E_INVALID, "the model's path is too long");
    int code = gguf_open(&file, path, why);
    if (code == 0)
        code = tokenizer_open(&s->tokenizer, file, why);
    gguf_close(file);
    return code ? code : take_fingerprint(s, why);
}

void subject_close(struct subject *s)
{
    tokenizer_close(s->tokenizer);
    s->tokenizer = NULL;
}

int subject_count(const struct subject *s, const char *text, size_t bytes, bool special,
                  uint32_t *count, struct hill_why *why)
{
    uint32_t *tokens = NULL;
    uint64_t n = 0;
    int code = tokenizer_encode(s->tokenizer, text, bytes, special, &tokens, &n);
    free(tokens);
    if (code)
        return hill_fail(why, code, "cannot tokenise: %s", hill_strerror(code));
    *count = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    return 0;
}
