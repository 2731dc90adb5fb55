/*
 * hillctl/chat_lines.c - see chat_lines.h.
 */
#include "hillctl/chat_lines.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES 1000

/* Wait for stdin or a signal; CHAT_LINE: there is something to read. */
static enum chat_line wait_input(int signal_fd)
{
    for (;;) {
        struct pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {signal_fd, POLLIN, 0}};
        struct signalfd_siginfo info;
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return CHAT_LINE_END;
        if (fds[1].revents && read(signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
            return info.ssi_signo == SIGINT ? CHAT_LINE_INTERRUPT : CHAT_LINE_TERMINATED;
        if (fds[0].revents)
            return CHAT_LINE;
    }
}

/* The editor's next character: 1, or 0 for an end, of which lines->event tells. */
static int next_key(EditLine *editor, wchar_t *out)
{
    struct chat_lines *lines = NULL;
    mbstate_t state = {0};
    el_get(editor, EL_CLIENTDATA, &lines);
    for (;;) {
        char byte;
        lines->event = wait_input(lines->signal_fd);
        if (lines->event != CHAT_LINE)
            return 0;
        if (read(STDIN_FILENO, &byte, 1) != 1) {
            lines->event = CHAT_LINE_END;
            return 0;
        }
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-2)
            continue; /* more bytes of it to come */
        if (used == (size_t)-1) {
            state = (mbstate_t){0};
            continue; /* no character: not typed */
        }
        return 1;
    }
}

static char *show_prompt(EditLine *editor)
{
    struct chat_lines *lines = NULL;
    el_get(editor, EL_CLIENTDATA, &lines);
    return (char *)lines->prompt;
}

static void use_utf8(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

int chat_lines_open(struct chat_lines *lines, int signal_fd, struct hill_why *why)
{
    HistEvent event;
    FILE *shown = isatty(STDOUT_FILENO) ? stdout : stderr;
    *lines = (struct chat_lines){.signal_fd = signal_fd, .prompt = ""};
    lines->terminal = isatty(STDIN_FILENO) && isatty(fileno(shown));
    if (!lines->terminal)
        return 0;
    use_utf8();
    lines->editor = el_init("hillctl", stdin, shown, stderr);
    lines->history = history_init();
    if (!lines->editor || !lines->history) {
        chat_lines_close(lines);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the line editor");
    }
    history(lines->history, &event, H_SETSIZE, HISTORY_LINES);
    el_set(lines->editor, EL_CLIENTDATA, lines);
    el_set(lines->editor, EL_EDITOR, "emacs");
    el_set(lines->editor, EL_SIGNAL, 0);
    el_set(lines->editor, EL_HIST, history, lines->history);
    el_set(lines->editor, EL_PROMPT, show_prompt);
    el_set(lines->editor, EL_GETCFN, next_key);
    el_set(lines->editor, EL_BIND, "^I", "ed-insert", NULL); /* a tab is text */
    el_source(lines->editor, NULL);                          /* ~/.editrc */
    return 0;
}

void chat_lines_close(struct chat_lines *lines)
{
    if (lines->history)
        history_end(lines->history);
    if (lines->editor)
        el_end(lines->editor);
    free(lines->plain);
    *lines = (struct chat_lines){0};
}

/* More of stdin, behind what is there of a line. */
static enum chat_line read_more(struct chat_lines *lines)
{
    enum chat_line event = wait_input(lines->signal_fd);
    if (event != CHAT_LINE)
        return event;
    if (lines->plain_next) {
        lines->plain_end -= lines->plain_next;
        memmove(lines->plain, lines->plain + lines->plain_next, lines->plain_end);
        lines->plain_next = 0;
    }
    if (lines->plain_room - lines->plain_end < 2) { /* a byte, and one behind a last line */
        size_t room = lines->plain_room ? 2 * lines->plain_room : 4096;
        char *larger = realloc(lines->plain, room);
        if (!larger)
            return CHAT_LINE_END;
        lines->plain = larger;
        lines->plain_room = room;
    }
    ssize_t n = read(STDIN_FILENO, lines->plain + lines->plain_end,
                     lines->plain_room - lines->plain_end - 1);
    lines->plain_over = n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
    lines->plain_end += n > 0 ? (size_t)n : 0;
    return CHAT_LINE;
}

/* Of a file or a pipe. A signal comes through while its writer says nothing. */
static enum chat_line read_plain(struct chat_lines *lines, char **out)
{
    for (;;) {
        size_t n = lines->plain_end - lines->plain_next;
        char *line = n ? lines->plain + lines->plain_next : NULL;
        char *end = n ? memchr(line, '\n', n) : NULL;
        if (!end && n && lines->plain_over)
            end = line + n; /* there is room for it */
        if (end) {
            *end = '\0';
            if (end > line && end[-1] == '\r')
                end[-1] = '\0';
            lines->plain_next = (size_t)(end - lines->plain) + (end < line + n);
            *out = line;
            return CHAT_LINE;
        }
        enum chat_line event = lines->plain_over ? CHAT_LINE_END : read_more(lines);
        if (event != CHAT_LINE)
            return event;
    }
}

enum chat_line chat_lines_read(struct chat_lines *lines, const char *prompt, char **out)
{
    int count = 0;
    if (!lines->terminal)
        return read_plain(lines, out);
    lines->prompt = prompt;
    lines->event = CHAT_LINE;
    const char *line = el_gets(lines->editor, &count);
    if (!line || count <= 0) {
        el_reset(lines->editor);
        return lines->event == CHAT_LINE ? CHAT_LINE_END : lines->event;
    }
    free(lines->plain);
    lines->plain = strndup(line, (size_t)count - (line[count - 1] == '\n'));
    *out = lines->plain;
    return *out ? CHAT_LINE : CHAT_LINE_END;
}

void chat_lines_remember(struct chat_lines *lines, const char *text)
{
    HistEvent event;
    if (lines->history)
        history(lines->history, &event, H_ENTER, text);
}
