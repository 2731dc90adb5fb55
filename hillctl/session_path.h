/*
 * hillctl/session_path.h - a session's path as the workers can use it: absolute. HILL_E_INVALID. Of
 * one that is to be written also what the system says of its folder, and HILL_E_INVALID where the
 * path is a device or a pipe, which the finished file would replace: told before anything is
 * computed. A link is followed.
 */
#pragma once

#include "proto/options_hill.h"

int session_path(char out[HILL_PATH_BYTES], const char *given, struct hill_why *why);
int session_path_to_write(char out[HILL_PATH_BYTES], const char *given, struct hill_why *why);
