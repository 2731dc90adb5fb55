/* gateway/upstream.c - see upstream.h. */
#include "gateway/upstream.h"

#include <stdio.h>
#include <string.h>

#include <zmq.h>

#include "base/clock.h"
#include "base/log.h"
#include "chat/chat_prompt.h"
#include "gateway/fill.h"

#define LOOK_MS   200  /* for a pipeline that is not there, and for its end */
#define LINGER_MS 1000 /* a last Cancel leaves */
#define PING_MS   2000

void upstream_init(struct upstream *up, const char *run_dir, const ProtobufCBinaryData *template)
{
    *up = (struct upstream){.client.signal_fd = -1, .template = template};
    snprintf(up->run_dir, sizeof up->run_dir, "%s", run_dir);
}

static void forget(struct upstream *up)
{
    proto_free(up->info);
    proto_free(up->status);
    up->info = up->status = NULL;
}

void upstream_close(struct upstream *up)
{
    forget(up);
    if (up->open)
        client_close(&up->client);
    up->open = false;
}

/* Which of these are tokens? */
static void ask_for_tokens(struct upstream *up)
{
    static const char text[] = FILL_BEFORE FILL_AFTER FILL_WANTED FILL_WHOLE FILL_FILE;
    Hill__Tokenize tokenize = HILL__TOKENIZE__INIT;
    Hill__PromptPiece piece = HILL__PROMPT_PIECE__INIT, *list[] = {&piece};
    piece.text = (ProtobufCBinaryData){sizeof text - 1, (uint8_t *)text};
    piece.kind = HILL__PROMPT_KIND__PROMPT_SPECIAL;
    tokenize.pieces = list;
    tokenize.n_pieces = 1;
    tokenize.with_pieces = true;
    client_send(&up->client, &PROTO_MESSAGE(TOKENIZE, tokenize, &tokenize), NULL);
}

static bool has_token(const Hill__Tokens *tokens, const char *text)
{
    size_t bytes = strlen(text);
    for (size_t i = 0; i < tokens->n_pieces; i++)
        if (tokens->pieces[i].len == bytes && memcmp(tokens->pieces[i].data, text, bytes) == 0)
            return true;
    return false;
}

static void take_tokens(struct upstream *up, const Hill__Tokens *tokens)
{
    up->fills = has_token(tokens, FILL_BEFORE) && has_token(tokens, FILL_AFTER) &&
                has_token(tokens, FILL_WANTED);
    up->files = has_token(tokens, FILL_WHOLE) && has_token(tokens, FILL_FILE);
}

static void ask(struct upstream *up)
{
    Hill__ModelInfoRequest model = HILL__MODEL_INFO_REQUEST__INIT;
    ask_for_tokens(up); /* first: its answer is there when the model is known */
    client_send(&up->client, &PROTO_MESSAGE(MODEL_INFO_REQUEST, model_info_request, &model), NULL);
    client_ping(&up->client, NULL);
}

static void connect_now(struct upstream *up)
{
    struct hill_why why;
    int code = client_open(&up->client, up->run_dir, &why);
    if (code && code != HILL_E_PEER_GONE && !up->told) {
        log_warn("%s", why.text); /* no pipeline that comes later changes that */
        up->told = true;
    }
    if (code)
        return;
    up->open = true;
    up->client_losses = 0;
    ask(up);
}

/* "models/smollm2.gguf" is called smollm2. */
static void name_model(struct upstream *up)
{
    const char *path = up->info->model_info->path, *slash = strrchr(path, '/');
    snprintf(up->model_name, sizeof up->model_name, "%.200s", slash ? slash + 1 : path);
    char *end = strrchr(up->model_name, '.');
    if (end && strcmp(end, ".gguf") == 0)
        *end = '\0';
}

static void take(struct upstream *up, Hill__Message *message)
{
    Hill__Message **kept = message->body_case == HILL__MESSAGE__BODY_MODEL_INFO     ? &up->info
                           : message->body_case == HILL__MESSAGE__BODY_STATUS_REPLY ? &up->status
                                                                                    : NULL;
    if (!kept) {
        if (message->body_case == HILL__MESSAGE__BODY_TOKENS)
            take_tokens(up, message->tokens);
        proto_free(message);
        return;
    }
    proto_free(*kept);
    *kept = message;
    if (kept == &up->info) {
        struct hill_why why;
        if (up->template->len && chat_prompt_set_template(message->model_info, up->template, &why))
            log_warn("%s: chats are rendered by the model's own", why.text);
        name_model(up);
        log_info("serving %s, context %u tokens", up->model_name, up->info->model_info->ctx_tokens);
    }
}

static void listen_to(struct upstream *up)
{
    Hill__Message *message;
    client_look(&up->client);
    while (proto_receive(up->client.socket, NULL, &message, NULL) == 0) {
        up->heard_ns = clock_now_ns();
        take(up, message);
    }
    if (up->client.losses != up->client_losses) {
        up->client_losses = up->client.losses;
        up->losses++;
        up->stale = true;
    }
    if (up->stale && up->client.connected) {
        up->stale = false;
        ask(up);
    }
}

static void watch(struct upstream *up, bool watched, int64_t now_ns)
{
    if (!watched || !up->client.connected) {
        up->asked_ns = 0;
        return;
    }
    if (!up->asked_ns || now_ns - up->asked_ns > CLOCK_MS(2 * PING_MS))
        up->heard_ns = now_ns; /* watched from now on, or it was this process that stood still */
    if (!up->asked_ns || now_ns - up->asked_ns > CLOCK_MS(PING_MS)) {
        up->asked_ns = now_ns;
        client_ping(&up->client, NULL);
    }
}

int64_t upstream_silent_since(const struct upstream *up, int64_t now_ns)
{
    bool silent = up->asked_ns && now_ns - up->heard_ns > CLOCK_MS(CLIENT_ANSWER_MS);
    return silent ? up->heard_ns : 0;
}

void upstream_tick(struct upstream *up, bool watched, int64_t now_ns)
{
    if (now_ns >= up->next_ns) {
        if (!up->open)
            connect_now(up);
        else if (!up->client.connected && (up->info || up->client.losses))
            up->ended = client_pipeline_ended(&up->client);
        up->next_ns = now_ns + CLOCK_MS(LOOK_MS);
        if (up->open && !upstream_known(up) && up->client.connected)
            ask(up);
    }
    if (up->open) {
        listen_to(up);
        watch(up, watched, now_ns);
    }
}

int64_t upstream_next_ns(const struct upstream *up)
{
    bool settled = up->open && up->client.connected && upstream_known(up);
    return settled ? CLOCK_NEVER : up->next_ns;
}

bool upstream_known(const struct upstream *up)
{
    return up->info && up->status;
}

const Hill__ModelInfo *upstream_model(const struct upstream *up)
{
    return up->info->model_info;
}

void *upstream_line(struct upstream *up)
{
    char address[140];
    int linger = LINGER_MS;
    void *line = up->open ? zmq_socket(up->client.context, ZMQ_DEALER) : NULL;
    if (!line)
        return NULL;
    snprintf(address, sizeof address, "ipc://%s/control.sock", up->run_dir);
    zmq_setsockopt(line, ZMQ_LINGER, &linger, sizeof linger);
    if (zmq_connect(line, address) == 0)
        return line;
    zmq_close(line);
    return NULL;
}

void upstream_hang_up(void *line)
{
    if (line)
        zmq_close(line);
}
