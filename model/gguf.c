/*
 * model/gguf.c - open a GGUF file: map it, check it from front to back, index its names. See
 * gguf.h.
 *
 * A reader walks the mapping; each step asks for its bytes first (take), so no length, count or
 * offset of the file is used before it has been compared with what the file still holds. Layout of
 * versions 2 and 3: "GGUF", u32 version, u64 tensors, u64 values, the values, the tensor directory,
 * padding, tensor data. A file that is cut short by someone else while it is mapped ends the
 * process by SIGBUS, as with any mapping.
 */
#include "model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "model/bytes_map.h"

#define DEFAULT_ALIGNMENT 32
#define SMALLEST_VALUE    13 /* key length, type, one byte */
#define SMALLEST_TENSOR   24 /* name length, dimension count, type, offset */

struct gguf_file {
    char *path;
    const uint8_t *base;
    uint64_t size;
    struct gguf_value *values;
    uint64_t n_values;
    struct gguf_tensor *tensors;
    uint64_t n_tensors;
    struct bytes_map value_index, tensor_index;
};

struct reader {
    const uint8_t *at, *end;
};

/* ---- words for what is wrong ---------------------------------------------------------------- */

struct shown {
    char text[72];
};

/* A name of the file, fit to stand in one line whatever its bytes are. */
static struct shown show(struct gguf_string name)
{
    struct shown out;
    uint64_t length = name.length < sizeof out.text - 4 ? name.length : sizeof out.text - 4;
    for (uint64_t i = 0; i < length; i++)
        out.text[i] = name.data[i] >= ' ' && name.data[i] <= '~' ? name.data[i] : '?';
    strcpy(out.text + length, length < name.length ? "..." : "");
    return out;
}

#define FAIL(code, format, ...)                                                                    \
    hill_fail(why, (code), "cannot read model %.200s: " format, file->path, ##__VA_ARGS__)

/* ---- taking things off the front ------------------------------------------------------------ */

static const uint8_t *take(struct reader *reader, uint64_t bytes)
{
    if (bytes > (uint64_t)(reader->end - reader->at))
        return NULL;
    const uint8_t *start = reader->at;
    reader->at += bytes;
    return start;
}

static bool take_u32(struct reader *reader, uint32_t *out)
{
    const uint8_t *bytes = take(reader, sizeof *out);
    if (bytes)
        memcpy(out, bytes, sizeof *out);
    return bytes != NULL;
}

static bool take_u64(struct reader *reader, uint64_t *out)
{
    const uint8_t *bytes = take(reader, sizeof *out);
    if (bytes)
        memcpy(out, bytes, sizeof *out);
    return bytes != NULL;
}

static bool take_string(struct reader *reader, struct gguf_string *out)
{
    if (!take_u64(reader, &out->length))
        return false;
    out->data = (const char *)take(reader, out->length);
    return out->data != NULL;
}

/* ---- values --------------------------------------------------------------------------------- */

/* Bytes of a scalar; 0 for what has no fixed size. */
static uint64_t scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

/* Step over count items of a type; false when the file ends first. */
static bool take_items(struct reader *reader, uint32_t type, uint64_t count)
{
    if (type != GGUF_STRING) {
        uint64_t bytes;
        return !__builtin_mul_overflow(count, scalar_bytes(type), &bytes) && take(reader, bytes);
    }
    struct gguf_string ignored;
    for (uint64_t i = 0; i < count;
         i++) /* each takes 8 bytes at least, so the file bounds the loop */
        if (!take_string(reader, &ignored))
            return false;
    return true;
}

static bool value_type_known(uint32_t type)
{
    return type == GGUF_STRING || scalar_bytes(type) > 0;
}

static int read_value(struct gguf_file *file, struct reader *reader, uint64_t index,
                      struct hill_why *why)
{
    struct gguf_value *value = &file->values[index];
    uint32_t type, item_type;
    if (!take_string(reader, &value->key) || !take_u32(reader, &type))
        return FAIL(HILL_E_DAMAGED, "the file ends in metadata key %" PRIu64 " of %" PRIu64, index,
                    file->n_values);
    value->count = 1;
    item_type = type;
    if (type == GGUF_ARRAY && (!take_u32(reader, &item_type) || !take_u64(reader, &value->count)))
        return FAIL(HILL_E_DAMAGED, "the file ends in the array of key '%s'",
                    show(value->key).text);
    if (item_type == GGUF_ARRAY)
        return FAIL(HILL_E_UNSUPPORTED, "key '%s' is an array of arrays", show(value->key).text);
    if (!value_type_known(item_type))
        return FAIL(HILL_E_DAMAGED, "key '%s' has the unknown value type %u", show(value->key).text,
                    item_type);
    value->type = (enum gguf_type)type;
    value->item_type = (enum gguf_type)item_type;
    value->data = reader->at;
    if (!take_items(reader, item_type, value->count))
        return FAIL(HILL_E_DAMAGED,
                    "the value of key '%s' (%" PRIu64 " items) ends outside the file",
                    show(value->key).text, value->count);
    if (type == GGUF_BOOL && *value->data > 1)
        return FAIL(HILL_E_DAMAGED, "key '%s' is neither true nor false", show(value->key).text);
    if (bytes_map_put(&file->value_index, value->key.data, value->key.length, (uint32_t)index) !=
        BYTES_MAP_NONE)
        return FAIL(HILL_E_DAMAGED, "key '%s' stands twice", show(value->key).text);
    return 0;
}

/* ---- tensors -------------------------------------------------------------------------------- */

/* Fill tensor->bytes; why says what makes the shape or the type unusable. */
static int size_tensor(const struct gguf_file *file, struct gguf_tensor *tensor, uint32_t type,
                       struct hill_why *why)
{
    const struct block_format *format = block_format(type);
    uint64_t items = 1;
    if (!format)
        return FAIL(HILL_E_UNSUPPORTED,
                    "tensor '%s' has type %s (%u); " BLOCK_TYPES_READ " are read",
                    show(tensor->name).text, block_type_name(type), type);
    for (uint32_t d = 0; d < 4; d++)
        if (tensor->dims[d] == 0 || __builtin_mul_overflow(items, tensor->dims[d], &items))
            return FAIL(HILL_E_DAMAGED, "tensor '%s' has an absurd dimension %" PRIu64,
                        show(tensor->name).text, tensor->dims[d]);
    if (tensor->dims[0] % format->items != 0)
        return FAIL(HILL_E_DAMAGED,
                    "tensor '%s' of type %s has rows of %" PRIu64 " items, not a multiple of %u",
                    show(tensor->name).text, format->name, tensor->dims[0], format->items);
    if (__builtin_mul_overflow(items / format->items, format->bytes, &tensor->bytes))
        return FAIL(HILL_E_DAMAGED, "tensor '%s' is absurdly large", show(tensor->name).text);
    tensor->type = (enum gguf_tensor_type)type;
    return 0;
}

/* Read one directory entry; its offset stays in *offset until the data section's start is known. */
static int read_tensor(struct gguf_file *file, struct reader *reader, uint64_t index,
                       uint64_t *offset, struct hill_why *why)
{
    struct gguf_tensor *tensor = &file->tensors[index];
    uint32_t type;
    if (!take_string(reader, &tensor->name) || !take_u32(reader, &tensor->n_dims))
        return FAIL(HILL_E_DAMAGED, "the file ends in tensor %" PRIu64 " of %" PRIu64, index,
                    file->n_tensors);
    if (tensor->n_dims > 4)
        return FAIL(HILL_E_DAMAGED, "tensor '%s' has %u dimensions, more than 4",
                    show(tensor->name).text, tensor->n_dims);
    for (uint32_t d = 0; d < 4; d++) {
        tensor->dims[d] = 1;
        if (d < tensor->n_dims && !take_u64(reader, &tensor->dims[d]))
            return FAIL(HILL_E_DAMAGED, "the file ends in tensor '%s'", show(tensor->name).text);
    }
    if (!take_u32(reader, &type) || !take_u64(reader, offset))
        return FAIL(HILL_E_DAMAGED, "the file ends in tensor '%s'", show(tensor->name).text);
    int rc = size_tensor(file, tensor, type, why);
    if (rc)
        return rc;
    if (bytes_map_put(&file->tensor_index, tensor->name.data, tensor->name.length,
                      (uint32_t)index) != BYTES_MAP_NONE)
        return FAIL(HILL_E_DAMAGED, "tensor '%s' stands twice", show(tensor->name).text);
    return 0;
}

static int read_alignment(const struct gguf_file *file, uint64_t *alignment, struct hill_why *why)
{
    *alignment = DEFAULT_ALIGNMENT;
    const struct gguf_value *value = gguf_find(file, "general.alignment");
    bool negative;
    if (!value)
        return 0;
    if (!gguf_integer(value, alignment, &negative) || negative || *alignment == 0 ||
        *alignment > UINT32_MAX || (*alignment & (*alignment - 1)) != 0)
        return FAIL(HILL_E_DAMAGED, "general.alignment is no power of two");
    return 0;
}

/* Point every tensor at its data. The data section starts at the next multiple of the alignment. */
static int place_tensors(struct gguf_file *file, uint64_t directory_end, const uint64_t *offsets,
                         struct hill_why *why)
{
    uint64_t alignment;
    int rc = read_alignment(file, &alignment, why);
    if (rc)
        return rc;
    uint64_t start = (directory_end + alignment - 1) & ~(alignment - 1);
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        struct gguf_tensor *tensor = &file->tensors[i];
        if (offsets[i] % alignment != 0)
            return FAIL(HILL_E_DAMAGED,
                        "the offset %" PRIu64 " of tensor '%s' is not aligned to %" PRIu64,
                        offsets[i], show(tensor->name).text, alignment);
        if (start > file->size || offsets[i] > file->size - start ||
            tensor->bytes > file->size - start - offsets[i])
            return FAIL(HILL_E_DAMAGED,
                        "tensor '%s' (%" PRIu64 " bytes at offset %" PRIu64
                        ") ends outside the file of %" PRIu64 " bytes",
                        show(tensor->name).text, tensor->bytes, offsets[i], file->size);
        tensor->data = file->base + start + offsets[i];
    }
    return 0;
}

/* ---- the whole file ------------------------------------------------------------------------- */

static int read_header(struct gguf_file *file, struct reader *reader, struct hill_why *why)
{
    uint32_t version;
    const uint8_t *magic = take(reader, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return FAIL(HILL_E_DAMAGED, "it does not start with GGUF, so it is no GGUF file");
    if (!take_u32(reader, &version))
        return FAIL(HILL_E_DAMAGED, "the file ends in its header");
    if (version && (version & 0xFFFF) == 0)
        return FAIL(HILL_E_UNSUPPORTED, "it is big endian (GGUF version %u)",
                    __builtin_bswap32(version));
    if (version != 2 && version != 3)
        return FAIL(HILL_E_UNSUPPORTED, "it is GGUF version %u; versions 2 and 3 are read",
                    version);
    if (!take_u64(reader, &file->n_tensors) || !take_u64(reader, &file->n_values))
        return FAIL(HILL_E_DAMAGED, "the file ends in its header");
    uint64_t left = (uint64_t)(reader->end - reader->at);
    if (file->n_values > left / SMALLEST_VALUE || file->n_values >= BYTES_MAP_NONE)
        return FAIL(HILL_E_DAMAGED, "it claims %" PRIu64 " metadata keys in %" PRIu64 " bytes",
                    file->n_values, left);
    if (file->n_tensors > left / SMALLEST_TENSOR || file->n_tensors >= BYTES_MAP_NONE)
        return FAIL(HILL_E_DAMAGED, "it claims %" PRIu64 " tensors in %" PRIu64 " bytes",
                    file->n_tensors, left);
    return 0;
}

static int read_directory(struct gguf_file *file, struct reader *reader, uint64_t *offsets,
                          struct hill_why *why)
{
    int rc = 0;
    for (uint64_t i = 0; !rc && i < file->n_values; i++)
        rc = read_value(file, reader, i, why);
    for (uint64_t i = 0; !rc && i < file->n_tensors; i++)
        rc = read_tensor(file, reader, i, &offsets[i], why);
    if (!rc)
        rc = place_tensors(file, (uint64_t)(reader->at - file->base), offsets, why);
    return rc;
}

static int read_all(struct gguf_file *file, struct hill_why *why)
{
    struct reader reader = {file->base, file->base + file->size};
    int rc = read_header(file, &reader, why);
    if (rc)
        return rc;
    /* one more than needed, so that an empty list is no failed allocation */
    uint64_t *offsets = calloc(file->n_tensors + 1, sizeof *offsets);
    file->values = calloc(file->n_values + 1, sizeof *file->values);
    file->tensors = calloc(file->n_tensors + 1, sizeof *file->tensors);
    if (!offsets || !file->values || !file->tensors ||
        bytes_map_init(&file->value_index, file->n_values) ||
        bytes_map_init(&file->tensor_index, file->n_tensors))
        rc = FAIL(HILL_E_NOMEM, "no memory for its directory");
    else
        rc = read_directory(file, &reader, offsets, why);
    free(offsets);
    return rc;
}

static int map_file(struct gguf_file *file, struct hill_why *why)
{
    struct stat status;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status)) {
        int code = hill_from_errno(errno);
        FAIL(code, "%s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return code;
    }
    int rc = 0;
    if (!S_ISREG(status.st_mode)) {
        rc = FAIL(HILL_E_DAMAGED, "it is no regular file");
    } else if (status.st_size < 24) {
        rc = FAIL(HILL_E_DAMAGED, "it is only %lld bytes long", (long long)status.st_size);
    } else {
        void *base = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED) {
            rc = FAIL(hill_from_errno(errno), "mmap: %s", strerror(errno));
        } else {
            file->base = base;
            file->size = (uint64_t)status.st_size;
        }
    }
    close(fd);
    return rc;
}

int gguf_open(struct gguf_file **out, const char *path, struct hill_why *why)
{
    *out = NULL;
    struct gguf_file *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        free(file);
        return hill_fail(why, HILL_E_NOMEM, "cannot read model %.200s: no memory", path);
    }
    int rc = map_file(file, why);
    if (!rc)
        rc = read_all(file, why);
    if (rc) {
        gguf_close(file);
        return rc;
    }
    *out = file;
    return 0;
}

void gguf_close(struct gguf_file *file)
{
    if (!file)
        return;
    bytes_map_finish(&file->value_index);
    bytes_map_finish(&file->tensor_index);
    free(file->values);
    free(file->tensors);
    if (file->base)
        munmap((void *)file->base, file->size);
    free(file->path);
    free(file);
}

/* ---- look-up -------------------------------------------------------------------------------- */

uint64_t gguf_file_bytes(const struct gguf_file *file)
{
    return file->size;
}

const char *gguf_path(const struct gguf_file *file)
{
    return file->path;
}

const struct gguf_value *gguf_find(const struct gguf_file *file, const char *key)
{
    uint32_t index = bytes_map_get(&file->value_index, key, strlen(key));
    return index == BYTES_MAP_NONE ? NULL : &file->values[index];
}

const struct gguf_tensor *gguf_tensor(const struct gguf_file *file, const char *name)
{
    uint32_t index = bytes_map_get(&file->tensor_index, name, strlen(name));
    return index == BYTES_MAP_NONE ? NULL : &file->tensors[index];
}

uint64_t gguf_tensor_count(const struct gguf_file *file)
{
    return file->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf_file *file, uint64_t index)
{
    return index < file->n_tensors ? &file->tensors[index] : NULL;
}

/* ---- identity ----------------------------------------------------------------------------- */

#define SAMPLE_BYTES 4096u

static uint64_t sample(const struct gguf_tensor *t, uint64_t at, uint64_t seed)
{
    uint64_t left = t->bytes - at;
    return XXH64((const uint8_t *)t->data + at, left < SAMPLE_BYTES ? left : SAMPLE_BYTES, seed);
}

uint64_t gguf_identity(const struct gguf_file *file)
{
    uint64_t head = file->size;
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        uint64_t at = (uint64_t)((const uint8_t *)file->tensors[i].data - file->base);
        head = at < head ? at : head;
    }
    uint64_t hash = XXH64(file->base, head, file->size);
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        const struct gguf_tensor *t = &file->tensors[i];
        hash = sample(t, 0, hash);
        hash = sample(t, t->bytes / 2, hash);
        hash = sample(t, t->bytes > SAMPLE_BYTES ? t->bytes - SAMPLE_BYTES : 0, hash);
    }
    return hash ? hash : 1;
}
