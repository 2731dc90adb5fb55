/*
 * chat/chat_prompt.h - a conversation as the prompt that the running model's template makes of it.
 *
 * What: by model/chat_template.h where the template is known, and else by the helper process
 * (chat_helper.h), which takes up to CHAT_HELPER_WALL_S seconds. Who calls it: hillctl's chat,
 * the gateway. Failure: HILL_E_UNSUPPORTED when the model has no template or nothing can render it;
 * HILL_E_INVALID, turns in an order that a chat has not; HILL_E_NOMEM; why says which. Concurrency:
 * stateless.
 */
#pragma once

#include "model/chat_template.h"
#include "proto/hill.pb-c.h"

/* A file's template, to stand in place of models' own; out->data is to be freed. HILL_E_INVALID:
 * the file cannot be read, is empty, or is larger than a template can be. */
int chat_prompt_read_template(ProtobufCBinaryData *out, const char *path, struct hill_why *why);
/* A copy of it in place of the model's own. HILL_E_NOMEM: the model's own stays. */
int chat_prompt_set_template(Hill__ModelInfo *info, const ProtobufCBinaryData *text,
                             struct hill_why *why);

/* Has the model a template, or the name of a built-in one? HILL_E_UNSUPPORTED and one line when
 * not. */
int chat_prompt_check(const Hill__ModelInfo *info, struct hill_why *why);
/* NULL: none that is built in; the helper renders. */
const struct chat_format *chat_prompt_format(const Hill__ModelInfo *info);

/* Has the template a switch for the model's reasoning? */
bool chat_prompt_has_thinking(const Hill__ModelInfo *info);

/* *out is chat_prompt_finish'ed, after a failure, too. no_think: the switch is off, and the helper
 * renders; stop_fd: of chat_helper.h. */
int chat_prompt_render(struct chat_prompt *out, const Hill__ModelInfo *info, bool no_think,
                       const struct chat_message *messages, unsigned count, int stop_fd,
                       struct hill_why *why);

/* Pieces as Generate has them: a list whose texts are the pieces' own, to be freed as one. NULL:
 * out of memory. */
Hill__PromptPiece **chat_prompt_wire(const struct prompt_piece *pieces, size_t n);
