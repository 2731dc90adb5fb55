/* proto/csd_model_wire.c - a modelled drive's figures into a message and back; see envelope.h. */
#include "proto/envelope.h"

struct csd_model proto_csd_model(const Hill__CsdModel *m)
{
    if (!m || !m->on)
        return (struct csd_model){.on = false};
    return (struct csd_model){.on = true,
                              .flash = m->flash,
                              .write = m->write,
                              .link = m->link,
                              .gpu_link = m->gpu_link,
                              .score = m->score,
                              .dram = m->dram,
                              .dram_read = m->dram_read,
                              .latency_us = m->latency_us,
                              .cpu = m->cpu};
}

void proto_set_csd_model(Hill__CsdModel *out, const struct csd_model *model)
{
    hill__csd_model__init(out);
    out->on = model->on;
    out->flash = model->flash;
    out->write = model->write;
    out->link = model->link;
    out->gpu_link = model->gpu_link;
    out->score = model->score;
    out->dram = model->dram;
    out->dram_read = model->dram_read;
    out->latency_us = model->latency_us;
    out->cpu = model->cpu;
}
