/* gateway/render.c - see render.h. */
#include "gateway/render.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* of the one thread that starts and joins the others */
static unsigned threads, n_waiting;
static struct render *waiting; /* the one that came first, first */

static void say_done(struct render *r)
{
    uint64_t one = 1;
    /* pairs with render_is_done: prompt, code and why are written before */
    atomic_store_explicit(&r->done, true, memory_order_release);
    if (write(r->event_fd, &one, sizeof one) < 0)
        return; /* the loop's next look finds it */
}

static void *run(void *context)
{
    struct render *r = context;
    r->code = chat_prompt_render(&r->prompt, r->info->model_info, r->no_think, r->messages,
                                 r->count, r->stop_fd, &r->why);
    say_done(r);
    return NULL;
}

/* While it runs, code, why and prompt are the thread's. */
static void start_thread(struct render *r)
{
    if (pthread_create(&r->thread, NULL, run, r)) {
        r->code = hill_fail(&r->why, HILL_E_NOMEM, "no thread can be had for the model's template");
        return;
    }
    r->threaded = true;
    threads++;
}

static void begin_waiting(struct render *r)
{
    struct render **at = &waiting;
    if (n_waiting == RENDER_WAITING_MAX) {
        r->code =
            hill_fail(&r->why, HILL_E_BUSY,
                      "%u conversations wait for the model's own template already", n_waiting);
        return;
    }
    while (*at)
        at = &(*at)->next;
    *at = r;
    r->waits = true;
    n_waiting++;
}

static void end_waiting(struct render *r)
{
    struct render **at = &waiting;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    r->waits = false;
    n_waiting--;
}

static void join(struct render *r)
{
    pthread_join(r->thread, NULL);
    r->threaded = false;
    threads--;
    while (waiting && threads < RENDER_THREADS_MAX) {
        struct render *next = waiting;
        end_waiting(next);
        start_thread(next);
        if (!next->threaded)
            say_done(next);
    }
}

/* By the helper: at once, or when one of those that run has ended. */
static void begin(struct render *r, const Hill__Message *info)
{
    r->info = proto_copy(info);
    r->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (!r->info || r->stop_fd < 0)
        r->code = hill_fail(&r->why, HILL_E_NOMEM, "out of memory for the model's template");
    else if (threads < RENDER_THREADS_MAX)
        start_thread(r);
    else
        begin_waiting(r);
}

struct render *render_start(const Hill__Message *info, bool no_think,
                            const struct chat_message *messages, unsigned count, int event_fd)
{
    struct render *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->event_fd = event_fd;
    r->stop_fd = -1;
    r->no_think = no_think;
    r->messages = messages;
    r->count = count;
    struct hill_why ignored;
    bool at_once = (!no_think && chat_prompt_format(info->model_info)) ||
                   chat_prompt_check(info->model_info, &ignored);
    if (at_once)
        r->code = chat_prompt_render(&r->prompt, info->model_info, no_think, messages, count, -1,
                                     &r->why);
    else
        begin(r, info);
    if (!r->threaded && !r->waits)
        atomic_store_explicit(&r->done, true, memory_order_relaxed); /* no other thread */
    return r;
}

bool render_is_done(struct render *r)
{
    bool done = atomic_load_explicit(&r->done, memory_order_acquire); /* pairs with say_done */
    if (done && r->threaded)
        join(r);
    return done;
}

void render_stop(struct render *r)
{
    if (r->waits) {
        end_waiting(r);
        r->code = hill_fail(&r->why, HILL_E_CANCELLED, "the conversation is not rendered any more");
        say_done(r);
    } else if (r->threaded) {
        eventfd_write(r->stop_fd, 1);
    }
}

void render_finish(struct render *r)
{
    if (!r)
        return;
    render_stop(r);
    if (r->threaded)
        join(r);
    if (r->stop_fd >= 0)
        close(r->stop_fd);
    chat_prompt_finish(&r->prompt);
    proto_free(r->info);
    free(r);
}
