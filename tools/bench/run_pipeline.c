/* tools/bench/run_pipeline.c - see run_pipeline.h. */
#include "tools/bench/run_pipeline.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_LEAST 4096u /* room for the next piece of a command's output */

static char folder[4096];
static bool runs;

const char *pipeline_folder = folder;

/* ---- commands ---- */

static FILE *start_command(const char *format, va_list args)
{
    char command[16384];
    vsnprintf(command, sizeof command, format, args);
    FILE *f = popen(command, "r");
    if (!f)
        bench_fail("cannot run %s", command);
    return f;
}

FILE *capture_start(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    FILE *f = start_command(format, args);
    va_end(args);
    return f;
}

char *capture(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    FILE *f = start_command(format, args);
    va_end(args);
    return capture_rest(f);
}

char *capture_rest(FILE *f)
{
    size_t used = 0, space = 1 << 16;
    char *text = malloc(space);
    for (size_t n; text && (n = fread(text + used, 1, space - used - 1, f)) > 0;) {
        used += n;
        if (space - used < READ_LEAST)
            text = realloc(text, space *= 2);
    }
    if (!text)
        bench_fail("no memory for a command's output");
    text[used] = 0;
    if (pclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

const char *pipeline_before(const char *path)
{
    return *path == '/' ? "" : "$PWD/";
}

void run_or_fail(const char *what, char *output)
{
    if (!output)
        bench_fail("%s failed", what);
    free(output);
}

/* ---- JSON ---- */

json_t *json_of(char *text, const char *what)
{
    json_error_t error;
    json_t *root = text ? json_loads(text, JSON_ALLOW_NUL, &error) : NULL;
    free(text);
    if (!root)
        bench_fail("%s gave no JSON", what);
    return root;
}

double json_at(const json_t *root, const char *a, const char *b, const char *c)
{
    const json_t *v = json_object_get(root, a);
    if (b)
        v = json_object_get(v, b);
    if (c)
        v = json_object_get(v, c);
    if (!json_is_number(v))
        bench_fail("the answer has no number %s %s %s", a, b ? b : "", c ? c : "");
    return json_number_value(v);
}

/* ---- the pipeline ---- */

static void clean(void)
{
    pipeline_stop();
    free(capture("rm -rf -- '%s'", folder));
}

void pipeline_prepare_folder(const struct bench_options *o)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+-";
    if (o->folder[strspn(o->folder, plain)]) /* commands of the shell have the name in them */
        bench_fail("the folder '%s' may have letters, digits and . _ / + - alone in its name",
                   o->folder);
    snprintf(folder, sizeof folder, "%s/%s.XXXXXX", o->folder, o->figure);
    if (!mkdtemp(folder))
        bench_fail("cannot make a folder in %s", o->folder);
    atexit(clean);
    run_or_fail("make programs", capture("make --no-print-directory -s programs >&2"));
}

bool pipeline_find_model(const char *file, char path[512])
{
    const char *models = getenv("HILL_MODELS"), *cache = getenv("XDG_CACHE_HOME");
    if (strchr(file, '/'))
        snprintf(path, 512, "%s", file);
    else if (models && *models)
        snprintf(path, 512, "%s/%s", models, file);
    else if (cache && *cache)
        snprintf(path, 512, "%s/hillinfer/models/%s", cache, file);
    else
        snprintf(path, 512, "%s/.cache/hillinfer/models/%s", getenv("HOME"), file);
    return access(path, R_OK) == 0;
}

void pipeline_prompt(const char *name, uint32_t n, uint32_t variant)
{
    char path[4200];
    uint64_t state = 7 + variant;
    snprintf(path, sizeof path, "%s/%s.txt", folder, name);
    FILE *f = fopen(path, "w");
    if (!f)
        bench_fail("cannot write %s", path);
    for (uint32_t i = 1; i < n; i++)
        putc('a' + (int)(bench_random(&state) >> 33) % 26, f);
    if (fclose(f))
        bench_fail("cannot write %s", path);
}

uint32_t pipeline_threads(void)
{
    int n = bench_is_set("BENCH_THREADS") ? atoi(getenv("BENCH_THREADS")) : (int)PIPELINE_THREADS;
    if (n < 1 || n > 1024)
        bench_fail("BENCH_THREADS is '%s', not a number from 1 to 1024", getenv("BENCH_THREADS"));
    return (uint32_t)n;
}

bool pipeline_try_start(const char *model, const char *options)
{
    runs = true; /* also when only a part of it has come up */
    char *said = capture("HILL_RUN_DIR=%s/run scripts/hillinfer up --detach -m '%s' -t %u "
                         "--state-dir %s/state --log-level error %s >&2",
                         folder, model, pipeline_threads(), folder, options);
    free(said);
    return said != NULL;
}

void pipeline_start_with(const char *model, const char *options)
{
    if (!pipeline_try_start(model, options))
        bench_fail("hillinfer up failed");
}

void pipeline_start(const char *name, const char *options)
{
    char model[4200], all[512];
    snprintf(model, sizeof model, "%s/%s.gguf", folder, name);
    snprintf(all, sizeof all, "--csd none %s", options);
    pipeline_start_with(model, all);
}

void pipeline_stop(void)
{
    if (runs)
        free(capture("HILL_RUN_DIR=%s/run scripts/hillinfer down >&2", folder));
    runs = false;
}

json_t *pipeline_status(void)
{
    return json_of(capture("build/bin/hillctl status --json --run-dir %s/run", folder),
                   "hillctl status");
}

/* Drops root. */
static struct pipeline_answer answer_of(json_t *root, uint32_t predict)
{
    struct pipeline_answer a = {
        .prompt_tokens = (uint32_t)json_at(root, "prompt_tokens", NULL, NULL),
        .predicted = (uint32_t)json_at(root, "predicted_tokens", NULL, NULL),
        .prompt_ms = json_at(root, "prompt_ms", NULL, NULL),
        .predicted_ms = json_at(root, "predicted_ms", NULL, NULL),
        .upload_bytes = json_at(root, "bytes", "gpu_upload", NULL),
        .weight_bytes = json_at(root, "bytes", "weights", NULL),
        .attended_bytes = json_at(root, "bytes", "attended", NULL),
        .scored_bytes = json_at(root, "bytes", "scored", NULL),
    };
    json_decref(root);
    if (a.predicted != predict)
        bench_fail("%u of %u tokens came", a.predicted, predict);
    return a;
}

struct pipeline_answer pipeline_ask(const char *prompt, uint32_t predict)
{
    return answer_of(
        json_of(capture("HILL_RUN_DIR=%s/run scripts/hillinfer generate -f %s/%s.txt -n %u --temp "
                        "0 --ignore-eos --json",
                        folder, folder, prompt, predict),
                "hillinfer generate"),
        predict);
}

void pipeline_save(const char *prompt_path, const char *session)
{
    run_or_fail("hillinfer generate --save",
                capture("HILL_RUN_DIR=%s/run scripts/hillinfer generate -f %s -n 1 --temp 0 "
                        "--ignore-eos --json --save \"%s%s\"",
                        folder, prompt_path, pipeline_before(session), session));
}

struct pipeline_answer pipeline_restore(const char *session, uint32_t steps)
{
    return answer_of(json_of(capture("HILL_RUN_DIR=%s/run scripts/hillinfer restore \"%s%s\" -n %u "
                                     "--ignore-eos --json",
                                     folder, pipeline_before(session), session, steps),
                             "hillinfer restore (if it refused the session: remove its file)"),
                     steps);
}

double pipeline_decode_speed(const struct pipeline_answer *a)
{
    return (a->predicted - 1) * 1e3 / a->predicted_ms;
}
