/*
 * coordinator/settings.h - from options and a model to everything that Configure says.
 *
 * What: opens the model (shape, tokenizer), fixes context, caps, slots and segment sizes through
 * kv/plan.h, and says them on stderr. Who calls it: main.c (open, close); the pipeline reads it;
 * only attach and detach change its csd part. Failure: as options and kv/plan.h say; 100 for caps
 * too small, 111 for folders and disks, 1 for a damaged or unsupported model. Concurrency: one
 * thread.
 */
#pragma once

#include "model/gguf.h"
#include "model/hparams.h"
#include "coordinator/drives_record.h"
#include "coordinator/sampling_defaults.h"
#include "coordinator/tiers_record.h"
#include "coordinator/worker_table.h"
#include "model/tokenizer.h"
#include "proto/options_hill.h"

#define SETTINGS_STOP_TOKENS_MAX 63u /* one more may end the answers of a chat */

struct settings {
    struct epoch_settings epoch; /* what workers are told; its texts lie here or in the options */
    struct hill_pipeline_options options; /* its texts belong to the options they were read from */
    const char *log_level;
    struct worker_limits limits;
    char model_path[HILL_PATH_BYTES], state_dir[HILL_PATH_BYTES];
    char record_path[HILL_PATH_BYTES], trace_path[HILL_PATH_BYTES]; /* of the workers: absolute */
    char prefix_dir[HILL_PATH_BYTES];                               /* absolute */
    int prefix_fd;                                                  /* its lock; -1: none is held */
    struct gguf_file *model;
    struct model_hparams hparams;
    struct tokenizer *tokenizer;
    uint32_t stop_tokens[SETTINGS_STOP_TOKENS_MAX];
    uint32_t n_stop_tokens;
    Hill__Sampling sampling; /* of requests that leave it open */

    struct kv_hot_plan hot;
    const struct tiers_record *like; /* while it is sized; NULL: by what is free */
    char csd_key[HILL_PATH_BYTES], csd_peer[HILL_PATH_BYTES]; /* absolute; empty: none */
    char csd_url[HILL_PATH_BYTES + 32]; /* of the attached one; of several, with commas */
    struct settings_drive {
        char url[HILL_PATH_BYTES + 32];
        uint64_t cap_bytes;
        struct csd_model model;
    } drives[LAYOUT_DRIVES_MAX], before;        /* of several; of the place last attached to */
    double speeds_before[LAYOUT_DRIVES_MAX];    /* of all places, before that */
    char csd_default_url[HILL_PATH_BYTES + 32]; /* what attach without a URL means */
    uint64_t cold_tokens;  /* of one sequence alone, each layer, that the cold pool holds */
    uint64_t plain_tokens; /* the same of a plain one, for what was admitted while it was there */
    bool drives_left;      /* the drives are those of a killed coordinator, not of the options */
};

/* How often `hillinfer up` has started a coordinator in place of a killed one. */
uint32_t coordinator_restarts(void);

/* left, drives: of a killed coordinator. Where that was asked for the same, sizes that follow from
 * what is free are those that it had, so that its tiers fit. Drives: those that it had. */
int settings_open(struct settings *settings, const struct options *options,
                  const struct tiers_record *left, const struct drives_record *drives,
                  struct hill_why *why);
/* A sum over the settings as they were asked for: with sizes that a person gave, without those that
 * follow from what is free. */
uint64_t settings_asked(const struct settings *settings);
/* Sizes as left has them, where it was asked for the same. */
int settings_size_like(struct settings *settings, const struct tiers_record *left,
                       struct hill_why *why);
void settings_close(struct settings *settings);

/* Free bytes where a file lies or will lie, with what the file has already; UINT64_MAX when the
 * file system cannot be asked. */
uint64_t settings_file_room(const char *file);

/* ---- the drive, or several (settings_drives.c): which, from 0 on ---- */

static inline bool settings_several(const struct settings *settings)
{
    return settings->epoch.csd_drives > 1;
}
/* Attach url (empty: the default one): its cap and capacity. model: of the drive; NULL: what it had
 * when it was in this place last, or by the options; one that is new has none. Nothing changes on
 * failure. */
int settings_attach(struct settings *settings, uint32_t drive, const char *url,
                    const struct csd_model *model, struct hill_why *why);
/* The device model of a drive that is attached. */
const struct csd_model *settings_model(const struct settings *settings, uint32_t drive);
void settings_detach(struct settings *settings, uint32_t drive);
/* The one that was attached last is none: who was in its place before keeps its model, and all have
 * the speeds that they had. */
void settings_undo_attach(struct settings *settings, uint32_t drive);
/* All that the options name. */
int settings_attach_all(struct settings *settings, struct hill_why *why);
/* All that a killed coordinator had, with their caps; one that cannot be had is a line. False: its
 * record says nothing of this pipeline. */
bool settings_attach_left(struct settings *settings, const struct drives_record *left);
/* What the next one is to begin with, should this one be killed. */
void settings_note_drives(const struct settings *settings, struct drives_record *out);
const char *settings_url(const struct settings *settings, uint32_t drive);
uint64_t settings_cap(const struct settings *settings, uint32_t drive);
/* What of an epoch's settings is this drive's, for its agent. */
void settings_of_drive(const struct settings *settings, uint32_t drive, struct epoch_settings *out);
/* Is one attached, for new requests as well? */
static inline bool settings_has_drive(const struct settings *settings)
{
    return settings->epoch.csd_attached && !settings->epoch.csd_plain;
}
/* The same, but for what requests that run have there: the pool stays, for them alone. */
void settings_detach_to_plain(struct settings *settings);
/* Can this URL be attached now, or detached; which drive it is. said: by the agent of the only
 * drive, of its device (cold_pool_describe: it ends with the pool's uuid); while that is read still
 * only the drive of this pool can be attached, of this host by whatever name. */
int settings_may_attach(const struct settings *settings, const char *url, const char *said,
                        uint32_t *drive, struct hill_why *why);
int settings_may_detach(const struct settings *settings, const char *url, uint32_t *drive,
                        struct hill_why *why);
/* Of several drives: speeds, as epoch.drives has them, were measured. */
void settings_set_speeds(struct settings *settings, const double *speeds);
/* The device model is this text's from now on, each drive's own but for what it names. */
int settings_change_model(struct settings *settings, const char *text, struct hill_why *why);

/* Can a request of n_prompt + n_predict tokens run? HILL_E_TOO_LONG or HILL_E_INVALID with the
 * reason and the numbers. */
int settings_admit(const struct settings *settings, const struct kv_selection_settings *selection,
                   uint32_t n_prompt, uint32_t n_predict, struct hill_why *why);
/* The same for as many of *n_predict tokens as can run, n_least of them at least. */
int settings_admit_most(const struct settings *settings,
                        const struct kv_selection_settings *selection, uint32_t n_prompt,
                        uint32_t n_least, uint32_t *n_predict, struct hill_why *why);
/* One that a coordinator before this one has admitted: a plain drive still counts for it. */
int settings_admit_again(const struct settings *settings,
                         const struct kv_selection_settings *selection, uint32_t n_prompt,
                         uint32_t n_predict, struct hill_why *why);

/* Say the effective caps. */
void settings_log(const struct settings *settings);

/* mkdir -p and check that it can be read and written. */
int settings_make_state_dir(const char *path, struct hill_why *why);
