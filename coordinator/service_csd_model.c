/*
 * coordinator/service_csd_model.c - the device model: changed by clients, counted by the agent, shown
 * to both.
 *
 * What: settings hold the model in force; a change goes to the agent at once, and into every later
 * Configure. The agent tells its counters a few milliseconds after they change; they are summed
 * over its restarts here, and a request's are the difference to those when its attempt began. Who
 * calls it: service.c, service_requests.c, service_status.c. Concurrency: one thread.
 * Failure: a change that cannot be read is refused with the key at fault, and nothing changes.
 */
#include "coordinator/service.h"

void csd_model_take_change(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const struct proto_address *from = &a->from;
    const Hill__CsdModelChange *change = a->message->csd_model_change;
    struct settings *s = sv->settings;
    struct hill_why why = {""}, detail = {""};
    char text[CSD_MODEL_TEXT];
    int code = csd_model_parse(&s->epoch.csd_model, change->text, &detail);
    if (code) {
        hill_fail(&why, code, "csd model: %s", detail.text);
        router_reply(sv->router, from, code, why.text);
        return;
    }
    sv->csd_model.changes++;
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__CsdModel model;
    proto_set_csd_model(&model, &s->epoch.csd_model);
    message.body_case = HILL__MESSAGE__BODY_CSD_MODEL;
    message.csd_model = &model;
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        router_to_worker(sv->router, w,
                         &message); /* one that is not there gets it with Configure */
    csd_model_print(text, &s->epoch.csd_model);
    log_info("device model %s", text);
    router_reply(sv->router, from, 0, text);
}

static void add(struct csd_model_use *sum, const struct csd_model_use *other)
{
    sum->commands += other->commands;
    sum->flash_ns += other->flash_ns;
    sum->score_ns += other->score_ns;
    sum->link_ns += other->link_ns;
    sum->late += other->late;
    sum->late_ns += other->late_ns;
    sum->lag_ns += other->lag_ns;
    if (other->late_max_ns > sum->late_max_ns)
        sum->late_max_ns = other->late_max_ns;
}

void csd_model_new_agent(struct service *sv)
{
    add(&sv->csd_model.before, &sv->csd_model.last);
    sv->csd_model.last = (struct csd_model_use){0};
}

void csd_model_take_counters(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const Hill__CsdModelCounters *counters = a->message->csd_model_counters;
    sv->csd_model.last = (struct csd_model_use){.commands = counters->commands,
                                                .flash_ns = counters->flash_ns,
                                                .score_ns = counters->score_ns,
                                                .link_ns = counters->link_ns,
                                                .late = counters->late,
                                                .late_ns = counters->late_ns,
                                                .late_max_ns = counters->late_max_ns,
                                                .lag_ns = counters->lag_ns};
}

struct csd_model_use csd_model_used(const struct service *sv)
{
    struct csd_model_use sum = sv->csd_model.before;
    add(&sum, &sv->csd_model.last);
    sum.changes = sv->csd_model.changes;
    return sum;
}

void csd_model_show(const struct service *sv, const struct csd_model_use *since,
                    Hill__CsdModel *model, Hill__CsdModelCounters *counters)
{
    struct csd_model_use now = csd_model_used(sv);
    proto_set_csd_model(model, &sv->settings->epoch.csd_model);
    hill__csd_model_counters__init(counters);
    counters->commands = now.commands - since->commands;
    counters->flash_ns = now.flash_ns - since->flash_ns;
    counters->score_ns = now.score_ns - since->score_ns;
    counters->link_ns = now.link_ns - since->link_ns;
    counters->late = now.late - since->late;
    counters->late_ns = now.late_ns - since->late_ns;
    counters->late_max_ns = now.late_max_ns; /* of all: a maximum has no difference */
    counters->lag_ns = now.lag_ns - since->lag_ns;
    counters->changes = now.changes - since->changes;
}
