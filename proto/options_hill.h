/*
 * proto/options_hill.h - HillInfer's own options, one table for all programs
 * (docs/interface.md, "Options").
 *
 * What: the pipeline's options (coordinator; foreign to hillctl but for the run folder) and those
 * of one request (hillctl; foreign to the coordinator), and structs with their checked values.
 * Spellings are llama.cpp's where it has one. Who calls it: the coordinator, hillctl, the gateway,
 * tools; for the run folder and the log level the workers (proto/worker_link.h).
 * Failure: as options.h; impossible pairs are refused here, but of two of a request's, or --alpha
 * and --budget, from different sources the one whose source counts more holds. Texts in the structs
 * belong to the options they were read from. Concurrency: none (start-up).
 */
#pragma once

#include "base/log.h"
#include "base/options.h"
#include "proto/epoch_settings.h"

/* --run-dir, --log-level and --verbose: every program has them. */
extern const struct option_spec hill_common_specs[];
extern const unsigned hill_common_count;
extern const struct option_spec hill_pipeline_specs[];
extern const unsigned hill_pipeline_count;
extern const struct option_spec hill_request_specs[];
extern const unsigned hill_request_count;
extern const struct option_hint hill_hints[];
extern const unsigned hill_hint_count;
#define HILL_PROMPT_SPECS 5u /* the first of hill_request_specs: prompt, file, special ... */
#define HILL_TEXT_SPECS   4u /* the same without score-from: what is said after something else */

#define HILL_COMMON_TABLE                                                                          \
    {                                                                                              \
        .title = "run folder and log", .specs = hill_common_specs, .count = hill_common_count      \
    }
/* --sinks and --window, where a program has them in a table of its own. */
#define HILL_SINKS_SPEC                                                                            \
    OPTION("sinks", INTEGER, "TOKENS", "first tokens that are always attended to", .max = 65536,   \
           .fallback = "4")
#define HILL_WINDOW_SPEC                                                                           \
    OPTION("window", INTEGER, "TOKENS", "newest tokens that are always attended to", .min = 1,     \
           .max = 65536, .fallback = "32")
/* 1 .. KV_GRANULARITY_MAX; read it with hill_granularity. */
#define HILL_GRANULARITY_SPEC                                                                      \
    OPTION("granularity", CHOICE, "TOKENS",                                                        \
           "above 1: half of the tokens that a query attends to are chosen in groups of so many "  \
           "side by side, by the best of each group; a drive reads neighbours together",           \
           .choices = "1|2|4|8|16|32|64", .fallback = "1")
/* --system of a chat. */
#define HILL_SYSTEM_SPEC                                                                           \
    OPTION("system", STRING, "TEXT", "the system text of the chat",                                \
           .unset_help = "the template's own, if any")
#define HILL_PATH_BYTES  4096
#define HILL_RUN_DIR_MAX 91 /* bytes: with "/heartbeat.sock" it must fit sun_path */
#define HILL_PREDICT_UNTIL_CONTEXT                                                                 \
    0u /* Generate.predict: as many tokens as the context has room for (-n -1) */

#define HILL_BETA_UNMEASURED                                                                       \
    0.25 /* --beta auto before the two sides' speeds are known: a fifth of the entries hot */
#define HILL_BETA_ALL_HOT 1e6 /* the most that --beta takes: M_0 alone decides */

/* What a person wants of a pipeline beside struct epoch_settings; 0 and NULL: the default. */
struct hill_pipeline_options {
    const char *model;
    bool csd_degrades;                            /* --csd-on-loss degrade */
    uint32_t ctx_tokens;                          /* 0: the model's */
    uint32_t threads;                             /* 0: one for each CPU this process may run on */
    uint64_t hot_bytes, gpu_kv_bytes, cold_bytes; /* 0: a share of what is free */
    const char *csd_key, *csd_peer;               /* files, of tcp:; NULL: none */
    const char *csd_url;                          /* NULL: file: in the state folder */
    struct {
        const char *url;
        size_t length;
    } csd[LAYOUT_DRIVES_MAX]; /* of several, each in csd_url */
    unsigned n_csd;           /* 0: one */
    struct csd_model csd_models[LAYOUT_DRIVES_MAX];
    bool no_csd;            /* --csd none */
    const char *prefix_dir; /* NULL: no prefix store */
    uint64_t prefix_bytes;  /* its cap; 0: a share of the disk */
    const char *record;     /* NULL: rings are not recorded */
    const char *trace_kv;   /* NULL: no trace */
    uint32_t recovery_ms;   /* how long a request outlasts a lost process */
    int log_flush_ms;       /* of token logs (coordinator/token_log.h) */
};

/* The value of HILL_GRANULARITY_SPEC. */
uint16_t hill_granularity(const struct options *options);

/* epoch: what needs no model and no machine to be known; the rest is zero. */
int hill_pipeline_read(struct hill_pipeline_options *out, struct epoch_settings *epoch,
                       const struct options *options, struct hill_why *why);

/* Where the flash of a drive on this host lies: the PATH of file:PATH or xrt:PATH,xclbin=FILE.
 * False: the URL is of another kind, or has none. */
bool hill_drive_file(const char *url, char out[HILL_PATH_BYTES]);

/* Its part of that, in options_drives.c: csd_ and n_csd of out, and the first one's model. */
int hill_drives_read(struct hill_pipeline_options *out, struct csd_model *model,
                     const struct options *options, struct hill_why *why);

/* What of Sampling a person may leave open: bits of Sampling.unset. */
enum hill_sampling_field {
    HILL_SAMPLING_TEMPERATURE = 1,
    HILL_SAMPLING_TOP_K = 2,
    HILL_SAMPLING_TOP_P = 4,
    HILL_SAMPLING_MIN_P = 8,
    HILL_SAMPLING_REPEAT_PENALTY = 16,
    HILL_SAMPLING_ALL = 31
};

struct hill_request_options {
    const char *prompt, *file; /* exactly one is set */
    uint32_t predict;          /* HILL_PREDICT_UNTIL_CONTEXT or the number */
    uint64_t seed;             /* 0: the coordinator picks one */
    double temperature, top_p, min_p, repeat_penalty;
    uint32_t top_k;
    uint32_t unset; /* enum hill_sampling_field: what was said nowhere */
    bool ignore_eos, json, special, token_ids, no_prefix_cache;
    uint32_t score_from; /* 0: generate */
};

/* All of it but the prompt: for a program whose table begins behind the first HILL_PROMPT_SPECS. */
int hill_request_read_numbers(struct hill_request_options *out, const struct options *options,
                              struct hill_why *why);
int hill_request_read(struct hill_request_options *out, const struct options *options,
                      struct hill_why *why);
/* Of a table with the first HILL_TEXT_SPECS: prompt, file, special and token_ids alone, which may
 * be missing. */
int hill_request_read_text(struct hill_request_options *out, const struct options *options,
                           struct hill_why *why);

/* --run-dir, or ${XDG_RUNTIME_DIR:-/tmp}/hillinfer-UID; HILL_E_INVALID when socket names in it
 * would be too long. */
int hill_run_dir(char out[HILL_PATH_BYTES], const struct options *options, struct hill_why *why);
/* --state-dir, or ${XDG_STATE_HOME:-$HOME/.local/state}/hillinfer. */
int hill_state_dir(char out[HILL_PATH_BYTES], const struct options *options, struct hill_why *why);

enum hill_log_level hill_log_option(const struct options *options);
const char *hill_log_level_name(const struct options *options);
