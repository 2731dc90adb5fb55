/* tools/mkmodel/encode.c - see encode.h. Files are little endian, and so are the machines this runs
 * on.
 */
#include "tools/mkmodel/encode.h"

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "tools/mkmodel/encode_blocks.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "values are written as they lie in memory");

#define Q8_0_ITEMS 32u
#define Q8_0_BYTES (2u + Q8_0_ITEMS) /* an F16 scale and the quanta */

static const struct {
    const char *name;
    enum gguf_tensor_type type;
} types[] = {
    {"f32", GGUF_TENSOR_F32},   {"f16", GGUF_TENSOR_F16},       {"bf16", GGUF_TENSOR_BF16},
    {"q4_0", GGUF_TENSOR_Q4_0}, {"q4_1", GGUF_TENSOR_Q4_1},     {"q5_0", GGUF_TENSOR_Q5_0},
    {"q5_1", GGUF_TENSOR_Q5_1}, {"q8_0", GGUF_TENSOR_Q8_0},     {"q2_k", GGUF_TENSOR_Q2_K},
    {"q3_k", GGUF_TENSOR_Q3_K}, {"q4_k", GGUF_TENSOR_Q4_K},     {"q5_k", GGUF_TENSOR_Q5_K},
    {"q6_k", GGUF_TENSOR_Q6_K}, {"iq4_nl", GGUF_TENSOR_IQ4_NL}, {"iq4_xs", GGUF_TENSOR_IQ4_XS}};

enum gguf_tensor_type encode_type(const char *name)
{
    unsigned i = 0;
    while (strcmp(types[i].name, name) != 0) /* the option's choices are these */
        i++;
    return types[i].type;
}

const char *encode_type_name(enum gguf_tensor_type type)
{
    unsigned i = 0;
    while (types[i].type != type)
        i++;
    return types[i].name;
}

bool encode_is_exact(enum gguf_tensor_type type)
{
    return !block_format(type)->bits || type == GGUF_TENSOR_Q8_0;
}

/* One block: scale = max|x| / 127, quanta rounded to nearest. */
static void encode_q8_0(const float *values, uint8_t *out)
{
    float largest = 0;
    for (unsigned i = 0; i < Q8_0_ITEMS; i++)
        largest = fmaxf(largest, fabsf(values[i]));
    const float scale = largest / 127;
    const uint16_t stored = half_from_float(scale);
    memcpy(out, &stored, sizeof stored);
    for (unsigned i = 0; i < Q8_0_ITEMS; i++) {
        const int8_t quantum = scale > 0 ? (int8_t)lrintf(values[i] / scale) : 0;
        memcpy(out + 2 + i, &quantum, 1);
    }
}

size_t encode_row(enum gguf_tensor_type type, const float *values, size_t count, uint8_t *out)
{
    const struct block_format *format = block_format(type);
    const size_t blocks = count / format->items;
    if (type == GGUF_TENSOR_F32)
        memcpy(out, values, count * sizeof *values);
    for (size_t i = 0; i < blocks && type != GGUF_TENSOR_F32; i++) {
        const float *from = values + i * format->items;
        uint8_t *to = out + i * format->bytes;
        if (type == GGUF_TENSOR_Q8_0) {
            encode_q8_0(from, to);
        } else if (format->bits) {
            encode_block(format, from, to);
        } else {
            const uint16_t item =
                type == GGUF_TENSOR_F16 ? half_from_float(*from) : bf16_from_float(*from);
            memcpy(to, &item, sizeof item);
        }
    }
    return blocks * format->bytes;
}
