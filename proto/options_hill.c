/* proto/options_hill.c - see options_hill.h. */
#include "proto/options_hill.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv/plane.h"
#include "kv/score.h"
#include "proto/records.h"

#define MAX_EXACT_BELOW 65535 /* KV_EXACT_BELOW_MAX */
#define EXACT_BELOW     2048
#define MAX_TOKENS      16777216 /* of a context: KV_MAX_TOKENS */
#define MAX_PARALLEL    64
#define PREFIX_SHARE    0.4
#define MAX_MIB         1073741824
#define SMALLEST_SIZE   0.0009765625 /* 1 KiB */

const struct option_spec hill_common_specs[] = {
    OPTION("run-dir", PATH, "DIR",
           "folder of the running pipeline: sockets and lock; one pipeline a folder",
           .unset_help = "${XDG_RUNTIME_DIR:-/tmp}/hillinfer-UID"),
    OPTION("log-level", CHOICE, "LEVEL", "how much to say on stderr",
           .choices = "error|warn|info|debug", .fallback = "info"),
    OPTION("verbose", FLAG, NULL, "as --log-level debug", .letter = "v"),
};
const unsigned hill_common_count = sizeof hill_common_specs / sizeof hill_common_specs[0];

/* Options of llama.cpp that people bring along. */
const struct option_hint hill_hints[] = {
    {"-ngl|--gpu-layers|--n-gpu-layers", "all layers run on the OpenCL device (--device); leave it "
                                         "out"},
    {"-ctk|-ctv|--cache-type-k|--cache-type-v", "KV entries are FP16; what is scored is INT8 or "
                                                "INT4: --score-bits"},
    {"-cnv|--conversation|-i|--interactive|--interactive-first", "hillinfer chat -m MODEL talks in "
                                                                 "the terminal"},
    {"-fa|--flash-attn", "attention never stores its scores here; leave it out"},
    {"-ub|--ubatch-size", "a prompt's chunk is --batch-size"},
    {"--temperature", "say --temp"},
    {"--n-predict", "say --predict or -n"},
    {"-sys|--system-prompt", "say --system, with --chat"},
    {"--chat-template", "say --chat-template-file FILE: a template's name or text is not taken"},
    {"--mlock|--no-mmap|--mmap", "weights are read once and packed; leave it out"},
    {"--no-kv-offload|-nkvo", "where KV lies is chosen by --gpu-kv-mb, --hot-mb and --cold-mb"},
    {"--prompt-cache|--slot-save-path", "hillctl save REQUEST FILE, and restore FILE"},
    {"--rope-scaling|--rope-freq-base|--rope-freq-scale|--yarn-orig-ctx", "taken from the model's "
                                                                          "file"},
};
const unsigned hill_hint_count = sizeof hill_hints / sizeof hill_hints[0];

const struct option_spec hill_pipeline_specs[] = {
    OPTION("model", PATH, "FILE", "the model, a GGUF file (required)", .letter = "m"),
    OPTION(
        "ctx-size", INTEGER, "TOKENS",
        "context, prompt and answer together; 0: what the model was trained with, at most 131072",
        .letter = "c", .max = MAX_TOKENS, .fallback = "0"),
    OPTION("threads", INTEGER, "N", "threads of the CPU scorer and of PoCL; 0: one for each CPU",
           .letter = "t", .max = EPOCH_THREADS_MAX, .fallback = "0"),
    OPTION("batch-size", INTEGER, "TOKENS", "tokens of one chunk of the prefill", .letter = "b",
           .min = 1, .max = 4096, .fallback = "256"),
    OPTION("parallel", INTEGER, "N",
           "requests that run at the same time, each with the whole context; others wait",
           .letter = "np", .min = 1, .max = MAX_PARALLEL, .fallback = "1"),
    OPTION("policy", CHOICE, "NAME", "how KV entries are evaluated and moved",
           .choices = "full|hillinfer|h2o|leoam|prefetch|host-digest|oracle",
           .fallback = "hillinfer"),
    OPTION("alpha", REAL, "SHARE", "share of the context that a query attends to", .min_open = true,
           .max = 1, .fallback = "0.2"),
    OPTION("budget", INTEGER, "TOKENS",
           "tokens that a query attends to, sinks and window included, instead of --alpha",
           .min = 1, .max = MAX_TOKENS),
    OPTION("exact-below", INTEGER, "TOKENS",
           "while a context has fewer tokens, a query attends to all of them",
           .max = MAX_EXACT_BELOW, .unset_help = "2048; 0 with --alpha or --budget"),
    HILL_GRANULARITY_SPEC,
    OPTION("beta", REAL, "RATIO",
           "hot entries for each cold one; auto: from the speeds of both sides (hillctl profile), "
           "0.25 until they are known",
           .max = HILL_BETA_ALL_HOT, .choices = "auto", .fallback = "auto"),
    OPTION("placement", CHOICE, "NAME",
           "which entries are hot: the newest (recency), or those that are selected often, and the "
           "newest (bkp), which reads less flash and takes more of the CPU; to compare with: the "
           "paper's pools as it writes them, and two caches, at most 32 promotions a layer and "
           "step, of what the GPU lacked, none while the last moves are under way",
           .choices = "recency|bkp|paper|lru|lfu", .fallback = "recency"),
    OPTION("pin", REAL, "SHARE",
           "bkp, paper: the newest share of the entries that stays hot, at most a sixteenth of the "
           "hot ones (paper: half); auto is --alpha",
           .max = 1, .choices = "auto", .fallback = "auto"),
    OPTION("gpu-keep", REAL, "SHARE",
           "share of the context whose entries the GPU keeps from one query to the next, in each "
           "layer, as far as it has slots; what else is selected is brought anew",
           .max = 1, .fallback = "1"),
    HILL_SINKS_SPEC,
    HILL_WINDOW_SPEC,
    OPTION("block-tokens", INTEGER, "N", "tokens whose scores the drive sends in one block",
           .min = 1, .max = RECORD_STRIPE_SLOTS_MAX, .fallback = "256"),
    OPTION(
        "hot-mb", SIZE, "SIZE",
        "M_0: the most host memory of the hot tier, whatever --beta asks for: its KV entries and "
        "digests, staging, the scorer's tables and buffers",
        .min = SMALLEST_SIZE, .max = MAX_MIB,
        .unset_help = "what the context needs, at most a quarter of the free memory and nine "
                      "tenths of what is free in /dev/shm"),
    OPTION("gpu-kv-mb", SIZE, "SIZE",
           "the most GPU memory for KV entries and for computing a prompt, beside weights and "
           "--prefix-gpu-cache-mb; a device that has less gives what it has",
           .min = SMALLEST_SIZE, .max = MAX_MIB,
           .unset_help = "what the context needs, at most a quarter of the host's free memory"),
    OPTION("cold-mb", SIZE, "SIZE", "cold pool on the drive, on each of several",
           .min = SMALLEST_SIZE, .max = MAX_MIB,
           .unset_help = "what the context needs, but of a file at most a quarter of the free "
                         "disk, of a block device at most its size"),
    OPTION("prefix-dir", PATH, "DIR",
           "folder for what prompts have computed: later requests, also of later runs, read it "
           "from there; one pipeline and one model a folder",
           .unset_help = "nothing outlives the pipeline"),
    OPTION("prefix-mb", SIZE, "SIZE",
           "the most that --prefix-dir holds; what would be computed again soonest or at the "
           "highest cost stays",
           .min = SMALLEST_SIZE, .max = MAX_MIB, .unset_help = "a quarter of the free disk"),
    OPTION("prefix-attention", CHOICE, "all|select",
           "select: a prompt attends to the important tokens of a prefix in --prefix-dir alone, "
           "and only their entries are loaded before its first token, which may differ",
           .choices = "all|select", .fallback = "all"),
    OPTION("prefix-share", REAL, "SHARE",
           "select: which share of a prefix is important, but 512 tokens at least; 1: all of it, "
           "loaded while layers compute",
           .min = 0.01, .max = 1, .unset_help = "0.4"),
    OPTION(
        "prefix-unimportant", CHOICE, "later|never",
        "select: when the other tokens of the prefix take part: later, behind the first token; or "
        "never, then they are not read at all and the whole answer may differ",
        .choices = "later|never", .unset_help = "later"),
    OPTION("prefix-cache-mb", SIZE, "SIZE",
           "select: memory for entries of important tokens, of which those stay that were of most "
           "importance to most requests",
           .min = 1, .max = MAX_MIB, .unset_help = "none: they are read from the drive every time"),
    OPTION("prefix-gpu-cache-mb", SIZE, "SIZE",
           "select: the same of the device's memory, beside --gpu-kv-mb; those of most importance "
           "are here, the next ones in --prefix-cache-mb, and none in both",
           .min = SMALLEST_SIZE, .max = MAX_MIB, .unset_help = "none"),
    OPTION(
        "digest-mb", SIZE, "SIZE",
        "how much of --hot-mb holds digests of cold tokens, which the host scores in the drive's "
        "place (policies hillinfer, host-digest); auto, with --beta auto and policy hillinfer: a "
        "sequence that is longer than its part of --hot-mb keeps digests there in place of some "
        "entries, where the measured speeds say that this saves time; else none",
        .max = MAX_MIB, .choices = "auto", .fallback = "auto"),
    OPTION("rows-in-flight", INTEGER, "N",
           "queries of a layer that are worked at together: the drive scores and fetches for some "
           "sequences while the scorer is at another one",
           .min = 1, .max = KV_MAX_SEQUENCES, .fallback = "4"),
    OPTION("csd-dram-mb", SIZE, "SIZE",
           "digests that the CSD agent of a drive at file: or tcp: scores and keeps in memory; "
           "--csd-model has dram in its place",
           .max = MAX_MIB, .fallback = "0"),
    OPTION("csd-digests", CHOICE, "sidecar|cast",
           "what the drive scores from: digests beside the entries, or FP16 keys that it casts to "
           "--score-bits while they stream past; the selection is the same",
           .choices = "sidecar|cast", .fallback = "sidecar"),
    OPTION("csd", STRING, "URL",
           "the computational storage drive: file:PATH, tcp://HOST:PORT (hill-csd-agent --listen "
           "there), xrt:PATH,xclbin=FILE (a SmartSSD; not run on one yet), or none; said again "
           "(elsewhere: with a comma), up to 4 drives at once",
           .choices = "none", .joins = ',', .unset_help = "file:STATE/cold.pool"),
    OPTION("csd-key", PATH, "FILE",
           "own key, of hillctl keygen, for drives at tcp:, which need --csd-peer, too"),
    OPTION("csd-peer", PATH, "FILE",
           "the public key of drives at tcp: (hillctl keygen there makes FILE.pub): one that all "
           "have, or for each a line: tcp://HOST:PORT KEY"),
    OPTION("csd-device", STRING, "NAME",
           "host: this host's CPU scores for a drive at file:, in the CSD agent's thread; else an "
           "OpenCL device does, named by its number or part of its name",
           .fallback = "host"),
    OPTION("csd-on-loss", CHOICE, "wait|degrade",
           "when the CSD agent is lost: wait for another one, or go on without a drive, as after "
           "detach; of several, with the others",
           .choices = "wait|degrade", .fallback = "wait"),
    OPTION(
        "csd-model", STRING, "KEY=VALUE,...",
        "the times of a modelled drive instead of the real one's: flash, write, link, gpu_link, "
        "score, dram_read in GB/s (score: of FP16 KV), dram (a size: K, M, G) and latency_us; what "
        "is not named is a SmartSSD's. cpu: this host's scoring, as slow as that many GB/s. Said "
        "again: of the next --csd",
        .choices = "off", .joins = ';', .fallback = "off"),
    OPTION("score-bits", CHOICE, "BITS",
           "bits of a value in a key's digest: 4 halves what scoring reads, and chooses less well",
           .choices = "8|4", .fallback = "8"),
    OPTION("importance", CHOICE, "NAME",
           "how the heads' scores become one: sum, of KV heads, the paper's; max; norm, max with "
           "queries of equal length; heads, max of query heads, each less what it reaches on a "
           "sample of keys",
           .choices = "sum|max|norm|heads", .fallback = "heads"),
    OPTION("speculate", CHOICE, "MODE",
           "guess the next layer's query from this layer's input, so that its entries are chosen "
           "and fetched meanwhile; verify: attend to what the exact query selects",
           .choices = "off|on|verify", .fallback = "off"),
    OPTION("exact-layers", INTEGER, "N", "first layers whose queries are never guessed", .min = 1,
           .max = 1024, .fallback = "3"),
    OPTION("state-dir", PATH, "DIR",
           "folder that lasts: the cold pool, and the speeds that were measured",
           .unset_help = "${XDG_STATE_HOME:-~/.local/state}/hillinfer"),
    OPTION("recovery-timeout", REAL, "SECONDS",
           "how long a request waits for a process that was lost, the coordinator included, and a "
           "request for its client; then it fails",
           .max = 86400, .fallback = "60"),
    OPTION("log-fsync", INTEGER, "MS",
           "flush each request's token log to the disk after so many ms, or after each token; off: "
           "it survives a killed coordinator, not a power cut",
           .min = 1, .max = 60000, .choices = "off|token", .fallback = "off"),
    OPTION("hang-ms", INTEGER, "MS",
           "a worker that sends no heartbeat for so long is killed and started again; a "
           "coordinator whose loop stands still for three times as long, by `hillinfer up`",
           .min = 1000, .max = 600000, .fallback = "2000"),
    OPTION(
        "stall-ms", INTEGER, "MS",
        "a worker whose data loop neither goes round nor waits for work for so long is killed and "
        "started again; ten times as long while it loads weights and builds kernels, and never "
        "less than four times the longest turn that its loop has made",
        .min = 1000, .max = 3600000, .fallback = "30000"),
    OPTION(
        "device", STRING, "NAME",
        "OpenCL device of the GPU worker: its number in hill-gpu-worker --list-devices, or a part "
        "of its name there or of its vendor's",
        .unset_help = "the first GPU or accelerator, else the first device"),
    OPTION("simd", CHOICE, "PATH", "code path that scores on the CPU",
           .choices = "auto|reference|avx2|avx512|avx512vnni", .fallback = "auto"),
    OPTION("record", PATH, "FILE",
           "record the ring traffic, at most 2 GiB, for hillinfer replay; FILE.2 and so on when "
           "FILE is there"),
    OPTION("trace-kv", PATH, "FILE",
           "record which entries each query selected and where they lay, for hill-kvtrace; FILE.2 "
           "and so on when FILE is there"),
    OPTION("trace-scores", FLAG, NULL,
           "record every token's score too; two bytes for each token of each query"),
};
const unsigned hill_pipeline_count = sizeof hill_pipeline_specs / sizeof hill_pipeline_specs[0];

/* The first HILL_PROMPT_SPECS are the prompt's. */
const struct option_spec hill_request_specs[] = {
    OPTION("prompt", STRING, "TEXT", "the prompt", .letter = "p"),
    OPTION("file", PATH, "FILE", "read the prompt from this file; -: from stdin", .letter = "f"),
    OPTION("special", FLAG, NULL,
           "control tokens spelt out in the prompt (<|im_start|>) are those tokens, not text"),
    OPTION("token-ids", FLAG, NULL,
           "the prompt is not text but token ids, with white space between them"),
    OPTION("score-from", INTEGER, "N",
           "give the prompt's tokens from the Nth on instead of generating any: logprobs in the "
           "JSON says how probable each was; 0: off",
           .max = MAX_TOKENS, .fallback = "0"),
    OPTION("predict", INTEGER, "TOKENS", "tokens to generate; -1: until the context is full",
           .letter = "n", .min = -1, .max = MAX_TOKENS, .fallback = "-1"),
    OPTION("seed", INTEGER, "N", "of the sampler's random numbers; -1: another one each time",
           .letter = "s", .min = -1, .max = 4294967295.0, .fallback = "-1"),
    OPTION("temp", REAL, "T",
           "temperature; 0: greedy. A model's file may have a default of its own for this and the "
           "next four",
           .max = 1000, .fallback = "0.8"),
    OPTION("top-k", INTEGER, "N", "sample from the N most probable tokens; 0: off", .max = 1048576,
           .fallback = "40"),
    OPTION("top-p", REAL, "P", "sample from the fewest tokens whose probabilities reach P; 1: off",
           .max = 1, .fallback = "0.95"),
    OPTION("min-p", REAL, "P", "drop tokens less probable than P times the best; 0: off", .max = 1,
           .fallback = "0.05"),
    OPTION("repeat-penalty", REAL, "X", "make repeated tokens less probable; 1: off",
           .min_open = true, .max = 100, .fallback = "1"),
    OPTION("ignore-eos", FLAG, NULL, "go on after an end-of-text token"),
    OPTION(
        "no-prefix-cache", FLAG, NULL,
        "compute all of the prompt, whatever finished requests have left of it, and leave nothing"),
    OPTION("json", FLAG, NULL, "print one JSON object on stdout instead of the text"),
};
const unsigned hill_request_count = sizeof hill_request_specs / sizeof hill_request_specs[0];

/* ---- pipeline ---------------------------------------------------------------------------- */

static uint64_t size_or_zero(const struct options *options, const char *name)
{
    return options_is_set(options, name) ? options_bytes(options, name) : 0;
}

/* Who asks for a share or a budget has it on short contexts, too, whatever the source. */
static uint32_t read_exact_below(const struct options *options)
{
    if (options_is_set(options, "exact-below"))
        return (uint32_t)options_integer(options, "exact-below");
    bool asked = options_source(options, "alpha") > OPTION_FROM_DEFAULT ||
                 options_source(options, "budget") > OPTION_FROM_DEFAULT;
    return asked ? 0 : EXACT_BELOW;
}

uint16_t hill_granularity(const struct options *options)
{
    return (uint16_t)strtoul(options_text(options, "granularity"), NULL, 10);
}

static int read_selection(struct kv_selection_settings *out, const struct options *options,
                          struct hill_why *why)
{
    enum option_source alpha = options_source(options, "alpha"),
                       budget = options_source(options, "budget");
    *out = (struct kv_selection_settings){
        .alpha = options_real(options, "alpha"),
        .budget =
            options_is_set(options, "budget") ? (uint32_t)options_integer(options, "budget") : 0,
        .sinks = (uint32_t)options_integer(options, "sinks"),
        .window = (uint32_t)options_integer(options, "window"),
        .exact_below = read_exact_below(options),
        .granularity = hill_granularity(options),
    };
    /* the tables have refused unknown names */
    kv_policy_parse(options_text(options, "policy"), &out->policy);
    kv_importance_parse(options_text(options, "importance"), &out->importance);
    if (out->budget && alpha == budget)
        return hill_fail(why, HILL_E_INVALID, "--alpha and --budget exclude each other");
    if (alpha > budget && alpha > OPTION_FROM_DEFAULT)
        out->budget = 0; /* the source that counts more decides which of the two holds */
    if (out->budget && out->budget < out->sinks + out->window)
        return hill_fail(why, HILL_E_INVALID,
                         "--budget %u is less than --sinks %u and --window %u together",
                         out->budget, out->sinks, out->window);
    return 0;
}

/* Are important tokens of a stored prefix enough before the first token? */
static bool prefix_selects(const struct options *options)
{
    return strcmp(options_text(options, "prefix-attention"), "select") == 0;
}

static double prefix_share(const struct options *options)
{
    if (!prefix_selects(options))
        return 0;
    return options_is_set(options, "prefix-share") ? options_real(options, "prefix-share")
                                                   : PREFIX_SHARE;
}

static bool prefix_away(const struct options *options)
{
    return options_is_set(options, "prefix-unimportant") &&
           strcmp(options_text(options, "prefix-unimportant"), "never") == 0;
}

/* What does not depend on model and machine; the tables have refused unknown names. */
static void read_epoch(struct epoch_settings *e, const struct options *options)
{
    bool any_beta = options_is_word(options, "beta"), any_pin = options_is_word(options, "pin");
    bool lends = options_is_word(options, "digest-mb");
    *e = (struct epoch_settings){
        .plan = {.batch_tokens = (uint32_t)options_integer(options, "batch-size"),
                 .n_sequences = (uint32_t)options_integer(options, "parallel"),
                 .digest_cache_bytes = lends ? 0 : options_bytes(options, "digest-mb"),
                 .lends_digests = lends,
                 .rows_in_flight = (uint32_t)options_integer(options, "rows-in-flight"),
                 .geometry.digest_bits =
                     strcmp(options_text(options, "score-bits"), "4") == 0 ? 4 : 8},
        .block_tokens = (uint32_t)options_integer(options, "block-tokens"),
        .csd_cast = strcmp(options_text(options, "csd-digests"), "cast") == 0,
        .csd_dram_bytes = options_bytes(options, "csd-dram-mb"),
        .beta_auto = any_beta,
        .beta = any_beta ? HILL_BETA_UNMEASURED : options_real(options, "beta"),
        .exact_layers = (uint32_t)options_integer(options, "exact-layers"),
        .pin = any_pin ? -1 : options_real(options, "pin"),
        .gpu_drop = 1 - options_real(options, "gpu-keep"),
        .prefix_share = prefix_share(options),
        .prefix_cache_bytes = size_or_zero(options, "prefix-cache-mb"),
        .prefix_away = prefix_away(options),
        .prefix_gpu_cache_bytes = size_or_zero(options, "prefix-gpu-cache-mb"),
        .device = options_text(options, "device"),
        .csd_device = options_text(options, "csd-device"),
        .trace_scores = options_flag(options, "trace-scores"),
    };
    epoch_simd_parse(options_text(options, "simd"), &e->simd);
    epoch_placement_parse(options_text(options, "placement"), &e->placement);
    epoch_speculate_parse(options_text(options, "speculate"), &e->speculate);
}

/* As coordinator/token_log.h has it. */
static int read_log_fsync(const struct options *options)
{
    const char *text = options_text(options, "log-fsync");
    if (!options_is_word(options, "log-fsync"))
        return (int)options_integer(options, "log-fsync");
    return strcmp(text, "token") == 0 ? 0 : -1;
}

/* What keeps nothing of finished requests (docs/decisions/prefix.md) has nothing to store. */
static int check_prefix(const struct hill_pipeline_options *out, uint32_t policy,
                        const struct options *options, struct hill_why *why)
{
    if (options_is_set(options, "prefix-mb") && !out->prefix_dir)
        return hill_fail(why, HILL_E_INVALID, "--prefix-mb needs --prefix-dir DIR");
    if (prefix_selects(options) && !out->prefix_dir)
        return hill_fail(why, HILL_E_INVALID, "--prefix-attention select needs --prefix-dir DIR");
    if (options_is_set(options, "prefix-share") && !prefix_selects(options))
        return hill_fail(why, HILL_E_INVALID, "--prefix-share needs --prefix-attention select");
    if (options_is_set(options, "prefix-unimportant") && !prefix_selects(options))
        return hill_fail(why, HILL_E_INVALID,
                         "--prefix-unimportant needs --prefix-attention select");
    if (options_is_set(options, "prefix-cache-mb") && !prefix_selects(options))
        return hill_fail(why, HILL_E_INVALID, "--prefix-cache-mb needs --prefix-attention select");
    if (options_is_set(options, "prefix-gpu-cache-mb") && !prefix_selects(options))
        return hill_fail(why, HILL_E_INVALID,
                         "--prefix-gpu-cache-mb needs --prefix-attention select");
    if (out->prefix_dir && (out->record || out->trace_kv))
        return hill_fail(why, HILL_E_INVALID,
                         "--prefix-dir and %s exclude each other: what is recorded or traced "
                         "begins with nothing kept",
                         out->record ? "--record" : "--trace-kv");
    if (out->prefix_dir && kv_policy_reads_keys(policy))
        return hill_fail(why, HILL_E_INVALID,
                         "--prefix-dir and --policy %s exclude each other: that policy's requests "
                         "leave nothing",
                         kv_policy_name(policy));
    return 0;
}

/* Its bytes are M_0's: nobody else may set any aside. */
static int check_digest_cache(const struct kv_plan_input *plan, struct hill_why *why)
{
    if (plan->digest_cache_bytes && !kv_plan_caches_digests(plan->selection.policy))
        return hill_fail(why, HILL_E_INVALID,
                         "--digest-mb and --policy %s exclude each other: that policy scores no "
                         "digests of cold tokens",
                         kv_policy_name(plan->selection.policy));
    return 0;
}

/* The agent keeps digests that it has scored: no keys, and none that the host scores. */
static int check_csd_dram(const struct epoch_settings *e, struct hill_why *why)
{
    uint32_t policy = e->plan.selection.policy;
    bool scored = !e->csd_cast && !kv_policy_reads_keys(policy) && policy != KV_POLICY_HOST_DIGEST;
    if (!e->csd_dram_bytes || scored)
        return 0;
    return hill_fail(why, HILL_E_INVALID,
                     "--csd-dram-mb and %s%s exclude each other: the CSD agent keeps digests that "
                     "it scores, and there are none",
                     e->csd_cast ? "--csd-digests cast" : "--policy ",
                     e->csd_cast ? "" : kv_policy_name(policy));
}

int hill_pipeline_read(struct hill_pipeline_options *out, struct epoch_settings *epoch,
                       const struct options *options, struct hill_why *why)
{
    *out = (struct hill_pipeline_options){
        .model = options_text(options, "model"),
        .ctx_tokens = (uint32_t)options_integer(options, "ctx-size"),
        .threads = (uint32_t)options_integer(options, "threads"),
        .hot_bytes = size_or_zero(options, "hot-mb"),
        .gpu_kv_bytes = size_or_zero(options, "gpu-kv-mb"),
        .cold_bytes = size_or_zero(options, "cold-mb"),
        .record = options_text(options, "record"),
        .trace_kv = options_text(options, "trace-kv"),
        .prefix_dir = options_text(options, "prefix-dir"),
        .prefix_bytes = size_or_zero(options, "prefix-mb"),
        .csd_key = options_text(options, "csd-key"),
        .csd_peer = options_text(options, "csd-peer"),
        .csd_degrades = strcmp(options_text(options, "csd-on-loss"), "degrade") == 0,
        .recovery_ms = (uint32_t)(options_real(options, "recovery-timeout") * 1000),
        .log_flush_ms = read_log_fsync(options),
    };
    read_epoch(epoch, options);
    if (!out->model)
        return hill_fail(why, HILL_E_INVALID, "no model: -m FILE is required");
    int code = read_selection(&epoch->plan.selection, options, why);
    if (code)
        return code;
    code = check_prefix(out, epoch->plan.selection.policy, options, why);
    if (code == 0)
        code = check_digest_cache(&epoch->plan, why);
    if (code == 0)
        code = check_csd_dram(epoch, why);
    if (code)
        return code;
    if (epoch->trace_scores && !out->trace_kv)
        return hill_fail(why, HILL_E_INVALID, "--trace-scores needs --trace-kv FILE");
    return hill_drives_read(out, &epoch->csd_model, options, why);
}

/* ---- request ----------------------------------------------------------------------------- */

static uint32_t read_unset(const struct options *options)
{
    static const struct {
        const char *name;
        enum hill_sampling_field field;
    } fields[] = {{"temp", HILL_SAMPLING_TEMPERATURE},
                  {"top-k", HILL_SAMPLING_TOP_K},
                  {"top-p", HILL_SAMPLING_TOP_P},
                  {"min-p", HILL_SAMPLING_MIN_P},
                  {"repeat-penalty", HILL_SAMPLING_REPEAT_PENALTY}};
    uint32_t unset = 0;
    for (unsigned i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (options_source(options, fields[i].name) == OPTION_FROM_DEFAULT)
            unset |= fields[i].field;
    return unset;
}

int hill_request_read_numbers(struct hill_request_options *out, const struct options *options,
                              struct hill_why *why)
{
    int64_t predict = options_integer(options, "predict"), seed = options_integer(options, "seed");
    *out = (struct hill_request_options){
        .predict = predict < 0 ? HILL_PREDICT_UNTIL_CONTEXT : (uint32_t)predict,
        .temperature = options_real(options, "temp"),
        .top_k = (uint32_t)options_integer(options, "top-k"),
        .top_p = options_real(options, "top-p"),
        .min_p = options_real(options, "min-p"),
        .repeat_penalty = options_real(options, "repeat-penalty"),
        .unset = read_unset(options),
        .ignore_eos = options_flag(options, "ignore-eos"),
        .json = options_flag(options, "json"),
        .no_prefix_cache = options_flag(options, "no-prefix-cache"),
    };
    /* on the wire 0 asks for a random seed: the seed 0 that a person gives becomes one outside the
     * 32 bits that can be typed */
    out->seed = seed < 0 ? 0 : seed == 0 ? UINT64_C(1) << 32 : (uint64_t)seed;
    if (predict == 0)
        return hill_fail(why, HILL_E_INVALID,
                         "--predict 0: nothing to generate (-1: until the context is full)");
    return 0;
}

/* Does a file or a pipe stand behind stdin, and not a terminal or /dev/null? */
static bool stdin_brings_text(void)
{
    struct stat st;
    return fstat(STDIN_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode));
}

/* Of two that exclude each other and are both given, that of the source that counts more holds. */
static int keep_one(bool *first, bool *second, const char *const names[2],
                    const struct options *options, struct hill_why *why)
{
    enum option_source from = options_source(options, names[0]),
                       other = options_source(options, names[1]);
    if (!*first || !*second)
        return 0;
    if (from == other)
        return hill_fail(why, HILL_E_INVALID, "--%s and --%s exclude each other", names[0],
                         names[1]);
    *(from < other ? first : second) = false;
    return 0;
}

int hill_request_read_text(struct hill_request_options *out, const struct options *options,
                           struct hill_why *why)
{
    bool prompt = options_is_set(options, "prompt"), file = options_is_set(options, "file");
    out->special = options_flag(options, "special");
    out->token_ids = options_flag(options, "token-ids");
    int code = keep_one(&out->special, &out->token_ids,
                        (const char *const[]){"special", "token-ids"}, options, why);
    if (code == 0)
        code = keep_one(&prompt, &file, (const char *const[]){"prompt", "file"}, options, why);
    out->prompt = prompt ? options_text(options, "prompt") : NULL;
    out->file = file ? options_text(options, "file") : NULL;
    return code;
}

int hill_request_read(struct hill_request_options *out, const struct options *options,
                      struct hill_why *why)
{
    int code = hill_request_read_numbers(out, options, why);
    if (!code)
        code = hill_request_read_text(out, options, why);
    out->score_from = (uint32_t)options_integer(options, "score-from");
    if (code)
        return code;
    if (!out->prompt && !out->file && stdin_brings_text())
        out->file = "-";
    return out->prompt || out->file
               ? 0
               : hill_fail(why, HILL_E_INVALID,
                           "no prompt: -p TEXT, -f FILE or text on stdin is required");
}

/* ---- folders ----------------------------------------------------------------------------- */

int hill_run_dir(char out[HILL_PATH_BYTES], const struct options *options, struct hill_why *why)
{
    const char *given = options_text(options, "run-dir"), *base = getenv("XDG_RUNTIME_DIR");
    int used = given ? snprintf(out, HILL_PATH_BYTES, "%s", given)
                     : snprintf(out, HILL_PATH_BYTES, "%s/hillinfer-%u",
                                base && *base ? base : "/tmp", (unsigned)getuid());
    if (used > HILL_RUN_DIR_MAX)
        return hill_fail(why, HILL_E_INVALID,
                         "run folder '%.200s' is too long for socket names (%d bytes, at most %d)",
                         out, used, HILL_RUN_DIR_MAX);
    return 0;
}

int hill_state_dir(char out[HILL_PATH_BYTES], const struct options *options, struct hill_why *why)
{
    const char *given = options_text(options, "state-dir"), *base = getenv("XDG_STATE_HOME"),
               *home = getenv("HOME");
    int used;
    if (given)
        used = snprintf(out, HILL_PATH_BYTES, "%s", given);
    else if (base && *base)
        used = snprintf(out, HILL_PATH_BYTES, "%s/hillinfer", base);
    else if (home && *home)
        used = snprintf(out, HILL_PATH_BYTES, "%s/.local/state/hillinfer", home);
    else
        return hill_fail(why, HILL_E_INVALID,
                         "no state folder: neither --state-dir nor XDG_STATE_HOME nor HOME is set");
    if (used >= HILL_PATH_BYTES)
        return hill_fail(why, HILL_E_INVALID, "the state folder's name is too long");
    return 0;
}

const char *hill_log_level_name(const struct options *options)
{
    return options_flag(options, "verbose") ? "debug" : options_text(options, "log-level");
}

enum hill_log_level hill_log_option(const struct options *options)
{
    enum hill_log_level level = HILL_LOG_INFO;
    hill_log_parse_level(hill_log_level_name(options), &level); /* checked by the table */
    return level;
}
