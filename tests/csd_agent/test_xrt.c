/*
 * test_xrt.c - the xrt: drive against a stand-in for Xilinx' runtime (xrt/mock_xrt.c): the calls,
 * their order and flags; the scores of a cold pool on it; what it says where something is missing;
 * and that the stand-in finds each wrong order.
 */
#include "tests/csd_agent/pool_scene.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/wait.h>

#include "csd_agent/xrt_extensions.h"
#include "tests/csd_agent/xrt/mock_xrt.h"

static const struct mock_xrt *mock;
static char vendors[] = "/tmp/hill-xrt-test-XXXXXX", icd[128], xclbin[160], url[512];

/* ---- the stand-in ---- */

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* The loader reads it at the first OpenCL call of the process: nothing of PoCL comes in here. */
static int load_mock(void **state)
{
    char self[400], library[500];
    (void)state;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0 && mkdtemp(vendors));
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(library, sizeof library, "%s/xrt/mock_xrt.so", self);
    snprintf(icd, sizeof icd, "%s/mock.icd", vendors);
    snprintf(xclbin, sizeof xclbin, "%s/score.xclbin", vendors);
    write_text(icd, library);
    write_text(xclbin, MOCK_XCLBIN_MAGIC "\nhill_score_int8 hill_score_int4\n");
    setenv("OCL_ICD_VENDORS", vendors, 1);
    void *handle = dlopen(library, RTLD_NOW);
    if (!handle)
        print_message("%s\n", dlerror());
    assert_non_null(handle);
    mock = dlsym(handle, "mock_xrt");
    assert_non_null(mock);
    return 0;
}

static int unload_mock(void **state)
{
    (void)state;
    unlink(icd);
    unlink(xclbin);
    return rmdir(vendors);
}

static int begin(void **state)
{
    mock->reset();
    snprintf(url, sizeof url, "xrt:/tmp/none,xclbin=%s", xclbin);
    return make_folder(state);
}

static void expect_kept_rules(void)
{
    if (mock->report()[0])
        print_message("%s", mock->report());
    assert_string_equal(mock->report(), "");
    assert_int_equal(mock->live(), 0);
}

static const char *pool_on_card(const char *program)
{
    snprintf(url, sizeof url, "xrt:%s,xclbin=%s", pool_path(), program);
    return url;
}

/* ---- a pool on it ---- */

static void fill(struct pool_scene *s, uint32_t stripe, uint32_t n)
{
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    s->m.stripes[stripe] = (struct model_stripe){true, 0, 0, stripe};
    for (uint32_t done = 0, some; done < n; done += some) {
        uint32_t first = stripe * s->m.stripe_slots + done;
        some = 1 + random_below(n - done < 200 ? n - done : 200);
        assert_int_equal(pool_scene_write(s, first, some, &cost), 0);
        for (uint32_t slot = first; slot < first + some; slot++) {
            assert_int_equal(cold_pool_commit(s->pool, 0, 0, &slot, 1, &why), 0);
            s->m.slots[slot].state = SLOT_COMMITTED;
        }
    }
}

/* Several batches a query, ends of stripes in the middle of groups, gaps. */
static void test_scores_of_a_pool_are_the_references(void **state)
{
    const struct kv_geometry shapes[] = {{1, 4, 2, 24}, {1, 5, 5, 20, 4}};
    (void)state;
    random_seed(41);
    for (int i = 0; i < 2; i++) {
        struct cold_pool_config config = pool_scene_config(&shapes[i], 4);
        struct pool_scene s;
        config.url = pool_on_card(xclbin);
        pool_scene_open(&s, &config);
        for (uint32_t stripe = 0; stripe < 3; stripe++)
            fill(&s, stripe, 300 + random_below(500));
        for (uint32_t round = 0; round < 12; round++) {
            pool_scene_query_part(&s, 0, 0);
            uint32_t slot = random_below(300);
            if (s.m.slots[slot].state == SLOT_COMMITTED)
                pool_scene_release(&s, slot);
        }
        cold_pool_limit_dram(s.pool, 1u << 30); /* the host keeps no copy */
        assert_true(pool_scene_query_reads(&s) > 0);
        assert_true(pool_scene_query_reads(&s) > 0);
        pool_scene_close(&s);
        unlink(pool_path());
        expect_kept_rules();
    }
}

static void test_the_card_is_programmed_before_its_memory_is_mapped(void **state)
{
    const struct kv_geometry g = {1, 4, 2, 24};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct pool_scene s;
    (void)state;
    random_seed(42);
    config.url = pool_on_card(xclbin);
    pool_scene_open(&s, &config);
    const char *start = "context queue program kernel buffer p2p-buffer map buffer buffer "
                        "p2p-buffer map buffer buffer ";
    assert_memory_equal(mock->calls(), start, strlen(start));
    fill(&s, 0, 40);
    mock->reset();
    pool_scene_query(&s, 0, 0);
    assert_string_equal(mock->calls(), "write write task read wait ");
    pool_scene_close(&s);
    expect_kept_rules();
}

/* ---- what is missing ---- */

static void refused(const char *drive, int code, const char *word)
{
    const struct kv_geometry g = {1, 4, 2, 24};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct hill_why why = {""};
    struct cold_pool *pool = NULL;
    config.url = drive;
    int status = cold_pool_open(&pool, &config, &why);
    if (status != code || !strstr(why.text, word) || strchr(why.text, '\n'))
        fail_msg("%s: %d, %s", drive, status, why.text);
    assert_null(pool);
    unlink(pool_path());
    expect_kept_rules();
    mock->reset();
}

static void test_what_is_missing_is_said_in_one_line(void **state)
{
    char other[sizeof url + 16];
    (void)state;
    refused("xrt:0000:17:00.1", HILL_E_INVALID, "xclbin=FILE");
    refused("xrt:,xclbin=x", HILL_E_INVALID, "xclbin=FILE");
    refused(pool_on_card("/nowhere"), hill_from_errno(ENOENT), "'/nowhere'");
    refused(pool_on_card(icd), HILL_E_NODEV, "cannot program");
    snprintf(other, sizeof other, "%s,device=pocl", pool_on_card(xclbin));
    refused(other, HILL_E_NODEV, "pocl");
    static const struct {
        const char *call, *word;
    } calls[] = {{"context", "CL_DEVICE_NOT_AVAILABLE"},
                 {"queue", "cannot program"},
                 {"kernel", "CL_INVALID_KERNEL_NAME"},
                 {"p2p-buffer", "P2P"},
                 {"map", "--p2p enable"},
                 {"buffer", "clCreateBuffer"}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        mock->refuse(calls[i].call);
        refused(pool_on_card(xclbin),
                strcmp(calls[i].call, "buffer") == 0 ? HILL_E_NOMEM : HILL_E_NODEV, calls[i].word);
    }
}

static void test_keys_are_not_cast(void **state)
{
    const struct kv_geometry g = {1, 4, 2, 24};
    struct cold_pool_config config = pool_scene_config_cast(&g, 2);
    struct hill_why why = {""};
    struct cold_pool *pool;
    (void)state;
    config.url = pool_on_card(xclbin);
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_UNSUPPORTED);
    assert_non_null(strstr(why.text, "--csd-digests sidecar"));
    unlink(pool_path());
    expect_kept_rules();
}

static void test_launches_that_fail_end_the_query_alone(void **state)
{
    static const char *const calls[] = {"write", "task", "read"};
    const struct kv_geometry g = {1, 4, 2, 24};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct hill_why why = {""};
    struct pool_scene s;
    (void)state;
    random_seed(43);
    config.url = pool_on_card(xclbin);
    pool_scene_open(&s, &config);
    fill(&s, 0, 700);
    for (int i = 0; i < 3; i++) {
        mock->refuse(calls[i]);
        assert_int_equal(pool_scene_query_status(&s, &why), HILL_E_NODEV);
        mock->refuse(NULL);
        pool_scene_query(&s, 0, 0);
    }
    pool_scene_close(&s);
    expect_kept_rules();
}

/* Nothing is launched, so nobody has waited for the query to be on the card. */
static void test_flash_that_cannot_be_read_leaves_the_next_query_whole(void **state)
{
    const struct kv_geometry g = {1, 4, 2, 24};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct hill_why why = {""};
    struct pool_scene s;
    (void)state;
    random_seed(45);
    config.url = pool_on_card(xclbin);
    pool_scene_open(&s, &config);
    fill(&s, 0, 700);
    assert_int_equal(truncate(pool_path(), 0), 0);
    for (int i = 0; i < 3; i++)
        assert_true(pool_scene_query_status(&s, &why) < 0);
    pool_scene_close(&s);
    expect_kept_rules();
}

/* After a detach the host's CPU reads what lies on its flash. */
static void test_a_plain_reader_needs_no_card(void **state)
{
    const struct kv_geometry g = {1, 4, 2, 24};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct pool_scene s;
    (void)state;
    random_seed(44);
    config.url = pool_on_card("/nowhere");
    config.options.on_host = true;
    pool_scene_open(&s, &config);
    fill(&s, 0, 100);
    pool_scene_query(&s, 0, 0);
    pool_scene_close(&s);
    assert_string_equal(mock->calls(), "");
}

/* A process of its own: the loader looks for vendors once. */
static void without_a_card(void)
{
    struct hill_why why = {""};
    struct csd_backend *backend;
    const struct csd_options options = {0};
    setenv("OCL_ICD_VENDORS", "/nowhere/", 1);
    snprintf(url, sizeof url, "xrt:%s,xclbin=%s", "/tmp/hill-none", xclbin);
    int status = csd_backend_open(&backend, url, &options, &why);
    bool right = status == HILL_E_NODEV && strstr(why.text, "no OpenCL platform found") &&
                 !strchr(why.text, '\n') && access("/tmp/hill-none", F_OK) != 0;
    if (!right)
        fprintf(stderr, "%d %s\n", status, why.text);
    _exit(right ? 0 : 1);
}

static void test_without_a_runtime_the_drive_is_refused(void **state)
{
    int status;
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        without_a_card();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- the stand-in finds what is wrong ---- */

struct card {
    cl_platform_id platform;
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    cl_program program;
    cl_kernel kernel;
};

static void open_card(struct card *c, bool programmed)
{
    const unsigned char binary[] = MOCK_XCLBIN_MAGIC " ";
    const unsigned char *binaries = binary;
    size_t bytes = sizeof binary;
    cl_int status;
    memset(c, 0, sizeof *c);
    assert_int_equal(clGetPlatformIDs(1, &c->platform, NULL), CL_SUCCESS);
    assert_int_equal(clGetDeviceIDs(c->platform, CL_DEVICE_TYPE_ACCELERATOR, 1, &c->device, NULL),
                     CL_SUCCESS);
    c->context = clCreateContext(NULL, 1, &c->device, NULL, NULL, &status);
    c->queue = clCreateCommandQueue(c->context, c->device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE,
                                    &status);
    if (!programmed)
        return;
    c->program =
        clCreateProgramWithBinary(c->context, 1, &c->device, &bytes, &binaries, NULL, &status);
    c->kernel = clCreateKernel(c->program, "hill_score_int8", &status);
}

static void close_card(struct card *c)
{
    clFinish(c->queue);
    if (c->program) {
        clReleaseKernel(c->kernel);
        clReleaseProgram(c->program);
    }
    clReleaseCommandQueue(c->queue);
    clReleaseContext(c->context);
    assert_int_equal(mock->live(), 0);
}

/* What the stand-in has said, and nothing but that. */
static void expect_broken(const char *rule)
{
    const char *said = mock->report();
    if (!strstr(said, rule) || strchr(said, '\n') != said + strlen(said) - 1)
        fail_msg("expected '%s', it says '%s'", rule, said);
    mock->reset();
}

static cl_mem p2p_buffer(const struct card *c, cl_mem_flags flags, size_t bytes, cl_kernel kernel)
{
    struct xrt_mem_ext_ptr ext = {.flags = XRT_EXT_P2P_BUFFER, .kernel = kernel};
    cl_int status;
    cl_mem m = clCreateBuffer(c->context, flags, bytes, &ext, &status);
    assert_int_equal(status, CL_SUCCESS);
    return m;
}

#define P2P_FLAGS (CL_MEM_READ_ONLY | XRT_MEM_EXT_PTR)

static void test_the_stand_in_finds_wrong_buffers(void **state)
{
    struct card c;
    cl_int status;
    uint8_t bytes[64] = {0};
    (void)state;
    open_card(&c, false);
    clReleaseMemObject(p2p_buffer(&c, P2P_FLAGS, 4096, (cl_kernel)bytes));
    expect_broken("before the card is programmed");
    close_card(&c);
    open_card(&c, true);
    clReleaseMemObject(p2p_buffer(&c, CL_MEM_READ_WRITE | XRT_MEM_EXT_PTR, 4096, c.kernel));
    expect_broken("with the flags");
    clReleaseMemObject(p2p_buffer(&c, P2P_FLAGS, 5000, c.kernel));
    expect_broken("no whole pages");
    clReleaseMemObject(p2p_buffer(&c, P2P_FLAGS, 4096, NULL));
    expect_broken("its kernel");
    cl_mem m = p2p_buffer(&c, P2P_FLAGS, 8192, c.kernel);
    clEnqueueWriteBuffer(c.queue, m, CL_TRUE, 0, 64, bytes, 0, NULL, NULL);
    expect_broken("copied by a command");
    clEnqueueMapBuffer(c.queue, m, CL_TRUE, CL_MAP_READ, 0, 4096, 0, NULL, NULL, &status);
    expect_broken("whole P2P buffer, once");
    clReleaseMemObject(m);
    expect_broken("while it is mapped");
    close_card(&c);
    mock->reset();
}

/* One digest group of zeros, the way the agent scores it, but for the events that are left out. */
static void launch(const struct card *c, cl_mem digests, bool kernel_waits, bool read_waits)
{
    const uint32_t run[4] = {0, 1, 0, 0}, numbers[5] = {1, 1, 1, 1, 0};
    uint32_t query[8] = {0};
    uint16_t scores[16];
    cl_event written[2], done, read;
    cl_int status;
    cl_mem runs = clCreateBuffer(c->context, CL_MEM_READ_ONLY, sizeof run, NULL, &status);
    cl_mem queries = clCreateBuffer(c->context, CL_MEM_READ_ONLY, sizeof query, NULL, &status);
    cl_mem out = clCreateBuffer(c->context, CL_MEM_WRITE_ONLY, sizeof scores, NULL, &status);
    clEnqueueWriteBuffer(c->queue, runs, CL_TRUE, 0, sizeof run, run, 0, NULL, &written[0]);
    clEnqueueWriteBuffer(c->queue, queries, CL_FALSE, 0, sizeof query, query, 0, NULL, &written[1]);
    clSetKernelArg(c->kernel, 0, sizeof digests, &digests);
    clSetKernelArg(c->kernel, 1, sizeof runs, &runs);
    clSetKernelArg(c->kernel, 2, sizeof queries, &queries);
    for (cl_uint i = 0; i < 5; i++)
        clSetKernelArg(c->kernel, 3 + i, sizeof numbers[i], &numbers[i]);
    clSetKernelArg(c->kernel, 8, sizeof out, &out);
    status = clEnqueueTask(c->queue, c->kernel, kernel_waits ? 2 : 1, written, &done);
    assert_int_equal(status, CL_SUCCESS);
    clEnqueueReadBuffer(c->queue, out, CL_FALSE, 0, sizeof scores, scores, read_waits ? 1 : 0,
                        read_waits ? &done : NULL, &read);
    clWaitForEvents(1, &read);
    for (int i = 0; kernel_waits && read_waits && i < 16; i++)
        assert_int_equal(scores[i], kv_score16(0));
    clFinish(c->queue);
    cl_event events[] = {written[0], written[1], done, read};
    for (int i = 0; i < 4; i++)
        clReleaseEvent(events[i]);
    clReleaseMemObject(runs);
    clReleaseMemObject(queries);
    clReleaseMemObject(out);
}

static void test_the_stand_in_finds_commands_that_do_not_wait(void **state)
{
    struct card c;
    cl_int status;
    (void)state;
    open_card(&c, true);
    cl_mem m = p2p_buffer(&c, P2P_FLAGS, 4096, c.kernel);
    void *window = clEnqueueMapBuffer(c.queue, m, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, 4096, 0,
                                      NULL, NULL, &status);
    memset(window, 0, 4096);
    launch(&c, m, true, true);
    assert_string_equal(mock->report(), "");
    launch(&c, m, false, true);
    expect_broken("the kernel runs before a write");
    launch(&c, m, true, false);
    expect_broken("a read runs before the kernel");
    clEnqueueUnmapMemObject(c.queue, m, window, 0, NULL, NULL);
    launch(&c, m, true, true);
    expect_broken("no mapped P2P buffer");
    clReleaseMemObject(m);
    close_card(&c);
    expect_kept_rules();
}

static void test_the_stand_in_finds_a_write_of_what_has_changed(void **state)
{
    struct card c;
    cl_int status;
    uint8_t bytes[64] = {0};
    (void)state;
    open_card(&c, true);
    cl_mem m = clCreateBuffer(c.context, CL_MEM_READ_ONLY, sizeof bytes, NULL, &status);
    clEnqueueWriteBuffer(c.queue, m, CL_FALSE, 0, sizeof bytes, bytes, 0, NULL, NULL);
    bytes[7] = 1;
    clFinish(c.queue);
    expect_broken("has changed before it runs");
    clReleaseMemObject(m);
    close_card(&c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_without_a_runtime_the_drive_is_refused), /* before any OpenCL call */
        TEST(test_scores_of_a_pool_are_the_references),
        TEST(test_the_card_is_programmed_before_its_memory_is_mapped),
        TEST(test_what_is_missing_is_said_in_one_line),
        TEST(test_keys_are_not_cast),
        TEST(test_launches_that_fail_end_the_query_alone),
        TEST(test_flash_that_cannot_be_read_leaves_the_next_query_whole),
        TEST(test_a_plain_reader_needs_no_card),
        TEST(test_the_stand_in_finds_wrong_buffers),
        TEST(test_the_stand_in_finds_commands_that_do_not_wait),
        TEST(test_the_stand_in_finds_a_write_of_what_has_changed),
    };
    return cmocka_run_group_tests(tests, load_mock, unload_mock);
}
