/* tests/fuzz/file_seeds.h - the two halves of make_seeds. */
#pragma once

#include "tests/model/gguf_writer.h"

/* make_seeds.c: FOLDER/target/seed-name; ends the program when it cannot. */
void write_seed(const char *target, const char *name, const struct blob *seed);
void seed_failed(const char *what);

/* file_seeds.c: all that it has. */
void file_seeds(void);
