/*
 * gateway/json_bounds.h - JSON from outside, within bounds.
 *
 * What: how deep it nests and how many values it has is counted before anything is made of it: a
 * body of "[[[[" or of a million commas costs no memory. Integers beyond 64 bits are reals. Who
 * calls it: order.c.
 * Failure: -1 and *error (400). Concurrency: stateless.
 */
#pragma once

#include <jansson.h>

#include "gateway/api_error.h"

#define JSON_DEPTH_BOUND  32u
#define JSON_VALUES_BOUND (1u << 20)

/* An object; the caller decrefs. NULL: *error says why. */
json_t *json_bounded_object(const char *text, size_t bytes, struct api_error *error);
