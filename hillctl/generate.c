/*
 * hillctl/generate.c - `hillctl generate` and `hillctl restore`: one request, streamed.
 *
 * Text goes to stdout as it comes (with --json: one object at the end), progress and errors to
 * stderr (exchange.h). With --chat the prompt is one turn of a conversation.
 */
#include "hillctl/command_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/options_hill.h"
#include "proto/options_http.h"
#include "proto/client.h"
#include "hillctl/asked_selection.h"
#include "hillctl/conversation.h"
#include "hillctl/exchange.h"
#include "hillctl/prompt_file.h"
#include "hillctl/session_path.h"
#include "session/session.h"

struct generation {
    struct client client;
    struct hill_request_options options;
    char *prompt;
    size_t prompt_bytes;
    uint32_t *ids; /* with --token-ids: what the prompt says */
    size_t n_ids;
    char restore[HILL_PATH_BYTES], save[HILL_PATH_BYTES]; /* sessions, or empty */
    bool from_prompt, selects;                            /* a restored one: as asked */
    uint64_t after;                                       /* a finished request; 0: none */
    bool chat;
    struct conversation_options about; /* of a chat */
    struct exchange exchange;
};

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

/* With --check what stdin, a pipe or a device brings stays there: the request itself reads it. */
static int take_prompt(struct generation *g, bool check, struct hill_why *why)
{
    const char *file = g->options.file;
    if (check && file && (strcmp(file, "-") == 0 || prompt_file_is_stream(file)))
        return 0;
    if (file) {
        int code = prompt_file_read(&g->prompt, &g->prompt_bytes, file, why);
        if (code == 0 && g->chat && g->prompt_bytes && g->prompt[g->prompt_bytes - 1] == '\n')
            g->prompt_bytes--; /* of an editor, not of what is said */
        return code || !g->options.token_ids ? code : read_token_ids(g, why);
    }
    g->prompt = strdup(g->options.prompt);
    if (!g->prompt)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the prompt");
    g->prompt_bytes = strlen(g->prompt);
    return g->options.token_ids ? read_token_ids(g, why) : 0;
}

static int send_restore(struct generation *g, const struct options *options, struct hill_why *why)
{
    Hill__RestoreSession restore = HILL__RESTORE_SESSION__INIT;
    Hill__Selection selection;
    int code = g->selects ? asked_selection_make(options, &g->client, &selection, why) : 0;
    if (code)
        return code;
    restore.selection = g->selects ? &selection : NULL;
    restore.from_prompt = g->from_prompt;
    restore.path = g->restore;
    restore.save_path = g->save;
    restore.predict = g->options.predict;
    restore.ignore_eos = g->options.ignore_eos;
    restore.want_progress = g->exchange.terminal;
    Hill__PromptPiece piece = HILL__PROMPT_PIECE__INIT, *pieces[] = {&piece};
    piece.text = (ProtobufCBinaryData){g->prompt_bytes, (uint8_t *)g->prompt};
    piece.kind =
        g->options.special ? HILL__PROMPT_KIND__PROMPT_SPECIAL : HILL__PROMPT_KIND__PROMPT_TEXT;
    restore.pieces = pieces;
    restore.n_pieces = g->prompt && !g->n_ids ? 1 : 0;
    restore.token_ids = g->ids;
    restore.n_token_ids = g->n_ids;
    Hill__Message message = PROTO_MESSAGE(RESTORE_SESSION, restore_session, &restore);
    return exchange_send_order(&g->exchange, &message, why);
}

/* The prompt as it is, or as the only user's text of a conversation. */
static int send_request(struct generation *g, const struct options *options, struct hill_why *why)
{
    const struct prompt_piece whole = {g->prompt, g->prompt_bytes,
                                       g->options.special ? PROMPT_SPECIAL : PROMPT_TEXT};
    struct exchange_request request = {.options = &g->options, .save = g->save, .after = g->after};
    struct chat_prompt chat = {0};
    Hill__Selection selection;
    int code = g->selects ? asked_selection_make(options, &g->client, &selection, why) : 0;
    request.selection = g->selects ? &selection : NULL;
    request.pieces = &whole;
    request.n_pieces = 1;
    request.ids = g->ids;
    request.n_ids = g->n_ids;
    if (g->chat && code == 0) {
        struct conversation conversation;
        code = conversation_open(&conversation, &g->client, &g->about, why);
        if (code == 0)
            code = conversation_add(&conversation, CHAT_USER, g->prompt, g->prompt_bytes, why);
        if (code == 0)
            code = conversation_render(&conversation, &chat, why);
        conversation_close(&conversation);
        request.pieces = chat.pieces;
        request.n_pieces = chat.n_pieces;
        request.answer_end = chat.answer_end;
    }
    if (code == 0)
        code = exchange_send(&g->exchange, &request, why);
    chat_prompt_finish(&chat);
    return code;
}

static int print_result(struct generation *g, int code, struct hill_why *why)
{
    exchange_clear_progress(&g->exchange);
    g->exchange.report.code = code;
    g->exchange.report.why = why->text;
    if (g->options.json) {
        int written = report_write_json(report_json(&g->exchange.report), code ? NULL : why);
        code = code ? code : written;
    } else if (g->exchange.report.text_bytes) {
        fputc('\n', stdout);
        fflush(stdout);
    }
    if (code == 0 && !g->options.json && g->exchange.terminal)
        report_print(stderr, &g->exchange.report);
    return code;
}

/* Connect, ask, follow. */
static int run(struct generation *g, const struct options *options, struct hill_why *why)
{
    char run_dir[HILL_PATH_BYTES];
    int code = hill_run_dir(run_dir, options, why);
    if (code == 0)
        code = client_open(&g->client, run_dir, why);
    g->exchange.client = &g->client;
    g->exchange.quiet = g->options.json;
    if (code == 0)
        code = g->restore[0] ? send_restore(g, options, why) : send_request(g, options, why);
    if (code != 0)
        return code;
    return exchange_follow(&g->exchange, why);
}

static int read_save(struct generation *g, const struct options *options, struct hill_why *why)
{
    const char *save = options_text(options, "save");
    return save ? session_path_to_write(g->save, save, why) : 0;
}

static int finish(struct generation *g, int code, struct hill_why *why)
{
    code = print_result(g, code, why);
    client_close(&g->client);
    exchange_reset(&g->exchange);
    conversation_options_finish(&g->about);
    free(g->prompt);
    free(g->ids);
    return code;
}

#define SAVE_SPEC OPTION("save", PATH, "FILE", "at the end save the session, for hillctl restore")

static const struct option_spec check_specs[] = {
    SAVE_SPEC,
    OPTION("check", FLAG, NULL,
           "check the options, the prompt file (a pipe stays unread) and the folder of --save; "
           "send nothing"),
};

static const struct option_spec after_specs[] = {
    OPTION("after", INTEGER, "REQUEST",
           "go on after a finished request that is kept (request_id of its JSON): its prompt and "
           "answer come before this prompt, and are not computed again",
           .min = 1, .max = 9007199254740991.0),
};

static int read_after(struct generation *g, const struct options *options, struct hill_why *why)
{
    if (!options_text(options, "after"))
        return 0;
    g->after = (uint64_t)options_integer(options, "after");
    if (g->chat || g->options.score_from || g->options.no_prefix_cache)
        return hill_fail(why, HILL_E_INVALID, "--after and %s exclude each other",
                         g->chat                 ? "--chat"
                         : g->options.score_from ? "--score-from"
                                                 : "--no-prefix-cache");
    return 0;
}

static const struct option_spec chat_specs[] = {
    OPTION("chat", FLAG, NULL,
           "the prompt is what a person says; the model's chat template is put around it"),
    CONVERSATION_SPECS,
};

static int read_chat(struct generation *g, const struct options *options, struct hill_why *why)
{
    g->chat = options_flag(options, "chat");
    const char *lacks = options_text(options, "system")               ? "system"
                        : options_text(options, "chat-template-file") ? "chat-template-file"
                        : options_flag(options, "no-think")           ? "no-think"
                                                                      : NULL;
    if (lacks && !g->chat)
        return hill_fail(why, HILL_E_INVALID, "--%s needs --chat", lacks);
    if (g->chat && g->options.special)
        return hill_fail(why, HILL_E_INVALID, "--special and --chat exclude each other");
    return g->chat ? conversation_options_read(&g->about, options, why) : 0;
}

static int generate(const struct options *options, struct hill_why *why)
{
    struct generation g = {.client.signal_fd = -1, .exchange.terminal = isatty(STDERR_FILENO)};
    int code = hill_request_read(&g.options, options, why);
    g.exchange.report.scored = code == 0 && g.options.score_from > 0;
    if (code == 0)
        code = read_save(&g, options, why);
    if (code == 0)
        code = read_chat(&g, options, why);
    if (code == 0)
        code = read_after(&g, options, why);
    if (code == 0)
        code = asked_selection_check(options, &g.selects, why);
    bool check = options_flag(options, "check");
    if (code == 0)
        code = take_prompt(&g, check, why);
    if (code == 0 && check) {
        conversation_options_finish(&g.about);
        free(g.prompt);
        free(g.ids);
        return 0;
    }
    if (code == 0)
        code = run(&g, options, why);
    return finish(&g, code, why);
}

int command_generate(int argc, char **argv)
{
    const struct option_table tables[] = {
        {.title = "request", .specs = hill_request_specs, .count = hill_request_count},
        HILL_COMMON_TABLE,
        {.title = "chat", .specs = chat_specs, .count = CONVERSATION_SPECS_COUNT + 1},
        {.title = "selection (on the command line alone: else the pipeline's)",
         .specs = asked_selection_specs(),
         .count = ASKED_SELECTION_SPECS},
        {.title = "what finished requests have left", .specs = after_specs, .count = 1},
        {.title = "session and check", .specs = check_specs, .count = 2},
        {.specs = hill_pipeline_specs, .count = hill_pipeline_count, .foreign = true},
        HILL_FOREIGN_HTTP_TABLE,
    };
    const struct option_program program = {
        .name = "hillctl generate",
        .usage = "(-p TEXT | -f FILE) [OPTIONS]",
        .summary = "Send one request to the running pipeline and stream the answer to stdout.",
        .example = "hillctl generate -f report.txt -n 64 --temp 0 --json",
        .tables = tables,
        .n_tables = sizeof tables / sizeof tables[0],
        .hints = hill_hints,
        .n_hints = hill_hint_count,
        .notes =
            "A byte order mark at the beginning of -f FILE is dropped; with --chat one newline "
            "at its end, too.",
    };
    return options_main(&program, argc, argv, NULL, generate);
}

/* ---- restore ------------------------------------------------------------------------------ */

static const struct option_spec restore_specs[] = {
    OPTION("predict", INTEGER, "TOKENS", "tokens to generate; -1: until the context is full",
           .letter = "n", .min = -1, .max = 1u << 24, .fallback = "-1"),
    OPTION("ignore-eos", FLAG, NULL,
           "go on after a stop token, also when the session's request did not"),
    OPTION("json", FLAG, NULL, "print one JSON object when done"),
    OPTION("from-prompt", FLAG, NULL,
           "answer the session's prompt again from the first token on; of one saved with -n 1"),
    SAVE_SPEC,
    OPTION("check", FLAG, NULL,
           "check the options, the session's header and the folder of --save; send nothing"),
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
    g->from_prompt = options_flag(options, "from-prompt");
    int code = hill_request_read_text(&g->options, options, why);
    if (code)
        return code;
    if (predict == 0)
        return hill_fail(why, HILL_E_INVALID,
                         "--predict 0: nothing to generate (-1: until the context is full)");
    if (options_positional_count(options) != 1)
        return hill_fail(why, HILL_E_INVALID,
                         "restore needs the session's FILE; try hillctl restore --help");
    code = session_path(g->restore, options_positional(options, 0), why);
    if (code == 0)
        code = asked_selection_check(options, &g->selects, why);
    return code ? code : read_save(g, options, why);
}

static int restore(const struct options *options, struct hill_why *why)
{
    struct generation g = {.client.signal_fd = -1, .exchange.terminal = isatty(STDERR_FILENO)};
    int code = read_restore(&g, options, why);
    bool check = options_flag(options, "check");
    if (code == 0 && (g.options.prompt || g.options.file))
        code = take_prompt(&g, check, why);
    if (code == 0 && g.prompt && !g.prompt_bytes)
        code = hill_fail(why, HILL_E_INVALID, "the question is empty");
    if (code == 0 && check) {
        code = check_session(g.restore, why);
        if (code == 0) {
            free(g.prompt);
            free(g.ids);
            return 0;
        }
    } else if (code == 0) {
        code = run(&g, options, why);
    }
    return finish(&g, code, why);
}

int command_restore(int argc, char **argv)
{
    const struct option_table tables[] = {
        {.title = "request", .specs = restore_specs, .count = 6},
        {.title =
             "a question on the session, after its tokens; hashes are the answer's alone (of a "
             "document saved with -n 1: after the document)",
         .specs = hill_request_specs,
         .count = HILL_TEXT_SPECS},
        {.title =
             "selection (on the command line alone, of a session saved with -n 1; else as it was "
             "saved)",
         .specs = asked_selection_specs(),
         .count = ASKED_SELECTION_SPECS},
        HILL_COMMON_TABLE,
        {.specs = hill_request_specs + HILL_TEXT_SPECS,
         .count = hill_request_count - HILL_TEXT_SPECS,
         .foreign = true},
        {.specs = hill_pipeline_specs, .count = hill_pipeline_count, .foreign = true},
        HILL_FOREIGN_HTTP_TABLE,
    };
    const struct option_program program = {
        .name = "hillctl restore",
        .usage = "FILE [-p TEXT | -f FILE] [OPTIONS]",
        .summary = "Go on with a saved session: as if its request had never stopped, with the "
                   "sampling that it had;\nor ask it a question: only the question is computed.",
        .example = "hillctl restore /var/tmp/report.session -p 'What does it cost?' -n 64",
        .tables = tables,
        .n_tables = sizeof tables / sizeof tables[0],
        .hints = hill_hints,
        .n_hints = hill_hint_count,
        .positional_max = 1,
    };
    return options_main(&program, argc, argv, NULL, restore);
}
