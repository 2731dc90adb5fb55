/*
 * hillctl/conversation.h - the turns of a chat, and the prompt that the model's template makes of
 * them.
 *
 * What: asks the coordinator for the template, renders by model/chat_template.h where the template
 * is known, and else by the helper (chat/chat_prompt.h). Who calls it: hillctl's generate and chat.
 * Failure: HILL_E_UNSUPPORTED when the model has no template or nothing can render it, and what
 * chat_render and the helper say. Concurrency: one thread.
 */
#pragma once

#include "model/chat_template.h"
#include "proto/client.h"
#include "proto/options_hill.h"

/* Options of a chat; CONVERSATION_SPECS_COUNT rows. */
#define CONVERSATION_SPECS                                                                         \
    HILL_SYSTEM_SPEC,                                                                              \
        OPTION("chat-template-file", PATH, "FILE",                                                 \
               "the chat template (Jinja) in this file, in place of the model's",                  \
               .unset_help = "the model's own"),                                                   \
        OPTION("no-think", FLAG, NULL,                                                             \
               "the template's enable_thinking is false: the model answers at once"),              \
        OPTION("check-model", PATH, "FILE",                                                        \
               "with --check: fail where this model has no chat template, either")
#define CONVERSATION_SPECS_COUNT 4u

struct conversation_options {
    const char *system;           /* NULL: the template's own, if any */
    ProtobufCBinaryData template; /* len 0: the model's own */
    bool no_think;
};

/* finish it after a failure, too. */
int conversation_options_read(struct conversation_options *out, const struct options *options,
                              struct hill_why *why);
void conversation_options_finish(struct conversation_options *options);

struct conversation {
    Hill__Message *info; /* a ModelInfo */
    bool no_think;
    const struct chat_format *format; /* NULL: the helper renders */
    struct chat_message *messages;    /* texts are the conversation's */
    unsigned count, room;
};

/* close it after a failure, too. */
int conversation_open(struct conversation *c, struct client *client,
                      const struct conversation_options *options, struct hill_why *why);
void conversation_close(struct conversation *c);

/* Copies the text. */
int conversation_add(struct conversation *c, enum chat_role role, const char *text, uint64_t bytes,
                     struct hill_why *why);
/* Take the last `count` messages away; the system text stays. */
void conversation_drop(struct conversation *c, unsigned count);
/* Messages that are turns: all but the system text. */
unsigned conversation_turns(const struct conversation *c);
/* Set, or with NULL remove, the system text. */
int conversation_set_system(struct conversation *c, const char *text, struct hill_why *why);
const char *conversation_system(const struct conversation *c); /* NULL: the template's own */

int conversation_render(const struct conversation *c, struct chat_prompt *out,
                        struct hill_why *why);
