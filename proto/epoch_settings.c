/* proto/epoch_settings.c - see epoch_settings.h. */
#include "proto/epoch_settings.h"

#include <string.h>

#include "kv/plane.h"
#include "kv/score.h"
#include "proto/envelope.h"
#include "proto/records.h"

_Static_assert((int)HILL__POLICY__POLICY_HOST_DIGEST == KV_POLICY_HOST_DIGEST &&
                   (int)HILL__POLICY__POLICY_HOST_DIGEST + 1 == KV_POLICY_COUNT,
               "Policy has the numbers of enum kv_policy");
_Static_assert((int)HILL__IMPORTANCE__IMPORTANCE_HEADS == KV_IMPORTANCE_HEADS &&
                   (int)HILL__IMPORTANCE__IMPORTANCE_HEADS + 1 == KV_IMPORTANCE_COUNT,
               "Importance has the numbers of enum kv_importance");

struct layout_input epoch_layout(const struct epoch_settings *s)
{
    return (struct layout_input){.geometry = s->plan.geometry,
                                 .ctx_tokens = s->plan.ctx_tokens,
                                 .n_sequences = s->plan.n_sequences,
                                 .n_drives = s->csd_drives};
}

uint32_t epoch_key_bytes(const struct epoch_settings *s)
{
    return kv_pool_key_bytes(&s->plan.geometry, s->plan.selection.policy, s->csd_cast);
}

static bool scores_where_it_lies(uint32_t policy)
{
    return policy == KV_POLICY_HILLINFER || policy == KV_POLICY_FULL;
}

static int check_numbers(const struct epoch_settings *s, struct hill_why *why)
{
    const struct {
        const char *name, *option; /* the one it follows from */
        uint32_t value, min, max;
    } numbers[] = {
        {"sequences", "--parallel", s->plan.n_sequences, 1, KV_MAX_SEQUENCES},
        {"threads", "--threads", s->threads, 0, EPOCH_THREADS_MAX},
        {"GPU slots", "--gpu-kv-mb", s->gpu_slots, 1, s->plan.ctx_tokens},
        {"staging slots", "--hot-mb", s->staging_slots, 1, UINT32_MAX},
        {"tokens of a block", "--block-tokens", s->block_tokens, 1, RECORD_STRIPE_SLOTS_MAX},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        bool few = numbers[i].value < numbers[i].min;
        if (few || numbers[i].value > numbers[i].max)
            return hill_fail(why, HILL_E_INVALID, "cannot configure %u %s (%s): at %s %u",
                             numbers[i].value, numbers[i].name, numbers[i].option,
                             few ? "least" : "most", few ? numbers[i].min : numbers[i].max);
    }
    return s->beta >= 0 ? 0
                        : hill_fail(why, HILL_E_INVALID,
                                    "cannot configure beta %g (--beta): at least 0", s->beta);
}

int epoch_settings_check(const struct epoch_settings *s, struct hill_why *why)
{
    int rc = kv_geometry_check(&s->plan.geometry, why);
    if (rc == 0)
        rc = check_numbers(s, why);
    if (rc)
        return rc;
    if (s->csd_cast && !scores_where_it_lies(s->plan.selection.policy))
        return hill_fail(why, HILL_E_INVALID,
                         "--csd-digests cast and --policy %s exclude each other: the drive scores "
                         "for hillinfer alone",
                         kv_policy_name(s->plan.selection.policy));
    if (s->csd_drives > LAYOUT_DRIVES_MAX || s->csd_drive >= epoch_drives(s))
        return hill_fail(why, HILL_E_INVALID, "cannot configure drive %u of %u: there are %u",
                         s->csd_drive, s->csd_drives, LAYOUT_DRIVES_MAX);
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
    out->granularity = selection->granularity;
}

struct kv_selection_settings selection_from_wire(const Hill__Selection *in)
{
    return (struct kv_selection_settings){.alpha = in->alpha,
                                          .budget = in->budget,
                                          .sinks = in->sinks,
                                          .window = in->window,
                                          .policy = (uint32_t)in->policy,
                                          .importance = (uint32_t)in->importance,
                                          .exact_below = in->exact_below,
                                          .granularity =
                                              (uint16_t)(in->granularity ? in->granularity : 1)};
}

/* Settings that are the same on the wire: numbers, texts, and those of the plan. */
/* clang-format off */
#define NUMBERS(X)                                                                                 \
    X(run_id) X(epoch) X(tiers_epoch) X(threads) X(hot_cap_bytes) X(hot_bytes) X(gpu_kv_cap_bytes) \
    X(gpu_slots) X(staging_slots) X(gpu_drop) X(csd_attached) X(csd_plain) X(csd_cast) X(csd_dram_bytes) X(cold_cap_bytes) X(block_tokens) X(csd_drives) X(csd_drive)    \
    X(beta) X(beta_auto) X(host_scores) X(placement) X(pin) X(speculate) X(exact_layers) X(simd) X(trace_scores) X(prefix_bytes) X(prefix_share) X(prefix_cache_bytes) X(prefix_away) X(prefix_gpu_cache_bytes)
/* clang-format on */
#define TEXTS(X)                                                                                   \
    X(model_path)                                                                                  \
    X(device)                                                                                      \
    X(csd_url) X(csd_device) X(csd_key) X(csd_peer) X(trace_path) X(record_path) X(prefix_dir)
/* clang-format off */
#define PLAN(X)                                                                                    \
    X(n_embd) X(n_ff) X(n_vocab) X(ctx_tokens) X(n_sequences) X(batch_tokens)                      \
    X(digest_cache_bytes) X(lends_digests) X(rows_in_flight)
/* clang-format on */

#define TO_WIRE(field)      c->field = s->field;
#define TEXT_TO_WIRE(field) c->field = (char *)(s->field ? s->field : "");
#define PLAN_TO_WIRE(field) c->field = s->plan.field;
#define READ(field)         out->field = c->field;
#define PLAN_READ(field)    out->plan.field = c->field;

static void drives_to_wire(struct epoch_wire *out, const struct epoch_settings *s)
{
    out->configure.n_drives = s->csd_drives > 1 ? s->csd_drives : 0;
    out->configure.drives = out->drive_list;
    for (uint32_t i = 0; i < out->configure.n_drives; i++) {
        hill__drive__init(out->drive_list[i] = &out->drives[i]);
        out->drives[i].attached = s->drives[i].attached;
        out->drives[i].cap_bytes = s->drives[i].cap_bytes;
        out->drives[i].speed = s->drives[i].speed;
    }
}

static void drives_read(struct epoch_settings *out, const Hill__Configure *c)
{
    for (uint32_t i = 0; i < c->n_drives && i < LAYOUT_DRIVES_MAX; i++)
        out->drives[i] = (struct epoch_drive){c->drives[i]->attached, c->drives[i]->cap_bytes,
                                              c->drives[i]->speed};
}

void epoch_settings_to_wire(struct epoch_wire *out, const struct epoch_settings *s)
{
    const struct kv_geometry *g = &s->plan.geometry;
    Hill__Configure *c = &out->configure;
    hill__message__init(&out->message);
    hill__configure__init(c);
    out->message.body_case = HILL__MESSAGE__BODY_CONFIGURE;
    out->message.configure = c;
    selection_to_wire(c->selection = &out->selection, &s->plan.selection);
    proto_set_csd_model(c->csd_model = &out->csd_model, &s->csd_model);
    NUMBERS(TO_WIRE)
    TEXTS(TEXT_TO_WIRE)
    PLAN(PLAN_TO_WIRE)
    drives_to_wire(out, s);
    c->n_layers = g->n_layers;
    c->n_heads = g->n_heads;
    c->n_kv_heads = g->n_kv_heads;
    c->head_dim = g->head_dim;
    c->score_bits = kv_digest_bits(g);
    c->layer_window = s->plan.windows.tokens;
    c->global_every = s->plan.windows.global_every;
}

int epoch_settings_read(struct epoch_settings *out, const Hill__Configure *c, struct hill_why *why)
{
    *out = (struct epoch_settings){
        .plan = {.geometry = {c->n_layers, c->n_heads, c->n_kv_heads, c->head_dim, c->score_bits},
                 .windows = {c->layer_window, c->global_every},
                 .selection = selection_from_wire(c->selection),
                 .speculates = c->speculate != HILL__SPECULATE__SPECULATE_OFF},
        .csd_model = proto_csd_model(c->csd_model)};
    NUMBERS(READ)
    TEXTS(READ)
    PLAN(PLAN_READ)
    drives_read(out, c);
    if (!out->tiers_epoch) /* of a recording from before it */
        out->tiers_epoch = out->epoch;
    return epoch_settings_check(out, why);
}

/* ---- names -------------------------------------------------------------------------------- */

static const char *const simds[] = {"auto", "reference", "avx2", "avx512", "avx512vnni"};
static const char *const speculates[] = {"off", "on", "verify"};
static const char *const placements[] = {"recency", "bkp", "paper", "lru", "lfu"};

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
