/* eval/grade.c - see grade.h. */
#include "eval/grade.h"

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

static bool contains(const char *text, size_t bytes, const char *answer)
{
    size_t n = strlen(answer);
    for (size_t at = 0; at + n <= bytes; at++)
        if (stands_at(text, bytes, at, answer, n))
            return true;
    return false;
}

static bool starts(const char *text, size_t bytes, const char *answer)
{
    size_t at = 0;
    while (at < bytes && isspace((unsigned char)text[at]))
        at++;
    return stands_at(text, bytes, at, answer, strlen(answer));
}

bool grade_answer(const struct item *item, const char *text, size_t bytes)
{
    uint32_t right = 0;
    for (uint32_t i = 0; i < item->n_answers; i++)
        right += item->rule == ITEM_START ? starts(text, bytes, item->answers[i])
                                          : contains(text, bytes, item->answers[i]);
    return item->rule == ITEM_ALL ? right == item->n_answers : right > 0;
}
