/*
 * csd_agent/file_backend.c - "file:PATH": flash is a file or block device; the host's CPU scores,
 * without OpenCL, or the OpenCL device that is named. Who calls it: through struct csd_ops
 * (backend.h), which also has concurrency and failure.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "csd_agent/backend.h"
#include "csd_agent/file_io.h"

struct file_backend {
    struct csd_backend base;
    struct score_device *score;
    char *device; /* OpenCL device, where on_host is not set */
    const char *simd;
    bool on_host;
};

static struct file_backend *of(struct csd_backend *backend)
{
    return (struct file_backend *)backend;
}

static void file_close(struct csd_backend *backend)
{
    struct file_backend *f = of(backend);

    /* The kernel may still write into the batches of a drive that stopped answering. */
    if (!f->base.io || !file_io_dead(f->base.io))
        score_device_destroy(f->score);
    file_io_close(f->base.io);
    free(f->device);
    free(f);
}

static int file_open(struct csd_backend **out, const char *rest, const struct csd_options *options,
                     struct hill_why *why)
{
    struct file_backend *f = calloc(1, sizeof *f);

    *out = NULL;
    if (!f)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the drive's backend");
    f->base.ops = &csd_file_ops;
    f->device = strdup(options->device ? options->device : "");
    f->simd = options->simd;
    f->on_host = options->on_host || csd_means_host(options->device);
    int status = f->device ? file_io_open(&f->base.io, rest, options, why)
                           : hill_fail(why, HILL_E_NOMEM, "no memory for the drive's backend");
    if (status != 0) {
        file_close(&f->base);
        return status;
    }
    *out = &f->base;
    return 0;
}

static void file_describe(struct csd_backend *backend, char *text, size_t size)
{
    const struct file_backend *f = of(backend);
    file_io_describe(f->base.io, f->score ? score_device_name(f->score) : "no device", text, size);
}

static struct csd_capabilities file_capabilities(struct csd_backend *backend)
{
    return (struct csd_capabilities){
        .casts = true, .host_sees = true, .looks = of(backend)->on_host};
}

static int file_load(struct csd_backend *backend, const struct csd_program *program,
                     struct hill_why *why)
{
    struct file_backend *f = of(backend);
    const struct score_settings settings = {.geometry = program->geometry,
                                            .batch_bytes = program->batch_bytes,
                                            .cast = program->cast,
                                            .on_host = f->on_host,
                                            .simd = f->simd,
                                            .device = f->device,
                                            .look = program->look};
    uint8_t *batches[SCORE_BATCHES];
    int status = score_device_create(&f->score, &settings, why);
    for (uint32_t b = 0; status == 0 && b < SCORE_BATCHES; b++)
        status = score_device_map(f->score, b, &batches[b], why);
    if (status == 0)
        file_io_pin(f->base.io, batches, SCORE_BATCHES, program->batch_bytes);
    return status;
}

static int file_batch(struct csd_backend *backend, uint32_t b, uint8_t **memory,
                      struct hill_why *why)
{
    return score_device_map(of(backend)->score, b, memory, why);
}

static int file_query(struct csd_backend *backend, const struct kv_query *query,
                      struct hill_why *why)
{
    return score_device_query(of(backend)->score, query, why);
}

static int file_execute(struct csd_backend *backend, uint32_t b, const struct score_piece *pieces,
                        uint32_t n_pieces, struct hill_why *why)
{
    backend->done.launches++;
    return score_device_launch(of(backend)->score, b, pieces, n_pieces, why);
}

static int file_wait(struct csd_backend *backend, uint32_t b, const uint16_t **scores,
                     struct hill_why *why)
{
    return score_device_wait(of(backend)->score, b, scores, why);
}

const struct csd_ops csd_file_ops = {
    .scheme = "file",
    .open = file_open,
    .close = file_close,
    .describe = file_describe,
    .capabilities = file_capabilities,
    .load = file_load,
    .batch = file_batch,
    .query = file_query,
    .execute = file_execute,
    .wait = file_wait,
};
