/* base/process.c - see process.h. */
#include "base/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads state and start time; false when the process is gone. The command name (field 2) may hold
 * spaces and brackets, so fields are counted from the last ')'. */
static bool read_stat(int32_t pid, char *state, uint64_t *start)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return false;
    text[got] = '\0';
    char *cursor = strrchr(text, ')');
    if (!cursor || cursor[1] != ' ')
        return false;
    *state = cursor[2];
    for (int field = 2; field < 22; field++) {
        cursor = strchr(cursor + 1, ' ');
        if (!cursor)
            return false;
    }
    *start = strtoull(cursor + 1, NULL, 10);
    return true;
}

uint64_t process_start_time(int32_t pid)
{
    char state;
    uint64_t start;
    return read_stat(pid, &state, &start) ? start : 0;
}

bool process_alive(int32_t pid, uint64_t start_time)
{
    char state;
    uint64_t start;
    return read_stat(pid, &state, &start) && start == start_time && state != 'Z' && state != 'X';
}
