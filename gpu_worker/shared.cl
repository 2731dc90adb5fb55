/*
 * shared.cl - what kernels of several files need: sums over a vector's lanes, RMS norm's factor,
 * and the FFN's activation. The host puts this text in front of every program's source.
 *
 * LANES: how many outputs of a panel a work item has. 16: all of them, in vectors of 16 (a register
 * tile, for CPUs). 1: one of them, in a work group of GROUP_ITEMS items of which 16 side by side
 * share a panel (for GPUs). What both need is written once, over `floats`, `ints` and `uints`.
 *
 * ACTIVATION is model/arch.h's enum arch_activation. With a gate, the first product of the FFN
 * has the gate's panels, then as many of up's; one of each gives 16 values. Without a gate each
 * panel gives 16.
 */
#ifndef LANES
#define LANES 16
#endif
#if LANES == 1
typedef float floats;
typedef int ints;
typedef uint uints;
#define LANE                  (get_local_id(0) % 16)
#define LOAD_LANES(i, p)      (p)[16 * (size_t)(i) + LANE]
#define LOAD_HALF_LANES(i, p) vload_half(16 * (size_t)(i) + LANE, (p))
#define STORE_LANES(v, i, p)  (p)[16 * (size_t)(i) + LANE] = (v)
#define CONVERT(type)         convert_##type
#else
typedef float16 floats;
typedef int16 ints;
typedef uint16 uints;
#define LOAD_LANES(i, p)      vload16((i), (p))
#define LOAD_HALF_LANES(i, p) vload_half16((i), (p))
#define STORE_LANES(v, i, p)  vstore16((v), (i), (p))
#define CONVERT(type)         convert_##type##16
#endif

/* How many sums of F32, F16 and BF16 weights, and of attention, a tile of the prefill has in
 * registers at a time: SUM_ROWS of its ROWS rows times SUM_PANELS panels of 16. WIDE_VECTORS: the
 * device has vectors of 16 floats (AVX-512: 32 registers of them), else 0: of fewer (AVX2: 16
 * registers of 8). */
#ifndef WIDE_VECTORS
#error "WIDE_VECTORS is 0 or 1"
#elif WIDE_VECTORS
#define SUM_ROWS   ROWS
#define SUM_PANELS 2
#else
#define SUM_ROWS   (ROWS / 2)
#define SUM_PANELS 1
#endif
#if ROWS % 2
#error "a tile's rows have two halves"
#endif

static float add_lanes(float16 v)
{
    float8 a = v.lo + v.hi;
    float4 b = a.lo + a.hi;
    return (b.x + b.z) + (b.y + b.w);
}

static float max_lanes(float16 v)
{
    float8 a = fmax(v.lo, v.hi);
    float4 b = fmax(a.lo, a.hi);
    return fmax(fmax(b.x, b.z), fmax(b.y, b.w));
}

#ifdef GROUP_ITEMS /* of a work group */
#define ITEM   get_local_id(0)
#define SYNC   barrier(CLK_LOCAL_MEM_FENCE)
#define KERNEL __kernel __attribute__((reqd_work_group_size(GROUP_ITEMS, 1, 1))) void

/* The sum of a value of each of the group's first `items` work items, a power of two, for all of
 * the group; with 16 in the order of add_lanes. scratch [items] */
static float group_sum(float v, uint items, __local float *scratch)
{
    SYNC; /* what was there has been read */
    if (ITEM < items)
        scratch[ITEM] = v;
    for (uint n = items / 2; n > 0; n /= 2) {
        SYNC;
        if (ITEM < n)
            scratch[ITEM] += scratch[ITEM + n];
    }
    SYNC;
    return scratch[0];
}
#endif

/* To what FP16 can hold. NaN stays: clamp may hide it. */
static float saturate(float v)
{
    return v < -65504.0f ? -65504.0f : v > 65504.0f ? 65504.0f : v;
}

/* The magnitude's bits: as integers they have the magnitudes' order, with NaN above infinity, so
 * that the largest of a block that has a NaN is NaN. fmax would drop it. */
#define MAGNITUDE(type, v) (as_##type(v) & 0x7fffffff)

/* RMS norm's factor 1 / sqrt(mean(x^2) + eps) of k values, padded with zeros to whole vectors. */
static float rms_factor(__global const float *x, uint k, float eps)
{
    float16 sum = (float16)(0.0f);
    for (uint i = 0; i < (k + 15) / 16; i++) {
        float16 v = vload16(i, x);
        sum = fma(v, v, sum);
    }
    return 1.0f / sqrt(add_lanes(sum) / (float)k + eps);
}

#define SILU_GATED 0
#define GELU_GATED 1
#define RELU       2
#define GATED      (ACTIVATION != RELU)

static floats activate(floats gate, floats up)
{
#if ACTIVATION == GELU_GATED
    /* x (1 + tanh(u)) / 2 = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3) */
    floats u = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
    return gate / (1.0f + exp(-2.0f * u)) * up;
#elif ACTIVATION == SILU_GATED
    return gate / (1.0f + exp(-gate)) * up;
#else
    return up < (floats)(0.0f) ? (floats)(0.0f) : up; /* NaN stays: fmax would drop it */
#endif
}
