/*
 * gateway/http_guard.h - requests that a person's browser sends for somebody else's page.
 *
 * What: without a key only the address protects a gateway on this machine, and a browser on it
 * reaches that address, too (a Unix socket through a proxy). So a request with an Origin that is
 * neither the gateway's own nor that of --cors is refused, and, without keys, one whose Host is no
 * name of this machine (a name of somebody's that resolves to 127.0.0.1). Pure. Who calls it:
 * http_server.c.
 */
#pragma once

#include "gateway/gateway_settings.h"

/* NULL: the request may go on; else why not. Headers that are not there are NULL. */
const char *http_guard_why_not(const struct gateway_settings *settings, const char *host,
                               const char *origin);
/* The Access-Control-Allow-Origin of the answer; NULL: none. */
const char *http_guard_allow(const struct gateway_settings *settings, const char *origin);
