/*
 * test_csd_drive.c - queries over many stripes, short and long, equal the reference's scores; each
 * page is read once, neighbours together, what lies in DRAM not at all; a failure is named by its
 * place and leaves the queries around it as they are.
 */
#include "tests/csd_agent/fixture.h"
#include "tests/kv/digests.h"
#include "tests/rounds.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>

#include "csd_agent/csd_drive.h"

#define N_STRIPES 100u
#define LOG_MAX   4096u

/* 12 bytes a slot, 12 pages a stripe: each full one ends where the next one begins. */
static const struct kv_geometry geometry = {1, 1, 1, 8};

/* Between one stripe and two: two are a batch, of a long query three. */
#define BATCH_BYTES     (13u * CSD_ALIGN)
#define SHORT_STRIPES   2u
#define LONG_STRIPES    3u
#define LONG_FROM_BYTES (32u * BATCH_BYTES)

static struct {
    int fd;           /* the pool's; -1: nothing is noted */
    off_t bad;        /* a byte that cannot be read; -1: none */
    bool write_fails; /* the next write of the pool fails */
    size_t writes;    /* bytes of that write that reach flash */
    uint32_t n;
    struct {
        uint64_t offset, bytes;
    } reads[LOG_MAX];
} seen = {.fd = -1, .bad = -1};

/* In the place of the C library's: what a drive without io_uring reads. */
ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    if (fd == seen.fd && at <= seen.bad && at + (off_t)bytes > seen.bad) {
        errno = EIO;
        return -1;
    }
    if (fd == seen.fd && seen.n < LOG_MAX) {
        seen.reads[seen.n].offset = (uint64_t)at;
        seen.reads[seen.n++].bytes = bytes;
    }
    return syscall(SYS_pread64, fd, to, bytes, at);
}

/* In the place of the C library's, too. */
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
    bool fails = fd == seen.fd && seen.write_fails;
    size_t n = fails && seen.writes < bytes ? seen.writes : bytes;
    ssize_t written = n > 0 ? syscall(SYS_pwrite64, fd, from, n, at) : 0;
    if (!fails || written < 0)
        return written;
    seen.write_fails = false;
    errno = EIO;
    return -1;
}

struct rig {
    struct csd_drive *drive;
    struct pool_layout layout;
    uint8_t *digests; /* [N_STRIPES][digest_stripe_bytes], as they are on flash */
    bool in_dram[N_STRIPES];
    bool noted; /* reads are seen */
};

static void write_stripe(struct rig *r, uint32_t stripe)
{
    uint64_t bytes = r->layout.digest_stripe_bytes;
    const struct csd_extent e = {.offset = pool_digest_at(&r->layout, stripe),
                                 .memory = r->digests + stripe * bytes,
                                 .bytes = bytes,
                                 .write = true};
    struct hill_why why = {""};
    assert_int_equal(csd_drive_transfer(r->drive, &e, 1, &why), 0);
}

static void open_rig(struct rig *r, const struct csd_options *options)
{
    struct csd_options all = *options;
    struct hill_why why = {""};

    *r = (struct rig){.noted = options->force_pread};
    all.create = true;
    all.batch_bytes = BATCH_BYTES;
    assert_int_equal(pool_layout_with_keys(&r->layout, &geometry, 0, 32u << 20, &why), 0);
    assert_true(r->layout.n_stripes >= N_STRIPES);
    assert_int_equal(r->layout.digest_stripe_bytes, 12 * CSD_ALIGN);
    r->digests = aligned_alloc(CSD_ALIGN, N_STRIPES * r->layout.digest_stripe_bytes);
    assert_non_null(r->digests);
    int status = csd_drive_open(&r->drive, pool_url(), &all, &why);
    if (status == 0)
        status = csd_drive_prepare(r->drive, &r->layout, &why);
    if (status != 0)
        fail_msg("%s", why.text);
    random_digests(&geometry, r->digests, N_STRIPES * r->layout.stripe_slots / KV_GROUP_TOKENS);
    for (uint32_t s = 0; s < N_STRIPES; s++)
        write_stripe(r, s);
    seen.bad = -1;
    seen.fd = r->noted ? csd_drive_pool_fd(r->drive) : -1;
}

static void close_rig(struct rig *r)
{
    seen.fd = -1;
    csd_drive_close(r->drive);
    free(r->digests);
}

/* These stripes are in DRAM, and no other one ever. */
static void keep_in_dram(struct rig *r, const uint32_t *stripes, uint32_t n)
{
    csd_drive_limit_dram(r->drive, 0);
    memset(r->in_dram, 0, sizeof r->in_dram);
    csd_drive_limit_dram(r->drive, n * (r->layout.digest_stripe_bytes + 64));
    for (uint32_t i = 0; i < n; i++) {
        write_stripe(r, stripes[i]);
        r->in_dram[stripes[i]] = true;
    }
}

/* ---- a query ---- */

struct asked {
    struct rig *rig;
    struct csd_span spans[N_STRIPES];
    uint32_t n_spans;
    int8_t mantissas[8];
    uint8_t shift;
    int64_t offset;
    struct kv_query query;
    struct asked *next;  /* is read ahead; NULL: none is */
    uint32_t span, slot; /* whose scores come next */
    uint64_t bad;        /* a byte of flash whose scores never come; 0: none */
};

static void add_span(struct asked *q, uint32_t stripe, uint32_t first, uint32_t n)
{
    q->spans[q->n_spans++] = (struct csd_span){stripe, first, n};
}

static void begin_asked(struct asked *q, struct rig *r)
{
    *q = (struct asked){.rig = r};
    random_mantissas(q->mantissas, sizeof q->mantissas);
    q->shift = (uint8_t)random_below(KV_QUERY_SHIFT_MAX + 1);
    q->offset = (int64_t)random_below(1u << 20) - (1 << 19);
    q->query =
        (struct kv_query){q->mantissas, &q->shift, random_below(KV_IMPORTANCE_COUNT), &q->offset};
}

/* Bytes of flash of a span, in whole pages. */
static uint64_t span_bytes(const struct rig *r, const struct csd_span *s, uint64_t *first)
{
    const struct pool_layout *l = &r->layout;
    uint64_t group = kv_group_bytes(&geometry), at = pool_digest_at(l, s->stripe);
    uint64_t end = at + (s->first_slot + s->n_slots + 15) / 16 * group;

    *first = page_floor(at + s->first_slot / 16 * group);
    return page_ceil(end) - *first;
}

static uint64_t asked_bytes(const struct asked *q)
{
    uint64_t bytes = 0, first;
    for (uint32_t i = 0; i < q->n_spans; i++)
        bytes += span_bytes(q->rig, &q->spans[i], &first);
    return bytes;
}

static bool is_long(const struct asked *q)
{
    uint64_t slots = 0;
    for (uint32_t i = 0; i < q->n_spans; i++)
        slots += q->spans[i].n_slots;
    return slots * kv_digest_bytes(&geometry) >= LONG_FROM_BYTES;
}

/* Stripes of which many follow one another, none twice; some are partly used. */
static void random_spans(struct asked *q, uint32_t n)
{
    uint32_t slots = q->rig->layout.stripe_slots, at = 0;
    bool used[N_STRIPES] = {false};

    while (q->n_spans < n) {
        at = q->n_spans == 0 || random_below(3) == 0 ? random_below(N_STRIPES) : at + 1;
        if (at >= N_STRIPES || used[at])
            at = random_below(N_STRIPES);
        if (used[at])
            continue;
        used[at] = true;
        uint32_t first = 0, end = slots;
        if (random_below(8) == 0)
            first = random_below(slots) / 16 * 16;
        if (random_below(8) == 0)
            end = first + 1 + random_below(slots - first);
        uint32_t gap = 16 * (1 + random_below(60)), cut = first + 16 * (1 + random_below(100));
        if (random_below(8) == 0 && q->n_spans + 1 < n && cut + gap < end) {
            add_span(q, at, first, cut - first); /* two of a stripe, maybe with a common page */
            first = cut + gap;
        }
        add_span(q, at, first, end - first);
    }
}

static int check_scores(void *context, uint32_t span, uint32_t first_slot, uint32_t n,
                        const uint16_t *scores)
{
    struct asked *q = context;
    const struct csd_span *s = &q->spans[span];
    const struct rig *r = q->rig;
    uint64_t group = kv_group_bytes(&geometry), first;

    if (q->slot == q->spans[q->span].n_slots) {
        q->span++;
        q->slot = 0;
    }
    assert_int_equal(span, q->span);
    assert_int_equal(first_slot, s->first_slot + q->slot);
    assert_true(n > 0 && q->slot + n <= s->n_slots);
    uint64_t bytes = span_bytes(r, s, &first);
    assert_false(q->bad && q->bad >= first && q->bad < first + bytes && !r->in_dram[s->stripe]);
    uint16_t *expected = calloc(n, sizeof *expected);
    assert_non_null(expected);
    kv_score_reference(&geometry, &q->query,
                       r->digests + s->stripe * r->layout.digest_stripe_bytes +
                           first_slot / 16 * group,
                       n, expected);
    assert_memory_equal(scores, expected, n * sizeof *expected);
    free(expected);
    q->slot += n;
    return 0;
}

static void read_ahead(void *context)
{
    const struct asked *q = context;
    if (q->next)
        csd_drive_ahead(q->rig->drive, q->next->spans, q->next->n_spans);
}

static int score(struct asked *q, struct csd_score_job *job, struct hill_why *why)
{
    *job = (struct csd_score_job){.query = q->query,
                                  .spans = q->spans,
                                  .n_spans = q->n_spans,
                                  .scored = check_scores,
                                  .begun = read_ahead,
                                  .context = q};
    q->span = q->slot = 0;
    return csd_drive_score(q->rig->drive, job, why);
}

/* All of it is scored, and the bytes say where it came from. */
static void score_all(struct asked *q)
{
    struct csd_score_job job;
    struct hill_why why = {""};
    uint64_t dram = 0, first;

    int status = score(q, &job, &why);
    if (status != 0)
        fail_msg("%s", why.text);
    assert_int_equal(q->span, q->n_spans - 1);
    assert_int_equal(q->slot, q->spans[q->span].n_slots);
    for (uint32_t i = 0; i < q->n_spans; i++)
        if (q->rig->in_dram[q->spans[i].stripe])
            dram += span_bytes(q->rig, &q->spans[i], &first);
    assert_int_equal(job.scored_dram_bytes, dram);
    assert_int_equal(job.scored_bytes, asked_bytes(q) - dram);
    assert_int_equal(job.flash_read_bytes, job.scored_bytes);
}

/* Each page of the queries' spans that is not in DRAM, and no other, was read as often as they have
 * it. */
static void check_pages_read(const struct asked *const *queries, uint32_t n)
{
    const struct rig *r = queries[0]->rig;
    uint64_t pages = N_STRIPES * r->layout.digest_stripe_bytes / CSD_ALIGN;
    uint8_t *times = calloc(pages, 1);
    uint64_t first;

    assert_non_null(times);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t s = 0; s < queries[i]->n_spans; s++) {
            uint64_t bytes = span_bytes(r, &queries[i]->spans[s], &first);
            for (uint64_t p = 0; p < bytes / CSD_ALIGN; p++)
                times[(first - r->layout.digest_offset) / CSD_ALIGN + p] +=
                    !r->in_dram[queries[i]->spans[s].stripe];
        }
    assert_true(seen.n < LOG_MAX);
    for (uint32_t i = 0; i < seen.n; i++)
        for (uint64_t p = 0; p < seen.reads[i].bytes / CSD_ALIGN; p++) {
            uint64_t page = (seen.reads[i].offset - r->layout.digest_offset) / CSD_ALIGN + p;
            assert_true(page < pages && times[page] > 0);
            times[page]--;
        }
    for (uint64_t p = 0; p < pages; p++)
        assert_int_equal(times[p], 0);
    free(times);
}

/* ---- tests ---- */

/* Stripes that follow one another: a batch is one read, of a long query a larger one. */
static void test_neighbours_are_one_read(void **state)
{
    struct rig r;
    struct asked q;

    (void)state;
    random_seed(41);
    open_rig(&r, &(struct csd_options){.force_pread = true});
    for (uint32_t n = 30; n <= 45; n += 15) {
        begin_asked(&q, &r);
        for (uint32_t i = 0; i < n; i++)
            add_span(&q, 5 + i, 0, r.layout.stripe_slots);
        assert_int_equal(is_long(&q), n == 45);
        uint32_t each = is_long(&q) ? LONG_STRIPES : SHORT_STRIPES;
        seen.n = 0;
        score_all(&q);
        assert_int_equal(seen.n, n / each);
        for (uint32_t i = 0; i < seen.n; i++) {
            assert_int_equal(seen.reads[i].offset, pool_digest_at(&r.layout, 5 + i * each));
            assert_int_equal(seen.reads[i].bytes, each * r.layout.digest_stripe_bytes);
        }
    }
    /* the other way round none follows the one before */
    begin_asked(&q, &r);
    for (uint32_t i = 45; i-- > 0;)
        add_span(&q, i, 0, r.layout.stripe_slots);
    seen.n = 0;
    score_all(&q);
    assert_int_equal(seen.n, 45);
    close_rig(&r);
}

/* Between two stripes that follow one another on flash lies, in memory, one that is not read. */
static void test_nothing_is_read_over_what_came_from_dram(void **state)
{
    uint32_t kept[15];
    const struct csd_options ways[] = {{.force_pread = true}, {0}};
    struct rig r;
    struct asked q;

    (void)state;
    random_seed(42);
    for (uint32_t i = 0; i < 15; i++)
        kept[i] = 60 + 2 * i;
    for (uint32_t way = 0; way < 2; way++) {
        open_rig(&r, &ways[way]);
        keep_in_dram(&r, kept, 15);
        begin_asked(&q, &r);
        for (uint32_t i = 0; i < 15; i++) { /* batches of 0, 60, 1; 2, 62, 3; ... */
            add_span(&q, 2 * i, 0, r.layout.stripe_slots);
            add_span(&q, kept[i], 0, r.layout.stripe_slots);
            add_span(&q, 2 * i + 1, 0, r.layout.stripe_slots);
        }
        assert_true(is_long(&q));
        for (uint32_t round = 0; round < 3; round++) {
            const struct asked *all = &q;
            seen.n = 0;
            score_all(&q);
            if (r.noted)
                check_pages_read(&all, 1);
        }
        close_rig(&r);
    }
}

/* Two queries at random, the second one maybe read ahead, maybe thought better of. */
static void random_pair(struct rig *r)
{
    struct asked one, two;
    const struct asked *both[] = {&one, &two};
    bool dropped = random_below(6) == 0;

    begin_asked(&one, r);
    begin_asked(&two, r);
    random_spans(&one, 1 + random_below(random_below(2) ? N_STRIPES : 8));
    random_spans(&two, 1 + random_below(random_below(2) ? N_STRIPES : 8));
    one.next = random_below(4) ? &two : NULL;
    if (random_below(2)) {
        uint32_t kept[N_STRIPES], n = 0;
        for (uint32_t s = 0; s < N_STRIPES; s++)
            if (random_below(5) == 0)
                kept[n++] = s;
        keep_in_dram(r, kept, n);
    }
    seen.n = 0;
    score_all(&one);
    if (dropped)
        csd_drive_drop_ahead(r->drive);
    if (dropped)
        seen.n = 0;
    score_all(&two);
    if (r->noted)
        check_pages_read(dropped ? both + 1 : both, dropped ? 1 : 2);
}

static void test_random_queries_equal_the_reference(void **state)
{
    const struct csd_options ways[] = {{.force_pread = true}, {0}, {.device = FIRST_OPENCL_DEVICE}};
    struct rig r;

    (void)state;
    random_seed(43);
    for (uint32_t way = 0; way < 3; way++) {
        open_rig(&r, &ways[way]);
        for (uint32_t i = TEST_ROUNDS(60); i-- > 0;)
            random_pair(&r);
        close_rig(&r);
    }
}

static void check_bad_read(const struct hill_why *why, uint64_t bad)
{
    unsigned long long bytes = 0, at = 0;
    if (sscanf(why->text, "cannot read %llu bytes at %llu of the cold pool", &bytes, &at) != 2)
        fail_msg("%s", why->text);
    assert_true(bad >= at && bad < at + bytes);
}

static void check_damage(const struct rig *r, const struct hill_why *why, uint64_t bad)
{
    uint64_t within = bad - r->layout.digest_offset;
    uint64_t stripe = r->layout.digest_stripe_bytes;
    char text[160];

    snprintf(text, sizeof text, "digests in page %llu of stripe %llu of the cold pool are damaged",
             (unsigned long long)(within % stripe / CSD_ALIGN),
             (unsigned long long)(within / stripe));
    if (!strstr(why->text, text))
        fail_msg("%s, not \"%s\"", why->text, text);
}

/* A bit of the page that the byte is in; again: it is as it was. */
static void flip_bit(const struct rig *r, uint64_t at)
{
    int fd = csd_drive_pool_fd(r->drive);
    uint8_t *page = aligned_alloc(CSD_ALIGN, CSD_ALIGN);

    assert_non_null(page);
    assert_int_equal(syscall(SYS_pread64, fd, page, CSD_ALIGN, page_floor(at)), CSD_ALIGN);
    page[at % CSD_ALIGN] ^= 8;
    assert_int_equal(pwrite(fd, page, CSD_ALIGN, (off_t)page_floor(at)), CSD_ALIGN);
    free(page);
}

/* One of two queries has a page that cannot be read or is damaged: that one fails, with the page's
 * place, and nothing of the page is scored; the other one is right, and so are both later. */
static void fail_once(struct rig *r, bool damage)
{
    struct asked queries[2];
    struct csd_score_job job;

    for (uint32_t i = 0; i < 2; i++) { /* of no common stripe; a few are partly used */
        begin_asked(&queries[i], r);
        for (uint32_t s = 0; s < 50; s++)
            if (s != 25)
                add_span(&queries[i], 50 * i + s, 0,
                         s % 8 ? r->layout.stripe_slots : 16 + random_below(600));
        assert_true(is_long(&queries[i]));
    }
    uint32_t bad_one = random_below(2);
    const struct csd_span *s = &queries[bad_one].spans[random_below(49)];
    uint64_t first, bytes = span_bytes(r, s, &first);
    uint64_t bad = first + random_below((uint32_t)bytes);
    queries[bad_one].bad = bad;
    queries[0].next = &queries[1];
    if (damage)
        flip_bit(r, bad);
    else
        seen.bad = (off_t)bad;
    for (uint32_t i = 0; i < 2; i++) {
        struct hill_why why = {""};
        if (i != bad_one) {
            score_all(&queries[i]);
            continue;
        }
        seen.n = 0;
        assert_int_equal(score(&queries[i], &job, &why), damage ? HILL_E_DAMAGED : HILL_E_IO);
        if (damage)
            check_damage(r, &why, bad);
        else
            check_bad_read(&why, bad);
    }
    if (damage)
        flip_bit(r, bad);
    seen.bad = -1;
    queries[bad_one].bad = 0;
    for (uint32_t i = 0; i < 2; i++)
        score_all(&queries[i]);
}

static void fail_often(const struct csd_options *options, bool damage)
{
    struct rig r;
    open_rig(&r, options);
    for (uint32_t i = TEST_ROUNDS(40); i-- > 0;)
        fail_once(&r, damage);
    close_rig(&r);
}

static void test_a_page_that_cannot_be_read_is_named(void **state)
{
    (void)state;
    random_seed(44);
    fail_often(&(struct csd_options){.force_pread = true}, false);
}

static void test_a_damaged_page_is_named(void **state)
{
    (void)state;
    random_seed(45);
    fail_often(&(struct csd_options){.force_pread = true}, true);
    fail_often(&(struct csd_options){0}, true);
    fail_often(&(struct csd_options){.device = FIRST_OPENCL_DEVICE}, true);
}

/* Of this page the first sectors are as the write has them, the rest is as before. */
static void tear(int fd, const struct csd_extent *write, const uint8_t *old, uint64_t page)
{
    uint8_t *torn = aligned_alloc(CSD_ALIGN, CSD_ALIGN);

    assert_non_null(torn);
    memcpy(torn, old + page, CSD_ALIGN);
    memcpy(torn, (uint8_t *)write->memory + page, 512 * (1 + random_below(7)));
    assert_int_equal(syscall(SYS_pwrite64, fd, torn, CSD_ALIGN, write->offset + page), CSD_ALIGN);
    free(torn);
}

/* A write fails behind some of its pages. Those are right as they were to be, the others as they
 * were, and one that is torn is not. to: a stripe's room. */
static void fail_a_write(struct rig *r, uint8_t *from, uint8_t *to)
{
    uint64_t bytes = r->layout.digest_stripe_bytes;
    uint32_t stripe = random_below(N_STRIPES);
    uint64_t done = random_below((uint32_t)(bytes / CSD_ALIGN)) * (uint64_t)CSD_ALIGN;
    const uint8_t *old = r->digests + stripe * bytes;
    struct csd_extent write = {pool_digest_at(&r->layout, stripe), from, bytes, true};
    struct csd_extent read = {write.offset, to, bytes, false};
    struct hill_why why = {""};

    random_bytes(from, bytes);
    seen.write_fails = true;
    seen.writes = done;
    assert_int_equal(csd_drive_transfer(r->drive, &write, 1, &why), HILL_E_IO);
    assert_int_equal(csd_drive_transfer(r->drive, &read, 1, &why), 0);
    assert_memory_equal(to, from, done);
    assert_memory_equal(to + done, old + done, bytes - done);
    tear(seen.fd, &write, old, done);
    assert_int_equal(csd_drive_transfer(r->drive, &read, 1, &why), HILL_E_DAMAGED);
    check_damage(r, &why, write.offset + done);
    write_stripe(r, stripe); /* and all is known again */
    assert_int_equal(csd_drive_transfer(r->drive, &read, 1, &why), 0);
}

static void test_a_write_that_failed_leaves_what_was_or_what_was_to_be(void **state)
{
    struct rig r;

    (void)state;
    random_seed(47);
    open_rig(&r, &(struct csd_options){.force_pread = true});
    uint64_t bytes = r.layout.digest_stripe_bytes;
    uint8_t *memory = aligned_alloc(CSD_ALIGN, 2 * bytes);
    assert_non_null(memory);
    for (uint32_t i = TEST_ROUNDS(40); i-- > 0;)
        fail_a_write(&r, memory, memory + bytes);
    free(memory);
    close_rig(&r);
}

static void test_the_hosts_cpu_scores_unless_a_device_is_named(void **state)
{
    static const struct {
        struct csd_options options;
        bool on_host;
    } ways[] = {{{0}, true},
                {{.device = ""}, true},
                {{.device = CSD_HOST_CPU}, true},
                {{.device = FIRST_OPENCL_DEVICE, .on_host = true}, true},
                {{.device = FIRST_OPENCL_DEVICE}, false}};
    struct rig r;
    struct asked q;
    char text[200];

    (void)state;
    random_seed(46);
    for (uint32_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        open_rig(&r, &ways[way].options);
        csd_drive_describe(r.drive, text, sizeof text);
        assert_int_equal(strstr(text, "the host's CPU") != NULL, ways[way].on_host);
        begin_asked(&q, &r);
        random_spans(&q, N_STRIPES);
        score_all(&q);
        close_rig(&r);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_neighbours_are_one_read),
        TEST(test_nothing_is_read_over_what_came_from_dram),
        TEST(test_random_queries_equal_the_reference),
        TEST(test_a_page_that_cannot_be_read_is_named),
        TEST(test_a_damaged_page_is_named),
        TEST(test_a_write_that_failed_leaves_what_was_or_what_was_to_be),
        TEST(test_the_hosts_cpu_scores_unless_a_device_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
