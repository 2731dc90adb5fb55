/* base/device_model.c - see device_model.h. */
#include "base/device_model.h"

#include <math.h>
#include <stddef.h>

static const struct {
    size_t rate; /* offset of its GB/s: bytes a nanosecond */
    enum device_resource queue;
} resources[] = {
    [DEVICE_FLASH_READ] = {offsetof(struct csd_model, flash), DEVICE_FLASH_READ},
    [DEVICE_FLASH_WRITE] = {offsetof(struct csd_model, write), DEVICE_FLASH_READ},
    [DEVICE_SCORE] = {offsetof(struct csd_model, score), DEVICE_SCORE},
    [DEVICE_DRAM] = {offsetof(struct csd_model, dram_read), DEVICE_DRAM},
    [DEVICE_LINK_UP] = {offsetof(struct csd_model, link), DEVICE_LINK_UP},
    [DEVICE_LINK_DOWN] = {offsetof(struct csd_model, link), DEVICE_LINK_DOWN},
    [DEVICE_GPU_LINK] = {offsetof(struct csd_model, gpu_link), DEVICE_GPU_LINK},
    [DEVICE_CPU] = {offsetof(struct csd_model, cpu), DEVICE_CPU},
};

struct device_span device_charge(struct device_model *model, enum device_resource resource,
                                 uint64_t bytes, struct device_span input)
{
    const char *figures = (const char *)&model->figures;
    double rate = *(const double *)(const void *)(figures + resources[resource].rate);
    if (!model->figures.on || !(rate > 0))
        return input;
    int64_t ns = (int64_t)ceil((double)bytes / rate);
    int64_t *free_at = &model->free_at[resources[resource].queue];
    int64_t start = *free_at > input.start ? *free_at : input.start;
    *free_at = start + ns > input.due ? start + ns : input.due;
    model->busy_ns[resources[resource].queue] += (uint64_t)ns;
    return (struct device_span){start, *free_at};
}
