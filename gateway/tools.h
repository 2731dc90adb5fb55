/*
 * gateway/tools.h - tools that a chat may call: told to the model as its template tells them.
 *
 * What: turns messages with tools, calls and tools' answers into messages that chat_render knows:
 * ChatML (Qwen 2.5's and Qwen3's words; SmolLM's template has none of its own) and Llama 3. Names
 * and arguments are the client's: they become no control tokens; a tool's answer becomes no tag,
 * either. Pure. Who calls it: job_generate.c, job_ask.c through tools_tell, order.c for the rest.
 * Failure: -1 and *error (400). Concurrency: stateless.
 */
#pragma once

#include "gateway/order.h"
#include "gateway/text_buffer.h"

#define TOOLS_MAX           128u
#define TOOL_NAME_BYTES_MAX 64u

/* Fields of a chat: order->tools, order->tool_choice and its name. */
int tools_take(struct order *order, const json_t *list, struct api_error *error);
int tools_take_choice(struct order *order, const json_t *value, struct api_error *error);
/* Both are there. */
int tools_check(struct order *order, struct api_error *error);
/* The calls of an assistant's message, i of them in messages. */
int tools_check_calls(const json_t *calls, size_t i, struct api_error *error);

/* order->messages as the template has them, order->told with their texts. Where there are no
 * tools, calls or answers of tools, nothing changes. format: the model's; NULL: unknown. */
int tools_tell(struct order *order, const struct chat_format *format, struct api_error *error);
/* How an answer begins that has to be a call; "" where it need not be one. */
void tools_begin(struct text_buffer *out, const struct order *order, enum chat_tools form);
