/*
 * tests/gpu_worker/engine_device.h - the one OpenCL device of an engine's test program
 * ($HILL_DEVICE or the first), opened and closed around all of its tests, and engines on it.
 */
#pragma once

#include "tests/gpu_worker/engine_run.h"
#include "tests/gpu_worker/random_model.h"

/* Of device_open until device_close. */
extern struct cldevice device;

/* Group set-up and tear-down of cmocka. */
int device_open(void **state);

int device_close(void **state);

/* own_memory: as on a device that has memory of its own, also where this one shares the host's. */
struct engine *make_engine_on(const struct random_model *m, bool own_memory);

struct engine *make_engine(const struct random_model *m);

/* With the kernels of work groups (on a device with memory of its own), or of register tiles. */
struct engine *make_engine_with(const struct random_model *m, bool groups);

/* Random ones. */
void make_tokens(uint32_t *tokens, uint32_t n, uint32_t n_vocab, uint64_t seed);

/* With the kernels for vectors of 16 floats where the device has narrower ones, and the other way
 * round. */
struct engine *make_engine_of_other_vectors(const struct random_model *m);
