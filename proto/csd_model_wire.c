/* proto/csd_model_wire.c - a modelled drive's figures into a message and back; see envelope.h. */
#include "proto/envelope.h"

#define FIGURES(X)                                                                                 \
    X(flash) X(write) X(link) X(gpu_link) X(score) X(dram) X(dram_read) X(latency_us) X(cpu)
#define COPY(figure) out->figure = in->figure;

static void read_figures(struct csd_model *out, const Hill__CsdModel *in)
{
    out->on = true;
    FIGURES(COPY)
}

struct csd_model proto_csd_model(const Hill__CsdModel *message)
{
    struct csd_model model = {.on = false};
    if (message && message->on)
        read_figures(&model, message);
    return model;
}

void proto_set_csd_model(Hill__CsdModel *out, const struct csd_model *in)
{
    hill__csd_model__init(out);
    out->on = in->on;
    FIGURES(COPY)
}
