/* model/token_list.c - a growing list of token ids; see tokenizer_internal.h. */
#include "model/tokenizer_internal.h"

#include <stdlib.h>

void token_list_add(struct token_list *list, uint32_t token)
{
    if (list->count == list->capacity) {
        uint64_t more = list->capacity ? list->capacity * 2 : 256;
        uint32_t *moved = realloc(list->items, more * sizeof *moved);
        if (!moved) {
            list->error = HILL_E_NOMEM;
            return;
        }
        list->items = moved;
        list->capacity = more;
    }
    list->items[list->count++] = token;
}
