/*
 * gpu_worker/engine_internal.h - the engine's inside, shared by engine.c, weights.c, prefill.c and
 * decode.c only. Shapes are in engine.h and at the heads of the kernels.
 */
#ifndef HILL_GPU_WORKER_ENGINE_INTERNAL_H
#define HILL_GPU_WORKER_ENGINE_INTERNAL_H

#include "gpu_worker/engine.h"

/* Tiles of the kernels, passed to them as -D. */
#define TILE_ROWS       12u
#define ATTEND_SUBTILES 4u  /* row tiles of an attention work item */
#define ATTEND_KEYS     64u /* keys of an attention tile */
#define DECODE_TILE     128u
#define UPLOAD_BATCH    256u /* entries that one scatter launch takes */

enum kernel {
    /* once for each weight type */
    KERNEL_GEMM_STORE,
    KERNEL_GEMM_ADD,
    KERNEL_GEMM_SWIGLU,
    KERNEL_MATVEC_NORM,
    KERNEL_MATVEC_ADD,
    KERNEL_MATVEC_SWIGLU,
    KERNEL_MATVEC_QKV,
    KERNEL_TYPED_COUNT,
    /* once */
    KERNEL_NORM_ROWS = KERNEL_TYPED_COUNT,
    KERNEL_ROTATE_STORE,
    KERNEL_ATTEND_CHUNK,
    KERNEL_SCATTER_ENTRIES,
    KERNEL_ATTEND_LIST,
    KERNEL_ATTEND_COMBINE,
    KERNEL_COUNT
};

struct matrix { /* packed [panels][k][16] */
    cl_mem buffer;
    uint32_t k, panels; /* panels even; outputs beyond the real ones are 0 */
    bool f16;
};

struct layer_weights {
    cl_mem attn_norm, ffn_norm;               /* [n_embd], padded with zeros */
    struct matrix qkv, output, gate_up, down; /* gate_up: panels alternate */
};

struct device_buffer { /* grows, never shrinks; zeroed when made */
    cl_mem mem;
    uint64_t bytes;
};

struct engine {
    struct cldevice device; /* a copy; the context is the caller's */
    const struct gguf_file *file;
    const struct gguf_tensor *embedding;
    struct model_hparams hp;
    uint32_t entry_bytes, hidden_stride, qkv_stride,
        act_stride;                     /* strides in floats, multiples of 32 */
    cl_command_queue queue, read_queue; /* kernels; prefill's entries */
    cl_program programs[3];             /* F32 weights, F16 weights, attention */
    cl_kernel kernels[2][KERNEL_COUNT]; /* [weights are F16]; untyped ones in [0] */

    struct layer_weights *layers; /* [n_layers] */
    cl_mem output_norm;
    struct matrix output;
    uint64_t weight_bytes, kv_bytes;
    double *frequencies; /* [rope_dims / 2]: turns (radians) per position */

    uint32_t batch_tokens, gpu_slots;
    struct device_buffer
        *slots; /* [n_layers]: [gpu_slots + 1][entry]; the last is the new token's */

    /* prefill */
    struct device_buffer hidden, turns, kt,
        v;                           /* [N][hidden_stride], [N][rope_dims], see attention.cl */
    struct device_buffer entries[2]; /* [batch][entry], of the unit u in u % 2 */
    struct device_buffer normed, qkv, q, attended, activated; /* of a chunk */
    cl_event stored[2];                                       /* entries[u % 2] are computed */
    uint32_t n_tokens, n_chunks, panels, units_queued, units_read;

    /* decode */
    struct device_buffer x, turn, step_q, step_attended, step_activated, partial, items, logits;
    struct device_buffer upload, upload_slots;
    uint32_t position, next_layer;
    float *host_row; /* [max(hidden_stride, rope_dims) * HOST_ROWS] */
};

#define HOST_ROWS           256u /* rows converted at a time */
#define KERNEL_HEAD_DIM_MAX 512u /* attention keeps a head in private memory */

struct kernel_arg {
    size_t bytes;
    const void *value;
};
#define ARG_BUFFER(b)                                                                              \
    {                                                                                              \
        sizeof(cl_mem), &(b)                                                                       \
    }
#define ARG_U32(x)                                                                                 \
    {                                                                                              \
        sizeof(uint32_t), &(uint32_t)                                                              \
        {                                                                                          \
            x                                                                                      \
        }                                                                                          \
    }
#define ARG_F32(x)                                                                                 \
    {                                                                                              \
        sizeof(float), &(float)                                                                    \
        {                                                                                          \
            x                                                                                      \
        }                                                                                          \
    }

/* A launch of size[0] x size[1] work items, index 0 starting at offset. */
struct launch {
    cl_kernel kernel;
    const char *name;
    size_t offset, size[2];
    cl_event *event; /* NULL: none wanted */
};
int engine_launch(struct engine *e, const struct launch *launch, const struct kernel_arg *args,
                  uint32_t n_args, struct hill_why *why);
#define LAUNCH(e, kernel_id, f16, start, size0, size1, event_out, why, ...)                        \
    engine_launch(                                                                                 \
        (e),                                                                                       \
        &(struct launch){(e)->kernels[(kernel_id) < KERNEL_TYPED_COUNT && (f16)][kernel_id],       \
                         #kernel_id,                                                               \
                         (start),                                                                  \
                         {(size0), (size1)},                                                       \
                         (event_out)},                                                             \
        (const struct kernel_arg[]){__VA_ARGS__},                                                  \
        sizeof((const struct kernel_arg[]){__VA_ARGS__}) / sizeof(struct kernel_arg), (why))

/* Make the buffer at least bytes long (contents are lost when it grows). */
int engine_reserve(struct engine *e, struct device_buffer *buffer, uint64_t bytes,
                   struct hill_why *why);
void engine_release(struct engine *e, struct device_buffer *buffer);

/* Cosine and sine of each pair at a position: out [rope_dims]. */
void engine_turns(const struct engine *e, uint32_t position, float *out);
/* The token's embedding, padded: out [hidden_stride]. */
int engine_embedding(const struct engine *e, uint32_t token, float *out, struct hill_why *why);
/* Norm and output matrix of x to logits [n_vocab]; waits. */
int engine_logits(struct engine *e, float *logits, struct hill_why *why);

int weights_load(struct engine *e, struct hill_why *why);
void weights_free(struct engine *e);

static inline uint32_t round_up(uint32_t value, uint32_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

#endif
