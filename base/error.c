/* base/error.c - see error.h. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

void hill_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = *text == '\n' || *text == '\r' || *text == '\t' ? ' ' : '?';
}

int hill_fail(struct hill_why *why, int code, const char *format, ...)
{
    if (why) {
        va_list args;
        va_start(args, format);
        vsnprintf(why->text, sizeof why->text, format, args);
        va_end(args);
        hill_one_line(why->text);
    }
    return code;
}

static const struct {
    int code, exit_code;
    const char *text;
} table[] = {
    {HILL_OK, 0, "ok"},
    {HILL_E_INVALID, 100, "invalid argument"},
    {HILL_E_NOMEM, 111, "out of memory"},
    {HILL_E_NOSPACE, 111, "no space"},
    {HILL_E_IO, 111, "input/output failed"},
    {HILL_E_PERMISSION, 111, "permission denied"},
    {HILL_E_NODEV, 111, "no such device"},
    {HILL_E_DAMAGED, 1, "damaged"},
    {HILL_E_UNSUPPORTED, 1, "unsupported"},
    {HILL_E_WOULD_BLOCK, 111, "would block"},
    {HILL_E_PEER_GONE, 111, "peer gone"},
    {HILL_E_TIMEOUT, 1, "timed out"},
    {HILL_E_BUSY, 100, "busy"},
    {HILL_E_TOO_LONG, 1, "too long"},
    {HILL_E_CANCELLED, 130, "cancelled"},
    {HILL_E_PROTOCOL, 1, "protocol violated"},
    {HILL_E_ENTRY, 1, "damaged entry"},
};

const char *hill_strerror(int code)
{
    for (unsigned i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].code == code)
            return table[i].text;
    return "unknown error";
}

int hill_exit_code(int code)
{
    for (unsigned i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].code == code)
            return table[i].exit_code;
    return 1;
}

int hill_from_errno(int err)
{
    switch (err) {
    case 0:
        return HILL_OK;
    case ENOMEM:
        return HILL_E_NOMEM;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return HILL_E_NOSPACE;
    case EACCES:
    case EPERM:
    case EROFS:
        return HILL_E_PERMISSION;
    case ENODEV:
    case ENXIO:
        return HILL_E_NODEV;
    case EAGAIN:
        return HILL_E_WOULD_BLOCK;
    case ETIMEDOUT:
        return HILL_E_TIMEOUT;
    case EINVAL:
        return HILL_E_INVALID;
    default:
        return HILL_E_IO;
    }
}
