/* tools/bench/comparison.c - see comparison.h. */
#include "tools/bench/comparison.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/kept_rounds.h"
#include "kv/group.h"
#include "kv/plane.h"

#define MB       1e-6
#define ROWS_MAX 25

_Static_assert(COMPARISON_METHODS_MAX *MEASURES <= KEPT_METHODS_MAX, "a round is one line");

struct method *comparison_add(struct comparison *c, const char *name, const struct point *like,
                              uint32_t against)
{
    if (c->n == COMPARISON_METHODS_MAX)
        bench_fail("too many methods in %s", c->name);
    struct method *m = &c->methods[c->n];
    m->name = name;
    m->against = against;
    m->point = *like;
    snprintf(m->options, sizeof m->options, "%s", like->options);
    snprintf(m->csd_model, sizeof m->csd_model, "%s", like->csd_model);
    m->point.options = m->options;
    m->point.csd_model = m->csd_model;
    c->n++;
    return m;
}

void comparison_set_dram(struct method *m, double bytes)
{
    struct csd_model model = CSD_MODEL_SMARTSSD;
    struct hill_why why;
    if (csd_model_parse(&model, point_csd_model(), &why))
        bench_fail("CSD_MODEL: %s", why.text);
    model.dram = bytes;
    csd_model_print(m->csd_model, &model);
}

uint32_t comparison_kv(const struct bench_options *o, const char *usual, const char *quick,
                       struct comparison_kv list[], uint32_t most)
{
    char words[512], *save = NULL;
    uint32_t n = 0;
    snprintf(words, sizeof words, "%s",
             bench_is_set("KV") ? getenv("KV")
             : o->quick         ? quick
                                : usual);
    for (char *w = strtok_r(words, " ,", &save); w && n < most; w = strtok_r(NULL, " ,", &save)) {
        const char *colon = strchr(w, ':');
        int rows = colon ? atoi(colon + 1) : 1;
        if (rows < 1 || rows > ROWS_MAX)
            bench_fail("KV: %s: 1 to %d rows", w, ROWS_MAX);
        snprintf(list[n].name, sizeof list[n].name, "%.*s", (int)strcspn(w, ":"), w);
        list[n++].rows = (uint32_t)rows;
    }
    return n;
}

uint32_t comparison_steps(const struct bench_options *o, uint32_t usual)
{
    if (!bench_is_set("STEPS"))
        return o->quick ? 3 : usual;
    int steps = atoi(getenv("STEPS"));
    if (steps < 2) /* a step's part is what came on top of a request of one */
        bench_fail("STEPS is '%s', not a number from 2 on", getenv("STEPS"));
    return (uint32_t)steps;
}

/* ---- rounds ---- */

/* What makes the rounds of a comparison its own. */
static void settings_of(const struct comparison *c, char *out, size_t room)
{
    size_t used = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        used += (size_t)snprintf(out + used, room - used, "%s[%u %s] ", i ? "; " : "",
                                 c->methods[i].against, c->methods[i].name);
        if (used + 1024 > room)
            bench_fail("the settings of %s are too long", c->name);
        point_settings(&c->methods[i].point, out + used, room - used);
        used += strlen(out + used);
    }
}

/* Of a token in the drive's plane of digests, or of keys. */
static double plane_bytes(const char *policy, const struct kv_geometry *g)
{
    uint32_t number;
    if (kv_policy_parse(policy, &number))
        bench_fail("there is no policy %s", policy);
    uint32_t keys = kv_plane_key_bytes(g, number);
    return keys ? keys : kv_digest_bytes(g);
}

static void note(const struct point *p, const struct point_result *r, double out[MEASURES])
{
    struct kv_geometry g = p->kv->geometry;
    g.digest_bits = strstr(p->options, "--score-bits 4") ? 4 : 8;
    double cold_bytes = r->ever_cold * (kv_entry_bytes(&g) + plane_bytes(p->policy, &g));
    const double values[MEASURES] = {
        [M_STEP] = r->step_ms,
        [M_IDLE] = r->idle_ms,
        [M_HOT] = r->hot_share,
        [M_COLD_HITS] = r->cold_share,
        [M_HOST] = r->score_cpu_ms,
        [M_FLASH] = r->all_flash,
        [M_LINK] = r->all_link,
        [M_UPLOAD] = r->gpu_upload,
        /* what a hook changes of the plane is not known here */
        [M_WRITTEN] = cold_bytes > 0 && !p->hook ? r->written / cold_bytes : 0,
        [M_LATE] = r->step_ms > 0 ? r->late_step_ms / r->step_ms : 0,
        [M_BUSY_FLASH] = r->busy_flash_ms,
        [M_BUSY_DRAM] = r->busy_dram_ms,
        [M_BUSY_SCORE] = r->busy_score_ms,
        [M_BUSY_LINK] = r->busy_link_ms,
    };
    memcpy(out, values, sizeof values);
}

/* again: earlier rounds are dropped, as late as can be: a round that is ended costs none of
 * them. */
static void measure_round(const struct comparison *c, const struct kept_test *kept, bool again)
{
    double values[COMPARISON_METHODS_MAX * MEASURES];
    for (uint32_t i = 0; i < c->n; i++) {
        struct point_result r = {.step_ms = 0};
        if (!point_run(&c->methods[i].point, &r) && !c->methods[i].may_refuse)
            bench_fail("%s, %s: refused", c->name, c->methods[i].name);
        note(&c->methods[i].point, &r, values + (size_t)i * MEASURES);
        fprintf(stderr, "  %s, %s: %.2f ms%s\n", c->name, c->methods[i].name, r.step_ms,
                r.step_ms > 0 ? "" : " (refused)");
    }
    if (again)
        kept_rounds_drop(kept);
    kept_rounds_add(kept, values);
}

static void load(struct comparison *c, const struct kept_test *kept, uint32_t most)
{
    static struct bench_samples all[COMPARISON_METHODS_MAX * MEASURES];
    c->rounds = kept_rounds_load(kept, most, all, c->commits);
    for (uint32_t i = 0; i < c->n; i++)
        memcpy(c->methods[i].measured, all + (size_t)i * MEASURES, sizeof c->methods[i].measured);
}

/* One more round of the comparison unless it has enough; false: nothing was to be done. */
static bool go_on(struct comparison *c, const char *file, uint32_t turn, uint32_t most)
{
    static char settings[COMPARISON_METHODS_MAX * 1100];
    settings_of(c, settings, sizeof settings);
    const struct kept_test kept = {file, c->name, settings, c->n * MEASURES};
    bool asked = bench_is_asked("TESTS", c->name) && !bench_is_set("PREPARE");
    bool again = turn == 0 && !bench_is_set("RESUME");
    load(c, &kept, most);
    if (!asked || (!again && (c->rounds > turn || c->rounds >= most)) || !bench_time_is_left())
        return false;
    measure_round(c, &kept, again);
    load(c, &kept, most);
    return true;
}

void comparison_measure_all(struct comparison *list, uint32_t n, const char *file,
                            const struct bench_options *o)
{
    for (uint32_t turn = 0; turn < o->rounds; turn++)
        for (uint32_t i = 0; i < n; i++)
            go_on(&list[i], file, turn, o->rounds);
}

/* ---- the table ---- */

static double median_of(const struct method *m, enum measure what)
{
    return bench_median(&m->measured[what]);
}

bool comparison_was_refused(const struct method *m)
{
    return median_of(m, M_STEP) == 0;
}

struct bench_samples comparison_ratio(const struct method *a, const struct method *b)
{
    return bench_ratios(&a->measured[M_STEP], &b->measured[M_STEP]);
}

/* What pages may be written for each byte of what is or was cold. */
#define WRITTEN_BAR 1.3

static void print_drive(const struct method *m)
{
    double written = median_of(m, M_WRITTEN);
    if (written > 0)
        printf(" %.2f, %s |", written, written <= WRITTEN_BAR ? "met" : "missed");
    else
        printf(" |");
    if (m->point.drive == POINT_MODELLED)
        printf(" %.1f, %.1f, %.1f, %.1f | %.1f %% |\n", median_of(m, M_BUSY_FLASH),
               median_of(m, M_BUSY_DRAM), median_of(m, M_BUSY_SCORE), median_of(m, M_BUSY_LINK),
               100 * median_of(m, M_LATE));
    else
        printf(" | |\n");
}

static void print_method(const struct comparison *c, uint32_t i)
{
    const struct method *m = &c->methods[i];
    printf("| %s |", m->name);
    if (comparison_was_refused(m)) {
        printf(" refused | | | | | | | | | | | | | |\n");
        return;
    }
    bench_print_quartiles(&m->measured[M_STEP], " %.2f | %.2f - %.2f |");
    if (m->against != i) {
        struct bench_samples ratio = comparison_ratio(m, &c->methods[m->against]);
        bench_print_quartiles(&ratio, " %.3f | %.3f - %.3f |");
    } else {
        printf(" | |");
    }
    printf(" %.0f %% | %.2f | %.0f %% | %.2f | %.1f | %.1f | %.1f |",
           100 * median_of(m, M_IDLE) / median_of(m, M_STEP), median_of(m, M_HOT),
           100 * median_of(m, M_COLD_HITS), median_of(m, M_HOST), median_of(m, M_FLASH) * MB,
           median_of(m, M_LINK) * MB, median_of(m, M_UPLOAD) * MB);
    print_drive(m);
}

void comparison_print(const struct comparison *c)
{
    if (!c->rounds) {
        printf("\n**%s**: not measured.\n", c->name);
        return;
    }
    printf("\n**%s** (%u rounds, at %s)\n\n"
           "| | ms/token | quartiles | times | quartiles | GPU waits | hot | cold of selected | "
           "host scores, ms | flash, MB | link, MB | GPU upload, MB | written | busy, ms: flash, "
           "DRAM, scorer, link | late |\n"
           "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
           c->name, c->rounds, c->commits);
    for (uint32_t i = 0; i < c->n; i++)
        print_method(c, i);
}

void comparison_print_legend(void)
{
    printf("Columns, medians of the rounds: ms of a decode step (in each round the median of its "
           "steps); times: how many times as long as the row that it is paired with, taken within "
           "each round; " BENCH_QUARTILES_TEXT
           "; MB of 10^6 bytes and busy times: of one step. A batch's rows differ, since what is "
           "kept of digests stays with whoever came first: hot (share of the entries), cold of "
           "selected, flash, link, busy, written and late are of all of its rows together, as the "
           "scorer (bytes) and the modelled drive (times) count while all of them decode; host "
           "scores (CPU time of the host's scoring threads, `score_cpu_ms`: digests, keys or "
           "bounds) and GPU upload are of the row that came last. Written: page bytes written in "
           "the whole run, restoring sessions included, over the bytes of entries, and of digests "
           "or keys beside them, of what is or was cold, and whether the bar of %.1f is met; late: "
           "how long the real work took beyond "
           "the modelled time, of the step.\n",
           WRITTEN_BAR);
}
