/*
 * hillctl/prompt_file.h - a text file, or stdin, as (a part of) a prompt.
 *
 * What: its bytes, whatever they are, without a UTF-8 byte order mark at the beginning. Who calls
 * it: generate.c, chat.c, conversation.c. Failure: as options_from_errno where it cannot be read,
 * HILL_E_TOO_LONG beyond PROMPT_FILE_MAX, HILL_E_NOMEM; why says which. Concurrency: one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define PROMPT_FILE_MAX (60u << 20) /* fits PROTO_MESSAGE_MAX */

/* path "-": stdin. *text is to be freed, after a failure, too. */
int prompt_file_read(char **text, size_t *bytes, const char *path, struct hill_why *why);

/* A pipe or a device that may be read: its bytes come once, so --check leaves them where they are.
 * What cannot be read is no stream: reading says why. */
bool prompt_file_is_stream(const char *path);
