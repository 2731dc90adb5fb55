/*
 * hill-eval - how right is a model's answer under each way to select? Tasks and perplexity through
 * the real pipeline.
 *
 * SYNOPSIS
 *     hill-eval FILE... -m MODEL [OPTIONS]        (hill-eval --help)
 * DESCRIPTION
 *     Asks every item of the task files (*.jsonl) and scores pieces of the texts (all other files)
 *     under every setting of the matrix, on a pipeline of its own or on a running one, and writes a
 *     table. Results go to a file as they come; the same command goes on where it was stopped.
 * DIAGNOSTICS
 *     One line on stderr for each failed request, one at the end. Exit codes: 0 done; 1 a file is
 *     damaged or requests failed (the table holds the others); 100 wrong use, or a file is not
 *     there; 111 the environment failed; 130 interrupted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/eval/tables.h"
#include "tools/eval/work.h"

#define FILES_MAX 64

static const struct option_spec what_specs[] = {
    OPTION("limit", INTEGER, "N", "of each task no more than the first N; 0: all", .max = 1000000,
           .fallback = "0"),
    OPTION("fit", FLAG, NULL, "leave out what is longer than the model was trained for"),
    OPTION("text-bytes", INTEGER, "BYTES", "length of a piece of a text", .min = 64, .max = 1 << 24,
           .fallback = "4096"),
    OPTION("text-pieces", INTEGER, "N", "pieces of each text, spread evenly", .min = 1,
           .max = 100000, .fallback = "8"),
    OPTION("text-scored", INTEGER, "TOKENS",
           "last tokens of a piece that are scored, each decoded after those before it", .min = 1,
           .max = 1 << 20, .fallback = "64"),
};

static const struct option_spec matrix_specs[] = {
    OPTION("policy", STRING, "LIST",
           "all (but host-digest, which answers as hillinfer), or policies; window: sinks and "
           "newest tokens alone, a limit to compare with",
           .fallback = "full,hillinfer,window"),
    OPTION("alpha", STRING, "LIST", "shares of the context that a query attends to; none: -",
           .fallback = "0.05,0.1,0.2"),
    OPTION("budget", STRING, "LIST", "tokens that a query attends to; none: -",
           .fallback = "64,256,1024"),
    OPTION("importance", STRING, "LIST", "all, or names as --importance of the pipeline has them",
           .fallback = "heads"),
    OPTION("score-bits", STRING, "LIST", "all, or bits of a key's digest; a pipeline each",
           .fallback = "8"),
    OPTION("speculate", STRING, "LIST", "all, or modes; a pipeline each", .fallback = "off"),
    HILL_SINKS_SPEC,
    HILL_WINDOW_SPEC,
    HILL_GRANULARITY_SPEC,
};

static const struct option_spec where_specs[] = {
    OPTION("model", PATH, "FILE",
           "start a pipeline with this model; without it the one of --run-dir is asked",
           .letter = "m"),
    OPTION("run-dir", PATH, "DIR",
           "of a running pipeline; score-bits and speculate then name what it was started with",
           .unset_help = "with -m: none"),
    OPTION("pipeline", STRING, "OPTIONS",
           "further options of the pipeline that -m starts, in one word: '--csd none -t 2'"),
    OPTION("sessions", PATH, "DIR",
           "where prompts that were read are kept, and used again by the next run",
           .unset_help = "RESULTS.sessions, removed at the end"),
    OPTION("sessions-mb", INTEGER, "MIB",
           "without --sessions: of the prompts that lie there at a time; 0: none, every request "
           "reads its prompt",
           .max = 1 << 30, .fallback = SESSIONS_MB_DEFAULT),
    OPTION("parallel", INTEGER, "N", "requests under way at the same time", .letter = "np",
           .min = 1, .max = ASKER_PARALLEL_MAX, .fallback = "1"),
};

static const struct option_spec output_specs[] = {
    OPTION("results", PATH, "FILE",
           "raw results, a JSON object a line; what is in it is not asked again", .letter = "o",
           .fallback = "hill-eval.jsonl"),
    OPTION("markdown", PATH, "FILE", "where the table goes", .unset_help = "stdout"),
    OPTION("svg", PATH, "FILE", "draw it too (needs gnuplot)"),
    OPTION("title", STRING, "TEXT", "of the picture", .fallback = "accuracy"),
    OPTION("quiet", FLAG, NULL, "no progress on stderr", .letter = "q"),
};

#define TABLE(heading, list)                                                                       \
    {                                                                                              \
        .title = heading, .specs = list, .count = sizeof list / sizeof list[0]                     \
    }
static const struct option_table option_tables[] = {
    TABLE("what is asked", what_specs), TABLE("settings that are compared", matrix_specs),
    TABLE("pipeline", where_specs), TABLE("output", output_specs)};

static const struct option_program program = {
    .name = "hill-eval",
    .usage = "FILE... (-m MODEL | --run-dir DIR) [OPTIONS]",
    .summary = "Accuracy on task files (*.jsonl) and perplexity on texts (other files), under each "
               "setting.",
    .example =
        "hill-eval tasks.jsonl book.txt -m model.gguf --alpha 0.05,0.1 --budget - -o run.jsonl",
    .notes = "A task: {\"task\": NAME, \"prompt\": TEXT, \"answers\": [TEXT, ...]}, a line each; "
             "see tools/eval/README.md of the source.\n"
             "The same command goes on where an earlier one was stopped.\n",
    .tables = option_tables,
    .n_tables = sizeof option_tables / sizeof option_tables[0],
    .positional_max = FILES_MAX,
    .arguments_only = true,
};

/* Everything a run holds; closed in reverse by finish(). */
struct run {
    const struct options *options;
    struct subject subject;
    struct item_list items;
    struct matrix matrix;
    struct results *results;
    uint32_t most_tokens;
};

/* ---- input --------------------------------------------------------------------------------- */

static bool is_task_file(const char *path)
{
    size_t n = strlen(path);
    return n > 6 && strcmp(path + n - 6, ".jsonl") == 0;
}

static int read_items(struct run *r, struct hill_why *why)
{
    const struct options *o = r->options;
    const struct item_text_order order = {(uint32_t)options_integer(o, "text-bytes"),
                                          (uint32_t)options_integer(o, "text-pieces"),
                                          (uint32_t)options_integer(o, "text-scored")};
    int code = 0;
    for (unsigned i = 0; code == 0 && i < options_positional_count(o); i++) {
        const char *path = options_positional(o, i);
        code = is_task_file(path)
                   ? items_read_tasks(&r->items, path, (uint32_t)options_integer(o, "limit"), why)
                   : items_read_text(&r->items, path, &order, why);
    }
    return code;
}

/* "-" is an empty list; "all" of what the pipeline's own option knows. */
static const char *list_option(const struct options *o, const char *name)
{
    const char *text = options_text(o, name);
    if (text && strcmp(text, "-") == 0)
        return NULL;
    if (!text || strcmp(text, "all") != 0)
        return text;
    for (unsigned i = 0; i < hill_pipeline_count; i++)
        if (strcmp(hill_pipeline_specs[i].name, name) == 0 && hill_pipeline_specs[i].choices)
            return hill_pipeline_specs[i].choices;
    return text;
}

static int read_matrix(struct run *r, struct hill_why *why)
{
    const struct options *o = r->options;
    char score_bits[128], speculate[128];
    const char *bits = list_option(o, "score-bits"), *modes = list_option(o, "speculate");
    snprintf(score_bits, sizeof score_bits, "%s", bits ? bits : "");
    snprintf(speculate, sizeof speculate, "%s", modes ? modes : "");
    for (char *at = score_bits; (at = strchr(at, '|'));) /* choices are written with bars */
        *at = ',';
    for (char *at = speculate; (at = strchr(at, '|'));)
        *at = ',';
    const char *alphas = options_text(o, "alpha"), *budgets = options_text(o, "budget");
    struct matrix_order order = {.policies = options_text(o, "policy"),
                                 .alphas = strcmp(alphas, "-") ? alphas : NULL,
                                 .budgets = strcmp(budgets, "-") ? budgets : NULL,
                                 .importances = options_text(o, "importance"),
                                 .score_bits = score_bits,
                                 .speculate = speculate,
                                 .sinks = (uint32_t)options_integer(o, "sinks"),
                                 .window = (uint32_t)options_integer(o, "window"),
                                 .granularity = hill_granularity(o)};
    int code = matrix_build(&r->matrix, &order, why);
    if (code == 0 && !options_is_set(o, "model") && r->matrix.n_pipelines > 1)
        code = hill_fail(
            why, HILL_E_INVALID,
            "several score-bits or speculate, or policies that evaluate keys beside others, need "
            "pipelines of hill-eval's own: -m MODEL");
    return code;
}

/* The running pipeline says what model it has. */
static int ask_model(const char *run_dir, struct subject *subject, struct hill_why *why)
{
    struct client client;
    Hill__Message *reply = NULL;
    int code = client_open(&client, run_dir, why);
    if (code)
        return code;
    code = client_status(&client, CLIENT_ANSWER_MS, &reply, why);
    client_close(&client);
    if (code == 0)
        code = subject_open(subject, reply->status_reply->model, why);
    proto_free(reply);
    return code;
}

/* ---- output -------------------------------------------------------------------------------- */

static int write_table(const struct table *table, const char *path, struct hill_why *why)
{
    FILE *to = path ? fopen(path, "w") : stdout;
    if (!to)
        return hill_fail(why, HILL_E_IO, "the table cannot be written to %s", path);
    int code = table_print(table, to, why);
    if (path && fclose(to) != 0 && code == 0)
        code = hill_fail(why, HILL_E_IO, "the table cannot be written to %s", path);
    return code;
}

static int write_output(struct run *r, struct hill_why *why)
{
    const struct options *o = r->options;
    struct table table;
    int code = table_build(&table, &r->subject, &r->items, &r->matrix, r->results, why);
    if (code)
        return code;
    code = write_table(&table, options_text(o, "markdown"), why);
    if (code == 0 && options_is_set(o, "svg")) {
        code = table_draw(&table, options_text(o, "title"), options_text(o, "svg"), why);
        if (code == HILL_E_UNSUPPORTED) { /* a table without a picture is no failure */
            fprintf(stderr, "hill-eval: %s\n", why->text);
            code = 0;
        }
    }
    table_free(&table);
    return code;
}

/* ---- the run ------------------------------------------------------------------------------- */

static int check_use(const struct options *o, struct hill_why *why)
{
    bool own = options_is_set(o, "model"), running = options_is_set(o, "run-dir");
    if (options_positional_count(o) == 0)
        return hill_fail(why, HILL_E_INVALID, "no task file and no text given");
    if (own == running)
        return hill_fail(why, HILL_E_INVALID, "one of -m MODEL and --run-dir DIR is needed");
    if (options_is_set(o, "pipeline") && !own)
        return hill_fail(why, HILL_E_INVALID, "--pipeline goes with -m");
    return 0;
}

static int prepare(struct run *r, struct hill_why *why)
{
    const struct options *o = r->options;
    int code = read_matrix(r, why);
    if (code == 0)
        code = read_items(r, why);
    if (code == 0)
        code = options_is_set(o, "model") ? subject_open(&r->subject, options_text(o, "model"), why)
                                          : ask_model(options_text(o, "run-dir"), &r->subject, why);
    if (code == 0)
        code = items_measure(&r->items, &r->subject, &r->most_tokens, why);
    if (code == 0 && options_flag(o, "fit") && r->subject.trained_tokens)
        code = items_fit(&r->items, r->subject.trained_tokens, &r->most_tokens, why);
    if (code == 0)
        code = results_open(&r->results, options_text(o, "results"), why);
    return code;
}

static int ask_and_write(struct run *r, struct hill_why *why)
{
    const struct options *o = r->options;
    struct work work = {.subject = &r->subject,
                        .items = &r->items,
                        .matrix = &r->matrix,
                        .results = r->results,
                        .parallel = (unsigned)options_integer(o, "parallel"),
                        .quiet = options_flag(o, "quiet"),
                        .run_dir = options_text(o, "run-dir"),
                        .own_order = {.model = r->subject.path,
                                      .results = options_text(o, "results"),
                                      .more = options_text(o, "pipeline"),
                                      .ctx_tokens = r->most_tokens}};
    int code = sessions_open(&work.sessions, options_text(o, "sessions"), work.own_order.results,
                             (uint64_t)options_integer(o, "sessions-mb"), why);
    if (code == 0)
        code = work_run(&work, why);
    sessions_close(&work.sessions, code == 0 && work.n_failed == 0);
    if (code)
        return code;
    code = write_output(r, why);
    if (code == 0 && work.n_failed)
        code = hill_fail(why, HILL_E_DAMAGED,
                         "%zu requests failed; the same command asks them again", work.n_failed);
    return code;
}

static int evaluate(const struct options *options, struct hill_why *why)
{
    struct run run = {.options = options};
    int code = prepare(&run, why);
    if (code == 0)
        code = ask_and_write(&run, why);
    results_close(run.results);
    matrix_free(&run.matrix);
    items_free(&run.items);
    subject_close(&run.subject);
    return code;
}

int main(int argc, char **argv)
{
    return options_main(&program, argc, argv, check_use, evaluate);
}
