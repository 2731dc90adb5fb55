/*
 * model/chat_template.h - a conversation as the prompt that a model's chat template makes of it.
 *
 * What: the common templates, recognised by the xxHash of their text and by nothing else: a known
 * text has a format (chat_formats.h) that renders as the template does, and of an unknown one it is
 * unknown what it does. A text is taken as Jinja reads it: CRLF is LF, one newline at the end does
 * not count. In place of a template a file may have llama.cpp's name of a format (chatml, llama3,
 * mistral-v7 ...): those of chat_template.c's table are known, too.
 * Today's date stands where the template puts it; a template that would answer a tool is rendered
 * as without tools. A system text for a template that has no place for one is put before
 * the first user's text, with an empty line between them.
 * The prompt is a list of pieces (model/tokenizer.h): the template's own text, in which control
 * tokens are tokens, the user's and the system text, in which nothing is, and earlier answers, in
 * which user-defined tokens are: nobody can put a control token into a prompt by typing it.
 * Who calls it: chat/, hillctl, the gateway, tools/eval. Concurrency: none, but constants are
 * shared.
 */
#pragma once

#include <stdint.h>
#include <time.h>

#include "base/error.h"
#include "model/tokenizer.h"

struct chat_format;

/* CHAT_TOOL: what a tool has answered; it stands where a user's text does, and several in a row are
 * one turn, each on a line of its own. */
enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL };

struct chat_message {
    enum chat_role role;
    const char *text; /* any bytes; no NUL needed */
    uint64_t bytes;
    const char *before, *added; /* of a system, user's or tool's text: what the template says before
                                   and after it (tools), in which user-defined tokens are tokens;
                                   NULL: nothing. added, of an answer: its calls, below what is
                                   left of the text */
    uint64_t before_bytes, added_bytes;
    const char *thought; /* of an answer: its reasoning, where that came apart from the text */
    uint64_t thought_bytes;
    bool tools; /* of the first message: there are tools, of which Llama 3.1's head tells */
};

/* What the template needs to know of the model, as its vocabulary spells it; "" for none. */
struct chat_vocabulary {
    const char *bos, *eos;
    time_t now; /* for templates that tell the date; local time */
};

/* A rendered conversation; texts belong to it. */
struct chat_prompt {
    struct prompt_piece *pieces;
    uint64_t n_pieces;
    char *answer_end; /* what the template puts after an answer; its first control token ends one */
    char *texts;
};

/* NULL: not known. */
const struct chat_format *chat_format_find(const char *text, uint64_t bytes);
/* Bytes of a text that is a name, since nothing in it is Jinja's; 0: a template. */
uint64_t chat_template_name(const char *text, uint64_t bytes);
const char *chat_format_name(const struct chat_format *format);

/* How tools are told of and called in the format's template. */
enum chat_tools {
    CHAT_TOOLS_NONE,
    CHAT_TOOLS_TAGS, /* ChatML (Qwen, SmolLM): in the system text; <tool_call>JSON</tool_call> */
    CHAT_TOOLS_JSON, /* Llama 3: before the first user's text; the answer is the call's JSON */
};
enum chat_tools chat_format_tools(const struct chat_format *format); /* NULL: none */
/* The system text of a conversation that has none, in *bytes of it; NULL: there is none. */
const char *chat_format_system(const struct chat_format *format, uint64_t *bytes);

/* Is it [system] user (assistant user)*, where a user's later texts may be a tool's? A format whose
 * templates render them in any order (system_next) wants a user's or a system text first, and one
 * of these or a tool's last. HILL_E_INVALID with the reason when not. format NULL: not known. */
int chat_check(const struct chat_format *format, const struct chat_message *messages,
               unsigned count, struct hill_why *why);

/* Render, with what begins an answer at the end. HILL_E_INVALID (chat_check), HILL_E_NOMEM. */
int chat_render(struct chat_prompt *out, const struct chat_format *format,
                const struct chat_vocabulary *vocabulary, const struct chat_message *messages,
                unsigned count, struct hill_why *why);
void chat_prompt_finish(struct chat_prompt *prompt);

/* White space as Python's str.strip knows it: bytes of it at the start or at the end of a text. */
uint64_t chat_space_left(const char *text, uint64_t bytes);
uint64_t chat_space_right(const char *text, uint64_t bytes);
