/* mkmodel/command.c - see command.h. */
#include "mkmodel/command.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char command_help[] =
    "usage: hill-mkmodel -o FILE [OPTIONS]\n"
    "Write a Llama-architecture GGUF model: the hand-wired induction model, which continues a\n"
    "text the way the longest matching earlier passage went on, or plain random weights.\n"
    "\n"
    "example: hill-mkmodel -o wired.gguf --kv-heads 2 --type q8_0\n"
    "\n"
    "  -o, --output FILE   file to write; replaced only when the new one is complete (required)\n"
    "      --random        random weights of any shape (default: the wired model)\n"
    "      --layers N      1..512; wired: from 2, those beyond pass through  (default 2; random "
    "4)\n"
    "      --heads N       1..1024, a multiple of --kv-heads; wired: from 8  (default 8)\n"
    "      --kv-heads N    1..1024                                    (default 1; random 2)\n"
    "      --width N       2..65536, of the residual stream; wired: from 209 (default 256; random "
    "128)\n"
    "      --head-dim N    2..4096, even; wired: from 156             (default 256; random 32)\n"
    "      --ffn N         1..1048576, hidden size of the FFN         (default 32; random 256)\n"
    "      --vocab N       259..1048576, random only                  (default 259; random 512)\n"
    "      --type T        f32, f16, bf16 or q8_0, of the matrices    (default f16)\n"
    "      --rope-base X   1..1e38, base of the rotary angles         (default 1e15; random 1e4)\n"
    "      --ctx N         1..1048576, context length to state        (default 131072)\n"
    "      --tied          no output.weight: unembed with the token embedding\n"
    "  -s, --seed N        0..2^64-1, of all random weights           (default 1)\n"
    "  -h, --help          print this and exit\n"
    "      --version       print the version and exit\n"
    "\n"
    "exit codes: 0 done, 100 wrong use, 111 the environment failed (no space, no permission),\n"
    "130 interrupted. Environment: none.\n";

enum option_id {
    ID_RANDOM = 256,
    ID_LAYERS,
    ID_HEADS,
    ID_KV_HEADS,
    ID_WIDTH,
    ID_HEAD_DIM,
    ID_FFN,
    ID_VOCAB,
    ID_TYPE,
    ID_ROPE_BASE,
    ID_CTX,
    ID_TIED,
    ID_VERSION,
};

static const struct option long_options[] = {
    {"output", required_argument, NULL, 'o'},
    {"random", no_argument, NULL, ID_RANDOM},
    {"layers", required_argument, NULL, ID_LAYERS},
    {"heads", required_argument, NULL, ID_HEADS},
    {"kv-heads", required_argument, NULL, ID_KV_HEADS},
    {"width", required_argument, NULL, ID_WIDTH},
    {"head-dim", required_argument, NULL, ID_HEAD_DIM},
    {"ffn", required_argument, NULL, ID_FFN},
    {"vocab", required_argument, NULL, ID_VOCAB},
    {"type", required_argument, NULL, ID_TYPE},
    {"rope-base", required_argument, NULL, ID_ROPE_BASE},
    {"ctx", required_argument, NULL, ID_CTX},
    {"tied", no_argument, NULL, ID_TIED},
    {"seed", required_argument, NULL, 's'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, ID_VERSION},
    {NULL, 0, NULL, 0},
};

/* Options that are a whole number with a range. */
static const struct count_option {
    int id;
    const char *name;
    size_t offset; /* of the uint32_t in struct mkmodel_shape */
    uint64_t min, max;
} counts[] = {
    {ID_LAYERS, "--layers", offsetof(struct mkmodel_shape, n_layers), 1, 512},
    {ID_HEADS, "--heads", offsetof(struct mkmodel_shape, n_heads), 1, 1024},
    {ID_KV_HEADS, "--kv-heads", offsetof(struct mkmodel_shape, n_kv_heads), 1, 1024},
    {ID_WIDTH, "--width", offsetof(struct mkmodel_shape, n_embd), 2, 65536},
    {ID_HEAD_DIM, "--head-dim", offsetof(struct mkmodel_shape, head_dim), 2, 4096},
    {ID_FFN, "--ffn", offsetof(struct mkmodel_shape, n_ff), 1, 1048576},
    {ID_VOCAB, "--vocab", offsetof(struct mkmodel_shape, n_vocab), SHAPE_MIN_VOCAB, 1048576},
    {ID_CTX, "--ctx", offsetof(struct mkmodel_shape, n_ctx), 1, 1048576},
};

/* Decimal digits only: strtoull alone would take blanks and signs. */
static bool parse_u64(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return isdigit((unsigned char)text[0]) && *end == '\0' && errno == 0;
}

static int parse_count(const struct count_option *option, const char *text,
                       struct mkmodel_shape *shape, struct hill_why *why)
{
    uint64_t value;
    if (!parse_u64(text, &value) || value < option->min || value > option->max)
        return hill_fail(why, HILL_E_INVALID, "%s %s: expected a whole number from %llu to %llu",
                         option->name, text, (unsigned long long)option->min,
                         (unsigned long long)option->max);
    const uint32_t narrow = (uint32_t)value;
    memcpy((char *)shape + option->offset, &narrow, sizeof narrow);
    return 0;
}

static int parse_type(const char *text, enum gguf_tensor_type *out, struct hill_why *why)
{
    static const struct {
        const char *name;
        enum gguf_tensor_type type;
    } types[] = {{"f32", GGUF_TENSOR_F32},
                 {"f16", GGUF_TENSOR_F16},
                 {"bf16", GGUF_TENSOR_BF16},
                 {"q8_0", GGUF_TENSOR_Q8_0}};
    for (unsigned i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(text, types[i].name) == 0) {
            *out = types[i].type;
            return 0;
        }
    return hill_fail(why, HILL_E_INVALID, "--type %s: expected f32, f16, bf16 or q8_0", text);
}

static int parse_rope_base(const char *text, double *out, struct hill_why *why)
{
    char *end;
    const double value = strtod(text, &end);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || !(value >= 1 && value <= 1e38))
        return hill_fail(why, HILL_E_INVALID, "--rope-base %s: expected a number from 1 to 1e38",
                         text);
    *out = value;
    return 0;
}

static int parse_one(struct mkmodel_options *out, int id, const char *text, struct hill_why *why)
{
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].id == id)
            return parse_count(&counts[i], text, &out->shape, why);
    switch (id) {
    case 'o':
        out->output = text;
        return 0;
    case 's':
        if (!parse_u64(text, &out->shape.seed))
            return hill_fail(why, HILL_E_INVALID, "--seed %s: expected a whole number", text);
        return 0;
    case 'h':
        out->help = true;
        return 0;
    case ID_VERSION:
        out->version = true;
        return 0;
    case ID_TYPE:
        return parse_type(text, &out->shape.type, why);
    case ID_ROPE_BASE:
        return parse_rope_base(text, &out->shape.rope_base, why);
    case ID_TIED:
        out->shape.tied = true;
        return 0;
    default:
        return 0; /* ID_RANDOM, seen already */
    }
}

/* getopt leaves an unknown short option in optopt, and has stepped past a long one. */
static int fail_option(char **argv, int id, struct hill_why *why)
{
    const char *problem = id == ':' ? "the option needs a value" : "unknown option or stray value";
    if (optopt > 0 && optopt < 256)
        return hill_fail(why, HILL_E_INVALID, "-%c: %s", optopt, problem);
    return hill_fail(why, HILL_E_INVALID, "%s: %s", argv[optind - 1], problem);
}

static int parse_all(struct mkmodel_options *out, int argc, char **argv, bool *random,
                     struct hill_why *why)
{
    int id;
    optind = 0; /* glibc: start anew, the tests parse many command lines */
    opterr = 0;
    while ((id = getopt_long(argc, argv, "+:o:s:h", long_options, NULL)) != -1) {
        if (id == '?' || id == ':')
            return fail_option(argv, id, why);
        *random |= id == ID_RANDOM;
        const int code = parse_one(out, id, optarg, why);
        if (code || out->help || out->version)
            return code;
    }
    if (optind < argc)
        return hill_fail(why, HILL_E_INVALID, "unexpected argument %s", argv[optind]);
    return 0;
}

int command_parse(struct mkmodel_options *out, int argc, char **argv, struct hill_why *why)
{
    bool random = false;
    *out = (struct mkmodel_options){.shape = shape_default(false)};
    int code = parse_all(out, argc, argv, &random, why);
    if (!code && random) {
        /* --random changes the defaults, wherever it stands: parse again over the other ones */
        *out = (struct mkmodel_options){.shape = shape_default(true)};
        code = parse_all(out, argc, argv, &random, why);
    }
    if (code || out->help || out->version)
        return code;
    if (!out->output || !out->output[0])
        return hill_fail(why, HILL_E_INVALID, "no output file given (-o FILE)");
    return 0;
}
