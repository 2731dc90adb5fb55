/* gateway/logprobs.c - see logprobs.h. */
#include "gateway/logprobs.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/grow.h"

void logprobs_add(struct logprobs *l, const char *text, size_t bytes, double logprob,
                  bool new_token)
{
    if (!l->wanted)
        return;
    if (new_token && !GROW(l->list, l->room, l->n + 1)) {
        l->raw.failed = true;
        return;
    }
    if (new_token)
        l->list[l->n++] = (struct logprob_entry){
            .begin = l->raw.length, .offset = l->characters, .logprob = logprob};
    if (l->n)
        l->list[l->n - 1].bytes += bytes;
    text_add(&l->raw, text, bytes);
    for (size_t i = 0; i < bytes; i++)
        l->characters += ((uint8_t)text[i] & 0xc0) != 0x80; /* not within a character of UTF-8 */
}

void logprobs_sure(struct logprobs *l, size_t bytes)
{
    l->sure += bytes;
}

static void add_text(struct text_buffer *out, const struct logprobs *l,
                     const struct logprob_entry *e)
{
    text_add_json(out, e->bytes ? l->raw.bytes + e->begin : "", e->bytes);
}

static void add_chat_entry(struct text_buffer *out, const struct logprobs *l,
                           const struct logprob_entry *e)
{
    text_puts(out, "{\"token\":");
    add_text(out, l, e);
    text_puts(out, ",\"logprob\":");
    text_add_number(out, e->logprob);
    text_puts(out, ",\"bytes\":[");
    for (uint64_t i = 0; i < e->bytes; i++)
        text_printf(out, "%s%u", i ? "," : "", (uint8_t)l->raw.bytes[e->begin + i]);
    text_puts(out, "],\"top_logprobs\":[]}");
}

enum column { COLUMN_TOKENS, COLUMN_LOGPROBS, COLUMN_OFFSETS };

/* What is to be written, up to entry `to`, one figure of each. */
static void add_column(struct text_buffer *out, const struct logprobs *l, size_t to,
                       enum column column)
{
    static const char *const names[] = {"tokens", "token_logprobs", "text_offset"};
    text_printf(out, "\"%s\":[", names[column]);
    for (size_t i = l->next; i < to; i++) {
        text_puts(out, i > l->next ? "," : "");
        if (column == COLUMN_TOKENS)
            add_text(out, l, &l->list[i]);
        else if (column == COLUMN_LOGPROBS)
            text_add_number(out, l->list[i].logprob);
        else
            text_printf(out, "%" PRIu64, l->list[i].offset);
    }
    text_puts(out, "]");
}

static size_t sure_entries(const struct logprobs *l)
{
    size_t to = l->next;
    while (to < l->n && l->list[to].begin < l->sure)
        to++;
    return to;
}

bool logprobs_due(const struct logprobs *l)
{
    return sure_entries(l) > l->next;
}

void logprobs_write(struct text_buffer *out, struct logprobs *l)
{
    size_t to = sure_entries(l);
    if (!l->wanted) {
        text_puts(out, "null");
        return;
    }
    out->failed |= l->raw.failed;
    if (l->chat) {
        text_puts(out, "{\"content\":[");
        for (size_t i = l->next; i < to; i++) {
            text_puts(out, i > l->next ? "," : "");
            add_chat_entry(out, l, &l->list[i]);
        }
        text_puts(out, "],\"refusal\":null}");
    } else {
        text_puts(out, "{");
        add_column(out, l, to, COLUMN_TOKENS);
        text_puts(out, ",");
        add_column(out, l, to, COLUMN_LOGPROBS);
        text_puts(out, ",\"top_logprobs\":null,");
        add_column(out, l, to, COLUMN_OFFSETS);
        text_puts(out, "}");
    }
    l->next = to;
}

void logprobs_finish(struct logprobs *l)
{
    free(l->list);
    text_finish(&l->raw);
    *l = (struct logprobs){0};
}
