/*
 * hillctl/probe.h - real tests of what the pipeline needs from the machine, for doctor.c.
 *
 * What: each does the thing itself on a scrap of its own (a file that has no name, a segment that
 * is unlinked at once) instead of reading a version number. Returns 0 or a negative hill_error with
 * one line in why. Concurrency: none.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* A file without a name in folder, opened with O_DIRECT when direct; the caller closes it. */
int probe_open_scrap(const char *folder, bool direct, struct hill_why *why);

/* Write and read back a block of that file through io_uring, with a wait that has a deadline. */
int probe_io_uring(int fd, struct hill_why *why);

/* A segment in /dev/shm, advised and touched like the hot pool: how many of its bytes are mapped by
 * huge pages (*bytes is what was asked for). */
int probe_huge_pages(uint64_t *huge_bytes, uint64_t *bytes, struct hill_why *why);
