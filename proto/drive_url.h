/*
 * proto/drive_url.h - a drive's URL that means the same in every folder.
 *
 * What: relative paths in file:PATH and xrt:PATH,xclbin=FILE[,...] are of the folder in which a
 * person has typed them; the agent that opens them is in another one. Who calls it: hillctl
 * (attach, detach), coordinator/settings.c (--csd). Concurrency: stateless. Failure: HILL_E_INVALID
 * (too long), or why the current folder is not known.
 */
#pragma once

#include "proto/options_hill.h"

/* out: room of HILL_PATH_BYTES. What is no URL of such a kind is copied. */
int drive_url_absolute(char out[HILL_PATH_BYTES], const char *url, struct hill_why *why);
