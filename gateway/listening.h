/*
 * gateway/listening.h - the socket on which clients arrive.
 *
 * What: made before the process gives up the right to make one. A Unix socket is its user's alone
 * (0600); one that nobody listens on any more is replaced. Who calls it: main.c. Concurrency:
 * start-up. Failure: HILL_E_INVALID; as errno says; HILL_E_IO: somebody listens there already.
 */
#pragma once

#include "gateway/gateway_settings.h"

/* *port: the one it got; 0 of a Unix socket. */
int gateway_listen(int *out, uint16_t *port, const struct gateway_settings *settings,
                   struct hill_why *why);
/* Remove the Unix socket's name. */
void gateway_unlisten(const struct gateway_settings *settings);
