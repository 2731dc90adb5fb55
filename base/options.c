/* base/options.c - see options.h. */
#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ini.h>

#include "base/fault.h"
#include "base/process.h"

struct option_value {
    const struct option_spec *spec;
    enum option_source source;
    char *text;
    bool is_word;
    int64_t integer;
    double real;
    uint64_t bytes;
    bool flag;
};

struct options {
    const struct option_program *program;
    struct option_value *values;
    unsigned n_values;
    char **positional;
    unsigned n_positional;
};

static const struct option_spec builtin_specs[] = {
    OPTION("config", PATH, "FILE", "read defaults from this INI file (name = value)"),
};

/* ---- strict numbers ---------------------------------------------------------------------- */

/* strtod and strtoll take leading blanks, hexadecimal, "inf" and more: only what a person types as
 * a decimal number passes. */
static bool starts_like_number(const char *text)
{
    if (*text == '-' || *text == '+')
        text++;
    if (*text == '.')
        text++;
    return isdigit((unsigned char)*text) && !(text[0] == '0' && (text[1] == 'x' || text[1] == 'X'));
}

int options_read_integer(const char *text, int64_t *out)
{
    char *end;
    if (!starts_like_number(text) || strchr(text, '.'))
        return HILL_E_INVALID;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || *end)
        return HILL_E_INVALID;
    *out = value;
    return 0;
}

static int read_real_prefix(const char *text, double *out, const char **rest)
{
    char *end;
    if (!starts_like_number(text))
        return HILL_E_INVALID;
    errno = 0;
    double value = strtod(text, &end);
    /* ERANGE also reports underflow, which is as good as zero here */
    if (end == text || !isfinite(value))
        return HILL_E_INVALID;
    *out = value;
    *rest = end;
    return 0;
}

int options_read_real(const char *text, double *out)
{
    const char *rest;
    double value;
    if (read_real_prefix(text, &value, &rest) || *rest)
        return HILL_E_INVALID;
    *out = value;
    return 0;
}

int options_read_size(const char *text, uint64_t *bytes)
{
    const char *rest;
    double value, unit = 1 << 20;
    if (read_real_prefix(text, &value, &rest) || value < 0)
        return HILL_E_INVALID;
    if (*rest) {
        static const char suffixes[] = "KMGT";
        const char *suffix = strchr(suffixes, toupper((unsigned char)*rest));
        if (!suffix || rest[1])
            return HILL_E_INVALID;
        unit = ldexp(1, 10 * (int)(suffix - suffixes + 1));
    }
    value *= unit;
    if (!(value <= 0x1p60))
        return HILL_E_INVALID;
    *bytes = (uint64_t)(value + 0.5);
    return 0;
}

/* ---- one value --------------------------------------------------------------------------- */

static bool is_one_of(const char *words, const char *text)
{
    size_t length = strchr(text, '|') ? 0 : strlen(text);
    for (const char *at = words; at && length; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, text, length) == 0 && (at[length] == '|' || at[length] == '\0'))
            return true;
    return false;
}

static int read_flag(const char *text, bool *out)
{
    bool yes = is_one_of("1|true|yes|on", text);
    if (!yes && !is_one_of("0|false|no|off", text))
        return HILL_E_INVALID;
    *out = yes;
    return 0;
}

static void range_text(char *out, size_t room, const struct option_spec *spec)
{
    if (spec->type == OPTION_INTEGER)
        snprintf(out, room, "%.0f to %.0f", spec->min, spec->max);
    else if (spec->type == OPTION_SIZE)
        snprintf(out, room, "%.10g to %.10g MiB", spec->min, spec->max);
    else
        snprintf(out, room, "%s%.10g to %.10g", spec->min_open ? "above " : "", spec->min,
                 spec->max);
}

static bool in_range(const struct option_spec *spec, double value)
{
    return value <= spec->max && (spec->min_open ? value > spec->min : value >= spec->min);
}

static int read_number(struct option_value *parsed, const char *text, const char *where,
                       struct hill_why *why)
{
    static const char *const kinds[] = {
        [OPTION_INTEGER] = "an integer",
        [OPTION_REAL] = "a number",
        [OPTION_SIZE] = "a size (MiB, or with suffix K, M, G, T)",
    };
    const struct option_spec *spec = parsed->spec;
    double value = 0;
    int code;
    if (spec->type == OPTION_INTEGER) {
        code = options_read_integer(text, &parsed->integer);
        value = (double)parsed->integer;
    } else if (spec->type == OPTION_REAL) {
        code = options_read_real(text, &parsed->real);
        value = parsed->real;
    } else {
        code = options_read_size(text, &parsed->bytes);
        value = (double)parsed->bytes / 0x1p20;
    }
    if (code)
        return hill_fail(why, code, "%s: '%.80s' is not %s%s%s", where, text, kinds[spec->type],
                         spec->choices ? " or " : "", spec->choices ? spec->choices : "");
    if (!in_range(spec, value)) {
        char range[96];
        range_text(range, sizeof range, spec);
        return hill_fail(why, HILL_E_INVALID, "%s: %.80s is out of range (%s%s%s)", where, text,
                         range, spec->note ? "; " : "", spec->note ? spec->note : "");
    }
    return 0;
}

/* Parse text into parsed (spec set, the rest zero). where: how the person named it ("--hot-mb",
 * "HILL_HOT_MB"). */
static int read_value(struct option_value *parsed, const char *text, const char *where,
                      struct hill_why *why)
{
    const struct option_spec *spec = parsed->spec;
    bool number =
        spec->type == OPTION_INTEGER || spec->type == OPTION_REAL || spec->type == OPTION_SIZE;
    if (!number && is_one_of(spec->refused, text))
        return hill_fail(why, HILL_E_INVALID, "%s: %s is not in this version (%s)", where, text,
                         spec->choices);
    if (is_one_of(spec->choices, text)) {
        parsed->is_word = true;
        return 0;
    }
    switch (spec->type) {
    case OPTION_STRING:
        return 0;
    case OPTION_PATH:
        if (!*text || strlen(text) >= PATH_MAX)
            return hill_fail(why, HILL_E_INVALID, "%s: not a path (empty or too long)", where);
        return 0;
    case OPTION_CHOICE:
        return hill_fail(why, HILL_E_INVALID, "%s: '%.80s' is none of %s", where, text,
                         spec->choices);
    case OPTION_FLAG:
        if (read_flag(text, &parsed->flag))
            return hill_fail(why, HILL_E_INVALID,
                             "%s: '%.80s' is none of 1 0 true false yes no on off", where, text);
        return 0;
    default:
        return read_number(parsed, text, where, why);
    }
}

static char *join(const char *first, char between, const char *second)
{
    size_t length = strlen(first), room = length + strlen(second) + 2;
    char *out = malloc(room);
    if (out)
        snprintf(out, room, "%s%c%s", first, between, second);
    return out;
}

/* Set the value unless a source that counts more has set it; it is checked in any case. */
static int set_value(struct option_value *value, const char *text, enum option_source source,
                     const char *where, struct hill_why *why)
{
    struct option_value parsed = {.spec = value->spec, .source = source};
    int code = read_value(&parsed, text, where, why);
    if (code || source < value->source)
        return code;
    bool joins = value->spec->joins && source == OPTION_FROM_ARGUMENT && value->source == source;
    parsed.text = joins ? join(value->text, value->spec->joins, text) : strdup(text);
    if (!parsed.text)
        return hill_fail(why, HILL_E_NOMEM, "out of memory");
    parsed.is_word &= !joins;
    free(value->text);
    *value = parsed;
    return 0;
}

/* ---- tables ------------------------------------------------------------------------------ */

static struct option_value *find_value(const struct options *options, const char *name,
                                       size_t length)
{
    for (unsigned i = 0; i < options->n_values; i++) {
        const char *candidate = options->values[i].spec->name;
        if (strncmp(candidate, name, length) == 0 && candidate[length] == '\0')
            return &options->values[i];
    }
    return NULL;
}

static struct option_value *find_letter(const struct options *options, const char *letter)
{
    for (unsigned i = 0; i < options->n_values; i++)
        if (options->values[i].spec->letter && strcmp(options->values[i].spec->letter, letter) == 0)
            return &options->values[i];
    return NULL;
}

static const struct option_spec *find_foreign(const struct options *options, const char *name)
{
    for (unsigned t = 0; t < options->program->n_tables; t++) {
        const struct option_table *table = &options->program->tables[t];
        for (unsigned i = 0; table->foreign && i < table->count; i++)
            if (strcmp(table->specs[i].name, name) == 0)
                return &table->specs[i];
    }
    return NULL;
}

static int make_values(struct options *options)
{
    unsigned builtin =
        options->program->arguments_only ? 0 : sizeof builtin_specs / sizeof builtin_specs[0];
    unsigned room = builtin;
    for (unsigned t = 0; t < options->program->n_tables; t++)
        room += options->program->tables[t].count;
    options->values = calloc(room, sizeof *options->values);
    if (!options->values)
        return HILL_E_NOMEM;
    for (unsigned t = 0; t < options->program->n_tables; t++) {
        const struct option_table *table = &options->program->tables[t];
        for (unsigned i = 0; !table->foreign && i < table->count; i++)
            options->values[options->n_values++].spec = &table->specs[i];
    }
    for (unsigned i = 0; i < builtin; i++)
        options->values[options->n_values++].spec = &builtin_specs[i];
    return 0;
}

/* ---- sources ----------------------------------------------------------------------------- */

static int unknown_option(const struct option_program *program, const char *argument,
                          struct hill_why *why)
{
    char name[80];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(argument, "="), argument);
    for (unsigned i = 0; i < program->n_hints; i++)
        if (is_one_of(program->hints[i].names, name))
            return hill_fail(why, HILL_E_INVALID, "unknown option %s: %s", name,
                             program->hints[i].advice);
    return hill_fail(why, HILL_E_INVALID, "unknown option %.80s", argument);
}

static int read_option(struct options *options, int argc, char **argv, int *index,
                       struct hill_why *why)
{
    const char *argument = argv[*index], *equals = NULL;
    struct option_value *value;
    if (argument[1] == '-') {
        equals = strchr(argument, '=');
        size_t length = equals ? (size_t)(equals - argument) - 2 : strlen(argument) - 2;
        value = find_value(options, argument + 2, length);
    } else {
        value = find_letter(options, argument + 1);
    }
    if (!value)
        return unknown_option(options->program, argument, why);
    char where[96];
    snprintf(where, sizeof where, "%.*s", equals ? (int)(equals - argument) : 80, argument);
    if (equals)
        return set_value(value, equals + 1, OPTION_FROM_ARGUMENT, where, why);
    if (value->spec->type == OPTION_FLAG)
        return set_value(value, "1", OPTION_FROM_ARGUMENT, where, why);
    if (*index + 1 >= argc)
        return hill_fail(why, HILL_E_INVALID, "%s needs a value (%s)", where, value->spec->value);
    return set_value(value, argv[++*index], OPTION_FROM_ARGUMENT, where, why);
}

static int read_arguments(struct options *options, int argc, char **argv, struct hill_why *why)
{
    options->positional = calloc((size_t)argc + 1, sizeof *options->positional);
    if (!options->positional)
        return hill_fail(why, HILL_E_NOMEM, "out of memory");
    bool only_positional = false;
    for (int i = 1; i < argc; i++) {
        if (!only_positional && strcmp(argv[i], "--") == 0) {
            only_positional = true;
        } else if (!only_positional && argv[i][0] == '-' && argv[i][1]) {
            int code = read_option(options, argc, argv, &i, why);
            if (code)
                return code;
        } else if (options->n_positional >= options->program->positional_max) {
            return hill_fail(why, HILL_E_INVALID, "unexpected argument '%.80s'", argv[i]);
        } else if (!(options->positional[options->n_positional++] = strdup(argv[i]))) {
            return hill_fail(why, HILL_E_NOMEM, "out of memory");
        }
    }
    return 0;
}

static void environment_name(char *out, size_t room, const char *name)
{
    size_t used = (size_t)snprintf(out, room, "HILL_");
    for (; *name && used + 1 < room; name++)
        out[used++] = *name == '-' ? '_' : (char)toupper((unsigned char)*name);
    out[used] = '\0';
}

/* A variable that is set but empty counts as not set, as is usual in shells. */
static int read_environment(struct options *options, struct hill_why *why)
{
    for (unsigned i = 0; i < options->n_values; i++) {
        char name[64];
        environment_name(name, sizeof name, options->values[i].spec->name);
        const char *text = getenv(name);
        if (!text || !*text)
            continue;
        int code = set_value(&options->values[i], text, OPTION_FROM_ENVIRONMENT, name, why);
        if (code)
            return code;
    }
    return 0;
}

struct file_reading {
    struct options *options;
    FILE *file;
    const char *path;
    bool *seen; /* [n_values] */
    struct hill_why *why;
    int code;
    unsigned line;
};

/* inih cuts a line that is longer than its buffer and takes the rest for another line: refuse it
 * instead. */
static char *read_line(char *text, int room, void *user)
{
    struct file_reading *reading = user;
    if (reading->code || !fgets(text, room, reading->file))
        return NULL;
    reading->line++;
    size_t length = strlen(text);
    if (length + 1 >= (size_t)room && text[length - 1] != '\n')
        reading->code =
            hill_fail(reading->why, HILL_E_INVALID, "%.200s line %u: longer than %d bytes",
                      reading->path, reading->line, room - 2);
    return text;
}

static int take_pair(void *user, const char *section, const char *name, const char *text)
{
    struct file_reading *reading = user;
    struct options *options = reading->options;
    if (reading->code)
        return 0;
    char where[400];
    snprintf(where, sizeof where, "%.200s line %u: %.80s", reading->path, reading->line, name);
    struct option_value *value = find_value(options, name, strlen(name));
    if (*section && strcmp(section, "hillinfer") != 0)
        reading->code = hill_fail(reading->why, HILL_E_INVALID, "%.200s: unknown section [%.80s]",
                                  reading->path, section);
    else if (strcmp(name, "config") == 0)
        reading->code = hill_fail(reading->why, HILL_E_INVALID,
                                  "%s: a configuration file names no other", where);
    else if (!value && !find_foreign(options, name))
        reading->code = hill_fail(reading->why, HILL_E_INVALID, "%s: unknown key", where);
    else if (value && reading->seen[value - options->values])
        reading->code = hill_fail(reading->why, HILL_E_INVALID, "%s: given twice", where);
    else if (value) {
        reading->seen[value - options->values] = true;
        reading->code = set_value(value, text, OPTION_FROM_FILE, where, reading->why);
    }
    return reading->code == 0;
}

static int read_file(struct options *options, struct hill_why *why)
{
    const char *path = options_text(options, "config");
    if (!path)
        return 0;
    struct file_reading reading = {.options = options, .path = path, .why = why};
    reading.file = fopen(path, "re");
    if (!reading.file)
        return hill_fail(why, options_from_errno(errno),
                         "cannot read configuration file %.200s: %s", path, strerror(errno));
    reading.seen = calloc(options->n_values, sizeof *reading.seen);
    int code = HILL_E_NOMEM;
    if (reading.seen) {
        errno = 0;
        int bad_line = ini_parse_stream(read_line, &reading, take_pair, &reading);
        int reason = errno ? errno : EIO; /* if it failed */
        code = reading.code;
        if (!code && ferror(reading.file))
            code = hill_fail(why, options_from_errno(reason),
                             "cannot read configuration file %.200s: %s", path, strerror(reason));
        if (!code && bad_line)
            code = hill_fail(why, HILL_E_INVALID, "%.200s line %d: not 'name = value'", path,
                             bad_line);
    }
    free(reading.seen);
    fclose(reading.file);
    return code;
}

static int read_defaults(struct options *options, struct hill_why *why)
{
    for (unsigned i = 0; i < options->n_values; i++) {
        const struct option_spec *spec = options->values[i].spec;
        if (!spec->fallback)
            continue;
        int code =
            set_value(&options->values[i], spec->fallback, OPTION_FROM_DEFAULT, spec->name, why);
        if (code)
            return code;
    }
    return 0;
}

/* --help and --version win over mistakes elsewhere, but a value of another option is not taken for
 * them. */
static enum option_question find_question(const struct options *options, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return OPTIONS_HELP;
        if (strcmp(argv[i], "--version") == 0)
            return OPTIONS_VERSION;
        const struct option_value *value = NULL;
        if (argv[i][0] == '-' && argv[i][1] == '-')
            value = find_value(options, argv[i] + 2, strlen(argv[i] + 2));
        else if (argv[i][0] == '-')
            value = find_letter(options, argv[i] + 1);
        if (value && value->spec->type != OPTION_FLAG)
            i++;
    }
    return OPTIONS_NONE;
}

int options_parse(struct options **out, const struct option_program *program, int argc, char **argv,
                  enum option_question *question, struct hill_why *why)
{
    *out = NULL;
    struct options *options = calloc(1, sizeof *options);
    if (!options)
        return hill_fail(why, HILL_E_NOMEM, "out of memory");
    options->program = program;
    int code = make_values(options);
    enum option_question asked = code ? OPTIONS_NONE : find_question(options, argc, argv);
    if (question)
        *question = asked;
    if (asked) {
        options_free(options);
        return 0;
    }
    if (!code)
        code = read_defaults(options, why);
    if (!code)
        code = read_arguments(options, argc, argv, why);
    if (!code && !program->arguments_only)
        code = read_environment(options, why);
    if (!code && !program->arguments_only)
        code = read_file(options, why);
    if (code)
        options_free(options);
    else
        *out = options;
    return code;
}

int options_from_errno(int err)
{
    bool no_file = err == ENOENT || err == ENOTDIR || err == EISDIR || err == ENAMETOOLONG;
    return no_file ? HILL_E_INVALID : hill_from_errno(err);
}

int options_check_file(const char *path, struct hill_why *why)
{
    struct stat st;
    if (stat(path, &st) == 0 || options_from_errno(errno) != HILL_E_INVALID)
        return 0;
    return hill_fail(why, HILL_E_INVALID, "cannot read %.300s: %s", path, strerror(errno));
}

int options_start(struct options **out, const struct option_program *program, int argc, char **argv)
{
    struct hill_why why = {{0}};
    enum option_question question = OPTIONS_NONE;
    process_open_standard();
#ifdef HILL_FAULTS
    if (argc == 2 && strcmp(argv[1], "--list-faults") == 0) {
        fault_list(stdout);
        return 1;
    }
#endif
    int code = options_parse(out, program, argc, argv, &question, &why);
    if (code) {
        options_misuse(program, &why);
        return code;
    }
    if (question == OPTIONS_HELP)
        options_help(stdout, program);
    else if (question == OPTIONS_VERSION)
        options_version(program->name);
    return question != OPTIONS_NONE;
}

int options_main(const struct option_program *program, int argc, char **argv,
                 int (*check)(const struct options *options, struct hill_why *why),
                 int (*run)(const struct options *options, struct hill_why *why))
{
    struct options *options;
    struct hill_why why = {""};
    int code = options_start(&options, program, argc, argv);
    if (code)
        return code > 0 ? 0 : hill_exit_code(code);
    code = check ? check(options, &why) : 0;
    if (code)
        options_misuse(program, &why);
    else if ((code = run(options, &why)) != 0 && why.text[0])
        fprintf(stderr, "%.*s: %s\n", (int)strcspn(program->name, " "), program->name, why.text);
    options_free(options);
    return hill_exit_code(code);
}

extern const char hill_commit[] __attribute__((weak)); /* tests are linked without */

const char *options_commit(void)
{
    const char *commit = hill_commit;
    return commit ? commit : "";
}

int options_version(const char *program)
{
    const char *commit = options_commit();
    return printf("%s %s%s%s%s\n", program, HILL_VERSION, *commit ? " (" : "", commit,
                  *commit ? ")" : "") < 0;
}

void options_misuse(const struct option_program *program, const struct hill_why *why)
{
    fprintf(stderr, "%s: %s; try %s --help\n", program->name, why->text, program->name);
}

void options_free(struct options *options)
{
    if (!options)
        return;
    for (unsigned i = 0; i < options->n_values; i++)
        free(options->values[i].text);
    for (unsigned i = 0; i < options->n_positional; i++)
        free(options->positional[i]);
    free(options->positional);
    free(options->values);
    free(options);
}

/* ---- help -------------------------------------------------------------------------------- */

static const char request_exit_codes[] =
    "  0    done\n"
    "  1    the request failed, or the model file is damaged or unsupported\n"
    "  100  wrong use or configuration\n"
    "  111  the environment failed (no space, memory, device or permission): worth a retry\n"
    "  130  stopped by Ctrl-C or SIGTERM\n";

static void help_option(FILE *to, const struct option_spec *spec)
{
    fprintf(to, "  %s%s%s--%s%s%s\n", spec->letter ? "-" : "", spec->letter ? spec->letter : "",
            spec->letter ? ", " : "", spec->name, spec->type == OPTION_FLAG ? "" : " ",
            spec->type == OPTION_FLAG ? "" : spec->value);
    fprintf(to, "        %s\n", spec->help);
    char range[96] = "";
    static const char *const kinds[] = {
        "text",   "path", "integer", "number", "size in MiB, or with suffix K M G T",
        "one of", "flag"};
    if (spec->type == OPTION_INTEGER || spec->type == OPTION_REAL || spec->type == OPTION_SIZE)
        range_text(range, sizeof range, spec);
    fprintf(to, "        (%s", kinds[spec->type]);
    if (*range)
        fprintf(to, ", %s", range);
    if (spec->choices)
        fprintf(to, "%s%s", spec->type == OPTION_CHOICE ? " " : " or ", spec->choices);
    if (spec->type != OPTION_FLAG)
        fprintf(to, "; default %s",
                spec->fallback     ? (*spec->fallback ? spec->fallback : "empty")
                : spec->unset_help ? spec->unset_help
                                   : "none");
    fprintf(to, ")\n");
}

void options_help(FILE *to, const struct option_program *program)
{
    fprintf(to, "usage: %s %s\n%s\n\nexample: %s\n", program->name, program->usage,
            program->summary, program->example);
    for (unsigned t = 0; t < program->n_tables; t++) {
        const struct option_table *table = &program->tables[t];
        if (table->foreign)
            continue;
        fprintf(to, "\n%s:\n", table->title);
        for (unsigned i = 0; i < table->count; i++)
            help_option(to, &table->specs[i]);
    }
    fprintf(to, "\ngeneral:\n");
    if (!program->arguments_only)
        help_option(to, &builtin_specs[0]);
    fprintf(to,
            "  -h, --help\n        print this and exit\n  --version\n        print the version and "
            "exit\n\nexit codes:\n%s",
            program->exit_codes ? program->exit_codes : request_exit_codes);
    if (!program->arguments_only)
        fprintf(
            to,
            "\nenvironment:\n"
            "  every option, as HILL_ and its name in capitals: HILL_HOT_MB for --hot-mb\n"
            "  the command line counts more than the environment, that more than --config, that "
            "more than the default\n");
    if (program->notes)
        fprintf(to, "\n%s\n", program->notes);
}

/* ---- values ------------------------------------------------------------------------------ */

static const struct option_value *value_of(const struct options *options, const char *name)
{
    const struct option_value *value = find_value(options, name, strlen(name));
    if (!value)
        abort(); /* a name that is in no table: a bug in the caller */
    return value;
}

static const struct option_value *typed_value(const struct options *options, const char *name,
                                              enum option_type type)
{
    const struct option_value *value = value_of(options, name);
    if (value->spec->type != type || !value->text || value->is_word)
        abort();
    return value;
}

bool options_is_set(const struct options *options, const char *name)
{
    return value_of(options, name)->text != NULL;
}

enum option_source options_source(const struct options *options, const char *name)
{
    return value_of(options, name)->source;
}

const char *options_text(const struct options *options, const char *name)
{
    return value_of(options, name)->text;
}

int64_t options_integer(const struct options *options, const char *name)
{
    return typed_value(options, name, OPTION_INTEGER)->integer;
}

double options_real(const struct options *options, const char *name)
{
    return typed_value(options, name, OPTION_REAL)->real;
}

uint64_t options_bytes(const struct options *options, const char *name)
{
    return typed_value(options, name, OPTION_SIZE)->bytes;
}

bool options_flag(const struct options *options, const char *name)
{
    const struct option_value *value = value_of(options, name);
    if (value->spec->type != OPTION_FLAG)
        abort();
    return value->flag;
}

bool options_is_word(const struct options *options, const char *name)
{
    return value_of(options, name)->is_word;
}

unsigned options_positional_count(const struct options *options)
{
    return options->n_positional;
}

const char *options_positional(const struct options *options, unsigned index)
{
    return index < options->n_positional ? options->positional[index] : NULL;
}
