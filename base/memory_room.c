/* base/memory_room.c - see memory_room.h. */
#include "base/memory_room.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Two versions, and what they call things. */
struct version {
    const char *limit, *used, *files[2];
};
static const struct version versions[] = {
    {"memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}},
    {"memory.max", "memory.current", {"inactive_file", "active_file"}}};

static FILE *open_in(const char *folder, const char *name)
{
    char path[768];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path ? fopen(path, "re")
                                                                                 : NULL;
}

/* The number in the file, or behind `key` in one of its lines. */
static bool read_number(const char *folder, const char *name, const char *key, uint64_t *out)
{
    char line[256];
    bool found = false;
    size_t skip = key ? strlen(key) : 0;
    FILE *file = open_in(folder, name);
    while (file && !found && fgets(line, sizeof line, file))
        found = (!skip || (strncmp(line, key, skip) == 0 && line[skip] <= ' ')) &&
                sscanf(line + skip, "%" SCNu64, out) == 1;
    if (file)
        fclose(file);
    return found;
}

/* "max" and the number that version 1 has for it are none. */
static void look_at(struct memory_room *out, const char *folder, const struct version *v)
{
    uint64_t limit, used, files = 0, n;
    if (!read_number(folder, v->limit, NULL, &limit) || limit >= UINT64_MAX / 4 ||
        !read_number(folder, v->used, NULL, &used))
        return;
    for (int i = 0; i < 2; i++)
        if (read_number(folder, "memory.stat", v->files[i], &n))
            files += n;
    used -= files < used ? files : used;
    uint64_t room = limit > used ? limit - used : 0;
    if (room >= out->group_bytes)
        return;
    out->group_bytes = room;
    snprintf(out->group, sizeof out->group, "%s", folder);
}

/* From the group up to where its kind is mounted. */
static void climb(struct memory_room *out, const char *mount, const char *group,
                  const struct version *v)
{
    char folder[512];
    size_t top = strlen(mount);
    if (snprintf(folder, sizeof folder, "%s%s", mount, group) >= (int)sizeof folder)
        return;
    for (;;) {
        look_at(out, folder, v);
        char *slash = strrchr(folder + top, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

static void take_line(struct memory_room *out, const char *root, char *line)
{
    static const char *const mounts[] = {"memory", "", "unified"}; /* 1; 2; 2 beside 1 */
    char mount[256], *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return;
    *group++ = '\0';
    group[strcspn(group, "\n")] = '\0';
    bool second = controllers[1] == '\0';
    if (!second && !strstr(controllers + 1, "memory"))
        return;
    for (int i = second ? 1 : 0; i < (second ? 3 : 1); i++) {
        snprintf(mount, sizeof mount, "%.200s/sys/fs/cgroup%s%s", root, *mounts[i] ? "/" : "",
                 mounts[i]);
        climb(out, mount, strcmp(group, "/") == 0 ? "" : group, &versions[second]);
    }
}

void memory_room_read(struct memory_room *out, const char *root)
{
    char line[512], proc[256];
    uint64_t kib = 0;
    *out = (struct memory_room){.group_bytes = UINT64_MAX};
    snprintf(proc, sizeof proc, "%.200s/proc", root);
    if (read_number(proc, "meminfo", "MemAvailable:", &kib))
        out->bytes = kib * 1024;
    FILE *groups = open_in(proc, "self/cgroup");
    while (groups && fgets(line, sizeof line, groups))
        take_line(out, root, line);
    if (groups)
        fclose(groups);
    if (out->group_bytes < out->bytes)
        out->bytes = out->group_bytes;
}
