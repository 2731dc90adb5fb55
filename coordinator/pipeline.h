/*
 * coordinator/pipeline.h - the running pipeline: sockets, workers, epochs, requests, in one loop.
 *
 * What: pipeline_open binds the sockets, creates the first epoch's segments; pipeline_run starts
 * the workers and serves until a signal, a Shutdown or a failure that a restart cannot cure;
 * pipeline_close removes segments and sockets. Who calls it: main.c. Concurrency: one thread (and
 * ZeroMQ's own). Signals SIGINT, SIGTERM, SIGHUP, SIGCHLD are blocked by the caller and come
 * through signal_fd. Failure: codes with one line in why; what a worker cannot do ends the pipeline
 * with that worker's code.
 */
#pragma once

#include "coordinator/run_folder.h"
#include "coordinator/settings.h"

struct pipeline;

/* ready_fd: "ready\n" is written there when all workers are READY for the first time, then it is
 * closed; -1: none. alive_fd: a line every second (notify.h); closed at the end. */
int pipeline_open(struct pipeline **out, struct settings *settings, struct run_folder *folder,
                  int signal_fd, int ready_fd, int alive_fd, struct hill_why *why);

/* 0 after SIGTERM or Shutdown, HILL_E_CANCELLED after SIGINT, else why the pipeline ended. */
int pipeline_run(struct pipeline *pipeline, struct hill_why *why);

void pipeline_close(struct pipeline *pipeline); /* NULL allowed */
