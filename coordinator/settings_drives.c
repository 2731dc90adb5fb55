/* coordinator/settings_drives.c - the drive, or several: which, how large; see settings.h. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk_room.h"
#include "coordinator/settings.h"
#include "pool/pool.h"
#include "proto/drive_link.h"
#include "proto/drive_url.h"

/* ---- room ---------------------------------------------------------------------------------- */

uint64_t settings_file_room(const char *file)
{
    struct stat info;
    char folder[HILL_PATH_BYTES];
    uint64_t own =
        stat(file, &info) == 0 && S_ISREG(info.st_mode) ? (uint64_t)info.st_blocks * 512 : 0;
    snprintf(folder, sizeof folder, "%s", file);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    uint64_t free_bytes = disk_room(slash ? folder : ".");
    return free_bytes == UINT64_MAX ? free_bytes : free_bytes + own;
}

static bool is_device(const char *file)
{
    struct stat info;
    return stat(file, &info) == 0 && S_ISBLK(info.st_mode);
}

/* A block device is the pool's alone; its node's file system says nothing about it. */
static int device_bytes(const char *file, uint64_t *bytes, struct hill_why *why)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    int err = fd < 0 || ioctl(fd, BLKGETSIZE64, bytes) ? errno : 0;
    if (fd >= 0)
        close(fd);
    return err ? hill_fail(why, hill_from_errno(err),
                           "cannot ask block device %.200s for its size: %s", file, strerror(err))
               : 0;
}

/* ---- one of them --------------------------------------------------------------------------- */

static bool is_remote(const char *url)
{
    return strncmp(url, "tcp:", 4) == 0;
}

static int check_url(const struct settings *s, const char *url, struct hill_why *why)
{
    bool remote = is_remote(url);
    char file[HILL_PATH_BYTES];
    if (remote && (!s->csd_key[0] || !s->csd_peer[0] || drive_address_check(url, NULL)))
        return hill_fail(why, HILL_E_INVALID,
                         "'%.200s' is no drive: tcp://HOST:PORT, and a pipeline with --csd-key and "
                         "--csd-peer",
                         url);
    if ((!remote && !hill_drive_file(url, file)) || strlen(url) >= HILL_PATH_BYTES)
        return hill_fail(why, HILL_E_INVALID,
                         "'%.200s' is no drive: file:PATH, tcp://HOST:PORT and "
                         "xrt:PATH,xclbin=FILE are",
                         url);
    return 0;
}

static int lay_out(const struct settings *s, uint64_t cap, struct pool_layout *layout,
                   struct hill_why *why)
{
    const struct kv_plan_input *plan = &s->epoch.plan;
    return pool_layout_with_keys(layout, &plan->geometry, epoch_key_bytes(&s->epoch), cap, why);
}

/* The cap of its pool, and what a pool of it is like. Of several drives: the part of each. like:
 * the cap that it has had, which follows from what was free then; 0: none. */
static int size_drive(const struct settings *s, const char *url, uint64_t like, uint64_t *cap,
                      struct pool_layout *layout, struct hill_why *why)
{
    const struct kv_plan_input *plan = &s->epoch.plan;
    uint32_t key_bytes = epoch_key_bytes(&s->epoch);
    uint32_t parts = epoch_drives(&s->epoch);
    uint64_t need =
        pool_bytes_with_keys(&plan->geometry, key_bytes, plan->n_sequences, plan->ctx_tokens);
    char file[HILL_PATH_BYTES];
    bool local = hill_drive_file(url, file), device = local && is_device(file);
    uint64_t room = local && !device ? settings_file_room(file) / 4 / parts : need;
    int code = device && !s->options.cold_bytes && !like ? device_bytes(file, &room, why) : 0;
    if (code)
        return code;
    *cap = s->options.cold_bytes ? s->options.cold_bytes
           : like                ? like
                                 : (room < need ? room : need);
    code = lay_out(s, *cap, layout, why);
    if (!code || s->options.cold_bytes) /* a cap that a person gave is a mistake */
        return code;
    struct hill_why small = *why;
    return hill_fail(why, HILL_E_NOSPACE,
                     device ? "'%s' is too small: %s"
                            : "the disk of '%s' is full: of a quarter of what is free there, %s",
                     url, small.text);
}

static uint64_t tokens_of(const struct settings *s, const struct pool_layout *layout)
{
    return (uint64_t)(layout->n_stripes / s->epoch.plan.geometry.n_layers) * layout->stripe_slots;
}

/* The agents that are started next may reach other hosts. */
static void allow_remote(bool remote)
{
    setenv("HILL_MAY_CONNECT", remote ? "1" : "", 1);
}

/* What --csd has named, of several. */
static int option_url(const struct settings *s, uint32_t drive, char out[HILL_PATH_BYTES],
                      struct hill_why *why)
{
    char url[HILL_PATH_BYTES];
    snprintf(url, sizeof url, "%.*s", (int)s->options.csd[drive].length, s->options.csd[drive].url);
    return drive_url_absolute(out, url, why);
}

/* Of a drive that nobody has said one of: what it has, when it was in this place last (or nobody
 * was), or what the options have for it. The model of another drive is not its own. */
static struct csd_model own_model(const struct settings *s, const char *wanted, const char *last,
                                  const struct csd_model *in_force)
{
    if (!*last || strcmp(last, wanted) == 0)
        return *in_force;
    if (!settings_several(s) && strcmp(wanted, s->csd_default_url) == 0)
        return s->options.csd_models[0];
    char url[HILL_PATH_BYTES];
    for (uint32_t d = 0; settings_several(s) && d < s->options.n_csd; d++)
        if (option_url(s, d, url, NULL) == 0 && strcmp(wanted, url) == 0)
            return s->options.csd_models[d];
    return (struct csd_model){.on = false};
}

/* like: as in size_drive. */
static int attach_only(struct settings *s, const char *wanted, const struct csd_model *model,
                       uint64_t like, struct hill_why *why)
{
    struct pool_layout layout;
    uint64_t cap;
    int code = check_url(s, wanted, why);
    if (code == 0)
        code = size_drive(s, wanted, like, &cap, &layout, why);
    if (code)
        return code;
    /* one that is read still is this drive, by whatever name (settings_may_attach) */
    const char *last = s->epoch.csd_plain ? wanted : s->csd_url;
    s->epoch.csd_model = model ? *model : own_model(s, wanted, last, &s->epoch.csd_model);
    memmove(s->csd_url, wanted, strlen(wanted) + 1);
    allow_remote(is_remote(wanted));
    s->epoch.csd_attached = true;
    s->epoch.csd_plain = false;
    s->epoch.csd_url = s->csd_url;
    s->epoch.cold_cap_bytes = cap;
    s->cold_tokens = tokens_of(s, &layout);
    s->plain_tokens = 0;
    return 0;
}

/* ---- several ------------------------------------------------------------------------------- */

/* What holds for all of them together. */
static void sum_up(struct settings *s)
{
    struct epoch_settings *e = &s->epoch;
    size_t used = 0;
    bool remote = false;
    e->csd_attached = false;
    e->cold_cap_bytes = s->cold_tokens = 0;
    s->csd_url[0] = '\0';
    for (uint32_t d = 0; d < e->csd_drives; d++) {
        struct pool_layout layout;
        if (!e->drives[d].attached)
            continue;
        if (lay_out(s, s->drives[d].cap_bytes, &layout, NULL) == 0)
            s->cold_tokens += tokens_of(s, &layout);
        remote |= is_remote(s->drives[d].url);
        e->cold_cap_bytes += s->drives[d].cap_bytes;
        used += (size_t)snprintf(s->csd_url + used, sizeof s->csd_url - used, "%s%s",
                                 e->csd_attached ? "," : "", s->drives[d].url);
        e->csd_attached = true;
        if (used >= sizeof s->csd_url)
            used = sizeof s->csd_url - 1;
    }
    e->csd_url = s->csd_url;
    allow_remote(remote);
}

/* Is it another name of a file that a drive has? */
static bool same_file(const char *a, const char *b)
{
    char first[HILL_PATH_BYTES], second[HILL_PATH_BYTES];
    struct stat one, other;
    return strcmp(a, b) == 0 ||
           (hill_drive_file(a, first) && hill_drive_file(b, second) && stat(first, &one) == 0 &&
            stat(second, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino);
}

static int attach_one(struct settings *s, uint32_t drive, const char *wanted,
                      const struct csd_model *model, uint64_t like, struct hill_why *why)
{
    struct settings_drive *one = &s->drives[drive];
    struct pool_layout layout;
    uint64_t cap;
    int code = check_url(s, wanted, why);
    for (uint32_t d = 0; !code && d < s->epoch.csd_drives; d++)
        if (d != drive && s->epoch.drives[d].attached && same_file(s->drives[d].url, wanted))
            return hill_fail(why, HILL_E_INVALID, "%.200s and %.200s are the same drive",
                             s->drives[d].url, wanted);
    if (code == 0)
        code = size_drive(s, wanted, like, &cap, &layout, why);
    if (code)
        return code;
    const struct csd_model its = model ? *model : own_model(s, wanted, one->url, &one->model);
    bool known = strcmp(one->url, wanted) == 0 && csd_model_same(&its, &one->model) &&
                 s->epoch.drives[drive].speed > 0;
    snprintf(one->url, sizeof one->url, "%s", wanted);
    one->cap_bytes = cap;
    one->model = its;
    s->epoch.drives[drive].attached = true;
    s->epoch.drives[drive].cap_bytes = cap;
    for (uint32_t d = 0; !known && d < s->epoch.csd_drives; d++)
        s->epoch.drives[d].speed = 0; /* equal shares, until they are measured again */
    sum_up(s);
    return 0;
}

/* The place of a drive of this URL; csd_drives: none. */
static uint32_t place_of(const struct settings *s, const char *url)
{
    uint32_t d = 0;
    while (d < s->epoch.csd_drives &&
           !(s->epoch.drives[d].attached && strcmp(s->drives[d].url, url) == 0))
        d++;
    return d;
}

/* The place for a new one: that in which it has been, else the first that is free; csd_drives:
 * none. */
static uint32_t free_place(const struct settings *s, const char *url)
{
    uint32_t found = s->epoch.csd_drives;
    for (uint32_t d = s->epoch.csd_drives; d-- > 0;)
        if (!s->epoch.drives[d].attached &&
            (found == s->epoch.csd_drives || strcmp(s->drives[found].url, url) != 0))
            found = d;
    return found;
}

/* ---- for all ------------------------------------------------------------------------------- */

int settings_attach(struct settings *s, uint32_t drive, const char *url,
                    const struct csd_model *model, struct hill_why *why)
{
    struct settings_drive before = {.model = s->epoch.csd_model};
    double speeds[LAYOUT_DRIVES_MAX];
    for (uint32_t d = 0; d < LAYOUT_DRIVES_MAX; d++)
        speeds[d] = s->epoch.drives[d].speed;
    if (settings_several(s))
        before = s->drives[drive];
    else
        snprintf(before.url, sizeof before.url, "%s", s->csd_url);
    /* of one that is read still, what it has: another cap is another shape, which begins empty */
    uint64_t like = s->epoch.csd_plain ? s->epoch.cold_cap_bytes : 0;
    int code = settings_several(s)
                   ? attach_one(s, drive, url, model, 0, why)
                   : attach_only(s, *url ? url : s->csd_default_url, model, like, why);
    if (code)
        return code;
    s->before = before;
    memcpy(s->speeds_before, speeds, sizeof speeds);
    return 0;
}

const struct csd_model *settings_model(const struct settings *s, uint32_t drive)
{
    return settings_several(s) ? &s->drives[drive].model : &s->epoch.csd_model;
}

int settings_attach_all(struct settings *s, struct hill_why *why)
{
    const struct tiers_record none = {0}, *like = s->like ? s->like : &none;
    int code = settings_several(s)
                   ? 0
                   : attach_only(s, s->csd_default_url, NULL, like->cold_cap_bytes, why);
    for (uint32_t d = 0; !code && d < s->epoch.csd_drives; d++) {
        char url[HILL_PATH_BYTES];
        code = option_url(s, d, url, why);
        if (!code)
            code = attach_one(s, d, url, &s->options.csd_models[d], like->drive_cap_bytes[d], why);
    }
    return code;
}

/* A place that is empty knows who was there last. */
static void leave_empty(struct settings *s, uint32_t drive, const struct drive_note *note)
{
    struct settings_drive *one = &s->drives[drive];
    if (!settings_several(s)) {
        snprintf(s->csd_url, sizeof s->csd_url, "%s", note->url);
        s->epoch.csd_model = note->model;
        settings_detach(s, drive);
        return;
    }
    snprintf(one->url, sizeof one->url, "%s", note->url);
    one->model = note->model;
}

bool settings_attach_left(struct settings *s, const struct drives_record *left)
{
    struct hill_why why = {""};
    bool several = settings_several(s);
    if (left->n != epoch_drives(&s->epoch))
        return false;
    for (uint32_t d = 0; d < left->n; d++) {
        const struct drive_note *note = &left->drives[d];
        leave_empty(s, d, note);
        if (note->state == DRIVE_NOTE_NONE)
            continue;
        if (several ? attach_one(s, d, note->url, &note->model, note->cap_bytes, &why)
                    : attach_only(s, note->url, &note->model, note->cap_bytes, &why))
            log_warn("%s: going on without this drive, which was attached", why.text);
        else if (note->state == DRIVE_NOTE_PLAIN && !several)
            settings_detach_to_plain(s);
    }
    if (several)
        sum_up(s);
    log_info("drives as the killed coordinator had them: %s",
             s->epoch.csd_attached ? s->csd_url : "none");
    return true;
}

void settings_note_drives(const struct settings *s, struct drives_record *out)
{
    const struct epoch_settings *e = &s->epoch;
    bool several = settings_several(s);
    *out = (struct drives_record){.n = epoch_drives(e)};
    for (uint32_t d = 0; d < out->n; d++) {
        struct drive_note *note = &out->drives[d];
        bool there = several ? e->drives[d].attached : e->csd_attached;
        note->state = !there                     ? DRIVE_NOTE_NONE
                      : !several && e->csd_plain ? DRIVE_NOTE_PLAIN
                                                 : DRIVE_NOTE_ATTACHED;
        note->cap_bytes = there ? settings_cap(s, d) : 0;
        note->model = *settings_model(s, d);
        snprintf(note->url, sizeof note->url, "%s", settings_url(s, d));
    }
}

void settings_detach(struct settings *s, uint32_t drive)
{
    if (settings_several(s)) {
        s->epoch.drives[drive].attached = false;
        s->epoch.drives[drive].cap_bytes = 0; /* as it is where nobody was there before */
        sum_up(s);
        return;
    }
    s->epoch.csd_attached = s->epoch.csd_plain = false;
    s->epoch.csd_url = "";
    s->epoch.cold_cap_bytes = s->cold_tokens = s->plain_tokens = 0;
}

void settings_undo_attach(struct settings *s, uint32_t drive)
{
    settings_detach(s, drive);
    if (settings_several(s)) {
        s->drives[drive] = s->before;
        settings_set_speeds(s, s->speeds_before);
        return;
    }
    s->epoch.csd_model = s->before.model;
    memcpy(s->csd_url, s->before.url, sizeof s->csd_url);
}

void settings_detach_to_plain(struct settings *s)
{
    s->epoch.csd_plain = true;
    s->plain_tokens = s->cold_tokens;
    s->cold_tokens = 0; /* of new requests */
}

const char *settings_url(const struct settings *s, uint32_t drive)
{
    return settings_several(s) ? s->drives[drive].url : s->csd_url;
}

uint64_t settings_cap(const struct settings *s, uint32_t drive)
{
    return settings_several(s) ? s->drives[drive].cap_bytes : s->epoch.cold_cap_bytes;
}

void settings_of_drive(const struct settings *s, uint32_t drive, struct epoch_settings *out)
{
    if (!settings_several(s))
        return;
    out->csd_drive = drive;
    out->csd_url = s->drives[drive].url;
    out->cold_cap_bytes = s->drives[drive].cap_bytes;
    out->csd_model = s->drives[drive].model;
}

static int may_attach_one(const struct settings *s, const char *url, uint32_t *drive,
                          struct hill_why *why)
{
    if (!*url)
        return hill_fail(why, HILL_E_INVALID, "which drive? name it as --csd does");
    int code = check_url(s, url, why);
    if (code)
        return code;
    *drive = free_place(s, url);
    if (place_of(s, url) < s->epoch.csd_drives)
        return hill_fail(why, HILL_E_INVALID, "%.200s is attached already", url);
    if (*drive == s->epoch.csd_drives)
        return hill_fail(why, HILL_E_INVALID,
                         "this pipeline was started for %u drives, which are there: detach one",
                         s->epoch.csd_drives);
    return 0;
}

/* Has the file of url the pool of which an agent has said this? A drive that is known by its pool
 * may have another name, as a device that was away and came again. */
static bool has_pool(const char *url, const char *said)
{
    char file[HILL_PATH_BYTES], text[POOL_UUID_TEXT];
    uint8_t uuid[POOL_UUID_BYTES];
    size_t n = strlen(said), bytes = sizeof text - 1;
    int fd = hill_drive_file(url, file) ? open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    bool found = fd >= 0 && pool_read_uuid(fd, uuid, NULL) == 0;
    if (fd >= 0)
        close(fd);
    return found && n >= bytes && strcmp(said + n - bytes, pool_uuid_print(text, uuid)) == 0;
}

int settings_may_attach(const struct settings *s, const char *url, const char *said,
                        uint32_t *drive, struct hill_why *why)
{
    const char *wanted = *url ? url : s->csd_default_url;
    *drive = 0;
    if (settings_several(s))
        return may_attach_one(s, url, drive, why);
    if (!s->epoch.csd_attached)
        return 0;
    if (!s->epoch.csd_plain)
        return hill_fail(why, HILL_E_INVALID, "a CSD is attached already; detach it first");
    if (strcmp(wanted, s->csd_url) != 0 && (is_remote(s->csd_url) || !has_pool(wanted, said)))
        return hill_fail(why, HILL_E_BUSY,
                         "requests that run still have entries on %.200s: attach that, or wait",
                         s->csd_url);
    return 0;
}

int settings_may_detach(const struct settings *s, const char *url, uint32_t *drive,
                        struct hill_why *why)
{
    *drive = 0;
    if (!settings_has_drive(s))
        return hill_fail(why, HILL_E_INVALID, "no CSD is attached");
    if (settings_several(s) && !*url)
        return hill_fail(why, HILL_E_INVALID, "which one? name one of %.400s", s->csd_url);
    if (settings_several(s) ? (*drive = place_of(s, url)) == s->epoch.csd_drives
                            : *url && strcmp(url, s->csd_url) != 0)
        return hill_fail(why, HILL_E_INVALID, "%.200s is not attached: %.400s", url, s->csd_url);
    return 0;
}

void settings_set_speeds(struct settings *s, const double *speeds)
{
    for (uint32_t d = 0; d < s->epoch.csd_drives; d++)
        s->epoch.drives[d].speed = speeds[d];
}

int settings_change_model(struct settings *s, const char *text, struct hill_why *why)
{
    int code = csd_model_parse(&s->epoch.csd_model, text, why);
    for (uint32_t d = 0; !code && d < s->epoch.csd_drives; d++)
        code = csd_model_parse(&s->drives[d].model, text, why);
    return code ? code : csd_model_parse(&s->before.model, text, why);
}
