/* tools/bench/clients.c - see clients.h. */
#include "tools/bench/clients.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "base/clock.h"
#include "tools/bench/run_pipeline.h"

#define CLIENT_QUIET_MS 60000

void client_connect(struct client *client)
{
    struct hill_why why = {.text = ""};
    char run[4200];
    sigset_t signals; /* client_open takes them for itself; the harness's end needs them */
    snprintf(run, sizeof run, "%s/run", pipeline_folder);
    sigprocmask(SIG_SETMASK, NULL, &signals);
    if (client_open(client, run, &why))
        bench_fail("no client can be connected: %s", why.text);
    sigprocmask(SIG_SETMASK, &signals, NULL);
}

void client_prepare(struct bench_client *c, const char *prompt)
{
    *c = (struct bench_client){.n = 0};
    client_connect(&c->client);
    c->text = capture("cat %s/%s.txt", pipeline_folder, prompt);
    if (!c->text)
        bench_fail("there is no prompt %s", prompt);
}

void client_ask(struct bench_client *c, uint32_t predict)
{
    Hill__Sampling sampling = HILL__SAMPLING__INIT; /* temperature 0: greedy */
    Hill__Generate generate = HILL__GENERATE__INIT;
    struct hill_why why = {.text = ""};
    if (predict > CLIENT_TOKENS)
        bench_fail("a client cannot ask for %u tokens", predict);
    sampling.top_p = 1;
    sampling.repeat_penalty = 1;
    generate.prompt.data = (uint8_t *)c->text;
    generate.prompt.len = strlen(c->text);
    generate.predict = predict;
    generate.no_prefix_cache = true; /* every round reads the prompt */
    generate.ignore_eos = true;
    generate.sampling = &sampling;
    c->asked_ns = clock_now_ns();
    if (client_send(&c->client, &PROTO_MESSAGE(GENERATE, generate, &generate), &why))
        bench_fail("%s", why.text);
    free(c->text);
    c->text = NULL;
}

/* Every message that has come; true when one has. */
static bool client_take(struct bench_client *c)
{
    struct hill_why why = {.text = ""};
    Hill__Message *message;
    bool some = false;
    int rc;
    while ((rc = proto_receive(c->client.socket, NULL, &message, &why)) == 0) {
        if (message->body_case == HILL__MESSAGE__BODY_TEXT && message->text->token != UINT32_MAX &&
            c->n < CLIENT_TOKENS)
            c->at_ns[c->n++] = clock_now_ns();
        else if (message->body_case == HILL__MESSAGE__BODY_REPLY && message->reply->code)
            bench_fail("the pipeline refuses: %s", message->reply->text);
        else if (message->body_case == HILL__MESSAGE__BODY_SUMMARY) {
            c->over = true;
            if (message->summary->code && message->summary->code != HILL_E_CANCELLED)
                bench_fail("a request failed: %s", message->summary->text);
        }
        proto_free(message);
        some = true;
    }
    if (rc != HILL_E_WOULD_BLOCK)
        bench_fail("a client lost its connection: %s", why.text);
    return some;
}

void clients_follow(struct bench_client *clients, uint32_t n, clients_enough *enough)
{
    zmq_pollitem_t items[CLIENTS_MAX];
    for (uint32_t i = 0; i < n; i++)
        items[i] = (zmq_pollitem_t){clients[i].client.socket, 0, ZMQ_POLLIN, 0};
    while (!enough(clients, n)) {
        bool some = false;
        for (uint32_t i = 0; i < n; i++)
            some |= client_take(&clients[i]);
        if (!some && zmq_poll(items, (int)n, CLIENT_QUIET_MS) == 0)
            bench_fail("no token came for %u s", CLIENT_QUIET_MS / 1000);
    }
}

bool clients_all_over(const struct bench_client *clients, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!clients[i].over)
            return false;
    return true;
}

/* The first client is decoding. */
bool clients_first_token(const struct bench_client *clients, uint32_t n)
{
    (void)n;
    return clients[0].n > 0;
}

/* The second client has its first token. */
bool clients_second_began(const struct bench_client *clients, uint32_t n)
{
    return n > 1 && clients[1].n > 0;
}

void client_cancel(struct bench_client *c)
{
    Hill__Cancel cancel = HILL__CANCEL__INIT; /* id 0: the one of this connection */
    client_send(&c->client, &PROTO_MESSAGE(CANCEL, cancel, &cancel), NULL);
}

/* Tokens that came to any of n clients in (from, to], a second. */
static double clients_per_second(const struct bench_client *clients, uint32_t n, int64_t from,
                                 int64_t to)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < clients[i].n; t++)
            count += clients[i].at_ns[t] > from && clients[i].at_ns[t] <= to;
    return count * 1e9 / (double)(to - from);
}

/* Tokens a second of n clients together, from the moment that the last of them has its first token
 * to the moment that the first of them has its last; at least `least` steps of all must lie in
 * between. */
double clients_together(const char *prompt, uint32_t n, uint32_t predict, uint32_t least)
{
    static struct bench_client clients[CLIENTS_MAX];
    int64_t from = 0, to = INT64_MAX;
    for (uint32_t i = 0; i < n; i++)
        client_prepare(&clients[i], prompt);
    for (uint32_t i = 0; i < n; i++)
        client_ask(&clients[i], predict);
    clients_follow(clients, n, clients_all_over);
    for (uint32_t i = 0; i < n; i++) {
        const struct bench_client *c = &clients[i];
        if (c->n != predict)
            bench_fail("%u of %u tokens came", c->n, predict);
        from = c->at_ns[0] > from ? c->at_ns[0] : from;
        to = c->at_ns[predict - 1] < to ? c->at_ns[predict - 1] : to;
        client_close(&clients[i].client);
    }
    double speed = from < to ? clients_per_second(clients, n, from, to) : 0;
    if (speed * (double)(to - from) < least * n * 1e9)
        bench_fail("%u clients decoded together for less than %u steps", n, least);
    return speed;
}
