/* hillctl/prompt_file.c - see prompt_file.h. */
#include "hillctl/prompt_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/options.h"

#define MARK "\xef\xbb\xbf" /* a byte order mark */

int prompt_file_read(char **text, size_t *bytes, const char *path, struct hill_why *why)
{
    size_t room = 1u << 16, mark = strlen(MARK);
    ssize_t got = 0;
    bool full = false;
    *text = NULL;
    *bytes = 0;
    int fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hill_fail(why, options_from_errno(errno), "reading the prompt from %s failed: %s",
                         path, strerror(errno));
    *text = malloc(room);
    while (*text && (got = read(fd, *text + *bytes, room - *bytes)) > 0) {
        *bytes += (size_t)got;
        if (*bytes > PROMPT_FILE_MAX)
            break;
        if (*bytes == room) {
            char *larger = realloc(*text, room *= 2);
            full = !larger;
            if (full)
                break;
            *text = larger;
        }
    }
    int err = errno;
    close(fd);
    if (!*text || full)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the prompt of %s", path);
    if (got < 0)
        return hill_fail(why, options_from_errno(err), "reading the prompt from %s failed: %s",
                         path, strerror(err));
    if (*bytes > PROMPT_FILE_MAX)
        return hill_fail(why, HILL_E_TOO_LONG, "the prompt in %s is longer than %u bytes", path,
                         PROMPT_FILE_MAX);
    if (*bytes >= mark && memcmp(*text, MARK, mark) == 0)
        memmove(*text, *text + mark, *bytes -= mark);
    return 0;
}

bool prompt_file_is_stream(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode) &&
           access(path, R_OK) == 0;
}
