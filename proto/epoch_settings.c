/* proto/epoch_settings.c - see epoch_settings.h. */
#include "proto/epoch_settings.h"

#include <string.h>

#include "kv/score.h"
#include "proto/envelope.h"
#include "proto/records.h"

#define THREADS_MAX 256u

_Static_assert((int)HILL__POLICY__POLICY_PREFETCH == KV_POLICY_PREFETCH &&
                   (int)HILL__POLICY__POLICY_PREFETCH + 1 == KV_POLICY_COUNT,
               "Policy has the numbers of enum kv_policy");
_Static_assert((int)HILL__IMPORTANCE__IMPORTANCE_NORM == KV_IMPORTANCE_NORM &&
                   (int)HILL__IMPORTANCE__IMPORTANCE_NORM + 1 == KV_IMPORTANCE_COUNT,
               "Importance has the numbers of enum kv_importance");

struct layout_input epoch_layout(const struct epoch_settings *s)
{
    return (struct layout_input){.geometry = s->plan.geometry,
                                 .ctx_tokens = s->plan.ctx_tokens,
                                 .n_sequences = s->plan.n_sequences};
}

int epoch_settings_check(const struct epoch_settings *s, struct hill_why *why)
{
    int rc = kv_geometry_check(&s->plan.geometry, why);
    if (rc)
        return rc;
    if (s->plan.n_sequences == 0 || s->threads > THREADS_MAX || s->gpu_slots == 0 ||
        s->gpu_slots > s->plan.ctx_tokens || s->block_tokens == 0 ||
        s->block_tokens > RECORD_STRIPE_SLOTS_MAX || !(s->beta >= 0) || s->staging_slots == 0)
        return hill_fail(
            why, HILL_E_INVALID,
            "cannot configure: sequences %u, threads %u, GPU slots %u, block tokens %u, "
            "staging slots %u, beta %g",
            s->plan.n_sequences, s->threads, s->gpu_slots, s->block_tokens, s->staging_slots,
            s->beta);
    return 0;
}

/* ---- the wire ----------------------------------------------------------------------------- */

void selection_to_wire(Hill__Selection *out, const struct kv_selection_settings *selection)
{
    hill__selection__init(out);
    out->alpha = selection->alpha;
    out->budget = selection->budget;
    out->sinks = selection->sinks;
    out->window = selection->window;
    out->policy = (Hill__Policy)selection->policy;
    out->importance = (Hill__Importance)selection->importance;
    out->exact_below = selection->exact_below;
}

struct kv_selection_settings selection_from_wire(const Hill__Selection *in)
{
    return (struct kv_selection_settings){.alpha = in->alpha,
                                          .budget = in->budget,
                                          .sinks = in->sinks,
                                          .window = in->window,
                                          .policy = (uint32_t)in->policy,
                                          .importance = (uint32_t)in->importance,
                                          .exact_below = in->exact_below};
}

static void plan_to_wire(Hill__Configure *c, const struct kv_plan_input *plan)
{
    c->n_layers = plan->geometry.n_layers;
    c->n_heads = plan->geometry.n_heads;
    c->n_kv_heads = plan->geometry.n_kv_heads;
    c->head_dim = plan->geometry.head_dim;
    c->score_bits = kv_digest_bits(&plan->geometry);
    c->n_embd = plan->n_embd;
    c->n_ff = plan->n_ff;
    c->n_vocab = plan->n_vocab;
    c->layer_window = plan->windows.tokens;
    c->global_every = plan->windows.global_every;
    c->ctx_tokens = plan->ctx_tokens;
    c->n_sequences = plan->n_sequences;
    c->batch_tokens = plan->batch_tokens;
}

static char *text(const char *given)
{
    return (char *)(given ? given : "");
}

void epoch_settings_to_wire(struct epoch_wire *out, const struct epoch_settings *s)
{
    Hill__Configure *c = &out->configure;
    hill__message__init(&out->message);
    hill__configure__init(c);
    out->message.body_case = HILL__MESSAGE__BODY_CONFIGURE;
    out->message.configure = c;
    selection_to_wire(c->selection = &out->selection, &s->plan.selection);
    proto_set_csd_model(c->csd_model = &out->csd_model, &s->csd_model);
    plan_to_wire(c, &s->plan);
    c->run_id = s->run_id;
    c->epoch = s->epoch;
    c->tiers_epoch = s->tiers_epoch;
    c->model_path = text(s->model_path);
    c->device = text(s->device);
    c->threads = s->threads;
    c->hot_cap_bytes = s->hot_cap_bytes;
    c->hot_bytes = s->hot_bytes;
    c->gpu_kv_cap_bytes = s->gpu_kv_cap_bytes;
    c->gpu_slots = s->gpu_slots;
    c->staging_slots = s->staging_slots;
    c->gpu_drop = s->gpu_drop;
    c->csd_attached = s->csd_attached;
    c->csd_url = text(s->csd_url);
    c->cold_cap_bytes = s->cold_cap_bytes;
    c->block_tokens = s->block_tokens;
    c->beta = s->beta;
    c->beta_auto = s->beta_auto;
    c->placement = s->placement;
    c->pin = s->pin;
    c->speculate = s->speculate;
    c->exact_layers = s->exact_layers;
    c->simd = s->simd;
    c->trace_path = text(s->trace_path);
    c->trace_scores = s->trace_scores;
    c->record_path = text(s->record_path);
}

int epoch_settings_read(struct epoch_settings *out, const Hill__Configure *c, struct hill_why *why)
{
    *out = (struct epoch_settings){
        .run_id = c->run_id,
        .epoch = c->epoch,
        .tiers_epoch = c->tiers_epoch ? c->tiers_epoch : c->epoch,
        .plan = {.geometry = {c->n_layers, c->n_heads, c->n_kv_heads, c->head_dim, c->score_bits},
                 .n_embd = c->n_embd,
                 .n_ff = c->n_ff,
                 .n_vocab = c->n_vocab,
                 .windows = {c->layer_window, c->global_every},
                 .ctx_tokens = c->ctx_tokens,
                 .batch_tokens = c->batch_tokens,
                 .n_sequences = c->n_sequences,
                 .selection = selection_from_wire(c->selection),
                 .speculates = c->speculate != HILL__SPECULATE__SPECULATE_OFF},
        .model_path = c->model_path,
        .device = c->device,
        .threads = c->threads,
        .hot_cap_bytes = c->hot_cap_bytes,
        .hot_bytes = c->hot_bytes,
        .gpu_kv_cap_bytes = c->gpu_kv_cap_bytes,
        .gpu_slots = c->gpu_slots,
        .staging_slots = c->staging_slots,
        .gpu_drop = c->gpu_drop,
        .csd_attached = c->csd_attached,
        .csd_url = c->csd_url,
        .cold_cap_bytes = c->cold_cap_bytes,
        .block_tokens = c->block_tokens,
        .csd_model = proto_csd_model(c->csd_model),
        .beta = c->beta,
        .beta_auto = c->beta_auto,
        .placement = c->placement,
        .pin = c->pin,
        .speculate = c->speculate,
        .exact_layers = c->exact_layers,
        .simd = c->simd,
        .trace_path = c->trace_path,
        .trace_scores = c->trace_scores,
        .record_path = c->record_path,
    };
    return epoch_settings_check(out, why);
}

/* ---- names -------------------------------------------------------------------------------- */

static const char *const simds[] = {"auto", "reference", "avx2", "avx512", "avx512vnni"};
static const char *const speculates[] = {"off", "on", "verify"};
static const char *const placements[] = {"recency", "bkp"};

#define COUNT(names) (int)(sizeof(names) / sizeof *(names))

/* -1: there is none */
static int find(const char *const *names, int count, const char *name)
{
    int i = 0;
    while (i < count && strcmp(names[i], name) != 0)
        i++;
    return i < count ? i : -1;
}

const char *epoch_simd_name(Hill__Simd simd)
{
    return (unsigned)simd < COUNT(simds) ? simds[simd] : "unknown";
}

const char *epoch_speculate_name(Hill__Speculate speculate)
{
    return (unsigned)speculate < COUNT(speculates) ? speculates[speculate] : "unknown";
}

int epoch_simd_parse(const char *name, Hill__Simd *out)
{
    int i = find(simds, COUNT(simds), name);
    *out = (Hill__Simd)(i < 0 ? 0 : i);
    return i < 0 ? HILL_E_INVALID : 0;
}

int epoch_speculate_parse(const char *name, Hill__Speculate *out)
{
    int i = find(speculates, COUNT(speculates), name);
    *out = (Hill__Speculate)(i < 0 ? 0 : i);
    return i < 0 ? HILL_E_INVALID : 0;
}

int epoch_placement_parse(const char *name, Hill__Placement *out)
{
    int i = find(placements, COUNT(placements), name);
    *out = (Hill__Placement)(i < 0 ? 0 : i);
    return i < 0 ? HILL_E_INVALID : 0;
}
