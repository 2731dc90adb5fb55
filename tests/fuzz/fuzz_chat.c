/*
 * tests/fuzz/fuzz_chat.c - any texts as a conversation, in every known template; any text as a
 * template.
 *
 * What: byte 0 chooses the format, byte 1 whether there is a system text, and whether a message's
 * length says its role; the rest is cut at bytes 0 into messages. It is asked for as a template,
 * too, so that what reads templates sees it.
 * Failure: sanitizer findings; abort() where pieces promise what they do not have, or where a
 * message's words stand in a piece in which control tokens count. Who calls it: libFuzzer
 * (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat_formats.h"
#include "model/chat_template.h"

#define MESSAGES_MAX 9

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A template's own pieces are made of its own texts: with words that no template has, none of them
 * may turn up there. */
static void check_pieces(const struct chat_prompt *p)
{
    static const char mark[] = "\x7f"
                               "hillfuzz";
    static volatile char sink;
    for (uint64_t i = 0; i < p->n_pieces; i++) {
        const struct prompt_piece *piece = &p->pieces[i];
        if (piece->bytes == 0)
            continue;
        sink = piece->text[piece->bytes - 1];
        if (piece->kind == PROMPT_SPECIAL && memmem(piece->text, piece->bytes, mark, 9))
            abort();
    }
    sink = p->answer_end ? p->answer_end[strlen(p->answer_end)] : 0;
    (void)sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct chat_vocabulary vocabulary = {.bos = "<s>", .eos = "</s>", .now = 1e9};
    struct chat_message messages[MESSAGES_MAX];
    struct chat_prompt prompt;
    struct hill_why why = {""};
    unsigned n = 0;
    if (size < 2)
        return 0;
    const struct chat_format *format = &chat_formats[data[0] % chat_format_count];
    bool system = data[1] & 1;
    char *text = malloc(size); /* of exactly its size, without a NUL */
    if (!text)
        abort();
    memcpy(text, data + 2, size - 2);
    chat_format_find(text, size - 2);
    for (size_t at = 0; n < MESSAGES_MAX && at <= size - 2; n++) {
        const char *end = memchr(text + at, 0, size - 2 - at);
        size_t bytes = end ? (size_t)(end - text) - at : size - 2 - at;
        enum chat_role role = system && n == 0        ? CHAT_SYSTEM
                              : data[1] & 2           ? (enum chat_role)(bytes % 4)
                              : (n - system) % 2 == 0 ? CHAT_USER
                                                      : CHAT_ASSISTANT;
        messages[n] = (struct chat_message){role, text + at, bytes};
        at += bytes + 1;
    }
    if (chat_render(&prompt, format, &vocabulary, messages, n, &why) == 0) {
        check_pieces(&prompt);
        chat_prompt_finish(&prompt);
    } else if (!why.text[0]) {
        abort();
    }
    free(text);
    return 0;
}
