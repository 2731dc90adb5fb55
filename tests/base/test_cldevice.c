/* Tests of cldevice_build: base/opencl_builtins.cl stands in for clang's header, and a program that
 * calls what is not in it is built all the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/cldevice.h"
#include "tests/declared_builtins.h"
#include "tests/draws.h"

#define ITEMS   64u
#define RESULTS (4 * ITEMS + ITEMS / 2 + 2)

static struct cldevice device;

/* A function of each group of opencl_builtins.cl, few of them over vectors, which PoCL compiles for
 * seconds; a hash of each item's results. */
static const char some_builtins[] =
    "#define MIX(v) h = (h ^ as_uint(v)) * 16777619u\n"
    "__kernel void some(__global const float *in, __global uint *out, __global half *halves,\n"
    "                   volatile __global uint *count)\n"
    "{\n"
    "    size_t i = get_global_id(0);\n"
    "    uint h = 2166136261u + (uint)(get_local_id(0) + get_local_size(0) * get_group_id(0));\n"
    "    float4 v = vload4(i, in), w = fma(v, v, v * 0.01f);\n"
    "    int4 n = convert_int4(v * 1000.0f);\n"
    "    MIX(exp(v.x * 0.1f));\n"
    "    MIX(exp2(v.y * 0.1f));\n"
    "    MIX(log2(fabs(v.z) + 1.0f));\n"
    "    MIX(sqrt(fabs(v.w)));\n"
    "    MIX(rint(v.x));\n"
    "    MIX(fmax(v, w).y);\n"
    "    MIX(clamp(w.z, -9.0f, 9.0f));\n"
    "    MIX(clz(n.x) + max(n.y, n.z) + min(n.z, n.w));\n"
    "    MIX(select(v.x, w.x, n.y > 0));\n"
    "    MIX(convert_float(convert_long(n.x) * n.y));\n"
    "    vstore_half(w.x, i, halves);\n"
    "    MIX(vload_half(i, halves));\n"
    "    vstore4(w, i, (__global float *)out);\n"
    "    atomic_add(count, 2u);\n"
    "    atomic_inc(count);\n"
    "    atomic_cmpxchg(count + 1, 0u, 5u);\n"
    "    out[4 * i] = h;\n"
    "}\n";

/* A card of 16 MiB; one of the host's memory, however much it says. */
static void room_is_that_of_a_card(void **state)
{
    (void)state;
    struct cldevice card = {.own_memory = true, .global_bytes = 16 << 20};
    assert_int_equal(cldevice_room(&card, 0), 15 << 20);
    assert_int_equal(cldevice_room(&card, 5 << 20), 10 << 20);
    assert_int_equal(cldevice_room(&card, 15 << 20), 0);
    assert_int_equal(cldevice_room(&card, 17 << 20), 0);
    card.own_memory = false;
    assert_true(cldevice_room(&card, 17 << 20) == UINT64_MAX);
}

static cl_program build(const char *source, const char *builtins, struct hill_why *why)
{
    if (builtins)
        setenv("HILL_TEST_BUILTINS", builtins, 1);
    else
        unsetenv("HILL_TEST_BUILTINS");
    cl_program program = cldevice_build(&device, source, "-cl-std=CL1.2", why);
    unsetenv("HILL_TEST_BUILTINS");
    return program;
}

static cl_mem buffer(const void *from, size_t bytes)
{
    cl_int status;
    cl_mem mem = clCreateBuffer(device.context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes,
                                (void *)(uintptr_t)from, &status);
    assert_int_equal(status, CL_SUCCESS);
    return mem;
}

/* What `some` gives with that choice of declarations: four words an item, halves, two counts. */
static void run_some(const char *builtins, const float *in, uint32_t out[RESULTS])
{
    struct hill_why why = {""};
    uint32_t zeros[4 * ITEMS] = {0}, sizes[] = {4 * ITEMS, ITEMS / 2, 2};
    size_t items = ITEMS, local = 4;
    cl_int status;
    cl_program program = build(some_builtins, builtins, &why);
    if (!program)
        fail_msg("%s", why.text);
    cl_kernel kernel = clCreateKernel(program, "some", &status);
    assert_int_equal(status, CL_SUCCESS);
    cl_mem mems[4] = {buffer(in, 4 * ITEMS * sizeof *in)};
    for (uint32_t i = 0; i < 3; i++)
        mems[i + 1] = buffer(zeros, sizes[i] * sizeof *zeros);
    for (cl_uint i = 0; i < 4; i++)
        assert_int_equal(clSetKernelArg(kernel, i, sizeof *mems, &mems[i]), CL_SUCCESS);
    cl_command_queue queue = cldevice_queue(&device, false, &why);
    assert_non_null(queue);
    status = clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, &local, 0, NULL, NULL);
    for (uint32_t i = 0; status == CL_SUCCESS && i < 3; out += sizes[i++])
        status = clEnqueueReadBuffer(queue, mems[i + 1], CL_TRUE, 0, sizes[i] * sizeof *out, out, 0,
                                     NULL, NULL);
    assert_int_equal(status, CL_SUCCESS);
    for (uint32_t i = 0; i < 4; i++)
        clReleaseMemObject(mems[i]);
    clReleaseCommandQueue(queue);
    clReleaseKernel(kernel);
    clReleaseProgram(program);
}

static void test_both_ways_give_the_same_bits(void **state)
{
    uint32_t declared[RESULTS] = {0}, header[RESULTS] = {0};
    float in[4 * ITEMS];
    (void)state;
    draws_seed(20261123);
    for (uint32_t i = 0; i < 4 * ITEMS; i++)
        in[i] = (float)draw(200001) * 1e-3f - 100;
    run_some(is_pocl_3_1() ? "declared" : NULL, in, declared);
    run_some("header", in, header);
    assert_memory_equal(declared, header, sizeof declared);
    assert_int_equal(declared[RESULTS - 2], 3 * ITEMS);
    assert_int_equal(declared[RESULTS - 1], 5);
    assert_int_not_equal(declared[0], declared[4]);
}

/* sinpi is a function of OpenCL that no kernel here calls. */
static void test_a_function_that_is_not_declared_is_found_in_the_header(void **state)
{
    const char *source = "__kernel void f(__global float *x) { x[0] = sinpi(x[0]); }";
    struct hill_why why = {""};
    (void)state;
    cl_program program = build(source, NULL, &why);
    if (!program)
        fail_msg("%s", why.text);
    clReleaseProgram(program);
    if (is_pocl_3_1()) {
        assert_null(build(source, "declared", &why));
        assert_non_null(strstr(why.text, "sinpi"));
    }
}

static void test_a_wrong_program_is_refused_by_its_own_line(void **state)
{
    struct hill_why why = {""};
    (void)state;
    assert_null(
        build("__kernel void f(__global float *x)\n{ x[0] = never_heard_of; }", NULL, &why));
    assert_non_null(strstr(why.text, "never_heard_of"));
}

static int open_device(void **state)
{
    struct hill_why why = {""};
    (void)state;
    cldevice_set_threads(2);
    if (cldevice_open(&device, getenv("HILL_DEVICE"), &why) == 0)
        return 0;
    print_message("%s\n", why.text);
    return -1;
}

static int close_device(void **state)
{
    (void)state;
    cldevice_close(&device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(room_is_that_of_a_card),
        cmocka_unit_test(test_both_ways_give_the_same_bits),
        cmocka_unit_test(test_a_function_that_is_not_declared_is_found_in_the_header),
        cmocka_unit_test(test_a_wrong_program_is_refused_by_its_own_line),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
