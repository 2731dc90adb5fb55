/*
 * hillctl/chat_lines.h - lines that a person types, or that a script has prepared.
 *
 * What: on a terminal line editing with a history of this run (libedit); else plain lines, no
 * prompt. SIGINT and SIGTERM are answers of their own. Lines are UTF-8 where the locale is; a
 * locale of ASCII alone counts as UTF-8. Who calls it: chat.c, with SIGINT and SIGTERM blocked and
 * readable from a signalfd (proto/client.h). Failure: HILL_E_NOMEM, HILL_E_IO. Concurrency: one
 * thread.
 */
#pragma once

#include <stdbool.h>

#include <histedit.h>

#include "base/error.h"

enum chat_line {
    CHAT_LINE,
    CHAT_LINE_END,        /* no more: end of file, Ctrl-D */
    CHAT_LINE_INTERRUPT,  /* Ctrl-C: the line is dropped */
    CHAT_LINE_TERMINATED, /* SIGTERM */
};

struct chat_lines {
    bool terminal;
    int signal_fd;
    EditLine *editor;
    History *history;
    const char *prompt;
    enum chat_line event; /* why the editor got no key; CHAT_LINE: it got one */
    char *plain;          /* of a terminal the last line; else what was read of stdin */
    size_t plain_room, plain_next, plain_end; /* the next line begins there; it ends there so far */
    bool plain_over;                          /* no more comes */
};

int chat_lines_open(struct chat_lines *lines, int signal_fd, struct hill_why *why);
void chat_lines_close(struct chat_lines *lines);

/* A line without its newline; a plain one has no CR before it. *out stays until the next call. */
enum chat_line chat_lines_read(struct chat_lines *lines, const char *prompt, char **out);
/* What arrow-up brings back. */
void chat_lines_remember(struct chat_lines *lines, const char *text);
