/*
 * base/harden.h - a process gives up for good what it does not need.
 *
 * What: harden_process (every process of a pipeline): no new privileges by exec, no core files.
 * harden_confine (workers and the gateway, before their first thread): a seccomp filter that
 * refuses system calls no worker makes (errno EPERM, the process goes on), Landlock rules for TCP,
 * for signals to other processes and, where the caller names all files it uses, for these, and a
 * limit of descriptors. An io_uring has to be made before: the filter sees nothing of what goes
 * through one. What each process may do, and with which kernel: docs/hardening.md. Who calls it:
 * the coordinator, the gateway, a listening agent; the workers by way of proto/worker_link.c;
 * hillctl doctor asks. Not in force: under sanitizers (LeakSanitizer traces its own process) and
 * with HILL_HARDEN=off in the environment. Concurrency: call it with one thread; later threads and
 * programs inherit it. Failure: what the kernel does not have is left out, and the text says so: a
 * kernel without it is no reason not to work.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define HARDEN_TEXT_BYTES  128
#define HARDEN_DESCRIPTORS 4096u /* at most, of who is confined */
/* RLIMIT_CORE: the kernel writes no core file that small, and, at exactly this limit, gives none to
 * a program that /proc/sys/kernel/core_pattern names either (core(5); at 0 it does). */
#define HARDEN_CORE 1u

/* What a process keeps. */
struct harden_needs {
    bool programs;            /* exec: PoCL runs the linker when it builds a kernel */
    bool files;               /* any file; else those below the lists */
    const char *const *reads; /* files or folders, NULL at the end; one that is not there is none */
    const char *const *writes;
    const char *const *removes; /* folders: files in them are removed, and no more */
    bool connects;              /* to other hosts */
    bool accepts;               /* takes connections on a socket that listens already */
};

/* True: it is in force. */
bool harden_process(void);
/* text: what holds now, "seccomp, Landlock". Of who may open any file Landlock needs version 4. */
void harden_confine(const struct harden_needs *needs, char text[HARDEN_TEXT_BYTES]);
/* What this kernel has of it, for doctor: Landlock's version, 0: none. */
bool harden_has_seccomp(void);
int harden_landlock_version(void);
