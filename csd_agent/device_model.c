/* csd_agent/device_model.c - see device_model.h. */
#include "csd_agent/device_model.h"

#include <math.h>

#include "base/busy_until.h"

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void device_command_begin(struct device_command *command, const struct device_model *model,
                          int64_t now)
{
    command->start = command->done = now;
    command->ready = now + (int64_t)ceil(model->figures.latency_us * 1000);
}

int64_t device_model_score(struct device_model *model, struct device_command *command,
                           uint64_t flash_bytes, uint64_t kv_bytes, uint64_t score_bytes)
{
    const struct csd_model *f = &model->figures;
    struct device_counters *c = &model->counters;
    int64_t start, read_end, end;

    read_end = busy_until_serve(&model->flash_free, &c->flash_ns, command->ready, command->ready,
                                busy_until_time(flash_bytes, f->flash), &start);
    end = busy_until_serve(&model->score_free, &c->score_ns, start, read_end,
                           busy_until_time(kv_bytes, f->score), &start);
    if (score_bytes > 0) /* a Score Block leaves when it is whole */
        end = busy_until_serve(&model->up_free, &c->link_ns, end, end,
                               busy_until_time(score_bytes, f->link), &start);
    command->done = later(command->done, end);
    return end;
}

void device_model_read(struct device_model *model, struct device_command *command, uint64_t bytes)
{
    const struct csd_model *f = &model->figures;
    struct device_counters *c = &model->counters;
    int64_t start, end;

    end = busy_until_serve(&model->flash_free, &c->flash_ns, command->ready, command->ready,
                           busy_until_time(bytes, f->flash), &start);
    end = busy_until_serve(&model->up_free, &c->link_ns, start, end,
                           busy_until_time(bytes, f->link), &start);
    command->ready = end;
    command->done = later(command->done, end);
}

void device_model_write(struct device_model *model, struct device_command *command, uint64_t bytes)
{
    const struct csd_model *f = &model->figures;
    struct device_counters *c = &model->counters;
    int64_t start, end;

    end = busy_until_serve(&model->down_free, &c->link_ns, command->ready, command->ready,
                           busy_until_time(bytes, f->link), &start);
    end = busy_until_serve(&model->flash_free, &c->flash_ns, start, end,
                           busy_until_time(bytes, f->write), &start);
    command->done = later(command->done, end);
}

void device_command_end(struct device_model *model, const struct device_command *command,
                        int64_t now)
{
    struct device_counters *c = &model->counters;

    if (command->done == command->start)
        return; /* it did not touch the drive */
    c->commands++;
    if (now <= command->done)
        return;
    uint64_t late = (uint64_t)(now - command->done);
    c->late++;
    c->late_ns += late;
    c->late_max_ns = late > c->late_max_ns ? late : c->late_max_ns;
}
