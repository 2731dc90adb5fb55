/*
 * base/whole_io.h - pread and pwrite until all is there.
 *
 * What: the system calls may move fewer bytes than asked for, or be interrupted; these go on. Who
 * calls it: the files of pool/, prefix/ and session/, the coordinator's token log. Concurrency: as
 * the system calls. Failure: a code, and errno says the rest.
 */
#pragma once

#include <stdint.h>

/* The bytes read: fewer than asked for at the file's end alone. */
int64_t whole_read(int fd, void *to, uint64_t bytes, uint64_t at);
/* 0, or a code; HILL_E_NOSPACE also at a device's end, which takes nothing more. */
int whole_write(int fd, const void *from, uint64_t bytes, uint64_t at);
