/*
 * coordinator/service_passages.c - the text of a request's passages, for a client that shows which
 * of them its queries have chosen (SequenceStats.chosen).
 *
 * The tokens' texts one after another, cut where passages end; a character that reaches over an end
 * belongs to the later passage. Who calls it: service_requests.c. Concurrency: one thread. Failure:
 * out of memory is no text.
 */
#include "coordinator/service.h"

#include <stdlib.h>

static uint32_t token_at(const struct request *r, uint32_t i)
{
    return i < r->n_prompt ? r->prompt[i] : r->tokens[i - r->n_prompt];
}

static char *make_room(const struct request *r, const struct tokenizer *tokenizer, uint32_t n)
{
    struct detokenizer stream;
    uint64_t room = 1;
    detokenizer_init(&stream, tokenizer, true);
    for (uint32_t i = 0; i < n; i++)
        room += detokenizer_room(&stream, token_at(r, i));
    return malloc(room);
}

/* Entries are not counted as tokens are then. */
static bool keeps_away(const Hill__Summary *summary)
{
    return summary->gpu && summary->gpu->away_tokens;
}

char *request_fill_passages(const struct service *sv, const struct request *r,
                            Hill__Summary *summary)
{
    const Hill__SequenceStats *s = summary->scorer;
    const struct tokenizer *tokenizer = sv->settings->tokenizer;
    if (!r->want_passages || !s || !s->n_chosen || keeps_away(summary))
        return NULL;
    uint64_t covered = (uint64_t)s->n_chosen * s->passage_tokens;
    uint32_t n = r->n_prompt + r->n_tokens, at = 0;
    n = n < covered ? n : (uint32_t)covered;
    ProtobufCBinaryData *passages = calloc(s->n_chosen, sizeof *passages);
    char *texts = make_room(r, tokenizer, n);
    if (!passages || !texts) {
        free(passages);
        free(texts);
        return NULL;
    }
    struct detokenizer stream;
    uint64_t used = 0;
    detokenizer_init(&stream, tokenizer, true);
    for (uint32_t p = 0; at < n; p++, summary->n_passages++) {
        passages[p].data = (uint8_t *)texts + used;
        for (uint32_t i = 0; i < s->passage_tokens && at < n; i++)
            used += detokenizer_push(&stream, token_at(r, at++), texts + used);
        passages[p].len = used - (uint64_t)(passages[p].data - (uint8_t *)texts);
    }
    summary->passages = passages;
    return texts;
}
