/* tools/bench/kept_rounds.c - see kept_rounds.h. */
#include "tools/bench/kept_rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

void kept_rounds_add(const struct kept_test *t, const double *values)
{
    const char *commit = getenv("BENCH_COMMIT");
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->n_methods; i++)
        if (json_array_append_new(list, json_real(values[i])))
            bench_fail("%s: the number of method %u is none: it cannot be kept", t->name, i);
    json_t *round = json_pack("{s:s, s:s, s:s, s:o}", "test", t->name, "settings", t->settings,
                              "commit", commit ? commit : "no commit", "values", list);
    FILE *f = fopen(t->file, "a");
    if (!round || !f || json_dumpf(round, f, JSON_COMPACT) || fputc('\n', f) == EOF || fclose(f))
        bench_fail("cannot write %s", t->file);
    json_decref(round);
}

static bool is_of(const json_t *round, const char *key, const char *wanted)
{
    const char *was = json_string_value(json_object_get(round, key));
    return was && strcmp(was, wanted) == 0;
}

static bool counts(const struct kept_test *t, const json_t *round)
{
    const json_t *values = json_object_get(round, "values");
    if (!is_of(round, "test", t->name) || !is_of(round, "settings", t->settings) ||
        json_array_size(values) != t->n_methods)
        return false;
    for (uint32_t i = 0; i < t->n_methods; i++)
        if (!json_is_number(json_array_get(values, i)))
            return false;
    return true;
}

/* Is the name one of those between ", "? It may be the beginning of another. */
static bool is_noted(const char *commits, const char *name, size_t n)
{
    for (const char *at = commits; *at;) {
        size_t item = strcspn(at, ",");
        if (item == n && memcmp(at, name, n) == 0)
            return true;
        at += item + strspn(at + item, ", ");
    }
    return false;
}

void kept_rounds_note_commits(char *commits, size_t room, const char *more)
{
    for (const char *at = more; at && *at;) {
        size_t n = strcspn(at, ","), used = strlen(commits);
        if (!is_noted(commits, at, n) && used + n + 2 < room)
            snprintf(commits + used, room - used, "%s%.*s", used ? ", " : "", (int)n, at);
        at += n + strspn(at + n, ", ");
    }
}

/* The next line's JSON; NULL with *more: it is none. The caller drops the reference. */
static json_t *next_round(FILE *f, char **line, size_t *room, bool *more)
{
    *more = f && getline(line, room, f) > 0;
    return *more ? json_loads(*line, 0, NULL) : NULL;
}

uint32_t kept_rounds_load(const struct kept_test *t, uint32_t most, struct bench_samples *samples,
                          char commits[256])
{
    FILE *f = fopen(t->file, "r");
    char *line = NULL;
    size_t room = 0;
    uint32_t n = 0;
    bool more = true;
    memset(samples, 0, sizeof *samples * t->n_methods);
    if (commits)
        *commits = 0;
    for (json_t *round; n < most && ((round = next_round(f, &line, &room, &more)) || more);) {
        if (counts(t, round)) {
            for (uint32_t i = 0; i < t->n_methods; i++)
                bench_sample(&samples[i], json_number_value(
                                              json_array_get(json_object_get(round, "values"), i)));
            if (commits)
                kept_rounds_note_commits(commits, 256,
                                         json_string_value(json_object_get(round, "commit")));
            n++;
        }
        json_decref(round);
    }
    free(line);
    if (f)
        fclose(f);
    return n;
}

void kept_rounds_drop(const struct kept_test *t)
{
    char beside[4200], *line = NULL;
    size_t room = 0;
    bool more = true;
    FILE *f = fopen(t->file, "r");
    if (!f)
        return;
    snprintf(beside, sizeof beside, "%s.new", t->file);
    FILE *out = fopen(beside, "w");
    if (!out)
        bench_fail("cannot write %s", beside);
    for (json_t *round; (round = next_round(f, &line, &room, &more)) || more;) {
        if (round && !is_of(round, "test", t->name))
            fputs(line, out);
        json_decref(round);
    }
    free(line);
    fclose(f);
    if (fclose(out) || rename(beside, t->file))
        bench_fail("cannot write %s", t->file);
}
