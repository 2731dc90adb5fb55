/*
 * base/memory_room.h - how much memory this process and its children can still have.
 *
 * What: the machine's MemAvailable, or what the limits of this process's control groups leave,
 * whichever is less: for its group and each above it the limit less what is used, where pages of
 * files do not count as used, since the kernel gives them back. Versions 1 and 2 (memory.max;
 * hybrid mounts, too); a group whose folder is not there, as in a container, is looked for at the
 * mount. Who calls it: the coordinator's settings, hillctl doctor. Concurrency: any thread.
 * Failure: what cannot be read limits nothing.
 */
#pragma once

#include <stdint.h>

struct memory_room {
    uint64_t bytes;       /* 0: not even the machine says */
    uint64_t group_bytes; /* of the tightest group; UINT64_MAX: none has a limit */
    char group[512];      /* its folder */
};

/* root: "", or a folder that has proc/ and sys/fs/cgroup/ as the machine has them (tests). */
void memory_room_read(struct memory_room *out, const char *root);
