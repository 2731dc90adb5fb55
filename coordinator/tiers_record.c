/* coordinator/tiers_record.c - see tiers_record.h. */
#include "coordinator/tiers_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/whole_io.h"
#include "proto/options_hill.h"

#define NAME_BYTES (HILL_PATH_BYTES + 32)

uint64_t tiers_record_settings(const struct epoch_settings *s)
{
    struct epoch_settings same = *s;
    struct epoch_wire wire;
    same.epoch = same.tiers_epoch = 1;
    same.beta = same.host_scores = 0;
    same.prefix_bytes = same.prefix_cache_bytes = same.prefix_gpu_cache_bytes = 0;
    for (uint32_t d = 0; d < LAYOUT_DRIVES_MAX; d++)
        same.drives[d].speed = 0; /* they follow from what was measured, as beta does */
    epoch_settings_to_wire(&wire, &same);
    size_t bytes = hill__message__get_packed_size(&wire.message);
    uint8_t *packed = malloc(bytes);
    if (!packed)
        return 0;
    hill__message__pack(&wire.message, packed);
    uint64_t sum = XXH64(packed, bytes, 0);
    free(packed);
    return sum;
}

static void name_in(char out[NAME_BYTES], const char *folder)
{
    snprintf(out, NAME_BYTES, "%s/" TIERS_RECORD_NAME, folder);
}

static uint64_t checksum_of(const struct tiers_record *r)
{
    return XXH64(r, offsetof(struct tiers_record, checksum), 0);
}

static int write_struct(FILE *file, const void *record)
{
    return fwrite(record, sizeof(struct tiers_record), 1, file) == 1 ? 0 : errno;
}

int tiers_record_write(const char *folder, const struct epoch_settings *s, uint64_t asked,
                       struct hill_why *why)
{
    char name[NAME_BYTES];
    struct tiers_record r = {.magic = TIERS_RECORD_MAGIC,
                             .version = TIERS_RECORD_VERSION,
                             .epoch = s->epoch,
                             .tiers_epoch = s->tiers_epoch,
                             .run_id = s->run_id,
                             .settings = tiers_record_settings(s),
                             .asked = asked,
                             .hot_cap_bytes = s->hot_cap_bytes,
                             .gpu_kv_cap_bytes = s->gpu_kv_cap_bytes,
                             .cold_cap_bytes = s->cold_cap_bytes};
    for (uint32_t d = 0; d < s->csd_drives; d++)
        r.drive_cap_bytes[d] = s->drives[d].attached ? s->drives[d].cap_bytes : 0;
    r.checksum = checksum_of(&r);
    name_in(name, folder);
    return whole_replace(name, write_struct, &r, why);
}

void tiers_record_read(const char *folder, uint64_t run_id, struct tiers_record *out)
{
    char name[NAME_BYTES];
    name_in(name, folder);
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t n = fd >= 0 ? read(fd, out, sizeof *out) : -1;
    if (fd >= 0)
        close(fd);
    if (n != (ssize_t)sizeof *out || out->magic != TIERS_RECORD_MAGIC ||
        out->version != TIERS_RECORD_VERSION || out->checksum != checksum_of(out) ||
        out->run_id != run_id || out->tiers_epoch > out->epoch || !out->settings)
        *out = (struct tiers_record){0};
}

void tiers_record_remove(const char *folder)
{
    char name[NAME_BYTES];
    name_in(name, folder);
    whole_remove(name);
}
