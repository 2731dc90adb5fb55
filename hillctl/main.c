/*
 * hillctl - the command line to a running pipeline.
 *
 * SYNOPSIS
 *     hillctl COMMAND [OPTIONS]       (hillctl --help, hillctl COMMAND --help)
 * DESCRIPTION
 *     Speaks to the coordinator of a run folder over ZeroMQ; owns nothing itself.
 * DIAGNOSTICS
 *     One line on stderr. Exit codes: 0 done; 1 the request failed; 100 wrong use; 111 no pipeline
 *     answers, or the environment failed; 130 cancelled.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "hillctl/command_list.h"

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"generate", "send one request and stream the answer", command_generate},
    {"chat", "talk with the model in the terminal", command_chat},
    {"save", "save a running request's session in a file", command_save},
    {"restore", "go on with a saved session", command_restore},
    {"status", "show workers, caps and requests", command_status},
    {"top", "watch tiers, moves, tokens/s and workers, live", command_top},
    {"doctor", "what this machine has and what is missing", command_doctor},
    {"attach", "attach the drive", command_attach},
    {"detach", "empty the drive and detach it", command_detach},
    {"csd-model", "show or change the modelled drive, also while a request runs",
     command_csd_model},
    {"keygen", "make a pair of keys for a drive on another host", command_keygen},
    {"trace", "what each stage does when, as a Chrome/Perfetto trace", command_trace},
    {"profile", "measure how fast CPU and drive are (between requests)", command_profile},
    {"stop", "end the pipeline in order", command_stop},
};

static int print_help(void)
{
    printf("usage: hillctl COMMAND [OPTIONS]\n"
           "The command line to a running pipeline (hillinfer up starts one).\n\n"
           "example: hillctl generate -p 'Once upon a time' -n 32 --temp 0\n\n");
    for (unsigned i = 0; i < sizeof commands / sizeof commands[0]; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].help);
    printf("\n`hillctl COMMAND --help` lists a command's options.\n"
           "exit codes: 0 done, 1 the request failed, 100 wrong use, 111 the environment failed, "
           "130 cancelled\n");
    return 0;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "hillctl: no command; try hillctl --help\n");
        return hill_exit_code(HILL_E_INVALID);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return print_help();
    if (strcmp(argv[1], "--version") == 0)
        return options_version("hillctl");
    for (unsigned i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "hillctl: unknown command %s; try hillctl --help\n", argv[1]);
    return hill_exit_code(HILL_E_INVALID);
}

int main(int argc, char **argv)
{
    int code = run(argc, argv);
    int err = fflush(stdout) ? errno : ferror(stdout) ? EIO : 0;
    if (!err || code) /* a command that failed has said why */
        return code;
    fprintf(stderr, "hillctl: writing to stdout failed: %s\n", strerror(err));
    return hill_exit_code(HILL_E_IO);
}
