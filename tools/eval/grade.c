/* tools/eval/grade.c - see grade.h. */
#include "tools/eval/grade.h"

#include <ctype.h>
#include <string.h>

/* Bytes of characters beyond ASCII count as letters. */
static bool is_word(char c)
{
    return isalnum((unsigned char)c) || (unsigned char)c >= 0x80;
}

static bool stands_at(const char *text, size_t bytes, size_t at, const char *answer, size_t n)
{
    if (n > bytes - at || memcmp(text + at, answer, n) != 0)
        return false;
    bool cut_before = at > 0 && is_word(answer[0]) && is_word(text[at - 1]);
    bool cut_after = at + n < bytes && is_word(answer[n - 1]) && is_word(text[at + n]);
    return !cut_before && !cut_after;
}

/* Where the answer ends, looked for from `from` on; 0: it does not stand there. */
static size_t find(const char *text, size_t bytes, size_t from, const char *answer)
{
    size_t n = strlen(answer);
    for (size_t at = from; at + n <= bytes; at++)
        if (stands_at(text, bytes, at, answer, n))
            return at + n;
    return 0;
}

static bool line_holds(const struct item *item, const char *text, size_t bytes)
{
    const char *newline = memchr(text, '\n', bytes);
    size_t at = 0, end = newline ? (size_t)(newline - text) : bytes;
    for (uint32_t i = 0; i < item->n_answers; i++)
        if (!(at = find(text, end, at, item->answers[i])))
            return false;
    return true;
}

static uint32_t count_found(const struct item *item, const char *text, size_t bytes)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < item->n_answers; i++)
        found += find(text, bytes, 0, item->answers[i]) > 0;
    return found;
}

static bool starts(const struct item *item, const char *text, size_t bytes)
{
    for (uint32_t i = 0; i < item->n_answers; i++)
        if (stands_at(text, bytes, 0, item->answers[i], strlen(item->answers[i])))
            return true;
    return false;
}

/* The last run of digits is one of the answers, character by character. */
static bool last_number_is(const struct item *item, const char *text, size_t bytes)
{
    while (bytes > 0 && !isdigit((unsigned char)text[bytes - 1]))
        bytes--;
    size_t from = bytes;
    while (from > 0 && isdigit((unsigned char)text[from - 1]))
        from--;
    for (uint32_t i = 0; i < item->n_answers; i++)
        if (bytes > from && strlen(item->answers[i]) == bytes - from &&
            memcmp(text + from, item->answers[i], bytes - from) == 0)
            return true;
    return false;
}

bool grade_answer(const struct item *item, const char *text, size_t bytes)
{
    while (bytes > 0 && isspace((unsigned char)*text))
        text++, bytes--;
    switch (item->rule) {
    case ITEM_LINE:
        return line_holds(item, text, bytes);
    case ITEM_START:
        return starts(item, text, bytes);
    case ITEM_NUMBER:
        return last_number_is(item, text, bytes);
    case ITEM_ALL:
        return count_found(item, text, bytes) == item->n_answers;
    default:
        return count_found(item, text, bytes) > 0;
    }
}
