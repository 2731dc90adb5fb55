/* tools/eval/own_pipeline.c - see own_pipeline.h. */
#include "tools/eval/own_pipeline.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/clock.h"

#define WORDS_MAX    128
#define READY_MS     600000 /* a large model takes its time */
#define STOP_MS      30000
#define POLL_NS      100000000
#define LEFTOVERS_MS 20000 /* for a pipeline whose hill-eval was killed */

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
}

/* ---- names --------------------------------------------------------------------------------- */

static int name_folders(struct own_pipeline *own, const char *results, struct hill_why *why)
{
    char *whole = realpath(results, NULL); /* it is open: it exists */
    const char *base = getenv("XDG_RUNTIME_DIR");
    if (!whole)
        return hill_fail(why, hill_from_errno(errno), "finding %s failed: %s", results,
                         strerror(errno));
    snprintf(own->run_dir, sizeof own->run_dir, "%s/hill-eval-%u-%08x",
             base && *base ? base : "/tmp", (unsigned)getuid(),
             (unsigned)XXH64(whole, strlen(whole), 0));
    int used = snprintf(own->state_dir, sizeof own->state_dir, "%s.pipeline", whole);
    free(whole);
    if (used >= (int)sizeof own->state_dir || strlen(own->run_dir) > HILL_RUN_DIR_MAX)
        return hill_fail(why, HILL_E_INVALID, "the path of %s is too long for folders beside it",
                         results);
    snprintf(own->log, sizeof own->log, "%s/log", own->state_dir);
    if (mkdir(own->state_dir, 0700) == 0)
        return 0;
    if (errno != EEXIST)
        return hill_fail(why, hill_from_errno(errno), "making the folder %s failed: %s",
                         own->state_dir, strerror(errno));
    /* left by an earlier run, which made a log in it at once; an empty one does no harm either: all
     * of it is removed at the end */
    if (access(own->log, F_OK) == 0 ||
        (rmdir(own->state_dir) == 0 && mkdir(own->state_dir, 0700) == 0))
        return 0;
    hill_fail(why, HILL_E_INVALID, "%s is in the way: hill-eval did not make it", own->state_dir);
    own->state_dir[0] = '\0'; /* not ours to remove */
    return HILL_E_INVALID;
}

/* The launcher lies beside this program (installed) or in scripts/ of the checkout. */
static int find_launcher(char out[HILL_PATH_BYTES], struct hill_why *why)
{
    static const char *const places[] = {"hillinfer", "../../scripts/hillinfer",
                                         "../../../scripts/hillinfer"};
    char own[HILL_PATH_BYTES / 2];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    own[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(own, '/');
    for (unsigned i = 0; slash && i < sizeof places / sizeof places[0]; i++) {
        snprintf(out, HILL_PATH_BYTES, "%.*s/%s", (int)(slash - own), own, places[i]);
        if (access(out, X_OK) == 0)
            return 0;
    }
    return hill_fail(why, HILL_E_IO, "the script hillinfer is neither beside %s nor in scripts/",
                     own);
}

/* ---- start --------------------------------------------------------------------------------- */

struct command {
    char launcher[HILL_PATH_BYTES], ctx[16], *more;
    const char *words[WORDS_MAX + 1];
    unsigned n_words;
};

static void add_words(struct command *c, const char *const *words)
{
    for (; *words && c->n_words < WORDS_MAX; words++)
        c->words[c->n_words++] = *words;
}

static int make_command(struct command *c, struct own_pipeline *own,
                        const struct own_pipeline_order *order, struct hill_why *why)
{
    memset(c, 0, sizeof *c);
    int code = find_launcher(c->launcher, why);
    if (code)
        return code;
    snprintf(c->ctx, sizeof c->ctx, "%u", order->ctx_tokens);
    /* policy full, or all of the context: room for requests that attend to everything */
    add_words(c, (const char *[]){c->launcher,
                                  "up",
                                  "-m",
                                  order->model,
                                  "-c",
                                  c->ctx,
                                  "--policy",
                                  kv_policy_name(order->kind.policy),
                                  "--alpha",
                                  "1",
                                  "--exact-below",
                                  "0",
                                  "--run-dir",
                                  own->run_dir,
                                  "--state-dir",
                                  own->state_dir,
                                  "--score-bits",
                                  order->kind.score_bits,
                                  "--speculate",
                                  order->kind.speculate,
                                  NULL});
    c->more = strdup(order->more ? order->more : "");
    if (!c->more)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the pipeline's options");
    char *rest = c->more, *word;
    while ((word = strsep(&rest, " \t\n")))
        if (*word)
            add_words(c, (const char *[]){word, NULL});
    return 0;
}

/* In the child, after fork: only calls that are safe there. */
static void become(const struct command *c, const char *log, pid_t parent)
{
    sigset_t none;
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600),
        nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid(); /* Ctrl-C is for hill-eval, which then ends the pipeline in order */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (fd < 0 || nothing < 0 || getppid() != parent)
        _exit(111);
    dup2(nothing, STDIN_FILENO);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execv(c->words[0], (char *const *)c->words); /* not changed by it */
    _exit(111);
}

/* One whose hill-eval was killed is ending by itself. */
static int await_leftovers(const struct own_pipeline *own, struct hill_why *why)
{
    char lock[HILL_PATH_BYTES + 8];
    int64_t deadline = clock_deadline_ms(LEFTOVERS_MS);
    snprintf(lock, sizeof lock, "%s/lock", own->run_dir);
    for (int fd; (fd = open(lock, O_RDWR | O_CLOEXEC)) >= 0; nap()) {
        bool free_now = flock(fd, LOCK_EX | LOCK_NB) == 0;
        close(fd);
        if (free_now)
            return 0; /* of a coordinator that was killed: the next one clears up */
        if (clock_now_ns() > deadline)
            return hill_fail(why, HILL_E_BUSY, "a pipeline still runs in %s", own->run_dir);
    }
    return 0;
}

/* ---- ready --------------------------------------------------------------------------------- */

static int code_of_status(int status)
{
    if (!WIFEXITED(status))
        return HILL_E_PEER_GONE;
    return WEXITSTATUS(status) == 100 ? HILL_E_INVALID
           : WEXITSTATUS(status) == 1 ? HILL_E_UNSUPPORTED
                                      : HILL_E_IO;
}

/* The child has ended before it was ready: its own last words. */
static int explain_end(struct own_pipeline *own, int status, struct hill_why *why)
{
    char line[480], last[480] = "it said nothing";
    FILE *log = fopen(own->log, "r");
    while (log && fgets(line, sizeof line, log)) {
        line[strcspn(line, "\n")] = '\0';
        if (*line)
            memcpy(last, line, sizeof last);
    }
    if (log)
        fclose(log);
    own->pid = 0;
    return hill_fail(why, code_of_status(status), "the pipeline did not start: %.400s", last);
}

static int ask_ready(struct client *client, bool *ready, struct hill_why *why)
{
    Hill__Message *reply = NULL;
    int code = client_status(client, 2000, &reply, why);
    if (code == HILL_E_PEER_GONE) /* not yet */
        return 0;
    if (code == 0) {
        *ready = reply->status_reply->ready;
        proto_free(reply);
    }
    return code;
}

static int await_ready(struct own_pipeline *own, struct client *client, struct hill_why *why)
{
    int64_t deadline = clock_deadline_ms(READY_MS);
    bool ready = false;
    for (;;) {
        int status, code = 0;
        if (waitpid(own->pid, &status, WNOHANG) == own->pid)
            return explain_end(own, status, why);
        if (!client->socket && client_open(client, own->run_dir, why) != 0)
            client->signal_fd = -1; /* not there yet */
        if (client->socket)
            code = ask_ready(client, &ready, why);
        if (code || ready)
            return code;
        if (clock_now_ns() > deadline)
            return hill_fail(why, HILL_E_TIMEOUT,
                             "the pipeline was not ready after %d s; its log: %s", READY_MS / 1000,
                             own->log);
        nap();
    }
}

int own_pipeline_start(struct own_pipeline *own, struct client *client,
                       const struct own_pipeline_order *order, struct hill_why *why)
{
    struct command command = {0};
    memset(own, 0, sizeof *own);
    client->signal_fd = -1;
    client->socket = client->context = NULL;
    int code = name_folders(own, order->results, why);
    if (code == 0)
        code = await_leftovers(own, why);
    if (code == 0)
        code = make_command(&command, own, order, why);
    pid_t self = getpid();
    if (code == 0 && (own->pid = fork()) < 0)
        code = hill_fail(why, hill_from_errno(errno), "starting the pipeline failed: %s",
                         strerror(errno));
    else if (code == 0 && own->pid == 0)
        become(&command, own->log, self);
    if (code == 0)
        code = await_ready(own, client, why);
    free(command.more);
    if (code) {
        client_close(client);
        own_pipeline_stop(own);
    }
    return code;
}

/* ---- end ----------------------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path) != 0 && errno != ENOENT;
}

/* The coordinator has a session of its own; its workers follow it. */
static void kill_coordinator(const struct own_pipeline *own)
{
    char lock[HILL_PATH_BYTES + 8], text[16] = "";
    snprintf(lock, sizeof lock, "%s/lock", own->run_dir);
    int fd = open(lock, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, text, sizeof text - 1);
    int pid = n > 0 ? atoi(text) : 0;
    if (pid > 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) /* whose lock is free has ended */
        kill(pid, SIGKILL);
    close(fd);
}

void own_pipeline_stop(struct own_pipeline *own)
{
    if (own->pid > 0) {
        int64_t deadline = clock_deadline_ms(STOP_MS);
        kill(own->pid, SIGTERM);
        while (waitpid(own->pid, NULL, WNOHANG) == 0) {
            if (clock_now_ns() > deadline) {
                kill(-own->pid, SIGKILL); /* its session */
                kill_coordinator(own);
                waitpid(own->pid, NULL, 0);
                break;
            }
            nap();
        }
    }
    own->pid = 0;
    if (own->state_dir[0])
        nftw(own->state_dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
