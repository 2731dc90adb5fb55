/*
 * tests/shm/run_id.h - the run id of a test's segments, of which none stays in /dev/shm however the
 * test ends.
 *
 * What: ids begin with 7e57 and are this process's alone. With the first one a keeper is forked: it
 * sleeps until the process has died, of whatever (a signal, a timeout, a failed check in a rig),
 * and removes what it has left. A test that ends by itself removes its segments; when there is one
 * at its exit the process says so and exits with 1. test_die_with_parent lets a rig's children go
 * the same way. Who calls it: tests that create segments, in their main thread (its death is what
 * the keeper is told of).
 */
#pragma once

#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"

#define TEST_RUN_IDS 16u /* an id and those after it are the test's */

/* In a forked child: it is killed when the parent has died. */
void test_die_with_parent(pid_t parent);

/* The same one each time in a process. */
uint64_t test_run_id(void);
