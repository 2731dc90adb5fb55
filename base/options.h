/*
 * base/options.h - table-driven options: command line > HILL_* environment > INI file > default.
 *
 * What: a program names its tables; one parser reads `--hot-mb 64`, `--hot-mb=64`, `-c 4096`, `-np
 * 1`, HILL_HOT_MB=64 and `hot-mb = 64` of the INI file that --config (or HILL_CONFIG) names, checks
 * each value strictly against type and range, and prints --help. A table can be foreign: its names
 * are accepted (and ignored) in the environment and the INI file, so that programs share one file,
 * but not on the command line. Who calls it: every program; workers by way of proto/worker_link.h.
 * Concurrency: none (start-up); the result is read-only. Failure: HILL_E_INVALID and one line in
 * why: unknown option or INI key, missing value, "12x", overflow, out of range, leftover argument,
 * an INI file that is damaged or not there. HILL_E_IO and HILL_E_PERMISSION when the INI file
 * cannot be read.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

enum option_type {
    OPTION_STRING,  /* any text */
    OPTION_PATH,    /* not empty, shorter than PATH_MAX */
    OPTION_INTEGER, /* decimal, min .. max */
    OPTION_REAL,    /* finite decimal, min .. max */
    OPTION_SIZE,   /* MiB, or with suffix K M G T (KiB .. TiB); fractions allowed; min .. max in MiB
                    */
    OPTION_CHOICE, /* one of choices */
    OPTION_FLAG,   /* no value on the command line; 1/0 true/false yes/no on/off elsewhere */
};

struct option_spec {
    const char *name;   /* long name, without "--" */
    const char *letter; /* short name, without "-": "c", "np"; NULL: none */
    enum option_type type;
    double min, max;     /* integer, real, size; inclusive */
    bool min_open;       /* real: min itself is out of range */
    const char *choices; /* choice: "full|hillinfer"; other types: words accepted instead of a value
                            ("auto") */
    const char *refused; /* words that are known but not in this version: "h2o|leoam" */
    const char
        *note;  /* numbers: added to the line that refuses one out of range ("this version ...") */
    char joins; /* said again on the command line: the values with this between them; 0: the last */
    const char *fallback;   /* default, as it would be typed; NULL: not set */
    const char *unset_help; /* what --help shows as default when fallback is NULL (NULL: "none") */
    const char *value;      /* how --help calls the value: "TOKENS" */
    const char *help;
};

/* A row of a table: what every option has, then by name what this one has besides:
 * OPTION("batch-size", INTEGER, "TOKENS", "tokens of a chunk", .min = 1, .fallback = "256"). */
#define OPTION(long_name, kind, value_name, text, ...)                                             \
    {                                                                                              \
        .name = long_name, .type = OPTION_##kind, .value = value_name, .help = text, __VA_ARGS__   \
    }

struct option_table {
    const char *title; /* heading in --help */
    const struct option_spec *specs;
    unsigned count;
    bool foreign; /* of another program: accepted in environment and INI file only */
};

/* What to say of an option that this program does not have, but a like one has. */
struct option_hint {
    const char *names;  /* with their dashes: "-ngl|--n-gpu-layers" */
    const char *advice; /* "all layers run on the device; leave it out" */
};

struct option_program {
    const char *name;       /* "hill-coordinator" */
    const char *usage;      /* what follows the name: "-m MODEL [OPTIONS]" */
    const char *summary;    /* one or two lines */
    const char *example;    /* a real command */
    const char *notes;      /* printed at the end of --help; NULL: nothing */
    const char *exit_codes; /* lines of --help; NULL: those of a program that runs requests */
    const struct option_table *tables;
    unsigned n_tables;
    const struct option_hint *hints; /* NULL: none */
    unsigned n_hints;
    unsigned positional_max; /* arguments that are no options (a URL, a file) */
    bool arguments_only;     /* a tool: no environment, no --config */
};

enum option_source {
    OPTION_FROM_NOTHING,
    OPTION_FROM_DEFAULT,
    OPTION_FROM_FILE,
    OPTION_FROM_ENVIRONMENT,
    OPTION_FROM_ARGUMENT
};

struct options;

enum option_question { OPTIONS_NONE, OPTIONS_HELP, OPTIONS_VERSION };

/* Parse; prints nothing. argv[0] is skipped. question (may be NULL): --help or --version was there;
 * the rest is then not checked and *out is NULL. The program outlives the options; argument texts
 * are copied. */
int options_parse(struct options **out, const struct option_program *program, int argc, char **argv,
                  enum option_question *question, struct hill_why *why);

/* What reading a file that an option names failed with: a name that leads to no file is a mistake
 * of who gave it (HILL_E_INVALID), all else is hill_from_errno's. */
int options_from_errno(int err);
/* The same before it is read: HILL_E_INVALID, a name that leads to no file. */
int options_check_file(const char *path, struct hill_why *why);

/* What a main calls: open what is closed of stdin, stdout and stderr (base/process.h), parse,
 * answer --help and --version on stdout, print misuse as one line on stderr. Returns 0 (go on), 1
 * (answered: exit 0) or an error code that has been printed (exit hill_exit_code of it). */
int options_start(struct options **out, const struct option_program *program, int argc,
                  char **argv);

/* A whole main: parse, check, run, and say what failed on stderr as "NAME: WHY" (nothing where why
 * is empty), for check with "try NAME --help". check may be NULL. Returns the exit code. */
int options_main(const struct option_program *program, int argc, char **argv,
                 int (*check)(const struct options *options, struct hill_why *why),
                 int (*run)(const struct options *options, struct hill_why *why));

void options_free(struct options *options); /* NULL allowed */

/* "NAME VERSION (COMMIT)" on stdout: what --version says. COMMIT is the Makefile's, of programs. */
int options_version(const char *program);
/* The commit that the program is built from; "": unknown. */
const char *options_commit(void);

void options_help(FILE *to, const struct option_program *program);

/* One line "NAME: WHY; try NAME --help" on stderr. */
void options_misuse(const struct option_program *program, const struct hill_why *why);

/* Values by long name; a name that is in no table of the program is a bug (abort), and so is a
 * value of another type or one not set (strings and paths: NULL). */
bool options_is_set(const struct options *options, const char *name);
enum option_source options_source(const struct options *options, const char *name);
const char *options_text(const struct options *options,
                         const char *name); /* of any type, as typed */
int64_t options_integer(const struct options *options, const char *name);
double options_real(const struct options *options, const char *name);
uint64_t options_bytes(const struct options *options, const char *name);
bool options_flag(const struct options *options, const char *name); /* false when not set */
/* true when the value is one of the words of `choices` ("auto") and not a number. */
bool options_is_word(const struct options *options, const char *name);

unsigned options_positional_count(const struct options *options);
const char *options_positional(const struct options *options, unsigned index);

/* The strict parsers, for other text that people type. HILL_E_INVALID: not wholly a number,
 * overflow, not finite. */
int options_read_integer(const char *text, int64_t *out);
int options_read_real(const char *text, double *out);
int options_read_size(const char *text, uint64_t *bytes);
