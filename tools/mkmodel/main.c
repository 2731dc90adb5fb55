/*
 * hill-mkmodel - write a small GGUF model: wired by hand to copy, or of random weights.
 *
 * What: one file from a few options (--help lists them). The wired model is the project's demo
 * model and test instrument. Why: no pretrained model can be shipped, and random weights alone do
 * not need their context. Who calls it: `make demo`, the integration tests, a person. Concurrency:
 * one thread; SIGINT and SIGTERM set a flag that the writer looks at. How it fails: one line on
 * stderr; exit 100 (wrong use), 111 (no space, permission, I/O), 130 (interrupted). The target is
 * replaced whole or left as it was, no temporary file stays.
 */
#include <signal.h>
#include <stdio.h>

#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/process.h"
#include "tools/mkmodel/build.h"
#include "tools/mkmodel/command.h"

static volatile sig_atomic_t stop_requested;

static void request_stop(int signal_number)
{
    (void)signal_number;
    stop_requested = 1;
}

static void install_signals(void)
{
    struct sigaction action = {.sa_handler = request_stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* Report these as errors of write, so that the temporary file is removed. */
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL);
}

int main(int argc, char **argv)
{
    struct mkmodel_options options;
    struct hill_why why = {.text = ""};
    enum option_question question = OPTIONS_NONE;
    process_open_standard();
    hill_log_init("hill-mkmodel", HILL_LOG_INFO);
    int code = command_parse(&options, argc, argv, &question, &why);
    if (question == OPTIONS_HELP)
        options_help(stdout, &command_program);
    else if (question == OPTIONS_VERSION)
        options_version("hill-mkmodel");
    if (question != OPTIONS_NONE)
        return fflush(stdout) != 0 ? 111 : 0;
    uint64_t file_bytes = 0;
    if (!code) {
        install_signals();
        code = build_model(&options.shape, options.output, &stop_requested, &file_bytes, &why);
    }
    if (code == HILL_E_INVALID)
        log_error("%s; try --help", why.text);
    else if (code)
        log_error("%s", why.text);
    else
        log_info("wrote %s, %llu bytes", options.output, (unsigned long long)file_bytes);
    return hill_exit_code(code);
}
