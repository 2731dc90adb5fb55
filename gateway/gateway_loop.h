/*
 * gateway/gateway_loop.h - the gateway's one loop: HTTP, the coordinator, signals, time.
 *
 * Who calls it: main.c. Concurrency: one thread. Failure: codes and one line.
 */
#pragma once

#include "gateway/gateway_settings.h"

/* Serve until a signal comes or the pipeline ends in order (0). listen_fd is taken. */
int gateway_serve(const struct gateway_settings *settings, const char *run_dir, int listen_fd,
                  int signal_fd, struct hill_why *why);
