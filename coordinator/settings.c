/* coordinator/settings.c - see settings.h. */
#include "coordinator/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk_room.h"
#include "base/memory_room.h"
#include "coordinator/group_limit.h"
#include "coordinator/worker_process.h"
#include "kv/plane.h"
#include "placement/placement.h"
#include "pool/pool.h"
#include "prefix/chunk_keys.h"
#include "proto/drive_url.h"
#include "proto/party.h"

#define CTX_DEFAULT_MAX 131072u
#define CTX_UNSTATED    4096u
#define MIB             1048576.0
#define TEMPERED                                                                                   \
    "beyond these the model scales its queries (attention.temperature_scale), which is not "       \
    "supported"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint32_t coordinator_restarts(void)
{
    /* the supervisor script counts them */
    const char *own = getenv("HILL_COORDINATOR_RESTARTS");
    int64_t count;
    bool known = own && options_read_integer(own, &count) == 0 && count >= 0 && count <= UINT32_MAX;
    return known ? (uint32_t)count : 0;
}

/* ---- what the machine has ---------------------------------------------------------------- */

static uint64_t memory_available(void)
{
    struct memory_room room;
    memory_room_read(&room, "");
    return room.bytes;
}

static uint32_t cpu_count(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : (uint32_t)CPU_COUNT(&set);
}

/* ---- state folder ------------------------------------------------------------------------ */

int settings_make_state_dir(const char *path, struct hill_why *why)
{
    char part[HILL_PATH_BYTES];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return hill_fail(why, HILL_E_INVALID, "the state folder's name is too long");
    for (char *slash = part + 1; *slash; slash++) {
        if (*slash != '/')
            continue;
        *slash = '\0';
        mkdir(part, 0700); /* what matters is whether the last one is there */
        *slash = '/';
    }
    struct stat info;
    if (mkdir(part, 0700) && errno != EEXIST)
        return hill_fail(
            why, hill_exit_code(hill_from_errno(errno)) == 111 ? hill_from_errno(errno) : HILL_E_IO,
            "cannot make state folder %.200s: %s", path, strerror(errno));
    if (stat(part, &info) || !S_ISDIR(info.st_mode))
        return hill_fail(why, HILL_E_IO, "state folder %.200s is not a folder", path);
    if (access(part, R_OK | W_OK | X_OK))
        return hill_fail(why, HILL_E_PERMISSION, "cannot read and write state folder %.200s: %s",
                         path, strerror(errno));
    return 0;
}

/* ---- model ------------------------------------------------------------------------------- */

static int open_model(struct settings *s, struct hill_why *why)
{
    struct stat info;
    s->epoch.model_path = s->model_path;
    /* opening a fifo waits for its writer, and the signals that end this process are blocked */
    if (stat(s->options.model, &info) == 0 && !S_ISREG(info.st_mode))
        return hill_fail(why, HILL_E_DAMAGED, "cannot read model %.200s: it is no regular file",
                         s->options.model);
    if (!realpath(s->options.model, s->model_path))
        snprintf(s->model_path, sizeof s->model_path, "%s", s->options.model);
    int code = gguf_open(&s->model, s->options.model, why);
    /* a name that leads nowhere is a mistake on the command line, not an environment to wait for */
    if (code && access(s->options.model, F_OK))
        code = options_from_errno(errno);
    if (!code)
        code = model_hparams_read(&s->hparams, s->model, why);
    if (!code)
        code = tokenizer_open(&s->tokenizer, s->model, why);
    if (code)
        return code;
    if (tokenizer_vocab_size(s->tokenizer) > s->hparams.n_vocab)
        return hill_fail(why, HILL_E_DAMAGED,
                         "%.200s: the tokenizer has %u tokens, the embedding %u", s->options.model,
                         tokenizer_vocab_size(s->tokenizer), s->hparams.n_vocab);
    for (uint32_t token = 0;
         token < tokenizer_vocab_size(s->tokenizer) && s->n_stop_tokens < SETTINGS_STOP_TOKENS_MAX;
         token++)
        if (tokenizer_is_end(s->tokenizer, token))
            s->stop_tokens[s->n_stop_tokens++] = token;
    sampling_defaults_read(&s->sampling, s->model);
    return 0;
}

/* An absolute name of an output file; without one, empty. */
static int absolute(char out[HILL_PATH_BYTES], const char *file, const char *option,
                    struct hill_why *why)
{
    char folder[HILL_PATH_BYTES] = "";
    out[0] = '\0';
    if (!file)
        return 0;
    if (file[0] != '/' && !getcwd(folder, sizeof folder))
        return hill_fail(why, hill_from_errno(errno), "%s: the current folder is unknown", option);
    int used = snprintf(out, HILL_PATH_BYTES, "%s%s%s", folder, file[0] == '/' ? "" : "/", file);
    if (used >= HILL_PATH_BYTES)
        return hill_fail(why, HILL_E_INVALID, "%s: the name is too long", option);
    return 0;
}

/* The folders of the scorer's outputs, for proto/worker_confine.h. */
static void name_outputs(const struct settings *s)
{
    const char *files[] = {s->trace_path, s->record_path, getenv("HILL_FAULT_FILE")};
    char lines[3 * HILL_PATH_BYTES] = "";
    size_t used = 0;
    for (unsigned i = 0; i < 3; i++) {
        const char *slash = files[i] ? strrchr(files[i], '/') : NULL;
        if (slash && slash - files[i] < HILL_PATH_BYTES - 3)
            used += (size_t)snprintf(lines + used, sizeof lines - used, "%.*s/\n",
                                     (int)(slash - files[i]), files[i]);
    }
    setenv("HILL_MAY_WRITE", lines, 1);
}

/* Files that others open: their absolute names. */
static int name_files(struct settings *s, struct hill_why *why)
{
    s->epoch.trace_path = s->trace_path;
    s->epoch.record_path = s->record_path;
    int code = absolute(s->trace_path, s->options.trace_kv, "--trace-kv", why);
    if (s->options.record) /* a scorer that is replayed hears of no other beta */
        s->epoch.beta_auto = false;
    if (!code)
        code = absolute(s->record_path, s->options.record, "--record", why);
    s->epoch.csd_key = s->csd_key;
    s->epoch.csd_peer = s->csd_peer;
    if (!code)
        code = absolute(s->csd_key, s->options.csd_key, "--csd-key", why);
    if (!code)
        code = absolute(s->csd_peer, s->options.csd_peer, "--csd-peer", why);
    if (!code)
        name_outputs(s);
    return code;
}

static int check_selection(struct settings *s, struct hill_why *why)
{
    uint32_t policy = s->epoch.plan.selection.policy;
    /* the balance of two sides that score is hillinfer's */
    if (kv_policy_reads_keys(policy) || policy == KV_POLICY_HOST_DIGEST)
        s->epoch.beta_auto = false;
    s->epoch.plan.lends_digests &= s->epoch.beta_auto; /* it is weighed with beta */
    if (policy == KV_POLICY_PREFETCH && s->epoch.speculate == HILL__SPECULATE__SPECULATE_OFF)
        s->epoch.speculate = HILL__SPECULATE__SPECULATE_ON; /* this policy is to fetch by a guess */
    return kv_selection_check(&s->epoch.plan.selection, why);
}

static int choose_context(struct settings *s, struct hill_why *why)
{
    uint32_t trained = s->hparams.n_ctx_train, most = s->hparams.n_ctx_max;
    bool learned = s->hparams.arch->rotary == ARCH_ROTARY_NONE;
    uint32_t wanted = trained ? (uint32_t)smaller(trained, CTX_DEFAULT_MAX) : CTX_UNSTATED;
    if (most && most < wanted && !learned && !s->options.ctx_tokens) {
        log_warn("a context of %u tokens, not %u: " TEMPERED, most, wanted);
        wanted = most;
    }
    s->epoch.plan.ctx_tokens = s->options.ctx_tokens ? s->options.ctx_tokens : wanted;
    if (trained && s->epoch.plan.ctx_tokens > trained && !(most && s->epoch.plan.ctx_tokens > most))
        log_warn("a context of %u tokens is above the %u the model was trained with; going on, "
                 "answers may be poor",
                 s->epoch.plan.ctx_tokens, trained);
    if (most && s->epoch.plan.ctx_tokens > most)
        return learned
                   ? hill_fail(
                         why, HILL_E_INVALID,
                         "a context of %u tokens: the model has learned %u positions and no more",
                         s->epoch.plan.ctx_tokens, most)
                   : hill_fail(why, HILL_E_INVALID, "a context of %u tokens, above %u: " TEMPERED,
                               s->epoch.plan.ctx_tokens, most);
    return 0;
}

/* ---- sizes ------------------------------------------------------------------------------- */

/* The kernel would kill who goes beyond, when it is too late to say why. */
static int check_memory(const char *option, uint64_t bytes, struct hill_why *why)
{
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes <= memory)
        return 0;
    return hill_fail(why, HILL_E_INVALID, "%s %.0f: this machine has %.0f MiB of memory", option,
                     (double)bytes / MIB, (double)memory / MIB);
}

#define ASK_DEVICE_MS 20000 /* a driver's first start may take long */

/* Of the GPU worker, whose process it is that asks the drivers. */
static bool device_has_own_memory(const void *context)
{
    const struct settings *s = context;
    const char *device = s->epoch.device ? s->epoch.device : "";
    int answer = worker_process_ask("hill-gpu-worker", "--own-memory", device, ASK_DEVICE_MS);
    if (answer == HILL_E_TIMEOUT)
        log_warn("hill-gpu-worker --own-memory '%s': no answer in %d s, its driver hangs; the "
                 "device's memory is taken for the host's",
                 device, ASK_DEVICE_MS / 1000);
    else if (answer < 0)
        log_warn("hill-gpu-worker --own-memory '%s' did not answer; the device's memory is taken "
                 "for the host's",
                 device);
    return answer == 0;
}

/* What one with memory of its own has not, its worker finds out. */
static int check_device_memory(const struct settings *s, struct hill_why *why)
{
    int code = check_memory("--prefix-gpu-cache-mb", s->epoch.prefix_gpu_cache_bytes, why);
    return code && device_has_own_memory(s) ? 0 : code;
}

static int size_hot(struct settings *s, struct hill_why *why)
{
    uint64_t quarter = memory_available() / 4, full = kv_plan_hot_full_bytes(&s->epoch.plan);
    /* the hot pool lies in /dev/shm, which containers keep small; leave a tenth of it to rings and
     * others */
    uint64_t room = disk_room("/dev/shm");
    room = room == UINT64_MAX ? room : room / 10 * 9;
    int code = check_memory("--hot-mb", s->options.hot_bytes, why);
    if (!code)
        code = check_memory("--prefix-cache-mb", s->epoch.prefix_cache_bytes, why);
    if (!code)
        code = check_device_memory(s, why);
    if (code)
        return code;
    s->epoch.hot_cap_bytes = s->options.hot_bytes ? s->options.hot_bytes
                             : s->like            ? s->like->hot_cap_bytes
                                                  : smaller(full, smaller(quarter, room));
    code = kv_plan_hot(&s->hot, &s->epoch.plan, s->epoch.hot_cap_bytes, why);
    if (code)
        return code;
    s->epoch.staging_slots = s->hot.staging_slots;
    s->epoch.hot_bytes = s->hot.tables_bytes + (uint64_t)s->hot.n_blocks * s->hot.block_bytes;
    return 0;
}

static int size_gpu(struct settings *s, struct hill_why *why)
{
    uint64_t need = kv_plan_gpu_bytes(&s->epoch.plan, s->epoch.plan.ctx_tokens, 0);
    s->epoch.gpu_kv_cap_bytes = s->options.gpu_kv_bytes ? s->options.gpu_kv_bytes
                                : s->like               ? s->like->gpu_kv_cap_bytes
                                                        : smaller(need, memory_available() / 4);
    s->epoch.gpu_slots = kv_plan_gpu_slots(&s->epoch.plan, s->epoch.gpu_kv_cap_bytes);
    if (!s->epoch.gpu_slots)
        return hill_fail(why, HILL_E_INVALID,
                         "--gpu-kv-mb: %.3f MiB do not hold the prefill of %u tokens and the "
                         "sinks and windows of --parallel %u; "
                         "%.3f MiB hold all that the budget selects",
                         (double)s->epoch.gpu_kv_cap_bytes / MIB, s->epoch.plan.ctx_tokens,
                         s->epoch.plan.n_sequences, (double)need / MIB);
    return 0;
}

/* Under a limit the kernel kills who goes beyond: before anything runs, better nothing does. One
 * that comes back has its room: its predecessor's segments and weights may be counted still. */
static int check_group(const struct settings *s, const struct tiers_record *left,
                       struct hill_why *why)
{
    struct memory_room room;
    if (coordinator_restarts())
        return 0;
    memory_room_read(&room, "");
    const struct group_limit limit = {
        .weights = gguf_file_bytes(s->model),
        .hot = s->epoch.hot_cap_bytes,
        .gpu_kv = s->epoch.gpu_kv_cap_bytes,
        .prefix_cache = s->epoch.prefix_cache_bytes,
        .prefix_gpu_cache = s->epoch.prefix_gpu_cache_bytes,
        .room = room.group_bytes,
        .held = left->tiers_epoch ? epoch_held_bytes(left->run_id, left->tiers_epoch) : 0,
        .group = room.group,
        .own_memory = device_has_own_memory,
        .context = s};
    return group_limit_check(&limit, why);
}

static int fill_plan(struct settings *s, struct hill_why *why)
{
    const struct model_hparams *h = &s->hparams;
    struct kv_plan_input *plan = &s->epoch.plan;
    plan->geometry = (struct kv_geometry){h->n_layers, h->n_heads, h->n_kv_heads, h->head_dim,
                                          plan->geometry.digest_bits};
    plan->n_embd = h->n_embd;
    plan->n_ff = h->n_ff;
    plan->n_vocab = h->n_vocab;
    plan->rope_tables = model_rope_tables(h);
    plan->windows = (struct kv_layer_windows){h->window, h->global_every};
    plan->speculates = s->epoch.speculate != HILL__SPECULATE__SPECULATE_OFF;
    int rc = choose_context(s, why);
    plan->placement_bytes = placement_live_bytes((enum placement_kind)s->epoch.placement,
                                                 h->n_layers, plan->ctx_tokens);
    s->epoch.threads =
        s->options.threads ? s->options.threads : (uint32_t)smaller(cpu_count(), EPOCH_THREADS_MAX);
    return rc;
}

/* Beside the keys by which important tokens are found. */
static int check_room_for_keys(const struct settings *s, const struct chunk_terms *terms,
                               struct hill_why *why)
{
    const struct chunk_shape shape = {.n_kv_heads = s->hparams.n_kv_heads,
                                      .head_dim = s->hparams.head_dim,
                                      .n_probes = chunk_probes_of(s->hparams.n_kv_heads)};
    uint64_t cap = s->epoch.prefix_bytes, left = chunk_keys_leave(terms, &shape, cap);
    if (s->epoch.prefix_share == 0 || !chunk_slots_of(terms, cap) || chunk_slots_of(terms, left))
        return 0;
    return hill_fail(why, HILL_E_INVALID,
                     "a prefix store of %.3f MiB (--prefix-mb) holds no chunk of this model beside "
                     "its keys (--prefix-attention select)",
                     (double)cap / 1048576.0);
}

/* Who may write there could put files of their own in the place of the store's. */
static int check_prefix_folder(const char *path, struct hill_why *why)
{
    struct stat info;
    if (stat(path, &info) || (info.st_uid == geteuid() && !(info.st_mode & 022)))
        return 0; /* chunk_file_hold says what else fails */
    return hill_fail(
        why, HILL_E_INVALID,
        "--prefix-dir %.200s must belong to this user, and nobody else may write there "
        "(chmod go-w)",
        path);
}

/* The folder of --prefix-dir is this pipeline's, for as long as it runs. */
static int hold_prefixes(struct settings *s, struct hill_why *why)
{
    char data[HILL_PATH_BYTES + 16];
    const struct chunk_terms terms = {.model_bytes = gguf_file_bytes(s->model),
                                      .model_identity = gguf_identity(s->model),
                                      .n_layers = s->hparams.n_layers,
                                      .entry_bytes = kv_entry_bytes(&s->epoch.plan.geometry),
                                      .n_vocab = s->hparams.n_vocab};
    s->epoch.prefix_dir = s->prefix_dir;
    int code = absolute(s->prefix_dir, s->options.prefix_dir, "--prefix-dir", why);
    if (code || !s->prefix_dir[0])
        return code;
    mkdir(s->prefix_dir,
          0700); /* the disk is asked for its space; chunk_file_hold says what fails */
    code = check_prefix_folder(s->prefix_dir, why);
    if (code)
        return code;
    snprintf(data, sizeof data, "%s/chunks.data", s->prefix_dir);
    s->epoch.prefix_bytes =
        s->options.prefix_bytes ? s->options.prefix_bytes : settings_file_room(data) / 4;
    code = check_room_for_keys(s, &terms, why);
    if (code)
        return code;
    return chunk_file_hold(s->prefix_dir, &terms, s->epoch.prefix_bytes, &s->prefix_fd, why);
}

uint64_t settings_asked(const struct settings *s)
{
    struct epoch_settings asked = s->epoch;
    asked.hot_cap_bytes = s->options.hot_bytes;
    asked.gpu_kv_cap_bytes = s->options.gpu_kv_bytes;
    asked.cold_cap_bytes = s->options.cold_bytes;
    for (uint32_t d = 0; d < LAYOUT_DRIVES_MAX; d++)
        asked.drives[d].cap_bytes = s->options.cold_bytes;
    asked.hot_bytes = asked.gpu_slots = asked.staging_slots = 0; /* these follow */
    return tiers_record_settings(&asked);
}

int settings_size_like(struct settings *s, const struct tiers_record *left, struct hill_why *why)
{
    if (!left->tiers_epoch || left->asked != settings_asked(s))
        return 0;
    s->like = left;
    int code = size_hot(s, why);
    if (!code)
        code = size_gpu(s, why);
    if (!code && s->epoch.csd_attached && !s->drives_left)
        code = settings_attach_all(s, why);
    s->like = NULL; /* a drive that is attached later has a room of its own */
    return code;
}

int settings_open(struct settings *s, const struct options *options,
                  const struct tiers_record *left, const struct drives_record *drives,
                  struct hill_why *why)
{
    *s = (struct settings){.log_level = hill_log_level_name(options), .prefix_fd = -1};
    int code = hill_pipeline_read(&s->options, &s->epoch, options, why);
    if (!code)
        code = hill_state_dir(s->state_dir, options, why);
    if (!code)
        code = settings_make_state_dir(s->state_dir, why);
    if (!code)
        code = open_model(s, why);
    if (!code)
        code = check_selection(s, why);
    if (!code)
        code = name_files(s, why);
    if (code)
        return code;
    char url[sizeof s->csd_default_url];
    snprintf(url, sizeof url, "file:%s/cold.pool", s->state_dir);
    code =
        drive_url_absolute(s->csd_default_url, s->options.csd_url ? s->options.csd_url : url, why);
    if (code)
        return code;
    s->epoch.csd_drives = s->options.n_csd > 1 ? s->options.n_csd : 0;
    code = fill_plan(s, why);
    if (code)
        return code;
    struct kv_plan_input *plan = &s->epoch.plan;
    code = kv_geometry_check(&plan->geometry, why);
    if (!code) {
        /* counted also without a drive: one may be attached later */
        plan->cold_slots =
            epoch_drives(&s->epoch) *
            pool_slots_for_tokens(&plan->geometry, plan->n_sequences, plan->ctx_tokens);
        code = size_hot(s, why);
    }
    if (!code)
        code = size_gpu(s, why);
    if (!code)
        s->drives_left = settings_attach_left(s, drives);
    if (!code && !s->drives_left && !s->options.no_csd)
        code = settings_attach_all(s, why);
    if (!code)
        code = hold_prefixes(s, why);
    if (!code)
        code = settings_size_like(s, left, why);
    if (!code)
        code = check_group(s, left, why);
    return code ? code : epoch_settings_check(&s->epoch, why);
}

void settings_close(struct settings *s)
{
    if (s->prefix_dir[0] && s->prefix_fd >= 0)
        close(s->prefix_fd);
    s->prefix_fd = -1;
    tokenizer_close(s->tokenizer);
    gguf_close(s->model);
    s->tokenizer = NULL;
    s->model = NULL;
}

/* ---- admission --------------------------------------------------------------------------- */

static int admit(const struct settings *s, const struct kv_selection_settings *selection,
                 uint32_t n_prompt, uint32_t n_predict, uint64_t cold_tokens, struct hill_why *why)
{
    uint64_t total = (uint64_t)n_prompt + n_predict;
    if (total > s->epoch.plan.ctx_tokens)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "the prompt's %u tokens and %u to predict exceed the context of %u tokens",
                         n_prompt, n_predict, s->epoch.plan.ctx_tokens);
    int code = kv_selection_check(selection, why);
    if (code)
        return code;
    if (!kv_policy_served(s->epoch.plan.selection.policy, selection->policy))
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "a pipeline started with --policy %s is not set up for policy %s: "
                         "start one with --policy %s",
                         kv_policy_name(s->epoch.plan.selection.policy),
                         kv_policy_name(selection->policy), kv_policy_name(selection->policy));
    struct kv_plan_input plan = s->epoch.plan;
    plan.selection = *selection;
    uint32_t k = kv_most_tokens(selection, &s->epoch.plan.windows, (uint32_t)total);
    uint64_t gpu_bytes = kv_plan_gpu_bytes(&plan, n_prompt, n_predict);
    uint32_t own =
        kv_most_tokens(&s->epoch.plan.selection, &s->epoch.plan.windows, s->epoch.plan.ctx_tokens);
    if (k > s->epoch.gpu_slots && s->epoch.gpu_slots == own) /* a larger cap gives no more */
        return hill_fail(why, HILL_E_TOO_LONG,
                         "%" PRIu64 " tokens select %u entries a layer, and this pipeline has "
                         "reserved %u for its own selection: start it with --policy full, or with "
                         "a larger --alpha, --budget or --exact-below",
                         total, k, own);
    if (k > s->epoch.gpu_slots || gpu_bytes > s->epoch.gpu_kv_cap_bytes)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "%" PRIu64 " tokens select %u entries a layer, the GPU has room for %u: "
                         "%.3f MiB needed, --gpu-kv-mb is %.3f",
                         total, k, s->epoch.gpu_slots, (double)gpu_bytes / MIB,
                         (double)s->epoch.gpu_kv_cap_bytes / MIB);
    uint64_t hot_tokens =
        (uint64_t)(s->hot.n_blocks / s->epoch.plan.geometry.n_layers) * KV_HOT_BLOCK_TOKENS;
    if (total > hot_tokens + cold_tokens)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "%" PRIu64 " tokens do not fit: the hot pool has room for %" PRIu64
                         " (--hot-mb), the cold pool for %" PRIu64 " (%s)",
                         total, hot_tokens, cold_tokens,
                         settings_has_drive(s) ? "--cold-mb" : "no CSD is attached");
    return 0;
}

int settings_admit(const struct settings *s, const struct kv_selection_settings *selection,
                   uint32_t n_prompt, uint32_t n_predict, struct hill_why *why)
{
    return admit(s, selection, n_prompt, n_predict, s->cold_tokens, why);
}

int settings_admit_most(const struct settings *s, const struct kv_selection_settings *selection,
                        uint32_t n_prompt, uint32_t n_least, uint32_t *n_predict,
                        struct hill_why *why)
{
    struct hill_why too_many;
    uint32_t can = n_least, cannot = *n_predict;
    if (!settings_admit(s, selection, n_prompt, *n_predict, &too_many))
        return 0;
    int code = settings_admit(s, selection, n_prompt, n_least, why);
    while (!code && cannot - can > 1) { /* what a request needs grows with its tokens */
        uint32_t n = can + (cannot - can) / 2;
        if (settings_admit(s, selection, n_prompt, n, &too_many))
            cannot = n;
        else
            can = n;
    }
    if (!code)
        log_debug("as many tokens as have room; with one more: %s", too_many.text);
    *n_predict = can;
    return code;
}

int settings_admit_again(const struct settings *s, const struct kv_selection_settings *selection,
                         uint32_t n_prompt, uint32_t n_predict, struct hill_why *why)
{
    return admit(s, selection, n_prompt, n_predict, s->cold_tokens + s->plain_tokens, why);
}

void settings_log(const struct settings *s)
{
    log_info("model %s: %u layers, %u heads, %u KV heads of %u, context %u tokens", s->model_path,
             s->epoch.plan.geometry.n_layers, s->epoch.plan.geometry.n_heads,
             s->epoch.plan.geometry.n_kv_heads, s->epoch.plan.geometry.head_dim,
             s->epoch.plan.ctx_tokens);
    char beta[32] = "auto";
    if (!s->epoch.beta_auto)
        snprintf(beta, sizeof beta, "%g", s->epoch.beta);
    log_info(
        "KV cache: at most %.1f MiB on the device (--gpu-kv-mb), %.1f kept in DRAM (--hot-mb), "
        "%.1f on the drive (--cold-mb)%s%s; --beta %s; --parallel %u",
        (double)s->epoch.gpu_kv_cap_bytes / MIB, (double)s->epoch.hot_cap_bytes / MIB,
        (double)s->epoch.cold_cap_bytes / MIB, s->epoch.csd_attached ? " at " : ": none",
        s->epoch.csd_attached ? s->csd_url : "", beta, s->epoch.plan.n_sequences);
    if (s->prefix_dir[0])
        log_info("prefixes in %s (--prefix-dir): at most %.1f MiB (--prefix-mb)", s->prefix_dir,
                 (double)s->epoch.prefix_bytes / MIB);
    char model[CSD_MODEL_TEXT];
    if (s->epoch.csd_model.on)
        log_info("device model %s (--csd-model): times of the drive are modelled, not the real "
                 "one's",
                 csd_model_print(model, &s->epoch.csd_model));
}
