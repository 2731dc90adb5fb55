/* tools/bench/point_rows.c - what the rows of a batch do together (point_run.h). */
#include <math.h>
#include <poll.h>
#include <stdio.h>

#include "tools/bench/clients.h"
#include "tools/bench/point_run.h"
#include "tools/bench/run_pipeline.h"

#define LOOK_MS 20 /* a message each time: the steps that are measured must not notice */

/* ---- while they decode ---- */

/* Has the newest of `rows` requests so many tokens? */
static bool newest_has(const Hill__StatusReply *s, uint32_t rows, uint32_t tokens)
{
    const Hill__RunningRequest *newest = NULL;
    for (size_t i = 0; s->n_requests == rows && i < rows; i++)
        if (!newest || s->requests[i]->request_id > newest->request_id)
            newest = s->requests[i];
    return newest && newest->predicted_tokens >= tokens;
}

/* Until then; false: the command is over before. */
static bool wait_for(FILE *command, struct client *client, uint32_t rows, uint32_t tokens)
{
    struct pollfd over = {.fd = fileno(command), .events = POLLIN};
    struct hill_why why = {.text = ""};
    Hill__Message *m;
    while (poll(&over, 1, LOOK_MS) == 0) {
        if (client_status(client, CLIENT_ANSWER_MS, &m, &why))
            bench_fail("the pipeline gives no status: %s", why.text);
        bool reached = newest_has(m->status_reply, rows, tokens);
        proto_free(m);
        if (reached)
            return true;
    }
    return false;
}

json_t *point_watch_rows(FILE *command, uint32_t rows, uint32_t steps)
{
    struct client client;
    json_t *both = json_array();
    client_connect(&client);
    wait_for(command, &client, rows, 1);
    json_array_append_new(both, pipeline_status());
    wait_for(command, &client, rows, steps - steps / 4); /* before the last row is over */
    json_array_append_new(both, pipeline_status());
    client_close(&client);
    return both;
}

/* ---- what they did ---- */

static double member(json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name)); /* 0: it has none */
}

static json_t *of_request(json_t *list, double request)
{
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        if (member(one, "request") == request)
            return one;
    }
    return NULL;
}

/* A number of one row, in a step: what it grew by between two looks at its statistics; where it did
 * not decode between them, up to the second one. */
struct growth {
    json_t *before, *after;
    double steps;
};

static struct growth growth_of(json_t *before, json_t *after, uint32_t layers)
{
    double queries = member(after, "queries");
    double were = member(before, "queries");
    if (queries > were)
        return (struct growth){before, after, (queries - were) / layers};
    return (struct growth){NULL, after, queries / layers};
}

static double grown(const struct growth *g, const char *a, const char *b, const char *c)
{
    double was = g->before ? json_at(g->before, a, b, c) : 0;
    return g->steps > 0 ? (json_at(g->after, a, b, c) - was) / g->steps : 0;
}

void point_read_busy(json_t *drive, json_t *before, double steps, struct point_result *r)
{
    struct {
        const char *name;
        double *to;
    } const fields[] = {{"flash_ms", &r->busy_flash_ms},
                        {"dram_ms", &r->busy_dram_ms},
                        {"score_ms", &r->busy_score_ms},
                        {"link_ms", &r->busy_link_ms},
                        {"late_ms", &r->late_step_ms}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        *fields[i].to =
            fmax(0, member(drive, fields[i].name) - member(before, fields[i].name)) / steps;
}

double point_written(json_t *of)
{
    json_t *writes = json_object_get(of, "writes");
    return member(writes, "pages") + member(writes, "directory");
}

/* Of a step of all rows: what the drive's counters grew by, over the tokens that the rows made
 * meanwhile. One that is over has made `last` of them. */
static void read_drive(json_t *before, json_t *after, double last, struct point_result *r)
{
    json_t *requests = json_object_get(before, "requests"), *one;
    double tokens = 0;
    size_t i;
    json_array_foreach(requests, i, one)
    {
        json_t *then = of_request(json_object_get(after, "requests"), member(one, "request"));
        tokens +=
            (then ? member(then, "predicted_tokens") : last) - member(one, "predicted_tokens");
    }
    if (tokens > 0)
        point_read_busy(json_object_get(after, "csd_model"), json_object_get(before, "csd_model"),
                        tokens / (double)json_array_size(requests), r);
}

/* Sums over rows, of one layer. */
struct shares {
    double hot, entries, cold_hits, hits;
};

static void add_row(struct point_result *r, struct shares *of, const struct growth *g,
                    uint32_t layers)
{
    double cold_hits = grown(g, "tiers", "cold", "hits") / layers,
           hot = json_at(g->after, "tiers", "hot", "tokens") / layers;
    r->all_flash += grown(g, "bytes", "flash_read", NULL);
    r->all_link += grown(g, "bytes", "link_key", NULL) + grown(g, "bytes", "link_score", NULL) +
                   grown(g, "bytes", "link_kv", NULL);
    r->ever_cold += json_at(g->after, "moves", "ever_cold", NULL);
    of->cold_hits += cold_hits;
    of->hits +=
        cold_hits + (grown(g, "tiers", "gpu", "hits") + grown(g, "tiers", "hot", "hits")) / layers;
    of->hot += hot;
    of->entries += hot + json_at(g->after, "tiers", "cold", "tokens") / layers;
}

void point_read_rows(json_t *answer, uint32_t layers, struct point_result *r)
{
    json_t *both = json_object_get(answer, "rows"), *before = json_array_get(both, 0),
           *after = json_array_get(both, 1), *one;
    double own = json_at(answer, "request_id", NULL, NULL);
    struct shares all = {r->hot, r->hot + r->cold, r->cold_hits,
                         r->gpu_hits + r->hot_hits + r->cold_hits};
    size_t i;
    r->all_flash = r->flash_read;
    r->all_link = r->link_key + r->link_score + r->link_kv;
    json_array_foreach(json_object_get(after, "sequences"), i, one)
    {
        double id = member(one, "request");
        json_t *was = of_request(json_object_get(before, "sequences"), id);
        struct growth g = growth_of(was, one, layers);
        if (id != own)
            add_row(r, &all, &g, layers);
    }
    r->hot_share = all.entries > 0 ? all.hot / all.entries : 0;
    r->cold_share = all.hits > 0 ? all.cold_hits / all.hits : 0;
    if (after) {
        r->written = point_written(after);
        read_drive(before, after, member(answer, "predicted_tokens"), r);
    }
}
