/* prefix/span_reader.c - see span_reader.h. The list has the jobs that are not done, in their
 * order. Under the lock: all but a span that is being read. */
#include "prefix/span_reader.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/whole_io.h"

#define READERS  4u
#define CLOSE_MS 2000 /* for reads that have begun; a drive that works needs milliseconds */

struct job {
    struct job *next;
    uint32_t n, begun, read;
    struct span spans[];
};

struct span_reader {
    pthread_mutex_t lock;
    pthread_cond_t work, gone; /* gone: a thread has ended */
    pthread_t threads[READERS];
    uint32_t n_threads, running;
    struct job *head, **tail;
    uint64_t given, done;
    int rc; /* the first that failed */
    bool closing;
    bool left; /* the caller has gone: who ends last frees this, and calls release */
    void (*wake)(void *context), (*release)(void *context);
    void *context, *released;
};

static int read_span(const struct span *s)
{
    int64_t n = whole_read(s->fd, s->to, s->bytes, s->at);
    return n < 0 ? (int)n : (uint64_t)n < s->bytes ? HILL_E_DAMAGED : 0;
}

/* A job of which something is still to be begun. */
static struct job *next_job(const struct span_reader *r)
{
    struct job *job = r->head;
    while (job && job->begun == job->n)
        job = job->next;
    return job;
}

static void take_out_done(struct span_reader *r)
{
    bool any = false;
    while (r->head && r->head->read == r->head->n) {
        struct job *job = r->head;
        r->head = job->next;
        if (!r->head)
            r->tail = &r->head;
        free(job);
        r->done++;
        any = true;
    }
    if (any && r->wake)
        r->wake(r->context);
}

static void destroy(struct span_reader *r)
{
    for (struct job *job = r->head, *next; job; job = next) {
        next = job->next;
        free(job);
    }
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->gone);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static void *thread_main(void *argument)
{
    struct span_reader *r = argument;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        struct job *job;
        while (!(job = next_job(r)) && !r->closing)
            pthread_cond_wait(&r->work, &r->lock);
        if (r->closing)
            break;
        const struct span span = job->spans[job->begun++];
        pthread_mutex_unlock(&r->lock);
        int rc = read_span(&span);
        pthread_mutex_lock(&r->lock);
        r->rc = r->rc ? r->rc : rc;
        job->read++;
        take_out_done(r);
    }
    r->running--;
    pthread_cond_signal(&r->gone);
    bool last = r->left && r->running == 0;
    pthread_mutex_unlock(&r->lock);
    if (last) {
        r->release(r->released);
        destroy(r);
    }
    return NULL;
}

int span_reader_open(struct span_reader **out, void (*wake)(void *context), void *context)
{
    sigset_t all, before;
    pthread_condattr_t monotonic;
    struct span_reader *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return HILL_E_NOMEM;
    r->tail = &r->head;
    r->wake = wake;
    r->context = context;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->gone, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&r->lock);
    while (r->n_threads < READERS &&
           !pthread_create(&r->threads[r->n_threads], NULL, thread_main, r))
        r->n_threads++;
    r->running = r->n_threads;
    pthread_mutex_unlock(&r->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!r->n_threads) {
        destroy(r);
        return HILL_E_NOMEM;
    }
    *out = r;
    return 0;
}

bool span_reader_close(struct span_reader *r, void (*release)(void *context), void *context)
{
    if (!r)
        return true;
    int64_t until = clock_deadline_ms(CLOSE_MS);
    struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_cond_broadcast(&r->work);
    while (r->running > 0 && clock_now_ns() < until)
        pthread_cond_timedwait(&r->gone, &r->lock, &at);
    bool ended = r->running == 0;
    r->left = !ended;
    r->release = release;
    r->released = context;
    r->wake = NULL;
    for (uint32_t i = 0; !ended && i < r->n_threads; i++)
        pthread_detach(r->threads[i]);
    pthread_mutex_unlock(&r->lock);
    if (!ended)
        return false;
    for (uint32_t i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i], NULL);
    destroy(r);
    return true;
}

int span_reader_give(struct span_reader *r, const struct span *spans, uint32_t n, uint64_t *number)
{
    struct job *job = malloc(sizeof *job + n * sizeof *spans);
    if (!job)
        return HILL_E_NOMEM;
    *job = (struct job){.n = n};
    for (uint32_t i = 0; i < n; i++)
        job->spans[i] = spans[i];
    pthread_mutex_lock(&r->lock);
    *r->tail = job;
    r->tail = &job->next;
    *number = ++r->given;
    take_out_done(r); /* of no spans, with nothing before it */
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    return 0;
}

int span_reader_done(struct span_reader *r, uint64_t job)
{
    pthread_mutex_lock(&r->lock);
    int rc = r->rc ? r->rc : r->done >= job;
    pthread_mutex_unlock(&r->lock);
    return rc;
}
