/* tests/chaos/tally.c - see tally.h. */
#include "tests/chaos/tally.h"

#include <stdlib.h>

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

void tally_add(struct tally *tally, const struct sample *sample)
{
    if (tally->n == tally->room) {
        tally->room = tally->room ? 2 * tally->room : 16;
        tally->samples = realloc(tally->samples, tally->room * sizeof *tally->samples);
        if (!tally->samples)
            exit(1);
    }
    tally->samples[tally->n++] = *sample;
}

static void print_time(FILE *to, const char *name, double ms)
{
    if (ms < 0)
        fprintf(to, ",\"%s\":null", name);
    else
        fprintf(to, ",\"%s\":%.1f", name, ms);
}

static void print_sample(FILE *to, const struct sample *s)
{
    static const char *const phases[] = {"prefill", "decode", "idle"};
    fprintf(to, "{\"worker\":\"%s\",\"action\":\"%s\",\"phase\":\"%s\"", worker_name(s->worker),
            action_name(s->action), phases[s->phase]);
    print_time(to, "detected_ms", s->detected_ms);
    print_time(to, "started_ms", s->started_ms);
    print_time(to, "ready_ms", s->ready_ms);
    print_time(to, "round_ms", s->round_ms);
    fprintf(to, ",\"pauses_ms\":[");
    for (uint32_t i = 0; i < s->n_pauses; i++)
        fprintf(to, "%s%.1f", i ? "," : "", s->pauses_ms[i]);
    fprintf(to, "]}");
}

void tally_print_json(const struct tally *tally, FILE *to)
{
    fprintf(to, "\"samples\":[");
    for (uint32_t i = 0; i < tally->n; i++) {
        if (i)
            fprintf(to, ",");
        print_sample(to, &tally->samples[i]);
    }
    fprintf(to, "]");
}

void tally_finish(struct tally *tally)
{
    free(tally->samples);
}
