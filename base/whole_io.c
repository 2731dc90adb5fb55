/* base/whole_io.c - see whole_io.h. */
#include "base/whole_io.h"

#include <errno.h>
#include <unistd.h>

#include "base/error.h"

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
