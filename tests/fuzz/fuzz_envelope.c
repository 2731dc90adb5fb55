/*
 * tests/fuzz/fuzz_envelope.c - any bytes as a message of the control plane.
 *
 * What: the first 8 bytes are the envelope frame, the rest is the body. What decodes is walked by
 * packing it, which reads every field. That the packed bytes decode again is not asked for:
 * protobuf-c writes the unknown fields of an odd message so that it refuses them itself. Failure:
 * sanitizer findings; abort() where a refused message is handed out or an accepted one has no body.
 * Who calls it: libFuzzer (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "proto/envelope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Hill__Message *message;
    struct hill_why why = {""};
    size_t frame = size < 8 ? size : 8;
    if (proto_decode(data, frame, data + frame, size - frame, &message, &why) != 0) {
        if (message != NULL)
            abort(); /* refused, yet handed out */
        return 0;
    }
    if (message->body_case == HILL__MESSAGE__BODY__NOT_SET || proto_validate(message, &why) != 0)
        abort();
    size_t bytes = hill__message__get_packed_size(message);
    uint8_t *body = malloc(bytes + 1);
    if (body == NULL || hill__message__pack(message, body) != bytes)
        abort();
    proto_free(message);
    free(body);
    return 0;
}
