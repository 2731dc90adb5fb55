/*
 * gpu_worker/worker.h - what the GPU worker's process holds, shared by main.c, worker.c and
 * request.c.
 *
 * Control: messages are read here and there while a request runs (worker_interrupted); a newer
 * Configure is kept until the request has let go of the old epoch. Concurrency: the data loop's
 * thread only.
 */
#ifndef HILL_GPU_WORKER_WORKER_H
#define HILL_GPU_WORKER_WORKER_H

#include "gpu_worker/dataplane.h"
#include "gpu_worker/engine.h"
#include "gpu_worker/sampler.h"
#include "proto/worker_link.h"

struct worker {
    struct worker_link *link;
    Hill__Message *pending; /* a Configure that is not carried out yet, or NULL */
    Hill__Message *request; /* the Prefill to run or that runs, or NULL */
    bool running_request;   /* request has been started */
    bool cancelled;         /* request is to end */
    uint32_t ready_owed;    /* SEQ_READYs that a cancelled request did not wait for */
    uint64_t work_done;

    struct dataplane plane; /* of the current epoch; plane.bell is NULL when there is none */
    uint32_t epoch, ctx_tokens, gpu_slots;
    uint64_t gpu_kv_cap_bytes;
    uint32_t next_query_id;

    char *model_path; /* of the loaded model, or NULL */
    struct cldevice device;
    struct gguf_file *file;
    struct model_hparams hparams;
    struct engine *engine;
    struct sampler sampler;
    float *logits;        /* [n_vocab] */
    uint32_t *item_slots; /* [gpu_slots], like the two below */
    struct engine_upload *uploads;
    struct selected_upload *uploads_given; /* of the layer that the device works on, n of them */
    uint32_t n_uploads_given;
};

/* Take what is in the mailbox. True when the current request must be let go: cancelled, a new
 * epoch, or stopping. */
bool worker_interrupted(void *worker);

/* Carry out w->pending: attach its epoch, load the model unless it is loaded, say Ready (or
 * Failure). 0, or an error after which the process ends (already said). */
int worker_configure(struct worker *w);

/* Run w->request to its end: Done has been sent, unless the epoch is to be left. 0, or an error
 * after which the process ends (the device is gone; Failure has been said). */
int request_run(struct worker *w);

void worker_finish(struct worker *w);

#endif
