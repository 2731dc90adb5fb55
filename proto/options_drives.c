/* proto/options_drives.c - what --csd, --csd-model and their like say, of one drive or several; see
 * options_hill.h and drive_url.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/drive_link.h"
#include "proto/drive_url.h"
#include "proto/options_hill.h"

bool hill_drive_file(const char *url, char out[HILL_PATH_BYTES])
{
    const char *end = strncmp(url, "xrt:", 4) == 0 ? strstr(url, ",xclbin=") : url + strlen(url);
    const char *path = strncmp(url, "file:", 5) == 0 ? url + 5 : end && *end ? url + 4 : NULL;
    if (!path || path >= end || end - path >= HILL_PATH_BYTES)
        return false;
    snprintf(out, HILL_PATH_BYTES, "%.*s", (int)(end - path), path);
    return true;
}

int drive_url_absolute(char out[HILL_PATH_BYTES], const char *url, struct hill_why *why)
{
    char file[HILL_PATH_BYTES], folder[HILL_PATH_BYTES] = "";
    bool local = hill_drive_file(url, file);
    const char *path = local ? strchr(url, ':') + 1 : url;
    const char *second = local && url[0] == 'x' ? strstr(path, ",xclbin=") : NULL;
    second = second ? second + strlen(",xclbin=") : path + strlen(path);
    bool first_lacks = local && *path != '/', second_lacks = *second && *second != '/';
    if ((first_lacks || second_lacks) && !getcwd(folder, sizeof folder))
        return hill_fail(why, hill_from_errno(errno), "cannot tell where %.200s is: %s", url,
                         strerror(errno));
    int used = snprintf(out, HILL_PATH_BYTES, "%.*s%s%s%.*s%s%s%s", (int)(path - url), url,
                        first_lacks ? folder : "", first_lacks ? "/" : "", (int)(second - path),
                        path, second_lacks ? folder : "", second_lacks ? "/" : "", second);
    return used < HILL_PATH_BYTES
               ? 0
               : hill_fail(why, HILL_E_INVALID, "the name of drive %.200s is too long", url);
}

/* Where a text of several URLs goes on: at a comma before a URL's beginning; NULL: nowhere. */
static const char *next_url(const char *text)
{
    while ((text = strchr(text, ',')) != NULL) {
        text++;
        if (strncmp(text, "file:", 5) == 0 || strncmp(text, "tcp:", 4) == 0 ||
            strncmp(text, "xrt:", 4) == 0 || strcmp(text, "none") == 0)
            return text;
    }
    return NULL;
}

/* One of several drives. */
static int read_drive(struct hill_pipeline_options *out, const char *text, size_t length,
                      struct hill_why *why)
{
    char url[HILL_PATH_BYTES], file[HILL_PATH_BYTES];
    if (out->n_csd == LAYOUT_DRIVES_MAX)
        return hill_fail(why, HILL_E_INVALID, "--csd: more than %u drives", LAYOUT_DRIVES_MAX);
    snprintf(url, sizeof url, "%.*s", (int)length, text);
    bool remote = strncmp(url, "tcp:", 4) == 0;
    if (length >= sizeof url || (!remote && !hill_drive_file(url, file)))
        return hill_fail(
            why, HILL_E_INVALID,
            "--csd: '%.200s' is none of several drives: file:PATH, tcp://HOST:PORT and "
            "xrt:PATH,xclbin=FILE are",
            url);
    for (unsigned i = 0; i < out->n_csd; i++)
        if (out->csd[i].length == length && memcmp(out->csd[i].url, text, length) == 0)
            return hill_fail(why, HILL_E_INVALID, "--csd: %.200s is named twice", url);
    if (remote && (!out->csd_key || !out->csd_peer))
        return hill_fail(why, HILL_E_INVALID,
                         "--csd %.200s needs --csd-key and --csd-peer (hillctl keygen makes keys)",
                         url);
    out->csd[out->n_csd].url = text;
    out->csd[out->n_csd++].length = length;
    return remote ? drive_address_check(url, why) : 0;
}

static int read_models(struct hill_pipeline_options *out, struct csd_model *first,
                       const struct options *options, struct hill_why *why)
{
    const char *text = options_text(options, "csd-model");
    unsigned n_drives = out->n_csd ? out->n_csd : 1, n = 0;
    struct hill_why detail = {""};
    for (const char *at = text; at; at = strchr(at, ';') ? strchr(at, ';') + 1 : NULL, n++) {
        char one[2 * CSD_MODEL_TEXT];
        if (n >= n_drives)
            return hill_fail(why, HILL_E_INVALID, "--csd-model: more of them than drives (%u)",
                             n_drives);
        snprintf(one, sizeof one, "%.*s", (int)strcspn(at, ";"), at);
        int code = csd_model_parse(&out->csd_models[n], one, &detail);
        if (code)
            return hill_fail(why, code, "--csd-model: %s", detail.text);
    }
    if (n > 1 && n != n_drives)
        return hill_fail(why, HILL_E_INVALID,
                         "--csd-model: %u of them for %u drives: one for all, "
                         "or one for each",
                         n, n_drives);
    for (unsigned i = n; i < LAYOUT_DRIVES_MAX; i++)
        out->csd_models[i] = out->csd_models[0];
    *first = out->csd_models[0];
    return 0;
}

/* More than one drive: each is looked at, and what takes one alone is refused. */
static int read_drives(struct hill_pipeline_options *out, const char *text, struct hill_why *why)
{
    for (const char *at = text; at;) {
        const char *next = next_url(at);
        int code = read_drive(out, at, next ? (size_t)(next - at) - 1 : strlen(at), why);
        if (code)
            return code;
        at = next;
    }
    return out->record ? hill_fail(why, HILL_E_INVALID, "--record is for one drive, --csd names %u",
                                   out->n_csd)
                       : 0;
}

int hill_drives_read(struct hill_pipeline_options *out, struct csd_model *model,
                     const struct options *options, struct hill_why *why)
{
    const char *url = options_text(options, "csd");
    out->no_csd = options_is_word(options, "csd");
    out->csd_url = out->no_csd ? NULL : url;
    bool several = out->csd_url && next_url(url);
    int code = several ? read_drives(out, url, why) : 0;
    bool remote = !several && out->csd_url && strncmp(url, "tcp:", 4) == 0;
    if (code)
        return code;
    char file[HILL_PATH_BYTES];
    if (out->csd_url && !several && !remote && !hill_drive_file(url, file))
        return hill_fail(why, HILL_E_INVALID,
                         "--csd: '%.200s' is neither file:PATH, tcp://HOST:PORT, "
                         "xrt:PATH,xclbin=FILE nor none%s%.200s",
                         url, *url == '/' ? "; a file or a drive is file:" : "",
                         *url == '/' ? url : "");
    if (remote && (!out->csd_key || !out->csd_peer))
        return hill_fail(why, HILL_E_INVALID,
                         "--csd %.200s needs --csd-key and --csd-peer (hillctl keygen makes keys)",
                         url);
    code = remote ? drive_address_check(url, why) : 0;
    if (code)
        return code;
    if (out->no_csd && options_is_set(options, "cold-mb"))
        return hill_fail(
            why, HILL_E_INVALID,
            "--cold-mb and --csd none exclude each other: there is no drive to hold a cold pool");
    return read_models(out, model, options, why);
}
