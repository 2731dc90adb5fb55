/*
 * proto/client.h - a connection to the coordinator of a run folder.
 *
 * What: a DEALER socket on <run folder>/control.sock, calls with a deadline, and SIGINT/SIGTERM as
 * a file descriptor. A lost connection is made again when another coordinator is there; what was
 * sent and not answered may be lost. Failure: HILL_E_PEER_GONE when no pipeline runs in the folder
 * or it stopped answering; why says which. Concurrency: one thread.
 */
#pragma once

#include <stdbool.h>

#include "proto/envelope.h"

#define CLIENT_ANSWER_MS 10000 /* a living coordinator answers within this */

struct client {
    void *context, *socket;
    void *monitor; /* tells when the connection is made and when it is lost */
    bool connected;
    uint32_t losses; /* of the connection; it is made again by itself when a coordinator is there */
    int signal_fd;
    int signal; /* the last one that client_receive consumed, or 0 */
    char run_dir[108];
};

/* Blocks SIGINT and SIGTERM and connects. HILL_E_PEER_GONE: no pipeline runs in the folder;
 * HILL_E_INVALID: its name is too long; HILL_E_IO. */
int client_open(struct client *client, const char *run_dir, struct hill_why *why);
/* A new connection, which counts as a loss of the one before: what comes there is not seen. Only
 * client_close may follow a failure, HILL_E_IO. */
int client_reconnect(struct client *client, struct hill_why *why);
void client_close(struct client *client); /* also after an open that failed */

/* Queue a message; does not wait. As proto_send. */
int client_send(struct client *client, const Hill__Message *message, struct hill_why *why);

/* Notes what has become of the connection (client_receive does, too). */
void client_look(struct client *client);
/* Has the pipeline ended in order, not been killed? Nobody comes back then. */
bool client_pipeline_ended(const struct client *client);

/* A number for a key, a seed or a name; never 0. */
uint64_t client_random(void);

/* Wait for the next message. 0 and *out; HILL_E_CANCELLED on a signal (consumed); HILL_E_TIMEOUT.
 */
int client_receive(struct client *client, int64_t deadline_ns, Hill__Message **out,
                   struct hill_why *why);

/* Send and wait for an answer of the given kind; HILL_E_PEER_GONE, too, when no connection is made
 * within CLIENT_ANSWER_MS, or it is lost meanwhile: another coordinator knows nothing of it. A
 * Reply with a code becomes that code with its text in why. Other messages are dropped. */
int client_call(struct client *client, const Hill__Message *request,
                Hill__Message__BodyCase expected, int64_t patience_ms, Hill__Message **out,
                struct hill_why *why);

/* Ask for the status: client_call with its answer. */
int client_status(struct client *client, int64_t patience_ms, Hill__Message **out,
                  struct hill_why *why);
/* Ask for it to be heard, without waiting for the answer. */
int client_ping(struct client *client, struct hill_why *why);
