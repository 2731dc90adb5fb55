/* gateway/api_keys.c - see api_keys.h. */
#include "gateway/api_keys.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/options.h"

int api_keys_add(struct api_keys *keys, const char *text, size_t bytes, const char *where,
                 struct hill_why *why)
{
    if (!bytes || bytes > API_KEY_BYTES_MAX)
        return hill_fail(why, HILL_E_INVALID, "%.200s: a key has 1 to %u bytes", where,
                         API_KEY_BYTES_MAX);
    for (size_t i = 0; i < bytes; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return hill_fail(why, HILL_E_INVALID,
                             "%.200s: a key is of printable ASCII without spaces", where);
    if (keys->n == API_KEYS_MAX)
        return hill_fail(why, HILL_E_INVALID, "%.200s: at most %u keys", where, API_KEYS_MAX);
    char *copy = strndup(text, bytes);
    if (!copy)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the keys");
    keys->list[keys->n].text = copy;
    keys->list[keys->n++].bytes = bytes;
    return 0;
}

int api_keys_read(struct api_keys *keys, const char *path, struct hill_why *why)
{
    char line[1024];
    unsigned before = keys->n;
    FILE *file = fopen(path, "re");
    if (!file)
        return hill_fail(why, options_from_errno(errno), "cannot read the keys in %.200s: %s", path,
                         strerror(errno));
    int code = 0;
    while (code == 0 && fgets(line, sizeof line, file)) {
        size_t bytes = strcspn(line, "\r\n");
        if (bytes && line[0] != '#')
            code = api_keys_add(keys, line, bytes, path, why);
    }
    bool failed = ferror(file);
    fclose(file);
    explicit_bzero(line, sizeof line);
    if (code == 0 && failed)
        code = hill_fail(why, HILL_E_IO, "cannot read the keys in %.200s", path);
    if (code == 0 && keys->n == before)
        code = hill_fail(why, HILL_E_INVALID, "there is no key in %.200s", path);
    return code;
}

void api_keys_finish(struct api_keys *keys)
{
    for (unsigned i = 0; i < keys->n; i++) {
        explicit_bzero(keys->list[i].text, keys->list[i].bytes);
        free(keys->list[i].text);
    }
    keys->n = 0;
}

/* Every byte that was offered is looked at, whatever the ones before it were. */
static bool same(const char *key, size_t key_bytes, const char *offered, size_t bytes)
{
    volatile uint8_t differs = key_bytes != bytes;
    for (size_t i = 0; i < bytes; i++)
        differs |= (uint8_t)(offered[i] ^ key[i % key_bytes]);
    return !differs;
}

int api_keys_find(const struct api_keys *keys, const char *offered, size_t bytes)
{
    int found = -1;
    for (unsigned i = 0; i < keys->n; i++)
        if (same(keys->list[i].text, keys->list[i].bytes, offered, bytes))
            found = (int)i;
    return found;
}

const char *api_keys_bearer(const char *header)
{
    if (!header || strncasecmp(header, "bearer ", 7) != 0)
        return NULL;
    header += 7;
    while (*header == ' ')
        header++;
    return header;
}
