/*
 * gpu_worker/waiting.c - what every wait of the GPU worker does: the mailbox and the selection ring
 * are emptied, so that nobody waits for a worker that waits [I14]. What is done with what comes in
 * is the hooks', so that any part may wait and calls go one way. See worker.h.
 */
#include "gpu_worker/request.h"

int worker_take_records(struct worker *w, struct hill_why *why)
{
    return w->hooks->take_records(w, why);
}

bool worker_poll(struct worker *w)
{
    Hill__Message *message;
    while ((message = worker_link_poll(w->link)))
        w->hooks->take_message(w, message);
    return w->pending || worker_link_stopping(w->link);
}

int worker_waiting(void *context, struct hill_why *why)
{
    struct worker *w = context;
    if (worker_poll(w))
        return hill_fail(why, HILL_E_CANCELLED, "interrupted: the epoch ends");
    if (w->waiting && w->waiting->cancelled)
        return hill_fail(why, HILL_E_CANCELLED, "cancelled");
    return w->ready ? worker_take_records(w, why) : 0;
}
