/*
 * tests/fuzz/fuzz_options.c - any text as a command line and a configuration file.
 *
 * What: the input is cut at bytes 0: the last part is the INI file that --config names, the parts
 * before it (at most 12) are arguments. All tables of the pipeline and of a request are there. What
 * is accepted is read as the coordinator and hillctl read it. Failure: sanitizer findings; abort()
 * where a refusal has no reason, or one of several lines. Who calls it: libFuzzer (tests/fuzz/run).
 * Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/csd_model.h"
#include "proto/options_hill.h"
#include "tests/fuzz/memory_file.h"

#define PARTS_MAX 12

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const struct options *options)
{
    struct hill_pipeline_options pipeline;
    struct hill_request_options request;
    struct epoch_settings epoch;
    struct hill_why why = {""};
    char path[HILL_PATH_BYTES];
    if (hill_pipeline_read(&pipeline, &epoch, options, &why) != 0 && !why.text[0])
        abort();
    why.text[0] = '\0';
    if (hill_request_read(&request, options, &why) != 0 && !why.text[0])
        abort();
    if (hill_run_dir(path, options, &why) == 0 && strlen(path) > HILL_RUN_DIR_MAX)
        abort(); /* a socket's name would be cut */
    hill_state_dir(path, options, &why);
    hill_log_option(options);
}

static void parse(int argc, char **argv)
{
    const struct option_table tables[] = {
        HILL_COMMON_TABLE,
        {.title = "pipeline", .specs = hill_pipeline_specs, .count = hill_pipeline_count},
        {.title = "request", .specs = hill_request_specs, .count = hill_request_count}};
    const struct option_program program = {.name = "hill",
                                           .usage = "",
                                           .summary = "",
                                           .example = "",
                                           .tables = tables,
                                           .n_tables = 3,
                                           .positional_max = 2};
    struct options *options = NULL;
    enum option_question question = OPTIONS_NONE;
    struct hill_why why = {""};
    int code = options_parse(&options, &program, argc, argv, &question, &why);
    if (code != 0 && (options || !why.text[0] || strchr(why.text, '\n')))
        abort();
    if (options) {
        read_all(options);
        options_free(options);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *argv[PARTS_MAX + 3] = {(char *)"hill"};
    int argc = 1;
    size_t at = 0;
    if (!text)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    for (char *end; argc <= PARTS_MAX && (end = memchr(text + at, 0, size - at));
         at = (size_t)(end - text) + 1)
        argv[argc++] = text + at;
    argv[argc++] = (char *)"--config";
    argv[argc++] = (char *)memory_file(text + at, size - at);
    parse(argc, argv);
    free(text);
    return 0;
}
