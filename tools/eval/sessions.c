/* tools/eval/sessions.c - see sessions.h. */
#include "tools/eval/sessions.h"

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session/session.h"

#define NAME_ROOM 80 /* of a file in the folder */

int sessions_open(struct sessions *s, const char *kept, const char *results, uint64_t cap_mb,
                  struct hill_why *why)
{
    char folder[HILL_PATH_BYTES];
    *s = (struct sessions){.keep = kept != NULL, .cap_bytes = cap_mb << 20};
    if (!kept && !cap_mb)
        return 0;
    snprintf(folder, sizeof folder, "%s%s", kept ? kept : results, kept ? "" : ".sessions");
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return hill_fail(why, hill_from_errno(errno), "making the folder %s failed: %s", folder,
                         strerror(errno));
    char *whole = realpath(folder, NULL);
    int used = whole ? snprintf(s->folder, sizeof s->folder, "%s", whole) : -1;
    free(whole);
    if (used > 0 && used < (int)sizeof s->folder - NAME_ROOM)
        return 0;
    s->folder[0] = '\0';
    return used < 0 ? hill_fail(why, hill_from_errno(errno), "finding %s failed: %s", folder,
                                strerror(errno))
                    : hill_fail(why, HILL_E_INVALID, "the path of %s is too long", folder);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path) != 0 && errno != ENOENT;
}

void sessions_close(struct sessions *s, bool finished)
{
    if (s->folder[0] && !s->keep && finished)
        nftw(s->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    else if (s->folder[0])
        rmdir(s->folder); /* if nothing is in it */
    s->folder[0] = '\0';
}

void sessions_path(const struct sessions *s, const struct subject *subject,
                   const struct prompt *prompt, char out[HILL_PATH_BYTES])
{
    snprintf(out, HILL_PATH_BYTES, "%.*s/%016" PRIx64 "-%016" PRIx64 "%s",
             HILL_PATH_BYTES - NAME_ROOM, s->folder, subject->fingerprint,
             prompt->item->prompt_hash, prompt->masses ? "-h2o" : "");
}

uint64_t sessions_bytes(const struct subject *subject, const struct prompt *prompt)
{
    return subject->entry_bytes * item_prompt_tokens(prompt->item);
}

/* Is it the session of this prompt, with one token more? */
static bool holds(const char *path, const struct prompt *prompt)
{
    struct session_file file;
    uint32_t *tokens = NULL, n = item_prompt_tokens(prompt->item);
    bool yes = session_open(&file, path, NULL) == 0 && file.header.step == 0 &&
               file.header.n_tokens == n + 1 &&
               session_has_masses(&file.header.terms) == prompt->masses &&
               (tokens = malloc((n + 1ull) * sizeof *tokens)) &&
               session_read_tokens(&file, tokens, NULL) == 0 &&
               memcmp(tokens, prompt->item->tokens, n * sizeof *tokens) == 0;
    free(tokens);
    session_close(&file);
    return yes;
}

void sessions_look_up(const struct sessions *s, const struct subject *subject,
                      struct prompt *prompt)
{
    char path[HILL_PATH_BYTES];
    if (!s->folder[0]) {
        prompt->state = PROMPT_DIRECT;
        return;
    }
    sessions_path(s, subject, prompt, path);
    bool once = prompt->n_jobs > 1 || s->keep;
    prompt->state = holds(path, prompt) ? PROMPT_READ : once ? PROMPT_UNREAD : PROMPT_DIRECT;
}

void sessions_answered(const struct sessions *s, const struct subject *subject,
                       struct prompt *prompt)
{
    char path[HILL_PATH_BYTES];
    if (--prompt->n_jobs > 0 || s->keep || prompt->state != PROMPT_READ)
        return;
    sessions_path(s, subject, prompt, path);
    unlink(path);
}
