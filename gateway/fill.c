/* gateway/fill.c - see fill.h. */
#include "gateway/fill.h"

#include <stdlib.h>
#include <string.h>

/* What llama-server calls them, which is told no names. */
#define WHOLE_NAME "myproject\n"
#define OWN_NAME   "filename"
#define OTHER_NAME "tmp"

#define PIECES_OF_FILE 4 /* at most, with its text */

static void add(struct prompt_piece *out, size_t *n, enum prompt_kind kind, const char *text,
                size_t bytes)
{
    out[(*n)++] = (struct prompt_piece){text, bytes, kind};
}

static void add_mark(struct prompt_piece *out, size_t *n, const char *mark)
{
    add(out, n, PROMPT_SPECIAL, mark, strlen(mark));
}

static void add_text(struct prompt_piece *out, size_t *n, const json_t *text)
{
    add(out, n, PROMPT_TEXT, json_string_value(text), json_string_length(text));
}

/* name: no text for `unnamed`. */
static void add_file(struct prompt_piece *out, size_t *n, const json_t *name, const char *unnamed)
{
    add_mark(out, n, FILL_FILE);
    if (json_is_string(name))
        add_text(out, n, name);
    else
        add(out, n, PROMPT_TEXT, unnamed, strlen(unnamed));
    add(out, n, PROMPT_TEXT, "\n", 1);
}

struct prompt_piece *fill_pieces(const struct order *order, bool files, size_t *n)
{
    size_t others = files ? json_array_size(order->extra) : 0;
    struct prompt_piece *out = calloc((others + 3) * PIECES_OF_FILE, sizeof *out);
    *n = 0;
    if (!out)
        return NULL;
    if (others) {
        add_mark(out, n, FILL_WHOLE);
        add(out, n, PROMPT_TEXT, WHOLE_NAME, strlen(WHOLE_NAME));
    }
    for (size_t i = 0; i < others; i++) {
        const json_t *chunk = json_array_get(order->extra, i);
        add_file(out, n, json_object_get(chunk, "filename"), OTHER_NAME);
        add_text(out, n, json_object_get(chunk, "text"));
    }
    if (others)
        add_file(out, n, NULL, OWN_NAME);
    add_mark(out, n, FILL_BEFORE);
    add_text(out, n, order->before);
    add(out, n, PROMPT_TEXT, order->prompt, order->prompt_bytes);
    add_mark(out, n, FILL_AFTER);
    add_text(out, n, order->after);
    add_mark(out, n, FILL_WANTED);
    return out;
}
