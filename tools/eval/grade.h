/*
 * tools/eval/grade.h - is an answer right?
 *
 * line (default): every answer stands in the first line of the generated text, in their order.
 * contains: one of them stands somewhere in the text. start: the text begins with one of them. all:
 * every one of them stands in it, in any order. number: the text's last run of digits is one of
 * them, as LongEval's own script has it. White space before the text is skipped. An answer stands
 * only as a whole word: where it begins or ends with a letter or digit, none may touch it
 * there (51 is not in 5123). Letters are compared as they are. Who calls it: results.c.
 * Concurrency: stateless.
 */
#pragma once

#include "tools/eval/items.h"

bool grade_answer(const struct item *item, const char *text, size_t bytes);
