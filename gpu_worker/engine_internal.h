/*
 * gpu_worker/engine_internal.h - the engine's inside, shared by engine.c, engine_device.c,
 * weights.c, prompt_memory.c, prefill*.c and decode*.c only. Shapes are in engine.h and at the
 * heads of the kernels.
 */
#pragma once

#include "base/huge_pages.h"
#include "gpu_worker/engine.h"

/* Tiles of the kernels, passed to them as -D. */
#define TILE_ROWS       12u
#define ATTEND_SUBTILES 4u  /* row tiles of an attention work item */
#define ATTEND_KEYS     64u /* keys of an attention tile */
#define DECODE_TILE     128u
#define QUANT_BLOCKS    16u /* blocks of 32 values that a task of decode.cl makes int8 */
#define GROUP_TILES     (CLDEVICE_GROUP_ITEMS / 16) /* row tiles of a group (matmul_groups.cl) */
#define GROUP_HEADS     8u   /* heads of a group that attends (decode_groups.cl) */
#define UPLOAD_BATCH    511u /* entries of one transfer to a device with memory of its own */

enum kernel {
    KERNEL_GEMM_STORE,
    KERNEL_GEMM_ADD,
    KERNEL_GEMM_ACTIVATE,
    KERNEL_QUANTISE_ROWS,
    KERNEL_NORM_ROWS,
    KERNEL_ROTATE_STORE,
    KERNEL_ROTATE_QUERIES,
    KERNEL_JOIN_ROWS,
    KERNEL_LOAD_ENTRIES,
    KERNEL_LOAD_RUNS,
    KERNEL_ATTEND_CHUNK,
    KERNEL_WEIGH_CHUNK,
    KERNEL_WEIGH_HEADS,
    KERNEL_SUM_ROWS,
    KERNEL_PACK_KEYS,
    KERNEL_PROBE_ROWS,
    KERNEL_PROBE_KEYS,
    KERNEL_STEP,
    KERNEL_LAYERS,
    KERNEL_NOTE,
    KERNEL_SCATTER_GROUPS,
    KERNEL_ATTEND_GROUPS,
    KERNEL_COMBINE_GROUPS,
    KERNEL_PREPARE_GROUPS,
    KERNEL_ADD_GROUPS,
    KERNEL_GATE_UP_GROUPS,
    KERNEL_PROJECT_GROUPS,
    KERNEL_LOGITS_GROUPS,
    KERNEL_JOIN_GROUPS,
    KERNEL_HEADS_GROUPS,
    KERNEL_COUNT
};
extern const char *const engine_kernel_names[KERNEL_COUNT];

struct matrix { /* as weights.c packs it, for product.cl */
    cl_mem buffer;
    cl_mem bias; /* NULL, or [16 * panels], to be added; under LayerNorm, [16 * panels] more: the
                    sums of each output's weights times the norm's, for the mean */
    uint32_t k, panels; /* panels even; outputs beyond the real ones are 0 */
    uint64_t bytes;     /* of the buffer */
    bool quantised;     /* some panels are of a quantised type */
};

enum program { PROGRAM_MATMUL, PROGRAM_ATTENTION, PROGRAM_DECODE, PROGRAM_COUNT };

struct layer_weights {
    cl_mem attn_norm, ffn_norm;                           /* [n_embd], padded with zeros */
    cl_mem post_attn_norm, post_ffn_norm, q_norm, k_norm; /* or NULL; the last two [head_dim] */
    struct matrix qkv, output, gate_up, down; /* gate_up: gate's panels, then up's, or up alone */
};

/* Phases of the decode kernel, in its order (decode.cl). */
enum phase {
    PHASE_SCATTER,
    PHASE_ATTEND,
    PHASE_COMBINE,
    PHASE_QUANT_OUTPUT,
    PHASE_OUTPUT,
    PHASE_JOIN_ATTENTION,
    PHASE_QUANT_GATE_UP,
    PHASE_GATE_UP,
    PHASE_QUANT_DOWN,
    PHASE_DOWN,
    PHASE_JOIN_FFN,
    PHASE_QUANT_QKV,
    PHASE_QKV,
    PHASE_HEADS,
    PHASE_QUANT_LOGITS,
    PHASE_LOGITS,
    PHASE_COUNT
};
/* Flags of the lists, as decode.cl says. */
#define ITEM_STAGED     0x80000000u
#define ITEM_HOT        ENGINE_HOT /* | index of the entry */
#define ITEM_FRESH      0xffffffffu
#define UPLOAD_ATTENDED 0x80000000u

#define COUNTER_BYTES (4u * (32u * PHASE_COUNT + 16u))

struct device_buffer { /* grows, is released as a whole; zeroed when made */
    cl_mem mem;
    uint64_t bytes;
    void *pages; /* shared memory: what lies under a large buffer, or NULL */
    uint64_t page_bytes;
};

/* Shared memory: matrices side by side on huge pages. */
#define WEIGHT_BLOCK_BYTES (64ull << 20)
struct weight_block {
    struct weight_block *next;
    uint8_t *pages;
    uint64_t bytes, used;
};

/* Memory that host and device both look at between launches: the same bytes where the device works
 * in the host's memory, else a buffer and its image, which decode.c keeps equal. */
struct shared_buffer {
    struct device_buffer device;
    void *host;
};

/* A row of a step, and its uploads' place among all of the layer. */
struct step_row {
    uint32_t sequence, first_upload, n_uploads;
};

/* Where a layer lies, for the launch of several (decode.cl): addresses that the device notes. */
struct matrix_place {
    uint64_t matrix, bias;
    uint32_t n_panels, k, quantised, reserved;
};
struct layer_place {
    struct matrix_place qkv, output, gate_up, down;
    uint64_t attn_norm, ffn_norm, post_attn_norm, post_ffn_norm, q_norm, k_norm, slots;
    uint32_t turn, rotated; /* the first of its turns, in floats; dimensions of a head */
};

/* Uploads on their way to a device with memory of its own: while one half's entries are scattered,
 * the other's are copied. */
struct upload_half {
    struct device_buffer entries, list;
    cl_mem pinned;
    uint8_t *host; /* pinned, mapped: [UPLOAD_BATCH][entry], then [UPLOAD_BATCH] pairs */
    cl_event written, scattered;
};

/* Where a prompt's state outlives the process (prompt_memory.c). */
struct prompt_memory {
    uint8_t *base; /* NULL: there is none */
    uint64_t bytes;
    bool in_place; /* the device computes in it */
    /* of the current prompt */
    bool on;
    uint32_t from;      /* units that an earlier process has computed */
    uint32_t read_from; /* of them, the first whose entries are read */
    uint32_t window;    /* units whose entries are there: u in u % window */
    uint64_t at_hidden, at_before, at_entries, at_sums;
    struct device_buffer words, hidden, before, entries, sums; /* in place: over the memory */
    cl_event saved[2];           /* else: unit u, in u % 2, is computed */
    struct device_buffer out[2]; /* of a prompt of one chunk: what became of its hidden states */
};

/* A kernel's argument as it was set last; bytes 0: it was not. */
#define KERNEL_ARGS 96u
struct set_arg {
    uint32_t bytes;
    uint8_t value[8];
};

struct engine {
    struct cldevice device; /* a copy; the context is the caller's */
    const struct gguf_file *file;
    const struct gguf_tensor *embedding, *positions; /* positions: learned, or NULL */
    struct model_hparams hp;
    uint32_t entry_bytes, hidden_stride, qkv_stride,
        act_stride;                     /* strides in floats, multiples of 32 */
    cl_command_queue queue, read_queue; /* kernels; prefill's entries */
    cl_program programs[PROGRAM_COUNT];
    cl_kernel kernels[KERNEL_COUNT];
    struct set_arg set_args[KERNEL_COUNT][KERNEL_ARGS];

    struct layer_weights *layers; /* [n_layers] */
    cl_mem output_norm;
    struct matrix output;
    uint32_t types; /* a bit for each tensor type of a matrix */
    bool quantised; /* some of them are quantised */
    struct weight_block *blocks;
    uint64_t weight_bytes, kv_bytes, embeddings_read;
    uint64_t weights_read; /* bytes of matrices that steps were launched over, in all */
    double *frequencies;   /* [rotary tables][rope_dims / 2]: turns (radians) per position */

    uint32_t batch_tokens, gpu_slots, n_sequences;
    struct device_buffer *slots; /* [n_layers]: [n_sequences][gpu_slots][entry] */

    /* prefill */
    struct device_buffer hidden, turns, kt, v; /* [N][hidden_stride], [rotary tables][N][rope_dims],
                                                  see attention.cl */
    struct device_buffer entries[2];           /* [batch][entry], of the unit u in u % 2 */
    struct device_buffer normed, qkv, q, attended, activated; /* of a chunk */
    struct device_buffer quantised_rows; /* the input of the product that is next (matmul.cl) */
    cl_event stored[2];                  /* entries[u % 2] are computed */
    cl_event settled;                    /* all that was queued is computed */
    uint32_t n_past;                     /* tokens before the prompt */
    uint32_t n_tokens, tokens_given, n_chunks, panels, units_queued, units_read;
    bool whole_prompt; /* the last layer is computed for all tokens */
    /* of a prompt that follows tokens with entries (prefill_past.c) */
    struct device_buffer past[2]; /* [ENGINE_PAST_TOKENS][entry] on their way */
    cl_event past_packed[2];      /* past[i] may be written */
    uint32_t past_loaded, next_past;
    struct device_buffer kept_runs; /* [n_kept_runs][kept_run_tokens][entry], between prompts */
    struct device_buffer past_sources[2]; /* of past[i]: which of them, or none; a word a run */
    uint32_t n_kept_runs, kept_run_tokens;
    /* of a prompt that attends to some of these tokens (prefill_probe.c) */
    bool selects;
    uint32_t selected, keys_queued; /* past tokens of the current layer; layers whose keys are */
    bool guessed;                   /* the layer after these has its queries, in guessed_q */
    struct device_buffer guessed_q; /* as q */
    uint32_t probed_layer;          /* whose keys are in probe, or UINT32_MAX */
    struct device_buffer probe, probe_kt, probe_sums; /* [n_past][heads' keys], one's, packed,
                                                         [n_past] */
    /* of a prompt whose attention is summed (prefill_mass.c) */
    bool weighs;
    struct device_buffer log_sums, head_sums; /* as attention.cl says */
    struct device_buffer mass[2];             /* [N]: of the layer l in l % 2 */
    cl_event weighed[2];                      /* mass[l % 2] is computed */

    /* decode; buffers of rows are laid out as decode.cl says, for n_sequences rows */
    struct device_buffer step_attended, step_activated, step_quantised, step_branch, step_keys,
        partial, counters;
    struct shared_buffer x, turn, step_q, step_guess, fresh, items, lists, logits;
    struct shared_buffer uploads; /* shared memory only: [n_sequences * gpu_slots] pairs (staging,
                                     slot in the layer's table) */
    struct shared_buffer places;  /* shared memory only: struct layer_place [n_layers + 1] */
    uint32_t layers_kept;         /* items, lists and fresh entries of so many layers: all, or 1 */
    struct upload_half halves[2]; /* memory of its own only */
    uint32_t next_half;
    cl_mem staging; /* shared memory only: the arena's slots themselves */
    cl_mem hot;     /* the same of the memory in which hot entries lie, or NULL */
    uint64_t hot_bytes, hot_offset;
    uint32_t hot_entries;
    const uint8_t *staging_slots;
    uint64_t staging_stride;
    uint32_t staging_count, n_uploads, n_attended; /* of the layer: uploads, those of them that the
                                                      attention copies */
    uint32_t *upload_of; /* shared memory only: [gpu_slots], 1 + the index of a row's upload to that
                            slot, or 0 */
    uint32_t n_rows, next_layer;
    uint32_t guess_from; /* the first layer whose query is guessed, or 0 */
    bool awaited;        /* next_layer's queries are there: its inputs may be written */
    bool untouched;      /* of the step that was begun nothing is launched */
    struct step_row rows[ENGINE_SEQUENCES_MAX];
    struct prompt_memory prompt;
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

/* A launch of size[0] x size[1] work items, or work groups of group_items. Items alone share
 * nothing: on a device with work groups the runtime puts them together as it likes. */
struct launch {
    cl_kernel kernel;
    const char *name;
    size_t size[2];
    size_t group_items;    /* 0: items alone */
    cl_event *event;       /* NULL: none wanted */
    const cl_event *after; /* NULL: nothing but what is queued before it */
};
int engine_launch(struct engine *e, const struct launch *launch, const struct kernel_arg *args,
                  uint32_t n_args, struct hill_why *why);
/* A launch of a kernel of prefill, whose first argument is what its index 0 begins at. */
#define LAUNCH_AS(e, groups, kernel_id, index0, size0, size1, event_out, why, ...)                 \
    engine_launch(                                                                                 \
        (e),                                                                                       \
        &(struct launch){(e)->kernels[kernel_id],                                                  \
                         #kernel_id,                                                               \
                         {(size0), (size1)},                                                       \
                         (groups) ? CLDEVICE_GROUP_ITEMS : 0,                                      \
                         (event_out),                                                              \
                         NULL},                                                                    \
        (const struct kernel_arg[]){ARG_U32(index0), __VA_ARGS__},                                 \
        1 + sizeof((const struct kernel_arg[]){__VA_ARGS__}) / sizeof(struct kernel_arg), (why))
#define LAUNCH(e, kernel_id, index0, size0, size1, event_out, why, ...)                            \
    LAUNCH_AS(e, false, kernel_id, index0, size0, size1, event_out, why, __VA_ARGS__)
/* The same over rows, of which a work group has one. */
#define LAUNCH_ROWS(e, kernel_id, row0, n_rows, event_out, why, ...)                               \
    LAUNCH_AS(e, (e)->device.has_groups, kernel_id, row0, n_rows, 1, event_out, why, __VA_ARGS__)
/* The same over rows and their heads, which a work item has one of on a GPU, else all. */
#define LAUNCH_HEADS(e, kernel_id, row0, n_rows, n_heads, event_out, why, ...)                     \
    LAUNCH_AS(e, false, kernel_id, row0, n_rows, (e)->device.has_groups ? (n_heads) : 1,           \
              event_out, why, __VA_ARGS__)
/* The same over row tiles, of which a work group has GROUP_TILES. */
#define LAUNCH_TILES(e, kernel_id, tile0, n_tiles, size1, event_out, why, ...)                     \
    LAUNCH_AS(e, (e)->device.has_groups, kernel_id, tile0,                                         \
              (e)->device.has_groups ? ((n_tiles) + GROUP_TILES - 1) / GROUP_TILES : (n_tiles),    \
              size1, event_out, why, __VA_ARGS__)

/* Make the buffer at least bytes long (contents are lost when it grows). */
int engine_reserve(struct engine *e, struct device_buffer *buffer, uint64_t bytes,
                   struct hill_why *why);
void engine_release(struct engine *e, struct device_buffer *buffer);
/* A memory object (or NULL, which it becomes). A later one may have its address: arguments that
 * were set to it are forgotten. */
void engine_release_memory(struct engine *e, cl_mem *memory);
/* 1: complete, 0: not yet, or an error. */
int engine_ask_event(cl_event event, struct hill_why *why);
void engine_forget_event(cl_event *event); /* NULL from then on */

/* ---- decode_memory.c ---- */

/* A step's buffers for the configured number of slots; those that count as GPU memory, summed. */
int decode_reserve(struct engine *e, struct hill_why *why);
void decode_release(struct engine *e);
uint64_t decode_bytes(const struct engine *e);

/* ---- decode_launch.c ---- */

/* Stages first .. end - 1 of a step's e->n_rows rows, the first one from phase `phase` on; on a
 * device with memory of its own one stage at a time. */
int decode_launch(struct engine *e, uint32_t first, uint32_t end, enum phase phase,
                  struct hill_why *why);
/* Uploads into the layer's slots. */
int decode_launch_scatter(struct engine *e, uint32_t layer, struct upload_half *h, uint32_t count,
                          struct hill_why *why);
/* Shared memory only: e->places; again when weights or slots lie elsewhere. */
int decode_note_places(struct engine *e, struct hill_why *why);

/* ---- prefill_past.c ---- */
uint64_t past_bytes(const struct engine *e, uint32_t n_past);
int past_reserve(struct engine *e, uint32_t n_past, struct hill_why *why);
void past_release(struct engine *e);

/* ---- prefill_probe.c ---- */

/* The past tokens that a unit attends to lie side by side before its own: at which key are
 * these? */
static inline uint32_t unit_key(const struct engine *e, const struct engine_unit *u)
{
    return e->selects ? e->selected : u->first;
}
/* Tokens of the prompt, its last ones, whose queries look: all, or those that are guessed. */
uint32_t probe_rows(const struct engine *e, bool guessed);
/* Where the guessed ones go. */
int probe_reserve_guess(struct engine *e, struct hill_why *why);
void probe_release(struct engine *e);

/* Where the softmax' denominators of a chunk go; NULL: nowhere. */
static inline cl_mem mass_log_sums(const struct engine *e)
{
    return e->weighs ? e->log_sums.mem : NULL;
}
/* Add a unit's attention, which was queued, to its layer's sums; done: the last of it. */
int mass_enqueue(struct engine *e, const struct engine_unit *u, cl_event *done,
                 struct hill_why *why);
void mass_release(struct engine *e);

/* ---- prompt_memory.c ---- */

/* The current prompt's, NULL: it is not kept. Before buffers are reserved, and when they are and
 * shapes are known: what is there already goes to the device. */
int prompt_memory_begin(struct engine *e, uint32_t n_tokens, const struct engine_keep *keep,
                        struct hill_why *why);
int prompt_memory_load(struct engine *e, struct hill_why *why);
void prompt_memory_release(struct engine *e);
/* Of the device's memory, beside what every prompt takes. */
uint64_t prompt_copy_bytes(const struct engine *e, uint32_t n_tokens);
/* Where the hidden states are; the entries of a unit, and the first one's index. */
cl_mem prompt_hidden(const struct engine *e);
cl_mem prompt_entries(const struct engine *e, uint32_t unit, uint32_t *first);
/* host_row has the embeddings of these tokens. */
void prompt_embedded(struct engine *e, uint32_t first, uint32_t count);
/* Queued before a unit's kernels and behind them. */
int prompt_unit_begins(struct engine *e, const struct engine_unit *u, uint32_t unit,
                       struct hill_why *why);
int prompt_unit_ends(struct engine *e, const struct engine_unit *u, uint32_t unit,
                     struct hill_why *why);
/* By an earlier process: then its entries are read here. */
bool prompt_was_computed(const struct engine *e, uint32_t unit);
void prompt_read_kept(const struct engine *e, uint32_t unit, uint32_t first, uint32_t count,
                      void *entries);

/* ---- prompt_sums.c ---- */

/* row_bytes: a multiple of 4 */
void prompt_sum_rows(const uint8_t *rows, uint32_t row_bytes, uint32_t count, uint64_t *sums);
bool prompt_sums_fit(const uint8_t *rows, uint32_t row_bytes, uint32_t count, const uint64_t *sums);
/* Of a buffer's rows from `from` on, into the prompt's sums from `to` on. */
int prompt_sums_enqueue(struct engine *e, cl_mem rows, uint32_t row_bytes, uint32_t from,
                        uint32_t count, uint32_t to, struct hill_why *why);

/* Cosine and sine of each pair of a rotary table at a position: out [rope_dims]. */
void engine_turns(const struct engine *e, uint32_t table, uint32_t position, float *out);
/* The token's embedding at a position, padded: out [hidden_stride]. */
int engine_embedding(struct engine *e, uint32_t token, uint32_t position, float *out,
                     struct hill_why *why);
/* Is what attention and FFN give normed before it is added? Are heads of q and k normed? */
static inline bool engine_norms_branches(const struct engine *e)
{
    return arch_takes(e->hp.arch, ARCH_PART_POST_ATTN_NORM);
}
static inline bool engine_norms_heads(const struct engine *e)
{
    return arch_takes(e->hp.arch, ARCH_PART_Q_NORM);
}
/* Norm and output matrix of x to logits [n_vocab]; waits. */
int engine_logits(struct engine *e, float *logits, struct hill_why *why);

int weights_load(struct engine *e, struct hill_why *why);
void weights_free(struct engine *e);

static inline uint32_t round_up(uint32_t value, uint32_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Words of a row of k activations made int8 (product.cl): four values a word, five fields a block
 * of 32. The longest row of the model: of the normed state, of what attention gives, of the FFN. */
static inline uint32_t quant_words(uint32_t k)
{
    return k / 4 + k / 32 * 5;
}

static inline uint32_t quant_stride(const struct engine *e)
{
    uint32_t longest = e->hp.n_heads * e->hp.head_dim;
    longest = e->hp.n_embd > longest ? e->hp.n_embd : longest;
    return quant_words(e->hp.n_ff > longest ? e->hp.n_ff : longest);
}

/* Strides of a step's rows, as in decode.cl: floats of logits, of q and attended; halfs of fresh
 * entries, whose last vector may be read past its end. */
static inline uint32_t logits_stride(const struct engine *e)
{
    return round_up(e->hp.n_vocab, 32);
}

static inline uint32_t q_stride(const struct engine *e)
{
    return round_up(e->hp.n_heads * e->hp.head_dim, 16) + 16;
}

static inline uint32_t fresh_stride(const struct engine *e)
{
    return round_up(e->entry_bytes / 2 + 16, 16);
}
