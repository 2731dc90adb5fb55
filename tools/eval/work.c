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

/* The jobs of one pipeline whose results are not there yet; jobs has room for all. */
static size_t missing_jobs(struct work *w, uint32_t pipeline, struct job *jobs)
{
    size_t n = 0;
    for (size_t i = 0; i < w->items->count; i++)
        for (uint32_t s = 0; s < w->matrix->n_rows; s++) {
            struct job job = {&w->items->items[i], &w->matrix->rows[s]};
            if (job.setting->pipeline != pipeline)
                continue;
            if (results_find(w->results, results_key(w->subject, &job)))
                w->n_known++;
            else
                jobs[n++] = job;
        }
    return n;
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
    code = asker_run(&client, jobs, n, w->parallel, take, p, why);
    clear_line(p);
    client_close(&client);
    if (!w->run_dir)
        own_pipeline_stop(&own);
    return code;
}

int work_run(struct work *w, struct hill_why *why)
{
    struct progress p = {.work = w, .terminal = isatty(STDERR_FILENO) && !w->quiet};
    size_t room = w->items->count * w->matrix->n_rows, from = 0, counts[MATRIX_PIPELINES_MAX];
    struct job *jobs = calloc(room ? room : 1, sizeof *jobs);
    int code = 0;
    if (!jobs)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for %zu requests", room);
    for (uint32_t i = 0; i < w->matrix->n_pipelines; i++) {
        counts[i] = missing_jobs(w, i, jobs + p.total);
        p.total += counts[i];
    }
    if (w->n_known && !w->quiet)
        fprintf(stderr, "hill-eval: %zu of %zu results are there already\n", w->n_known, room);
    for (uint32_t i = 0; code == 0 && i < w->matrix->n_pipelines; i++) {
        if (counts[i])
            code = run_pipeline(w, i, jobs + from, counts[i], &p, why);
        from += counts[i];
    }
    free(jobs);
    return code;
}
