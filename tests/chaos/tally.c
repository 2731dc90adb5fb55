/* tests/chaos/tally.c - see tally.h. */
#include "tests/chaos/tally.h"

#include <math.h>
#include <stdlib.h>

static const char *const phases[] = {"prefill", "decode", "idle"};

const char *worker_name(uint32_t worker)
{
    static const char *const names[] = {"gpu_worker", "cpu_scorer", "csd_agent", "coordinator"};
    return names[worker];
}

const char *action_name(enum action action)
{
    static const char *const names[] = {"kill", "stop", "hang"};
    return names[action];
}

static void put(struct numbers *to, double value)
{
    if (value < 0)
        return;
    if (to->n == to->room) {
        to->room = to->room ? 2 * to->room : 16;
        to->values = realloc(to->values, to->room * sizeof *to->values);
        if (!to->values)
            exit(1);
    }
    to->values[to->n++] = value;
}

static struct cell *cell_of(struct tally *tally, const struct sample *s)
{
    return &tally->cells[s->worker][s->action][s->phase];
}

void tally_add(struct tally *tally, const struct sample *s)
{
    struct cell *cell = cell_of(tally, s);
    cell->rounds++;
    put(&cell->detected, s->detected_ms);
    put(&cell->started, s->started_ms);
    put(&cell->loading, s->ready_ms >= 0 ? s->ready_ms - s->started_ms : -1);
}

void tally_add_pause(struct tally *tally, const struct sample *s, double pause_ms)
{
    put(&cell_of(tally, s)->pause, pause_ms);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The least value that at least `share` of them do not exceed; NAN of none. */
static double quantile(struct numbers *of, double share)
{
    if (of->n == 0)
        return NAN;
    qsort(of->values, of->n, sizeof *of->values, compare);
    uint32_t at = (uint32_t)ceil(share * of->n);
    return of->values[at ? at - 1 : 0];
}

static void print_number(FILE *to, double value)
{
    if (isnan(value))
        fprintf(to, "%9s", "-");
    else
        fprintf(to, "%9.0f", value);
}

static void print_row(FILE *to, const char *name, const char *action, const char *phase,
                      struct cell *c)
{
    fprintf(to, "%-11s %-5s %-8s %6u", name, action, phase, c->rounds);
    print_number(to, quantile(&c->detected, 0.5));
    print_number(to, quantile(&c->detected, 1));
    print_number(to, quantile(&c->started, 0.5));
    print_number(to, quantile(&c->loading, 0.5));
    print_number(to, quantile(&c->pause, 0.5));
    print_number(to, quantile(&c->pause, 0.99));
    fprintf(to, "\n");
}

void tally_print_table(struct tally *tally, FILE *to)
{
    fprintf(to, "ms from the signal               detected       started  loading    pause\n"
                "worker      what  phase    rounds   median      max   median   median   median"
                "      p99\n");
    for (uint32_t w = 0; w < VICTIMS; w++)
        for (enum action a = 0; a < ACTIONS; a++)
            for (enum phase p = 0; p < PHASES; p++)
                if (tally->cells[w][a][p].rounds)
                    print_row(to, worker_name(w), action_name(a), phases[p],
                              &tally->cells[w][a][p]);
}

static void print_values(FILE *to, const char *name, const struct numbers *of)
{
    fprintf(to, ",\"%s\":[", name);
    for (uint32_t i = 0; i < of->n; i++)
        fprintf(to, "%s%.1f", i ? "," : "", of->values[i]);
    fprintf(to, "]");
}

void tally_print_json(struct tally *tally, FILE *to)
{
    const char *comma = "";
    fprintf(to, "\"cells\":[");
    for (uint32_t i = 0; i < VICTIMS * ACTIONS * PHASES; i++) {
        uint32_t w = i / (ACTIONS * PHASES), a = i / PHASES % ACTIONS, p = i % PHASES;
        struct cell *c = &tally->cells[w][a][p];
        if (!c->rounds)
            continue;
        fprintf(to, "%s{\"worker\":\"%s\",\"action\":\"%s\",\"phase\":\"%s\",\"rounds\":%u", comma,
                worker_name(w), action_name((enum action)a), phases[p], c->rounds);
        print_values(to, "detected_ms", &c->detected);
        print_values(to, "started_ms", &c->started);
        print_values(to, "loading_ms", &c->loading);
        print_values(to, "pause_ms", &c->pause);
        fprintf(to, "}");
        comma = ",";
    }
    fprintf(to, "]");
}

void tally_finish(struct tally *tally)
{
    for (uint32_t i = 0; i < VICTIMS * ACTIONS * PHASES; i++) {
        struct cell *c = &tally->cells[i / (ACTIONS * PHASES)][i / PHASES % ACTIONS][i % PHASES];
        free(c->detected.values);
        free(c->started.values);
        free(c->loading.values);
        free(c->pause.values);
    }
}
