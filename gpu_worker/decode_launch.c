/*
 * gpu_worker/decode_launch.c - the launches of a step, stage by stage. Stage i is the attention and
 * FFN of layer i - 1, then the projections of layer i; stage 0 are layer 0's projections alone, and
 * stage n_layers ends with the logits. See decode.cl.
 *
 * On a device that shares the host's memory any number of stages that follow one another are one
 * launch, since a launch there costs as much as a phase. What a layer is made of lies in a table of
 * addresses, which the device has noted itself (note_layer). Elsewhere each phase is a launch.
 */
#include "gpu_worker/engine_internal.h"

/* Where the turns of the layer's rotary table begin, in floats. */
static uint32_t first_turn(const struct engine *e, uint32_t layer)
{
    return model_layer_rope_table(&e->hp, layer) * e->n_sequences * e->hp.rope_dims;
}

static uint32_t rotated_dims(const struct engine *e, uint32_t layer)
{
    return model_layer_rotates(&e->hp, layer) ? e->hp.rope_dims : 0;
}

bool engine_guesses(const struct engine *e, uint32_t layer)
{
    return e->guess_from && layer >= e->guess_from && layer < e->hp.n_layers;
}

/* ---- where layers lie ---- */

static void note_shape(struct matrix_place *to, const struct matrix *m)
{
    to->n_panels = m->panels;
    to->k = m->k;
    to->quantised = m->quantised;
}

static int note_addresses(struct engine *e, uint32_t layer, const struct layer_weights *w,
                          cl_mem slots, struct hill_why *why)
{
    const struct kernel_arg args[] = {
        ARG_BUFFER(e->places.device.mem),
        ARG_U32(layer),
        ARG_BUFFER(w->qkv.buffer),
        ARG_BUFFER(w->qkv.bias),
        ARG_BUFFER(w->output.buffer),
        ARG_BUFFER(w->output.bias),
        ARG_BUFFER(w->gate_up.buffer),
        ARG_BUFFER(w->gate_up.bias),
        ARG_BUFFER(w->down.buffer),
        ARG_BUFFER(w->down.bias),
        ARG_BUFFER(w->attn_norm),
        ARG_BUFFER(w->ffn_norm),
        ARG_BUFFER(w->post_attn_norm),
        ARG_BUFFER(w->post_ffn_norm),
        ARG_BUFFER(w->q_norm),
        ARG_BUFFER(w->k_norm),
        ARG_BUFFER(slots),
    };
    const struct launch launch = {e->kernels[KERNEL_NOTE], "note_layer", {1, 1}, 0, NULL, NULL};
    return engine_launch(e, &launch, args, sizeof args / sizeof *args, why);
}

int decode_note_places(struct engine *e, struct hill_why *why)
{
    struct layer_place *places = e->places.host;
    /* what follows the last layer, as one: the output norm, then the logits' matrix */
    const struct layer_weights last = {.attn_norm = e->output_norm, .output = e->output};
    int rc = 0;
    for (uint32_t layer = 0; !rc && layer <= e->hp.n_layers; layer++) {
        bool real = layer < e->hp.n_layers;
        const struct layer_weights *w = real ? &e->layers[layer] : &last;
        note_shape(&places[layer].qkv, &w->qkv);
        note_shape(&places[layer].output, &w->output);
        note_shape(&places[layer].gate_up, &w->gate_up);
        note_shape(&places[layer].down, &w->down);
        places[layer].turn = real ? first_turn(e, layer) : 0;
        places[layer].rotated = real ? rotated_dims(e, layer) : 0;
        rc = note_addresses(e, layer, w, real ? e->slots[layer].mem : NULL, why);
    }
    return rc ? rc : cldevice_check(clFinish(e->queue), "the device failed", why);
}

/* What both kernels of a step begin with. */
#define ARG_STEP_BUFFERS(e, guesses)                                                               \
    ARG_BUFFER((e)->x.device.mem), ARG_BUFFER((e)->step_q.device.mem),                             \
        {sizeof(cl_mem), (guesses) ? &(e)->step_guess.device.mem : &(e)->step_q.device.mem},       \
        ARG_BUFFER((e)->step_attended.mem), ARG_BUFFER((e)->step_activated.mem),                   \
        ARG_BUFFER((e)->partial.mem), ARG_BUFFER((e)->logits.device.mem),                          \
        ARG_BUFFER((e)->step_branch.mem), ARG_BUFFER((e)->step_keys.mem)

/* ---- stages in one launch ---- */

static int launch_layers(struct engine *e, uint32_t first, uint32_t end, enum phase phase,
                         struct hill_why *why)
{
    const struct kernel_arg args[] = {
        ARG_STEP_BUFFERS(e, e->guess_from),
        ARG_BUFFER(e->fresh.device.mem),
        {sizeof(cl_mem), e->staging ? &e->staging : &e->fresh.device.mem},
        {sizeof(cl_mem), e->hot ? &e->hot : &e->fresh.device.mem},
        ARG_BUFFER(e->turn.device.mem),
        ARG_BUFFER(e->items.device.mem),
        ARG_BUFFER(e->uploads.device.mem),
        ARG_BUFFER(e->lists.device.mem),
        {sizeof(cl_mem), e->quantised ? &e->step_quantised.mem : &e->step_activated.mem},
        ARG_BUFFER(e->places.device.mem),
        ARG_U32(e->n_rows),
        ARG_U32(e->layers_kept > 1 ? e->n_sequences : 0),
        ARG_U32(e->gpu_slots + 1),
        /* the scatter has all of them to look through, or nothing to do */
        ARG_U32(e->n_attended == e->n_uploads ? 0 : e->n_uploads),
        ARG_U32((uint32_t)e->staging_stride / 2),
        ARG_U32((uint32_t)(e->hot_offset / 64)),
        ARG_F32(e->hp.norm_eps),
        ARG_U32(e->hp.n_layers),
        ARG_U32(e->guess_from),
        ARG_U32(first),
        ARG_U32(end),
        ARG_U32(phase),
        ARG_BUFFER(e->counters.mem),
    };
    const struct launch launch = {
        e->kernels[KERNEL_LAYERS], "decode_layers", {e->device.compute_units, 1}, 0, NULL, NULL};
    return engine_launch(e, &launch, args, sizeof args / sizeof *args, why);
}

/* ---- a phase at a time ---- */

struct phase_launch {
    const struct layer_weights *layer, *next; /* next NULL: the logits */
    const struct layer_weights *guess;        /* whose query is guessed beside next's, or NULL */
    uint32_t next_layer;                      /* the number of next; guess is the layer after it */
    cl_mem slots, staging, uploads;
    uint32_t n_tiles, n_uploads;
    cl_event *event;
    const cl_event *after;
};

/* q comes first in the projections. */
static uint32_t guess_panels(const struct engine *e, const struct phase_launch *s)
{
    return s->guess ? (e->hp.n_heads * e->hp.head_dim + 15) / 16 : 0;
}

/* Tasks that make the input of a product int8; as decode.cl's count_quant_tasks. */
static uint32_t quant_tasks(const struct engine *e, const struct matrix *m)
{
    return m->quantised ? e->n_rows * ((m->k / 32 + QUANT_BLOCKS - 1) / QUANT_BLOCKS) : 0;
}

/* Work groups find the norms of rows with the input of a product. */
static uint32_t norm_tasks(const struct engine *e)
{
    return e->device.has_groups ? e->n_rows : 0;
}

/* Of a tile of a list: as HEAD_BLOCKS of decode.cl, or HEAD_PARTS of decode_groups.cl. */
static uint32_t attend_tasks(const struct engine *e)
{
    uint32_t group = e->hp.n_heads / e->hp.n_kv_heads;
    uint32_t block = e->hp.head_dim >= 256 ? 1 : 256 / e->hp.head_dim;
    if (e->device.has_groups)
        return e->hp.n_kv_heads * ((group + GROUP_HEADS - 1) / GROUP_HEADS);
    if (block > e->hp.n_kv_heads)
        block = e->hp.n_kv_heads;
    return (e->hp.n_kv_heads + block - 1) / block;
}

static uint32_t count_tasks(const struct engine *e, const struct phase_launch *s, enum phase phase)
{
    switch (phase) {
    case PHASE_SCATTER:
        return s->n_uploads;
    case PHASE_ATTEND:
        return s->n_tiles * attend_tasks(e);
    case PHASE_COMBINE:
        return e->n_rows * e->hp.n_heads;
    case PHASE_QUANT_OUTPUT:
        return quant_tasks(e, &s->layer->output);
    case PHASE_QUANT_GATE_UP:
        return norm_tasks(e) + quant_tasks(e, &s->layer->gate_up);
    case PHASE_QUANT_DOWN:
        return quant_tasks(e, &s->layer->down);
    case PHASE_QUANT_QKV:
        return (s->next ? norm_tasks(e) + quant_tasks(e, &s->next->qkv) : 0) +
               (s->guess ? quant_tasks(e, &s->guess->qkv) : 0);
    case PHASE_QUANT_LOGITS:
        return s->next ? 0 : norm_tasks(e) + quant_tasks(e, &e->output);
    case PHASE_OUTPUT:
        return s->layer->output.panels;
    case PHASE_JOIN_ATTENTION:
    case PHASE_JOIN_FFN:
        return engine_norms_branches(e) ? e->n_rows : 0;
    case PHASE_GATE_UP:
        return s->layer->gate_up.panels / 2;
    case PHASE_DOWN:
        return s->layer->down.panels;
    case PHASE_QKV:
        return (s->next ? s->next->qkv.panels : 0) + guess_panels(e, s);
    case PHASE_HEADS:
        return s->next && engine_norms_heads(e)
                   ? e->n_rows * (e->hp.n_heads * (s->guess ? 2 : 1) + e->hp.n_kv_heads)
                   : 0;
    default:
        return s->next ? 0 : e->output.panels;
    }
}

#define ARG_WEIGHTS(m, n)                                                                          \
    ARG_BUFFER((m)->buffer), ARG_BUFFER((m)->bias), ARG_U32(n), ARG_U32((m)->k),                   \
        ARG_U32((m)->quantised), ARG_U32((m)->panels)
#define ARG_HEADS(e, w, layer)                                                                     \
    ARG_BUFFER((w)->q_norm), ARG_BUFFER((w)->k_norm), ARG_U32(first_turn(e, layer)),               \
        ARG_U32(rotated_dims(e, layer))

/* The kernel of a phase on a device with work groups. */
static enum kernel group_kernel(enum phase phase)
{
    switch (phase) {
    case PHASE_SCATTER:
        return KERNEL_SCATTER_GROUPS;
    case PHASE_ATTEND:
        return KERNEL_ATTEND_GROUPS;
    case PHASE_COMBINE:
        return KERNEL_COMBINE_GROUPS;
    case PHASE_OUTPUT:
    case PHASE_DOWN:
        return KERNEL_ADD_GROUPS;
    case PHASE_JOIN_ATTENTION:
    case PHASE_JOIN_FFN:
        return KERNEL_JOIN_GROUPS;
    case PHASE_GATE_UP:
        return KERNEL_GATE_UP_GROUPS;
    case PHASE_QKV:
        return KERNEL_PROJECT_GROUPS;
    case PHASE_HEADS:
        return KERNEL_HEADS_GROUPS;
    case PHASE_LOGITS:
        return KERNEL_LOGITS_GROUPS;
    default: /* PHASE_QUANT_... */
        return KERNEL_PREPARE_GROUPS;
    }
}

/* Products take larger groups: each item's part of a sum is a wait for memory. */
static size_t group_items(const struct engine *e, enum kernel kernel)
{
    switch (kernel) {
    case KERNEL_STEP:
        return 0;
    case KERNEL_ADD_GROUPS:
    case KERNEL_GATE_UP_GROUPS:
    case KERNEL_PROJECT_GROUPS:
    case KERNEL_LOGITS_GROUPS:
        return e->device.product_items;
    default:
        return CLDEVICE_GROUP_ITEMS;
    }
}

static int launch_phase(struct engine *e, const struct phase_launch *s, enum phase phase,
                        size_t size, struct hill_why *why)
{
    const struct matrix *qkv = s->next ? &s->next->qkv : &s->layer->qkv;
    const struct layer_weights *guess = s->guess ? s->guess : s->layer;
    const struct kernel_arg args[] = {
        ARG_STEP_BUFFERS(e, s->guess),
        ARG_BUFFER(s->slots),
        ARG_BUFFER(e->fresh.device.mem),
        ARG_BUFFER(s->staging),
        ARG_BUFFER(e->turn.device.mem),
        ARG_BUFFER(s->layer->ffn_norm),
        {sizeof(cl_mem), s->next ? &s->next->attn_norm : &e->output_norm},
        ARG_BUFFER(guess->attn_norm),
        ARG_BUFFER(s->layer->post_attn_norm),
        ARG_BUFFER(s->layer->post_ffn_norm),
        ARG_BUFFER(e->items.device.mem),
        ARG_BUFFER(s->uploads),
        ARG_BUFFER(e->lists.device.mem),
        {sizeof(cl_mem), e->quantised ? &e->step_quantised.mem : &e->step_activated.mem},
        ARG_U32(e->n_rows),
        ARG_U32(e->gpu_slots + 1),
        ARG_U32(e->entry_bytes / 2),
        ARG_F32(e->hp.norm_eps),
        ARG_WEIGHTS(&s->layer->output, s->layer->output.panels),
        ARG_WEIGHTS(&s->layer->gate_up, s->layer->gate_up.panels),
        ARG_WEIGHTS(&s->layer->down, s->layer->down.panels),
        ARG_WEIGHTS(qkv, s->next ? qkv->panels : 0),
        ARG_WEIGHTS(&guess->qkv, guess_panels(e, s)),
        ARG_WEIGHTS(&e->output, s->next ? 0 : e->output.panels),
        ARG_HEADS(e, s->next ? s->next : s->layer, s->next_layer),
        ARG_HEADS(e, guess, s->next_layer + 1),
        ARG_U32(phase),
    };
    enum kernel kernel = e->device.has_groups ? group_kernel(phase) : KERNEL_STEP;
    const struct launch launch = {e->kernels[kernel], engine_kernel_names[kernel],
                                  {size, 1},          group_items(e, kernel),
                                  s->event,           s->after};
    return engine_launch(e, &launch, args, sizeof args / sizeof *args, why);
}

static uint32_t count_tiles(const struct engine *e)
{
    const uint32_t *last = (const uint32_t *)e->lists.host + 2ull * (e->n_rows - 1);
    return last[1] + (last[0] + DECODE_TILE - 1) / DECODE_TILE;
}

static int launch_phases(struct engine *e, uint32_t stage, enum phase first, struct hill_why *why)
{
    uint32_t layer = stage ? stage - 1 : 0;
    bool last = stage == e->hp.n_layers;
    struct phase_launch s = {.layer = &e->layers[layer],
                             .next = last ? NULL : &e->layers[stage],
                             .guess = engine_guesses(e, stage + 1) ? &e->layers[stage + 1] : NULL,
                             .next_layer = stage,
                             .slots = e->slots[layer].mem,
                             .staging = e->fresh.device.mem,
                             .uploads = e->items.device.mem,
                             .n_tiles = count_tiles(e)};
    int rc = 0;
    for (enum phase phase = first; !rc && phase < PHASE_COUNT; phase++) {
        uint32_t n = count_tasks(e, &s, phase);
        if (n)
            rc = launch_phase(e, &s, phase, n, why);
    }
    return rc;
}

int decode_launch_scatter(struct engine *e, uint32_t layer, struct upload_half *h, uint32_t count,
                          struct hill_why *why)
{
    struct phase_launch s = {.layer = &e->layers[layer],
                             .next = &e->layers[layer],
                             .slots = e->slots[layer].mem,
                             .staging = h->entries.mem,
                             .uploads = h->list.mem,
                             .event = &h->scattered,
                             .after = &h->written};
    return launch_phase(e, &s, PHASE_SCATTER, count, why);
}

/* ---- either way ---- */

/* Bytes of the matrices of a stage from a phase on. Of a guess's projections the query's panels:
 * panels of one matrix may have several types, so that is their share by number. */
static uint64_t stage_weights(const struct engine *e, uint32_t stage, enum phase from)
{
    uint64_t bytes = 0;
    if (from <= PHASE_OUTPUT) {
        const struct layer_weights *w = &e->layers[stage - 1];
        bytes += w->output.bytes + w->gate_up.bytes + w->down.bytes;
    }
    bytes += stage < e->hp.n_layers ? e->layers[stage].qkv.bytes : e->output.bytes;
    if (engine_guesses(e, stage + 1)) {
        const struct matrix *m = &e->layers[stage + 1].qkv;
        struct phase_launch s = {.guess = &e->layers[stage + 1]};
        bytes += m->bytes * guess_panels(e, &s) / m->panels;
    }
    return bytes;
}

int decode_launch(struct engine *e, uint32_t first, uint32_t end, enum phase phase,
                  struct hill_why *why)
{
    int rc = 0;
    if (e->device.shares_memory)
        rc = launch_layers(e, first, end, phase, why);
    else if (end != first + 1)
        return hill_fail(why, HILL_E_INVALID, "stages %u to %u in one launch", first, end);
    else
        rc = launch_phases(e, first, phase, why);
    for (uint32_t stage = first; !rc && stage < end; stage++)
        e->weights_read += stage_weights(e, stage, stage == first ? phase : PHASE_SCATTER);
    return rc;
}
