/*
 * base/fault_calls.h - what the linker puts in the place of calls that may fail, in FAULTS builds.
 *
 * What: fault_calls.c defines __wrap_X for each X of FAULT_CALLS in the Makefile; a call of X in
 * the project's objects goes there first (ld's --wrap), one in a library does not. Reads and writes
 * count when they are of a file or block device: a pipe or an eventfd does not fail so.
 * Who calls it: the linker; fault.c the two below. Concurrency, failure: as the calls themselves.
 */
#pragma once

#ifdef HILL_FAULTS

#include <stddef.h>
#include <sys/types.h>

/* Past the wrapper. */
ssize_t fault_real_read(int fd, void *buffer, size_t bytes);
int fault_real_rename(const char *from, const char *to);

#endif
