/*
 * hill-csd-agent - owns one computational storage drive: the cold pool on its flash, scoring next
 * to it, fetching.
 *
 * Started by hill-coordinator with --run-dir; everything else comes with its Configure message.
 * Speaks to the scorer through shared-memory rings. With --listen it serves a pipeline on another
 * host instead (listen.h). See csd_agent/README.md.
 *
 * Exit codes: 0 stopped in order; 100 wrong use or configuration; 111 no space, no device, no
 * memory, input/output; 1 the pool's file is foreign, or the drive cannot have such a pool.
 * Environment: HILL_TEST_WRONG_SCORE=POSITION (tests only), OCL_ICD_VENDORS and POCL_* as OpenCL
 * reads them.
 */
#include <string.h>

#include "base/error.h"
#include "csd_agent/agent.h"
#include "csd_agent/file_io.h"
#include "csd_agent/listen.h"
#include "proto/worker_link.h"

/* Of `--listen --help` the second is no address. */
static bool asks_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    struct worker_link *link;
    char *help[] = {argv[0], (char *)"--help", NULL};
    if (listen_is_asked(argc, argv))
        return asks_help(argc, argv) ? listen_main(2, help) : listen_main(argc, argv);
    file_io_prepare(); /* worker_link_open confines the process */
    int status = worker_link_open(&link, argc, argv, HILL__ROLE__ROLE_CSD_AGENT, "hill-csd-agent",
                                  "Stores cold KV entries on a drive and scores them there.\n"
                                  "On another host, with a drive to serve: hill-csd-agent --listen "
                                  "--help.");

    if (status > 0)
        return 0;
    if (status < 0)
        return hill_exit_code(status);
    status = agent_run(link, NULL);
    worker_link_close(link);
    return hill_exit_code(status);
}
