/* tools/eval/subject.c - see subject.h. */
#include "tools/eval/subject.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "model/hparams.h"

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

static char *token_text(const struct gguf_file *file, uint32_t token)
{
    struct gguf_string text = gguf_string_at(file, "tokenizer.ggml.tokens", token);
    return strndup(text.data, text.length);
}

static int take_metadata(struct subject *s, const struct gguf_file *file, struct hill_why *why)
{
    struct gguf_string text;
    char key[128];
    uint64_t trained;
    if (gguf_get_string(file, "general.architecture", &text) &&
        snprintf(key, sizeof key, "%.*s.context_length", (int)(text.length % 64), text.data) > 0 &&
        gguf_get_u64(file, key, &trained) && trained <= UINT32_MAX)
        s->trained_tokens = (uint32_t)trained;
    if (gguf_get_string(file, "tokenizer.chat_template", &text))
        s->chat = chat_format_find(text.data, text.length);
    s->bos = token_text(file, tokenizer_bos(s->tokenizer));
    s->eos = token_text(file, tokenizer_eos(s->tokenizer));
    struct model_hparams shape;
    if (model_hparams_read(&shape, file, why) == 0) /* the pipeline says what is wrong with it */
        s->entry_bytes = 4ull * shape.n_layers * shape.n_kv_heads * shape.head_dim; /* FP16 */
    return s->bos && s->eos ? 0 : hill_fail(why, HILL_E_NOMEM, "out of memory for the model");
}

int subject_open(struct subject *s, const char *path, struct hill_why *why)
{
    struct gguf_file *file = NULL;
    memset(s, 0, sizeof *s);
    if ((size_t)snprintf(s->path, sizeof s->path, "%s", path) >= sizeof s->path)
        return hill_fail(why, HILL_E_INVALID, "the model's path is too long");
    int code = options_check_file(path, why);
    if (code == 0)
        code = gguf_open(&file, path, why);
    if (code == 0)
        code = tokenizer_open(&s->tokenizer, file, why);
    if (code == 0)
        code = take_metadata(s, file, why);
    gguf_close(file);
    return code ? code : take_fingerprint(s, why);
}

void subject_close(struct subject *s)
{
    tokenizer_close(s->tokenizer);
    free(s->bos);
    free(s->eos);
    s->tokenizer = NULL;
    s->bos = s->eos = NULL;
}

static int encode(const struct subject *s, const char *text, size_t bytes, bool special,
                  uint32_t **tokens, uint32_t *count, struct hill_why *why)
{
    uint64_t n = 0;
    int code = tokenizer_encode(s->tokenizer, text, bytes, special, tokens, &n);
    if (code)
        return hill_fail(why, code, "cannot tokenise: %s", hill_strerror(code));
    *count = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    return 0;
}

int subject_count(const struct subject *s, const char *text, size_t bytes, bool special,
                  uint32_t *count, struct hill_why *why)
{
    uint32_t *tokens = NULL;
    int code = encode(s, text, bytes, special, &tokens, count, why);
    free(tokens);
    return code;
}

int subject_encode(const struct subject *s, const char *text, size_t bytes, uint32_t **tokens,
                   uint32_t *count, struct hill_why *why)
{
    *tokens = NULL;
    return encode(s, text, bytes, true, tokens, count, why);
}

int subject_chat(const struct subject *s, const char *text, size_t bytes, uint32_t **tokens,
                 uint32_t *count, struct hill_why *why)
{
    /* a template that tells the date tells this one: a question is the same on every day */
    const struct chat_vocabulary vocabulary = {s->bos, s->eos, 0};
    const struct chat_message message = {CHAT_USER, text, bytes};
    struct chat_prompt prompt = {0};
    uint64_t n = 0;
    *tokens = NULL;
    if (!s->chat)
        return subject_encode(s, text, bytes, tokens, count, why);
    int code = chat_render(&prompt, s->chat, &vocabulary, &message, 1, why);
    if (code)
        return code;
    code = tokenizer_encode_pieces(s->tokenizer, prompt.pieces, prompt.n_pieces, true, tokens, &n);
    chat_prompt_finish(&prompt);
    if (code)
        return hill_fail(why, code, "cannot tokenise: %s", hill_strerror(code));
    *count = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    return 0;
}
