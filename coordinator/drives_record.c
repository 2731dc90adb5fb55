/* coordinator/drives_record.c - see drives_record.h. */
#include "coordinator/drives_record.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/whole_io.h"

#define FIRST_LINE "hillinfer drives 1 "
#define NAME_BYTES (HILL_PATH_BYTES + 32)

static const char *const states[] = {"none", "attached", "plain"};

static void name_in(char out[NAME_BYTES], const char *folder)
{
    snprintf(out, NAME_BYTES, "%s/drives", folder);
}

static int write_lines(FILE *file, const void *record)
{
    const struct drives_record *r = record;
    char model[CSD_MODEL_TEXT];
    fprintf(file, FIRST_LINE "%u\n", r->n);
    for (uint32_t d = 0; d < r->n; d++) {
        const struct drive_note *one = &r->drives[d];
        if (strchr(one->url, '\n'))
            return EINVAL;
        fprintf(file, "%s %" PRIu64 " %s %s\n", states[one->state], one->cap_bytes,
                csd_model_print(model, &one->model), one->url);
    }
    return ferror(file) ? EIO : 0;
}

int drives_record_write(const char *folder, const struct drives_record *record,
                        struct hill_why *why)
{
    char name[NAME_BYTES];
    name_in(name, folder);
    return whole_replace(name, write_lines, record, why);
}

static bool read_line(struct drive_note *out, char *line)
{
    char *next = NULL, *end = strchr(line, '\n');
    const char *state = strtok_r(line, " ", &next), *cap = strtok_r(NULL, " ", &next);
    const char *model = strtok_r(NULL, " ", &next);
    if (!state || !cap || !model || !end || strlen(next) > sizeof out->url)
        return false;
    *end = '\0';
    snprintf(out->url, sizeof out->url, "%s", next);
    char *rest;
    errno = 0;
    out->cap_bytes = strtoull(cap, &rest, 10);
    if (errno || *rest || *cap == '-')
        return false;
    out->model = (struct csd_model){.on = true}; /* a figure that is not printed is 0 */
    if (csd_model_parse(&out->model, model, NULL))
        return false;
    for (unsigned i = 0; i < sizeof states / sizeof *states; i++)
        if (strcmp(state, states[i]) == 0) {
            out->state = (enum drive_note_state)i;
            return i == DRIVE_NOTE_NONE || out->url[0];
        }
    return false;
}

void drives_record_read(const char *folder, struct drives_record *out)
{
    char name[NAME_BYTES], line[sizeof out->drives[0].url + CSD_MODEL_TEXT + 64];
    uint32_t n = 0, d = 0;
    *out = (struct drives_record){.n = 0};
    name_in(name, folder);
    FILE *file = fopen(name, "re");
    if (!file)
        return;
    if (!fgets(line, sizeof line, file) || sscanf(line, FIRST_LINE "%u", &n) != 1 ||
        n > LAYOUT_DRIVES_MAX)
        n = 0;
    while (d < n && fgets(line, sizeof line, file) && read_line(&out->drives[d], line))
        d++;
    fclose(file);
    if (!n || d < n)
        log_warn("%s is damaged: the drives are those of the options", name);
    else
        out->n = n;
}

void drives_record_remove(const char *folder)
{
    char name[NAME_BYTES];
    name_in(name, folder);
    whole_remove(name);
}
