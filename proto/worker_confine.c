/* proto/worker_confine.c - see worker_confine.h. */
#include "proto/worker_confine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDERS_MAX 8

/* The lines of HILL_MAY_WRITE, in place. */
static unsigned split(char *lines, const char **out, unsigned room)
{
    unsigned n = 0;
    for (char *line = strtok(lines, "\n"); line && n < room; line = strtok(NULL, "\n"))
        out[n++] = line;
    return n;
}

static void confine_scorer(char text[HARDEN_TEXT_BYTES])
{
    static const char *const reads[] = {"/proc",  "/sys",         "/etc",        "/usr", "/lib",
                                        "/lib64", "/dev/urandom", "/dev/random", NULL};
    const char *writes[FOLDERS_MAX + 3] = {"/dev/shm", "/dev/null"},
                                     *named = getenv("HILL_MAY_WRITE");
    char *lines = named ? strdup(named) : NULL;
    if (lines)
        split(lines, writes + 2, FOLDERS_MAX);
    const struct harden_needs needs = {.reads = reads, .writes = writes};
    harden_confine(&needs, text);
    free(lines);
}

void worker_confine(Hill__Role role, char text[HARDEN_TEXT_BYTES])
{
    const char *remote = getenv("HILL_MAY_CONNECT");
    const struct harden_needs driver = {.programs = true,
                                        .files = true,
                                        .connects = role == HILL__ROLE__ROLE_CSD_AGENT && remote &&
                                                    *remote};
    if (role == HILL__ROLE__ROLE_CPU_SCORER)
        confine_scorer(text);
    else
        harden_confine(&driver, text);
}
