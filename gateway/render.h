/*
 * gateway/render.h - a conversation rendered, without holding anybody else up.
 *
 * What: a template that is built in is rendered at once; one that needs the helper process
 * (chat/chat_helper.h, up to 20 s) by a thread of its own, which writes to an eventfd when it is
 * done. Beside so many threads further ones wait, in their order. Who calls it: jobs. Concurrency:
 * the caller's thread, one for all; messages stay as they are until render_finish. Failure: as
 * chat/chat_prompt.h, in code and why; too many wait: HILL_E_BUSY; stopped: HILL_E_CANCELLED.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "chat/chat_prompt.h"
#include "proto/envelope.h"

#define RENDER_THREADS_MAX 4u
#define RENDER_WAITING_MAX 16u

struct render {
    struct chat_prompt prompt;
    int code;
    struct hill_why why;
    bool waits; /* for a thread, in front of next */
    struct render *next;
    /* of the thread */
    bool threaded;
    pthread_t thread;
    atomic_bool done; /* the thread stores it last (release); pairs with render_is_done (acquire) */
    int event_fd, stop_fd;
    Hill__Message *info; /* its own copy */
    bool no_think;
    const struct chat_message *messages;
    unsigned count;
};

/* no_think: of chat_prompt_render. NULL: out of memory. */
struct render *render_start(const Hill__Message *info, bool no_think,
                            const struct chat_message *messages, unsigned count, int event_fd);
/* Where it is, the next one that waits begins. */
bool render_is_done(struct render *render);
/* Nobody wants it any more: it is done soon, and does not wait. */
void render_stop(struct render *render);
/* Stops it and waits for its thread; NULL allowed. */
void render_finish(struct render *render);
