/*
 * model/tokenizer_merge.c - merge neighbouring symbols, best pair first. See tokenizer_internal.h.
 *
 * A heap holds every pair of neighbours that may merge; a pair that has changed since it was pushed
 * is known by its length and dropped when it comes up. Each merge removes a symbol and pushes two
 * pairs at most: n symbols cost O(n log n), whatever the text.
 */
#include <stdlib.h>

#include "base/grow.h"
#include "model/tokenizer_internal.h"

void merge_scratch_finish(struct merge_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
}

int merge_add_symbol(struct merge_scratch *s, uint32_t offset, uint32_t length, uint32_t id)
{
    if (!GROW(s->symbols, s->symbol_capacity, s->n_symbols + 1))
        return HILL_E_NOMEM;
    uint32_t index = (uint32_t)s->n_symbols++;
    s->symbols[index] =
        (struct symbol){index ? index - 1 : SYMBOL_END, SYMBOL_END, offset, length, id};
    if (index)
        s->symbols[index - 1].next = index;
    return 0;
}

/* ---- the heap ------------------------------------------------------------------------------- */

static bool before(const struct merge_step *a, const struct merge_step *b)
{
    return a->priority > b->priority || (a->priority == b->priority && a->left < b->left);
}

static int heap_push(struct merge_scratch *s, struct merge_step step)
{
    if (!GROW(s->heap, s->heap_capacity, s->n_heap + 1))
        return HILL_E_NOMEM;
    uint64_t at = s->n_heap++;
    while (at > 0 && before(&step, &s->heap[(at - 1) / 2])) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = step;
    return 0;
}

static struct merge_step heap_pop(struct merge_scratch *s)
{
    struct merge_step top = s->heap[0], last = s->heap[--s->n_heap];
    uint64_t at = 0;
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= s->n_heap)
            break;
        if (child + 1 < s->n_heap && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return top;
}

/* ---- the loop ------------------------------------------------------------------------------- */

struct merge {
    const struct tokenizer *t;
    const uint8_t *text;
    struct merge_scratch *scratch;
    merge_lookup *lookup;
};

static int consider(const struct merge *m, uint32_t left, uint32_t right)
{
    if (left == SYMBOL_END || right == SYMBOL_END)
        return 0;
    const struct symbol *l = &m->scratch->symbols[left], *r = &m->scratch->symbols[right];
    struct merge_step step = {.left = left, .right = right, .length = l->length + r->length};
    if (!m->lookup(m->t, m->text, l, r, &step.priority, &step.id))
        return 0;
    return heap_push(m->scratch, step);
}

int merge_run(const struct tokenizer *t, const uint8_t *text, struct merge_scratch *scratch,
              merge_lookup *lookup)
{
    const struct merge m = {t, text, scratch, lookup};
    int rc = 0;
    scratch->n_heap = 0;
    for (uint64_t i = 1; !rc && i < scratch->n_symbols; i++)
        rc = consider(&m, (uint32_t)i - 1, (uint32_t)i);
    while (!rc && scratch->n_heap > 0) {
        struct merge_step step = heap_pop(scratch);
        struct symbol *left = &scratch->symbols[step.left], *right = &scratch->symbols[step.right];
        if (!left->length || !right->length || left->length + right->length != step.length)
            continue;
        left->length = step.length;
        left->id = step.id;
        right->length = 0;
        left->next = right->next;
        if (right->next != SYMBOL_END)
            scratch->symbols[right->next].previous = step.left;
        rc = consider(&m, left->previous, step.left);
        if (!rc)
            rc = consider(&m, step.left, left->next);
    }
    return rc;
}
