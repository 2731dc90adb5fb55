/*
 * coordinator/service_csd_model.c - the device model: changed by clients, counted by the agent,
 * shown to both.
 *
 * What: settings hold the model in force; a change goes to the agent at once, and into every later
 * Configure. The agent tells its counters a few milliseconds after they change; they are summed
 * over its restarts here, and a request's are the difference to those when its first attempt began.
 * Who calls it: service.c, service_requests.c, service_status.c. Concurrency: one thread. Failure:
 * a change that cannot be read is refused with the key at fault, and nothing changes.
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
    int code = settings_change_model(s, change->text, &detail);
    if (code) {
        hill_fail(&why, code, "csd model: %s", detail.text);
        router_reply(sv->router, from, code, why.text);
        return;
    }
    sv->csd_model.changes++;
    Hill__CsdModel model;
    proto_set_csd_model(&model, &s->epoch.csd_model);
    Hill__Message message = PROTO_MESSAGE(CSD_MODEL, csd_model, &model);
    for (enum worker w = 0; w < WORKER_COUNT; w++) {
        if (worker_is_agent(w) && settings_several(s))
            proto_set_csd_model(&model, &s->drives[w - WORKER_AGENT].model);
        router_to_worker(sv->router, w,
                         &message); /* one that is not there gets it with Configure */
    }
    supervisor_note_drives(sv->supervisor);
    csd_model_print(text, &s->epoch.csd_model);
    log_info("device model %s", text);
    router_reply(sv->router, from, 0, text);
}

/* times: 1, or UINT64_MAX to take away; a maximum stays. */
static void add(Hill__CsdModelCounters *sum, const Hill__CsdModelCounters *other, uint64_t times)
{
    sum->commands += times * other->commands;
    sum->flash_ns += times * other->flash_ns;
    sum->score_ns += times * other->score_ns;
    sum->link_ns += times * other->link_ns;
    sum->dram_ns += times * other->dram_ns;
    sum->payload_bytes += times * other->payload_bytes;
    sum->written_bytes += times * other->written_bytes;
    sum->directory_bytes += times * other->directory_bytes;
    sum->late += times * other->late;
    sum->late_ns += times * other->late_ns;
    sum->lag_ns += times * other->lag_ns;
    sum->changes += (uint32_t)times * other->changes;
    if (times == 1 && other->late_max_ns > sum->late_max_ns)
        sum->late_max_ns = other->late_max_ns;
}

void csd_model_new_agent(struct service *sv, uint32_t drive)
{
    add(&sv->csd_model.before, &sv->csd_model.last[drive], 1);
    sv->csd_model.last[drive] = (Hill__CsdModelCounters){0};
}

void csd_model_take_counters(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    Hill__CsdModelCounters *last = &sv->csd_model.last[a->worker - WORKER_AGENT];
    *last = *a->message->csd_model_counters;
    last->changes = 0; /* not the agent's to count */
}

Hill__CsdModelCounters csd_model_used(const struct service *sv)
{
    Hill__CsdModelCounters sum = HILL__CSD_MODEL_COUNTERS__INIT;
    add(&sum, &sv->csd_model.before, 1);
    for (uint32_t d = 0; d < LAYOUT_DRIVES_MAX; d++)
        add(&sum, &sv->csd_model.last[d], 1);
    sum.changes = sv->csd_model.changes;
    return sum;
}

void csd_model_show(const struct service *sv, const Hill__CsdModelCounters *since,
                    Hill__CsdModel *model, Hill__CsdModelCounters *counters)
{
    proto_set_csd_model(model, &sv->settings->epoch.csd_model);
    *counters = csd_model_used(sv);
    add(counters, since, UINT64_MAX);
}
