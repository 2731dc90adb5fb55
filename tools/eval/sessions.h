/*
 * tools/eval/sessions.h - prompts that have been read: a folder of sessions (session/session.h).
 *
 * What: a prompt that several requests share (settings, choices of one question) is read once,
 * saved after its first token and restored for each of them, in whatever pipeline: before the first
 * decode step a session goes on under any selection and policy. h2o is the exception: it goes on
 * only where its sums of attention were saved, and has sessions of its own: most prompts are read
 * first under another policy. A file's name is a hash of model and tokens, and its
 * tokens are looked at before it is used. Who calls it: work.c, asker.c. Failure: HILL_E_NOMEM,
 * HILL_E_INVALID, what errno says; a prompt whose session cannot be saved or is none of its own is
 * read for each request instead. Concurrency: one thread, one run (the results file's lock).
 */
#pragma once

#include "tools/eval/items.h"

#define SESSIONS_MB_DEFAULT "8192"

struct sessions {
    char folder[HILL_PATH_BYTES]; /* absolute; "": every request reads its prompt */
    bool keep;                    /* a person named the folder: nothing in it is removed */
    uint64_t cap_bytes;           /* not kept: of the prompts that lie there at a time */
};

enum prompt_state {
    PROMPT_UNREAD,
    PROMPT_READING,
    PROMPT_READ,   /* its session is there */
    PROMPT_DIRECT, /* each request reads it */
};

/* A prompt that requests share. */
struct prompt {
    const struct item *item; /* one that has it */
    bool masses;             /* with h2o's sums of attention */
    enum prompt_state state;
    uint32_t n_jobs; /* that are not answered yet */
};

/* kept: the folder that a person named, or NULL for one beside the results file, which is removed
 * at the end. cap_mb 0 and no kept one: none. */
int sessions_open(struct sessions *sessions, const char *kept, const char *results, uint64_t cap_mb,
                  struct hill_why *why);
/* finished: nothing of it is wanted any more. */
void sessions_close(struct sessions *sessions, bool finished);

void sessions_path(const struct sessions *sessions, const struct subject *subject,
                   const struct prompt *prompt, char out[HILL_PATH_BYTES]);
/* About what its file takes. */
uint64_t sessions_bytes(const struct subject *subject, const struct prompt *prompt);

/* PROMPT_READ where its session lies in the folder already; else PROMPT_UNREAD, or PROMPT_DIRECT
 * where reading it once saves nothing. */
void sessions_look_up(const struct sessions *sessions, const struct subject *subject,
                      struct prompt *prompt);
/* One of its requests is answered: removed after the last, unless kept. */
void sessions_answered(const struct sessions *sessions, const struct subject *subject,
                       struct prompt *prompt);
