/*
 * gpu_worker/worker.h - what the GPU worker's process holds, shared by main.c, worker.c,
 * schedule.c, step.c and request.c.
 *
 * Control: messages are read between units of work and in every wait (worker_waiting). A Prefill
 * joins at once and waits for its turn; a newer Configure is kept until the requests have let go of
 * the old epoch. Concurrency: the data loop's thread only.
 */
#pragma once

#include "base/clock.h"
#include "base/device_model.h"
#include "gpu_worker/dataplane.h"
#include "gpu_worker/engine.h"
#include "gpu_worker/json_answer.h"
#include "gpu_worker/sampler.h"
#include "gpu_worker/step.h"
#include "prefix/drive_store.h"
#include "proto/worker_link.h"

#define WORKER_WAIT_MS 60000 /* for anything that another process owes */

struct request;
struct worker;

/* What is done with what comes in during a wait; constant, set by worker_run. */
struct worker_hooks {
    void (*take_message)(struct worker *w, Hill__Message *message); /* owns it */
    int (*take_records)(struct worker *w, struct hill_why *why);    /* schedule_take_records */
};

struct worker {
    const struct worker_hooks *hooks;
    struct worker_link *link;
    Hill__Message *pending;   /* a Configure that is not carried out yet, or NULL */
    Hill__Message *configure; /* the one that was last, or NULL: the texts of settings are its */
    struct epoch_settings settings;

    struct dataplane plane; /* of the current epoch */
    bool ready;             /* Ready has been said for this epoch */
    uint32_t n_sequences;   /* that may run: 0 unless the epoch was entered */
    bool reads_hot;         /* the device reads hot entries where they lie */
    /* Every entry that a layer's attention does not find in the GPU's own slots is charged to the
     * modelled link when its selection arrives. A device that shares the host's memory is then
     * taken for one with memory of its own: requests that begin under a model have hot entries
     * copied (no reads_hot), and what an older one reads in place is charged as well. */
    struct device_model model;
    int64_t link_due; /* all that was charged has crossed by then */
    uint32_t next_query_id;
    int64_t turn_ns; /* HILL_TEST_TURN_MS, the least that a turn takes, or 0 */

    struct request *requests[ENGINE_SEQUENCES_MAX]; /* by sequence, or NULL */
    uint32_t n_requests;
    uint64_t n_arrived;
    uint32_t ready_owed[ENGINE_SEQUENCES_MAX]; /* SEQ_READYs that are still to come */
    int64_t peer_gone_ns;                      /* when a dead scorer was noticed, or 0 */
    struct request *waiting; /* whose cancel ends the wait that is going on, or NULL */

    char *model_path; /* of the loaded model, or NULL */
    struct cldevice device;
    struct gguf_file *file;
    struct model_hparams hparams;
    struct engine *engine;
    struct sampler sampler;
    struct json_tokens *json; /* once an answer was to be JSON, or NULL */
    float *logits;            /* [n_vocab] */
    struct step step;
    struct drive_store *store; /* of --prefix-dir, or NULL */
    struct run_cache *runs;    /* of --prefix-cache-mb and --prefix-gpu-cache-mb, or NULL */
    bool store_slow;           /* a request has waited for its writer long enough... */
    uint64_t store_done;       /* ...which had done so many jobs then */
    bool store_silent;         /* its drive has left reads of selected.h unanswered: no more */
};

/* waiting.c */
/* Take what is in the mailbox. True when the epoch must be left: a new one, or stopping. */
bool worker_poll(struct worker *w);
/* Called in every wait: mailbox and selection ring are emptied, so that nobody waits for us. Not 0
 * when the wait must end: HILL_E_CANCELLED (the epoch is to be left, or w->waiting was cancelled),
 * or what the ring said. */
int worker_waiting(void *worker, struct hill_why *why);
/* Take what is in the selection ring. 0, or what the ring said. */
int worker_take_records(struct worker *w, struct hill_why *why);

/* Carry out w->pending: let all requests go, attach its epoch, load the model unless it is loaded,
 * say Ready (or Failure). 0, or an error after which the process ends (already said). */
int worker_configure(struct worker *w);

/* schedule.c: run the requests until there are none or the epoch is to be left. 0, or an error
 * after which the process ends (the device is gone; Failure has been said). */
int schedule_run(struct worker *w);
/* Take the records of the selection ring to whom they are for. 0, or what the ring said. */
int schedule_take_records(struct worker *w, struct hill_why *why);

/* Until the process is to stop: 0, or an error (already said). */
int worker_run(struct worker *w);
void worker_finish(struct worker *w);

/* What a thread of this worker's calls when something is done. */
static inline void worker_ring(void *bell)
{
    shm_doorbell_ring(bell);
}

static inline int64_t worker_deadline(void)
{
    return clock_deadline_ms(WORKER_WAIT_MS);
}

static inline uint32_t worker_entry_bytes(const struct worker *w)
{
    return kv_entry_bytes(&w->plane.party.layout.geometry);
}

static inline void worker_unit_of_work(struct worker *w)
{
    worker_link_work_done(w->link, 1);
}
