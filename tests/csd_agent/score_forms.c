/* tests/csd_agent/score_forms.c - see score_forms.h. */
#include "tests/csd_agent/score_forms.h"

#include "base/cldevice.h"
#include "tests/declared_builtins.h"

static struct cldevice held;

int score_forms_open(void **state)
{
    struct hill_why why = {""};
    (void)state;
    declared_builtins_only();
    if (cldevice_open(&held, getenv("HILL_DEVICE"), &why) != 0)
        print_message("%s\n", why.text); /* what needs a device says so */
    return 0;
}

int score_forms_close(void **state)
{
    (void)state;
    cldevice_close(&held);
    return 0;
}

struct score_device *score_form_create(const struct kv_geometry *g, enum score_form form,
                                       uint64_t batch_bytes, bool cast)
{
    const struct score_settings settings = {.geometry = *g,
                                            .batch_bytes = batch_bytes,
                                            .cast = cast,
                                            .on_host = form == NO_DEVICE,
                                            .device = getenv("HILL_DEVICE"),
                                            .as = form == AS_GPU           ? SCORE_AS_GPU
                                                  : form == AS_ACCELERATOR ? SCORE_AS_ACCELERATOR
                                                                           : SCORE_AS_IT_IS};
    struct score_device *d;
    struct hill_why why = {""};
    int status = score_device_create(&d, &settings, &why);
    if (status != 0)
        print_message("%s\n", why.text);
    assert_int_equal(status, 0);
    return d;
}

static const uint16_t extreme_halves[] = {
    0x0000, 0x8000, 0x0001, 0x8001, /* zeros, the smallest denormals */
    0x03ff, 0x83ff, 0x0400, 0x1400, /* the largest denormals, the smallest normal, 2^-10 */
    0x57f0, 0x57f1, 0x57f8, 0x3bf8, /* 127 * 2^0 and beside, which rounds; 127 * 2^-7 */
    0x7bff, 0xfbff, 0x7c00, 0xfc00, /* saturated */
    0x7e00, 0x3c00,                 /* NaN, which counts as 0; 1 */
    0x4700, 0x4701, 0x4780, 0xfe00, /* of INT4: 7 * 2^0 and beside; NaN with a sign */
};

#define N_EXTREMES (sizeof extreme_halves / sizeof *extreme_halves)

_Static_assert(N_EXTREMES *N_EXTREMES == EXTREME_KEYS, "every pair of them");

void extreme_key(const struct kv_geometry *g, uint32_t i, uint16_t *key)
{
    for (uint32_t h = 0; h < g->n_kv_heads; h++) {
        uint16_t most = extreme_halves[(i + h) % N_EXTREMES];
        uint16_t other = extreme_halves[i / N_EXTREMES % N_EXTREMES];
        for (uint32_t d = 0; d < g->head_dim; d++)
            key[h * g->head_dim + d] = d % 3 == 2 ? other : most;
    }
}
