/* base/disk_room.c - see disk_room.h. */
#include "base/disk_room.h"

#include <sys/statvfs.h>

uint64_t disk_room(const char *path)
{
    struct statvfs info;
    return statvfs(path, &info) ? UINT64_MAX : (uint64_t)info.f_bavail * info.f_frsize;
}
