/* base/private_folder.c - see private_folder.h. */
#include "base/private_folder.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int private_folder_check(const char *path, const char *what, struct hill_why *why)
{
    struct stat info;
    /* lstat: a link in a shared folder could lead anywhere */
    if (lstat(path, &info))
        return hill_fail(why, hill_from_errno(errno), "cannot look at %s %.200s: %s", what, path,
                         strerror(errno));
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077))
        return hill_fail(why, HILL_E_INVALID,
                         "%s %.200s must be a folder that belongs to this user and is closed to "
                         "others (mode 0700); it has owner %u and mode %04o",
                         what, path, (unsigned)info.st_uid, (unsigned)(info.st_mode & 07777));
    return 0;
}
