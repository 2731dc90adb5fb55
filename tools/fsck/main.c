/*
 * hill-fsck-pool - look at a cold pool, and name what is damaged in it.
 *
 * SYNOPSIS
 *     hill-fsck-pool FILE [--json]
 * DESCRIPTION
 *     Reads the superblock, every record of the directory, and of every slot that counts there the
 *     entry and its digest: a record and an entry have checksums; a digest must be the one that the
 *     entry's key makes. Nothing is written. A pool that an agent has open is refused. After a
 *     crash (of the agent, not a detach or an orderly end) the directory may be behind: then slots
 *     that were used again since are named here although the pipeline does not rely on them.
 * DIAGNOSTICS
 *     A line on stdout for each thing that is damaged, at most 20 of a kind, and a summary. A
 *     stripe that cannot be read is named, and the others are looked at. Exit codes: 0 all of it is
 *     right; 1 something is damaged or cannot be read, or it is no pool; 100 wrong use, or FILE is
 *     not there; 111 the environment failed.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/options.h"
#include "tools/fsck/check.h"

static const struct option_spec specs[] = {
    OPTION("json", FLAG, NULL, "print one JSON object"),
};

static const struct option_table table = {
    .title = "options", .specs = specs, .count = sizeof specs / sizeof specs[0]};

static const struct option_program program = {
    .name = "hill-fsck-pool",
    .usage = "FILE [--json]",
    .summary = "Looks at a cold pool and names what is damaged in it; changes nothing.",
    .example = "hill-fsck-pool ~/.local/state/hillinfer/cold.pool",
    .tables = &table,
    .n_tables = 1,
    .positional_max = 1,
};

static int open_file(const char *path, struct hill_why *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hill_fail(why, options_from_errno(errno), "cannot open '%.300s': %s", path,
                         strerror(errno));
    struct stat st;
    bool folder = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    if (!folder && flock(fd, LOCK_SH | LOCK_NB) == 0)
        return fd;
    close(fd);
    if (folder)
        return hill_fail(why, HILL_E_INVALID, "'%.300s' is a folder", path);
    return hill_fail(why, HILL_E_BUSY, "'%.300s' is in use: an agent has it open", path);
}

static void print_text(const char *path, const struct pool_check *c)
{
    char uuid[POOL_UUID_TEXT];
    printf("%s: pool %s, generation %llu, %u stripes of %u slots, %u layers\n", path,
           pool_uuid_print(uuid, c->identity.uuid), (unsigned long long)c->generation,
           c->layout.n_stripes, c->layout.stripe_slots, c->layout.geometry.n_layers);
    printf("%u stripes in use, %llu slots count; cannot be read: %llu stripes; damaged: %llu "
           "records, %llu entries, %llu digests; named twice: %llu\n",
           c->stripes, (unsigned long long)c->slots, (unsigned long long)c->bad_stripes,
           (unsigned long long)c->bad_records, (unsigned long long)c->bad_entries,
           (unsigned long long)c->bad_digests, (unsigned long long)c->twice);
}

static void print_json(const struct pool_check *c)
{
    char uuid[POOL_UUID_TEXT];
    json_t *object =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "uuid",
                  pool_uuid_print(uuid, c->identity.uuid), "generation", (json_int_t)c->generation,
                  "bytes", (json_int_t)c->layout.total_bytes, "stripes",
                  (json_int_t)c->layout.n_stripes, "stripes_used", (json_int_t)c->stripes, "slots",
                  (json_int_t)c->slots, "bad_stripes", (json_int_t)c->bad_stripes, "bad_records",
                  (json_int_t)c->bad_records, "bad_entries", (json_int_t)c->bad_entries,
                  "bad_digests", (json_int_t)c->bad_digests, "twice", (json_int_t)c->twice);
    json_dumpf(object, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(object);
}

static int check_options(const struct options *o, struct hill_why *why)
{
    return options_positional_count(o) == 1 ? 0
                                            : hill_fail(why, HILL_E_INVALID, "which pool's FILE?");
}

static int check_file(const struct options *o, struct hill_why *why)
{
    const char *path = options_positional(o, 0);
    struct pool_check check = {.quiet = options_flag(o, "json")};
    struct hill_why found = {""};
    int fd = open_file(path, why);
    if (fd < 0)
        return fd;
    int code = pool_check_file(&check, fd, &found);
    close(fd);
    if (code)
        return hill_fail(why, code, "'%.300s': %.200s", path, found.text);
    if (check.quiet)
        print_json(&check);
    else
        print_text(path, &check);
    if (fflush(stdout) || ferror(stdout))
        return hill_fail(why, HILL_E_IO, "cannot write the report");
    return check.bad_stripes + check.bad_records + check.bad_entries + check.bad_digests +
                   check.twice
               ? hill_fail(why, HILL_E_DAMAGED, "'%.300s' is damaged", path)
               : 0;
}

int main(int argc, char **argv)
{
    return options_main(&program, argc, argv, check_options, check_file);
}
