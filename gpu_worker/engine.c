/*
 * gpu_worker/engine.c - making, configuring and ending an engine. See engine.h.
 */
#include "gpu_worker/engine_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/embed.h"
#include "base/log.h"

HILL_EMBED(gpu_worker_shared_cl, "gpu_worker/shared.cl");
HILL_EMBED(gpu_worker_product_cl, "gpu_worker/product.cl");
HILL_EMBED(gpu_worker_matmul_cl, "gpu_worker/matmul.cl");
HILL_EMBED(gpu_worker_matmul_groups_cl, "gpu_worker/matmul_groups.cl");
HILL_EMBED(gpu_worker_decode_product_cl, "gpu_worker/decode_product.cl");
HILL_EMBED(gpu_worker_step_cl, "gpu_worker/step.cl");
HILL_EMBED(gpu_worker_decode_cl, "gpu_worker/decode.cl");
HILL_EMBED(gpu_worker_decode_groups_cl, "gpu_worker/decode_groups.cl");
HILL_EMBED(gpu_worker_attention_cl, "gpu_worker/attention.cl");
HILL_EMBED(gpu_worker_attention_groups_cl, "gpu_worker/attention_groups.cl");

/* ---- tables ---- */

int engine_set_context(struct engine *e, uint32_t ctx_tokens, struct hill_why *why)
{
    int rc = 0;
    for (uint32_t t = 0; !rc && t < model_rope_tables(&e->hp); t++)
        rc = model_rope_frequencies(&e->hp, e->file, t, ctx_tokens,
                                    e->frequencies + (size_t)t * (e->hp.rope_dims / 2), why);
    return rc;
}

static int make_frequencies(struct engine *e, struct hill_why *why)
{
    e->frequencies =
        calloc((size_t)model_rope_tables(&e->hp) * e->hp.rope_dims + 1, sizeof *e->frequencies);
    if (!e->frequencies)
        return hill_fail(why, HILL_E_NOMEM, "no memory for rotary tables");
    return engine_set_context(e, e->hp.n_ctx_train, why);
}

/* ---- create, configure, destroy ---- */

static int check_shape(const struct model_hparams *hp, struct hill_why *why)
{
    bool rotates = hp->arch->rotary != ARCH_ROTARY_NONE;
    if (hp->head_dim % 2 || hp->rope_dims % 2 || hp->rope_dims > hp->head_dim ||
        rotates != (hp->rope_dims > 0))
        return hill_fail(
            why, HILL_E_UNSUPPORTED,
            "head size %u with %u rotated dimensions is not supported: both must be even",
            hp->head_dim, hp->rope_dims);
    if (!hp->n_layers || !hp->n_heads || !hp->n_kv_heads || hp->n_heads % hp->n_kv_heads ||
        !hp->n_embd || !hp->n_ff || !hp->n_vocab || !hp->head_dim ||
        hp->head_dim > KERNEL_HEAD_DIM_MAX)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "a model of %u layers, %u heads, %u KV heads of size %u is not supported",
                         hp->n_layers, hp->n_heads, hp->n_kv_heads, hp->head_dim);
    return 0;
}

/* The ways in which product.cl can multiply integers, best first; all give the same. */
static int best_dot(const struct engine *e)
{
    if (e->device.has_groups)
        return e->device.dp4a ? 1 : 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (e->device.shares_memory)
        return __builtin_cpu_supports("avx512vnni") ? 3 : 2;
#endif
    return 0;
}

void engine_choose_kernels(struct cldevice *device)
{
    const char *wish = getenv("HILL_TEST_WORK_GROUPS");
    if (wish && *wish)
        device->has_groups = *wish != '0';
    if (!device->has_groups)
        return;
    size_t used = strlen(device->name);
    snprintf(device->name + used, sizeof device->name - used, " (work groups)");
    device->shares_memory = false;
}

uint64_t engine_kernels(void)
{
    static const char *const sources[] = {
        gpu_worker_shared_cl,         gpu_worker_product_cl,   gpu_worker_matmul_cl,
        gpu_worker_matmul_groups_cl,  gpu_worker_attention_cl, gpu_worker_attention_groups_cl,
        gpu_worker_decode_product_cl, gpu_worker_step_cl,      gpu_worker_decode_cl,
        gpu_worker_decode_groups_cl};
    uint64_t hash = 0;
    for (unsigned i = 0; i < sizeof sources / sizeof *sources; i++)
        hash = XXH64(sources[i], strlen(sources[i]), hash);
    return hash;
}

/* A program is built with the options that its text asks for and no others: models that differ in
 * the rest share it, and a device's compiler, which takes seconds, is asked once. */
static void write_options(const struct engine *e, enum program program, int dot, char *options,
                          size_t size)
{
    const struct model_hparams *hp = &e->hp;
    /* attention has shared.cl's activation, too, and does not call it */
    int activation = program == PROGRAM_ATTENTION ? 0 : (int)hp->arch->activation;
    const char *looks = getenv("HILL_TEST_LOOKS"); /* for tests: decode.cl's LOOKS */
    int used = snprintf(options, size, "-cl-std=CL1.2 -DROWS=%u -DACTIVATION=%d -DWIDE_VECTORS=%d",
                        TILE_ROWS, activation, e->device.vector_floats >= 16);
    if (program != PROGRAM_ATTENTION)
        used += snprintf(options + used, size - (size_t)used, " -DTYPES=%uu -DHILL_DOT=%d%s",
                         e->types, dot, e->device.is_cpu ? " -DPREFETCHES" : "");
    if (program != PROGRAM_MATMUL)
        used += snprintf(options + used, size - (size_t)used,
                         " -DLAYER_NORM=%d -DNORM_HEADS=%d -DSUBS=%u -DKEYS=%u -DHEAD_DIM=%u "
                         "-DN_HEADS=%u -DN_KV_HEADS=%u -DROPE_DIMS=%u -DSCORE_SCALE=%.9ef",
                         hp->arch->norm == ARCH_NORM_LAYER, engine_norms_heads(e), ATTEND_SUBTILES,
                         ATTEND_KEYS, hp->head_dim, hp->n_heads, hp->n_kv_heads, hp->rope_dims,
                         1.4426950408889634 / sqrt(hp->attention_dims));
    if (program == PROGRAM_ATTENTION)
        used += snprintf(options + used, size - (size_t)used, " -DWINDOWS=%d", hp->window > 0);
    if (e->device.has_groups)
        used += snprintf(
            options + used, size - (size_t)used,
            " -DLANES=%d -DGROUP_ITEMS=%u -DPRODUCT_ITEMS=%u -DGROUP_HEADS=%u -DX_SPACE=%s",
            program == PROGRAM_ATTENTION ? 16 : 1, CLDEVICE_GROUP_ITEMS, e->device.product_items,
            GROUP_HEADS, program == PROGRAM_MATMUL ? "__local -DX_QUADS" : "__global");
    if (program == PROGRAM_DECODE && looks) {
        log_warn("test hook HILL_TEST_LOOKS: work items leave after %.10s looks a weight", looks);
        used += snprintf(options + used, size - (size_t)used, " -DLOOKS=%.10su", looks);
    }
    if (program == PROGRAM_DECODE)
        snprintf(options + used, size - (size_t)used,
                 " -DNORM_BRANCHES=%d -DDECODE_TILE=%u -DQKV_DIMS=%u -DMAX_ROWS=%u -DX_STRIDE=%u "
                 "-DACT_STRIDE=%u -DLOGITS_STRIDE=%u -DQUANT_STRIDE=%u -DQUANT_BLOCKS=%u",
                 engine_norms_branches(e), DECODE_TILE,
                 (hp->n_heads + 2 * hp->n_kv_heads) * hp->head_dim, ENGINE_SEQUENCES_MAX,
                 e->hidden_stride, e->act_stride, logits_stride(e),
                 e->quantised ? quant_stride(e) : 0, QUANT_BLOCKS);
}

static cl_program build_program(struct engine *e, enum program program, int dot,
                                struct hill_why *why)
{
    static const char *const parts[2][PROGRAM_COUNT][4] = {
        {{gpu_worker_product_cl, gpu_worker_matmul_cl, "", ""},
         {gpu_worker_attention_cl, "", "", ""},
         {gpu_worker_product_cl, gpu_worker_decode_product_cl, gpu_worker_step_cl,
          gpu_worker_decode_cl}},
        {{gpu_worker_product_cl, gpu_worker_matmul_groups_cl, "", ""},
         {gpu_worker_attention_cl, gpu_worker_attention_groups_cl, "", ""},
         {gpu_worker_product_cl, gpu_worker_step_cl, gpu_worker_decode_groups_cl, ""}}};
    const char *const *part = parts[e->device.has_groups][program];
    char options[1024], *source = NULL;
    write_options(e, program, dot, options, sizeof options);
    if (asprintf(&source, "%s%s%s%s%s", gpu_worker_shared_cl, part[0], part[1], part[2], part[3]) <
        0) {
        hill_fail(why, HILL_E_NOMEM, "no memory for the kernels' source");
        return NULL;
    }
    cl_program built = cldevice_build(&e->device, source, options, why);
    free(source);
    return built;
}

/* One GPU's compiler has built the kernels of work groups (docs/gpu.md): who meets one that does
 * not is told of a way. */
static int name_the_others(struct hill_why *why)
{
    const struct hill_why said = *why;
    return hill_fail(why, HILL_E_NODEV,
                     "%.400s; HILL_TEST_WORK_GROUPS=0 takes the kernels of register tiles",
                     said.text);
}

/* A compiler that refuses one way of multiplying is asked for the next. */
static int build_programs(struct engine *e, struct hill_why *why)
{
    for (enum program p = 0; p < PROGRAM_COUNT; p++) {
        int dot = p == PROGRAM_ATTENTION || !e->quantised ? 0 : best_dot(e);
        do
            e->programs[p] = build_program(e, p, dot, why);
        while (!e->programs[p] && dot-- > 0);
        if (!e->programs[p])
            return e->device.has_groups ? name_the_others(why) : HILL_E_NODEV;
    }
    return 0;
}

static int build_kernels(struct engine *e, struct hill_why *why)
{
    int rc = build_programs(e, why);
    for (int k = 0; !rc && k < KERNEL_COUNT; k++) {
        cl_int status;
        if (k >= KERNEL_STEP && (k >= KERNEL_SCATTER_GROUPS) != e->device.has_groups)
            continue;
        enum program p = k <= KERNEL_QUANTISE_ROWS ? PROGRAM_MATMUL
                         : k >= KERNEL_STEP        ? PROGRAM_DECODE
                                                   : PROGRAM_ATTENTION;
        e->kernels[k] = clCreateKernel(e->programs[p], engine_kernel_names[k], &status);
        if (cldevice_check(status, engine_kernel_names[k], why))
            rc = HILL_E_NODEV;
    }
    return rc;
}

int engine_create(struct engine **out, const struct cldevice *device, const struct gguf_file *file,
                  const struct model_hparams *hparams, struct hill_why *why)
{
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the engine");
    e->device = *device;
    e->file = file;
    e->hp = *hparams;
    int rc = check_shape(hparams, why);
    if (rc)
        goto fail;
    e->entry_bytes = 4 * hparams->n_kv_heads * hparams->head_dim;
    e->hidden_stride = round_up(hparams->n_embd, 32);
    e->qkv_stride = round_up((hparams->n_heads + 2 * hparams->n_kv_heads) * hparams->head_dim, 32);
    e->act_stride = round_up(hparams->n_ff, 32);
    uint32_t row = e->hidden_stride > hparams->rope_dims ? e->hidden_stride : hparams->rope_dims;
    e->host_row = calloc((size_t)row * HOST_ROWS, sizeof(float));
    rc = e->host_row ? make_frequencies(e, why)
                     : hill_fail(why, HILL_E_NOMEM, "no memory for the engine");
    if (rc)
        goto fail;
    rc = HILL_E_NODEV;
    e->queue = cldevice_queue(device, false, why);
    e->read_queue = e->queue ? cldevice_queue(device, false, why) : NULL;
    if (!e->read_queue)
        goto fail;
    rc = weights_load(e, why);
    if (!rc)
        rc = build_kernels(e, why);
    if (rc)
        goto fail;
    *out = e;
    return 0;
fail:
    engine_destroy(e);
    return rc;
}

static void release_slots(struct engine *e)
{
    for (uint32_t layer = 0; e->slots && layer < e->hp.n_layers; layer++)
        engine_release(e, &e->slots[layer]);
    free(e->slots);
    e->slots = NULL;
}

int engine_configure(struct engine *e, uint32_t batch_tokens, uint32_t gpu_slots,
                     uint32_t n_sequences, struct hill_why *why)
{
    /* a slot's number in a layer's table has 31 bits: 2^24 * 64 fit */
    if (batch_tokens == 0 || batch_tokens > 1u << 24 || gpu_slots == 0 || gpu_slots > 1u << 24 ||
        n_sequences == 0 || n_sequences > ENGINE_SEQUENCES_MAX)
        return hill_fail(why, HILL_E_INVALID,
                         "batch of %u tokens, %u GPU slots or %u sequences (at most %u) is out of "
                         "range",
                         batch_tokens, gpu_slots, n_sequences, ENGINE_SEQUENCES_MAX);
    int rc = engine_finish(e, why);
    if (rc)
        return rc;
    if (gpu_slots != e->gpu_slots || n_sequences != e->n_sequences)
        release_slots(e);
    e->batch_tokens = batch_tokens;
    e->gpu_slots = gpu_slots;
    e->n_sequences = n_sequences;
    e->n_tokens = e->tokens_given = e->units_queued = e->units_read = 0;
    e->next_layer = UINT32_MAX;
    if (!e->slots)
        e->slots = calloc(e->hp.n_layers, sizeof *e->slots);
    if (!e->slots)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the slot table");
    /* the last value vector of the last entry may be read 15 values past its end */
    for (uint32_t layer = 0; !rc && layer < e->hp.n_layers; layer++)
        rc = engine_reserve(e, &e->slots[layer],
                            (uint64_t)n_sequences * gpu_slots * e->entry_bytes + 32, why);
    if (!rc)
        rc = decode_reserve(e, why);
    return rc ? rc : engine_finish(e, why);
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    if (e->queue)
        clFinish(e->queue);
    if (e->read_queue)
        clFinish(e->read_queue);
    prompt_memory_release(e);
    struct device_buffer *buffers[] = {
        &e->prompt.out[0], &e->prompt.out[1], &e->hidden, &e->turns, &e->kt, &e->v,
        &e->entries[0],    &e->entries[1],    &e->normed, &e->qkv,   &e->q,  &e->attended,
        &e->activated,     &e->quantised_rows};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        engine_release(e, buffers[i]);
    decode_release(e);
    release_slots(e);
    mass_release(e);
    probe_release(e);
    past_release(e);
    for (int i = 0; i < 2; i++)
        engine_forget_event(&e->stored[i]);
    engine_forget_event(&e->settled);
    weights_free(e);
    for (int k = 0; k < KERNEL_COUNT; k++)
        if (e->kernels[k])
            clReleaseKernel(e->kernels[k]);
    for (int p = 0; p < PROGRAM_COUNT; p++)
        if (e->programs[p])
            clReleaseProgram(e->programs[p]);
    if (e->read_queue)
        clReleaseCommandQueue(e->read_queue);
    if (e->queue)
        clReleaseCommandQueue(e->queue);
    free(e->frequencies);
    free(e->host_row);
    free(e);
}

const struct model_hparams *engine_hparams(const struct engine *e)
{
    return &e->hp;
}

uint64_t engine_weight_bytes(const struct engine *e)
{
    return e->weight_bytes;
}

uint64_t engine_weights_read(const struct engine *e)
{
    return e->weights_read;
}

uint64_t engine_kv_bytes(const struct engine *e)
{
    return e->kv_bytes;
}
