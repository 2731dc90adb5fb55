/* gateway/stop_strings.c - see stop_strings.h. */
#include "gateway/stop_strings.h"

#include <string.h>

/* The longest stop string that ends at held[end]; 0: none does. */
static size_t ends_here(const struct stop_matcher *m, size_t end)
{
    size_t longest = 0;
    for (unsigned i = 0; i < m->n; i++) {
        size_t n = m->strings[i].bytes;
        if (n <= end && n > longest && memcmp(m->held.bytes + end - n, m->strings[i].text, n) == 0)
            longest = n;
    }
    return longest;
}

/* Bytes at the end of what is held that a stop string may begin with. */
static size_t may_begin(const struct stop_matcher *m)
{
    size_t longest = 0;
    for (unsigned i = 0; i < m->n; i++) {
        size_t n = text_begun(&m->held, m->strings[i].text, m->strings[i].bytes);
        longest = n > longest ? n : longest;
    }
    return longest;
}

bool stop_feed(struct stop_matcher *m, const char *text, size_t bytes, struct text_buffer *out)
{
    if (m->stopped)
        return true;
    if (!m->n) {
        text_add(out, text, bytes);
        return false;
    }
    size_t before = m->held.length;
    text_add(&m->held, text, bytes);
    out->failed |= m->held.failed;
    for (size_t end = before + 1; end <= m->held.length; end++) {
        size_t n = ends_here(m, end);
        if (!n)
            continue;
        text_add(out, m->held.bytes, end - n);
        m->held.length = 0;
        return m->stopped = true;
    }
    size_t sure = m->held.length - may_begin(m);
    if (sure) {
        text_add(out, m->held.bytes, sure);
        text_drop(&m->held, sure);
    }
    return false;
}

void stop_flush(struct stop_matcher *m, struct text_buffer *out)
{
    text_add(out, m->held.bytes, m->held.length);
    m->held.length = 0;
}

void stop_finish(struct stop_matcher *m)
{
    text_finish(&m->held);
}
