/* base/whole_io.c - see whole_io.h. */
#include "base/whole_io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

int64_t whole_read(int fd, void *to, uint64_t bytes, uint64_t at)
{
    uint64_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)to + done, bytes - done, (off_t)(at + done));
        if (n == 0)
            break;
        if (n < 0 && errno != EINTR)
            return hill_from_errno(errno);
        done += n > 0 ? (uint64_t)n : 0;
    }
    return (int64_t)done;
}

int whole_write(int fd, const void *from, uint64_t bytes, uint64_t at)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)from + done, bytes - done, (off_t)(at + done));
        if (n == 0)
            errno = ENOSPC;
        if (n == 0 || (n < 0 && errno != EINTR))
            return hill_from_errno(errno);
        done += n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

int whole_flush_folder(const char *name)
{
    char folder[PATH_MAX + 256];
    if ((size_t)snprintf(folder, sizeof folder, "%s", name) >= sizeof folder)
        return hill_from_errno(errno = ENAMETOOLONG);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? 0 : hill_from_errno(errno);
    int err = fsync(fd) ? errno : 0;
    close(fd);
    errno = err;
    return err && err != EINVAL && err != EOPNOTSUPP ? hill_from_errno(err) : 0;
}

static void name_beside(char out[PATH_MAX], const char *name)
{
    snprintf(out, PATH_MAX, "%.*s.new", PATH_MAX - 5, name);
}

/* 0, or an errno. */
static int fill(const char *path, int (*write)(FILE *file, const void *context),
                const void *context)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    int err = file ? write(file, context) : errno;
    if (!file && fd >= 0)
        close(fd);
    if (file && fclose(file) && !err)
        err = errno;
    return err;
}

int whole_replace(const char *name, int (*write)(FILE *file, const void *context),
                  const void *context, struct hill_why *why)
{
    char fresh[PATH_MAX];
    name_beside(fresh, name);
    int err = fill(fresh, write, context);
    if (!err && rename(fresh, name))
        err = errno;
    if (!err)
        return 0;
    whole_remove(name);
    return hill_fail(why, hill_from_errno(err), "writing %.200s failed: %s", name, strerror(err));
}

void whole_remove(const char *name)
{
    char fresh[PATH_MAX];
    name_beside(fresh, name);
    unlink(name);
    unlink(fresh);
}
