/*
 * tools/mkmodel/build.h - a whole model file of a shape.
 *
 * Who calls it: main.c and the tests. Concurrency: one call at a time per file.
 */
#pragma once

#include <signal.h>
#include <stdint.h>

#include "tools/mkmodel/shape.h"

/*
 * Write the model to path, whole or not at all. stop: NULL, or a flag that ends the work when it
 * becomes non-zero. 0 and *file_bytes; HILL_E_INVALID (impossible shape; nothing was touched),
 * HILL_E_NOSPACE, HILL_E_PERMISSION, HILL_E_IO, HILL_E_NOMEM, HILL_E_CANCELLED.
 */
int build_model(const struct mkmodel_shape *shape, const char *path,
                const volatile sig_atomic_t *stop, uint64_t *file_bytes, struct hill_why *why);
