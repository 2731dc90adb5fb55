/*
 * hillctl/trace.c - `hillctl trace FILE`: what each stage does when, for some seconds.
 *
 * What: switches the workers' stage events on (base/stage_trace.h), fetches what they recorded
 * several times a second, so that their rings do not run over, switches them off and writes FILE
 * (trace_json.h): beside it first, in a new file that only its owner may read, so that a failure
 * leaves what FILE was; a link, a device or a pipe (/dev/stdout) is written to itself. A running
 * request goes on. Ctrl-C ends the watching early; the file is written all the same. Concurrency:
 * one thread. Failure: no pipeline, an unwritable file: one line, before anything is switched on. A
 * worker that does not answer in time is counted in the file's metadata.
 */
#include "hillctl/command_list.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "hillctl/short_command.h"
#include "hillctl/trace_json.h"

#define ROUND_MS  200  /* between two looks into the workers' rings */
#define ANSWER_MS 2000 /* a worker's control thread answers within milliseconds */

static const struct option_spec trace_specs[] = {
    OPTION("seconds", REAL, "S", "how long to watch", .min = 0.1, .max = 3600, .fallback = "5"),
};

struct watch {
    struct short_command command;
    struct trace_collection collection;
    char path[HILL_PATH_BYTES];
    char part[HILL_PATH_BYTES + 16]; /* becomes path; "": written to path itself */
    FILE *out;
    uint32_t serial;
};

static int open_output(struct watch *w, const char *path, struct hill_why *why)
{
    if (strlen(path) >= sizeof w->path)
        return hill_fail(why, HILL_E_INVALID, "cannot write the trace: the path is too long");
    strcpy(w->path, path);
    struct stat there;
    int fd;
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode)) {
        /* not to be replaced; without a reader a pipe is an error, not a wait */
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0600);
        if (fd >= 0)
            fcntl(fd, F_SETFL, 0);
    } else {
        snprintf(w->part, sizeof w->part, "%s.part-XXXXXX", path);
        fd = mkostemp(w->part, O_CLOEXEC);
    }
    w->out = fd < 0 ? NULL : fdopen(fd, "w");
    return w->out ? 0
                  : hill_fail(why, hill_from_errno(errno), "cannot write the trace to %s: %s",
                              w->path, strerror(errno));
}

static int close_output(struct watch *w, int code, struct hill_why *why)
{
    bool failed = ferror(w->out) != 0;
    failed |= fclose(w->out) != 0;
    int reason = errno;
    if (code == 0 && failed)
        code = hill_fail(why, hill_from_errno(reason), "writing the trace to %s failed: %s",
                         w->path, strerror(reason));
    if (code == 0 && w->part[0] && rename(w->part, w->path) != 0)
        code = hill_fail(why, hill_from_errno(errno), "cannot write the trace to %s: %s", w->path,
                         strerror(errno));
    if (code != 0 && w->part[0])
        unlink(w->part);
    return code;
}

/* Ask every worker for what it has recorded. Answers of earlier rounds that come late are as good.
 */
static int round_of(struct watch *w, bool on, struct hill_why *why)
{
    Hill__TraceRequest body = HILL__TRACE_REQUEST__INIT;
    body.on = on;
    body.serial = ++w->serial;
    Hill__Message request = PROTO_MESSAGE(TRACE_REQUEST, trace_request, &body);
    Hill__Message *message;
    int code = client_call(&w->command.client, &request, HILL__MESSAGE__BODY_TRACE_ANSWER,
                           CLIENT_ANSWER_MS, &message, why);
    int64_t deadline = clock_deadline_ms(ANSWER_MS);
    uint32_t expected = UINT32_MAX, heard = 0;
    while (code == 0) {
        const Hill__TraceAnswer *answer =
            message->body_case == HILL__MESSAGE__BODY_TRACE_ANSWER ? message->trace_answer : NULL;
        if (answer && answer->role == HILL__ROLE__ROLE_COORDINATOR) {
            if (answer->serial == w->serial)
                expected = answer->expected;
            code = trace_collect(&w->collection, answer);
        } else if (answer) {
            heard += answer->serial == w->serial;
            code = answer->code
                       ? hill_fail(why, answer->code, "%s cannot record its stages: %s",
                                   proto_role_name(answer->role), hill_strerror(answer->code))
                       : trace_collect(&w->collection, answer);
        }
        proto_free(message);
        if (code != 0 || heard >= expected)
            break;
        code = client_receive(&w->command.client, deadline, &message, why);
    }
    w->collection.rounds++;
    if (code != HILL_E_TIMEOUT || expected == UINT32_MAX)
        return code;
    w->collection.unheard += expected - heard; /* it died or hangs: the coordinator sees to it */
    return 0;
}

/* Sleep; HILL_E_CANCELLED on a signal. Late answers are taken. */
static int sleep_until(struct watch *w, int64_t until_ns, struct hill_why *why)
{
    for (;;) {
        Hill__Message *message;
        int code = client_receive(&w->command.client, until_ns, &message, why);
        if (code == HILL_E_TIMEOUT)
            return 0;
        if (code != 0)
            return code;
        if (message->body_case == HILL__MESSAGE__BODY_TRACE_ANSWER)
            code = trace_collect(&w->collection, message->trace_answer);
        proto_free(message);
        if (code != 0)
            return hill_fail(why, code, "out of memory for the trace");
    }
}

static int watch(struct watch *w, double seconds, struct hill_why *why)
{
    int64_t start = clock_now_ns(), end = start + (int64_t)(seconds * 1e9), now;
    struct hill_why last;
    int code = round_of(w, true, why);
    while (code == 0 && (now = clock_now_ns()) < end) {
        int64_t next = now + CLOCK_MS(ROUND_MS);
        code = sleep_until(w, next < end ? next : end, why);
        if (code == 0 && next < end)
            code = round_of(w, true, why);
    }
    if (code == 0 || code == HILL_E_CANCELLED) {
        int off = round_of(w, false, &last);
        if (code == 0 && off != 0) {
            *why = last;
            code = off;
        }
    }
    w->collection.seconds = (double)(clock_now_ns() - start) / 1e9;
    return code;
}

static void tell(const struct watch *w)
{
    const struct trace_collection *c = &w->collection;
    fprintf(stderr, "hillctl: %" PRIu32 " spans of %.1f s in %s", c->n_events, c->seconds, w->path);
    if (c->lost || c->dropped || c->unheard)
        fprintf(stderr,
                "; %" PRIu64 " lost in the workers, %" PRIu64 " beyond the bound, %" PRIu64
                " answers missing",
                c->lost, c->dropped, c->unheard);
    fprintf(stderr, "; open it in ui.perfetto.dev or chrome://tracing\n");
}

int command_trace(int argc, char **argv)
{
    struct watch w = {
        .command = {.program = {.name = "hillctl trace",
                                .usage = "FILE [--seconds S] [--run-dir DIR]",
                                .summary =
                                    "Record what each stage of the running pipeline does when, as "
                                    "Chrome/Perfetto JSON.\nA request that runs goes on; Ctrl-C "
                                    "ends the recording early and writes the file.",
                                .example = "hillctl trace /tmp/trace.json --seconds 2",
                                .positional_max = 1},
                    .needs = "trace needs the FILE that is written; try hillctl trace --help",
                    .own = {.title = "trace", .specs = trace_specs, .count = 1}}};
    int left = short_command_begin(&w.command, argc, argv);
    if (left != 0)
        return left - 1;
    struct hill_why why = {""};
    int code = open_output(&w, options_positional(w.command.options, 0), &why);
    if (code == 0) {
        code = watch(&w, options_real(w.command.options, "seconds"), &why);
        bool cancelled = code == HILL_E_CANCELLED;
        if (cancelled)
            code = 0;
        if (code == 0 && trace_write_json(&w.collection, w.out) != 0)
            code = hill_fail(&why, HILL_E_NOMEM, "out of memory for the trace");
        code = close_output(&w, code, &why);
        if (code == 0)
            tell(&w);
        if (code == 0 && cancelled)
            code = hill_fail(&why, HILL_E_CANCELLED, "interrupted");
    }
    trace_collection_finish(&w.collection);
    return short_command_end(&w.command, code, &why);
}
