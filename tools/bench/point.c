/* tools/bench/point.c - see point.h. */
#include "tools/bench/point.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/bench/run_pipeline.h"

#define CHUNK_MAX 4096u /* of the prefill: few, because the rows before decode between two */
#define CHUNK_MIN 256u
#define SLACK                                                                                      \
    320u /* steps of the other rows beyond that: seconds, in which is looked after them            \
          */
#define STEPS_ROOM   64u
#define SHORT_TOKENS 4096u /* of all rows: measured three times */
#define PAPER_CSD    "flash=2.9,write=1.0,link=3.2,gpu_link=25,score=3.2,dram=0,latency_us=42"
#define RESTORE_MS                                                                                 \
    500u /* turns of a session between steps of those before: they are not measured */
#define FORMAT      "points 4" /* of the files; another number when read_answer wants more */
#define COMMITS_MAX 8u
#define MIB         1048576.0

static const char *const drive_names[] = {"modelled", "native", "none"};
static char native_folder[3072], pool_path[4200];

static void remove_pool(void)
{
    if (*pool_path)
        unlink(pool_path);
    *pool_path = 0;
}

void point_prepare(const struct bench_options *o)
{
    pipeline_prepare_folder(o);
    atexit(remove_pool); /* runs before the pipeline is stopped: a file in use goes when it ends */
    snprintf(native_folder, sizeof native_folder, "%s", o->folder);
    mkdir("build/bench/points", 0777); /* that it is there is noticed when a result is kept */
    run_or_fail(
        "hill-mkmodel",
        capture("build/bin/hill-mkmodel -o %s/model.gguf --random --layers %u --width 256 --heads "
                "%u --kv-heads %u --head-dim %u --ffn 512 --vocab 512 --type f16 >&2",
                pipeline_folder, POINT_LAYERS, POINT_KV_HEADS, POINT_KV_HEADS, POINT_HEAD_DIM));
}

const char *point_name(const struct point *p, char out[128])
{
    static const char *const drives[] = {"modelled drive", "native drive", "no drive"};
    snprintf(out, 128, "%s%s%s %u x %u, %s", p->policy, *p->label ? " " : "", p->label, p->tokens,
             p->rows, drives[p->drive]);
    return out;
}

const char *point_csd_model(void)
{
    const char *given = getenv("CSD_MODEL");
    return given && *given ? given : PAPER_CSD;
}

struct kv_geometry point_geometry(void)
{
    return (struct kv_geometry){POINT_LAYERS, POINT_KV_HEADS, POINT_KV_HEADS, POINT_HEAD_DIM};
}

/* The words of "(one of full|hillinfer; default hillinfer)" below "--policy NAME" of --help, for
 * any option, separated by |; "" when it is not there. The caller frees it. */
static char *choices_of(const char *option)
{
    char name[64];
    char *text = capture("build/bin/hill-coordinator --help");
    snprintf(name, sizeof name, "  --%s ", option);
    char *at = text ? strstr(text, name) : NULL, *next = at ? strstr(at + 4, "\n  --") : NULL;
    at = at ? strstr(at, "(one of ") : NULL;
    char *end = at ? strchr(at, ';') : NULL;
    char *words =
        end && (!next || at < next) ? strndup(at + 8, (size_t)(end - at - 8)) : strdup("");
    free(text);
    if (!words)
        bench_fail("no memory");
    return words;
}

bool point_offers(const char *option, const char *value)
{
    char *words = choices_of(option), *save = NULL;
    bool found = false;
    for (char *w = strtok_r(words, "|", &save); w; w = strtok_r(NULL, "|", &save))
        found = found || strcmp(w, value) == 0;
    free(words);
    return found;
}

uint32_t point_policies(char names[POINT_POLICIES_MAX][24])
{
    uint32_t n = 1;
    char *words = choices_of("policy"), *save = NULL;
    if (!*words)
        bench_fail("hill-coordinator --help names no policies");
    snprintf(names[0], 24, "hillinfer");
    for (char *w = strtok_r(words, "|", &save); w; w = strtok_r(NULL, "|", &save))
        if (strcmp(w, "hillinfer") != 0 && n < POINT_POLICIES_MAX)
            snprintf(names[n++], 24, "%s", w);
    free(words);
    return n;
}

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

/* ---- sessions ---- */

void point_session_words(const char *options, char *out, size_t room)
{
    static const char *const bound[] = {"--speculate ", "--exact-layers ", "--score-bits "};
    size_t used = 0;
    *out = 0;
    for (size_t i = 0; i < sizeof bound / sizeof *bound; i++) {
        const char *at = strstr(options, bound[i]);
        if (!at)
            continue;
        size_t length = strlen(bound[i]) + strcspn(at + strlen(bound[i]), " ");
        used +=
            (size_t)snprintf(out + used, room - used, "%s%.*s", used ? " " : "", (int)length, at);
        if (used >= room)
            bench_fail("options too long: %s", options);
    }
}

/* One for each policy, length and settings that it is bound to. */
static void session_file(const struct point *p, char out[256])
{
    char words[128];
    point_session_words(p->options, words, sizeof words);
    for (char *c = words; *c; c++)
        if (*c == ' ')
            *c = '_';
    snprintf(out, 256, "build/bench/points/%s%s-%u.session", p->policy, words, p->tokens);
}

/* ---- what a point is started with ---- */

static uint32_t chunk_of(const struct point *p)
{
    uint32_t quarter = p->tokens / 4;
    return quarter < CHUNK_MIN ? CHUNK_MIN : quarter > CHUNK_MAX ? CHUNK_MAX : quarter;
}

/* Steps that a row may do before the last one is through: at most one between two chunks of a
 * layer of each prompt that comes after it, and those that are measured. */
static uint32_t steps_of_others(const struct point *p)
{
    uint32_t chunks = (p->tokens + chunk_of(p) - 1) / chunk_of(p);
    return p->rows * (chunks + 1) * POINT_LAYERS + p->steps + SLACK;
}

/* All that decides the result, but where files lie. Memory is asked for amply: beta, and not M_0,
 * decides what is hot, so that it is the same with every policy; what a policy needs of staging and
 * GPU slots differs. */
static void point_options(const struct point *p, char *out, size_t room)
{
    uint32_t context = p->tokens + steps_of_others(p) + STEPS_ROOM;
    struct kv_geometry g = point_geometry();
    bool all = strcmp(p->policy, "full") == 0 || p->drive == POINT_NONE;
    double row = context * (double)kv_entry_bytes(&g) / MIB, share = all ? 1 : 0.4;
    double hot = 128 + (p->rows + 1) * row * share +
                 p->rows * POINT_LAYERS * row * 1.5 * (p->drive == POINT_NONE ? 1 : 0.3);
    double gpu = 512 + 5 * row + p->rows * POINT_LAYERS * row * (all ? 1.1 : 0.3);
    int n = snprintf(out, room, "-c %u -np %u -b %u --policy %s --gpu-kv-mb %.0f --alpha %g",
                     context, p->rows, chunk_of(p), p->policy, gpu, POINT_ALPHA);
    if (!strstr(p->options, "--hot-mb"))
        n += snprintf(out + n, room - (size_t)n, " --hot-mb %.0f", hot);
    if (!strstr(p->options, "--gpu-keep"))
        n += snprintf(out + n, room - (size_t)n, " --gpu-keep %g", POINT_ALPHA);
    if (p->drive != POINT_NONE && !strstr(p->options, "--beta"))
        n += snprintf(out + n, room - (size_t)n, " --beta %g", POINT_BETA);
    if (p->drive == POINT_MODELLED)
        n += snprintf(out + n, room - (size_t)n, " --csd-model %s", p->csd_model);
    snprintf(out + n, room - (size_t)n, "%s%s", *p->options ? " " : "", p->options);
}

/* With --csd DRIVE and options. */
static void start_on(const char *drive, bool reads_in_place, const char *options)
{
    char model[4200], all[6000], turn[16];
    snprintf(model, sizeof model, "%s/model.gguf", pipeline_folder);
    snprintf(all, sizeof all, "--csd %s %s", drive, options);
    snprintf(turn, sizeof turn, "%u", RESTORE_MS);
    setenv("HILL_TEST_RESTORE_MS", turn, 1); /* of the workers, which inherit both */
    if (reads_in_place)
        unsetenv("HILL_TEST_COPY_HOT");
    else
        setenv("HILL_TEST_COPY_HOT", "1", 1);
    pipeline_start_with(model, all);
}

static void start(const struct point *p, const char *options)
{
    const char *folder = getenv("BENCH_POOL_DIR");
    char drive[4300] = "none";
    if (p->drive == POINT_MODELLED)
        snprintf(pool_path, sizeof pool_path, "%s/hill-bench-%d.pool",
                 folder && *folder ? folder : "/dev/shm", (int)getpid());
    else if (p->drive == POINT_NATIVE)
        snprintf(pool_path, sizeof pool_path, "%s/hill-bench-%d.pool", native_folder,
                 (int)getpid());
    if (*pool_path)
        snprintf(drive, sizeof drive, "file:%s", pool_path);
    start_on(drive, p->drive == POINT_NATIVE, options);
}

/* ---- requests ---- */

static uint32_t requests(void)
{
    json_t *root = pipeline_status();
    uint32_t n = (uint32_t)(json_at(root, "requests_running", NULL, NULL) +
                            json_at(root, "requests_waiting", NULL, NULL));
    json_decref(root);
    return n;
}

/* The prompt of this policy and length into a session, unless it is there: everything in DRAM, so
 * that it takes its computing alone. A session of other settings is refused when it is restored. */
static void make_session(const struct point *p)
{
    char path[256], options[1024], words[128];
    struct stat there;
    struct point prompt = *p;
    session_file(p, path);
    if (stat(path, &there) == 0)
        return;
    prompt.rows = 1;
    prompt.drive = POINT_NONE;
    point_session_words(p->options, words, sizeof words);
    prompt.options = words;
    pipeline_prompt("prompt", p->tokens, 0);
    point_options(&prompt, options, sizeof options);
    start_on("none", true, options);
    run_or_fail(
        "hillinfer generate --save",
        capture("HILL_RUN_DIR=%s/run scripts/hillinfer generate -f %s/prompt.txt -n 1 --temp "
                "0 --ignore-eos --json --save \"$PWD/%s\"",
                pipeline_folder, pipeline_folder, path));
    pipeline_stop();
}

/* Rows 1 .. rows-1 in the background; returns when the coordinator has them all. */
static void start_others(const struct point *p)
{
    struct timespec pause = {.tv_nsec = 20000000};
    char path[256];
    if (p->rows == 1)
        return;
    session_file(p, path);
    run_or_fail("hillinfer restore, the other rows",
                capture("for i in $(seq 1 %u); do HILL_RUN_DIR=%s/run scripts/hillinfer restore "
                        "\"$PWD/%s\" -n %u --ignore-eos --json >/dev/null 2>&1 & done",
                        p->rows - 1, pipeline_folder, path, steps_of_others(p)));
    for (uint32_t i = 0; requests() < p->rows - 1; i++)
        if (i > 500)
            bench_fail("%u requests did not arrive", p->rows - 1);
        else
            nanosleep(&pause, NULL);
}

static char *ask(const struct point *p)
{
    char path[256];
    session_file(p, path);
    start_others(p);
    char *answer = capture("HILL_RUN_DIR=%s/run scripts/hillinfer restore \"$PWD/%s\" -n %u "
                           "--ignore-eos --json",
                           pipeline_folder, path, p->steps);
    if (!answer)
        bench_fail("the pipeline gave no answer; if it refused the session: rm "
                   "build/bench/points/*.session");
    if (p->rows > 1 && requests() != p->rows - 1)
        bench_fail("a row ended before the last one: its steps were not all of %u rows", p->rows);
    return answer;
}

/* The first step of a process loads the kernels of decoding: a tenth of a second that is no
 * request's. Of a batch the rows before do it. */
static void warm_up(const struct point *p)
{
    if (p->rows == 1)
        run_or_fail("hillinfer generate",
                    capture("HILL_RUN_DIR=%s/run scripts/hillinfer generate -p warm -n 3 --temp 0 "
                            "--ignore-eos --json",
                            pipeline_folder));
}

/* ---- results ---- */

static double number_or_0(json_t *object, const char *name)
{
    json_t *v = json_object_get(object, name);
    return json_is_number(v) ? json_number_value(v) : 0;
}

static void read_answer(json_t *a, const struct point *p, struct point_result *r)
{
    /* the session's one token counts as prompt, and each token comes out of a step */
    double given = json_at(a, "prompt_tokens", NULL, NULL);
    double steps = json_at(a, "predicted_tokens", NULL, NULL);
    double queries = steps * POINT_LAYERS;
    json_t *drive = json_object_get(a, "csd_model");
    json_t *candidates = json_object_get(a, "candidates");
    if (steps != p->steps || given != p->tokens + 1)
        bench_fail("%g steps after %g tokens, not %u after %u", steps, given, p->steps,
                   p->tokens + 1);
    *r = (struct point_result){
        .step_ms = json_at(a, "stages", "token_median_ms", NULL),
        .idle_ms = json_at(a, "stages", "idle_median_ms", NULL),
        .mean_ms = json_at(a, "predicted_ms", NULL, NULL) / steps,
        .bounds_ms = json_at(a, "stages", "bounds_ms", NULL) / steps,
        .score_hot_ms = json_at(a, "stages", "score_hot_ms", NULL) / steps,
        .merge_ms = json_at(a, "stages", "merge_ms", NULL) / steps,
        .fetch_ms = json_at(a, "stages", "fetch_ms", NULL) / steps,
        .link_key = json_at(a, "bytes", "link_key", NULL) / steps,
        .link_score = json_at(a, "bytes", "link_score", NULL) / steps,
        .link_kv = json_at(a, "bytes", "link_kv", NULL) / steps,
        .flash_read = json_at(a, "bytes", "flash_read", NULL) / steps,
        .gpu_upload = json_at(a, "bytes", "gpu_upload", NULL) / steps,
        .gpu_hits = json_at(a, "tiers", "gpu", "hits") / queries,
        .hot_hits = json_at(a, "tiers", "hot", "hits") / queries,
        .cold_hits = json_at(a, "tiers", "cold", "hits") / queries,
        .hot = json_at(a, "tiers", "hot", "tokens") / POINT_LAYERS,
        .cold = json_at(a, "tiers", "cold", "tokens") / POINT_LAYERS,
        .candidates_hot = number_or_0(candidates, "hot") / queries,
        .candidates_cold = number_or_0(candidates, "cold") / queries,
        .between = number_or_0(candidates, "between") / queries,
        .runs = number_or_0(candidates, "runs") / queries,
        .beta = number_or_0(a, "beta"),
        .late = number_or_0(drive, "late"),
        .late_ms = number_or_0(drive, "late_ms"),
        .commands = number_or_0(drive, "commands"),
        .whole_ms = json_at(a, "prompt_ms", NULL, NULL) + json_at(a, "predicted_ms", NULL, NULL),
        .gpu_link = json_is_true(json_object_get(drive, "gpu_link_modelled")),
    };
}

static void point_file(const struct point *p, char out[256])
{
    snprintf(out, 256, "build/bench/points/%s%s%s-%u-%u-%s.json", p->policy, *p->label ? "-" : "",
             p->label, p->tokens, p->rows, drive_names[p->drive]);
}

/* Everything that must be the same for a result to be this point's. */
static void point_settings(const struct point *p, char *out, size_t room)
{
    int n = snprintf(out, room, FORMAT "; " POINT_MODEL "; %u steps; ", p->steps);
    point_options(p, out + n, room - (size_t)n);
}

bool point_load(const struct point *p, struct point_result *result)
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
        read_answer(json_object_get(root, "answer"), p, result);
        snprintf(result->commit, sizeof result->commit, "%s", commit);
    }
    json_decref(root);
    return same;
}

static json_t *measure_once(const struct point *p)
{
    char options[1024];
    point_options(p, options, sizeof options);
    start(p, options);
    warm_up(p);
    char *text = ask(p);
    pipeline_stop();
    remove_pool();
    return json_of(text, "hillinfer generate");
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

/* The answer of one pipeline; where a step is short, the middle one of three pipelines' by their
 * steps: there it matters most on which CPUs the processes of one came to lie. */
static json_t *measure_answer(const struct point *p)
{
    json_t *a = measure_once(p);
    if (p->tokens * p->rows > SHORT_TOKENS)
        return a;
    json_t *b = measure_once(p), *c = measure_once(p);
    order(&a, &b);
    order(&b, &c);
    order(&a, &b);
    json_decref(a);
    json_decref(c);
    return b;
}

void point_measure(const struct point *p, struct point_result *result)
{
    char path[256], settings[1024];
    const char *commit = getenv("BENCH_COMMIT");
    make_session(p);
    json_t *answer = measure_answer(p);
    read_answer(answer, p, result);
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
    if ((!asked || (resume && *resume)) && point_load(p, result)) {
        count_commit(result->commit);
        return true;
    }
    if (!asked)
        return false;
    fprintf(stderr, "point %u of %u: %s ...", got, expected, point_name(p, name));
    point_measure(p, result);
    fprintf(stderr, " %.2f ms/token, %.1f s\n", result->step_ms, (clock_now_ns() - start) / 1e9);
    count_commit(result->commit);
    return true;
}
