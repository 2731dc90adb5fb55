/*
 * csd_agent/file_io.h - aligned reads and writes of one file or block device, many in flight.
 *
 * What: the file is opened O_DIRECT and locked (flock), and extents are moved through an io_uring
 * of FILE_IO_DEPTH entries in pieces of at most FILE_IO_PIECE_BYTES. Where the file system refuses
 * O_DIRECT (EINVAL) the page cache is used, where io_uring is not to be had (ENOSYS, EPERM, ...)
 * pread and pwrite; a file in memory (tmpfs) is mapped, and read by copying or where it lies
 * (file_io_view). All of that is logged once. Who calls it: file_backend.c, xrt_backend.c.
 * Concurrency: one thread. file_io_run returns when all its extents have been moved; jobs (start,
 * finish) let several lots be on their way, so that the drive always has work. Failure: HILL_E_IO
 * and others from errno with the offset in why; the first one of a job counts, but nothing of it is
 * in flight any more on return. A device that leaves a transfer unanswered, or takes none (EAGAIN),
 * for FILE_IO_DEADLINE_MS is HILL_E_TIMEOUT: the file is dead then (every later call fails,
 * file_io_dead), and memory that it was given must not be freed, since the kernel may still write
 * to it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "csd_agent/backend.h"

#define FILE_IO_DEPTH       64u
#define FILE_IO_PIECE_BYTES (1u << 20)
#define FILE_IO_DEADLINE_MS 60000
#define FILE_IO_LOST_AFTER  8u   /* failures in a row, */
#define FILE_IO_LOST_MS     1000 /* for so long */

struct file_io;

/* Make the ring of the next file_io_open now: a process that has confined itself (base/harden.h)
 * can make none. It is used again when that file has been closed; a second file that is open beside
 * it makes its own, or does without. A ring takes reads and writes alone: the kernel has been told
 * to refuse the rest (sockets, opening files) as long as the ring exists. */
void file_io_prepare(void);

/* Open (create: when there is none, but no device in /dev) and lock. HILL_E_BUSY when another
 * process holds the lock for 2 s (transfers of a process that was killed hold it until the drive
 * has answered them), HILL_E_INVALID for what is neither a regular file nor a block device. A file
 * that was created and stays empty is removed by file_io_close. */
int file_io_open(struct file_io **out, const char *path, const struct csd_options *options,
                 struct hill_why *why);
/* NULL allowed. */
void file_io_close(struct file_io *io);

int file_io_fd(const struct file_io *io);
bool file_io_direct(const struct file_io *io);
/* "DEVICE, io_uring or pread, O_DIRECT or page cache", or "DEVICE, mapped from memory". */
void file_io_describe(const struct file_io *io, const char *device, char *text, size_t size);
bool file_io_dead(const struct file_io *io);
/* Does the file answer, but with errors alone? To be asked again and again: after a job that has
 * failed each call reads the first page, as a job. HILL_E_IO: at least FILE_IO_LOST_AFTER jobs in a
 * row have failed, for FILE_IO_LOST_MS. 0: they have not, or the file is dead, or in memory. */
int file_io_lost(struct file_io *io, struct hill_why *why);
/* Bytes of a file in memory where they lie, until the next call about bytes behind them; NULL: they
 * are to be read. */
const uint8_t *file_io_view(struct file_io *io, uint64_t offset, uint64_t bytes);

/* Memory [n][bytes] that is read into again and again: its pages are pinned once and not for each
 * read. Once, at most FILE_IO_PINNED. False: that was refused (a limit of locked memory), or there
 * is no io_uring; reads go on as they were. */
#define FILE_IO_PINNED SCORE_BATCHES
bool file_io_pin(struct file_io *io, uint8_t *const *memory, uint32_t n, uint64_t bytes);

/* Jobs: transfers that go on while the caller does something else. start submits what fits the
 * depth, earlier jobs first; extents and memory stay the caller's until finish, which every started
 * job needs (after a failure too), returned. One job of a number at a time. What of a failure start
 * reports is final: nothing was started. Without io_uring all the work is done in finish. */
#define FILE_IO_JOBS CSD_JOBS
int file_io_start(struct file_io *io, uint32_t job, const struct csd_extent *extents,
                  size_t n_extents, struct hill_why *why);
int file_io_finish(struct file_io *io, uint32_t job, struct hill_why *why);

/* Move the extents; offsets, lengths and addresses are multiples of CSD_ALIGN. */
int file_io_run(struct file_io *io, const struct csd_extent *extents, size_t n_extents,
                struct hill_why *why);
