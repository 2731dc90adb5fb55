/*
 * session/session_writer.c - see session_writer.h.
 *
 * Two buffers go round: free, being filled by the caller, full, being written. The writer is shared
 * by two owners, the caller and the thread; whoever leaves last frees it, so that a close never
 * waits for a slow disk. Under the lock: everything but a buffer's bytes and what is the thread's
 * alone.
 */
#include "session/session_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/whole_io.h"

#define BUFFERS     2u
#define SUFFIX      ".saving"
#define FLUSH_EVERY (64u << 20) /* so that the last flush is short */
#define PATH_BYTES  4096u

struct buffer {
    uint8_t *bytes;
    uint32_t used;
    bool full, section_end;
};

struct session_writer {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct buffer buffers[BUFFERS];
    uint32_t filling, writing; /* free-running: index % BUFFERS */
    bool finishing, closed, thread_gone;
    int state; /* of session_writer_state */
    struct hill_why why;
    struct session_header header;
    void (*wake)(void *context);
    void *context;
    /* set before the thread starts */
    char path[PATH_BYTES], part[PATH_BYTES + sizeof SUFFIX];
    uint64_t file_bytes;
    /* the thread's */
    int fd;
    bool created; /* FILE.saving is this writer's */
    uint64_t offset, flushed;
    XXH64_state_t *hash;
};

/* ---- the thread --------------------------------------------------------------------------- */

static int failed(struct session_writer *w, const char *what, int err, struct hill_why *why)
{
    return hill_fail(why, hill_from_errno(err), "saving the session: %s %.300s failed: %s", what,
                     w->path, strerror(err));
}

/* Between open and lock another writer may have renamed the file to FILE, or removed it: then it is
 * not ours to empty. */
static bool still_there(const struct session_writer *w)
{
    struct stat ours, named;
    return fstat(w->fd, &ours) == 0 && stat(w->part, &named) == 0 && ours.st_ino == named.st_ino &&
           ours.st_dev == named.st_dev;
}

/* The rename would replace a pipe, a device or what a link to one stands for. */
static int check_target(const struct session_writer *w, struct hill_why *why)
{
    struct stat there;
    if (stat(w->path, &there) || S_ISREG(there.st_mode))
        return 0;
    return hill_fail(why, HILL_E_INVALID,
                     "no session can be saved in %.300s: it is not a regular file", w->path);
}

static int open_part(struct session_writer *w, struct hill_why *why)
{
    int rc = check_target(w, why);
    if (rc)
        return rc;
    w->fd = open(w->part, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (w->fd < 0)
        return failed(w, "creating", errno, why);
    if (flock(w->fd, LOCK_EX | LOCK_NB) || !still_there(w))
        return hill_fail(why, HILL_E_BUSY, "session %.300s is being saved already", w->path);
    pthread_mutex_lock(&w->lock);
    w->created = true;
    pthread_mutex_unlock(&w->lock);
    if (ftruncate(w->fd, 0))
        return failed(w, "emptying", errno, why);
    int err = posix_fallocate(w->fd, 0, (off_t)w->file_bytes);
    if (err && err != EOPNOTSUPP && err != EINVAL)
        return failed(w, "reserving space for", err, why);
    FAULT_POINT(gpu_worker, session, opened);
    return 0;
}

static int write_all(struct session_writer *w, const void *from, uint64_t bytes, uint64_t offset,
                     struct hill_why *why)
{
    return whole_write(w->fd, from, bytes, offset) ? failed(w, "writing", errno, why) : 0;
}

static int write_buffer(struct session_writer *w, const struct buffer *b, struct hill_why *why)
{
    int rc = write_all(w, b->bytes, b->used, w->offset, why);
    XXH64_update(w->hash, b->bytes, b->used);
    w->offset += b->used;
    FAULT_POINT(gpu_worker, session, written);
    if (!rc && b->section_end) {
        uint64_t checksum = XXH64_digest(w->hash);
        rc = write_all(w, &checksum, sizeof checksum, w->offset, why);
        w->offset += sizeof checksum;
        XXH64_reset(w->hash, 0);
    }
    if (!rc && w->offset - w->flushed >= FLUSH_EVERY) {
        rc = fdatasync(w->fd) ? failed(w, "flushing", errno, why) : 0;
        w->flushed = w->offset;
    }
    return rc;
}

/* The rename is then there after a power cut, too. */
static int flush_folder(const struct session_writer *w, struct hill_why *why)
{
    int rc = whole_flush_folder(w->path);
    return rc ? hill_fail(why, rc,
                          "session %.300s is saved, but its folder could not be flushed: %s: after "
                          "a power cut the file may be as it was before",
                          w->path, strerror(errno))
              : 0;
}

static int finish_file(struct session_writer *w, struct hill_why *why)
{
    if (w->offset != w->file_bytes || w->header.file_bytes != w->file_bytes)
        return hill_fail(why, HILL_E_INVALID,
                         "saving the session: %llu bytes were given for %.300s, %llu expected",
                         (unsigned long long)w->offset, w->path, (unsigned long long)w->file_bytes);
    int rc = write_all(w, &w->header, sizeof w->header, 0, why);
    if (!rc && fsync(w->fd))
        rc = failed(w, "flushing", errno, why);
    FAULT_POINT(gpu_worker, session, sealed);
    pthread_mutex_lock(&w->lock); /* a close has removed it, or finds it renamed */
    if (!rc && w->closed)
        rc = HILL_E_CANCELLED;
    if (!rc && rename(w->part, w->path))
        rc = failed(w, "renaming to", errno, why);
    if (!rc)
        w->created = false;
    pthread_mutex_unlock(&w->lock);
    FAULT_POINT(gpu_worker, session, renamed);
    if (!rc)
        rc = flush_folder(w, why);
    return rc;
}

/* The next full buffer, or NULL when all were given and the header is there. closed:
 * HILL_E_CANCELLED. */
static int next_buffer(struct session_writer *w, struct buffer **out)
{
    pthread_mutex_lock(&w->lock);
    struct buffer *b = &w->buffers[w->writing % BUFFERS];
    while (!w->closed && !b->full && !w->finishing)
        pthread_cond_wait(&w->work, &w->lock);
    *out = b->full ? b : NULL;
    int rc = w->closed ? HILL_E_CANCELLED : 0;
    pthread_mutex_unlock(&w->lock);
    return rc;
}

static void wake_caller(struct session_writer *w)
{
    if (!w->closed && w->wake)
        w->wake(w->context);
}

static void free_buffer(struct session_writer *w, struct buffer *b)
{
    pthread_mutex_lock(&w->lock);
    b->full = false;
    w->writing++;
    wake_caller(w);
    pthread_mutex_unlock(&w->lock);
}

static int write_file(struct session_writer *w, struct hill_why *why)
{
    int rc = open_part(w, why);
    w->offset = sizeof w->header;
    while (!rc) {
        struct buffer *b;
        rc = next_buffer(w, &b);
        if (!rc && !b)
            return finish_file(w, why);
        if (!rc)
            rc = write_buffer(w, b, why);
        if (!rc)
            free_buffer(w, b);
    }
    return rc;
}

static void destroy(struct session_writer *w)
{
    for (uint32_t i = 0; i < BUFFERS; i++)
        free(w->buffers[i].bytes);
    XXH64_freeState(w->hash);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* With the lock held: also when it is the caller's close that does it, for the thread may be in a
 * long flush. */
static void remove_part(struct session_writer *w)
{
    if (w->created)
        unlink(w->part);
    w->created = false;
}

static void *thread_main(void *argument)
{
    struct session_writer *w = argument;
    struct hill_why why = {""};
    int rc = write_file(w, &why);
    pthread_mutex_lock(&w->lock);
    if (rc)
        remove_part(w);
    if (w->fd >= 0)
        close(w->fd);
    w->state = rc;
    w->why = why;
    w->thread_gone = true;
    wake_caller(w);
    bool last = w->closed;
    pthread_mutex_unlock(&w->lock);
    if (last)
        destroy(w);
    return NULL;
}

/* ---- the caller --------------------------------------------------------------------------- */

static int start_thread(struct session_writer *w)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes))
        return HILL_E_NOMEM;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* among them SIGXFSZ: a file size limit is an error of write */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&thread, &attributes, thread_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return err ? HILL_E_NOMEM : 0;
}

int session_writer_open(struct session_writer **out, const char *path, uint64_t file_bytes,
                        void (*wake)(void *context), void *context, struct hill_why *why)
{
    *out = NULL;
    if (!*path || strlen(path) >= PATH_BYTES)
        return hill_fail(why, HILL_E_INVALID, "a session's path of %zu bytes cannot be used",
                         strlen(path));
    struct session_writer *w = calloc(1, sizeof *w);
    if (!w)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for saving %.300s", path);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    w->fd = -1;
    w->state = 1;
    w->file_bytes = file_bytes;
    w->wake = wake;
    w->context = context;
    snprintf(w->path, sizeof w->path, "%s", path);
    snprintf(w->part, sizeof w->part, "%s" SUFFIX, path);
    w->hash = XXH64_createState();
    int rc = w->hash ? 0 : HILL_E_NOMEM;
    for (uint32_t i = 0; i < BUFFERS && !rc; i++)
        if (!(w->buffers[i].bytes = malloc(SESSION_BUFFER_BYTES)))
            rc = HILL_E_NOMEM;
    if (!rc) {
        XXH64_reset(w->hash, 0);
        rc = start_thread(w);
    }
    if (rc) {
        destroy(w);
        return hill_fail(why, rc, "out of memory for saving %.300s", path);
    }
    *out = w;
    return 0;
}

void *session_writer_room(struct session_writer *w)
{
    pthread_mutex_lock(&w->lock);
    struct buffer *b = &w->buffers[w->filling % BUFFERS];
    void *room = b->full || w->finishing || w->state != 1 ? NULL : b->bytes;
    pthread_mutex_unlock(&w->lock);
    return room;
}

void session_writer_give(struct session_writer *w, uint32_t bytes, bool section_end)
{
    pthread_mutex_lock(&w->lock);
    struct buffer *b = &w->buffers[w->filling++ % BUFFERS];
    b->used = bytes;
    b->section_end = section_end;
    b->full = true;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
}

void session_writer_finish(struct session_writer *w, const struct session_header *header)
{
    pthread_mutex_lock(&w->lock);
    w->header = *header;
    w->finishing = true;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
}

int session_writer_state(struct session_writer *w, struct hill_why *why)
{
    pthread_mutex_lock(&w->lock);
    int state = w->thread_gone ? w->state : 1;
    if (state < 0)
        *why = w->why;
    pthread_mutex_unlock(&w->lock);
    return state;
}

void session_writer_close(struct session_writer *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->closed = true;
    remove_part(w);
    bool last = w->thread_gone;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    if (last)
        destroy(w);
}

void session_writer_clear(const char *path)
{
    char part[PATH_BYTES + sizeof SUFFIX];
    struct stat ours, named;
    if (strlen(path) >= PATH_BYTES)
        return;
    snprintf(part, sizeof part, "%s" SUFFIX, path);
    int fd = open(part, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    /* the lock is as in open_part: whoever has it may remove the file */
    if (fstat(fd, &ours) == 0 && S_ISREG(ours.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        stat(part, &named) == 0 && ours.st_ino == named.st_ino && ours.st_dev == named.st_dev)
        unlink(part);
    close(fd);
}
