/*
 * tools/mkmodel/weights_random.h - random weights, a function of (seed, tensor, row) alone.
 *
 * Scales: queries, keys and values come out with unit variance, every block adds about 1 / sqrt(2
 * layers) to the residual stream, logits have a standard deviation near 2, so activations stay
 * finite at any depth and the next token is neither certain nor arbitrary. The values are sums of
 * integers: the same on every machine. Concurrency: stateless.
 */
#pragma once

#include "tools/mkmodel/shape.h"

/* One row, as long as shape_of_role() says. */
void random_row(const struct mkmodel_shape *shape, enum tensor_role role, uint32_t layer,
                uint64_t row, float *out);
