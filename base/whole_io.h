/*
 * base/whole_io.h - pread and pwrite until all is there; a small file that is there whole or not at
 * all.
 *
 * What: the system calls may move fewer bytes than asked for, or be interrupted; these go on. A
 * file that a killed process must not leave half is written beside its place and renamed. Who calls
 * it: the files of pool/, prefix/ and session/, the coordinator's token log and its records of
 * tiers and drives. Concurrency: as the system calls; one thread replaces a file. Failure: a code,
 * and errno says the rest; replacing a file: a line.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

/* The bytes read: fewer than asked for at the file's end alone. */
int64_t whole_read(int fd, void *to, uint64_t bytes, uint64_t at);
/* 0, or a code; HILL_E_NOSPACE also at a device's end, which takes nothing more. */
int whole_write(int fd, const void *from, uint64_t bytes, uint64_t at);

/* The folder that `name` lies in is flushed: that name is there after a power cut, too. A folder
 * that its file system cannot flush, or that may not be read, is passed over. */
int whole_flush_folder(const char *name);

/* The file `name` (mode 0600), of what write(file, context) puts into it (0 or an errno), in the
 * place of what was there. When it fails there is none: what was there says what holds no more. Not
 * flushed: it is for processes that follow one another, not for a machine that starts again. */
int whole_replace(const char *name, int (*write)(FILE *file, const void *context),
                  const void *context, struct hill_why *why);
/* Such a file, and what a killed process may have left beside it. */
void whole_remove(const char *name);
