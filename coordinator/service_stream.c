/*
 * coordinator/service_stream.c - what the client of a request is sent while it runs: Accepted and
 * the text, also a second time after the connection was lost.
 *
 * Who calls it: the other parts of the service. Concurrency: one thread. Failure: a client that is
 * gone is noted, out of memory is told.
 */
#include "coordinator/service.h"

#include <inttypes.h>
#include <stdlib.h>

#define TEXT_PIECE_MAX 4096u
#define TAIL_TOKENS    8u /* more than an unfinished character has */

void request_send(struct service *sv, struct request *r, const Hill__Message *message)
{
    if (r->client_gone)
        return;
    int code = router_to_client(sv->router, &r->client, message);
    if (code) {
        log_info("request %" PRIu64 ": its client is gone (%s)", r->id, hill_strerror(code));
        r->client_gone = true; /* requests_tick cancels it */
    }
}

void request_send_accepted(struct service *sv, struct request *r, uint32_t serial)
{
    Hill__Accepted accepted = HILL__ACCEPTED__INIT;
    accepted.request_id = r->id;
    accepted.prompt_tokens = r->n_prompt;
    accepted.serial = serial;
    accepted.recovery_timeout_ms = sv->settings->options.recovery_ms;
    request_send(sv, r, &PROTO_MESSAGE(ACCEPTED, accepted, &accepted));
}

void request_send_text(struct service *sv, struct request *r, const char *text, uint64_t length,
                       uint32_t token, double logprob)
{
    do {
        uint64_t piece = length < TEXT_PIECE_MAX ? length : TEXT_PIECE_MAX;
        while (piece < length && piece > 1 && ((uint8_t)text[piece] & 0xc0) == 0x80)
            piece--; /* not within a character */
        Hill__Text body = HILL__TEXT__INIT;
        body.request_id = r->id;
        body.text.data = (uint8_t *)text;
        body.text.len = piece;
        body.token = token;
        body.logprob = token == TEXT_NO_TOKEN ? 0 : logprob;
        request_send(sv, r, &PROTO_MESSAGE(TEXT, text, &body));
        text += piece;
        length -= piece;
        token = TEXT_NO_TOKEN;
    } while (length);
}

/* The text of the next token: *text is the caller's. */
static int next_text(struct request *r, uint32_t token, char **text, uint64_t *bytes)
{
    uint64_t room = detokenizer_room(&r->text, token);
    *text = malloc(room ? room : 1);
    if (!*text)
        return HILL_E_NOMEM;
    *bytes = /* a vocabulary may spell it like text */
        token == r->answer_end ? 0 : detokenizer_push(&r->text, token, *text);
    return 0;
}

int request_send_token(struct service *sv, struct request *r, uint32_t token, double logprob)
{
    char *text;
    uint64_t bytes;
    int code = next_text(r, token, &text, &bytes);
    if (code)
        return code;
    request_send_text(sv, r, text, bytes, token, logprob);
    free(text);
    return 0;
}

/* Of a restored session the text goes on where the saved one's stopped, also within a character. */
int request_begin_text(struct request *r, const struct tokenizer *tokenizer)
{
    uint32_t tail = r->n_prompt > TAIL_TOKENS ? r->n_prompt - TAIL_TOKENS : 0;
    detokenizer_init(&r->text, tokenizer, true);
    bool goes_on = r->restore_path && !r->from_prompt && !r->n_question;
    for (uint32_t i = goes_on ? tail : r->n_prompt; i < r->n_prompt; i++) {
        char *text = malloc(detokenizer_room(&r->text, r->prompt[i]) + 1);
        if (!text)
            return HILL_E_NOMEM;
        detokenizer_push(&r->text, r->prompt[i], text);
        free(text);
    }
    return 0;
}

int request_send_again(struct service *sv, struct request *r, uint32_t n_there,
                       uint64_t bytes_there)
{
    uint64_t sent = 0;
    int code = request_begin_text(r, sv->settings->tokenizer);
    for (uint32_t i = 0; i < r->n_tokens && !code; i++) {
        char *text;
        uint64_t bytes, missing;
        code = next_text(r, r->tokens[i], &text, &bytes);
        if (code)
            break;
        sent += bytes;
        missing = sent > bytes_there ? sent - bytes_there : 0;
        if (i >= n_there)
            request_send_text(sv, r, text, bytes, r->tokens[i], r->logprobs ? r->logprobs[i] : 0);
        else if (i + 1 == n_there && missing > bytes)
            code = HILL_E_PROTOCOL;
        else if (i + 1 == n_there && missing) /* the token came, the rest of its text did not */
            request_send_text(sv, r, text + bytes - missing, missing, TEXT_NO_TOKEN, 0);
        free(text);
    }
    /* an answer that ended within a character: its rest came, too */
    r->rest_there = n_there == r->n_tokens && bytes_there > sent;
    return code;
}
