/*
 * tests/gpu_worker/test_product.c - products with weights of every tensor type, as the kernels of
 * prefill and of decode compute them, those of work groups too: bit by bit what plain C gets from
 * the file's blocks, whichever way the integers are multiplied, whatever rows are beside; close to
 * the product in double; and panels cost what the file costs.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cldevice.h"
#include "gpu_worker/pack.h"
#include "tests/declared_builtins.h"
#include "tests/gpu_worker/product_reference.h"
#include "tests/model/gguf_writer.h"

extern const char gpu_worker_shared_cl[], gpu_worker_product_cl[], gpu_worker_matmul_cl[],
    gpu_worker_decode_product_cl[], gpu_worker_matmul_groups_cl[], gpu_worker_step_cl[],
    gpu_worker_decode_groups_cl[];

#define TILE 12u

/* Decode's products alone: rows made int8, then every panel times all rows. */
static const char decode_driver[] =
    "__kernel void decode_rows(__global const float *x, __global const float *g, uint n_rows, uint "
    "k,\n"
    "    __global uint *q, __global const uint *matrix, uint panels, __global float *y, uint "
    "stride)\n"
    "{\n"
    "    float16 out[MAX_ROWS];\n"
    "    for (uint task = 0; task < n_rows * quant_tasks_of_row(k); task++)\n"
    "        quantise(x, k, g, k, q, task);\n"
    "    for (uint panel = 0; panel < panels; panel++) {\n"
    "        if (g)\n"
    "            product_scaled(n_rows, x, k, g, q, matrix, k, panel, out);\n"
    "        else\n"
    "            product(n_rows, x, k, q, matrix, k, panel, out);\n"
    "        for (uint r = 0; r < n_rows; r++)\n"
    "            vstore16(out[r], panel, y + r * stride);\n"
    "    }\n"
    "}\n";

/* The same with work groups, in two launches. */
static const char groups_driver[] =
    "KERNEL quantise_rows(__global const float *x, __global const float *g, uint k, __global uint "
    "*q)"
    "\n{\n"
    "    __local float largest[GROUP_ITEMS];\n"
    "    __local int sums[GROUP_ITEMS];\n"
    "    quantise(x, k, g, k, q, get_group_id(0), largest, sums);\n"
    "}\n"
    "PRODUCT decode_rows(__global const float *x, __global const float *g, uint n_rows, uint k,\n"
    "    __global uint *q, __global const uint *matrix, __global float *y, uint stride)\n"
    "{\n"
    "    PRODUCT_SCRATCH;\n"
    "    struct input in = {x, g, k, q};\n"
    "    for (uint r = 0, n; r < n_rows; r += n) {\n"
    "        n = rows_at_once(n_rows - r);\n"
    "        float out = group_product(in, r, n, matrix, k, get_group_id(0), sums);\n"
    "        if (SLICE < n)\n"
    "            STORE_LANES(out, get_group_id(0), y + (r + SLICE) * stride);\n"
    "    }\n"
    "}\n";
#define K_MOST      1280u /* the longest row */
#define QUANT_WORDS (K_MOST / 4 + K_MOST / 32 * 5)
#define TILES       (CLDEVICE_GROUP_ITEMS / 16) /* of matmul_groups.cl */
#define SLICES      (device.product_items / 16) /* of decode_groups.cl */

static struct cldevice device;
static cl_command_queue queue;
#define BIT(type) (1u << (type))
#define WAYS      5 /* to multiply integers: HILL_DOT; the last one: work groups */
#define GROUPS    4
#define SETS      3
static cl_program programs[2][WAYS + SETS - 1]; /* [prefill][way; GROUPS + set of types] */
static uint64_t seed = 20260102;

static const uint32_t quantised_types[] = {
    GGUF_TENSOR_Q4_0, GGUF_TENSOR_Q4_1, GGUF_TENSOR_Q5_0,   GGUF_TENSOR_Q5_1,
    GGUF_TENSOR_Q8_0, GGUF_TENSOR_Q2_K, GGUF_TENSOR_Q3_K,   GGUF_TENSOR_Q4_K,
    GGUF_TENSOR_Q5_K, GGUF_TENSOR_Q6_K, GGUF_TENSOR_IQ4_NL, GGUF_TENSOR_IQ4_XS};
#define N_QUANTISED (sizeof quantised_types / sizeof *quantised_types)

/* Of work groups a program for each of these sets, since the time of PoCL's compiler grows faster
 * than the number of types in one. Types that are mixed share one. */
static const uint32_t sets[SETS] = {
    BIT(GGUF_TENSOR_F32) | BIT(GGUF_TENSOR_F16) | BIT(GGUF_TENSOR_BF16) | BIT(GGUF_TENSOR_Q4_0) |
        BIT(GGUF_TENSOR_Q4_1),
    BIT(GGUF_TENSOR_Q5_0) | BIT(GGUF_TENSOR_Q5_1) | BIT(GGUF_TENSOR_Q8_0) |
        BIT(GGUF_TENSOR_IQ4_NL) | BIT(GGUF_TENSOR_IQ4_XS),
    BIT(GGUF_TENSOR_Q2_K) | BIT(GGUF_TENSOR_Q3_K) | BIT(GGUF_TENSOR_Q4_K) | BIT(GGUF_TENSOR_Q5_K) |
        BIT(GGUF_TENSOR_Q6_K)};

/* ---- the device ---- */

/* Prefill's or decode's kernels, one program for each way to multiply: for all types, or, of work
 * groups, for the set that these two are in. */
static cl_program program_for(bool prefill, int dot, const uint32_t *of)
{
    struct hill_why why = {0};
    char options[600];
    bool groups = dot == GROUPS;
    uint32_t set = 0, types = sets[0] | sets[1] | sets[2], both = BIT(of[0]) | BIT(of[1]);
    if (groups) {
        while (both & ~sets[set])
            assert_true(++set < SETS);
        types = sets[set];
    }
    cl_program *program = &programs[prefill][(uint32_t)dot + set];
    if (*program)
        return *program;
    const char *parts[2][2][3] = {
        {{gpu_worker_decode_product_cl, decode_driver, ""}, {gpu_worker_matmul_cl, "", ""}},
        {{gpu_worker_step_cl, gpu_worker_decode_groups_cl, groups_driver},
         {gpu_worker_matmul_groups_cl, "", ""}}};
    const char *const *part = parts[groups][prefill];
    char *source = NULL;
    int used = snprintf(options, sizeof options,
                        "-cl-std=CL1.2 -DROWS=%u -DTYPES=%uu -DHILL_DOT=%d -DMAX_ROWS=64 "
                        "-DQUANT_BLOCKS=16 -DQUANT_STRIDE=%u -DACTIVATION=0 -DLAYER_NORM=0 "
                        "-DWIDE_VECTORS=%d%s",
                        TILE, types, groups ? device.dp4a : dot, QUANT_WORDS,
                        device.vector_floats >= 16, device.is_cpu ? " -DPREFETCHES" : "");
    if (groups) /* and a shape, for what is not run here */
        snprintf(options + used, sizeof options - (size_t)used,
                 " -DLANES=1 -DGROUP_ITEMS=%u -DPRODUCT_ITEMS=%u -DGROUP_HEADS=1 -DX_SPACE=%s "
                 "-DHEAD_DIM=16 "
                 "-DN_HEADS=1 -DN_KV_HEADS=1 -DROPE_DIMS=16 -DSCORE_SCALE=1 -DDECODE_TILE=16 "
                 "-DQKV_DIMS=48 -DX_STRIDE=16 -DACT_STRIDE=16 -DLOGITS_STRIDE=16 -DNORM_HEADS=0 "
                 "-DNORM_BRANCHES=0",
                 CLDEVICE_GROUP_ITEMS, device.product_items,
                 prefill ? "__local -DX_QUADS" : "__global");
    if (asprintf(&source, "%s%s%s%s%s", gpu_worker_shared_cl, gpu_worker_product_cl, part[0],
                 part[1], part[2]) < 0)
        fail_msg("no memory");
    *program = cldevice_build(&device, source, options, &why);
    if (!*program)
        fail_msg("%s", why.text);
    free(source);
    return *program;
}

static void forget_programs(void)
{
    enum { EACH = sizeof *programs / sizeof **programs };
    for (int i = 0; i < 2 * EACH; i++)
        if (programs[i / EACH][i % EACH])
            clReleaseProgram(programs[i / EACH][i % EACH]);
    memset(programs, 0, sizeof programs);
}

/* The best that product.cl has for this processor. */
static int best_dot(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512vnni") ? 3 : 2;
#else
    return 0;
#endif
}

static cl_mem buffer(size_t bytes, const void *from)
{
    cl_int status;
    cl_mem mem = clCreateBuffer(device.context, from ? CL_MEM_COPY_HOST_PTR : CL_MEM_READ_WRITE,
                                bytes, (void *)(uintptr_t)from, &status);
    assert_int_equal(status, CL_SUCCESS);
    return mem;
}

struct arg {
    size_t bytes;
    const void *value;
};

/* group: items of a work group */
static void run(cl_program program, const char *name, size_t n0, size_t n1, size_t group,
                const struct arg *args, uint32_t n_args)
{
    const size_t local[2] = {group, 1}, size[2] = {n0 * group, n1};
    cl_int status;
    cl_kernel kernel = clCreateKernel(program, name, &status);
    assert_int_equal(status, CL_SUCCESS);
    for (uint32_t i = 0; i < n_args; i++)
        assert_int_equal(clSetKernelArg(kernel, i, args[i].bytes, args[i].value), CL_SUCCESS);
    assert_int_equal(clEnqueueNDRangeKernel(queue, kernel, 2, NULL, size, local, 0, NULL, NULL),
                     CL_SUCCESS);
    assert_int_equal(clFinish(queue), CL_SUCCESS);
    clReleaseKernel(kernel);
}
#define MEM(m)                                                                                     \
    {                                                                                              \
        sizeof(cl_mem), &(m)                                                                       \
    }
#define NUMBER(n)                                                                                  \
    {                                                                                              \
        sizeof(uint32_t), &(uint32_t)                                                              \
        {                                                                                          \
            n                                                                                      \
        }                                                                                          \
    }
#define RUN(program, name, n0, n1, group, ...)                                                     \
    run(program, name, n0, n1, group, (const struct arg[]){__VA_ARGS__},                           \
        sizeof((const struct arg[]){__VA_ARGS__}) / sizeof(struct arg))

/* ---- a matrix ---- */

/* Panels of `type`, then as many of `other`. */
struct problem {
    uint32_t k, rows, outputs, panels, types[2], split; /* split: the first panel of types[1] */
    uint8_t *weights[2];                                /* as in a file, [outputs][row bytes] */
    float *x, *g;                                       /* [rows][k]; [k] or NULL */
    uint8_t *matrix;
    uint64_t matrix_bytes;
};

/* Codes and activations are the largest there are: sums of 16 bits are as near their end as they
 * come. */
static bool largest;

/* Random bytes, but for the F16 numbers, which are finite. */
static uint8_t *random_blocks(const struct block_format *f, uint64_t n)
{
    uint8_t *data = malloc(n * f->bytes);
    for (uint64_t i = 0; i < n * f->bytes; i++)
        data[i] = largest ? 0xff : (uint8_t)(next_random(&seed) >> 24);
    for (uint64_t b = 0; b < n; b++) {
        uint8_t *block = data + b * f->bytes;
        uint32_t at = f->type == GGUF_TENSOR_Q2_K   ? 80
                      : f->type == GGUF_TENSOR_Q3_K ? 108
                      : f->type == GGUF_TENSOR_Q6_K ? 208
                                                    : 0;
        for (int i = 0; i < (f->min_sign ? 2 : 1); i++) {
            uint16_t half = (uint16_t)(0x1c00 + next_random(&seed) % 0x1400); /* 2^-8 to 2^-3 */
            half |= (uint16_t)(next_random(&seed) % 2 << 15);
            memcpy(block + at + 2 * i, &half, 2);
        }
    }
    return data;
}

static uint8_t *random_floats(const struct block_format *f, uint64_t n)
{
    uint8_t *data = malloc(n * f->bytes);
    for (uint64_t i = 0; i < n; i++) {
        float value = (float)(int32_t)(next_random(&seed) >> 32) * 0x1p-31f;
        uint32_t bits;
        memcpy(&bits, &value, 4);
        uint16_t half = f->type == GGUF_TENSOR_BF16 ? (uint16_t)(bits >> 16)
                                                    : (uint16_t)(next_random(&seed) % 0x3c00);
        memcpy(data + i * f->bytes, f->bytes == 4 ? (void *)&value : (void *)&half, f->bytes);
    }
    return data;
}

static void make_matrix(struct problem *p)
{
    struct {
        uint32_t n_runs, pad[3], runs[7][4];
    } head = {.n_runs = 2};
    uint64_t bytes[2], at = 128;
    for (int i = 0; i < 2; i++) {
        bytes[i] = pack_panel_bytes(block_format(p->types[i]), p->k);
        uint32_t first = i ? p->split : 0, n = i ? p->panels - p->split : p->split;
        const uint32_t words[4] = {first, p->types[i], (uint32_t)(at / 64),
                                   (uint32_t)(bytes[i] / 64)};
        memcpy(head.runs[i], words, sizeof words);
        at += n * bytes[i];
    }
    p->matrix_bytes = at;
    p->matrix = calloc(1, at);
    memcpy(p->matrix, &head, sizeof head);
    for (uint32_t panel = 0; panel < p->panels; panel++) {
        int i = panel >= p->split;
        const struct block_format *f = block_format(p->types[i]);
        const uint8_t *rows[16];
        for (uint32_t lane = 0; lane < 16; lane++) {
            uint32_t o = panel * 16 + lane;
            rows[lane] =
                o < p->outputs ? p->weights[i] + (uint64_t)o * (p->k / f->items) * f->bytes : NULL;
        }
        pack_panel(f, p->k, rows,
                   p->matrix + 64ull * head.runs[i][2] + bytes[i] * (panel - head.runs[i][0]));
    }
}

static struct problem make_problem(uint32_t type, uint32_t other, uint32_t k, uint32_t rows,
                                   uint32_t outputs)
{
    struct problem p = {.k = k, .rows = rows, .outputs = outputs, .types = {type, other}};
    p.panels = (outputs + 31) / 32 * 2;
    p.split = other == type ? p.panels : p.panels / 2;
    for (int i = 0; i < 2; i++) {
        const struct block_format *f = block_format(p.types[i]);
        uint64_t n = (uint64_t)outputs * (k / f->items);
        p.weights[i] = f->bits ? random_blocks(f, n) : random_floats(f, n);
    }
    p.x = malloc(sizeof(float) * k * rows);
    for (uint32_t i = 0; i < k * rows; i++) /* one block in ten is zero */
        p.x[i] =
            next_random(&seed) / 64 % 10 ? (float)(int32_t)(next_random(&seed) >> 32) * 1e-9f : 0;
    for (uint32_t i = 0; i < 32; i++)
        p.x[i] = 0;
    for (uint32_t i = 0; largest && i < k * rows; i++)
        p.x[i] = i / k % 2 ? -1 : 1;
    make_matrix(&p);
    return p;
}

static void free_problem(struct problem *p)
{
    free(p->weights[0]);
    free(p->weights[1]);
    free(p->x);
    free(p->g);
    free(p->matrix);
}

/* ---- what the kernels get ---- */

/* y [rows][panels * 16] by prefill's kernels. */
static void prefill_rows(const struct problem *p, int dot, float *y)
{
    uint32_t tiles = (p->rows + TILE - 1) / TILE, stride = p->panels * 16;
    uint32_t words = TILE * (p->k / 4 + p->k / 32 * 5);
    float *tiled = calloc((size_t)tiles * TILE * p->k, sizeof *tiled);
    for (uint32_t r = 0; r < p->rows; r++)
        for (uint32_t i = 0; i < p->k; i++)
            tiled[((size_t)(r / TILE) * p->k + i) * TILE + r % TILE] = p->x[(size_t)r * p->k + i];
    cl_program program = program_for(true, dot, p->types);
    cl_mem a = buffer(sizeof(float) * tiles * TILE * p->k, tiled),
           q = buffer(4ull * words * tiles, NULL), w = buffer(p->matrix_bytes, p->matrix),
           out = buffer(4ull * p->rows * stride, NULL);
    bool groups = dot == GROUPS;
    RUN(program, "quantise_rows", groups ? tiles * TILE : tiles, p->k / 32, 1, NUMBER(0), MEM(a),
        NUMBER(p->k), NUMBER(p->k), MEM(q));
    RUN(program, "gemm_store", groups ? (tiles + TILES - 1) / TILES : tiles, p->panels / 2,
        groups ? CLDEVICE_GROUP_ITEMS : 1, NUMBER(0), MEM(a), NUMBER(p->k), MEM(q), MEM(w),
        NUMBER(p->k), NUMBER(p->rows), MEM(out), NUMBER(stride));
    assert_int_equal(
        clEnqueueReadBuffer(queue, out, CL_TRUE, 0, 4ull * p->rows * stride, y, 0, NULL, NULL),
        CL_SUCCESS);
    free(tiled);
    cl_mem all[] = {a, q, w, out};
    for (int i = 0; i < 4; i++)
        clReleaseMemObject(all[i]);
}

/* The same by decode's, of rows first .. first + n - 1. */
static void decode_rows(const struct problem *p, int dot, uint32_t first, uint32_t n, float *y)
{
    uint32_t stride = p->panels * 16, words = QUANT_WORDS;
    cl_program program = program_for(false, dot, p->types);
    cl_mem x = buffer(4ull * n * p->k, p->x + (size_t)first * p->k),
           q = buffer(4ull * words * n, NULL), w = buffer(p->matrix_bytes, p->matrix),
           out = buffer(4ull * n * stride, NULL);
    cl_mem g = p->g ? buffer(4ull * p->k, p->g) : NULL;
    if (dot == GROUPS) {
        RUN(program, "quantise_rows", n * ((p->k / 32 + 15) / 16), 1, CLDEVICE_GROUP_ITEMS, MEM(x),
            MEM(g), NUMBER(p->k), MEM(q));
        RUN(program, "decode_rows", p->panels, 1, device.product_items, MEM(x), MEM(g), NUMBER(n),
            NUMBER(p->k), MEM(q), MEM(w), MEM(out), NUMBER(stride));
    } else {
        RUN(program, "decode_rows", 1, 1, 1, MEM(x), MEM(g), NUMBER(n), NUMBER(p->k), MEM(q),
            MEM(w), NUMBER(p->panels), MEM(out), NUMBER(stride));
    }
    assert_int_equal(
        clEnqueueReadBuffer(queue, out, CL_TRUE, 0, 4ull * n * stride, y, 0, NULL, NULL),
        CL_SUCCESS);
    cl_mem all[] = {x, q, w, out, g};
    for (int i = 0; i < (g ? 5 : 4); i++)
        clReleaseMemObject(all[i]);
}

/* ---- what they must be ---- */

static const uint8_t *row_of(const struct problem *p, uint32_t o, const struct block_format **f)
{
    int i = o / 16 >= p->split;
    *f = block_format(p->types[i]);
    return p->weights[i] + (uint64_t)o * (p->k / (*f)->items) * (*f)->bytes;
}

/* Quantised outputs of row r bit by bit, where a sum is taken in so many slices; all outputs near
 * the product in double. */
static void check_row(const struct problem *p, uint32_t r, uint32_t slices, const float *y,
                      const char *what)
{
    float *x = malloc(sizeof(float) * p->k), *w = malloc(sizeof(float) * p->k);
    for (uint32_t i = 0; i < p->k; i++)
        x[i] = p->x[(size_t)r * p->k + i] * (p->g ? p->g[i] : 1);
    for (uint32_t o = 0; o < p->panels * 16; o++) {
        const struct block_format *f;
        if (o >= p->outputs) {
            assert_true(y[o] == 0);
            continue;
        }
        const uint8_t *row = row_of(p, o, &f);
        double want = 0, size = 0;
        block_floats(f, row, p->k, w);
        for (uint32_t i = 0; i < p->k; i++) {
            want += (double)w[i] * x[i];
            size += fabs((double)w[i] * x[i]);
        }
        if (!(fabs(y[o] - want) <= (f->bits ? 0.02 : 1e-6) * size + 1e-6))
            fail_msg("%s, %s: row %u, output %u: %g, in double %g", what, f->name, r, o, y[o],
                     want);
        if (!f->bits)
            continue;
        float exact = reference_quantised(f, row, p->k, x, slices);
        if (memcmp(&exact, &y[o], 4) != 0)
            fail_msg("%s, %s: row %u, output %u: %.9g, in C %.9g", what, f->name, r, o, y[o],
                     exact);
    }
    free(x);
    free(w);
}

static void check_prefill(uint32_t type, uint32_t other, uint32_t k, uint32_t rows,
                          uint32_t outputs, int dot)
{
    struct problem p = make_problem(type, other, k, rows, outputs);
    float *y = malloc(sizeof(float) * rows * p.panels * 16);
    prefill_rows(&p, dot, y);
    for (uint32_t r = 0; r < rows; r++)
        check_row(&p, r, 1, y + (size_t)r * p.panels * 16, "prefill");
    free(y);
    free_problem(&p);
}

/* All rows together, then one of them alone: the same bits. */
static void check_decode(uint32_t type, uint32_t other, uint32_t k, uint32_t rows, uint32_t outputs,
                         int dot, bool norm)
{
    struct problem p = make_problem(type, other, k, rows, outputs);
    size_t width = p.panels * 16;
    float *y = malloc(sizeof(float) * rows * width), *alone = malloc(sizeof(float) * width);
    p.g = norm ? malloc(sizeof(float) * k) : NULL;
    for (uint32_t i = 0; norm && i < k; i++)
        p.g[i] = 0.5f + (float)(next_random(&seed) >> 40) * 0x1p-24f;
    decode_rows(&p, dot, 0, rows, y);
    for (uint32_t r = 0; r < rows; r++)
        check_row(&p, r, dot == GROUPS ? SLICES : 1, y + r * width,
                  norm ? "decode after a norm" : "decode");
    decode_rows(&p, dot, rows - 1, 1, alone);
    assert_memory_equal(alone, y + (rows - 1) * width, sizeof(float) * width);
    free(y);
    free(alone);
    free_problem(&p);
}

/* ---- tests ---- */

static void every_type_in_prefill_is_what_c_gets(void **state)
{
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint32_t i = 0; i < N_QUANTISED; i++) {
        uint32_t items = block_format(quantised_types[i])->items;
        check_prefill(quantised_types[i], quantised_types[i], 3 * items, 1 + 5 * i, 40, best_dot());
    }
}

static void every_type_in_decode_is_what_c_gets(void **state)
{
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint32_t i = 0; i < N_QUANTISED; i++) {
        uint32_t items = block_format(quantised_types[i])->items;
        check_decode(quantised_types[i], quantised_types[i], 3 * items, 1 + i % 7, 40, best_dot(),
                     i % 2);
    }
}

/* Without VNNI, and without anything but OpenCL C. */
static void every_way_to_multiply_gives_the_same(void **state)
{
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint32_t i = 0; i < N_QUANTISED; i++)
        for (int dot = 0; dot < best_dot(); dot++) {
            check_prefill(quantised_types[i], quantised_types[i], 256, 3, 20, dot);
            check_decode(quantised_types[i], quantised_types[i], 256, 5, 20, dot, false);
        }
}

static void the_largest_sums_fit_their_integers(void **state)
{
    (void)state;
    largest = true;
    for (uint32_t i = 0; i < N_QUANTISED; i++)
        for (int dot = 0; dot <= best_dot(); dot++) {
            check_prefill(quantised_types[i], quantised_types[i], 256, 3, 20, dot);
            check_decode(quantised_types[i], quantised_types[i], 256, 5, 20, dot, false);
        }
    largest = false;
}

/* Of more parts than there are slices, and of more rows than a group has in prefill. The bits of
 * prefill are those of register tiles. */
static void work_groups_give_what_c_gets(void **state)
{
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint32_t i = 0; i < N_QUANTISED; i++) {
        uint32_t type = quantised_types[i], k = block_format(type)->items == 256 ? 1280 : 32 * 35;
        check_prefill(type, type, k, 1 + 17 * i, 40, GROUPS);
        check_decode(type, type, k, 1 + i % 7, 40, GROUPS, i % 2);
    }
}

/* A device may take no group of more than 128. */
static void small_groups_give_what_c_gets(void **state)
{
    uint32_t most = device.product_items;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    forget_programs();
    device.product_items = CLDEVICE_GROUP_ITEMS;
    for (uint32_t i = 0; i < N_QUANTISED; i++) {
        uint32_t type = quantised_types[i], k = block_format(type)->items == 256 ? 512 : 32 * 19;
        check_decode(type, type, k, 1 + i % 7, 40, GROUPS, i % 2);
    }
    forget_programs();
    device.product_items = most;
}

/* Runs of two types, whose border is no pair of panels; with types that are not quantised. */
static void types_may_be_mixed(void **state)
{
    static const uint32_t pairs[][2] = {{GGUF_TENSOR_Q5_0, GGUF_TENSOR_Q8_0},
                                        {GGUF_TENSOR_Q4_K, GGUF_TENSOR_Q6_K},
                                        {GGUF_TENSOR_F16, GGUF_TENSOR_Q4_0},
                                        {GGUF_TENSOR_Q4_1, GGUF_TENSOR_F32},
                                        {GGUF_TENSOR_BF16, GGUF_TENSOR_F16}};
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint32_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        check_prefill(pairs[i][0], pairs[i][1], 256, 13, 90, best_dot());
        check_decode(pairs[i][0], pairs[i][1], 256, 7, 90, best_dot(), true);
        check_prefill(pairs[i][0], pairs[i][1], 256, 100, 90, GROUPS);
        check_decode(pairs[i][0], pairs[i][1], 256, 5, 90, GROUPS, true);
    }
}

static void panels_cost_what_the_file_costs(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_QUANTISED; i++) {
        const struct block_format *f = block_format(quantised_types[i]);
        double file = 16.0 * 1024 / f->items * f->bytes, packed = pack_panel_bytes(f, 1024);
        if (!(packed >= file && packed <= 1.037 * file))
            fail_msg("%s: %.0f bytes for %.0f", f->name, packed, file);
    }
}

static int open_device(void **state)
{
    (void)state;
    struct hill_why why = {0};
    if (cldevice_open(&device, getenv("HILL_DEVICE"), &why)) {
        print_message("%s\n", why.text);
        return -1;
    }
    declared_builtins_only();
    queue = cldevice_queue(&device, false, &why);
    return queue ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    forget_programs();
    clReleaseCommandQueue(queue);
    cldevice_close(&device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_in_prefill_is_what_c_gets),
        cmocka_unit_test(every_type_in_decode_is_what_c_gets),
        cmocka_unit_test(every_way_to_multiply_gives_the_same),
        cmocka_unit_test(the_largest_sums_fit_their_integers),
        cmocka_unit_test(work_groups_give_what_c_gets),
        cmocka_unit_test(small_groups_give_what_c_gets),
        cmocka_unit_test(types_may_be_mixed),
        cmocka_unit_test(panels_cost_what_the_file_costs),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
