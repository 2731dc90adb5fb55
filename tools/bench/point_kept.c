/* tools/bench/point_kept.c - points of random weights that are kept in files (point.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tools/bench/point_run.h"
#include "tools/bench/run_pipeline.h"

#define SHORT_TOKENS 4096u /* of all rows: measured three times */
#define COMMITS_MAX  8u

static const char *const drive_names[] = {"modelled", "native", "none"};

bool point_asked(const char *policy, uint32_t tokens, uint32_t rows)
{
    char list[1024], wanted[2][64], *save = NULL;
    const char *given = getenv("POINTS");
    if (!given || !*given)
        return true;
    snprintf(list, sizeof list, "%s", given);
    snprintf(wanted[0], 64, "%ux%u", tokens, rows);
    snprintf(wanted[1], 64, "%s:%ux%u", policy, tokens, rows);
    for (char *w = strtok_r(list, " ,", &save); w; w = strtok_r(NULL, " ,", &save))
        if (strcmp(w, wanted[0]) == 0 || strcmp(w, wanted[1]) == 0)
            return true;
    return false;
}

static void point_file(const struct point *p, char out[256])
{
    snprintf(out, 256, "build/bench/points/%s%s%s-%u-%u-%s.json", p->policy, *p->label ? "-" : "",
             p->label, p->tokens, p->rows, drive_names[p->drive]);
}

/* The last measurement of a point with the same options; false: there is none. */
static bool load(const struct point *p, struct point_result *result)
{
    char path[256], settings[1024];
    json_error_t error;
    point_file(p, path);
    point_settings(p, settings, sizeof settings);
    json_t *root = json_load_file(path, 0, &error);
    const char *was = json_string_value(json_object_get(root, "settings"));
    const char *commit = json_string_value(json_object_get(root, "commit"));
    bool same = was && commit && strcmp(was, settings) == 0;
    if (same) {
        point_read(json_object_get(root, "answer"), p, result);
        snprintf(result->commit, sizeof result->commit, "%s", commit);
    }
    json_decref(root);
    return same;
}

static double step_ms(json_t *answer)
{
    return json_at(answer, "stages", "token_median_ms", NULL);
}

static void order(json_t **lower, json_t **higher)
{
    json_t *was = *lower;
    if (step_ms(*lower) > step_ms(*higher)) {
        *lower = *higher;
        *higher = was;
    }
}

static json_t *must_answer(const struct point *p)
{
    json_t *answer = point_answer(p);
    char name[128];
    if (!answer)
        bench_fail("%s: refused", point_name(p, name));
    return answer;
}

/* The answer of one pipeline; where a step is short, the middle one of three pipelines' by their
 * steps: there it matters most on which CPUs the processes of one came to lie. */
static json_t *measure_answer(const struct point *p)
{
    json_t *a = must_answer(p);
    if (p->tokens * p->rows > SHORT_TOKENS)
        return a;
    json_t *b = must_answer(p), *c = must_answer(p);
    order(&a, &b);
    order(&b, &c);
    order(&a, &b);
    json_decref(a);
    json_decref(c);
    return b;
}

static void measure(const struct point *p, struct point_result *result)
{
    char path[256], settings[1024];
    const char *commit = getenv("BENCH_COMMIT");
    point_make_session(p);
    json_t *answer = measure_answer(p);
    point_read(answer, p, result);
    snprintf(result->commit, sizeof result->commit, "%s", commit ? commit : "no commit");
    point_file(p, path);
    point_settings(p, settings, sizeof settings);
    json_t *root = json_pack("{s:s, s:s, s:o}", "settings", settings, "commit", result->commit,
                             "answer", answer);
    if (!root || json_dump_file(root, path, JSON_INDENT(1)) != 0)
        bench_fail("cannot write %s", path);
    json_decref(root);
}

static uint32_t got, expected;

void point_expect(uint32_t n)
{
    expected = n;
}

static struct {
    char name[sizeof((struct point_result *)NULL)->commit];
    uint32_t points;
} commits[COMMITS_MAX];

static void count_commit(const char *name)
{
    uint32_t i = 0;
    while (i < COMMITS_MAX - 1 && commits[i].points && strcmp(commits[i].name, name) != 0)
        i++;
    if (!commits[i].points)
        snprintf(commits[i].name, sizeof commits[i].name, "%s",
                 i == COMMITS_MAX - 1 ? "others" : name);
    commits[i].points++;
}

void point_print_commits(void)
{
    printf("\nPoints were measured at");
    for (uint32_t i = 0; i < COMMITS_MAX && commits[i].points; i++)
        printf("%s %s (%u)", i ? "," : "", commits[i].name, commits[i].points);
    printf(".\n");
}

bool point_get(const struct point *p, struct point_result *result)
{
    char name[128];
    int64_t start = clock_now_ns();
    const char *resume = getenv("RESUME");
    bool asked = point_asked(p->policy, p->tokens, p->rows);
    got++;
    if ((!asked || (resume && *resume)) && load(p, result)) {
        count_commit(result->commit);
        return true;
    }
    if (!asked)
        return false;
    fprintf(stderr, "point %u of %u: %s ...", got, expected, point_name(p, name));
    measure(p, result);
    fprintf(stderr, " %.2f ms/token, %.1f s\n", result->step_ms, (clock_now_ns() - start) / 1e9);
    count_commit(result->commit);
    return true;
}
