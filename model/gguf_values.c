/*
 * model/gguf_values.c - typed access to what gguf.c has checked: metadata values and tensor rows.
 * See gguf.h. Everything in the file may stand unaligned, hence memcpy throughout.
 */
#include "model/gguf.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LOAD(type, from)                                                                           \
    __extension__({                                                                                \
        type loaded_;                                                                              \
        memcpy(&loaded_, (from), sizeof loaded_);                                                  \
        loaded_;                                                                                   \
    })

bool gguf_get_u64(const struct gguf_file *file, const char *key, uint64_t *out)
{
    const struct gguf_value *value = gguf_find(file, key);
    uint64_t bits;
    bool negative;
    if (!value || !gguf_integer(value, &bits, &negative) || negative)
        return false;
    *out = bits;
    return true;
}

bool gguf_get_f64(const struct gguf_file *file, const char *key, double *out)
{
    const struct gguf_value *value = gguf_find(file, key);
    uint64_t bits;
    bool negative;
    if (!value)
        return false;
    if (value->type == GGUF_F32)
        *out = LOAD(float, value->data);
    else if (value->type == GGUF_F64)
        *out = LOAD(double, value->data);
    else if (gguf_integer(value, &bits, &negative))
        *out = negative ? (double)(int64_t)bits : (double)bits;
    else
        return false;
    return true;
}

bool gguf_get_bool(const struct gguf_file *file, const char *key, bool *out)
{
    const struct gguf_value *value = gguf_find(file, key);
    if (!value || value->type != GGUF_BOOL)
        return false;
    *out = *value->data != 0;
    return true;
}

bool gguf_get_string(const struct gguf_file *file, const char *key, struct gguf_string *out)
{
    const struct gguf_value *value = gguf_find(file, key);
    if (!value || value->type != GGUF_STRING)
        return false;
    out->length = LOAD(uint64_t, value->data);
    out->data = (const char *)value->data + sizeof(uint64_t);
    return true;
}

bool gguf_string_is(struct gguf_string string, const char *text)
{
    return string.length == strlen(text) && memcmp(string.data, text, string.length) == 0;
}

bool gguf_next_string(const struct gguf_value *array, const uint8_t **cursor, uint64_t *index,
                      struct gguf_string *out)
{
    if (array->type != GGUF_ARRAY || array->item_type != GGUF_STRING || *index >= array->count)
        return false;
    out->length = LOAD(uint64_t, *cursor);
    out->data = (const char *)*cursor + sizeof(uint64_t);
    *cursor += sizeof(uint64_t) + out->length;
    ++*index;
    return true;
}

struct gguf_string gguf_string_at(const struct gguf_file *file, const char *key, uint64_t wanted)
{
    const struct gguf_value *texts = gguf_find(file, key);
    const uint8_t *cursor = texts ? texts->data : NULL;
    struct gguf_string text = {"", 0}, next;
    uint64_t index = 0;
    while (texts && index <= wanted && gguf_next_string(texts, &cursor, &index, &next))
        text = next;
    return texts && index == wanted + 1 ? text : (struct gguf_string){"", 0};
}

/* ---- tensor rows ---------------------------------------------------------------------------- */

int gguf_tensor_rows_f32(const struct gguf_tensor *tensor, uint64_t first, uint64_t row_count,
                         float *out)
{
    uint64_t rows = tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
    if (first > rows || row_count > rows - first)
        return HILL_E_INVALID;
    uint64_t row_bytes = tensor->bytes / rows;
    block_floats(block_format(tensor->type), (const uint8_t *)tensor->data + first * row_bytes,
                 row_count * tensor->dims[0], out);
    return 0;
}

void gguf_forget_pages(const struct gguf_tensor *tensor)
{
    /* whole pages only: a page at either end may belong to a neighbour, which is read again then */
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)tensor->data / page * page;
    uintptr_t end = ((uintptr_t)tensor->data + tensor->bytes + page - 1) / page * page;
    madvise((void *)from, end - from, MADV_DONTNEED); /* a wish */
}
