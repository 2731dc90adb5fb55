/* tests/chaos/asking.c - see asking.h. */
#include "tests/chaos/asking.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void send_or_die(struct asking *a, const Hill__Message *message, const char *what)
{
    struct hill_why why = {""};
    if (client_send(&a->client, message, &why)) {
        fprintf(stderr, "chaos: %s: %s\n", what, why.text);
        exit(1);
    }
}

static void send_request(struct asking *a, uint32_t i)
{
    const struct asked *r = &a->requests[i];
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Generate generate = HILL__GENERATE__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    sampling.temperature = i == 0 ? 0 : 0.8f; /* the first greedy, others sampled */
    sampling.top_k = 40;
    sampling.top_p = 0.95f;
    sampling.min_p = 0.05f;
    sampling.repeat_penalty = 1;
    sampling.seed = 1 + (uint64_t)i;
    generate.prompt = (ProtobufCBinaryData){r->prompt_bytes, (uint8_t *)r->prompt};
    generate.predict = a->predict;
    generate.ignore_eos = true;
    generate.want_progress = true;
    generate.sampling = &sampling;
    generate.key = r->key;
    message.body_case = HILL__MESSAGE__BODY_GENERATE;
    message.generate = &generate;
    a->sent[a->n_sent++] = i;
    send_or_die(a, &message, "asking");
}

static void send_follow(struct asking *a, struct asked *r)
{
    Hill__Follow follow = HILL__FOLLOW__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    r->serial = ++a->followed;
    r->answered = false;
    follow.key = r->key;
    follow.serial = r->serial;
    follow.tokens = r->got;
    follow.n_tokens = r->n;
    follow.text_bytes = r->text_bytes;
    message.body_case = HILL__MESSAGE__BODY_FOLLOW;
    message.follow = &follow;
    send_or_die(a, &message, "following");
}

void asking_begin(struct asking *a)
{
    a->n_sent = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        struct asked *r = &a->requests[i];
        r->key = ++a->next_key;
        r->id = r->text_bytes = 0;
        r->serial = r->n = 0;
        r->answered = r->over = r->differs = false;
        r->last_ns = r->pause_ns = 0;
        r->read = -1;
        r->failure[0] = '\0';
    }
    for (uint32_t i = 0; i < a->n; i++)
        send_request(a, i);
}

bool asking_look(struct asking *a)
{
    bool lost = a->client.losses != a->losses;
    if (lost) {
        a->losses = a->client.losses;
        a->away = true;
        a->n_sent = 0;
        for (uint32_t i = 0; i < a->n; i++)
            a->requests[i].answered = false;
    }
    if (a->away && a->client.connected) {
        a->away = false;
        for (uint32_t i = 0; i < a->n; i++)
            if (!a->requests[i].over)
                send_follow(a, &a->requests[i]);
    }
    return lost;
}

static void followed(struct asking *a, const Hill__Accepted *accepted)
{
    for (uint32_t i = 0; i < a->n; i++) {
        struct asked *r = &a->requests[i];
        if (r->serial != accepted->serial || r->over)
            continue;
        r->id = accepted->request_id;
        r->answered = r->id != 0;
        if (!r->id) /* nothing of it is left there */
            send_request(a, i);
    }
}

void asking_accepted(struct asking *a, const Hill__Accepted *accepted)
{
    if (accepted->serial) {
        followed(a, accepted);
    } else if (a->n_sent) {
        struct asked *r = &a->requests[a->sent[0]];
        memmove(a->sent, a->sent + 1, --a->n_sent * sizeof *a->sent);
        r->id = accepted->request_id;
        r->answered = true;
        if (r->n) /* it has begun again, and some of its tokens are here */
            send_follow(a, r);
    }
}

struct asked *asking_find(struct asking *a, uint64_t id)
{
    for (uint32_t i = 0; i < a->n; i++)
        if (a->requests[i].id == id && a->requests[i].answered && !a->requests[i].over)
            return &a->requests[i];
    return NULL;
}

bool asking_text(const struct asking *a, struct asked *r, const Hill__Text *text)
{
    r->text_bytes += text->text.len;
    if (text->token == UINT32_MAX)
        return false;
    if (r->n >= a->predict)
        r->differs = true;
    else
        r->got[r->n++] = text->token;
    return true;
}

void asking_over(struct asking *a, struct asked *r)
{
    Hill__Delivered delivered = HILL__DELIVERED__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    r->over = true;
    delivered.request_id = r->id;
    message.body_case = HILL__MESSAGE__BODY_DELIVERED;
    message.delivered = &delivered;
    send_or_die(a, &message, "saying that it is here");
}
