/*
 * hillctl/generate.c - `hillctl generate` and `hillctl restore`: one request, streamed.
 *
 * Text goes to stdout as it comes (with --json: one object at the end), progress and errors to
 * stderr. SIGINT cancels the request; the pipeline stays. A coordinator that stops answering, or
 * came back without the request, ends it with HILL_E_PEER_GONE.
 */
#include "hillctl/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "proto/options_hill.h"
#include "proto/client.h"
#include "hillctl/report.h"
#include "hillctl/session_path.h"
#include "session/session.h"

#define PROMPT_BYTES_MAX (60u << 20) /* fits PROTO_MESSAGE_MAX */
#define PING_MS          2000

struct generation {
    struct client client;
    struct hill_request_options options;
    char *prompt;
    size_t prompt_bytes;
    uint32_t *ids; /* with --token-ids: what the prompt says */
    size_t n_ids;
    char restore[HILL_PATH_BYTES], save[HILL_PATH_BYTES]; /* sessions, or empty */
    struct report report;
    Hill__Message *summary;
    bool accepted, cancelling, terminal, progress_shown;
    int64_t started_ns, last_heard_ns, last_ping_ns;
};

static int read_prompt_file(struct generation *g, const char *path, struct hill_why *why)
{
    int fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hill_fail(why, HILL_E_INVALID, "reading the prompt from %s failed: %s", path,
                         strerror(errno));
    size_t room = 1u << 16;
    ssize_t got = 0;
    g->prompt = malloc(room);
    while (g->prompt && (got = read(fd, g->prompt + g->prompt_bytes, room - g->prompt_bytes)) > 0) {
        g->prompt_bytes += (size_t)got;
        if (g->prompt_bytes > PROMPT_BYTES_MAX)
            break;
        if (g->prompt_bytes == room) {
            char *larger = realloc(g->prompt, room *= 2);
            if (!larger)
                break;
            g->prompt = larger;
        }
    }
    int err = errno;
    close(fd);
    if (!g->prompt)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the prompt of %s", path);
    if (got < 0)
        return hill_fail(why, HILL_E_INVALID, "reading the prompt from %s failed: %s", path,
                         strerror(err));
    if (g->prompt_bytes > PROMPT_BYTES_MAX)
        return hill_fail(why, HILL_E_TOO_LONG, "the prompt in %s is longer than %u bytes", path,
                         PROMPT_BYTES_MAX);
    return 0;
}

/* "12 34 ..." as g->ids. */
static int read_token_ids(struct generation *g, struct hill_why *why)
{
    char *copy = strndup(g->prompt, g->prompt_bytes), *rest = NULL;
    g->ids = malloc((g->prompt_bytes / 2 + 1) * sizeof *g->ids);
    int code =
        copy && g->ids ? 0 : hill_fail(why, HILL_E_NOMEM, "out of memory for the prompt's tokens");
    for (char *word = code ? NULL : strtok_r(copy, " \t\r\n", &rest); word && code == 0;
         word = strtok_r(NULL, " \t\r\n", &rest)) {
        char *end;
        unsigned long id = strtoul(word, &end, 10);
        if (word[0] < '0' || word[0] > '9' || *end || id >= UINT32_MAX)
            code = hill_fail(why, HILL_E_INVALID,
                             "with --token-ids the prompt is numbers, but '%.40s' is none", word);
        else
            g->ids[g->n_ids++] = (uint32_t)id;
    }
    free(copy);
    if (code == 0 && g->n_ids == 0)
        code = hill_fail(why, HILL_E_INVALID, "the prompt is empty");
    return code;
}

static int take_prompt(struct generation *g, struct hill_why *why)
{
    if (g->options.file) {
        int code = read_prompt_file(g, g->options.file, why);
        return code || !g->options.token_ids ? code : read_token_ids(g, why);
    }
    g->prompt = strdup(g->options.prompt);
    if (!g->prompt)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the prompt");
    g->prompt_bytes = strlen(g->prompt);
    return g->options.token_ids ? read_token_ids(g, why) : 0;
}

static int send_restore(struct generation *g, struct hill_why *why)
{
    Hill__RestoreSession restore = HILL__RESTORE_SESSION__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    restore.path = g->restore;
    restore.save_path = g->save;
    restore.predict = g->options.predict;
    restore.ignore_eos = g->options.ignore_eos;
    restore.want_progress = g->terminal;
    message.body_case = HILL__MESSAGE__BODY_RESTORE_SESSION;
    message.restore_session = &restore;
    return client_send(&g->client, &message, why);
}

static int send_request(struct generation *g, struct hill_why *why)
{
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Generate generate = HILL__GENERATE__INIT;
    Hill__PromptPiece piece = HILL__PROMPT_PIECE__INIT, *pieces = &piece;
    Hill__Message message = HILL__MESSAGE__INIT;
    sampling.temperature = (float)g->options.temperature;
    sampling.top_k = g->options.top_k;
    sampling.top_p = (float)g->options.top_p;
    sampling.min_p = (float)g->options.min_p;
    sampling.repeat_penalty = (float)g->options.repeat_penalty;
    sampling.seed = g->options.seed;
    generate.score_from = g->options.score_from;
    if (g->options.token_ids) {
        generate.token_ids = g->ids;
        generate.n_token_ids = g->n_ids;
    } else if (g->options.special) {
        piece.text = (ProtobufCBinaryData){g->prompt_bytes, (uint8_t *)g->prompt};
        piece.kind = HILL__PROMPT_KIND__PROMPT_SPECIAL;
        generate.pieces = &pieces;
        generate.n_pieces = 1;
    } else {
        generate.prompt = (ProtobufCBinaryData){g->prompt_bytes, (uint8_t *)g->prompt};
    }
    generate.predict = g->options.predict;
    generate.ignore_eos = g->options.ignore_eos;
    generate.sampling = &sampling;
    generate.want_progress = g->terminal;
    generate.save_path = g->save;
    message.body_case = HILL__MESSAGE__BODY_GENERATE;
    message.generate = &generate;
    return client_send(&g->client, &message, why);
}

static void send_cancel(struct generation *g)
{
    Hill__Cancel cancel = HILL__CANCEL__INIT; /* id 0: the one of this connection */
    Hill__Message message = HILL__MESSAGE__INIT;
    message.body_case = HILL__MESSAGE__BODY_CANCEL;
    message.cancel = &cancel;
    client_send(&g->client, &message, NULL);
    g->cancelling = true;
}

static void send_ping(struct generation *g)
{
    Hill__StatusRequest request = HILL__STATUS_REQUEST__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    message.body_case = HILL__MESSAGE__BODY_STATUS_REQUEST;
    message.status_request = &request;
    client_send(&g->client, &message, NULL);
    g->last_ping_ns = clock_now_ns();
}

static void clear_progress(struct generation *g)
{
    if (g->progress_shown)
        fputs("\r\033[K", stderr);
    g->progress_shown = false;
}

static void show_progress(struct generation *g, const Hill__PrefillProgress *p)
{
    if (!g->terminal)
        return;
    fprintf(stderr, "\r\033[Kprefill %.0f / %.0f tokens, %.0f tokens/s, %.0f s left",
            p->tokens_done, p->tokens_total, p->tokens_per_second, p->seconds_left);
    fflush(stderr);
    g->progress_shown = true;
}

static int take_text(struct generation *g, const Hill__Text *t, struct hill_why *why)
{
    struct report *r = &g->report;
    char *text = realloc(r->text, r->text_bytes + t->text.len + 1);
    if (text)
        r->text = text;
    uint32_t *tokens = realloc(r->tokens, (r->n_tokens + 1) * sizeof *tokens);
    if (tokens)
        r->tokens = tokens;
    double *logprobs = realloc(r->logprobs, (r->n_tokens + 1) * sizeof *logprobs);
    if (logprobs)
        r->logprobs = logprobs;
    if (!text || !tokens || !logprobs)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the answer");
    if (t->text.len)
        memcpy(r->text + r->text_bytes, t->text.data, t->text.len);
    r->text_bytes += t->text.len;
    r->tokens[r->n_tokens] = t->token;
    r->logprobs[r->n_tokens] = t->logprob;
    r->n_tokens += t->token != UINT32_MAX; /* UINT32_MAX: the rest of a character, not a token */
    clear_progress(g);
    if (!g->options.json &&
        (fwrite(t->text.data, 1, t->text.len, stdout) != t->text.len || fflush(stdout) != 0))
        return hill_fail(why, HILL_E_IO, "writing the answer to stdout failed: %s",
                         strerror(errno));
    return 0;
}

/* 1: the request is over. */
static int take_message(struct generation *g, Hill__Message *message, struct hill_why *why)
{
    g->last_heard_ns = clock_now_ns();
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_ACCEPTED:
        g->accepted = true;
        return 0;
    case HILL__MESSAGE__BODY_PREFILL_PROGRESS:
        show_progress(g, message->prefill_progress);
        return 0;
    case HILL__MESSAGE__BODY_TEXT:
        return take_text(g, message->text, why);
    case HILL__MESSAGE__BODY_STATUS_REPLY:
        if (message->status_reply->uptime_seconds * 1e9 <
            (double)(g->last_heard_ns - g->started_ns) - 1e9)
            return hill_fail(why, HILL_E_PEER_GONE,
                             "the coordinator was replaced; the request is lost, ask again");
        return 0;
    case HILL__MESSAGE__BODY_REPLY:
        if (message->reply->code == 0)
            return 0;
        return hill_fail(why, message->reply->code, "%s", message->reply->text);
    case HILL__MESSAGE__BODY_SUMMARY:
        g->summary = message;
        g->report.summary = message->summary;
        if (message->summary->finish == HILL__FINISH_REASON__FINISH_ERROR)
            return hill_fail(why,
                             message->summary->code < 0 ? message->summary->code : HILL_E_PROTOCOL,
                             "%s", message->summary->text);
        if (message->summary->finish == HILL__FINISH_REASON__FINISH_CANCEL)
            return hill_fail(why, HILL_E_CANCELLED, "cancelled");
        return 1;
    default:
        return 0;
    }
}

static int follow(struct generation *g, struct hill_why *why)
{
    g->started_ns = g->last_heard_ns = g->last_ping_ns = clock_now_ns();
    for (;;) {
        Hill__Message *message = NULL;
        int code = client_receive(&g->client, clock_deadline_ms(PING_MS / 4), &message, why);
        if (code == HILL_E_CANCELLED) {
            if (g->cancelling)
                return code; /* asked twice: leave at once */
            clear_progress(g);
            send_cancel(g);
            continue;
        }
        if (code == 0) {
            code = take_message(g, message, why);
            if (message != g->summary)
                proto_free(message);
            if (code != 0)
                return code == 1 ? 0 : code;
        } else if (code != HILL_E_TIMEOUT) {
            return code;
        }
        int64_t now = clock_now_ns();
        if (now - g->last_ping_ns > CLOCK_MS(PING_MS))
            send_ping(g);
        if (now - g->last_heard_ns > CLOCK_MS(CLIENT_ANSWER_MS))
            return hill_fail(why, HILL_E_PEER_GONE, "the pipeline in %s stopped answering",
                             g->client.run_dir);
    }
}

static int print_result(struct generation *g, int code, struct hill_why *why)
{
    clear_progress(g);
    g->report.code = code;
    g->report.why = why->text;
    if (g->options.json) {
        json_t *object = report_json(&g->report);
        if (!object || json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) != 0 ||
            fputc('\n', stdout) == EOF || fflush(stdout) != 0)
            code =
                code != 0 ? code : hill_fail(why, HILL_E_IO, "writing the JSON to stdout failed");
        json_decref(object);
    } else if (g->report.text_bytes) {
        fputc('\n', stdout);
        fflush(stdout);
    }
    if (code != 0)
        fprintf(stderr, "hillctl: %s\n", why->text);
    else if (!g->options.json && g->terminal)
        report_print(stderr, &g->report);
    return hill_exit_code(code);
}

/* Connect, ask, follow. */
static int run(struct generation *g, const struct options *options, struct hill_why *why)
{
    char run_dir[HILL_PATH_BYTES];
    int code = hill_run_dir(run_dir, options, why);
    if (code == 0)
        code = client_open(&g->client, run_dir, why);
    if (code == 0)
        code = g->restore[0] ? send_restore(g, why) : send_request(g, why);
    return code == 0 ? follow(g, why) : code;
}

static int read_save(struct generation *g, const struct options *options, struct hill_why *why)
{
    const char *save = options_text(options, "save");
    return save ? session_path(g->save, save, why) : 0;
}

/* The exit code; the options are freed. */
static int finish(struct generation *g, struct options *options, int code, struct hill_why *why)
{
    int exit_code = print_result(g, code, why);
    client_close(&g->client);
    proto_free(g->summary);
    free(g->prompt);
    free(g->report.text);
    free(g->report.tokens);
    free(g->report.logprobs);
    free(g->ids);
    options_free(options);
    return exit_code;
}

#define SAVE_SPEC                                                                                  \
    {                                                                                              \
        .name = "save", .type = OPTION_PATH, .value = "FILE",                                      \
        .help = "at the end save the session, for hillctl restore"                                 \
    }

static const struct option_spec check_specs[] = {
    SAVE_SPEC,
    {.name = "check",
     .type = OPTION_FLAG,
     .help = "check the options and the prompt file, send nothing"},
};

int command_generate(int argc, char **argv)
{
    const struct option_table tables[] = {
        {.title = "request", .specs = hill_request_specs, .count = hill_request_count},
        HILL_COMMON_TABLE,
        {.title = "session and check", .specs = check_specs, .count = 2},
        {.specs = hill_pipeline_specs, .count = hill_pipeline_count, .foreign = true},
    };
    const struct option_program program = {
        .name = "hillctl generate",
        .usage = "(-p TEXT | -f FILE) [OPTIONS]",
        .summary = "Send one request to the running pipeline and stream the answer to stdout.",
        .example = "hillctl generate -f report.txt -n 64 --temp 0 --json",
        .tables = tables,
        .n_tables = 4,
    };
    struct options *options;
    int started = options_start(&options, &program, argc, argv);
    if (started != 0)
        return started == 1 ? 0 : hill_exit_code(started);
    struct generation g = {.client.signal_fd = -1, .terminal = isatty(STDERR_FILENO)};
    struct hill_why why = {""};
    int code = hill_request_read(&g.options, options, &why);
    g.report.scored = code == 0 && g.options.score_from > 0;
    if (code == 0)
        code = read_save(&g, options, &why);
    if (code == 0)
        code = take_prompt(&g, &why);
    if (code == 0 && options_flag(options, "check")) {
        free(g.prompt);
        free(g.ids);
        options_free(options);
        return 0;
    }
    if (code == 0)
        code = run(&g, options, &why);
    return finish(&g, options, code, &why);
}

/* ---- restore ------------------------------------------------------------------------------ */

static const struct option_spec restore_specs[] = {
    {.name = "predict",
     .letter = "n",
     .type = OPTION_INTEGER,
     .min = -1,
     .max = 1u << 24,
     .fallback = "-1",
     .value = "TOKENS",
     .help = "tokens to generate; -1: until the context is full"},
    {.name = "ignore-eos",
     .type = OPTION_FLAG,
     .help = "go on after a stop token, also when the session's request did not"},
    {.name = "json", .type = OPTION_FLAG, .help = "print one JSON object when done"},
    SAVE_SPEC,
    {.name = "check",
     .type = OPTION_FLAG,
     .help = "check the options and the session's header, send nothing"},
};

static int check_session(const char *path, struct hill_why *why)
{
    struct session_file file;
    int code = session_open(&file, path, why);
    session_close(&file);
    return code;
}

static int read_restore(struct generation *g, const struct options *options, struct hill_why *why)
{
    int64_t predict = options_integer(options, "predict");
    g->options.predict = predict < 0 ? HILL_PREDICT_UNTIL_CONTEXT : (uint32_t)predict;
    g->options.ignore_eos = options_flag(options, "ignore-eos");
    g->options.json = options_flag(options, "json");
    if (predict == 0)
        return hill_fail(why, HILL_E_INVALID,
                         "--predict 0: nothing to generate (-1: until the context is full)");
    if (options_positional_count(options) != 1)
        return hill_fail(why, HILL_E_INVALID,
                         "restore needs the session's FILE; try hillctl restore --help");
    int code = session_path(g->restore, options_positional(options, 0), why);
    return code ? code : read_save(g, options, why);
}

int command_restore(int argc, char **argv)
{
    const struct option_table tables[] = {
        {.title = "request", .specs = restore_specs, .count = 5},
        HILL_COMMON_TABLE,
        {.specs = hill_request_specs, .count = hill_request_count, .foreign = true},
        {.specs = hill_pipeline_specs, .count = hill_pipeline_count, .foreign = true},
    };
    const struct option_program program = {
        .name = "hillctl restore",
        .usage = "FILE [OPTIONS]",
        .summary = "Go on with a saved session: as if its request had never stopped, with the "
                   "sampling that it had.",
        .example = "hillctl restore /var/tmp/report.session -n 64",
        .tables = tables,
        .n_tables = 4,
        .positional_max = 1,
    };
    struct options *options;
    int started = options_start(&options, &program, argc, argv);
    if (started != 0)
        return started == 1 ? 0 : hill_exit_code(started);
    struct generation g = {.client.signal_fd = -1, .terminal = isatty(STDERR_FILENO)};
    struct hill_why why = {""};
    int code = read_restore(&g, options, &why);
    if (code == 0 && options_flag(options, "check"))
        code = check_session(g.restore, &why);
    else if (code == 0)
        code = run(&g, options, &why);
    if (code == 0 && options_flag(options, "check")) {
        options_free(options);
        return 0;
    }
    return finish(&g, options, code, &why);
}
