/*
 * proto/worker_confine.h - what each worker may do, given up before its first thread
 * (base/harden.h).
 *
 * Who calls it: worker_link.c. The scorer runs no driver: it starts no program and opens only
 * shared memory and the outputs whose folders the coordinator names in HILL_MAY_WRITE (a folder a
 * line). GPU worker and CSD agent run OpenCL drivers, which open devices and caches of their own
 * and start the linker: they keep files and exec. docs/hardening.md has the table.
 */
#pragma once

#include "base/harden.h"
#include "proto/envelope.h"

/* text: what holds from now on. */
void worker_confine(Hill__Role role, char text[HARDEN_TEXT_BYTES]);
