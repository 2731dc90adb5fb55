/* tools/eval/work.c - see work.h. */
#include "tools/eval/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"

struct progress {
    struct work *work;
    size_t total, done, next_line;
    int64_t started_ns;
    bool terminal;
};

/* ---- progress ------------------------------------------------------------------------------ */

static void clear_line(const struct progress *p)
{
    if (p->terminal)
        fputs("\r\033[K", stderr);
}

static void show(struct progress *p, const struct job *job)
{
    if (p->work->quiet || (!p->terminal && p->done < p->next_line && p->done < p->total))
        return;
    double seconds = (double)(clock_now_ns() - p->started_ns) / 1e9;
    double left = seconds / (double)p->done * (double)(p->total - p->done);
    clear_line(p);
    fprintf(stderr, "%zu / %zu, %.1f s each, %.0f min left; %s, %s %s%s", p->done, p->total,
            seconds / (double)p->done, left / 60, job->item->group, job->setting->name,
            job->setting->amount, p->terminal ? "" : "\n");
    fflush(stderr);
    p->next_line = p->done + (p->total + 9) / 10;
}

/* An answer_taker. */
static int take(void *context, const struct job *job, const struct answer *answer,
                struct hill_why *why)
{
    struct progress *p = context;
    struct work *w = p->work;
    int code = 0;
    if (answer->reading) {
        if (answer->code) {
            clear_line(p);
            fprintf(stderr, "hill-eval: %s: its prompt is read for each request: %s\n",
                    job->item->place, answer->why);
        }
        return 0;
    }
    p->done++;
    if (answer->code) {
        w->n_failed++;
        clear_line(p);
        fprintf(stderr, "hill-eval: %s, %s: %s\n", job->item->place, job->setting->text,
                answer->why);
    } else {
        w->n_asked++;
        code = results_add(w->results, results_key(w->subject, job), job, answer, why);
    }
    show(p, job);
    return code;
}

/* ---- jobs ---------------------------------------------------------------------------------- */

/* What is missing, pipeline by pipeline, in the order of the items. */
struct plan {
    struct job *jobs;
    size_t from[MATRIX_PIPELINES_MAX + 1]; /* a pipeline's first job; the next one's: its end */
    size_t next[MATRIX_PIPELINES_MAX];     /* its first that was not asked yet */
    struct prompt *prompts;                /* two of each: without and with sums of attention */
    uint32_t *prompt_of;                   /* [items]: half the index of its first */
    uint32_t n_prompts;                    /* pairs */
};

static void plan_free(struct plan *plan)
{
    free(plan->jobs);
    free(plan->prompts);
    free(plan->prompt_of);
}

static int plan_room(struct plan *plan, const struct work *w, struct hill_why *why)
{
    size_t n = w->items->count ? w->items->count : 1, rows = w->matrix->n_rows;
    plan->jobs = calloc(n * (rows ? rows : 1), sizeof *plan->jobs);
    plan->prompts = calloc(2 * n, sizeof *plan->prompts);
    plan->prompt_of = calloc(n, sizeof *plan->prompt_of);
    return plan->jobs && plan->prompts && plan->prompt_of
               ? 0
               : hill_fail(why, HILL_E_NOMEM, "out of memory for %zu requests", n * rows);
}

/* Items that share a prompt (choices of a question) stand one after another. */
static void find_prompts(struct plan *plan, const struct item_list *items)
{
    for (size_t i = 0; i < items->count; i++) {
        const struct item *item = &items->items[i];
        if (i == 0 || !items_share_prompt(item, &item[-1]))
            plan->n_prompts++;
        plan->prompt_of[i] = plan->n_prompts - 1;
        for (unsigned masses = 0; masses < 2; masses++)
            plan->prompts[2 * plan->prompt_of[i] + masses] =
                (struct prompt){.item = item, .masses = masses};
    }
}

static bool weighs(const struct setting *s)
{
    return !s->window_only && s->selection.policy == KV_POLICY_H2O;
}

static void find_missing(struct plan *plan, struct work *w, uint32_t pipeline)
{
    size_t n = plan->from[pipeline];
    for (size_t i = 0; i < w->items->count; i++)
        for (uint32_t s = 0; s < w->matrix->n_rows; s++) {
            struct job job = {.item = &w->items->items[i], .setting = &w->matrix->rows[s]};
            if (job.setting->pipeline != pipeline)
                continue;
            if (results_find(w->results, results_key(w->subject, &job))) {
                w->n_known++;
                continue;
            }
            job.prompt = &plan->prompts[2 * plan->prompt_of[i] + weighs(job.setting)];
            job.prompt->n_jobs++;
            plan->jobs[n++] = job;
        }
    plan->next[pipeline] = plan->from[pipeline];
    plan->from[pipeline + 1] = n;
}

static int make_plan(struct plan *plan, struct work *w, struct hill_why *why)
{
    int code = plan_room(plan, w, why);
    if (code)
        return code;
    find_prompts(plan, w->items);
    for (uint32_t i = 0; i < w->matrix->n_pipelines; i++)
        find_missing(plan, w, i);
    for (uint32_t i = 0; i < 2 * plan->n_prompts; i++)
        if (plan->prompts[i].n_jobs)
            sessions_look_up(&w->sessions, w->subject, &plan->prompts[i]);
    return 0;
}

/* Sessions wait for the pipelines that come later: no more prompts at a time than the cap takes.
 * One pipeline removes each as soon as it is answered. The pair of prompts behind the last. */
static uint32_t end_of_round(const struct plan *plan, const struct work *w, uint32_t first)
{
    uint32_t busy = 0, end = first;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < w->matrix->n_pipelines; i++)
        busy += plan->next[i] < plan->from[i + 1];
    if (busy < 2 || w->sessions.keep || !w->sessions.folder[0])
        return plan->n_prompts;
    for (; end < plan->n_prompts; end++) {
        for (unsigned masses = 0; masses < 2; masses++)
            if (plan->prompts[2 * end + masses].n_jobs > 1)
                bytes += sessions_bytes(w->subject, &plan->prompts[2 * end + masses]);
        if (end > first && bytes > w->sessions.cap_bytes)
            break;
    }
    return end;
}

static int run_pipeline(struct work *w, uint32_t pipeline, const struct job *jobs, size_t n,
                        struct progress *p, struct hill_why *why)
{
    struct client client = {.signal_fd = -1};
    struct own_pipeline own = {0};
    struct own_pipeline_order order = w->own_order;
    order.kind = w->matrix->pipelines[pipeline];
    int code = w->run_dir ? client_open(&client, w->run_dir, why)
                          : own_pipeline_start(&own, &client, &order, why);
    if (code)
        return code;
    if (!p->started_ns)
        p->started_ns = clock_now_ns();
    const struct asker_order ask = {.client = &client,
                                    .subject = w->subject,
                                    .sessions = &w->sessions,
                                    .jobs = jobs,
                                    .n_jobs = n,
                                    .parallel = w->parallel,
                                    .take = take,
                                    .context = p};
    code = asker_run(&ask, why);
    clear_line(p);
    client_close(&client);
    if (!w->run_dir)
        own_pipeline_stop(&own);
    return code;
}

/* The jobs of the prompts before `end`, by every pipeline that has some. */
static int run_round(struct work *w, struct plan *plan, uint32_t end, struct progress *p,
                     struct hill_why *why)
{
    int code = 0;
    for (uint32_t i = 0; code == 0 && i < w->matrix->n_pipelines; i++) {
        size_t first = plan->next[i], *next = &plan->next[i];
        while (*next < plan->from[i + 1] &&
               plan->jobs[*next].prompt < plan->prompts + 2 * (size_t)end)
            ++*next;
        if (*next > first)
            code = run_pipeline(w, i, plan->jobs + first, *next - first, p, why);
    }
    return code;
}

int work_run(struct work *w, struct hill_why *why)
{
    struct progress p = {.work = w, .terminal = isatty(STDERR_FILENO) && !w->quiet};
    struct plan plan = {0};
    int code = make_plan(&plan, w, why);
    p.total = plan.from[w->matrix->n_pipelines];
    if (code == 0 && w->n_known && !w->quiet)
        fprintf(stderr, "hill-eval: %zu of %zu results are there already\n", w->n_known,
                w->items->count * w->matrix->n_rows);
    for (uint32_t first = 0, end; code == 0 && first < plan.n_prompts; first = end) {
        end = end_of_round(&plan, w, first);
        code = run_round(w, &plan, end, &p, why);
    }
    plan_free(&plan);
    return code;
}
