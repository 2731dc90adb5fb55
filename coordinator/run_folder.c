/* coordinator/run_folder.c - see run_folder.h. */
#include "coordinator/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/private_folder.h"
#include "base/process.h"
#include "coordinator/drives_record.h"
#include "proto/party.h"
#include "shm/segment.h"

static const char *const socket_names[] = {"worker.sock", "heartbeat.sock", "control.sock"};

static void name_in(char out[HILL_PATH_BYTES + 32], const struct run_folder *folder,
                    const char *name)
{
    snprintf(out, HILL_PATH_BYTES + 32, "%s/%s", folder->path, name);
}

static int make_folder(const char *path, struct hill_why *why)
{
    if (mkdir(path, 0700) && errno != EEXIST)
        return hill_fail(why, hill_from_errno(errno), "cannot make run folder %.200s: %s", path,
                         strerror(errno));
    return private_folder_check(path, "run folder", why);
}

/* A pipeline that ends removes the lock file: one that was opened before and locked after that
 * is nobody's, so look whether the name still leads to it. */
static int take_lock(struct run_folder *folder, struct hill_why *why)
{
    char name[HILL_PATH_BYTES + 32], text[32];
    struct stat ours, named;
    name_in(name, folder, "lock");
    for (int attempt = 0; attempt < 10; attempt++) {
        int code = attempt ? make_folder(folder->path, why) : 0;
        if (code)
            return code;
        int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            return hill_fail(why, hill_from_errno(errno), "cannot open %.200s: %s", name,
                             strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB)) {
            close(fd);
            return hill_fail(
                why, HILL_E_BUSY,
                "another pipeline runs in run folder %.200s: hillinfer status shows it, "
                "hillinfer down ends it, another --run-dir and --state-dir (or --csd none) start "
                "one beside it",
                folder->path);
        }
        if (fstat(fd, &ours) == 0 && stat(name, &named) == 0 && ours.st_ino == named.st_ino) {
            int length = snprintf(text, sizeof text, "%d\n", (int)getpid());
            if (ftruncate(fd, 0) || write(fd, text, (size_t)length) != length)
                log_warn("writing the pid into %s failed: %s; the lock holds all the same", name,
                         strerror(errno));
            folder->lock_fd = fd;
            return 0;
        }
        close(fd);
    }
    return hill_fail(why, HILL_E_BUSY, "run folder %.200s comes and goes while it is being locked",
                     folder->path);
}

/* A worker of a killed coordinator gets SIGTERM from the kernel; one that hangs is ended here. */
static bool end_process(int32_t pid, uint64_t start, const char *name)
{
    if (!process_alive(pid, start))
        return true;
    log_warn("%s (pid %d) was left by a pipeline that was killed: ending it", name, (int)pid);
    bool ended = process_kill(pid, start, 5000);
    if (!ended)
        log_warn("%s (pid %d) does not end; going on", name, (int)pid);
    return ended;
}

/* False: one may live on, and write into what it has mapped. */
static bool end_leftover_workers(const struct run_folder *folder)
{
    bool ended = true;
    char name[HILL_PATH_BYTES + 32], line[128], worker[32];
    name_in(name, folder, "pids");
    FILE *file = fopen(name, "re");
    if (!file)
        return errno == ENOENT;
    while (fgets(line, sizeof line, file)) {
        int32_t pid;
        uint64_t start;
        if (sscanf(line, "%" SCNd32 " %" SCNu64 " %31s", &pid, &start, worker) == 3 && pid > 1 &&
            start)
            ended &= end_process(pid, start, worker);
    }
    ended &= !ferror(file);
    fclose(file);
    return ended;
}

static void remove_files(const struct run_folder *folder)
{
    char name[HILL_PATH_BYTES + 32];
    for (unsigned i = 0; i < sizeof socket_names / sizeof socket_names[0]; i++) {
        name_in(name, folder, socket_names[i]);
        unlink(name);
    }
    name_in(name, folder, "pids");
    unlink(name);
    name_in(name, folder, "pids.new");
    unlink(name);
}

/* All segments but those that the record names, if nobody can be using them. */
static void reap_segments(struct run_folder *folder, bool workers_ended)
{
    if (workers_ended)
        tiers_record_read(folder->path, folder->run_id, &folder->left);
    if (folder->left.tiers_epoch)
        epoch_unlink_data(folder->run_id, folder->left.tiers_epoch);
    int reaped = shm_segment_reap(folder->run_id, folder->left.tiers_epoch);
    if (reaped > 0)
        log_info("removed %d shared-memory segments that a killed pipeline left", reaped);
    else if (reaped < 0)
        log_warn("removing old shared-memory segments failed: %s; going on", hill_strerror(reaped));
}

void run_folder_forget_left(struct run_folder *folder, bool unlink_segments)
{
    if (folder->left.tiers_epoch && unlink_segments)
        epoch_unlink(folder->run_id, folder->left.tiers_epoch);
    folder->left = (struct tiers_record){0};
}

int run_folder_open(struct run_folder *folder, const char *path, struct hill_why *why)
{
    char real[PATH_MAX];
    *folder = (struct run_folder){.lock_fd = -1};
    snprintf(folder->path, sizeof folder->path, "%s", path);
    int code = make_folder(path, why);
    if (!code)
        code = take_lock(folder, why);
    if (code)
        return code;
    if (!realpath(path, real)) {
        code = hill_fail(why, hill_from_errno(errno), "cannot resolve run folder %.200s: %s", path,
                         strerror(errno));
        run_folder_close(folder);
        return code;
    }
    folder->run_id = XXH64(real, strlen(real), 0);
    reap_segments(folder, end_leftover_workers(folder));
    remove_files(folder);
    return 0;
}

int run_folder_write_pids(const struct run_folder *folder, const struct worker_table *table)
{
    char name[HILL_PATH_BYTES + 32], fresh[HILL_PATH_BYTES + 32];
    name_in(name, folder, "pids");
    name_in(fresh, folder, "pids.new");
    FILE *file = fopen(fresh, "we");
    if (!file)
        return hill_from_errno(errno);
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (worker_running(&table->rows[w]))
            fprintf(file, "%d %" PRIu64 " %s\n", (int)table->rows[w].pid, table->rows[w].start_time,
                    table->rows[w].name);
    bool failed = ferror(file);
    if (fclose(file) || failed || rename(fresh, name))
        return hill_from_errno(errno ? errno : EIO);
    return 0;
}

void run_folder_note_progress(const struct run_folder *folder)
{
    static const char text[] = "progress\n";
    if (write(folder->lock_fd, text, sizeof text - 1) < 0)
        log_warn("writing into %s/lock failed: %s; a restart of this process may wait longer",
                 folder->path, strerror(errno));
}

void run_folder_close(struct run_folder *folder)
{
    if (folder->lock_fd < 0)
        return;
    char name[HILL_PATH_BYTES + 32];
    run_folder_forget_left(folder, true);
    remove_files(folder);
    tiers_record_remove(folder->path);
    drives_record_remove(folder->path);
    name_in(name, folder, "lock");
    unlink(name);
    rmdir(folder->path); /* fails when something foreign is in it: then it stays */
    close(folder->lock_fd);
    folder->lock_fd = -1;
}
