/*
 * tests/mkmodel/small_gguf.c - a reader of GGUF files of its own: it shares no code with model/.
 * Interface: small_gguf.h.
 */
#include "tests/mkmodel/small_gguf.h"

static const uint8_t *small_take(struct small_gguf *g, size_t count)
{
    assert_true(count <= g->size - g->at);
    g->at += count;
    return g->bytes + g->at - count;
}

uint64_t small_number(struct small_gguf *g, size_t width)
{
    uint64_t value = 0;
    memcpy(&value, small_take(g, width), width);
    return value;
}

void small_text(struct small_gguf *g, char text[64])
{
    const uint64_t length = small_number(g, 8);
    assert_true(length < 64);
    memcpy(text, small_take(g, length), length);
    text[length] = '\0';
}

static void small_skip(struct small_gguf *g, uint32_t type)
{
    static const size_t width[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    char text[64];
    assert_true(type <= 12 && type != 9);
    if (type == 8)
        small_text(g, text);
    else
        small_take(g, width[type]);
}

void small_open(struct small_gguf *g, const char *path)
{
    *g = (struct small_gguf){0};
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    g->size = (size_t)ftell(file);
    rewind(file);
    g->bytes = malloc(g->size);
    assert_int_equal(fread(g->bytes, 1, g->size, file), g->size);
    fclose(file);
    assert_memory_equal(small_take(g, 4), "GGUF", 4);
    assert_int_equal(small_number(g, 4), 3);
    g->n_tensors = small_number(g, 8);
    g->n_values = small_number(g, 8);
    assert_true(g->n_values <= 64 && g->n_tensors < 10000);
    for (uint64_t i = 0; i < g->n_values; i++) {
        small_text(g, g->values[i].key);
        g->values[i].type = g->values[i].item_type = (uint32_t)small_number(g, 4);
        g->values[i].count = 1;
        if (g->values[i].type == 9) {
            g->values[i].item_type = (uint32_t)small_number(g, 4);
            g->values[i].count = small_number(g, 8);
        }
        g->values[i].at = g->at;
        for (uint64_t item = 0; item < g->values[i].count; item++)
            small_skip(g, g->values[i].item_type);
    }
    g->tensors = calloc(g->n_tensors, sizeof *g->tensors);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        struct small_tensor *t = &g->tensors[i];
        small_text(g, t->name);
        t->n_dims = (uint32_t)small_number(g, 4);
        assert_in_range(t->n_dims, 1, 2);
        t->dims[0] = t->dims[1] = 1;
        for (uint32_t d = 0; d < t->n_dims; d++)
            t->dims[d] = small_number(g, 8);
        t->type = (uint32_t)small_number(g, 4);
        t->offset = small_number(g, 8);
    }
    g->data = (g->at + 31) / 32 * 32;
}

void small_close(struct small_gguf *g)
{
    free(g->tensors);
    free(g->bytes);
}

unsigned small_find(const struct small_gguf *g, const char *key)
{
    for (unsigned i = 0; i < g->n_values; i++)
        if (strcmp(g->values[i].key, key) == 0)
            return i;
    fail_msg("no key %s", key);
    return 0;
}

uint32_t small_u32(const struct small_gguf *g, const char *key)
{
    const unsigned i = small_find(g, key);
    uint32_t value;
    assert_int_equal(g->values[i].type, 4);
    memcpy(&value, g->bytes + g->values[i].at, sizeof value);
    return value;
}

float small_f32(const struct small_gguf *g, const char *key)
{
    const unsigned i = small_find(g, key);
    float value;
    assert_int_equal(g->values[i].type, 6);
    memcpy(&value, g->bytes + g->values[i].at, sizeof value);
    return value;
}

const struct small_tensor *small_tensor(const struct small_gguf *g, const char *name)
{
    for (uint64_t i = 0; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            return &g->tensors[i];
    return NULL;
}

float small_half(const uint8_t *bytes)
{
    uint16_t bits;
    memcpy(&bits, bytes, sizeof bits);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float magnitude = exponent == 0    ? ldexpf((float)fraction, -24)
                            : exponent == 31 ? (fraction ? NAN : INFINITY)
                                             : ldexpf((float)(fraction + 1024), exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

size_t small_tensor_bytes(const struct small_tensor *t)
{
    const size_t count = t->dims[0] * t->dims[1];
    return t->type == 0 ? 4 * count : t->type == 8 ? count / 32 * 34 : 2 * count;
}

/* Item index of a tensor as a float. */
static float small_item(const struct small_gguf *g, const struct small_tensor *t, uint64_t index)
{
    const uint8_t *base = g->bytes + g->data + t->offset;
    float value;
    uint32_t bits = 0;
    switch (t->type) {
    case 0:
        memcpy(&value, base + 4 * index, 4);
        return value;
    case 1:
        return small_half(base + 2 * index);
    case 8:
        base += index / 32 * 34;
        return small_half(base) * (float)(int8_t)base[2 + index % 32];
    case 30:
        memcpy((uint8_t *)&bits + 2, base + 2 * index, 2);
        memcpy(&value, &bits, 4);
        return value;
    }
    fail_msg("tensor type %u", t->type);
    return 0;
}

float *small_load(const struct small_gguf *g, const char *name)
{
    const struct small_tensor *t = small_tensor(g, name);
    if (!t)
        fail_msg("no tensor %s", name);
    assert_int_equal(t->offset % 32, 0);
    assert_true(g->data + t->offset + small_tensor_bytes(t) <= g->size);
    const uint64_t count = t->dims[0] * t->dims[1];
    float *items = malloc(count * sizeof *items);
    for (uint64_t i = 0; i < count; i++)
        items[i] = small_item(g, t, i);
    return items;
}
