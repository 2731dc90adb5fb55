/* prefix/span_reader.c - see span_reader.h. The list has the jobs that are not done, in their
 * order. Under the lock: all but a span that is being read. */
#include "prefix/span_reader.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "base/whole_io.h"

#define READERS 4u

struct job {
    struct job *next;
    uint32_t n, begun, read;
    struct span spans[];
};

struct span_reader {
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_t threads[READERS];
    uint32_t n_threads;
    struct job *head, **tail;
    uint64_t given, done;
    int rc; /* the first that failed */
    bool closing;
    void (*wake)(void *context);
    void *context;
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
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int span_reader_open(struct span_reader **out, void (*wake)(void *context), void *context)
{
    sigset_t all, before;
    struct span_reader *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return HILL_E_NOMEM;
    r->tail = &r->head;
    r->wake = wake;
    r->context = context;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (r->n_threads < READERS &&
           !pthread_create(&r->threads[r->n_threads], NULL, thread_main, r))
        r->n_threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!r->n_threads) {
        span_reader_close(r);
        return HILL_E_NOMEM;
    }
    *out = r;
    return 0;
}

void span_reader_close(struct span_reader *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i], NULL);
    for (struct job *job = r->head, *next; job; job = next) {
        next = job->next;
        free(job);
    }
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    free(r);
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
