/*
 * chat/chat_helper.c - see chat_helper.h.
 */
#include "chat/chat_helper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/harden.h"

#define HELPER     "chat-template-helper.py"
#define PYTHON     "/usr/bin/python3" /* Debian's, whose packages are Debian's */
#define FOLDERS_UP 5                  /* build/asan/tests/chat is the deepest */

static const char *const role_names[] = {"system", "user", "assistant", "tool"};

/* ---- the process ------------------------------------------------------------------------- */

/* In share/hillinfer beside the programs' folder (installed), or in scripts/ of the source tree. */
static int find_helper(char out[4096], struct hill_why *why)
{
    static const char *const places[] = {"/scripts/", "/share/hillinfer/"};
    char folder[3800];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[length > 0 ? length : 0] = '\0';
    for (unsigned up = 0; up < FOLDERS_UP; up++) {
        char *slash = strrchr(folder, '/');
        if (!slash)
            break;
        *slash = '\0';
        for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
            snprintf(out, 4096, "%s%s" HELPER, folder, places[i]);
            if (access(out, R_OK) == 0)
                return 0;
        }
    }
    return hill_fail(why, HILL_E_UNSUPPORTED,
                     "the model's chat template is none that is built in, and " HELPER
                     " is not where the program looks for it (share/hillinfer)");
}

static void limit(int what, rlim_t soft, rlim_t hard)
{
    const struct rlimit both = {soft, hard};
    setrlimit(what, &both);
}

/* In the child: give up what can be given up, and become the helper. */
static void become_helper(int stdin_fd, int stdout_fd, const char *path)
{
    char *const arguments[] = {(char *)PYTHON, (char *)"-I", (char *)"-B", (char *)path, NULL};
    char zone[256];
    char *environment[] = {(char *)"LC_ALL=C.UTF-8", NULL, NULL};
    const char *tz = getenv("TZ"); /* of templates that tell the date */
    sigset_t none;
    sigemptyset(&none);
    if (tz && snprintf(zone, sizeof zone, "TZ=%s", tz) < (int)sizeof zone)
        environment[1] = zone;
    setpgid(0, 0); /* a terminal's Ctrl-C is not for the helper */
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    /* where users may: no network, nothing of other processes */
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) != 0)
        unshare(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS);
    limit(RLIMIT_CPU, CHAT_HELPER_CPU_S, CHAT_HELPER_CPU_S + 1);
    limit(RLIMIT_AS, (rlim_t)CHAT_HELPER_MEM_MIB << 20, (rlim_t)CHAT_HELPER_MEM_MIB << 20);
    limit(RLIMIT_FSIZE, 0, 0);
    limit(RLIMIT_CORE, HARDEN_CORE, HARDEN_CORE);
    limit(RLIMIT_NOFILE, 64, 64);
    if (dup2(stdin_fd, 0) < 0 || dup2(stdout_fd, 1) < 0)
        _exit(126);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, 2) < 0 || close_range(3, ~0u, 0) != 0)
        _exit(126);
    execve(PYTHON, arguments, environment);
    _exit(errno == ENOENT ? 127 : 126);
}

struct helper {
    pid_t pid;
    int to, from;
};

static int start(struct helper *h, struct hill_why *why)
{
    char path[4096];
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    int code = find_helper(path, why);
    if (code)
        return code;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) || pipe2(out, O_CLOEXEC) ||
        (h->pid = fork()) < 0) {
        code = hill_fail(why, hill_from_errno(errno), "starting the helper for chat templates: %s",
                         strerror(errno));
        for (unsigned i = 0; i < 2; i++) {
            if (in[i] >= 0)
                close(in[i]);
            if (out[i] >= 0)
                close(out[i]);
        }
        return code;
    }
    if (h->pid == 0)
        become_helper(in[1], out[1], path);
    close(in[1]);
    close(out[1]);
    h->to = in[0];
    h->from = out[0];
    fcntl(h->to, F_SETFL, O_NONBLOCK);
    return 0;
}

/* Write the request and read the answer until its end. 0; HILL_E_TIMEOUT, HILL_E_TOO_LONG,
 * HILL_E_NOMEM, HILL_E_CANCELLED by stop_fd. A helper that dies early ends it, too. */
static int talk(struct helper *h, const char *request, size_t bytes, int stop_fd, char **answer,
                size_t *got)
{
    int64_t deadline = clock_deadline_ms(CHAT_HELPER_WALL_S * 1000);
    size_t sent = 0, room = 0;
    *answer = NULL;
    *got = 0;
    for (;;) {
        int64_t left = deadline - clock_now_ns();
        struct pollfd fds[3] = {/* of those below 0 nothing is heard */
                                {h->from, POLLIN, 0},
                                {h->to, POLLOUT, 0},
                                {stop_fd, POLLIN, 0}};
        if (left <= 0)
            return HILL_E_TIMEOUT;
        poll(fds, 3, (int)(left / 1000000 + 1));
        if (fds[2].revents)
            return HILL_E_CANCELLED;
        if (h->to >= 0 && fds[1].revents) {
            ssize_t n = send(h->to, request + sent, bytes - sent, MSG_NOSIGNAL);
            sent += n > 0 ? (size_t)n : 0;
            if (sent == bytes || (n < 0 && errno != EAGAIN && errno != EINTR)) {
                close(h->to);
                h->to = -1;
            }
        }
        if (!fds[0].revents)
            continue;
        if (*got == room) {
            char *larger = realloc(*answer, room = room * 2 + 65536);
            if (!larger)
                return HILL_E_NOMEM;
            *answer = larger;
        }
        ssize_t n = read(h->from, *answer + *got, room - *got);
        if (n == 0 || (n < 0 && errno != EINTR))
            return 0;
        *got += n > 0 ? (size_t)n : 0;
        if (*got > CHAT_HELPER_TEXT_MAX)
            return HILL_E_TOO_LONG;
    }
}

/* Its exit status as one line, when it did not answer. */
static int why_silent(int status, struct hill_why *why)
{
    int sign = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (sign == SIGXCPU || sign == SIGKILL)
        return hill_fail(
            why, HILL_E_UNSUPPORTED,
            "the model's chat template took more than %d s of CPU time and was stopped",
            CHAT_HELPER_CPU_S);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "the model's chat template is none that is built in and needs Jinja; on "
                         "Debian: apt install python3-jinja2");
    return hill_fail(why, HILL_E_UNSUPPORTED,
                     "the helper for chat templates ended without an answer (status %d)", status);
}

static int run_helper(const char *request, size_t bytes, int stop_fd, json_t **out,
                      struct hill_why *why)
{
    struct helper h = {.to = -1, .from = -1};
    char *answer = NULL;
    size_t got = 0;
    int status = 0, code = start(&h, why);
    if (code)
        return code;
    code = talk(&h, request, bytes, stop_fd, &answer, &got);
    if (h.to >= 0)
        close(h.to);
    close(h.from);
    if (code)
        kill(h.pid, SIGKILL);
    while (waitpid(h.pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (code == HILL_E_TIMEOUT)
        code = hill_fail(why, HILL_E_UNSUPPORTED,
                         "the model's chat template was not done after %d s and was stopped",
                         CHAT_HELPER_WALL_S);
    else if (code == HILL_E_CANCELLED)
        code = hill_fail(why, code, "the model's chat template was stopped");
    else if (code)
        code =
            hill_fail(why, HILL_E_UNSUPPORTED, "the model's chat template renders too much text");
    else if (!(*out = json_loadb(answer ? answer : "", got, JSON_ALLOW_NUL, NULL)))
        code = why_silent(status, why);
    free(answer);
    return code;
}

/* ---- request and answer ------------------------------------------------------------------ */

static char *make_request(const char *text, uint64_t bytes,
                          const struct chat_vocabulary *vocabulary, bool no_think,
                          const struct chat_message *messages, unsigned count)
{
    json_t *list = json_array();
    bool whole = true;
    for (unsigned i = 0; i < count; i++) {
        const struct chat_message *m = &messages[i];
        json_t *content = json_stringn(m->text, m->bytes);
        whole = whole && content; /* NULL: no UTF-8 */
        json_t *message = json_pack("{s:s, s:o}", "role", role_names[m->role], "content",
                                    content ? content : json_null());
        if (m->thought_bytes)
            json_object_set_new(message, "reasoning_content",
                                json_stringn(m->thought, m->thought_bytes));
        json_array_append_new(list, message);
    }
    json_t *template = json_stringn(text, bytes);
    json_t *object =
        json_pack("{s:o, s:s, s:s, s:I, s:o}", "template", template ? template : json_null(), "bos",
                  vocabulary->bos, "eos", vocabulary->eos, "now", (json_int_t)vocabulary->now,
                  "messages", list);
    whole = whole && !(no_think && json_object_set_new(object, "enable_thinking", json_false()));
    char *request = object && template && whole ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return request;
}

static int kind_of(const char *name)
{
    if (name && strcmp(name, "words") == 0)
        return PROMPT_LITERAL;
    return name && strcmp(name, "answer") == 0 ? PROMPT_TEXT : PROMPT_SPECIAL;
}

static int take_pieces(struct chat_prompt *out, const json_t *list, struct hill_why *why)
{
    uint64_t n = json_array_size(list), bytes = 0;
    for (uint64_t i = 0; i < n; i++)
        bytes += json_string_length(json_object_get(json_array_get(list, i), "text"));
    out->pieces = calloc(n + 1, sizeof *out->pieces);
    out->texts = malloc(bytes + 1);
    if (!out->pieces || !out->texts)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a conversation");
    char *text = out->texts;
    for (uint64_t i = 0; i < n; i++) {
        const json_t *piece = json_array_get(list, i), *own = json_object_get(piece, "text");
        uint64_t length = json_string_length(own);
        if (length)
            memcpy(text, json_string_value(own), length);
        out->pieces[i] = (struct prompt_piece){
            text, length,
            (enum prompt_kind)kind_of(json_string_value(json_object_get(piece, "kind")))};
        text += length;
    }
    out->n_pieces = n;
    return 0;
}

static int take_answer(struct chat_prompt *out, const json_t *answer, struct hill_why *why)
{
    const char *error = json_string_value(json_object_get(answer, "error"));
    const char *end = json_string_value(json_object_get(answer, "answer_end"));
    const json_t *pieces = json_object_get(answer, "pieces");
    if (error)
        return hill_fail(why, HILL_E_UNSUPPORTED, "%.400s", error);
    if (!json_array_size(pieces))
        return hill_fail(why, HILL_E_UNSUPPORTED, "the model's chat template renders nothing");
    out->answer_end = strdup(end ? end : "");
    return out->answer_end ? take_pieces(out, pieces, why)
                           : hill_fail(why, HILL_E_NOMEM, "out of memory for a conversation");
}

int chat_helper_render(struct chat_prompt *out, const char *text, uint64_t bytes,
                       const struct chat_vocabulary *vocabulary, bool no_think,
                       const struct chat_message *messages, unsigned count, int stop_fd,
                       struct hill_why *why)
{
    json_t *answer = NULL;
    *out = (struct chat_prompt){0};
    char *request = make_request(text, bytes, vocabulary, no_think, messages, count);
    if (!request)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "the conversation or the model's chat template is not UTF-8 text");
    int code = run_helper(request, strlen(request), stop_fd, &answer, why);
    if (code == 0)
        code = take_answer(out, answer, why);
    if (code)
        chat_prompt_finish(out);
    json_decref(answer);
    free(request);
    return code;
}
