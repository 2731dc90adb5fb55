/* hillctl/keygen.c - hillctl keygen FILE: a pair of keys for a drive on another host. */
#include <stdio.h>

#include "base/options.h"
#include "hillctl/command_list.h"
#include "proto/drive_link.h"

static const struct option_program program = {
    .name = "hillctl keygen",
    .usage = "FILE",
    .summary =
        "Makes a pair of CurveZMQ keys: FILE, for its owner alone, and FILE.pub, to be copied "
        "to the other host.",
    .example = "hillctl keygen ~/host",
    .notes =
        "Each host has a pair of its own: the drive's (hill-csd-agent --listen ... --key drive "
        "--peer host.pub)\nand the pipeline's (hillinfer up --csd tcp://... --csd-key host "
        "--csd-peer drive.pub).\nSeveral drives: the file of --csd-peer has a line for each, "
        "tcp://HOST:PORT and the key.",
    .exit_codes = "  0    FILE and FILE.pub are there\n"
                  "  100  wrong use; a FILE that is there stays as it is\n"
                  "  111  they cannot be written\n",
    .positional_max = 1,
    .arguments_only = true,
};

static int check_options(const struct options *o, struct hill_why *why)
{
    return options_positional_count(o) == 1 ? 0 : hill_fail(why, HILL_E_INVALID, "which FILE?");
}

static int make_keys(const struct options *o, struct hill_why *why)
{
    return drive_keys_write(options_positional(o, 0), why);
}

int command_keygen(int argc, char **argv)
{
    return options_main(&program, argc, argv, check_options, make_keys);
}
