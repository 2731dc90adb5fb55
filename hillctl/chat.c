/*
 * hillctl/chat.c - `hillctl chat`: a conversation in the terminal, through the model's own
 * template.
 *
 * Every turn sends the whole conversation as a prompt. A turn that fails is taken out again, so
 * that the conversation stays what it was. On a terminal Ctrl-C stops the answer, Ctrl-D ends the
 * program; without one every line of stdin is a turn, and the first failure ends the program.
 */
#include "hillctl/command_list.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/options_hill.h"
#include "proto/options_http.h"
#include "hillctl/asked_selection.h"
#include "hillctl/chat_lines.h"
#include "hillctl/conversation.h"
#include "hillctl/exchange.h"
#include "hillctl/prompt_file.h"
#include "proto/client.h"

struct chat {
    struct client client;
    struct hill_request_options options;
    struct conversation_options about;
    struct conversation conversation;
    struct exchange exchange;
    struct chat_lines lines;
    bool selects; /* otherwise than the pipeline */
    Hill__Selection selection;
    uint64_t key; /* of the conversation: what it has read and said is not computed again */
    char *text;   /* of a turn that takes several lines */
    size_t text_bytes;
    bool text_lacks;  /* some of it: out of memory */
    bool text_quoted; /* by QUOTES: no command */
    char *read;       /* of files: before what is said next */
    size_t read_bytes;
    bool ends; /* /exit */
};

/* ---- a turn ------------------------------------------------------------------------------ */

static void tell(const struct chat *chat, const char *text)
{
    if (chat->lines.terminal)
        fprintf(stderr, "%s\n", text);
}

/* What a person who reads along wants to know of an answer. */
static void tell_speed(const struct chat *chat)
{
    const Hill__Summary *m = chat->exchange.report.summary;
    if (!m || !chat->exchange.terminal)
        return;
    unsigned ctx = chat->conversation.info->model_info->ctx_tokens;
    bool no_room = chat->options.predict == HILL_PREDICT_UNTIL_CONTEXT ||
                   m->prompt_tokens + m->predicted_tokens >= ctx;
    if (m->history_tokens > m->reused_tokens)
        fprintf(stderr, "[the chat was computed again from token %u of %u on]\n", m->reused_tokens,
                m->history_tokens);
    fprintf(stderr,
            "[%u tokens, %.1f tokens/s; %u of %u tokens of the context used, %u of the prompt were "
            "computed%s]\n",
            m->predicted_tokens,
            m->gpu && m->gpu->predicted_ms > 0 ? report_steps_per_second(m->gpu) : 0,
            m->prompt_tokens + m->predicted_tokens, ctx, m->prompt_tokens - m->reused_tokens,
            m->finish == HILL__FINISH_REASON__FINISH_CANCEL   ? "; stopped"
            : m->finish != HILL__FINISH_REASON__FINISH_LENGTH ? ""
            : no_room ? "; there is no room for more: /clear or /undo"
                      : "; cut at -n");
}

static int ask(struct chat *chat, struct hill_why *why)
{
    struct chat_prompt prompt;
    int code = conversation_render(&chat->conversation, &prompt, why);
    if (code == 0) {
        const struct exchange_request request = {.options = &chat->options,
                                                 .selection =
                                                     chat->selects ? &chat->selection : NULL,
                                                 .pieces = prompt.pieces,
                                                 .n_pieces = prompt.n_pieces,
                                                 .answer_end = prompt.answer_end,
                                                 .save = "",
                                                 .conversation = chat->key};
        code = exchange_send(&chat->exchange, &request, why);
    }
    chat_prompt_finish(&prompt);
    return code ? code : exchange_follow(&chat->exchange, why);
}

/* Answer the conversation, whose last message is a user's; what came stays in it. A stopped answer
 * is one, too, when it has begun; 1: it had not. What still comes for a request that was left is
 * not for the next one, which has another connection. */
static int answer(struct chat *chat, struct hill_why *why)
{
    struct exchange *x = &chat->exchange;
    exchange_reset(x);
    int code = ask(chat, why);
    exchange_clear_progress(x);
    if (x->report.text_bytes) {
        fputc('\n', stdout);
        fflush(stdout);
    }
    struct hill_why lost;
    if (code && !x->report.summary && client_reconnect(&chat->client, &lost)) {
        *why = lost;
        return HILL_E_IO;
    }
    bool stopped = code == HILL_E_CANCELLED && chat->lines.terminal;
    if (code == 0 || (stopped && x->report.text_bytes)) {
        struct hill_why more;
        if (conversation_add(&chat->conversation, CHAT_ASSISTANT, x->report.text,
                             x->report.text_bytes, &more) == 0) {
            tell_speed(chat);
            return 0;
        }
        *why = more;
        code = HILL_E_NOMEM;
    }
    return stopped ? 1 : code;
}

/* 0, or the code that ends the program; what failed has been said. */
static int say_failure(const struct chat *chat, int code, const struct hill_why *why)
{
    fprintf(stderr, "hillctl: %s\n", why->text);
    if (code == HILL_E_TOO_LONG)
        tell(chat, conversation_turns(&chat->conversation)
                       ? "[the chat is as it was; /undo takes its last turn away, /clear begins "
                         "anew]"
                       : "[the chat is as it was]");
    bool lost = code == HILL_E_PEER_GONE || code == HILL_E_IO || code == HILL_E_NOMEM;
    return chat->lines.terminal && !lost ? 0 : code;
}

static void forget_read(struct chat *chat)
{
    free(chat->read);
    chat->read = NULL;
    chat->read_bytes = 0;
}

/* A file's text before what is said next, which begins on a line of its own. */
static int read_file(struct chat *chat, const char *path, struct hill_why *why)
{
    char *text = NULL, *larger = NULL;
    size_t bytes = 0;
    int code = strcmp(path, "-") == 0
                   ? hill_fail(why, HILL_E_INVALID, "stdin is what is said in a chat: name a file")
                   : prompt_file_read(&text, &bytes, path, why);
    if (code == 0 && !(larger = realloc(chat->read, chat->read_bytes + bytes + 1)))
        code = hill_fail(why, HILL_E_NOMEM, "out of memory for %s", path);
    if (code == 0) {
        chat->read = larger;
        memcpy(chat->read + chat->read_bytes, text, bytes);
        chat->read_bytes += bytes;
        if (bytes && text[bytes - 1] != '\n')
            chat->read[chat->read_bytes++] = '\n';
    }
    free(text);
    return code;
}

/* What was read goes with the turn, also with one that fails. */
static int add_turn(struct chat *chat, const char *text, size_t bytes, struct hill_why *why)
{
    if (!chat->read)
        return conversation_add(&chat->conversation, CHAT_USER, text, bytes, why);
    char *both = realloc(chat->read, chat->read_bytes + bytes);
    if (!both)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the turn");
    chat->read = both;
    memcpy(both + chat->read_bytes, text, bytes);
    int code =
        conversation_add(&chat->conversation, CHAT_USER, both, chat->read_bytes + bytes, why);
    forget_read(chat);
    return code;
}

static int take_turn(struct chat *chat, const char *text, size_t bytes)
{
    struct hill_why why = {""};
    bool had_read = chat->read;
    int code = add_turn(chat, text, bytes, &why);
    if (code)
        return say_failure(chat, code, &why);
    code = answer(chat, &why);
    if (code)
        conversation_drop(&chat->conversation, 1);
    if (code > 0)
        tell(chat, "[stopped before the answer began; what you said is not part of the chat]");
    int end = code < 0 ? say_failure(chat, code, &why) : 0;
    if (code && had_read)
        tell(chat, "[what was read went with that turn: /read it again, or a shorter part of it]");
    return end;
}

/* ---- commands ---------------------------------------------------------------------------- */

static int show_help(struct chat *chat, const char *argument);

static int clear(struct chat *chat, const char *argument)
{
    (void)argument;
    conversation_drop(&chat->conversation, conversation_turns(&chat->conversation));
    forget_read(chat);
    tell(chat, "[the chat begins anew]");
    return 0;
}

static int set_system(struct chat *chat, const char *argument)
{
    struct hill_why why = {""};
    const char *now = conversation_system(&chat->conversation);
    if (!*argument) {
        fprintf(stderr, "%s\n", now ? now : "[the template's own system text, if it has one]");
        return 0;
    }
    bool own = strcmp(argument, "-") == 0;
    int code = conversation_set_system(&chat->conversation, own ? NULL : argument, &why);
    if (code)
        return say_failure(chat, code, &why);
    tell(chat, own ? "[the system text is the template's own, if it has one]"
                   : "[the system text is set]");
    return 0;
}

static int undo(struct chat *chat, const char *argument)
{
    (void)argument;
    bool any = conversation_turns(&chat->conversation) > 0;
    conversation_drop(&chat->conversation, 2);
    tell(chat, any ? "[the last turn and its answer are taken back]" : "[there is no turn yet]");
    return 0;
}

static int retry(struct chat *chat, const char *argument)
{
    (void)argument;
    struct conversation *c = &chat->conversation;
    if (!conversation_turns(c)) {
        tell(chat, "[there is no turn yet]");
        return 0;
    }
    struct hill_why why = {""};
    const struct chat_message old = c->messages[--c->count];
    int code = answer(chat, &why);
    if (code)
        c->messages[c->count++] = old; /* there is room: it was there before */
    else
        free((char *)old.text);
    if (code > 0)
        tell(chat, "[stopped before the answer began; the one before stays]");
    return code < 0 ? say_failure(chat, code, &why) : 0;
}

static void tell_read(const struct chat *chat, const char *path)
{
    if (chat->lines.terminal)
        fprintf(stderr, "[%s: with it, %zu bytes stand before what you say next]\n", path,
                chat->read_bytes);
}

static int read_document(struct chat *chat, const char *argument)
{
    struct hill_why why = {""};
    int code = *argument ? read_file(chat, argument, &why)
                         : hill_fail(&why, HILL_E_INVALID, "/read needs a FILE");
    if (code == 0)
        tell_read(chat, argument);
    return code ? say_failure(chat, code, &why) : 0;
}

static int save(struct chat *chat, const char *argument)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    const struct conversation *c = &chat->conversation;
    struct hill_why why = {""};
    json_t *list = json_array();
    bool all = true;
    int code = 0;
    for (unsigned i = 0; i < c->count; i++)
        all &= !json_array_append_new(
            list, json_pack("{s:s, s:s%}", "role", roles[c->messages[i].role], "content",
                            c->messages[i].text, (size_t)c->messages[i].bytes));
    int fd = *argument && all ? open(argument, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (!*argument)
        code = hill_fail(&why, HILL_E_INVALID, "/save needs a FILE");
    else if (!all)
        code = hill_fail(&why, HILL_E_INVALID,
                         "the chat cannot be saved in %.300s: a turn is not UTF-8", argument);
    else if (fd < 0)
        code = hill_fail(&why, HILL_E_INVALID, "the chat cannot be saved in %.300s: %s", argument,
                         strerror(errno));
    else if (json_dumpfd(list, fd, JSON_INDENT(2)) || write(fd, "\n", 1) != 1) {
        code = hill_fail(&why, HILL_E_NOSPACE, "writing the chat to %.300s failed", argument);
        unlink(argument); /* a part of a chat, in a file of our own */
    }
    if (fd >= 0)
        close(fd);
    json_decref(list);
    if (code)
        return say_failure(chat, code, &why);
    if (chat->lines.terminal)
        fprintf(stderr, "[saved in %s]\n", argument);
    return 0;
}

static int leave(struct chat *chat, const char *argument)
{
    (void)argument;
    chat->ends = true;
    return 0;
}

static const struct {
    const char *name, *argument, *help;
    int (*run)(struct chat *chat, const char *argument);
} commands[] = {
    {"/help", "", "this list", show_help},
    {"/clear", "", "begin anew; the system text stays", clear},
    {"/system", " [TEXT]", "show or set the system text; -: the template's own", set_system},
    {"/undo", "", "take the last turn and its answer back", undo},
    {"/retry", "", "answer the last turn again", retry},
    {"/read", " FILE", "put a text file before what you say next", read_document},
    {"/save", " FILE", "write the chat to a new file, as JSON", save},
    {"/exit", "", "end (as Ctrl-D)", leave},
};

static int show_help(struct chat *chat, const char *argument)
{
    (void)chat;
    (void)argument;
    for (unsigned i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(stderr, "  %s%-*s %s\n", commands[i].name, (int)(16 - strlen(commands[i].name)),
                commands[i].argument, commands[i].help);
    fputs("  a line that ends in \\ goes on in the next; \"\"\" begins and ends a text of several "
          "lines;\n  // begins a turn with /; Ctrl-C stops an answer\n",
          stderr);
    return 0;
}

static int take_command(struct chat *chat, const char *text)
{
    size_t length = strcspn(text, " ");
    for (unsigned i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strlen(commands[i].name) == length && memcmp(commands[i].name, text, length) == 0)
            return commands[i].run(chat, text + length + strspn(text + length, " "));
    struct hill_why why;
    hill_fail(&why, 0, "%.*s is no command; /help lists them, // begins a turn with /",
              (int)(length < 40 ? length : 40), text);
    return say_failure(chat, HILL_E_INVALID, &why);
}

/* ---- input ------------------------------------------------------------------------------- */

static void append(struct chat *chat, const char *text, size_t bytes)
{
    char *larger = realloc(chat->text, chat->text_bytes + bytes + 1);
    chat->text_lacks |= !larger;
    if (!larger)
        return;
    chat->text = larger;
    memcpy(chat->text + chat->text_bytes, text, bytes);
    chat->text_bytes += bytes;
    chat->text[chat->text_bytes] = '\0';
}

#define QUOTES "\"\"\""

/* Add a line to the turn; true when the turn goes on after it. */
static bool add_line(struct chat *chat, const char *line, bool *block)
{
    size_t bytes = strlen(line), mark = strlen(QUOTES);
    if (*block) {
        bool ends = bytes >= mark && strcmp(line + bytes - mark, QUOTES) == 0;
        append(chat, line, ends ? bytes - mark : bytes);
        if (!ends)
            append(chat, "\n", 1);
        return *block = !ends;
    }
    if (!chat->text_bytes && strncmp(line, QUOTES, mark) == 0) {
        *block = chat->text_quoted = true;
        return bytes == mark || add_line(chat, line + mark, block);
    }
    bool more = bytes && line[bytes - 1] == '\\';
    append(chat, line, more ? bytes - 1 : bytes);
    if (more)
        append(chat, "\n", 1);
    return more;
}

/* What is said next, in chat->text: of one or of several lines. */
static enum chat_line read_turn(struct chat *chat)
{
    bool block = false, more = true;
    chat->text_bytes = 0;
    chat->text_lacks = chat->text_quoted = false;
    append(chat, "", 0);
    for (bool first = true; more; first = false) {
        char *line = NULL;
        enum chat_line what = chat_lines_read(&chat->lines, first ? "> " : ". ", &line);
        if (what == CHAT_LINE_END && !first)
            return CHAT_LINE; /* what there is of it */
        if (what != CHAT_LINE)
            return what;
        if (line[0])
            chat_lines_remember(&chat->lines, line);
        more = add_line(chat, line, &block);
    }
    return CHAT_LINE;
}

static int take_text(struct chat *chat)
{
    const char *text = chat->text;
    if (chat->text_lacks)
        return say_failure(chat, HILL_E_NOMEM, &(struct hill_why){"out of memory for the turn"});
    if (chat_space_left(text, chat->text_bytes) == chat->text_bytes)
        return 0;
    bool slash = text[0] == '/' && !chat->text_quoted;
    if (slash && text[1] != '/')
        return take_command(chat, text);
    unsigned skip = slash;
    return take_turn(chat, text + skip, chat->text_bytes - skip);
}

/* Until the input ends: 0 or the code that ended it. */
static int converse(struct chat *chat)
{
    for (;;) {
        enum chat_line what = read_turn(chat);
        if (what == CHAT_LINE_TERMINATED || (what == CHAT_LINE_INTERRUPT && !chat->lines.terminal))
            return HILL_E_CANCELLED;
        if (what == CHAT_LINE_INTERRUPT) {
            fputs("\n", stderr);
            tell(chat, "[Ctrl-D or /exit ends the chat]");
            continue;
        }
        if (what == CHAT_LINE_END) {
            tell(chat, "");
            return 0;
        }
        int code = take_text(chat);
        if (code || chat->ends)
            return code;
        if (chat->client.signal == SIGTERM) /* it has stopped an answer, and ends the chat, too */
            return HILL_E_CANCELLED;
    }
}

/* ---- the command ------------------------------------------------------------------------- */

static int open_chat(struct chat *chat, const struct options *options, struct hill_why *why)
{
    char run_dir[HILL_PATH_BYTES];
    int code = hill_request_read_numbers(&chat->options, options, why);
    if (code == 0 && chat->options.json)
        code = hill_fail(why, HILL_E_INVALID, "a chat has no JSON; see generate --chat --json");
    if (code == 0)
        code = asked_selection_check(options, &chat->selects, why);
    const char *file = options_text(options, "file");
    bool check = options_flag(options, "check");
    if (code == 0 && file && !(check && prompt_file_is_stream(file)))
        code = read_file(chat, file, why);
    if (code == 0)
        code = conversation_options_read(&chat->about, options, why);
    if (code || check)
        return code;
    code = hill_run_dir(run_dir, options, why);
    if (code == 0)
        code = client_open(&chat->client, run_dir, why);
    if (code == 0)
        code = conversation_open(&chat->conversation, &chat->client, &chat->about, why);
    if (code == 0 && chat->selects)
        code = asked_selection_make(options, &chat->client, &chat->selection, why);
    if (code == 0)
        code = chat_lines_open(&chat->lines, chat->client.signal_fd, why);
    chat->key = client_random();
    chat->exchange.client = &chat->client;
    chat->exchange.terminal = isatty(STDERR_FILENO);
    return code;
}

static void greet(const struct chat *chat)
{
    const struct conversation *c = &chat->conversation;
    const char *slash = strrchr(c->info->model_info->path, '/');
    if (chat->lines.terminal)
        fprintf(stderr, "%s, chat template %s, context %u tokens; /help lists the commands\n",
                slash ? slash + 1 : c->info->model_info->path,
                c->format ? chat_format_name(c->format) : "by Jinja",
                c->info->model_info->ctx_tokens);
}

static const struct option_spec chat_specs[] = {
    CONVERSATION_SPECS,
    OPTION("file", PATH, "FILE", "a text file that stands before the first turn, as /read puts it",
           .letter = "f"),
    OPTION("check", FLAG, NULL, "check the options, ask nothing"),
};

static int chat_with(const struct options *options, struct hill_why *why)
{
    struct chat chat = {.client.signal_fd = -1};
    int code = open_chat(&chat, options, why);
    if (code == 0 && !options_flag(options, "check")) {
        greet(&chat);
        if (chat.read)
            tell_read(&chat, options_text(options, "file"));
        code = converse(&chat);
    }
    chat_lines_close(&chat.lines);
    exchange_reset(&chat.exchange);
    conversation_close(&chat.conversation);
    conversation_options_finish(&chat.about);
    client_close(&chat.client);
    free(chat.text);
    free(chat.read);
    return code;
}

int command_chat(int argc, char **argv)
{
    const struct option_table tables[] = {
        {.title = "chat", .specs = chat_specs, .count = CONVERSATION_SPECS_COUNT + 2},
        {.title = "answers",
         .specs = hill_request_specs + HILL_PROMPT_SPECS,
         .count = hill_request_count - HILL_PROMPT_SPECS},
        {.title = "selection (on the command line alone: else the pipeline's)",
         .specs = asked_selection_specs(),
         .count = ASKED_SELECTION_SPECS},
        HILL_COMMON_TABLE,
        {.specs = hill_request_specs, .count = HILL_PROMPT_SPECS, .foreign = true},
        {.specs = hill_pipeline_specs, .count = hill_pipeline_count, .foreign = true},
        HILL_FOREIGN_HTTP_TABLE,
    };
    const struct option_program program = {
        .name = "hillctl chat",
        .usage = "[OPTIONS]",
        .summary = "Talk with the model of the running pipeline, through its own chat template.\n"
                   "Without a terminal every line of stdin is a turn.",
        .example = "hillctl chat --system 'Answer in one sentence.' --temp 0.5",
        .tables = tables,
        .n_tables = sizeof tables / sizeof tables[0],
        .hints = hill_hints,
        .n_hints = hill_hint_count,
    };
    return options_main(&program, argc, argv, NULL, chat_with);
}
