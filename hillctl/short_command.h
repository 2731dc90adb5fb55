/*
 * hillctl/short_command.h - what the commands that are no request share: options, connection, end.
 *
 * Who calls it: hillctl's commands that ask one question. Failure: everything is said in one line
 * on stderr here; the caller returns the exit code. Concurrency: one thread.
 */
#pragma once

#include <stdbool.h>

#include "proto/options_hill.h"
#include "proto/client.h"

struct short_command {
    struct option_program program; /* the caller fills name, usage, summary, example */
    struct option_table own;       /* the command's own options; count 0: none */
    const char *needs;             /* said where program.positional_max is not reached; or NULL */
    struct option_table tables[5];
    struct options *options;
    struct client client;
};

/* Parse the options and connect: 0, or the exit code + 1 to leave with. */
int short_command_begin(struct short_command *c, int argc, char **argv);
/* Say what failed, close, and return the exit code. */
int short_command_end(struct short_command *c, int code, const struct hill_why *why);

/* A request that is answered by Reply, whose text is printed. */
int short_command_change(struct short_command *c, const Hill__Message *message, int64_t patience_ms,
                         struct hill_why *why);
