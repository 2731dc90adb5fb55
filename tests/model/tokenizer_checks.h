/*
 * tests/model/tokenizer_checks.h - shared steps of the tokenizer tests: open from a writer, encode,
 * compare.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/tokenizer.h"
#include "tests/model/tiny_model.h"

struct tokenizer *open_tokenizer(struct writer *w, struct hill_why *why);

/* The ids of a text must be these; the list ends with -1. */
void check_ids(const struct tokenizer *t, const char *text, bool special, const int *expected);
#define CHECK_IDS(t, text, special, ...) check_ids(t, text, special, (const int[]){__VA_ARGS__, -1})

/* The pieces of a text's tokens, put together, must be the text. */
void check_round_trip(const struct tokenizer *t, const char *text, uint64_t length);

/* Seed of the random tests: HILL_TEST_SEED or a fixed one, printed. */
uint64_t test_seed(void);

/* Random bytes that are partly text, partly sound UTF-8, partly neither. */
uint64_t random_text(uint64_t *state, char *out, uint64_t most);
