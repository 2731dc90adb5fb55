/* model/token_list.c - a growing list of token ids; see tokenizer_internal.h. */
#include "base/grow.h"
#include "model/tokenizer_internal.h"

#include <stdlib.h>

void token_list_add(struct token_list *list, uint32_t token)
{
    if (GROW(list->items, list->capacity, list->count + 1))
        list->items[list->count++] = token;
    else
        list->error = HILL_E_NOMEM;
}
