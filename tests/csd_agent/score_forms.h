/*
 * tests/csd_agent/score_forms.h - the scoring device in each of its forms, and keys that are at an
 * end of a range. Who uses it: the tests of the kernels.
 */
#pragma once

#include "csd_agent/score_device.h"
#include "tests/csd_agent/fixture.h"

/* As the device is (in the host's memory where it can), as others with memory of their own are
 * taken, and without one. */
enum score_form { AS_IT_IS, AS_GPU, AS_ACCELERATOR, NO_DEVICE };

/* A program's first and last act (cmocka's setup and teardown): an OpenCL context is held between
 * them. PoCL reads its library of built-in functions, 0.7 s of CPU, anew for each context that has
 * no other beside. */
int score_forms_open(void **state);
int score_forms_close(void **state);

/* On $HILL_DEVICE, or the first. */
struct score_device *score_form_create(const struct kv_geometry *g, enum score_form form,
                                       uint64_t batch_bytes, bool cast);

/* Key number i of EXTREME_KEYS: every head is at an end of FP16's or a digest's range, or in the
 * middle of it: zeros, denormals, saturation, infinities, NaN. */
#define EXTREME_KEYS 484u
void extreme_key(const struct kv_geometry *g, uint32_t i, uint16_t *key);
