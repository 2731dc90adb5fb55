/*
 * gateway/http_server.h - HTTP by libmicrohttpd, driven from the gateway's one loop.
 *
 * What: takes connections on a socket that listens already, makes a job of each request, and gives
 * its answer back; a connection whose job has nothing to say is suspended. A client that goes away
 * (also one that shuts its sending side down) is noticed by its descriptor, whatever its job does.
 * Who calls it: gateway_loop.c. Concurrency: one thread. Failure: HILL_E_IO, HILL_E_NOMEM at the
 * start; later what fails is a connection's.
 */
#pragma once

#include "gateway/job.h"

struct http_server;

/* listen_fd is the server's after success. */
int http_server_open(struct http_server **out, struct gateway *gateway, int listen_fd,
                     struct hill_why *why);
void http_server_close(struct http_server *server); /* NULL allowed; ends every connection */

/* Two descriptors to poll for reading. */
void http_server_descriptors(const struct http_server *server, int out[2]);
/* When it wants a turn though nothing came. */
int64_t http_server_next_ns(const struct http_server *server, int64_t now_ns);
/* Everything that is due, and the answers of jobs that changed; never blocks. */
void http_server_turn(struct http_server *server);
