/* coordinator/request_book.c - see request_book.h. */
#include "coordinator/request_book.h"

#include <stdlib.h>
#include <string.h>

void request_book_init(struct request_book *book)
{
    *book = (struct request_book){.next_id = 1};
    book->last = &book->first;
}

void request_book_finish(struct request_book *book)
{
    while (book->first)
        request_book_remove(book, book->first);
    if (book->running)
        request_book_remove(book, book->running);
}

struct request *request_create(struct request_book *book, uint32_t *prompt, uint32_t n_prompt,
                               uint32_t predict)
{
    struct request *request = calloc(1, sizeof *request);
    uint32_t *tokens = calloc(predict ? predict : 1, sizeof *tokens);
    if (!request || !tokens) {
        free(request);
        free(tokens);
        free(prompt);
        return NULL;
    }
    request->id = book->next_id++;
    request->prompt = prompt;
    request->n_prompt = n_prompt;
    request->predict = predict;
    request->tokens = tokens;
    hill__sampling__init(&request->sampling);
    return request;
}

void request_destroy(struct request *request)
{
    if (!request)
        return;
    proto_free(request->done);
    proto_free(request->stats);
    free(request->prompt);
    free(request->tokens);
    free(request);
}

/* ---- the queue --------------------------------------------------------------------------- */

int request_book_add(struct request_book *book, struct request *request)
{
    if (book->n_waiting >= REQUEST_WAITING_MAX)
        return HILL_E_BUSY;
    request->state = REQUEST_WAITING;
    request->next = NULL;
    *book->last = request;
    book->last = &request->next;
    book->n_waiting++;
    return 0;
}

static void unlink_waiting(struct request_book *book, struct request *request)
{
    struct request **at = &book->first;
    while (*at && *at != request)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = request->next;
    if (book->last == &request->next)
        book->last = at;
    book->n_waiting--;
}

struct request *request_book_advance(struct request_book *book)
{
    struct request *request = book->first;
    if (book->running || !request)
        return NULL;
    unlink_waiting(book, request);
    request->state = REQUEST_INTERRUPTED;
    book->running = request;
    return request;
}

void request_book_remove(struct request_book *book, struct request *request)
{
    if (book->running == request)
        book->running = NULL;
    else
        unlink_waiting(book, request);
    book->n_done++;
    request_destroy(request);
}

bool request_same_client(const struct request *request, const struct proto_address *client)
{
    return request->client.length == client->length &&
           memcmp(request->client.bytes, client->bytes, client->length) == 0;
}

struct request *request_book_find(const struct request_book *book,
                                  const struct proto_address *client, uint64_t id)
{
    struct request *running = book->running;
    if (running && request_same_client(running, client) && (!id || running->id == id))
        return running;
    for (struct request *request = book->first; request; request = request->next)
        if (request_same_client(request, client) && (!id || request->id == id))
            return request;
    return NULL;
}

struct request *request_book_by_wire(const struct request_book *book, uint64_t wire_id)
{
    struct request *running = book->running;
    return running && running->wire_id && running->wire_id == wire_id ? running : NULL;
}

/* ---- attempts ---------------------------------------------------------------------------- */

int request_begin_attempt(struct request_book *book, struct request *request, int64_t now_ns)
{
    if (request->attempts >= REQUEST_ATTEMPTS_MAX)
        return HILL_E_PEER_GONE;
    request->attempts++;
    request->wire_id = book->next_id++;
    request->n_attempt = 0;
    request->prefill_ns = now_ns;
    request->prefill_share = 0;
    request->progress_ns = 0;
    request->failure_code = 0;
    request->failure_text[0] = '\0';
    request->state = REQUEST_RUNNING;
    return 0;
}

void request_interrupt(struct request *request)
{
    request->wire_id = 0;
    proto_free(request->done);
    proto_free(request->stats);
    request->done = request->stats = NULL;
    request->state = REQUEST_INTERRUPTED;
}

int request_take_token(struct request *request, uint32_t index, uint32_t token, int64_t now_ns)
{
    if (index != request->n_attempt || index >= request->predict || request->done)
        return HILL_E_PROTOCOL;
    if (!request->first_token_ns)
        request->first_token_ns = now_ns;
    request->attempt_last_ns = now_ns;
    if (!request->n_attempt++)
        request->attempt_first_ns = now_ns;
    if (index < request->n_tokens)
        return request->tokens[index] == token ? 0 : HILL_E_DAMAGED;
    request->tokens[request->n_tokens++] = token;
    return 1;
}

int request_take_done(struct request *request, Hill__Message *message, int64_t now_ns)
{
    if (request->done)
        return HILL_E_PROTOCOL;
    bool success = message->done->finish == HILL__FINISH_REASON__FINISH_STOP ||
                   message->done->finish == HILL__FINISH_REASON__FINISH_LENGTH;
    request->done = message;
    request->deadline_ns = now_ns + (success ? REQUEST_STATS_NS : REQUEST_STATS_ERR_NS);
    request->state = REQUEST_FINISHING;
    return 0;
}

int request_take_stats(struct request *request, Hill__Message *message)
{
    if (request->stats)
        return HILL_E_PROTOCOL;
    request->stats = message;
    return 0;
}

bool request_is_over(const struct request *request, int64_t now_ns)
{
    return request->state == REQUEST_FINISHING &&
           (request->stats || now_ns >= request->deadline_ns);
}

bool request_worth_retry(int code)
{
    return code == HILL_E_PEER_GONE || code == HILL_E_TIMEOUT || code == HILL_E_WOULD_BLOCK;
}
