/* policy/replay.c - see replay.h. */
#include "policy/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct stream { /* the records of one (request, sequence, layer), in the order of the file */
    const uint32_t *records;
    uint32_t count, max_tokens;
};

struct selections { /* a stream's, for the policy that knows the future */
    uint32_t *positions;
    uint32_t *n_tokens, *n_selected;
    const uint32_t **selected;
};

/* ---- streams ------------------------------------------------------------------------------ */

static int by_stream(const void *a, const void *b, void *context)
{
    const struct trace_file *file = context;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const struct trace_record *x = trace_file_record(file, i), *y = trace_file_record(file, j);
    if (x->request != y->request)
        return x->request < y->request ? -1 : 1;
    if (x->sequence != y->sequence)
        return x->sequence < y->sequence ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return i < j ? -1 : i > j;
}

static bool same_stream(const struct trace_record *x, const struct trace_record *y)
{
    return x->request == y->request && x->sequence == y->sequence && x->layer == y->layer;
}

static bool same_request(const struct trace_record *x, const struct trace_record *y)
{
    return x->request == y->request && x->sequence == y->sequence;
}

/* ---- the future --------------------------------------------------------------------------- */

static void free_selections(struct selections *s)
{
    free(s->positions);
    free(s->n_tokens);
    free(s->n_selected);
    free(s->selected);
}

static int load_selections(struct selections *s, struct trace_file *file, const struct stream *in,
                           struct hill_why *why)
{
    uint64_t total = 0, at = 0;
    for (uint32_t i = 0; i < in->count; i++)
        total += trace_file_record(file, in->records[i])->n_selected;
    *s = (struct selections){.positions = calloc(total + 1, sizeof *s->positions),
                             .n_tokens = calloc(in->count, sizeof *s->n_tokens),
                             .n_selected = calloc(in->count, sizeof *s->n_selected),
                             .selected = calloc(in->count, sizeof *s->selected)};
    if (!s->positions || !s->n_tokens || !s->n_selected || !s->selected)
        return hill_fail(why, HILL_E_NOMEM, "cannot replay %s: out of memory",
                         trace_file_path(file));
    for (uint32_t i = 0; i < in->count; i++) {
        const struct trace_record *r = trace_file_record(file, in->records[i]);
        const uint32_t *words;
        const uint16_t *scores;
        int rc = trace_file_read(file, in->records[i], &words, &scores, why);
        if (rc)
            return rc;
        s->n_tokens[i] = r->n_tokens;
        s->n_selected[i] = r->n_selected;
        s->selected[i] = s->positions + at;
        for (uint32_t j = 0; j < r->n_selected; j++)
            s->positions[at++] = words[j] & TRACE_POSITION_MASK;
    }
    return 0;
}

/* ---- replay ------------------------------------------------------------------------------- */

static int replay_record(struct policy *policy, struct trace_file *file, uint32_t index, double hot,
                         uint32_t *positions, struct hill_why *why)
{
    const struct trace_record *r = trace_file_record(file, index);
    const uint32_t *words;
    const uint16_t *scores;
    struct policy_moves moves;
    int rc = trace_file_read(file, index, &words, &scores, why);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < r->n_selected; i++)
        positions[i] = words[i] & TRACE_POSITION_MASK;
    if (r->n_tokens < policy_tokens(policy)) /* the scorer had started again, or had trimmed */
        rc = policy_trim(policy, r->n_tokens);
    if (rc == 0)
        rc = policy_append(policy, r->n_tokens - policy_tokens(policy),
                           (uint32_t)ceil(hot * r->n_tokens), &moves);
    if (rc == 0)
        rc = policy_step(policy, positions, r->n_selected, scores, 0, &moves);
    if (rc == HILL_E_INVALID)
        return hill_fail(why, rc,
                         "cannot replay %s: record %u has no scores, which this policy follows",
                         trace_file_path(file), index);
    return rc ? hill_fail(why, rc, "cannot replay %s: out of memory", trace_file_path(file)) : 0;
}

static void add_stats(struct policy_stats *sum, const struct policy_stats *one)
{
    sum->steps += one->steps;
    sum->hits_hot += one->hits_hot;
    sum->hits_cold += one->hits_cold;
    sum->promoted += one->promoted;
    sum->demoted += one->demoted;
    sum->placed_cold += one->placed_cold;
    sum->bounced += one->bounced;
}

static int replay_stream(struct replay_result *out, struct trace_file *file,
                         const struct stream *in, enum policy_kind kind,
                         const struct replay_settings *settings, struct hill_why *why)
{
    struct policy_settings policy_settings = settings->policy;
    struct selections selections = {0};
    struct policy_future future;
    struct policy *policy = NULL;
    uint32_t *positions = calloc(in->max_tokens, sizeof *positions);
    int rc = positions ? 0
                       : hill_fail(why, HILL_E_NOMEM, "cannot replay %s: out of memory",
                                   trace_file_path(file));
    policy_settings.max_tokens = in->max_tokens;
    if (kind != POLICY_BKP)
        policy_settings.rate = 0;
    if (rc == 0 && kind == POLICY_BELADY) {
        rc = load_selections(&selections, file, in, why);
        future = (struct policy_future){.n_steps = in->count,
                                        .n_tokens = selections.n_tokens,
                                        .n_selected = selections.n_selected,
                                        .selected = selections.selected};
        policy_settings.future = &future;
    }
    if (rc == 0)
        rc = policy_create(&policy, kind, &policy_settings, why);
    for (uint32_t i = 0; i < in->count && rc == 0; i++)
        rc = replay_record(policy, file, in->records[i], settings->hot, positions, why);
    if (rc == 0)
        add_stats(&out->stats, policy_stats(policy));
    policy_destroy(policy);
    free_selections(&selections);
    free(positions);
    return rc;
}

struct replay_settings replay_defaults(const struct trace_file *file)
{
    const struct trace_settings *t = trace_file_settings(file);
    struct replay_settings s = {.hot = 0.6, .layer = -1, .policy = policy_defaults()};
    s.policy.sinks = t->sinks;
    s.policy.window = t->window;
    if (t->alpha > 0 && t->alpha <= 1)
        s.policy.alpha = s.policy.pin = t->alpha;
    return s;
}

static int replay_all(struct replay_result *out, struct trace_file *file, uint32_t *order,
                      enum policy_kind kind, const struct replay_settings *settings,
                      struct hill_why *why)
{
    uint32_t count = trace_file_count(file);
    const struct trace_record *longest = NULL; /* the first layer of a request counts its steps */
    for (uint32_t from = 0, to; from < count; from = to) {
        const struct trace_record *first = trace_file_record(file, order[from]);
        struct stream stream = {.records = order + from};
        for (to = from; to < count; to++) {
            const struct trace_record *r = trace_file_record(file, order[to]);
            if (!same_stream(first, r))
                break;
            stream.count++;
            if (r->n_tokens > stream.max_tokens)
                stream.max_tokens = r->n_tokens;
        }
        if (settings->layer >= 0 && settings->layer != first->layer)
            continue;
        int rc = replay_stream(out, file, &stream, kind, settings, why);
        if (rc)
            return rc;
        out->streams++;
        out->queries += stream.count;
        if (longest == NULL || !same_request(longest, first))
            out->steps += stream.count;
        longest = first;
        if (stream.max_tokens > out->n_last)
            out->n_last = stream.max_tokens;
    }
    return 0;
}

int replay_run(struct replay_result *out, struct trace_file *file, enum policy_kind kind,
               const struct replay_settings *settings, struct hill_why *why)
{
    uint32_t count = trace_file_count(file);
    *out = (struct replay_result){0};
    if (!(settings->hot > 0 && settings->hot <= 1))
        return hill_fail(why, HILL_E_INVALID, "a hot share of %g is not in (0, 1]", settings->hot);
    uint32_t *order = calloc((size_t)count + 1, sizeof *order);
    if (order == NULL)
        return hill_fail(why, HILL_E_NOMEM, "cannot replay %s: out of memory",
                         trace_file_path(file));
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    qsort_r(order, count, sizeof *order, by_stream, file);
    int rc = replay_all(out, file, order, kind, settings, why);
    free(order);
    return rc;
}

double replay_hit_rate(const struct replay_result *result)
{
    uint64_t all = result->stats.hits_hot + result->stats.hits_cold;
    return all ? (double)result->stats.hits_hot / (double)all : 1;
}

void replay_add(struct replay_result *sum, const struct replay_result *one)
{
    add_stats(&sum->stats, &one->stats);
    sum->streams += one->streams;
    sum->queries += one->queries;
    sum->steps += one->steps;
    if (one->n_last > sum->n_last)
        sum->n_last = one->n_last;
}
