/*
 * gateway/api_keys.h - the keys that may ask, compared in constant time.
 *
 * What: how long a comparison takes depends on the length of what was offered and on how many keys
 * there are, not on how much of a key was guessed. Who calls it: gateway_settings.c, http_server.c.
 * Concurrency: read-only once filled. Failure: HILL_E_INVALID, HILL_E_IO, HILL_E_NOMEM and one line
 * that never quotes a key.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define API_KEYS_MAX      64u
#define API_KEY_BYTES_MAX 256u

struct api_keys {
    struct {
        char *text;
        size_t bytes;
    } list[API_KEYS_MAX];
    unsigned n; /* 0: nobody needs one */
};

/* where: "--api-key" or the file's name, for the line that refuses it. */
int api_keys_add(struct api_keys *keys, const char *text, size_t bytes, const char *where,
                 struct hill_why *why);
/* One a line; empty lines and lines that begin with # are none. */
int api_keys_read(struct api_keys *keys, const char *path, struct hill_why *why);
void api_keys_finish(struct api_keys *keys);

/* Which key it is; -1: none. */
int api_keys_find(const struct api_keys *keys, const char *offered, size_t bytes);
/* The key in an Authorization header "Bearer KEY"; NULL: there is none. */
const char *api_keys_bearer(const char *header);
