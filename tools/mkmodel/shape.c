/* tools/mkmodel/shape.c - see shape.h. */
#include "tools/mkmodel/shape.h"

#include <stdlib.h>
#include <string.h>

#include "tools/mkmodel/encode.h"

bool shape_token_text(const struct mkmodel_shape *shape, uint32_t token, char text[32])
{
    const char *at = token < SHAPE_MIN_VOCAB ? NULL : shape->tokens;
    for (uint32_t i = SHAPE_MIN_VOCAB; at && i < token; i++, at += at != NULL)
        at = strchr(at, ',');
    size_t bytes = at ? strcspn(at, ",") : 0;
    if (!bytes || bytes >= 32)
        return false;
    memcpy(text, at, bytes);
    text[bytes] = '\0';
    return true;
}

struct mkmodel_shape shape_default(bool random)
{
    if (random)
        return (struct mkmodel_shape){.random = true,
                                      .n_layers = 4,
                                      .n_heads = 8,
                                      .n_kv_heads = 2,
                                      .n_embd = 128,
                                      .head_dim = 32,
                                      .n_ff = 256,
                                      .n_vocab = 512,
                                      .n_ctx = 131072,
                                      .type = GGUF_TENSOR_F16,
                                      .rope_base = 10000,
                                      .seed = 1};
    return (struct mkmodel_shape){.n_layers = 2,
                                  .n_heads = 8,
                                  .n_kv_heads = 1,
                                  .n_embd = 256,
                                  .head_dim = 256,
                                  .n_ff = 32,
                                  .n_vocab = SHAPE_MIN_VOCAB,
                                  .n_ctx = 131072,
                                  .type = GGUF_TENSOR_F16,
                                  .rope_base = 1e15,
                                  .seed = 1};
}

int shape_check(const struct mkmodel_shape *shape, struct hill_why *why)
{
    if (shape->n_heads % shape->n_kv_heads != 0)
        return hill_fail(why, HILL_E_INVALID, "--heads %u is not a multiple of --kv-heads %u",
                         shape->n_heads, shape->n_kv_heads);
    if (shape->head_dim % 2 != 0)
        return hill_fail(why, HILL_E_INVALID,
                         "--head-dim %u is odd, but rotary embedding turns pairs", shape->head_dim);
    if (shape->n_vocab < SHAPE_MIN_VOCAB)
        return hill_fail(why, HILL_E_INVALID,
                         "--vocab %u is below %u (bytes, BOS, EOS and a merge)", shape->n_vocab,
                         SHAPE_MIN_VOCAB);
    if (!shape->random && !encode_is_exact(shape->type))
        return hill_fail(why, HILL_E_INVALID,
                         "--type %s needs --random: the wired weights are not exact in it",
                         encode_type_name(shape->type));
    const uint32_t block = block_format(shape->type)->items;
    const struct {
        const char *name;
        uint64_t length;
    } rows[] = {{"--width", shape->n_embd},
                {"--ffn", shape->n_ff},
                {"--heads times --head-dim", (uint64_t)shape->n_heads * shape->head_dim}};
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].length % block != 0)
            return hill_fail(why, HILL_E_INVALID,
                             "%s is %llu, but --type %s needs a multiple of %u", rows[i].name,
                             (unsigned long long)rows[i].length, encode_type_name(shape->type),
                             block);
    return 0;
}

bool role_is_norm(enum tensor_role role)
{
    return role == ROLE_OUTPUT_NORM || role == ROLE_ATTN_NORM || role == ROLE_FFN_NORM;
}

void shape_of_role(const struct mkmodel_shape *shape, enum tensor_role role, uint64_t *row_length,
                   uint64_t *rows)
{
    const uint64_t n = shape->n_embd, ff = shape->n_ff;
    const uint64_t q = (uint64_t)shape->n_heads * shape->head_dim;
    const uint64_t kv = (uint64_t)shape->n_kv_heads * shape->head_dim;
    const uint64_t shapes[][2] = {
        [ROLE_TOKEN_EMBD] = {n, shape->n_vocab},
        [ROLE_OUTPUT_NORM] = {n, 1},
        [ROLE_OUTPUT] = {n, shape->n_vocab},
        [ROLE_ATTN_NORM] = {n, 1},
        [ROLE_ATTN_Q] = {n, q},
        [ROLE_ATTN_K] = {n, kv},
        [ROLE_ATTN_V] = {n, kv},
        [ROLE_ATTN_OUTPUT] = {q, n},
        [ROLE_FFN_NORM] = {n, 1},
        [ROLE_FFN_GATE] = {n, ff},
        [ROLE_FFN_UP] = {n, ff},
        [ROLE_FFN_DOWN] = {ff, n},
    };
    *row_length = shapes[role][0];
    *rows = shapes[role][1];
}

bool shape_next_number(const char **text, struct shape_number *out)
{
    const char *equals = strchr(*text, '=');
    size_t key_bytes = equals ? (size_t)(equals - *text) : 0;
    char *end;
    if (!key_bytes || key_bytes >= sizeof out->key || memchr(*text, ',', key_bytes))
        return false;
    size_t bytes = strcspn(equals + 1, ",");
    if (!bytes || strspn(equals + 1, "0123456789.") < bytes)
        return false;
    memcpy(out->key, *text, key_bytes);
    out->key[key_bytes] = '\0';
    out->real = memchr(equals + 1, '.', bytes) != NULL;
    out->value = strtod(equals + 1, &end);
    if (end != equals + 1 + bytes || (!out->real && out->value > UINT32_MAX))
        return false;
    *text = *end ? end + 1 : end;
    return true;
}
