/*
 * proto/worker_link.h - a worker's side of the control plane, the same for all three workers.
 *
 * What: a control thread with a DEALER socket to the coordinator (Hello first) and a heartbeat
 * socket of its own, so that heartbeats never queue behind anything. Messages for the worker land
 * in a mailbox and ring a doorbell; the data loop polls the mailbox when it looks at its rings. The
 * worker's process also dies with its parent (PR_SET_PDEATHSIG, checked once after it is set), and
 * SIGTERM/SIGINT set a flag (SIGINT is ignored: the coordinator decides; Ctrl-C reaches the whole
 * process group). Who calls it: main.c of gpu_worker, cpu_scorer, csd_agent; the mailbox by the
 * data loop's thread only. Sockets: ipc://<run folder>/worker.sock and heartbeat.sock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/envelope.h"
#include "shm/doorbell.h"

struct worker_link;

/* Read a worker's command line (--run-dir, --log-level, --help, --version of proto/options_hill.h;
 * the rest comes with Configure, and HILL_* and --config are the coordinator's), set signals,
 * parent-death and the log, connect, say Hello, and wait for the answer (at most 30 s, then
 * HILL_E_PEER_GONE, as when it is a refusal; a run folder that does not exist is HILL_E_IO).
 * Returns 0; 1 when --help or --version was answered (exit 0); or an error code (already logged).
 * name: "hill-gpu-worker"; role as in Hello; summary: one line for --help. */
int worker_link_open(struct worker_link **out, int argc, char **argv, Hill__Role role,
                     const char *name, const char *summary);

/* A link without a coordinator, threads or signals, for a replay: messages are given to it, and
 * what the worker sends goes to `sent`, in its own thread. HILL_E_NOMEM. */
int worker_link_open_alone(struct worker_link **out, Hill__Role role, const char *name,
                           void (*sent)(void *context, const Hill__Message *message),
                           void *context);
/* Into the mailbox; takes the message. HILL_E_NOMEM. */
int worker_link_give(struct worker_link *link, Hill__Message *message);
/* As SIGTERM would. */
void worker_link_stop(struct worker_link *link);

/* The doorbell that is rung when a message arrives, until then a private one (NULL: back to the
 * private one). A ring is rung once at the change so that nothing is missed. */
void worker_link_set_doorbell(struct worker_link *link, struct shm_doorbell *bell);
struct shm_doorbell *worker_link_doorbell(struct worker_link *link);

/* The next message or NULL; free with proto_free. */
Hill__Message *worker_link_poll(struct worker_link *link);

/* Thread-safe; queued to the control thread, in order; message is packed before return. */
int worker_link_send(struct worker_link *link, const Hill__Message *message);
/* Shorthands. */
void worker_link_ready(struct worker_link *link, uint32_t epoch, const char *device,
                       uint64_t resident_bytes);
void worker_link_failure(struct worker_link *link, int code, const char *text, bool fatal,
                         uint64_t request_id);

/* True after SIGTERM, a Shutdown message, or when the coordinator is gone: leave the loop. */
bool worker_link_stopping(struct worker_link *link);

/* Heartbeats say for how long the data loop has called neither worker_link_poll,
 * _stopping nor _ready, nor slept on the doorbell: the coordinator ends a process that stands still
 * (--stall-ms, or four times the longest turn; one that ends with Ready does not count: what loads
 * for long is not slow afterwards). They also carry this counter; the data loop bumps it. */
void worker_link_work_done(struct worker_link *link, uint64_t count);
void worker_link_set_epoch(struct worker_link *link, uint32_t epoch);
/* Heartbeats carry these n from now on (copied; 0: no change); packs and allocates: a few times a
 * second is enough. */
void worker_link_set_live(struct worker_link *link, Hill__SequenceStats *const *stats, size_t n);

/* Sends what is queued (up to a second), stops the thread, closes. NULL allowed. */
void worker_link_close(struct worker_link *link);
