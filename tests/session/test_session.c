/*
 * tests/session/test_session.c - a session's file: written and read back, and refused when it is
 * not whole, not of this format, of another model or of other settings.
 *
 * The oracle is the data itself: random tokens and entries from a printed seed. Files lie below
 * TMPDIR (default /tmp) in a folder of the test's own.
 */
#define XXH_STATIC_LINKING_ONLY /* the fields of a state */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "kv/geometry.h"
#include "kv/score.h"
#include "kv/select.h"
#include "session/session_writer.h"
#include "shm/doorbell.h"

#define LAYERS  3u
#define TOKENS  41u
#define ENTRIES (TOKENS - 1)

static char folder[300], path[400], part[420];
static struct shm_doorbell bell;
static const struct kv_geometry geometry = {LAYERS, 4, 2, 8};

struct data {
    struct session_header header;
    uint32_t tokens[TOKENS];
    uint8_t entries[LAYERS][ENTRIES * 64];
    float masses[LAYERS][ENTRIES]; /* of h2o */
};

static void fill(struct data *d)
{
    unsigned seed = 4711;
    memset(d, 0, sizeof *d);
    struct session_header *h = &d->header;
    h->terms = (struct session_terms){.model_bytes = 123456,
                                      .model_identity = 99,
                                      .n_layers = LAYERS,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = 8,
                                      .n_embd = 32,
                                      .n_vocab = 1000,
                                      .policy = KV_POLICY_HILLINFER,
                                      .importance = 0,
                                      .alpha = 0.25,
                                      .sinks = 4,
                                      .window = 8,
                                      .score_bits = 8};
    h->temperature = 0.5f;
    h->top_p = 1;
    h->repeat_penalty = 1;
    h->seed = 42;
    h->n_prompt = 30;
    h->n_tokens = TOKENS;
    h->n_entries = ENTRIES;
    h->entry_bytes = kv_entry_bytes(&geometry);
    h->step = 10;
    h->first_append = 30;
    strcpy(h->device, "a device");
    session_seal(h);
    assert_int_equal(h->entry_bytes, 64);
    for (uint32_t i = 0; i < TOKENS; i++)
        d->tokens[i] = (uint32_t)rand_r(&seed) % 1000;
    for (uint32_t i = 0; i < LAYERS * ENTRIES; i++)
        d->masses[i / ENTRIES][i % ENTRIES] = (float)rand_r(&seed);
    for (size_t i = 0; i < sizeof d->entries; i++)
        ((uint8_t *)d->entries)[i] = (uint8_t)rand_r(&seed);
}

static void ring(void *context)
{
    shm_doorbell_ring(context);
}

/* Until the writer has room (returned) or is done (NULL, *state). */
static uint8_t *await_room(struct session_writer *w, int *state, struct hill_why *why)
{
    for (;;) {
        uint32_t seen = shm_doorbell_read(&bell);
        uint8_t *room = session_writer_room(w);
        *state = session_writer_state(w, why);
        if (room || *state != 1)
            return room;
        assert_int_equal(shm_doorbell_wait(&bell, seen, clock_deadline_ms(20000), 0), 0);
    }
}

/* Give bytes in pieces of `piece`. */
static int give(struct session_writer *w, const void *from, uint32_t bytes, uint32_t piece,
                struct hill_why *why)
{
    for (uint32_t done = 0; done < bytes;) {
        int state;
        uint8_t *room = await_room(w, &state, why);
        if (!room)
            return state;
        uint32_t n = bytes - done < piece ? bytes - done : piece;
        memcpy(room, (const uint8_t *)from + done, n);
        done += n;
        session_writer_give(w, n, done == bytes);
    }
    return 0;
}

static int give_sections(struct session_writer *w, const struct data *d, struct hill_why *why)
{
    int rc = give(w, d->tokens, sizeof d->tokens, 1000, why);
    for (uint32_t i = 0; !rc && i < LAYERS; i++) {
        rc = give(w, d->entries[i], sizeof d->entries[i], 999, why);
        if (!rc && session_has_masses(&d->header.terms))
            rc = give(w, d->masses[i], sizeof d->masses[i], 50, why);
    }
    return rc;
}

static int save(const struct data *d, struct hill_why *why)
{
    struct session_writer *w;
    int rc = session_writer_open(&w, path, d->header.file_bytes, ring, &bell, why);
    if (rc)
        return rc;
    rc = give_sections(w, d, why);
    if (!rc)
        session_writer_finish(w, &d->header);
    for (uint32_t seen; !rc; shm_doorbell_wait(&bell, seen, clock_deadline_ms(100), 0)) {
        seen = shm_doorbell_read(&bell);
        rc = session_writer_state(w, why);
        if (rc != 1)
            break;
        rc = 0;
    }
    session_writer_close(w);
    return rc;
}

/* Everything that the file says, compared with d (NULL: with nothing), read `n` entries at a time;
 * pass_masses: but for the masses. */
static int load_some(const struct data *d, uint32_t n, bool pass_masses, struct hill_why *why)
{
    struct session_file f;
    uint32_t tokens[TOKENS];
    uint8_t entries[ENTRIES * 64];
    float masses[ENTRIES];
    int rc = session_open(&f, path, why);
    if (!rc)
        rc = session_read_tokens(&f, tokens, why);
    if (!rc && d)
        assert_memory_equal(tokens, d->tokens, sizeof tokens);
    if (!rc && pass_masses)
        session_pass_masses(&f);
    for (uint32_t layer = 0; !rc && layer < LAYERS; layer++) {
        for (uint32_t first = 0; !rc && first < ENTRIES; first += n)
            rc = session_read_entries(&f, ENTRIES - first < n ? ENTRIES - first : n,
                                      entries + 64 * first, why);
        if (!rc && d)
            assert_memory_equal(entries, d->entries[layer], sizeof entries);
        bool has = !rc && session_has_masses(&f.header.terms) && !pass_masses;
        for (uint32_t first = 0; !rc && has && first < ENTRIES; first += n)
            rc = session_read_masses(&f, ENTRIES - first < n ? ENTRIES - first : n, masses + first,
                                     why);
        if (!rc && d && has)
            assert_memory_equal(masses, d->masses[layer], sizeof masses);
    }
    if (!rc && d)
        assert_memory_equal(&f.header, &d->header, sizeof f.header);
    session_close(&f);
    return rc;
}

static int load(const struct data *d, uint32_t n, struct hill_why *why)
{
    return load_some(d, n, false, why);
}

static void write_bytes(const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
}

static uint8_t *read_bytes(size_t *n)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    uint8_t *bytes = malloc((size_t)info.st_size);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, bytes, (size_t)info.st_size), info.st_size);
    close(fd);
    *n = (size_t)info.st_size;
    return bytes;
}

static void assert_nothing_left(void)
{
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(part, F_OK), -1);
}

static int set_up(void **state)
{
    (void)state;
    unlink(path);
    unlink(part);
    shm_doorbell_init(&bell);
    return 0;
}

static void test_what_was_saved_is_read_back(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    fill(&d);
    assert_int_equal(save(&d, &why), 0);
    assert_int_equal(access(part, F_OK), -1);
    for (uint32_t n = 1; n <= ENTRIES; n++)
        assert_int_equal(load(&d, n, &why), 0);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, d.header.file_bytes);
    assert_int_equal(info.st_size, 440 + 4 * TOKENS + 8 + LAYERS * (64 * ENTRIES + 8));
}

static void fill_h2o(struct data *d)
{
    fill(d);
    d->header.terms.policy = KV_POLICY_H2O;
    session_seal(&d->header);
}

/* One with all sections, saved; the caller frees its bytes. */
static uint8_t *saved_bytes(struct data *d, size_t *n)
{
    struct hill_why why = {""};
    fill_h2o(d);
    assert_int_equal(save(d, &why), 0);
    return read_bytes(n);
}

static void test_masses_are_read_back_behind_their_layer(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    struct session_file f;
    float mass;
    fill_h2o(&d);
    assert_int_equal(save(&d, &why), 0);
    for (uint32_t n = 1; n <= ENTRIES; n++) {
        assert_int_equal(load(&d, n, &why), 0);
        assert_int_equal(load_some(&d, n, true, &why), 0);
    }
    assert_int_equal(d.header.file_bytes,
                     440 + 4 * TOKENS + 8 + LAYERS * (64 * ENTRIES + 8 + 4 * ENTRIES + 8));
    assert_int_equal(session_open(&f, path, &why), 0);
    assert_int_equal(session_read_masses(&f, 1, &mass, &why), HILL_E_INVALID); /* entries first */
    session_close(&f);
}

static void test_saving_again_replaces_the_file(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    fill(&d);
    assert_int_equal(save(&d, &why), 0);
    d.tokens[3] ^= 1;
    assert_int_equal(save(&d, &why), 0);
    assert_int_equal(load(&d, 7, &why), 0);
}

static void test_every_truncated_length_is_refused(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    size_t n;
    uint8_t *bytes = saved_bytes(&d, &n);
    for (size_t i = 0; i < n; i++) {
        write_bytes(bytes, i);
        assert_int_equal(load(NULL, 9, &why), HILL_E_DAMAGED);
        assert_non_null(strstr(why.text, path));
    }
    write_bytes(bytes, n);
    int fd = open(path, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
    assert_int_equal(load(NULL, 9, &why), HILL_E_DAMAGED);
    free(bytes);
}

static void test_every_flipped_byte_is_refused(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    size_t n;
    uint8_t *bytes = saved_bytes(&d, &n);
    for (size_t i = 0; i < n; i++) {
        bytes[i] ^= (uint8_t)(1u << i % 8);
        write_bytes(bytes, n);
        assert_int_equal(load(NULL, ENTRIES, &why), HILL_E_DAMAGED);
        assert_int_equal(load_some(NULL, 9, true, &why), HILL_E_DAMAGED);
        bytes[i] ^= (uint8_t)(1u << i % 8);
    }
    write_bytes(bytes, n);
    assert_int_equal(load(&d, ENTRIES, &why), 0);
    free(bytes);
}

/* A header whose checksum is right but whose fields are not. */
static void test_a_sealed_header_that_contradicts_itself_is_refused(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    uint32_t *const fields[] = {
        &d.header.n_tokens,       &d.header.n_entries,     &d.header.entry_bytes,
        &d.header.terms.n_layers, &d.header.terms.n_vocab, &d.header.terms.head_dim,
        &d.header.ignore_eos,     &d.header.n_prompt,      &d.header.first_append};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        for (int big = 0; big < 2; big++) {
            fill(&d);
            uint64_t bytes = d.header.file_bytes;
            *fields[i] = big ? UINT32_MAX : fields[i] == &d.header.ignore_eos ? 2 : 0;
            session_seal(&d.header);
            d.header.file_bytes = bytes;
            d.header.checksum =
                XXH64(&d.header, offsetof(struct session_header, checksum), 0); /* sealed again */
            assert_int_equal(session_check(&d.header, bytes, "F", &why), HILL_E_DAMAGED);
        }
    }
    fill(&d);
    assert_int_equal(session_check(&d.header, d.header.file_bytes, "F", &why), 0);
    d.header.terms.policy = KV_POLICY_COUNT;
    session_seal(&d.header);
    assert_int_equal(session_check(&d.header, d.header.file_bytes, "F", &why), HILL_E_DAMAGED);
    fill(&d);
    d.header.terms.importance = KV_IMPORTANCE_COUNT;
    session_seal(&d.header);
    assert_int_equal(session_check(&d.header, d.header.file_bytes, "F", &why), HILL_E_DAMAGED);
    fill(&d);
    d.header.terms.granularity = 3;
    session_seal(&d.header);
    assert_int_equal(session_check(&d.header, d.header.file_bytes, "F", &why), HILL_E_DAMAGED);
    fill(&d);
    d.header.version = 2;
    assert_int_equal(session_check(&d.header, d.header.file_bytes, "F", &why), HILL_E_DAMAGED);
    assert_string_equal(why.text, "session F has version 2, this program reads 3");
}

/* xxHash copies as many bytes as such a state says, past the end of its buffer. */
static void test_a_hash_whose_state_contradicts_itself_is_refused(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    struct hash_state *const states[] = {&d.header.selection_hash, &d.header.logits_hash};
    static const uint32_t sizes[] = {31, 32, 100, UINT32_MAX};
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            fill(&d);
            XXH64_state_t *hash = XXH64_createState(), *other = XXH64_createState();
            XXH64_reset(hash, 0);
            XXH64_reset(other, 0);
            hash_state_save(states[i], hash);
            session_seal(&d.header);
            assert_int_equal(session_check(&d.header, d.header.file_bytes, "F", &why), 0);
            memcpy(states[i]->state + offsetof(XXH64_state_t, memsize), &sizes[j], sizeof sizes[j]);
            session_seal(&d.header);
            assert_int_equal(session_check(&d.header, d.header.file_bytes, "F", &why),
                             HILL_E_DAMAGED);
            assert_non_null(strstr(why.text, "hash"));
            assert_false(hash_state_load(other, states[i]));
            XXH64_freeState(hash);
            XXH64_freeState(other);
        }
}

static void test_other_terms_are_refused_by_name(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    fill(&d);
    const struct {
        size_t offset;
        const char *name;
    } words[] = {
        {offsetof(struct session_terms, model_bytes), "size of the file"},
        {offsetof(struct session_terms, model_identity), "content of the file"},
        {offsetof(struct session_terms, n_layers), "layers"},
        {offsetof(struct session_terms, policy), "--policy"},
        {offsetof(struct session_terms, importance), "--importance"},
        {offsetof(struct session_terms, granularity) + 1, "--granularity"},
        {offsetof(struct session_terms, alpha), "--alpha"},
        {offsetof(struct session_terms, budget), "--budget"},
        {offsetof(struct session_terms, exact_below), "--exact-below"},
        {offsetof(struct session_terms, sinks), "--sinks"},
        {offsetof(struct session_terms, window), "--window"},
        {offsetof(struct session_terms, score_bits), "--score-bits"},
        {offsetof(struct session_terms, speculate), "--speculate"},
        {offsetof(struct session_terms, rope_choice), "rotary factors"},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct session_terms here = d.header.terms;
        ((uint8_t *)&here)[words[i].offset] ^= 1;
        assert_int_equal(session_compare(&d.header, &here, "/x/FILE", &why), HILL_E_INVALID);
        assert_non_null(strstr(why.text, words[i].name));
        assert_non_null(strstr(why.text, "/x/FILE"));
    }
    struct session_terms same = d.header.terms;
    assert_int_equal(session_compare(&d.header, &same, "F", &why), 0);
}

static void test_terms_that_do_not_matter_may_differ(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    fill(&d);
    struct session_header saved = d.header;
    struct session_terms here = saved.terms;
    saved.terms.budget = here.budget = 10;
    here.alpha = 0.9;
    assert_int_equal(session_compare(&saved, &here, "F", &why), 0);
    saved = d.header;
    saved.terms.policy = KV_POLICY_FULL;
    here = saved.terms;
    here.alpha = 1;
    here.importance = 1;
    here.window = 1;
    here.exact_below = 2048;
    assert_int_equal(session_compare(&saved, &here, "F", &why), 0);
}

/* Before the first decode step nothing was selected. */
static void test_before_the_first_step_any_selection_will_do(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    fill(&d);
    struct session_header saved = d.header;
    saved.terms.policy = KV_POLICY_HILLINFER;
    for (uint32_t step = 0; step < 2; step++) {
        saved.step = step;
        struct session_terms here = saved.terms;
        here.alpha /= 2;
        here.budget += 7;
        here.exact_below += 5;
        here.importance ^= 1;
        here.granularity = 8;
        here.sinks++;
        here.window++;
        here.score_bits = 12 - here.score_bits;
        here.speculate++;
        assert_int_equal(session_compare(&saved, &here, "F", &why), step ? HILL_E_INVALID : 0);
        here = saved.terms;
        here.model_identity ^= 1;
        assert_int_equal(session_compare(&saved, &here, "F", &why), HILL_E_INVALID);
        here = saved.terms;
        here.rope_choice ^= 1;
        assert_int_equal(session_compare(&saved, &here, "F", &why), HILL_E_INVALID);
    }
}

/* h2o goes on from sums of attention, which no other policy saves. */
static void test_before_the_first_step_any_policy_will_do(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    fill(&d);
    struct session_header saved = d.header;
    struct session_terms here = d.header.terms;
    for (uint32_t i = 0; i < 2 * KV_POLICY_COUNT * KV_POLICY_COUNT; i++) {
        saved.step = i % 2;
        saved.terms.policy = (uint16_t)(i / 2 % KV_POLICY_COUNT);
        here.policy = (uint16_t)(i / 2 / KV_POLICY_COUNT);
        bool same = saved.terms.policy == here.policy, sums = here.policy != KV_POLICY_H2O;
        int wanted = same || (saved.step == 0 && sums) ? 0 : HILL_E_INVALID;
        assert_int_equal(session_compare(&saved, &here, "F", &why), wanted);
        if (wanted)
            assert_non_null(strstr(why.text, saved.step ? "was saved with --policy "
                                                        : "without the sums of attention"));
    }
}

/* Files from before the term have a 32-bit policy there, and so 0. */
static void test_a_file_without_the_exact_term_has_0(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    const uint32_t policy = KV_POLICY_PREFETCH;
    fill(&d);
    d.header.terms.exact_below = UINT16_MAX;
    memcpy((uint8_t *)&d.header.terms + 40, &policy, sizeof policy);
    session_seal(&d.header);
    assert_int_equal(session_check(&d.header, d.header.file_bytes, "F", &why), 0);
    assert_int_equal(d.header.terms.policy, KV_POLICY_PREFETCH);
    assert_int_equal(d.header.terms.exact_below, 0);
}

static void test_a_close_before_the_end_leaves_nothing(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    struct session_writer *w;
    fill(&d);
    for (int given = 1; given >= 0; given--) { /* the last one's thread may begin late */
        assert_int_equal(session_writer_open(&w, path, d.header.file_bytes, ring, &bell, &why), 0);
        if (given)
            assert_int_equal(give_sections(w, &d, &why), 0);
        session_writer_close(w);
        for (int i = 0; i < 2; i++) {
            for (int ms = 0; ms < 20000 && access(part, F_OK) == 0; ms++)
                usleep(1000); /* the thread may just have made it */
            assert_nothing_left();
            usleep(20000);
        }
    }
}

static void test_two_writers_of_one_file_do_not_mix(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    struct session_writer *first;
    int status;
    fill(&d);
    assert_int_equal(session_writer_open(&first, path, d.header.file_bytes, ring, &bell, &why), 0);
    /* of two buffers the first is given again: it has been written, so the file is locked */
    assert_int_equal(give(first, d.tokens, sizeof d.tokens, sizeof d.tokens / 3 + 1, &why), 0);
    assert_int_equal(save(&d, &why), HILL_E_BUSY);
    for (uint32_t i = 0; i < LAYERS; i++)
        assert_int_equal(give(first, d.entries[i], sizeof d.entries[i], 999, &why), 0);
    session_writer_finish(first, &d.header);
    while ((status = session_writer_state(first, &why)) == 1)
        usleep(1000);
    assert_int_equal(status, 0);
    session_writer_close(first);
    assert_int_equal(load(&d, 5, &why), 0);
}

static void test_a_pipe_or_a_link_to_one_is_not_replaced(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    struct stat there;
    char pipe[420];
    fill(&d);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(save(&d, &why), HILL_E_INVALID);
    assert_non_null(strstr(why.text, path));
    assert_non_null(strstr(why.text, "not a regular file"));
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(lstat(path, &there), 0);
    assert_true(S_ISFIFO(there.st_mode));
    snprintf(pipe, sizeof pipe, "%s.pipe", path);
    assert_int_equal(rename(path, pipe), 0);
    assert_int_equal(symlink(pipe, path), 0);
    assert_int_equal(save(&d, &why), HILL_E_INVALID);
    assert_int_equal(lstat(path, &there), 0);
    assert_true(S_ISLNK(there.st_mode));
    unlink(pipe);
}

static void test_a_file_that_does_not_fit_is_one_line_and_no_file(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    struct rlimit before, limit;
    fill(&d);
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = d.header.file_bytes - 1;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int rc = save(&d, &why);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(rc, HILL_E_NOSPACE);
    assert_non_null(strstr(why.text, path));
    assert_null(strchr(why.text, '\n'));
    assert_nothing_left();
}

static int folder_error; /* of flushing one */

/* In the place of the C library's. */
int fsync(int fd)
{
    struct stat info;
    if (folder_error && fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        errno = folder_error;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

/* FILE is there then, and the save says that it may not stay. */
static void test_a_folder_that_is_not_flushed_is_an_error(void **state)
{
    (void)state;
    struct data d;
    struct hill_why why = {""};
    fill(&d);
    folder_error = EIO;
    assert_int_equal(save(&d, &why), HILL_E_IO);
    assert_non_null(strstr(why.text, path));
    assert_non_null(strstr(why.text, "is saved, but its folder could not be flushed"));
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(access(part, F_OK), -1);
    folder_error = EINVAL; /* a file system that cannot */
    assert_int_equal(save(&d, &why), 0);
    folder_error = ENOTSUP;
    assert_int_equal(save(&d, &why), 0);
    folder_error = 0;
}

/* The coordinator's, after a kill: not while a writer lives, and never the file itself. */
static void test_what_a_killed_writer_left_is_cleared(void **state)
{
    (void)state;
    struct data d;
    struct session_writer *w;
    struct hill_why why = {""};
    int in_the_middle;
    fill(&d);
    assert_int_equal(session_writer_open(&w, path, d.header.file_bytes, ring, &bell, &why), 0);
    assert_int_equal(give(w, d.tokens, sizeof d.tokens, 1000, &why), 0);
    assert_non_null(await_room(w, &in_the_middle, &why)); /* the tokens are being written */
    struct stat info = {.st_size = 0};
    for (int i = 0; i < 10000 && !info.st_size; i++, usleep(1000)) /* the lock comes before that */
        if (stat(part, &info))
            info.st_size = 0;
    session_writer_clear(path);
    assert_int_equal(access(part, F_OK), 0);
    session_writer_close(w);
    int fd = open(part, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    write_bytes("whole", 5);
    session_writer_clear(path);
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(access(path, F_OK), 0);
    session_writer_clear(path); /* nothing is there */
}

static void test_what_is_no_session_is_refused(void **state)
{
    (void)state;
    struct hill_why why = {""};
    assert_int_equal(load(NULL, 1, &why), HILL_E_INVALID); /* not there */
    static uint8_t zeros[1000];
    write_bytes(zeros, sizeof zeros);
    assert_int_equal(load(NULL, 1, &why), HILL_E_DAMAGED);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(load(NULL, 1, &why), HILL_E_INVALID);
}

static void test_a_running_hash_goes_on_elsewhere(void **state)
{
    (void)state;
    uint8_t bytes[100];
    struct hash_state saved;
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7);
    for (unsigned cut = 0; cut <= sizeof bytes; cut++) {
        XXH64_state_t *a = XXH64_createState(), *b = XXH64_createState();
        XXH64_reset(a, 0);
        XXH64_reset(b, 5);
        XXH64_update(a, bytes, cut);
        hash_state_save(&saved, a);
        assert_true(hash_state_load(b, &saved));
        XXH64_update(b, bytes + cut, sizeof bytes - cut);
        assert_true(XXH64_digest(b) == XXH64(bytes, sizeof bytes, 0));
        saved.version++;
        assert_false(hash_state_load(b, &saved));
        XXH64_freeState(a);
        XXH64_freeState(b);
    }
}

/* What lay in the memory before does not get into records and files. */
static void test_a_hash_is_saved_as_the_same_bytes(void **state)
{
    (void)state;
    static void *(*volatile set)(void *, int, size_t) = memset; /* kept, though freed at once */
    struct hash_state saved[2] = {{.bytes = HASH_STATE_BYTES}};
    for (int i = 0; i < 3; i++) { /* the first time says how many bytes a state has */
        void *before = malloc(saved[0].bytes);
        assert_non_null(before);
        set(before, i > 1 ? 0x55 : 0xaa, saved[0].bytes);
        free(before);
        XXH64_state_t *hash = hash_state_create();
        assert_non_null(hash);
        XXH64_update(hash, "abc", 3);
        hash_state_save(&saved[i > 1], hash);
        XXH64_freeState(hash);
    }
    assert_memory_equal(&saved[0], &saved[1], sizeof saved[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_what_was_saved_is_read_back, set_up),
        cmocka_unit_test_setup(test_masses_are_read_back_behind_their_layer, set_up),
        cmocka_unit_test_setup(test_saving_again_replaces_the_file, set_up),
        cmocka_unit_test_setup(test_every_truncated_length_is_refused, set_up),
        cmocka_unit_test_setup(test_every_flipped_byte_is_refused, set_up),
        cmocka_unit_test_setup(test_a_sealed_header_that_contradicts_itself_is_refused, set_up),
        cmocka_unit_test_setup(test_a_hash_whose_state_contradicts_itself_is_refused, set_up),
        cmocka_unit_test_setup(test_other_terms_are_refused_by_name, set_up),
        cmocka_unit_test_setup(test_terms_that_do_not_matter_may_differ, set_up),
        cmocka_unit_test_setup(test_before_the_first_step_any_selection_will_do, set_up),
        cmocka_unit_test_setup(test_before_the_first_step_any_policy_will_do, set_up),
        cmocka_unit_test_setup(test_a_file_without_the_exact_term_has_0, set_up),
        cmocka_unit_test_setup(test_a_close_before_the_end_leaves_nothing, set_up),
        cmocka_unit_test_setup(test_two_writers_of_one_file_do_not_mix, set_up),
        cmocka_unit_test_setup(test_a_pipe_or_a_link_to_one_is_not_replaced, set_up),
        cmocka_unit_test_setup(test_a_file_that_does_not_fit_is_one_line_and_no_file, set_up),
        cmocka_unit_test_setup(test_a_folder_that_is_not_flushed_is_an_error, set_up),
        cmocka_unit_test_setup(test_what_a_killed_writer_left_is_cleared, set_up),
        cmocka_unit_test_setup(test_what_is_no_session_is_refused, set_up),
        cmocka_unit_test(test_a_running_hash_goes_on_elsewhere),
        cmocka_unit_test(test_a_hash_is_saved_as_the_same_bytes),
    };
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.200s/hill-session-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/s", folder);
    snprintf(part, sizeof part, "%s.saving", path);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    unlink(part);
    rmdir(folder);
    return rc;
}
