/* session/session.c - see session.h. */
#include "session/session.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/whole_io.h"
#include "kv/geometry.h"
#include "kv/score.h"
#include "kv/select.h"

#define PASS_MASSES 512u /* read at a time where nobody wants them */

/* ---- the format --------------------------------------------------------------------------- */

static uint64_t header_checksum(const struct session_header *h)
{
    return XXH64(h, offsetof(struct session_header, checksum), 0);
}

static uint64_t tokens_bytes(const struct session_header *h)
{
    return (uint64_t)h->n_tokens * sizeof(uint32_t) + SESSION_CHECKSUM;
}

bool session_has_masses(const struct session_terms *terms)
{
    return terms->policy == KV_POLICY_H2O;
}

static uint64_t entries_bytes(const struct session_header *h)
{
    return (uint64_t)h->n_entries * h->entry_bytes + SESSION_CHECKSUM;
}

static uint64_t masses_bytes(const struct session_header *h)
{
    return session_has_masses(&h->terms) ? (uint64_t)h->n_entries * sizeof(float) + SESSION_CHECKSUM
                                         : 0;
}

/* Counts are checked, so nothing overflows: 2^10 layers of 2^24 entries of 2^18 bytes. */
uint64_t session_layer_offset(const struct session_header *h, uint32_t layer)
{
    return sizeof *h + tokens_bytes(h) + layer * (entries_bytes(h) + masses_bytes(h));
}

uint64_t session_file_bytes(const struct session_header *h)
{
    return session_layer_offset(h, h->terms.n_layers);
}

void session_seal(struct session_header *h)
{
    h->magic = SESSION_MAGIC;
    h->version = SESSION_VERSION;
    h->header_bytes = sizeof *h;
    h->file_bytes = session_file_bytes(h);
    h->checksum = header_checksum(h);
}

/* ---- checking ----------------------------------------------------------------------------- */

static int damaged(const char *path, struct hill_why *why, const char *what)
{
    return hill_fail(why, HILL_E_DAMAGED, "session %.300s is damaged: %s", path, what);
}

static struct kv_geometry geometry_of(const struct session_terms *t)
{
    return (struct kv_geometry){t->n_layers, t->n_heads, t->n_kv_heads, t->head_dim};
}

/* The sum is right, so these come from a writer that had them wrong, or from a forger. */
static const char *wrong_field(const struct session_header *h)
{
    const struct session_terms *t = &h->terms;
    struct kv_geometry g = geometry_of(t);
    struct kv_selection_settings selection = {
        .alpha = t->alpha,
        .budget = t->budget,
        .sinks = t->sinks,
        .window = t->window,
        .policy = t->policy,
        .importance = t->importance,
        .exact_below = t->exact_below,
        .granularity = t->granularity,
    };
    if (h->header_bytes != sizeof *h)
        return "header_bytes is not this version's";
    if (kv_geometry_check(&g, NULL) || t->n_vocab - 1 >= 1u << 24 || t->n_embd - 1 >= 1u << 20)
        return "the model's shape is out of range";
    if (kv_selection_check(&selection, NULL))
        return "the selection's settings are out of range";
    if (h->entry_bytes != kv_entry_bytes(&g))
        return "entry_bytes does not follow from the model's shape";
    if (h->n_tokens < 2 || h->n_tokens > KV_MAX_TOKENS || h->n_entries != h->n_tokens - 1 ||
        h->n_prompt == 0 || h->n_prompt > h->n_tokens)
        return "n_tokens, n_entries and n_prompt do not fit one another";
    if (h->first_append == 0 || h->first_append > h->n_entries)
        return "first_append is out of range";
    if (!(h->temperature >= 0 && h->temperature <= 1000) || !(h->top_p >= 0 && h->top_p <= 1) ||
        !(h->min_p >= 0 && h->min_p <= 1) ||
        !(h->repeat_penalty > 0 && h->repeat_penalty <= 1000) || h->ignore_eos > 1)
        return "the sampling settings are out of range";
    if (!hash_state_is_sound(&h->selection_hash) || !hash_state_is_sound(&h->logits_hash))
        return "a hash's state contradicts itself";
    if (!memchr(h->device, 0, sizeof h->device))
        return "device is no text";
    return NULL;
}

int session_check(const struct session_header *h, uint64_t file_bytes, const char *path,
                  struct hill_why *why)
{
    if (file_bytes < sizeof *h)
        return hill_fail(why, HILL_E_DAMAGED,
                         "session %.300s is damaged: it has %llu bytes, its header alone takes %zu",
                         path, (unsigned long long)file_bytes, sizeof *h);
    if (h->magic != SESSION_MAGIC)
        return hill_fail(why, HILL_E_DAMAGED, "%.300s is no session: its magic number is another",
                         path);
    if (h->version != SESSION_VERSION)
        return hill_fail(why, HILL_E_DAMAGED,
                         "session %.300s has version %u, this program reads %u", path, h->version,
                         SESSION_VERSION);
    if (h->checksum != header_checksum(h))
        return damaged(path, why, "the header's checksum is wrong");
    const char *wrong = wrong_field(h);
    if (wrong)
        return damaged(path, why, wrong);
    if (h->file_bytes != session_file_bytes(h) || h->file_bytes != file_bytes)
        return hill_fail(why, HILL_E_DAMAGED,
                         "session %.300s is damaged: it has %llu bytes, its header says %llu", path,
                         (unsigned long long)file_bytes, (unsigned long long)h->file_bytes);
    return 0;
}

static uint32_t tokens_together(const struct session_terms *t)
{
    return t->granularity ? t->granularity : 1;
}

static int differs(const char *path, struct hill_why *why, const char *field, double saved,
                   double here)
{
    return hill_fail(why, HILL_E_INVALID,
                     "session %.300s was saved with %s %.10g, this pipeline runs with %.10g", path,
                     field, saved, here);
}

static int foreign(const char *path, struct hill_why *why, const char *field)
{
    return hill_fail(why, HILL_E_INVALID,
                     "session %.300s was saved with another model than this pipeline's: %s differs",
                     path, field);
}

static int differs_by_name(const char *path, struct hill_why *why, const char *field,
                           const char *saved, const char *here)
{
    return hill_fail(why, HILL_E_INVALID,
                     "session %.300s was saved with %s %s, this pipeline runs with %s", path, field,
                     saved ? saved : "?", here ? here : "?");
}

static int compare_model(const struct session_terms *a, const struct session_terms *b,
                         const char *path, struct hill_why *why)
{
    const struct {
        const char *name;
        uint64_t saved, here;
    } shape[] = {
        {"number of layers", a->n_layers, b->n_layers},
        {"number of heads", a->n_heads, b->n_heads},
        {"number of KV heads", a->n_kv_heads, b->n_kv_heads},
        {"head size", a->head_dim, b->head_dim},
        {"embedding size", a->n_embd, b->n_embd},
        {"vocabulary size", a->n_vocab, b->n_vocab},
        {"size of the file", a->model_bytes, b->model_bytes},
        {"content of the file", a->model_identity, b->model_identity},
    };
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        if (shape[i].saved != shape[i].here)
            return foreign(path, why, shape[i].name);
    return 0;
}

int session_compare(const struct session_header *saved, const struct session_terms *b,
                    const char *path, struct hill_why *why)
{
    const struct session_terms *a = &saved->terms;
    int rc = compare_model(a, b, path, why);
    if (rc)
        return rc;
    bool selected = saved->step > 0;
    if (selected && a->policy != b->policy)
        return differs_by_name(path, why, "--policy", kv_policy_name(a->policy),
                               kv_policy_name(b->policy));
    if (session_has_masses(b) && !session_has_masses(a))
        return hill_fail(why, HILL_E_INVALID,
                         "session %.300s was saved without the sums of attention that --policy %s "
                         "ranks by: save its prompt under that policy (-n 1), such a session "
                         "restores under every other policy, too",
                         path, kv_policy_name(b->policy));
    if (selected && a->speculate != b->speculate)
        return differs(path, why, "--speculate on (0: not) from layer", a->speculate, b->speculate);
    if (a->rope_choice != b->rope_choice)
        return differs(path, why, "rotary factors for the context of -c (1: short, 2: long)",
                       a->rope_choice, b->rope_choice);
    if (!selected || a->policy == KV_POLICY_FULL)
        return 0; /* it reads no score and has no budget */
    if (a->importance != b->importance)
        return differs_by_name(path, why, "--importance", kv_importance_name(a->importance),
                               kv_importance_name(b->importance));
    if (a->budget != b->budget)
        return differs(path, why, "--budget", a->budget, b->budget);
    if (a->budget == 0 && a->alpha != b->alpha)
        return differs(path, why, "--alpha", a->alpha, b->alpha);
    if (a->exact_below != b->exact_below)
        return differs(path, why, "--exact-below", a->exact_below, b->exact_below);
    if (tokens_together(a) != tokens_together(b))
        return differs(path, why, "--granularity", tokens_together(a), tokens_together(b));
    if (a->sinks != b->sinks)
        return differs(path, why, "--sinks", a->sinks, b->sinks);
    if (a->window != b->window)
        return differs(path, why, "--window", a->window, b->window);
    if (a->score_bits != b->score_bits)
        return differs(path, why, "--score-bits", a->score_bits, b->score_bits);
    return 0;
}

/* ---- reading ------------------------------------------------------------------------------ */

static int read_all(const struct session_file *f, uint64_t offset, void *to, uint64_t bytes,
                    struct hill_why *why)
{
    int64_t n = whole_read(f->fd, to, bytes, offset);
    if (n < 0)
        return hill_fail(why, (int)n, "reading session %.300s failed: %s", f->path,
                         strerror(errno));
    return (uint64_t)n == bytes ? 0
                                : damaged(f->path, why, "it has become shorter while it was read");
}

static int open_file(struct session_file *f, uint64_t *bytes, struct hill_why *why)
{
    struct stat info;
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not to wait for a pipe's writer */
    int err = f->fd < 0 ? errno : fstat(f->fd, &info) ? errno : 0;
    if (err)
        return hill_fail(why,
                         err == ENOENT || err == ENOTDIR ? HILL_E_INVALID : hill_from_errno(err),
                         "opening session %.300s failed: %s", f->path, strerror(err));
    if (!S_ISREG(info.st_mode))
        return hill_fail(why, HILL_E_INVALID, "%.300s is no session: it is not a file", f->path);
    *bytes = (uint64_t)info.st_size;
    return 0;
}

int session_open(struct session_file *f, const char *path, struct hill_why *why)
{
    uint64_t bytes = 0;
    *f = (struct session_file){.fd = -1};
    if (strlen(path) >= sizeof f->path)
        return hill_fail(why, HILL_E_INVALID, "a session's path of %zu bytes is too long",
                         strlen(path));
    memcpy(f->path, path, strlen(path) + 1);
    int rc = open_file(f, &bytes, why);
    if (!rc && bytes >= sizeof f->header)
        rc = read_all(f, 0, &f->header, sizeof f->header, why);
    if (!rc)
        rc = session_check(&f->header, bytes, path, why);
    f->hash = rc ? NULL : XXH64_createState();
    if (!rc && !f->hash)
        rc = hill_fail(why, HILL_E_NOMEM, "out of memory for session %.300s", path);
    if (!rc)
        XXH64_reset(f->hash, 0);
    return rc;
}

void session_close(struct session_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    XXH64_freeState(f->hash);
    *f = (struct session_file){.fd = -1};
}

int session_read_tokens(struct session_file *f, uint32_t *tokens, struct hill_why *why)
{
    const struct session_header *h = &f->header;
    uint64_t bytes = (uint64_t)h->n_tokens * sizeof *tokens, checksum;
    int rc = read_all(f, sizeof *h, tokens, bytes, why);
    if (!rc)
        rc = read_all(f, sizeof *h + bytes, &checksum, sizeof checksum, why);
    if (!rc && checksum != XXH64(tokens, bytes, 0))
        rc = damaged(f->path, why, "the checksum of the tokens is wrong");
    for (uint32_t i = 0; !rc && i < h->n_tokens; i++)
        if (tokens[i] >= h->terms.n_vocab)
            rc = damaged(f->path, why, "a token is outside the vocabulary");
    return rc;
}

/* Where the next read begins, and where its section ends. */
static uint64_t place(const struct session_file *f, uint64_t *end)
{
    const struct session_header *h = &f->header;
    uint64_t entries = session_layer_offset(h, f->layer), masses = entries + entries_bytes(h);
    *end = f->masses ? masses + masses_bytes(h) : masses;
    return f->masses ? masses + (uint64_t)f->next * sizeof(float)
                     : entries + (uint64_t)f->next * h->entry_bytes;
}

/* All of a section was read: is it what was written? */
static int end_section(struct session_file *f, uint64_t end, struct hill_why *why)
{
    uint64_t checksum;
    int rc = read_all(f, end - sizeof checksum, &checksum, sizeof checksum, why);
    if (!rc && checksum != XXH64_digest(f->hash))
        rc = hill_fail(why, HILL_E_DAMAGED,
                       "session %.300s is damaged: the checksum of layer %u's %s is wrong", f->path,
                       f->layer, f->masses ? "masses" : "entries");
    f->masses = !f->masses && session_has_masses(&f->header.terms);
    f->layer += f->masses ? 0 : 1;
    f->next = 0;
    XXH64_reset(f->hash, 0);
    return rc;
}

static int read_section(struct session_file *f, bool masses, uint32_t n, void *to,
                        struct hill_why *why)
{
    const struct session_header *h = &f->header;
    uint64_t end, at = place(f, &end);
    uint64_t bytes = (uint64_t)n * (masses ? sizeof(float) : h->entry_bytes);
    if (f->layer >= h->terms.n_layers || f->masses != masses || n == 0 ||
        n > h->n_entries - f->next)
        return hill_fail(why, HILL_E_INVALID, "session %.300s has no %u %s at %u of layer %u",
                         f->path, n, masses ? "masses" : "entries", f->next, f->layer);
    int rc = read_all(f, at, to, bytes, why);
    if (rc)
        return rc;
    XXH64_update(f->hash, to, bytes);
    f->next += n;
    return f->next == h->n_entries ? end_section(f, end, why) : 0;
}

int session_read_entries(struct session_file *f, uint32_t n, void *entries, struct hill_why *why)
{
    int rc = read_section(f, false, n, entries, why);
    while (!rc && f->masses && f->pass_masses) {
        float passed[PASS_MASSES];
        uint32_t left = f->header.n_entries - f->next;
        rc = read_section(f, true, left < PASS_MASSES ? left : PASS_MASSES, passed, why);
    }
    return rc;
}

void session_pass(struct session_file *f, uint32_t n)
{
    f->layer = n;
}

void session_pass_masses(struct session_file *f)
{
    f->pass_masses = true;
}

int session_read_masses(struct session_file *f, uint32_t n, float *masses, struct hill_why *why)
{
    return read_section(f, true, n, masses, why);
}

void session_read_ahead(const struct session_file *f, uint64_t bytes)
{
    uint64_t end, at = place(f, &end);
    posix_fadvise(f->fd, (off_t)at, (off_t)bytes, POSIX_FADV_WILLNEED); /* a wish */
}
