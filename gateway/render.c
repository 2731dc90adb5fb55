/* gateway/render.c - see render.h. */
#include "gateway/render.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

static unsigned threads; /* that run; of the one thread that starts and joins them */

static void *run(void *context)
{
    struct render *r = context;
    uint64_t one = 1;
    r->code = chat_prompt_render(&r->prompt, r->info->model_info, r->no_think, r->messages,
                                 r->count, r->stop_fd, &r->why);
    /* pairs with render_is_done: prompt, code and why are written before */
    atomic_store_explicit(&r->done, true, memory_order_release);
    if (write(r->event_fd, &one, sizeof one) < 0)
        return NULL; /* the loop's next look finds it */
    return NULL;
}

static int start_thread(struct render *r, const Hill__Message *info)
{
    if (threads == RENDER_THREADS_MAX)
        return hill_fail(&r->why, HILL_E_BUSY,
                         "%u conversations are being rendered by the model's own template already",
                         threads);
    r->info = proto_copy(info);
    r->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (!r->info || r->stop_fd < 0 || pthread_create(&r->thread, NULL, run, r))
        return hill_fail(&r->why, HILL_E_NOMEM, "no thread can be had for the model's template");
    r->threaded = true;
    threads++;
    return 0;
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
        r->code = start_thread(r, info);
    if (!r->threaded)
        atomic_store_explicit(&r->done, true, memory_order_relaxed); /* no other thread */
    return r;
}

bool render_is_done(struct render *r)
{
    return atomic_load_explicit(&r->done, memory_order_acquire); /* pairs with run */
}

void render_finish(struct render *r)
{
    if (!r)
        return;
    if (r->threaded) {
        eventfd_write(r->stop_fd, 1);
        pthread_join(r->thread, NULL);
        threads--;
    }
    if (r->stop_fd >= 0)
        close(r->stop_fd);
    chat_prompt_finish(&r->prompt);
    proto_free(r->info);
    free(r);
}
