/*
 * base/disk_room.h - how much a file system still holds.
 *
 * What: the bytes that this process may still write there, without those kept for root. Who calls
 * it: the coordinator's settings, hillctl doctor. Concurrency: any thread. Failure: UINT64_MAX when
 * the file system cannot be asked.
 */
#pragma once

#include <stdint.h>

/* Of the file system that holds path. */
uint64_t disk_room(const char *path);
