/*
 * tests/gpu_worker/engine_device.c - the device that all tests of a program share. Interface:
 * engine_device.h.
 */
#include "tests/gpu_worker/engine_device.h"
#include "tests/declared_builtins.h"
#include "tests/filter.h"

struct cldevice device;

int device_open(void **state)
{
    struct hill_why why = {0};
    (void)state;
    cldevice_set_threads(2);
    RUN_CHECK(cldevice_open(&device, getenv("HILL_DEVICE"), &why));
    declared_builtins_only();
    engine_choose_kernels(&device);
    device.shares_memory &= getenv("HILL_TEST_OWN_MEMORY") == NULL;
    return 0;
}

int device_close(void **state)
{
    (void)state;
    cldevice_close(&device);
    return 0;
}

static struct engine *create_on(const struct random_model *m, const struct cldevice *d)
{
    struct hill_why why = {0};
    struct engine *engine = NULL;
    RUN_CHECK(engine_create(&engine, d, m->file, &m->hp, &why));
    return engine;
}

static struct engine *create(const struct random_model *m, bool shares_memory, bool groups)
{
    struct cldevice d = device;
    d.shares_memory = device.shares_memory && shares_memory;
    d.has_groups = groups;
    return create_on(m, &d);
}

struct engine *make_engine_of_other_vectors(const struct random_model *m)
{
    struct cldevice d = device;
    d.vector_floats = device.vector_floats >= 16 ? 8 : 16;
    return create_on(m, &d);
}

struct engine *make_engine_on(const struct random_model *m, bool own_memory)
{
    return create(m, !own_memory, device.has_groups);
}

struct engine *make_engine_with(const struct random_model *m, bool groups)
{
    return create(m, !groups, groups);
}

struct engine *make_engine(const struct random_model *m)
{
    return make_engine_on(m, false);
}

void make_tokens(uint32_t *tokens, uint32_t n, uint32_t n_vocab, uint64_t seed)
{
    uint64_t state = seed * 2 + 1;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (uint32_t)(next_random(&state) % n_vocab);
}
