/* prefix/chunk_writer.c - see chunk_writer.h. A job stays in the queue until it is done, so what is
 * not in the file yet is always found. Under the lock: all but what a job at the head holds. */
#include "prefix/chunk_writer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

#define NOTES_MAX 4096u /* jobs in the queue beyond which no use is noted */

struct jobs {
    struct chunk_job *head, **tail;
};

struct chunk_writer {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    pthread_t thread;
    struct jobs queue, failed;
    uint64_t room_bytes, bytes; /* of entries in the queue */
    uint64_t given, done;
    bool closing;
    void (*wake)(void *context);
    void *wake_context;
    chunk_write *write; /* set before the thread starts */
    void *context;
};

static void append(struct jobs *jobs, struct chunk_job *job)
{
    job->next = NULL;
    *jobs->tail = job;
    jobs->tail = &job->next;
}

static struct chunk_job *remove_head(struct jobs *jobs)
{
    struct chunk_job *job = jobs->head;
    jobs->head = job->next;
    if (!jobs->head)
        jobs->tail = &jobs->head;
    return job;
}

static void free_job(struct chunk_job *job)
{
    free(job->entries);
    free(job);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void finish_head(struct chunk_writer *w, int rc, const struct hill_why *why)
{
    struct chunk_job *job = remove_head(&w->queue);
    w->bytes -= job->bytes;
    w->done++;
    if (rc) {
        job->rc = rc;
        job->why = *why;
        free(job->entries);
        job->entries = NULL;
        append(&w->failed, job);
    } else {
        free_job(job);
    }
    if (w->wake)
        w->wake(w->wake_context);
    if (!w->queue.head)
        pthread_cond_signal(&w->idle);
}

static void *thread_main(void *argument)
{
    struct chunk_writer *w = argument;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->queue.head && !w->closing)
            pthread_cond_wait(&w->work, &w->lock);
        const struct chunk_job *job = w->queue.head;
        if (!job)
            break;
        pthread_mutex_unlock(&w->lock);
        struct hill_why why = {""};
        int rc = w->write(w->context, job, &why);
        pthread_mutex_lock(&w->lock);
        finish_head(w, rc, &why);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- the caller ------------------------------------------------------------------------------ */

int chunk_writer_open(struct chunk_writer **out, uint64_t room_bytes, chunk_write *write,
                      void *context)
{
    sigset_t all, before;
    pthread_condattr_t monotonic;
    struct chunk_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return HILL_E_NOMEM;
    w->room_bytes = room_bytes;
    w->write = write;
    w->context = context;
    w->queue.tail = &w->queue.head;
    w->failed.tail = &w->failed.head;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all); /* among them SIGXFSZ: a file size limit is an error of write */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&w->thread, NULL, thread_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err) {
        free(w);
        return HILL_E_NOMEM;
    }
    *out = w;
    return 0;
}

void chunk_writer_close(struct chunk_writer *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    while (w->failed.head)
        free_job(remove_head(&w->failed));
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->idle);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void chunk_writer_wake(struct chunk_writer *w, void (*wake)(void *context), void *context)
{
    pthread_mutex_lock(&w->lock);
    w->wake = wake;
    w->wake_context = context;
    pthread_mutex_unlock(&w->lock);
}

static bool fits(const struct chunk_writer *w, uint64_t bytes)
{
    return w->bytes == 0 || (w->bytes <= w->room_bytes && bytes <= w->room_bytes - w->bytes);
}

bool chunk_writer_has_room(struct chunk_writer *w, uint64_t bytes)
{
    pthread_mutex_lock(&w->lock);
    bool room = fits(w, bytes);
    pthread_mutex_unlock(&w->lock);
    return room;
}

static struct chunk_job *copy_of(const struct chunk_job *job, const void *entries)
{
    struct chunk_job *copy = malloc(sizeof *copy);
    if (!copy)
        return NULL;
    *copy = *job;
    copy->entries = job->bytes ? malloc(job->bytes) : NULL;
    if (job->bytes && !copy->entries) {
        free(copy);
        return NULL;
    }
    if (job->bytes)
        memcpy(copy->entries, entries, job->bytes);
    return copy;
}

int chunk_writer_give(struct chunk_writer *w, const struct chunk_job *job, const void *entries)
{
    struct chunk_job *copy = copy_of(job, entries);
    if (!copy)
        return HILL_E_NOMEM;
    pthread_mutex_lock(&w->lock);
    bool taken = job->bytes                    ? fits(w, job->bytes)
                 : job->kind == CHUNK_JOB_NOTE ? w->given - w->done < NOTES_MAX
                                               : true;
    if (taken) {
        append(&w->queue, copy);
        w->bytes += copy->bytes;
        w->given++;
        pthread_cond_signal(&w->work);
    }
    pthread_mutex_unlock(&w->lock);
    if (!taken)
        free_job(copy);
    return taken ? 0 : HILL_E_WOULD_BLOCK;
}

static const struct chunk_job *put_of(const struct jobs *jobs, uint64_t stamp)
{
    const struct chunk_job *job = jobs->head;
    while (job && (job->kind != CHUNK_JOB_PUT || job->chunk.stamp != stamp))
        job = job->next;
    return job;
}

int chunk_writer_find(struct chunk_writer *w, uint64_t stamp, void *entries)
{
    pthread_mutex_lock(&w->lock);
    const struct chunk_job *job = put_of(&w->queue, stamp), *failed = put_of(&w->failed, stamp);
    if (job)
        memcpy(entries, job->entries, job->bytes);
    int rc = job ? 1 : failed ? failed->rc : 0;
    pthread_mutex_unlock(&w->lock);
    return rc;
}

uint64_t chunk_writer_given(struct chunk_writer *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t given = w->given;
    pthread_mutex_unlock(&w->lock);
    return given;
}

uint64_t chunk_writer_done(struct chunk_writer *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t done = w->done;
    pthread_mutex_unlock(&w->lock);
    return done;
}

uint32_t chunk_writer_flush_until(struct chunk_writer *w, int64_t deadline_ns)
{
    const struct timespec end = {deadline_ns / CLOCK_MS(1000), deadline_ns % CLOCK_MS(1000)};
    uint32_t left = 0;
    int err = 0;
    pthread_mutex_lock(&w->lock);
    while (w->queue.head && err != ETIMEDOUT)
        err = pthread_cond_timedwait(&w->idle, &w->lock, &end);
    for (const struct chunk_job *job = w->queue.head; job; job = job->next)
        left += job->kind == CHUNK_JOB_PUT;
    pthread_mutex_unlock(&w->lock);
    return left;
}

bool chunk_writer_take_failed(struct chunk_writer *w, struct chunk_job *out)
{
    pthread_mutex_lock(&w->lock);
    struct chunk_job *job = w->failed.head ? remove_head(&w->failed) : NULL;
    pthread_mutex_unlock(&w->lock);
    if (job)
        *out = *job;
    free(job); /* its entries are gone already */
    return job;
}
