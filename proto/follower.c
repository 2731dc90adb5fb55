/* proto/follower.c - see follower.h. */
#include "proto/follower.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/grow.h"
#include "proto/client.h"

static void name(Hill__Message *order, uint64_t key)
{
    if (order->body_case == HILL__MESSAGE__BODY_GENERATE)
        order->generate->key = key;
    else
        order->restore_session->key = key;
}

int follower_begin(struct follower *f, void *socket, const Hill__Message *order, uint32_t losses,
                   uint32_t recovery_ms)
{
    follower_finish(f);
    f->order = proto_copy(order);
    if (!f->order)
        return HILL_E_NOMEM;
    f->socket = socket;
    f->losses = losses;
    f->recovery_ms = recovery_ms;
    f->key = client_random();
    name(f->order, f->key);
    return proto_send(socket, NULL, f->order);
}

void follower_finish(struct follower *f)
{
    proto_free(f->order);
    free(f->tokens);
    *f = (struct follower){0};
}

static int send_follow(struct follower *f)
{
    Hill__Follow follow = HILL__FOLLOW__INIT;
    f->serial = ++f->follows;
    f->answered = f->cut = false;
    follow.key = f->key;
    follow.serial = f->serial;
    follow.tokens = f->tokens;
    follow.n_tokens = f->n_tokens;
    follow.text_bytes = f->text_bytes;
    return proto_send(f->socket, NULL, &PROTO_MESSAGE(FOLLOW, follow, &follow));
}

static int take_accepted(struct follower *f, const Hill__Accepted *accepted)
{
    int code = 0;
    if (accepted->serial != f->serial)
        return FOLLOWER_NOTHING; /* of a Follow that another loss has overtaken */
    if (!accepted->request_id) { /* its log was damaged, or was never written */
        f->serial = 0;
        f->id = 0; /* another coordinator may give that number to another client's request */
        code = proto_send(f->socket, NULL, f->order);
        return code ? code : FOLLOWER_ANEW;
    }
    f->id = accepted->request_id;
    f->recovery_ms = accepted->recovery_timeout_ms;
    if (!accepted->serial &&
        f->n_tokens) { /* it has begun again, and some of its tokens are here */
        code = send_follow(f);
        return code ? code : FOLLOWER_NOTHING;
    }
    f->answered = true;
    f->lost_ns = 0;
    return FOLLOWER_TAKEN;
}

static int take_text(struct follower *f, const Hill__Text *text)
{
    f->text_bytes += text->text.len;
    if (text->token == UINT32_MAX) /* more text of the token before */
        return FOLLOWER_TAKEN;
    if (!GROW(f->tokens, f->tokens_room, f->n_tokens + 1))
        return HILL_E_NOMEM;
    f->tokens[f->n_tokens++] = text->token;
    return FOLLOWER_TAKEN;
}

static int take_summary(struct follower *f)
{
    Hill__Delivered delivered = HILL__DELIVERED__INIT;
    delivered.request_id = f->id;
    Hill__Message message = PROTO_MESSAGE(DELIVERED, delivered, &delivered);
    proto_send(f->socket, NULL, &message); /* lost: the coordinator waits for it in vain */
    return FOLLOWER_TAKEN;
}

int follower_take(struct follower *f, const Hill__Message *message)
{
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_ACCEPTED:
        return take_accepted(f, message->accepted);
    case HILL__MESSAGE__BODY_TEXT:
        return f->answered && message->text->request_id == f->id ? take_text(f, message->text)
                                                                 : FOLLOWER_NOTHING;
    case HILL__MESSAGE__BODY_PREFILL_PROGRESS:
        return f->answered && message->prefill_progress->request_id == f->id ? FOLLOWER_TAKEN
                                                                             : FOLLOWER_NOTHING;
    case HILL__MESSAGE__BODY_SUMMARY:
        return f->answered && message->summary->request_id == f->id ? take_summary(f)
                                                                    : FOLLOWER_NOTHING;
    default:
        return FOLLOWER_TAKEN;
    }
}

int follower_watch(struct follower *f, const struct follower_line *line, int64_t now_ns)
{
    enum follower_news news = FOLLOWER_NOTHING;
    if (line->losses != f->losses) {
        f->losses = line->losses;
        f->answered = false;
        f->cut = true;
        f->lost_ns = f->lost_ns ? f->lost_ns : now_ns;
        news = FOLLOWER_LOST;
    } else if (f->answered || !f->lost_ns) { /* it hangs, or does so no more */
        f->lost_ns = line->silent_since_ns;
    }
    if (f->lost_ns && now_ns - f->lost_ns > CLOCK_MS(f->recovery_ms))
        return HILL_E_TIMEOUT;
    int code = f->cut && line->connected ? send_follow(f) : 0;
    return code ? code : (int)news;
}
