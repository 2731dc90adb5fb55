/*
 * hillctl/top.c - `hillctl top`: the running pipeline, refreshed each second.
 *
 * What: asks for the status, prints one screen of it: the requests that run, how full each tier is,
 * who served the selected entries (summed over the requests), moves, bytes, and the processes with
 * their CPU time and memory. Rates are differences of two answers, divided by the time between the
 * heartbeats that carried them. On a terminal it redraws with plain ANSI sequences in the alternate
 * screen; q or Ctrl-C ends it and the terminal is as before. A narrow terminal gets shorter tables,
 * a line that is still too long goes on in the next one; what is not ready is red, unless NO_COLOR
 * is set. Elsewhere each snapshot is printed once, without sequences. Concurrency: one thread.
 * Failure: a coordinator that does not answer ends it (HILL_E_PEER_GONE).
 */
#include "hillctl/command_list.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "hillctl/short_command.h"

#define MIB       (1024.0 * 1024.0)
#define BAR_CELLS 24
#define WIDE      104 /* columns that the whole tables need */
#define SHOWN_MAX 8   /* processes */
#define LINES_MAX 16  /* requests */

static const struct option_spec top_specs[] = {
    OPTION("iterations", INTEGER, "N",
           "end after N snapshots; 0: on a terminal until q or Ctrl-C, else one", .letter = "n",
           .max = 1000000000, .fallback = "0"),
};

struct top {
    struct short_command command;
    Hill__Message *now, *before; /* StatusReply; before: NULL at first */
    bool screen;                 /* stdout is a terminal */
    bool keys;                   /* stdin is one: q ends it */
    struct termios saved;
    FILE *out;              /* a snapshot, before it is shown */
    unsigned columns, rows; /* of the terminal; 0: no bound */
    bool narrow, colour;
};

/* ---- screen ------------------------------------------------------------------------------ */

static void screen_begin(struct top *t)
{
    const char *no_colour = getenv("NO_COLOR");
    t->screen = isatty(STDOUT_FILENO);
    t->colour = t->screen && !(no_colour && *no_colour);
    t->keys = t->screen && isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &t->saved) == 0;
    if (t->keys) {
        struct termios raw = t->saved;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* ISIG stays: Ctrl-C is a signal */
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    if (t->screen)
        fputs("\033[?1049h\033[?25l", stdout); /* alternate screen, no cursor */
}

static void screen_end(struct top *t)
{
    if (t->screen)
        fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    if (t->keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &t->saved);
}

static const char *red(const struct top *t)
{
    return t->colour ? "\033[31m" : "";
}

static const char *plain(const struct top *t)
{
    return t->colour ? "\033[39m" : "";
}

/* A bar of how much of it is full. */
static const char *bar(char out[BAR_CELLS + 3], double share)
{
    int full = (int)(share * BAR_CELLS + 0.5);
    if (full < 0)
        full = 0;
    if (full > BAR_CELLS)
        full = BAR_CELLS;
    out[0] = '[';
    for (int i = 0; i < BAR_CELLS; i++)
        out[1 + i] = i < full ? '#' : '.';
    out[BAR_CELLS + 1] = ']';
    out[BAR_CELLS + 2] = '\0';
    return out;
}

/* ---- what it shows ----------------------------------------------------------------------- */

static double ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* Seconds between the two answers; 0: only one. */
static double seconds_between(const struct top *t)
{
    if (!t->before)
        return 0;
    double s = t->now->status_reply->uptime_seconds - t->before->status_reply->uptime_seconds;
    return s > 0 ? s : 0; /* another coordinator has a younger clock */
}

static void print_head(const struct top *t)
{
    const Hill__StatusReply *s = t->now->status_reply;
    fprintf(t->out,
            "hillinfer  %s%s%s, epoch %" PRIu32 ", up %.0f s, %" PRIu32 " running, %" PRIu32
            " waiting, %" PRIu64 " done\n",
            s->ready ? "" : red(t), s->ready ? "ready" : "not ready", s->ready ? "" : plain(t),
            s->epoch, s->uptime_seconds, s->requests_running, s->requests_waiting,
            s->requests_done);
    fprintf(t->out, "model      %s, context %" PRIu32 " tokens; drive %s\n", s->model,
            s->ctx_tokens, s->csd_attached ? s->csd_url : "none");
    if (s->csd_model && s->csd_model->on) {
        struct csd_model model = proto_csd_model(s->csd_model);
        char text[CSD_MODEL_TEXT];
        fprintf(t->out, "modelled   %s", csd_model_print(text, &model));
        if (s->csd_model_counters && s->csd_model_counters->late)
            fprintf(t->out,
                    "; %" PRIu64 " of %" PRIu64
                    " commands late, the drive is slower than the model",
                    s->csd_model_counters->late, s->csd_model_counters->commands);
        fputc('\n', t->out);
    }
}

/* The same attempt of a request in the answer before; NULL: there is none. */
static const Hill__RunningRequest *request_before(const struct top *t,
                                                  const Hill__RunningRequest *r)
{
    const Hill__StatusReply *s = t->before ? t->before->status_reply : NULL;
    for (size_t i = 0; s && i < s->n_requests; i++)
        if (s->requests[i]->request_id == r->request_id && s->requests[i]->attempts == r->attempts)
            return s->requests[i];
    return NULL;
}

/* Tokens a second since the snapshot before; negative: not known. */
static double decode_now(const struct top *t, const Hill__RunningRequest *now)
{
    const Hill__RunningRequest *before = request_before(t, now);
    double seconds = seconds_between(t);
    if (!before || !before->predicted_tokens || seconds <= 0)
        return -1;
    return (now->predicted_tokens - before->predicted_tokens) / seconds;
}

static void print_request(const struct top *t, const Hill__RunningRequest *r)
{
    char cells[BAR_CELLS + 3];
    if (!r->predicted_tokens) {
        double share = ratio(r->prefill_tokens_done, r->prompt_tokens);
        double rate = ratio(r->prefill_tokens_done * 1000, r->prefill_ms);
        fprintf(t->out,
                "request    %" PRIu64 " prefill %s %.0f / %" PRIu32
                " tokens, %.0f tokens/s, %.0f s "
                "left",
                r->request_id, bar(cells, share), r->prefill_tokens_done, r->prompt_tokens, rate,
                ratio(r->prompt_tokens - r->prefill_tokens_done, rate));
    } else {
        double now = decode_now(t, r);
        fprintf(t->out, "request    %" PRIu64 " decode %s %" PRIu32 " / %" PRIu32 " tokens",
                r->request_id, bar(cells, ratio(r->predicted_tokens, r->predict)),
                r->predicted_tokens, r->predict);
        if (now >= 0)
            fprintf(t->out, ", %.1f tokens/s", now);
        fprintf(t->out, ", mean %.1f tokens/s; prompt %" PRIu32 " tokens in %.2f s",
                r->predicted_per_second, r->prompt_tokens, r->prefill_ms / 1000);
    }
    if (r->attempts > 1)
        fprintf(t->out, ", attempt %" PRIu32, r->attempts);
    fputc('\n', t->out);
}

static void print_requests(const struct top *t)
{
    const Hill__StatusReply *s = t->now->status_reply;
    double sum = 0;
    for (size_t i = 0; i < s->n_requests && i < LINES_MAX; i++)
        print_request(t, s->requests[i]);
    for (size_t i = 0; i < s->n_requests; i++) {
        double now = decode_now(t, s->requests[i]);
        sum += now > 0 ? now : 0;
    }
    if (!s->n_requests)
        fprintf(t->out, "request    none");
    else if (s->n_requests > LINES_MAX)
        fprintf(t->out, "           and %zu more; together %.1f tokens/s",
                s->n_requests - LINES_MAX, sum);
    else if (s->n_requests > 1)
        fprintf(t->out, "           together %.1f tokens/s", sum);
    else
        return;
    fputc('\n', t->out);
}

static void print_tier(const struct top *t, const char *name, const Hill__TierStats *tier,
                       double hits)
{
    char cells[BAR_CELLS + 3];
    double share = ratio((double)tier->bytes, (double)tier->cap_bytes);
    if (t->narrow) {
        fprintf(t->out, "%-8s %10.1f %10.1f %5.1f %% %6.1f %%\n", name, (double)tier->bytes / MIB,
                (double)tier->cap_bytes / MIB, 100 * share, 100 * ratio((double)tier->hits, hits));
        return;
    }
    fprintf(t->out, "%-8s %12" PRIu64 " %10.1f %10.1f %s %5.1f %% %12" PRIu64 " %6.1f %%\n", name,
            tier->tokens, (double)tier->bytes / MIB, (double)tier->cap_bytes / MIB,
            bar(cells, share), 100 * share, tier->hits, 100 * ratio((double)tier->hits, hits));
}

static void add_tier(Hill__TierStats *sum, const Hill__TierStats *one)
{
    sum->tokens += one->tokens;
    sum->bytes += one->bytes;
    sum->hits += one->hits;
    sum->cap_bytes = one->cap_bytes; /* of all together */
}

struct sums {
    Hill__SequenceStats stats;
    Hill__TierStats gpu, hot, cold;
};

/* What runs, summed; with nothing running, the last one. NULL: there was none yet. */
static const Hill__SequenceStats *sum_live(struct sums *out, const Hill__StatusReply *s)
{
    if (s->n_sequences < 2)
        return s->live;
    hill__sequence_stats__init(&out->stats);
    hill__tier_stats__init(&out->gpu);
    out->hot = out->cold = out->gpu;
    out->stats.gpu = &out->gpu;
    out->stats.hot = &out->hot;
    out->stats.cold = &out->cold;
    for (size_t i = 0; i < s->n_sequences; i++) {
        const Hill__SequenceStats *one = s->sequences[i];
        out->stats.request_id = one->request_id;
        add_tier(&out->gpu, one->gpu);
        add_tier(&out->hot, one->hot);
        add_tier(&out->cold, one->cold);
        out->stats.demoted += one->demoted;
        out->stats.promoted += one->promoted;
        out->stats.bounced += one->bounced;
        out->stats.queries += one->queries;
        out->stats.budget = one->budget > out->stats.budget ? one->budget : out->stats.budget;
        out->stats.link_key_bytes += one->link_key_bytes;
        out->stats.link_score_bytes += one->link_score_bytes;
        out->stats.link_kv_bytes += one->link_kv_bytes;
        out->stats.flash_read_bytes += one->flash_read_bytes;
        out->stats.flash_write_bytes += one->flash_write_bytes;
    }
    return &out->stats;
}

static void print_live(const struct top *t)
{
    struct sums sums;
    const Hill__SequenceStats *s = sum_live(&sums, t->now->status_reply);
    if (!s) {
        fprintf(t->out, "tiers      nothing has been kept yet\n");
        return;
    }
    double hits = (double)(s->gpu->hits + s->hot->hits + s->cold->hits);
    if (!s->request_id)
        fprintf(t->out, "of the request that ended last:\n");
    if (t->narrow)
        fprintf(t->out, "%-8s %10s %10s %7s %8s", "tier", "MiB", "cap MiB", "full", "share");
    else
        fprintf(t->out, "%-8s %12s %10s %10s %-*s %7s %12s %8s", "tier", "entries", "MiB",
                "cap MiB", BAR_CELLS + 2, "", "full", "selected", "share");
    fputc('\n', t->out);
    print_tier(t, "GPU", s->gpu, hits);
    print_tier(t, "hot", s->hot, hits);
    print_tier(t, "cold", s->cold, hits);
    fprintf(t->out, "moves      %" PRIu64 " demoted, %" PRIu64 " promoted, %" PRIu64 " bounced",
            s->demoted, s->promoted, s->bounced);
    if (s->queries)
        fprintf(t->out, "; %" PRIu64 " queries of %" PRIu32 " tokens", s->queries, s->budget);
    fputc('\n', t->out);
    fprintf(t->out,
            "link       keys %" PRIu64 " B, scores %.2f MiB, selected KV %.2f MiB; flash read %.1f "
            "MiB, written %.1f MiB\n",
            s->link_key_bytes, (double)s->link_score_bytes / MIB, (double)s->link_kv_bytes / MIB,
            (double)s->flash_read_bytes / MIB, (double)s->flash_write_bytes / MIB);
}

/* The same process in the answer before; NULL: there is none. */
static const Hill__WorkerStatus *earlier_of(const struct top *t, const Hill__WorkerStatus *w)
{
    if (!t->before)
        return NULL;
    const Hill__StatusReply *s = t->before->status_reply;
    if (s->coordinator && s->coordinator->pid == w->pid)
        return s->coordinator;
    for (size_t i = 0; i < s->n_workers; i++)
        if (s->workers[i]->pid == w->pid)
            return s->workers[i];
    return NULL;
}

/* Percent of one core between the two heartbeats; negative: not known. */
static double cpu_percent(const struct top *t, const Hill__WorkerStatus *w)
{
    const Hill__WorkerStatus *before = w->pid ? earlier_of(t, w) : NULL;
    if (!before || w->cpu_ms < before->cpu_ms || !before->cpu_ms)
        return -1;
    double ms = seconds_between(t) * 1000 - w->last_heartbeat_ms + before->last_heartbeat_ms;
    return ms > 100 ? 100.0 * (double)(w->cpu_ms - before->cpu_ms) / ms : -1;
}

static void print_process(const struct top *t, const Hill__WorkerStatus *w)
{
    char cpu[16] = "-";
    double percent = cpu_percent(t, w);
    if (percent >= 0)
        snprintf(cpu, sizeof cpu, "%.1f", percent);
    bool away = strcmp(w->state, "ready") != 0 && strcmp(w->state, "stopped") != 0;
    fprintf(t->out, "%-12s %8d %s%-10s%s %7s %9.1f", proto_worker_name(w), w->pid,
            away ? red(t) : "", w->state, away ? plain(t) : "", cpu, (double)w->rss_bytes / MIB);
    if (!t->narrow)
        fprintf(t->out, " %8" PRIu32 "  %s", w->restarts, w->device);
    fputc('\n', t->out);
}

static void print_all(const struct top *t)
{
    const Hill__StatusReply *s = t->now->status_reply;
    print_head(t);
    print_requests(t);
    fputc('\n', t->out);
    print_live(t);
    fputc('\n', t->out);
    fprintf(t->out, "%-12s %8s %-10s %7s %9s", "process", "pid", "state", "CPU %", "RSS MiB");
    if (!t->narrow)
        fprintf(t->out, " %8s  %s", "restarts", "device");
    fputc('\n', t->out);
    if (s->coordinator)
        print_process(t, s->coordinator);
    for (size_t i = 0; i < s->n_workers && i < SHOWN_MAX; i++)
        print_process(t, s->workers[i]);
}

/* Bytes of a line that go into the first `columns`, cut at a space where there is one. */
static size_t fitting(const char *line, size_t bytes, size_t columns)
{
    size_t at = columns;
    if (bytes <= columns)
        return bytes;
    while (at > columns / 2 && line[at] != ' ')
        at--;
    return line[at] == ' ' ? at : columns;
}

/* A snapshot on the terminal: long lines go on below, indented; what is below its last row is left
 * out. */
static void show(const struct top *t, const char *text)
{
    unsigned row = 1;
    fputs("\033[H", stdout);
    for (const char *line = text; *line && row < t->rows; line += strcspn(line, "\n") + 1) {
        size_t left = strcspn(line, "\n"), indent = 0;
        const char *rest = line;
        do {
            size_t n = fitting(rest, left, t->columns - indent);
            printf("%*s%.*s\033[K\n", (int)indent, "", (int)n, rest);
            n += n < left && rest[n] == ' ';
            rest += n;
            left -= n;
            indent = 4;
        } while (left && ++row < t->rows);
        row++;
    }
    fputs("\033[J", stdout);
}

static void print_snapshot(struct top *t)
{
    struct winsize size;
    char *text = NULL;
    size_t bytes;
    bool known = t->screen && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20;
    t->columns = known ? size.ws_col : 1000;
    t->rows = known && size.ws_row ? size.ws_row : 1000;
    t->narrow = t->columns < WIDE;
    t->out = open_memstream(&text, &bytes);
    if (!t->out)
        return; /* the next one may have memory */
    print_all(t);
    fclose(t->out);
    if (t->screen)
        show(t, text);
    else
        puts(text);
    fflush(stdout);
    free(text);
}

/* ---- the loop ---------------------------------------------------------------------------- */

/* Sleep until the next snapshot. 0; 1: q; HILL_E_CANCELLED. */
static int pause_for_keys(struct top *t, int64_t until_ns, struct hill_why *why)
{
    for (;;) {
        int64_t left_ns = until_ns - clock_now_ns();
        if (left_ns <= 0)
            return 0;
        struct pollfd items[] = {{t->command.client.signal_fd, POLLIN, 0},
                                 {t->keys ? STDIN_FILENO : -1, POLLIN, 0}};
        if (poll(items, 2, (int)(left_ns / 1000000 + 1)) <= 0)
            continue;
        char key = 0;
        if (items[0].revents)
            return hill_fail(why, HILL_E_CANCELLED, "interrupted");
        if (items[1].revents && read(STDIN_FILENO, &key, 1) != 1)
            t->keys = false; /* the terminal is gone or closed */
        if (key == 'q' || key == 'Q')
            return 1;
    }
}

static int refresh(struct top *t, struct hill_why *why)
{
    Hill__Message *answer;
    int code = client_status(&t->command.client, CLIENT_ANSWER_MS, &answer, why);
    if (code != 0)
        return code;
    proto_free(t->before);
    t->before = t->now;
    t->now = answer;
    return 0;
}

static int watch(struct top *t, int64_t iterations, struct hill_why *why)
{
    int64_t next = clock_now_ns();
    if (!t->screen && iterations == 0)
        iterations = 1;
    int code = refresh(t, why); /* not shown: rates need an answer before the first one */
    for (int64_t i = 0; code == 0 && (iterations == 0 || i < iterations); i++) {
        if (i == 0 && t->screen)
            print_snapshot(t); /* something to look at meanwhile */
        next += CLOCK_MS(1000);
        code = pause_for_keys(t, next, why);
        if (code == 0)
            code = refresh(t, why);
        if (code == 0)
            print_snapshot(t);
    }
    return code == 1 ? 0 : code;
}

int command_top(int argc, char **argv)
{
    struct top t = {
        .command = {
            .program = {.name = "hillctl top",
                        .usage = "[-n N] [--run-dir DIR]",
                        .summary =
                            "Watch the pipeline: request, tiers, moves, processes; refreshed "
                            "each second.\nq or Ctrl-C ends it.",
                        .example = "hillctl top"},
            .own = {.title = "top", .specs = top_specs, .count = 1}}};
    int left = short_command_begin(&t.command, argc, argv);
    if (left != 0)
        return left - 1;
    struct hill_why why = {""};
    screen_begin(&t);
    int code = watch(&t, options_integer(t.command.options, "iterations"), &why);
    screen_end(&t);
    proto_free(t.now);
    proto_free(t.before);
    return short_command_end(&t.command, code, &why);
}
