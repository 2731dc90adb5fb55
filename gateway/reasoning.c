/* gateway/reasoning.c - see reasoning.h. */
#include "gateway/reasoning.h"

#include <string.h>

static const char space_bytes[] = " \t\r\n\v\f";

static bool is_space(char byte)
{
    return memchr(space_bytes, byte, sizeof space_bytes - 1) != NULL;
}

static size_t space_left(const char *bytes, size_t n)
{
    size_t at = 0;
    while (at < n && is_space(bytes[at]))
        at++;
    return at;
}

/* Bytes without the white space at the end. */
static size_t without_space(const char *bytes, size_t n)
{
    while (n && is_space(bytes[n - 1]))
        n--;
    return n;
}

const struct reasoning_tags *reasoning_opened(const struct prompt_piece *pieces, size_t n)
{
    const struct prompt_piece *last = n ? &pieces[n - 1] : NULL;
    if (!last || last->kind != PROMPT_SPECIAL) /* somebody's words begin no reasoning */
        return NULL;
    size_t bytes = without_space(last->text, last->bytes);
    for (unsigned i = 0; i < REASONING_TAGS; i++) {
        size_t tag = strlen(reasoning_tags[i].begin);
        if (bytes >= tag && memcmp(last->text + bytes - tag, reasoning_tags[i].begin, tag) == 0)
            return &reasoning_tags[i];
    }
    return NULL;
}

void reasoning_begin(struct reasoning_reader *r, const struct reasoning_tags *opened,
                     const char *begun, size_t n)
{
    struct text_buffer ignored = {0};
    r->state = opened ? REASONING_OPENED : REASONING_BEGIN;
    r->tags = opened;
    if (n)
        reasoning_feed(r, begun, n, &ignored, &ignored);
    r->held.length = 0;
    text_finish(&ignored);
}

/* The first bytes are no reasoning but stand around it: a tag, white space. */
static void take_around(struct reasoning_reader *r, size_t n, struct text_buffer *reasoning)
{
    if (r->verbatim)
        text_add(reasoning, r->held.bytes, n);
    text_drop(&r->held, n);
}

/* false: more has to come first. */
static bool take_begin(struct reasoning_reader *r, struct text_buffer *reasoning)
{
    size_t at = space_left(r->held.bytes, r->held.length), n = r->held.length - at;
    for (unsigned i = 0; i < REASONING_TAGS; i++) {
        const struct reasoning_tags *tags = &reasoning_tags[i];
        size_t tag = strlen(tags->begin);
        if ((r->tags && r->tags != tags) ||
            memcmp(r->held.bytes + at, tags->begin, n < tag ? n : tag) != 0)
            continue;
        if (n < tag)
            return false;
        take_around(r, at + tag, reasoning);
        r->tags = tags;
        break;
    }
    r->state = r->tags ? REASONING_INSIDE : REASONING_OVER;
    return true;
}

/* White space at its end waits until more reasoning follows it. */
static bool take_inside(struct reasoning_reader *r, struct text_buffer *reasoning)
{
    const char *tag = r->tags->end;
    size_t tag_bytes = strlen(tag);
    if (!r->began)
        take_around(r, space_left(r->held.bytes, r->held.length), reasoning);
    const char *found = memmem(r->held.bytes, r->held.length, tag, tag_bytes);
    size_t end = found ? (size_t)(found - r->held.bytes)
                       : r->held.length - text_begun(&r->held, tag, tag_bytes),
           sure = without_space(r->held.bytes, end);
    text_add(reasoning, r->held.bytes, sure);
    r->began |= sure > 0;
    text_drop(&r->held, sure);
    if (found)
        take_around(r, end - sure + tag_bytes, reasoning);
    if (found)
        r->state = REASONING_BEHIND;
    return found != NULL;
}

/* true: the state is another one, and there may be more. */
static bool take(struct reasoning_reader *r, struct text_buffer *reasoning,
                 struct text_buffer *text)
{
    switch (r->state) {
    case REASONING_BEGIN:
    case REASONING_OPENED:
        return take_begin(r, reasoning);
    case REASONING_INSIDE:
        return take_inside(r, reasoning);
    case REASONING_BEHIND:
        take_around(r, space_left(r->held.bytes, r->held.length), reasoning);
        r->state = r->held.length ? REASONING_OVER : REASONING_BEHIND;
        return r->held.length > 0;
    default:
        text_add(text, r->held.bytes, r->held.length);
        r->held.length = 0;
        return false;
    }
}

void reasoning_feed(struct reasoning_reader *r, const char *bytes, size_t n,
                    struct text_buffer *reasoning, struct text_buffer *text)
{
    text_add(&r->held, bytes, n);
    while (r->held.length && take(r, reasoning, text))
        ;
    text->failed |= r->held.failed || reasoning->failed;
}

void reasoning_flush(struct reasoning_reader *r, struct text_buffer *reasoning,
                     struct text_buffer *text)
{
    bool inside = r->state == REASONING_INSIDE || r->state == REASONING_OPENED;
    size_t at = inside && !r->began && !r->verbatim ? space_left(r->held.bytes, r->held.length) : 0,
           n = inside && !r->verbatim ? without_space(r->held.bytes, r->held.length)
                                      : r->held.length;
    if (n > at)
        text_add(inside ? reasoning : text, r->held.bytes + at, n - at);
    r->held.length = 0;
    text->failed |= reasoning->failed;
}

void reasoning_finish(struct reasoning_reader *r)
{
    text_finish(&r->held);
}
