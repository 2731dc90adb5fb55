/* tools/eval/matrix.c - see matrix.h. */
#include "tools/eval/matrix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "kv/geometry.h"
#include "kv/plane.h"
#include "kv/score.h"

#define WINDOW_NAME "window"

/* Words with commas between them; `all` (a list with '|' between its words) stands for the word
 * "all". */
static int split(struct matrix_words *out, const char *what, const char *text, const char *all,
                 struct hill_why *why)
{
    bool everything = all && text && strcmp(text, "all") == 0;
    const char *at = everything ? all : text, *stops = everything ? "|" : ",";
    out->count = 0;
    while (at) {
        size_t n = strcspn(at, stops);
        if (n == 0 || n >= MATRIX_WORD_MAX || out->count == MATRIX_WORDS_MAX)
            return hill_fail(why, HILL_E_INVALID,
                             "%s '%.100s' is no list of at most %u words with commas between them",
                             what, text, MATRIX_WORDS_MAX);
        memcpy(out->word[out->count], at, n);
        out->word[out->count++][n] = '\0';
        for (uint32_t i = 0; i + 1 < out->count; i++)
            if (strcmp(out->word[i], out->word[out->count - 1]) == 0)
                return hill_fail(why, HILL_E_INVALID, "%s names %s twice", what, out->word[i]);
        at = at[n] ? at + n + 1 : NULL;
    }
    return 0;
}

/* ---- words to values ----------------------------------------------------------------------- */

struct lists {
    struct matrix_words policies, alphas, budgets, importances, score_bits, speculate;
};

/* "full|hillinfer|...|window": what the pipeline knows, but for host-digest, whose answers are
 * hillinfer's. */
static void all_policies(char *out, size_t room)
{
    size_t used = (size_t)snprintf(out, room, "%s|", kv_policy_name(KV_POLICY_FULL));
    for (uint32_t i = 0; i < KV_POLICY_COUNT; i++)
        if (i != KV_POLICY_FULL && i != KV_POLICY_HOST_DIGEST)
            used += (size_t)snprintf(out + used, room - used, "%s|", kv_policy_name(i));
    snprintf(out + used, room - used, WINDOW_NAME);
}

static void all_importances(char *out, size_t room)
{
    size_t used = 0;
    for (uint32_t i = 0; i < KV_IMPORTANCE_COUNT; i++)
        used += (size_t)snprintf(out + used, room - used, i ? "|%s" : "%s", kv_importance_name(i));
}

static int read_lists(struct lists *l, const struct matrix_order *o, struct hill_why *why)
{
    char policies[256], importances[256];
    all_policies(policies, sizeof policies);
    all_importances(importances, sizeof importances);
    int code = split(&l->policies, "--policy", o->policies, policies, why);
    if (code == 0)
        code = split(&l->alphas, "--alpha", o->alphas, NULL, why);
    if (code == 0)
        code = split(&l->budgets, "--budget", o->budgets, NULL, why);
    if (code == 0)
        code = split(&l->importances, "--importance", o->importances, importances, why);
    if (code == 0)
        code = split(&l->score_bits, "--score-bits", o->score_bits, NULL, why);
    if (code == 0)
        code = split(&l->speculate, "--speculate", o->speculate, NULL, why);
    return code;
}

static int read_policy(struct setting *s, const char *name, struct hill_why *why)
{
    s->window_only = strcmp(name, WINDOW_NAME) == 0;
    s->selection.policy = KV_POLICY_HILLINFER;
    snprintf(s->name, sizeof s->name, "%s", name);
    int code = s->window_only ? 0 : kv_policy_parse(name, &s->selection.policy);
    if (code == HILL_E_UNSUPPORTED)
        return hill_fail(why, code, "--policy %s is not in this version", name);
    return code ? hill_fail(why, HILL_E_INVALID, "--policy: there is no policy %s", name) : 0;
}

static int read_alpha(struct setting *s, const char *text, struct hill_why *why)
{
    double alpha;
    if (options_read_real(text, &alpha) || alpha <= 0 || alpha > 1)
        return hill_fail(why, HILL_E_INVALID, "--alpha: %s is not above 0 and at most 1", text);
    s->selection.alpha = alpha;
    s->selection.budget = 0;
    snprintf(s->amount, sizeof s->amount, "%.6g %%", alpha * 100);
    return 0;
}

static int read_budget(struct setting *s, const char *text, struct hill_why *why)
{
    int64_t budget;
    if (options_read_integer(text, &budget) || budget < 1 || budget > KV_MAX_TOKENS)
        return hill_fail(why, HILL_E_INVALID, "--budget: %s is no number of tokens", text);
    if (budget < (int64_t)s->selection.sinks + s->selection.window)
        return hill_fail(why, HILL_E_INVALID,
                         "--budget: %s is less than --sinks and --window together", text);
    s->selection.alpha = 1;
    s->selection.budget = (uint32_t)budget;
    snprintf(s->amount, sizeof s->amount, "%lld", (long long)budget);
    return 0;
}

static int read_importance(struct setting *s, const char *name, struct hill_why *why)
{
    for (uint32_t i = 0; i < KV_IMPORTANCE_COUNT; i++)
        if (strcmp(kv_importance_name(i), name) == 0) {
            s->selection.importance = i;
            return 0;
        }
    return hill_fail(why, HILL_E_INVALID, "--importance: there is no %s", name);
}

/* ---- rows ---------------------------------------------------------------------------------- */

bool setting_has_digests(const struct setting *s)
{
    return !s->window_only && (s->selection.policy == KV_POLICY_HILLINFER ||
                               s->selection.policy == KV_POLICY_HOST_DIGEST);
}

static void write_text(struct setting *s, const struct matrix_pipeline *p)
{
    const struct kv_selection_settings *k = &s->selection;
    if (!s->window_only && k->policy == KV_POLICY_FULL)
        snprintf(s->text, sizeof s->text, "full");
    else if (s->window_only)
        snprintf(s->text, sizeof s->text, "window %s sinks %u window %u", s->amount, k->sinks,
                 k->window);
    else if (!setting_has_digests(s))
        snprintf(s->text, sizeof s->text, "%s %s sinks %u window %u", s->name, s->amount, k->sinks,
                 k->window);
    else
        snprintf(s->text, sizeof s->text,
                 "%s %s sinks %u window %u importance %s score-bits %s speculate %s", s->name,
                 s->amount, k->sinks, k->window, kv_importance_name(k->importance), p->score_bits,
                 p->speculate);
}

static bool selects_tokens(const struct setting *s)
{
    return !s->window_only && s->selection.policy != KV_POLICY_FULL;
}

static int add_row(struct matrix *m, const struct setting *setting, struct hill_why *why)
{
    if (m->n_rows == MATRIX_ROWS_MAX)
        return hill_fail(why, HILL_E_INVALID, "more than %u settings", MATRIX_ROWS_MAX);
    struct setting *larger = realloc(m->rows, (m->n_rows + 1) * sizeof *larger);
    if (!larger)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the settings");
    m->rows = larger;
    struct setting *row = &m->rows[m->n_rows++];
    *row = *setting;
    if (row->selection.granularity > 1 && selects_tokens(row)) {
        size_t used = strlen(row->amount);
        snprintf(row->amount + used, sizeof row->amount - used, ", groups of %u",
                 row->selection.granularity);
    }
    write_text(row, &m->pipelines[row->pipeline]);
    return 0;
}

/* One policy and importance on one pipeline: every alpha, then every budget. */
static int add_amounts(struct matrix *m, struct setting *s, const struct lists *l,
                       struct hill_why *why)
{
    int code = 0;
    if (!s->window_only && s->selection.policy == KV_POLICY_FULL) {
        s->selection.alpha = 1;
        s->selection.budget = 0;
        snprintf(s->amount, sizeof s->amount, "all");
        return add_row(m, s, why);
    }
    for (uint32_t i = 0; code == 0 && i < l->alphas.count; i++)
        if ((code = read_alpha(s, l->alphas.word[i], why)) == 0)
            code = add_row(m, s, why);
    for (uint32_t i = 0; code == 0 && i < l->budgets.count; i++)
        if ((code = read_budget(s, l->budgets.word[i], why)) == 0)
            code = add_row(m, s, why);
    return code;
}

static int add_policy(struct matrix *m, struct setting *s, const struct lists *l,
                      struct hill_why *why)
{
    int code = 0;
    uint32_t ways = setting_has_digests(s) ? l->importances.count : 1;
    for (uint32_t i = 0; code == 0 && i < ways; i++)
        if ((code = read_importance(s, l->importances.word[i], why)) == 0)
            code = add_amounts(m, s, l, why);
    return code;
}

/* A pipeline started with `policy`, when it is the first that can answer one of the list's.
 * Importances, score bits and ways to guess are compared one at a time, each with the first of the
 * other lists: a row for each pair of them would say little that these do not. */
static int add_pipeline(struct matrix *m, const struct lists *l, const struct matrix_order *o,
                        const struct matrix_pipeline *kind, struct hill_why *why)
{
    bool first = m->n_pipelines == 0, used = false;
    struct lists own = *l;
    int code = 0;
    if (!first)
        own.importances.count = 1;
    m->pipelines[m->n_pipelines] = *kind;
    for (uint32_t i = 0; code == 0 && i < l->policies.count; i++) {
        struct setting s = {
            .selection = {.sinks = o->sinks, .window = o->window, .granularity = o->granularity},
            .pipeline = m->n_pipelines};
        code = read_policy(&s, l->policies.word[i], why);
        bool same = kv_policy_served(kind->policy, s.selection.policy) &&
                    (s.selection.policy != KV_POLICY_FULL || kind->policy == KV_POLICY_FULL);
        if (code || !same)
            continue;
        used = true;
        if (setting_has_digests(&s) || kind->policy != KV_POLICY_FULL || first)
            code = add_policy(m, &s, &own, why); /* the others: the first pipeline has them */
    }
    m->n_pipelines += used;
    return code;
}

int matrix_build(struct matrix *m, const struct matrix_order *o, struct hill_why *why)
{
    static const uint32_t of_their_own[MATRIX_OWN_PIPELINES] = {
        KV_POLICY_H2O, KV_POLICY_LEOAM, KV_POLICY_PREFETCH, KV_POLICY_HOST_DIGEST};
    struct lists l;
    *m = (struct matrix){0};
    int code = read_lists(&l, o, why);
    if (code == 0 &&
        (!l.policies.count || !l.importances.count || !l.score_bits.count || !l.speculate.count ||
         l.score_bits.count + l.speculate.count - 1 > MATRIX_WORDS_MAX))
        code = hill_fail(
            why, HILL_E_INVALID,
            "--policy, --importance, --score-bits and --speculate each need a word, and no "
            "more than %u pipelines",
            MATRIX_WORDS_MAX);
    struct matrix_pipeline kind = {.policy = KV_POLICY_FULL};
    for (uint32_t b = 0; code == 0 && b < l.score_bits.count; b++)
        for (uint32_t v = 0; code == 0 && v < (b ? 1 : l.speculate.count); v++) {
            strcpy(kind.score_bits, l.score_bits.word[b]);
            strcpy(kind.speculate, l.speculate.word[v]);
            code = add_pipeline(m, &l, o, &kind, why);
        }
    strcpy(kind.score_bits, "8");
    strcpy(kind.speculate, "off");
    for (uint32_t i = 0; code == 0 && i < MATRIX_OWN_PIPELINES; i++) {
        kind.policy = of_their_own[i];
        code = add_pipeline(m, &l, o, &kind, why);
    }
    if (code == 0 && m->n_rows == 0)
        code = hill_fail(why, HILL_E_INVALID, "nothing to compare: no --alpha and no --budget");
    if (code)
        matrix_free(m);
    return code;
}

void matrix_free(struct matrix *m)
{
    free(m->rows);
    *m = (struct matrix){0};
}

const char *setting_importance(const struct setting *s)
{
    return kv_importance_name(s->selection.importance);
}

void setting_selection(const struct setting *s, uint32_t n_tokens, Hill__Selection *out)
{
    const struct kv_selection_settings *k = &s->selection;
    hill__selection__init(out);
    out->alpha = k->alpha;
    out->budget = k->budget;
    out->sinks = k->sinks;
    out->window = k->window;
    out->policy = k->policy;
    out->importance = k->importance;
    out->granularity = k->granularity;
    if (!s->window_only)
        return;
    out->alpha = 1;
    out->budget = kv_budget_tokens(k, n_tokens);
    out->window = out->budget > k->sinks ? out->budget - k->sinks : 1;
}
