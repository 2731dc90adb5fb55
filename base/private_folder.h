/*
 * base/private_folder.h - a folder that nobody else has made, and that is closed to others.
 *
 * What: a name in a shared folder such as /tmp may be taken by another user first, who would then
 * hear what is said over the sockets in it. Who calls it: the coordinator for its run folder, and
 * every client before it connects there. Concurrency: none. Failure: HILL_E_INVALID with one line;
 * what lstat says where the folder cannot be looked at.
 */
#pragma once

#include "base/error.h"

/* Is it a folder of this user's with mode 0700, and no link? `what` names it in the line. */
int private_folder_check(const char *path, const char *what, struct hill_why *why);
