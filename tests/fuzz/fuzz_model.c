/*
 * tests/fuzz/fuzz_model.c - any bytes as a GGUF file: metadata, shape, tokenizer, encode, decode.
 *
 * What: the input is a file (a memfd, opened by path as the coordinator does). What opens is used:
 * hyperparameters are read, every tensor's last byte and every token's piece are touched, a text is
 * encoded and its tokens are turned back to text. Failure: sanitizer findings; abort() where a
 * promise of a header is broken (an id outside the vocabulary, a piece outside its room).
 * Who calls it: libFuzzer (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/gguf.h"
#include "model/hparams.h"
#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Its first and last row as numbers, where they are short enough. */
static void touch_rows(const struct gguf_tensor *tensor)
{
    uint64_t width = tensor->dims[0], rows = tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
    float *out = width <= 4096 ? malloc(width * sizeof *out + 1) : NULL;
    if (out && rows) {
        gguf_tensor_rows_f32(tensor, 0, 1, out);
        gguf_tensor_rows_f32(tensor, rows - 1, 1, out);
        if (gguf_tensor_rows_f32(tensor, rows, 1, out) == 0)
            abort(); /* a row that is none */
    }
    free(out);
}

/* Read the ends of every tensor: the directory says that they lie in the file. */
static void touch_tensors(const struct gguf_file *file)
{
    static volatile uint8_t sink;
    for (uint64_t i = 0; i < gguf_tensor_count(file); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(file, i);
        const uint8_t *bytes = tensor->data;
        if (tensor->bytes > 0)
            sink = (uint8_t)(bytes[0] ^ bytes[tensor->bytes - 1]);
        touch_rows(tensor);
    }
    (void)sink;
}

static void decode(const struct tokenizer *tokenizer, const uint32_t *tokens, uint64_t count)
{
    struct detokenizer stream;
    detokenizer_init(&stream, tokenizer, false);
    for (uint64_t i = 0; i < count; i++) {
        if (tokens[i] >= tokenizer_vocab_size(tokenizer))
            abort(); /* an id that is none */
        uint64_t room = detokenizer_room(&stream, tokens[i]);
        char *out = malloc(room + 1);
        if (out == NULL || detokenizer_push(&stream, tokens[i], out) > room)
            abort();
        free(out);
    }
    char rest[8];
    detokenizer_flush(&stream, rest);
}

static void use_tokenizer(const struct tokenizer *tokenizer)
{
    static const char text[] = "The pass key is 7302941.\n\tna\xc3\xafve \xf0\x9f\x98\x80 \xff\xc3"
                               " they'll  say <s> 12345678";
    static volatile char sink;
    uint32_t *tokens = NULL;
    uint64_t count = 0;
    if (tokenizer_encode(tokenizer, text, sizeof(text) - 1, true, &tokens, &count) == 0)
        decode(tokenizer, tokens, count);
    free(tokens);
    for (uint32_t token = 0; token < tokenizer_vocab_size(tokenizer); token++) {
        struct gguf_string piece = tokenizer_piece(tokenizer, token);
        if (piece.length > 0)
            sink = piece.data[piece.length - 1];
    }
    (void)sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[64];
    struct gguf_file *file;
    struct tokenizer *tokenizer;
    struct model_hparams shape;
    struct hill_why why = {""};
    if (fd < 0)
        fd = memfd_create("gguf", 0);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (gguf_open(&file, path, &why) != 0)
        return 0;
    touch_tensors(file);
    if (model_hparams_read(&shape, file, &why) == 0 && (shape.n_layers == 0 || shape.n_vocab == 0))
        abort(); /* a shape that nobody could use */
    int rc = tokenizer_open(&tokenizer, file, &why);
    gguf_close(file); /* the tokenizer copies what it needs */
    if (rc == 0) {
        use_tokenizer(tokenizer);
        tokenizer_close(tokenizer);
    }
    return 0;
}
