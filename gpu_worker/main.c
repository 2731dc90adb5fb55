/*
 * gpu_worker/main.c - hill-gpu-worker: the OpenCL device of the pipeline.
 *
 * SYNOPSIS
 *     hill-gpu-worker --run-dir DIR [--log-level LEVEL]     (started by hill-coordinator)
 *     hill-gpu-worker --list-devices
 *     hill-gpu-worker --own-memory DEVICE                   (asked by hill-coordinator)
 *
 * What: waits for Configure (model, epoch, device), loads the weights, says Ready, runs up to
 * n_sequences requests at once. A later Configure with a new epoch may come at any time; the
 * weights stay. --own-memory: exit code 0 where the device's memory is not the host's, else 1.
 *
 * DIAGNOSTICS
 *     One line on stderr for each failure. A request that fails is answered with Done; what the
 *     worker cannot survive (no device, no memory for the weights, a damaged model) with Failure,
 *     and the process ends with that error's exit code (docs/interface.md). It ends with 0 on
 *     SIGTERM, Shutdown, or when the coordinator is gone.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu_worker/worker.h"

#define ANSWER_SECONDS 10

static bool has_own_memory(const char *choice)
{
    struct cldevice device;
    struct hill_why why;
    alarm(ANSWER_SECONDS); /* the coordinator waits */
    if (cldevice_open(&device, choice, &why))
        return false;
    bool own = device.own_memory;
    cldevice_close(&device);
    return own;
}

int main(int argc, char **argv)
{
    struct worker worker = {0};
    if (argc == 2 && strcmp(argv[1], "--list-devices") == 0)
        return cldevice_list(stdout) < 0 ? hill_exit_code(HILL_E_NODEV) : 0;
    if (argc == 3 && strcmp(argv[1], "--own-memory") == 0)
        return !has_own_memory(argv[2]);
    int rc = worker_link_open(
        &worker.link, argc, argv, HILL__ROLE__ROLE_GPU_WORKER, "hill-gpu-worker",
        "Runs the model on an OpenCL device (--list-devices shows those there are).");
    if (rc != 0)
        return rc > 0 ? 0 : hill_exit_code(rc);
    rc = worker_run(&worker);
    worker_finish(&worker);
    worker_link_close(worker.link);
    return hill_exit_code(rc);
}
