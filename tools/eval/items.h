/*
 * tools/eval/items.h - what is asked: questions of task files and pieces of texts.
 *
 * A task file holds a JSON object a line: {"task": NAME, "prompt": TEXT, "answers": [TEXT, ...]}
 * and, when wanted, "match": line (default), contains, start, all or number (tools/eval/grade.h)
 * and "predict": tokens to generate; without it, room for the answers that the rule wants and
 * ITEM_SPARE_TOKENS more. Other members are the generators' own and not looked at. Empty lines are
 * skipped. A text is cut into pieces of equal length, spread evenly; the last tokens of each are
 * scored. Who calls it: main.c. Failure: one line that names file and line: HILL_E_DAMAGED for what
 * is no such object, HILL_E_TOO_LONG, HILL_E_NOMEM, or why the file cannot be read. Concurrency:
 * none.
 */
#pragma once

#include <stddef.h>

#include "tools/eval/subject.h"

#define ITEM_NAME_MAX     64u
#define ITEM_ANSWERS_MAX  64u
#define ITEM_PREDICT_MAX  4096u
#define ITEM_PROMPT_MAX   (60u << 20) /* fits PROTO_MESSAGE_MAX */
#define ITEM_SPARE_TOKENS 8u

enum item_rule { ITEM_LINE, ITEM_CONTAINS, ITEM_START, ITEM_ALL, ITEM_NUMBER, ITEM_RULE_COUNT };

struct item {
    bool is_text, is_choice, is_chat;
    char *group; /* the task's name or the text file's: a column of the table */
    char *place; /* "FILE:LINE", "FILE:byte N" */
    char *prompt;
    size_t prompt_bytes;
    char **answers; /* [n_answers] */
    uint32_t n_answers;
    enum item_rule rule;
    /* choice: which one of how many, the right one; bytes of the prompt alone, of the choice */
    uint32_t choice, n_choices, gold, context_bytes, choice_bytes;
    uint32_t predict;     /* 0: not given; items_measure fills it */
    uint32_t n_tokens;    /* of the prompt, by items_measure */
    uint32_t *tokens;     /* [n_tokens], by items_measure */
    uint32_t n_scored;    /* text, choice (by items_measure): tokens that count */
    uint32_t score_from;  /* text, choice: where forced decoding begins, by items_measure */
    uint64_t hash;        /* of everything above that a person wrote */
    uint64_t prompt_hash; /* by items_measure: of the tokens that are read, not given or made */
};

/* Is it given and scored, not generated and graded? */
static inline bool item_is_scored(const struct item *item)
{
    return item->is_text || item->is_choice;
}

/* How many tokens of it are read? */
static inline uint32_t item_prompt_tokens(const struct item *item)
{
    return item_is_scored(item) ? item->score_from : item->n_tokens;
}

/* One prompt, read once for both? */
static inline bool items_share_prompt(const struct item *a, const struct item *b)
{
    return a->prompt_hash == b->prompt_hash && item_prompt_tokens(a) == item_prompt_tokens(b);
}

struct item_list {
    struct item *items;
    size_t count, room;
};

/* Append a file's items; of each task name no more than limit questions in the whole list (0: all).
 */
int items_read_tasks(struct item_list *list, const char *path, uint32_t limit,
                     struct hill_why *why);

struct item_text_order {
    uint32_t piece_bytes, n_pieces, n_scored;
};
int items_read_text(struct item_list *list, const char *path, const struct item_text_order *order,
                    struct hill_why *why);

/* Count tokens with the model's tokenizer; *most is set to the longest prompt and answer together.
 */
int items_measure(struct item_list *list, const struct subject *subject, uint32_t *most,
                  struct hill_why *why);

/* Leave out questions and pieces of more than most tokens with what is generated, a line on stderr
 * for each task or text; *longest as items_measure's most. HILL_E_INVALID: nothing is left. */
int items_fit(struct item_list *list, uint32_t most, uint32_t *longest, struct hill_why *why);

void items_free(struct item_list *list);
