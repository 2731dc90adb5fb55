/* tools/bench/point.c - see point.h. */
#include "tools/bench/point_run.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/csd_model.h"
#include "kv/plan.h"
#include "placement/placement.h"
#include "pool/pool.h"
#include "tools/bench/run_pipeline.h"

#define CHUNK_MAX  4096u /* of the prefill: few, because the rows before decode between two */
#define CHUNK_MIN  256u
#define SLACK      320u  /* steps of the other rows beyond that, until they are looked at */
#define SLACK_FEW  3072u /* of few tokens: steps are short, and a client takes as long to start */
#define FEW_TOKENS 4096u /* fewer than these are few */
#define STEPS_ROOM 64u
#define TURNS      40u /* of a real session that is restored while others decode, at most */
#define SINKS      4u  /* as they are by default, like the next */
#define WINDOW     32u
#define SPARE      4096.0 /* what rounding to text takes off */
#define RESTORE_MS                                                                                 \
    500u /* turns of a session between steps of those before: they are not measured */
#define FORMAT "points 8" /* of what is kept; another number when point_read wants more */
#define MIB    1048576.0

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
    return given && *given ? given : CSD_MODEL_SMARTSSD_TEXT;
}

struct kv_geometry point_geometry(void)
{
    return (struct kv_geometry){POINT_LAYERS, POINT_KV_HEADS, POINT_KV_HEADS, POINT_HEAD_DIM};
}

static struct kv_geometry geometry_of(const struct point *p)
{
    return p->kv ? p->kv->geometry : point_geometry();
}

/* What stands between two words in an option's part of --help; "" when it is not there. The caller
 * frees it. */
static char *said_of(const char *option, const char *from, const char *until)
{
    static char *help;
    char name[64];
    if (!help && !(help = capture("build/bin/hill-coordinator --help")))
        return strdup("");
    snprintf(name, sizeof name, "\n  --%s ", option);
    char *at = strstr(help, name), *next = at ? strstr(at + 4, "\n  --") : NULL;
    at = at ? strstr(at, from) : NULL;
    at = at && (!next || at < next) ? at + strlen(from) : NULL;
    char *words = at ? strndup(at, strcspn(at, until)) : strdup("");
    if (!words)
        bench_fail("no memory");
    return words;
}

/* The words of "(one of full|hillinfer; default hillinfer)" below "--policy NAME", for any option,
 * separated by |. The caller frees it. */
static char *choices_of(const char *option)
{
    return said_of(option, "(one of ", ";");
}

/* What is in force of that which decides a point and that its options do not name: by the
 * environment or by default. Where a default changes, what was kept is of something else. */
static void unnamed_settings(const char *options, char *out, size_t room)
{
    static const char *const names[] = {"placement",    "sinks",       "window",
                                        "exact-layers", "speculate",   "importance",
                                        "score-bits",   "csd-digests", "rows-in-flight"};
    size_t used = 0;
    *out = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char option[64], variable[64];
        snprintf(option, sizeof option, "--%s ", names[i]);
        if (strstr(options, option))
            continue;
        snprintf(variable, sizeof variable, "HILL_%s", names[i]);
        for (char *c = variable; *c; c++)
            *c = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
        char *usual = said_of(names[i], "default ", ";)");
        used += (size_t)snprintf(out + used, room - used, "; %s %s", names[i],
                                 bench_is_set(variable) ? getenv(variable) : usual);
        free(usual);
        if (used >= room)
            bench_fail("the settings of a point are too long");
    }
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

/* ---- sessions ---- */

/* One for each length, and for h2o one of its own. */
static void session_file(const struct point *p, char out[256])
{
    if (p->kv)
        workload_session_file(p->kv, p->policy, out);
    else
        snprintf(out, 256, "build/bench/points/%s-%u.session",
                 strcmp(p->policy, "h2o") == 0 ? "h2o" : "all", p->tokens);
}

/* ---- what a point is started with ---- */

static uint32_t chunk_of(const struct point *p)
{
    uint32_t quarter = p->tokens / 4;
    return quarter < CHUNK_MIN ? CHUNK_MIN : quarter > CHUNK_MAX ? CHUNK_MAX : quarter;
}

/* Steps that a row may do before the last one is through: at most one between two turns of each
 * session that is restored after it, and those that are measured. */
static uint32_t steps_of_others(const struct point *p)
{
    uint32_t chunks = (p->tokens + chunk_of(p) - 1) / chunk_of(p);
    uint32_t turns = p->kv ? TURNS : (chunks + 1) * POINT_LAYERS;
    return p->rows * turns + p->steps + (p->tokens < FEW_TOKENS ? SLACK_FEW : SLACK);
}

static uint32_t context_of(const struct point *p)
{
    return p->tokens + steps_of_others(p) + STEPS_ROOM;
}

double point_hot_mb(const struct point *p, enum placement_kind placement, double share,
                    double alpha, bool guesses)
{
    struct kv_geometry g = geometry_of(p);
    uint32_t context = context_of(p), lists = p->rows * g.n_layers;
    struct kv_hot_plan plan;
    struct hill_why why;
    const struct kv_plan_input in = {
        .geometry = g,
        .ctx_tokens = context,
        .batch_tokens = chunk_of(p),
        .n_sequences = p->rows,
        .selection = {.alpha = alpha, .sinks = SINKS, .window = WINDOW},
        .placement_bytes = placement_live_bytes(placement, g.n_layers, context),
        .speculates = guesses,
        .cold_slots = pool_slots_for_tokens(&g, p->rows, context)};
    if (kv_plan_hot(&plan, &in, kv_plan_hot_full_bytes(&in), &why))
        bench_fail("%s", why.text);
    double blocks = lists * (ceil(share * p->tokens / KV_HOT_BLOCK_TOKENS) + 1);
    double others =
        (double)plan.staging_bytes + (double)plan.tables_bytes + (double)plan.private_bytes;
    return fmax(others + blocks * (double)plan.block_bytes,
                (double)kv_plan_hot_min_bytes(&in) + SPARE) /
           MIB;
}

/* All that decides the result, but where files lie. Unless the options say how much M_0 is, memory
 * is asked for amply: beta, and not M_0, decides what is hot then, so that it is the same with
 * every policy; what a policy needs of staging and GPU slots differs. */
static void point_options(const struct point *p, char *out, size_t room)
{
    uint32_t context = context_of(p);
    struct kv_geometry g = geometry_of(p);
    const char *alpha = strstr(p->options, "--alpha "); /* above 0.3: more GPU slots */
    bool all = strcmp(p->policy, "full") == 0 || p->drive == POINT_NONE ||
               (alpha && atof(alpha + strlen("--alpha ")) > 0.3);
    double row = context * (double)kv_entry_bytes(&g) / MIB, share = all ? 1 : 0.4;
    double hot = 128 + (p->rows + 1) * row * share +
                 p->rows * g.n_layers * row * 1.5 * (p->drive == POINT_NONE ? 1 : 0.3);
    double gpu = 512 + 5 * row + p->rows * g.n_layers * row * (all ? 1.1 : 0.3);
    int n = snprintf(out, room, "-c %u -np %u -b %u --policy %s --gpu-kv-mb %.0f", context, p->rows,
                     chunk_of(p), p->policy, gpu);
    if (!strstr(p->options, "--alpha"))
        n += snprintf(out + n, room - (size_t)n, " --alpha %g", POINT_ALPHA);
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

/* With --csd DRIVE and options. false: it does not come up. */
static bool start_on(const struct workload *kv, const char *drive, bool reads_in_place,
                     const char *options)
{
    char model[4200], all[6000], turn[16];
    if (kv)
        snprintf(model, sizeof model, "%s", kv->model);
    else
        snprintf(model, sizeof model, "%s/model.gguf", pipeline_folder);
    snprintf(all, sizeof all, "--csd %s %s", drive, options);
    snprintf(turn, sizeof turn, "%u", RESTORE_MS);
    setenv("HILL_TEST_RESTORE_MS", turn, 1); /* of the workers, which inherit both */
    if (reads_in_place)
        unsetenv("HILL_TEST_COPY_HOT");
    else
        setenv("HILL_TEST_COPY_HOT", "1", 1);
    return pipeline_try_start(model, all);
}

static bool start(const struct point *p, const char *options)
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
    if (p->hook)
        setenv(p->hook, "1", 1); /* of all processes */
    bool up = start_on(p->kv, drive, p->drive == POINT_NATIVE, options);
    if (p->hook)
        unsetenv(p->hook);
    return up;
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

void point_make_session(const struct point *p)
{
    char path[256], options[1024];
    struct stat there;
    struct point prompt = *p;
    session_file(p, path);
    if (p->kv || stat(path, &there) == 0)
        return;
    prompt.rows = 1;
    prompt.drive = POINT_NONE;
    prompt.options = "";
    pipeline_prompt("prompt", p->tokens, 0);
    point_options(&prompt, options, sizeof options);
    if (!start_on(NULL, "none", true, options))
        bench_fail("hillinfer up failed");
    run_or_fail(
        "hillinfer generate --save",
        capture("HILL_RUN_DIR=%s/run scripts/hillinfer generate -f %s/prompt.txt -n 1 --temp "
                "0 --ignore-eos --json --save \"%s%s\"",
                pipeline_folder, pipeline_folder, pipeline_before(path), path));
    pipeline_stop();
}

/* Rows 1 .. rows-1 in the background; returns when the coordinator has them all. false: it does not
 * take them all. */
static bool start_others(const struct point *p)
{
    struct timespec pause = {.tv_nsec = 20000000};
    char path[256];
    if (p->rows == 1)
        return true;
    session_file(p, path);
    run_or_fail("hillinfer restore, the other rows",
                capture("for i in $(seq 1 %u); do HILL_RUN_DIR=%s/run scripts/hillinfer restore "
                        "\"%s%s\" -n %u --ignore-eos --json >/dev/null 2>&1 & done",
                        p->rows - 1, pipeline_folder, pipeline_before(path), path,
                        steps_of_others(p)));
    for (uint32_t i = 0; requests() < p->rows - 1; i++)
        if (i > 500)
            return false;
        else
            nanosleep(&pause, NULL);
    return true;
}

static FILE *start_restore(const struct point *p, uint32_t steps)
{
    char path[256];
    session_file(p, path);
    return capture_start("HILL_RUN_DIR=%s/run scripts/hillinfer restore \"%s%s\" -n %u "
                         "--ignore-eos --json",
                         pipeline_folder, pipeline_before(path), path, steps);
}

/* NULL: the pipeline refused it, which is said on stderr. */
static json_t *end_restore(const struct point *p, FILE *command)
{
    char path[256];
    session_file(p, path);
    char *answer = capture_rest(command);
    if (!answer)
        fprintf(stderr, "no answer; if it is the session that was refused: rm %s\n", path);
    return answer ? json_of(answer, "hillinfer restore") : NULL;
}

/* The last row's answer, and of several rows what all did meanwhile. NULL: the pipeline refused
 * some or had no room for all at once. */
static json_t *ask(const struct point *p)
{
    json_t *rows = NULL;
    if (!start_others(p)) {
        fprintf(stderr, "%u requests did not arrive\n", p->rows - 1);
        return NULL;
    }
    FILE *command = start_restore(p, p->steps);
    if (p->rows > 1)
        rows = point_watch_rows(command, p->rows, p->steps);
    json_t *answer = end_restore(p, command);
    if (p->rows > 1 && answer && requests() != p->rows - 1) {
        fprintf(stderr, "a row ended before the last one: its steps were not all of %u rows\n",
                p->rows);
        json_decref(answer);
        answer = NULL;
    }
    if (answer && rows)
        json_object_set(answer, "rows", rows);
    json_decref(rows);
    return answer;
}

/* The first step of a process loads the kernels of decoding: a tenth of a second that is no
 * request's. Of a batch the rows before do it. What the drive was busy with for a session and one
 * step is taken off that of a session and more of them. */
static json_t *warm_up(const struct point *p)
{
    if (p->rows > 1)
        return json_null();
    json_t *answer = end_restore(p, start_restore(p, 1)); /* NULL: so will be the next */
    json_t *drive = json_incref(json_object_get(answer, "csd_model"));
    json_decref(answer);
    return drive ? drive : json_null();
}

/* ---- results ---- */

static double number_or_0(json_t *object, const char *name)
{
    json_t *v = json_object_get(object, name);
    return json_is_number(v) ? json_number_value(v) : 0;
}

void point_read(json_t *a, const struct point *p, struct point_result *r)
{
    /* the session's one token counts as prompt, and each token comes out of a step */
    uint32_t layers = geometry_of(p).n_layers;
    double given = json_at(a, "prompt_tokens", NULL, NULL);
    double steps = json_at(a, "predicted_tokens", NULL, NULL);
    double queries = steps * layers;
    json_t *drive = json_object_get(a, "csd_model");
    json_t *candidates = json_object_get(a, "candidates");
    if (steps != p->steps || given != p->tokens + 1)
        bench_fail("%g steps after %g tokens, not %u after %u", steps, given, p->steps,
                   p->tokens + 1);
    *r = (struct point_result){
        .step_ms = json_at(a, "stages", "token_median_ms", NULL),
        .idle_ms = json_at(a, "stages", "idle_median_ms", NULL),
        .bounds_ms = json_at(a, "stages", "bounds_ms", NULL) / steps,
        .score_hot_ms = json_at(a, "stages", "score_hot_ms", NULL) / steps,
        .score_cpu_ms = json_at(a, "stages", "score_cpu_ms", NULL) / steps,
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
        .hot = json_at(a, "tiers", "hot", "tokens") / layers,
        .cold = json_at(a, "tiers", "cold", "tokens") / layers,
        .ever_cold = number_or_0(json_object_get(a, "moves"), "ever_cold"),
        .candidates_hot = number_or_0(candidates, "hot") / queries,
        .candidates_cold = number_or_0(candidates, "cold") / queries,
        .between = number_or_0(candidates, "between") / queries,
        .runs = number_or_0(candidates, "runs") / queries,
        .beta = number_or_0(a, "beta"),
        .written = point_written(a),
        .late_ms = number_or_0(drive, "late_ms"),
        .whole_ms = json_at(a, "prompt_ms", NULL, NULL) + json_at(a, "predicted_ms", NULL, NULL),
        .gpu_link = json_is_true(json_object_get(drive, "gpu_link_modelled")),
    };
    if (p->rows == 1) /* what came on top of a request of one step */
        point_read_busy(drive, json_object_get(a, "warm"), p->steps - 1.0, r);
    point_read_rows(a, layers, r);
}

void point_settings(const struct point *p, char *out, size_t room)
{
    int n =
        snprintf(out, room, FORMAT "; %s; %u steps; ", p->kv ? p->kv->name : POINT_MODEL, p->steps);
    point_options(p, out + n, room - (size_t)n);
    if (p->hook)
        snprintf(out + strlen(out), room - strlen(out), "; %s=1", p->hook);
    if (pipeline_threads() != PIPELINE_THREADS)
        snprintf(out + strlen(out), room - strlen(out), "; %u threads", pipeline_threads());
    unnamed_settings(out, out + strlen(out), room - strlen(out));
}

json_t *point_answer(const struct point *p)
{
    char options[1024];
    point_options(p, options, sizeof options);
    bool up = start(p, options);
    json_t *warm = up ? warm_up(p) : json_null();
    json_t *answer = up ? ask(p) : NULL;
    pipeline_stop();
    remove_pool();
    json_object_set_new(answer, "warm", warm);
    return answer;
}

bool point_run(const struct point *p, struct point_result *result)
{
    json_t *answer = point_answer(p);
    if (answer)
        point_read(answer, p, result);
    json_decref(answer);
    return answer != NULL;
}

double point_predicted_beta(const struct point *p, double *bounded)
{
    char options[1024];
    point_options(p, options, sizeof options);
    if (!start(p, options))
        bench_fail("hillinfer up failed");
    json_t *rates =
        json_of(capture("HILL_RUN_DIR=%s/run scripts/hillinfer profile --json", pipeline_folder),
                "hillinfer profile");
    double beta = json_at(rates, "beta", NULL, NULL);
    *bounded = json_at(rates, "beta_bounded", NULL, NULL);
    json_decref(rates);
    pipeline_stop();
    remove_pool();
    return beta;
}
