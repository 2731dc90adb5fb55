/*
 * mkmodel/command.h - the command line of hill-mkmodel.
 *
 * Who calls it: main.c and the tests. Concurrency: getopt's, one thread.
 */
#ifndef HILL_MKMODEL_COMMAND_H
#define HILL_MKMODEL_COMMAND_H

#include "mkmodel/shape.h"

struct mkmodel_options {
    const char *output; /* points into argv */
    struct mkmodel_shape shape;
    bool help, version; /* asked for; nothing else is checked then */
};

/* 0, or HILL_E_INVALID with one line that names the option. Shapes that do not fit together are
 * shape_check()'s. */
int command_parse(struct mkmodel_options *out, int argc, char **argv, struct hill_why *why);

/* The text of --help. */
extern const char command_help[];

#endif
