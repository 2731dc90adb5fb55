/*
 * tools/mkmodel/command.h - the command line of hill-mkmodel.
 *
 * Who calls it: main.c and the tests. Concurrency: one thread.
 */
#pragma once

#include <limits.h>

#include "base/options.h"
#include "tools/mkmodel/shape.h"

struct mkmodel_options {
    char output[PATH_MAX];
    struct mkmodel_shape shape;
    char chat_template[8192]; /* what shape.chat_template points at */
    char metadata[1024];      /* and shape.metadata */
    char tokens[1024];        /* and shape.tokens */
};

/* For --help and misuse. */
extern const struct option_program command_program;

/* 0, or HILL_E_INVALID with one line that names the option. Shapes that do not fit together are
 * shape_check()'s. question: --help or --version was asked; nothing else is checked then. */
int command_parse(struct mkmodel_options *out, int argc, char **argv,
                  enum option_question *question, struct hill_why *why);
