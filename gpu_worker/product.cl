/*
 * product.cl - a panel of a weight matrix times rows of activations, for every tensor type. Put
 * before the kernels of prefill and decode, which all compute from the same packed weights, with
 * register tiles (LANES 16) and with work groups (LANES 1, see shared.cl) alike.
 * -D TYPES: a bit for each type that the model has. X_SPACE: where quantised activations lie.
 * X_QUADS: a row's words lie side by side, in fours that begin at 16 bytes.
 * PREFETCHES: the device is a CPU; a GPU's compiler may know the builtin and refuse its pointers.
 *
 * A panel is 16 outputs side by side, as gpu_worker/pack.h lays them out. F32, F16 and BF16 are
 * computed in F32. A quantised type is computed from its codes, in one rounding that the model did
 * not ask for: ACTIVATIONS BECOME INT8 IN BLOCKS OF 32 VALUES WITH AN F32 SCALE, d = max|x| / 127,
 * q = x * (127 / max|x|) to the nearest even. Then for each block of 32, in order,
 *     sum += (scale * (float)(codes - zero) . q) * d
 *     sum += min * (d * (float)(q added up))
 * an exact integer dot product of 16 or 32 values, then F32: one product for each scale, one fma
 * for each line,
 * so a result depends on its row and its panel alone, and is the same bits whichever way the
 * integers are multiplied: HILL_DOT 3 (AVX512-VNNI), 2 (AVX512BW), 1 (AVX2; with LANES 1 NVIDIA's
 * dp4a), 0 (plain OpenCL C); where a way is not there, the next lower one is taken.
 */
#ifndef __has_builtin
#define __has_builtin(name) 0
#endif
#define INLINE static inline __attribute__((always_inline))

/* Numbers of GGUF's types. */
#define F32    0
#define F16    1
#define Q4_0   2
#define Q4_1   3
#define Q5_0   6
#define Q5_1   7
#define Q8_0   8
#define Q2_K   10
#define Q3_K   11
#define Q4_K   12
#define Q5_K   13
#define Q6_K   14
#define IQ4_NL 20
#define IQ4_XS 23
#define BF16   30
#define HAS(type)      ((TYPES) >> (type) & 1u)
#define IS_FLOAT(type) ((type) == F32 || (type) == F16 || (type) == BF16)

/* A matrix begins with its runs of panels of one type: their number, 3 words, then for each run its
 * first panel, type, where its panels begin and how far they are apart, both in units of 64 bytes.
 */
struct run {
    uint first_panel, type, offset, stride;
};

static struct run find_run(__global const uint *matrix, uint panel)
{
    __global const struct run *runs = (__global const struct run *)(matrix + 4);
    uint i = matrix[0] - 1;
    while (i > 0 && runs[i].first_panel > panel)
        i--;
    return runs[i];
}

static __global const uchar *panel_of(__global const uint *matrix, struct run run, uint panel)
{
    return (__global const uchar *)matrix +
           ((size_t)run.offset + (size_t)(panel - run.first_panel) * run.stride) * 64;
}

/* Quantised weights are unpacked by so many instructions that a processor does not look as far
 * ahead as memory is away. Past the end of a matrix this is harmless. */
#define AHEAD_BYTES 1024
/* LEVEL2: into the second-level cache, which can wait for more lines at a time than the first. */
#if defined(PREFETCHES) && __has_builtin(__builtin_prefetch)
#define PREFETCH(p)        __builtin_prefetch((p), 0, 3)
#define PREFETCH_LEVEL2(p) __builtin_prefetch((p), 0, 2)
#else
#define PREFETCH(p)
#define PREFETCH_LEVEL2(p)
#endif
#define PREFETCH_AHEAD(p, bytes)                                                                   \
    _Pragma("unroll") for (uint line = 0; line < (bytes); line += 64)                              \
        PREFETCH((__global const uchar *)(p) + AHEAD_BYTES + line);

#define LOAD_F32(i, p) LOAD_LANES((i), (p))
#if LANES == 16 && defined(__AVX512F__) && __has_builtin(__builtin_ia32_vcvtph2ps512_mask)
typedef short halves16 __attribute__((__vector_size__(32)));
typedef float floats16 __attribute__((__vector_size__(64)));
/* one instruction, where vload_half16 takes three */
INLINE float16 load_f16(size_t i, __global const half *p)
{
    halves16 h = __builtin_astype(vload16(i, (__global const short *)p), halves16);
    floats16 zero = __builtin_astype((float16)(0.0f), floats16);
    return __builtin_astype(__builtin_ia32_vcvtph2ps512_mask(h, zero, (unsigned short)0xffff, 4),
                            float16);
}
#define LOAD_F16(i, p) load_f16((i), (p))
#else
#define LOAD_F16(i, p) LOAD_HALF_LANES((i), (p))
#endif
#if LANES == 16
#define AS_FLOATS(v) as_float16(v)
#else
#define AS_FLOATS(v) as_float(v)
#endif
#define LOAD_BF16(i, p) AS_FLOATS(CONVERT(uint)(LOAD_LANES((i), (p))) << 16)

/* ---- dot products of four codes and four activations in each lane ---- */

#ifndef X_SPACE
#define X_SPACE __global
#endif

#if LANES == 1 && HILL_DOT == 1
INLINE int dot4(int sum, uint codes, uint x)
{
    /* PTX: bytes of codes unsigned, those of x signed */
    __asm__("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(codes), "r"(x));
    return sum;
}
#elif LANES == 1
INLINE int dot4(int sum, uint codes, uint x)
{
    int4 products = convert_int4(as_uchar4(codes)) * convert_int4(as_char4(x));
    return sum + (products.x + products.y) + (products.z + products.w);
}
#elif HILL_DOT == 3 && defined(__AVX512F__)
INLINE int16 dot4(int16 sum, uint16 codes, __global const uint *x)
{
    /* the compiler may take the processor for an older one, which is why this is no builtin */
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*x));
    return sum;
}
#elif HILL_DOT >= 2 && defined(__AVX512BW__) && __has_builtin(__builtin_ia32_pmaddubsw512)
#define PAIRS
typedef char bytes64 __attribute__((__vector_size__(64)));
typedef short words32 __attribute__((__vector_size__(64)));
INLINE words32 multiply_pairs(uint16 codes, uint16 x)
{
    return (words32)__builtin_ia32_pmaddubsw512(__builtin_astype(codes, bytes64),
                                                __builtin_astype(x, bytes64));
}
INLINE int16 add_pairs(words32 pairs, uint weight)
{
    words32 weights = __builtin_astype((uint16)(weight * 0x10001u), words32);
    return __builtin_astype(__builtin_ia32_pmaddwd512(pairs, weights), int16);
}
#elif HILL_DOT >= 1 && defined(__AVX2__) && __has_builtin(__builtin_ia32_pmaddubsw256)
#define PAIRS
typedef char bytes32 __attribute__((__vector_size__(32)));
typedef short words16 __attribute__((__vector_size__(32)));
typedef short words32 __attribute__((__vector_size__(64)));
INLINE int8 multiply_half(uint8 codes, uint8 x)
{
    return __builtin_astype(__builtin_ia32_pmaddubsw256(__builtin_astype(codes, bytes32),
                                                        __builtin_astype(x, bytes32)),
                            int8);
}
INLINE words32 multiply_pairs(uint16 codes, uint16 x)
{
    return __builtin_astype(
        (int16)(multiply_half(codes.lo, x.lo), multiply_half(codes.hi, x.hi)), words32);
}
INLINE int8 add_half(int8 pairs, uint weight)
{
    words16 weights = __builtin_astype((uint8)(weight * 0x10001u), words16);
    return __builtin_astype(
        __builtin_ia32_pmaddwd256(__builtin_astype(pairs, words16), weights), int8);
}
INLINE int16 add_pairs(words32 pairs, uint weight)
{
    int16 v = __builtin_astype(pairs, int16);
    return (int16)(add_half(v.lo, weight), add_half(v.hi, weight));
}
#else
INLINE int16 dot4(int16 sum, uint16 codes, __global const uint *x)
{
    char4 q = as_char4(*x);
    sum += convert_int16(codes & 255u) * (int)q.x;
    sum += convert_int16(codes >> 8 & 255u) * (int)q.y;
    sum += convert_int16(codes >> 16 & 255u) * (int)q.z;
    return sum + convert_int16(codes >> 24) * (int)q.w;
}
#endif

/* sum + the codes' products in w [8], from `from` to before `to`, with activations, which are
 * `stride` words apart. w is always the whole array: a pointer into it keeps the compiler from
 * holding it in registers (a fifth of a prompt's speed with VNNI). */
INLINE ints dot_words(ints sum, const uints *w, const int from, const int to, X_SPACE const uint *x,
                      size_t stride, const int bits)
{
#if LANES == 1 && defined(X_QUADS)
#pragma unroll
    for (int g = from; g < to; g += 4) {
        uint4 q = *(X_SPACE const uint4 *)(x + g);
        sum = dot4(dot4(dot4(dot4(sum, w[g], q.x), w[g + 1], q.y), w[g + 2], q.z), w[g + 3], q.w);
    }
#elif LANES == 1
#pragma unroll
    for (int g = from; g < to; g++)
        sum = dot4(sum, w[g], x[g * stride]);
#elif defined(PAIRS)
    /* Products are added in 16 bits first. A pair's sum is 2 * (2^bits - 1) * 127 at most: as many
     * pairs are added as stay below 2^15. Codes of 8 bits are taken as two of 4 bits. */
    const int most = bits == 8 || bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
    const int span = most < to - from ? most : to - from;
#pragma unroll
    for (int g = from; g < to; g += span) {
        words32 low, high;
#pragma unroll
        for (int i = g; i < g + span; i++) {
            uint16 q = (uint16)(x[i * stride]);
            words32 a = multiply_pairs(bits == 8 ? w[i] & 0x0f0f0f0fu : w[i], q);
            low = i == g ? a : low + a;
            if (bits == 8) {
                words32 b = multiply_pairs(w[i] >> 4 & 0x0f0f0f0fu, q);
                high = i == g ? b : high + b;
            }
        }
        sum += add_pairs(low, 1);
        if (bits == 8)
            sum += add_pairs(high, 16);
    }
#else
#pragma unroll
    for (int g = 0; g < 8; g++)
        if (g >= from && g < to)
            sum = dot4(sum, w[g], x + g * stride);
#endif
    return sum;
}

/* ---- codes ---- */

/* Levels + 128 of the IQ4 types. */
__constant uchar iq4_levels[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                   129, 141, 153, 166, 181, 197, 217, 241};

#if LANES == 16 && HILL_DOT >= 2 && defined(__AVX512BW__) &&                                       \
    __has_builtin(__builtin_ia32_pshufb512)
typedef char look64 __attribute__((__vector_size__(64)));
INLINE uint16 look_up(uint16 codes)
{
    const uint16 table = (uint16)((uint4)(0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u),
                                  (uint4)(0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u),
                                  (uint4)(0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u),
                                  (uint4)(0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u));
    return __builtin_astype(
        __builtin_ia32_pshufb512(__builtin_astype(table, look64), __builtin_astype(codes, look64)),
        uint16);
}
#elif LANES == 1
INLINE uint look_up(uint c)
{
    return iq4_levels[c & 15] | (uint)iq4_levels[c >> 8 & 15] << 8 |
           (uint)iq4_levels[c >> 16 & 15] << 16 | (uint)iq4_levels[c >> 24 & 15] << 24;
}
#else
INLINE uint16 look_up(uint16 codes)
{
    uint lanes[16];
    vstore16(codes, 0, lanes);
    for (int i = 0; i < 16; i++) {
        uint c = lanes[i];
        lanes[i] = iq4_levels[c & 15] | (uint)iq4_levels[c >> 8 & 15] << 8 |
                   (uint)iq4_levels[c >> 16 & 15] << 16 | (uint)iq4_levels[c >> 24 & 15] << 24;
    }
    return vload16(0, lanes);
}
#endif

/* The codes of 32 values: w[g] has those of values 4g .. 4g + 3, a byte each, in each lane. pack.h
 * says how they lie. */
INLINE void unpack(const int bits, const int table, __global const uint *codes, uints *w)
{
    const int low = bits == 8 ? 8 : bits >= 4 ? 4 : 2;
#pragma unroll
    for (int g = 0; g < 8; g++) {
        const int vectors = low, vector = g % vectors, shift = g / vectors * low;
        const uint mask = low == 8 ? 0xffffffffu : low == 4 ? 0x0f0f0f0fu : 0x03030303u;
        w[g] = LOAD_LANES(vector, codes) >> (uint)shift & mask;
        if (table)
            w[g] = look_up(w[g]);
        if (bits - low == 1)
            w[g] |= (LOAD_LANES(low, codes) >> (uint)g & 0x01010101u) << (uint)low;
        if (bits - low == 2)
            w[g] |= (LOAD_LANES(low + g % 2, codes) >> (uint)(g / 2 * 2) & 0x03030303u)
                    << (uint)low;
    }
}

/* How the scales of a type lie, between the codes. */
#define ONE_F16     0 /* of 32 values: d, with mins also the min, F16 */
#define BYTES       1 /* of 256 values: d, dmin; before each 32 scales and mins, bytes */
#define TWO_BYTES   2 /* of 256 values: d; before each 32 the scales of both halves, signed bytes */
#define TWO_NIBBLES                                                                                \
    3 /* of 256 values: d, dmin; before each 32 both halves' scales (low) and mins (high nibbles) */
#define ONE_BYTE    4 /* of 256 values: d; before each 32 scales, signed bytes */

/* Where quantised activations lie, in words: word g of a row has values 4g .. 4g + 3. Of each block
 * of 32 there are the scale, minus the sum of q (of all 32, of the first 16, of the last 16), and
 * the scale times the sum. */
#define FIELDS 5
enum field { SCALE, MINUS_SUM, MINUS_FIRST, MINUS_LAST, SCALED_SUM };
struct activations {
    X_SPACE const uint *words;
    size_t word_stride, row_stride;
    X_SPACE const uint *fields;
    size_t block_stride, field_stride, field_row_stride;
};

#define FIELD(f, r) at[(f) * x.field_stride + (r) * x.field_row_stride]

/* Before the codes of 32 values, their scales; before a block, d and dmin. */
#define SCALE_BYTES(kind)    ((kind) == ONE_F16 ? 0 : (kind) == ONE_BYTE ? 16 : 32)
#define PART_BYTES(kind, bits) (SCALE_BYTES(kind) + 64 * (bits))
#define HEAD_BYTES(sign)     ((sign) ? 64 : 32)

/* The next 32 values of a panel, which lie at `part`, are added to sums [rows]. d, dmin: of their
 * block. q, at: where the first row's words and fields of these values are. */
INLINE void add_part(const int rows, const int bits, const int zero, const int table,
                     const int kind, const int sign, floats d, floats dmin,
                     __global const uchar *part, X_SPACE const uint *words,
                     X_SPACE const uint *at, struct activations x, floats *sums)
{
    const bool halves = kind == TWO_BYTES || kind == TWO_NIBBLES;
    floats s0 = d, s1 = d, m0 = dmin, m1 = dmin;
    if (kind == BYTES) {
        s0 = d * CONVERT(float)(LOAD_LANES(0, part));
        m0 = dmin * CONVERT(float)(LOAD_LANES(1, part));
    } else if (kind == TWO_BYTES) {
        s0 = d * CONVERT(float)(LOAD_LANES(0, (__global const char *)part));
        s1 = d * CONVERT(float)(LOAD_LANES(1, (__global const char *)part));
    } else if (kind == TWO_NIBBLES) {
        uints a = CONVERT(uint)(LOAD_LANES(0, part)), b = CONVERT(uint)(LOAD_LANES(1, part));
        s0 = d * CONVERT(float)(a & 15u);
        s1 = d * CONVERT(float)(b & 15u);
        m0 = dmin * CONVERT(float)(a >> 4u);
        m1 = dmin * CONVERT(float)(b >> 4u);
    } else if (kind == ONE_BYTE) {
        s0 = d * CONVERT(float)(LOAD_LANES(0, (__global const char *)part));
    }
    uints w[8];
    unpack(bits, table, (__global const uint *)(part + SCALE_BYTES(kind)), w);
#pragma unroll
    for (int r = 0; r < rows; r++) {
        X_SPACE const uint *q = words + r * x.row_stride;
        ints first = (ints)(zero ? zero * (int)FIELD(halves ? MINUS_FIRST : MINUS_SUM, r) : 0);
        ints last = (ints)(zero ? zero * (int)FIELD(MINUS_LAST, r) : 0);
        const int code_bits = table ? 8 : bits;
        first = dot_words(first, w, 0, halves ? 4 : 8, q, x.word_stride, code_bits);
        if (halves)
            last = dot_words(last, w, 4, 8, q, x.word_stride, code_bits);
        floats t = CONVERT(float)(first) * s0;
        if (halves)
            t = fma(CONVERT(float)(last), s1, t);
        float scale = as_float(FIELD(SCALE, r));
        sums[r] = fma(t, (floats)(scale), sums[r]);
        if (sign && halves) {
            sums[r] = fma(m0, (floats)(-(float)(int)FIELD(MINUS_FIRST, r) * scale), sums[r]);
            sums[r] = fma(m1, (floats)(-(float)(int)FIELD(MINUS_LAST, r) * scale), sums[r]);
        } else if (sign) {
            sums[r] = fma(m0, (floats)(as_float(FIELD(SCALED_SUM, r))), sums[r]);
        }
    }
}

#if LANES == 16
/* y [rows] of a panel of a quantised type: a weight is unpacked once for all rows. */
INLINE void quant_product(const int rows, const int bits, const int zero, const int table,
                          const int kind, const int sign, __global const uchar *panel, uint k,
                          struct activations x, floats *y)
{
    const uint inner = kind == ONE_F16 ? 1 : 8;
    __global const uchar *at_weights = panel;
    X_SPACE const uint *words = x.words, *at = x.fields;
    floats sums[12]; /* the most rows of a call */
#pragma unroll
    for (int r = 0; r < rows; r++)
        sums[r] = (floats)(0.0f);
    for (uint block = 0; block < k / 32; block += inner) {
        floats d = LOAD_HALF_LANES(0, (__global const half *)at_weights), dmin = d;
        if (sign)
            dmin = LOAD_HALF_LANES(1, (__global const half *)at_weights) * (float)sign;
        at_weights += HEAD_BYTES(sign);
        for (uint i = 0; i < inner; i++) {
            if (rows <= 4) { /* more take so long that the next weights are there */
                PREFETCH_AHEAD(at_weights, PART_BYTES(kind, bits))
            }
            add_part(rows, bits, zero, table, kind, sign, d, dmin, at_weights, words, at, x, sums);
            at_weights += PART_BYTES(kind, bits);
            words += 8 * x.word_stride;
            at += x.block_stride;
        }
    }
#pragma unroll
    for (int r = 0; r < rows; r++)
        y[r] = sums[r];
}
#else
/* Of a panel of a quantised type those parts of 32 values are added to y [rows] that are this work
 * item's: from `first` on every step-th before k. x: of part `first`. */
INLINE void quant_parts(const int rows, const int bits, const int zero, const int table,
                        const int kind, const int sign, __global const uchar *panel, uint k,
                        uint first, uint step, struct activations x, floats *y)
{
    const uint inner = kind == ONE_F16 ? 1 : 8;
    const uint block_bytes = HEAD_BYTES(sign) + inner * PART_BYTES(kind, bits);
    X_SPACE const uint *words = x.words, *at = x.fields;
    for (uint part = first; part < k / 32; part += step) {
        __global const uchar *block = panel + (size_t)(part / inner) * block_bytes;
        floats d = LOAD_HALF_LANES(0, (__global const half *)block), dmin = d;
        if (sign)
            dmin = LOAD_HALF_LANES(1, (__global const half *)block) * (float)sign;
        add_part(rows, bits, zero, table, kind, sign, d, dmin,
                 block + HEAD_BYTES(sign) + part % inner * PART_BYTES(kind, bits), words, at, x, y);
        words += step * 8 * x.word_stride;
        at += step * x.block_stride;
    }
}
#endif

/* The cases of a switch over the type: DO(rows, bits, zero, table, kind, sign) for each type that
 * the model has. */
#if HAS(Q4_0)
#define CASE_Q4_0(rows, DO) case Q4_0: DO(rows, 4, 8, 0, ONE_F16, 0); break;
#else
#define CASE_Q4_0(rows, DO)
#endif
#if HAS(Q4_1)
#define CASE_Q4_1(rows, DO) case Q4_1: DO(rows, 4, 0, 0, ONE_F16, 1); break;
#else
#define CASE_Q4_1(rows, DO)
#endif
#if HAS(Q5_0)
#define CASE_Q5_0(rows, DO) case Q5_0: DO(rows, 5, 16, 0, ONE_F16, 0); break;
#else
#define CASE_Q5_0(rows, DO)
#endif
#if HAS(Q5_1)
#define CASE_Q5_1(rows, DO) case Q5_1: DO(rows, 5, 0, 0, ONE_F16, 1); break;
#else
#define CASE_Q5_1(rows, DO)
#endif
#if HAS(Q8_0)
#define CASE_Q8_0(rows, DO) case Q8_0: DO(rows, 8, 128, 0, ONE_F16, 0); break;
#else
#define CASE_Q8_0(rows, DO)
#endif
#if HAS(Q2_K)
#define CASE_Q2_K(rows, DO) case Q2_K: DO(rows, 2, 0, 0, TWO_NIBBLES, -1); break;
#else
#define CASE_Q2_K(rows, DO)
#endif
#if HAS(Q3_K)
#define CASE_Q3_K(rows, DO) case Q3_K: DO(rows, 3, 4, 0, TWO_BYTES, 0); break;
#else
#define CASE_Q3_K(rows, DO)
#endif
#if HAS(Q4_K)
#define CASE_Q4_K(rows, DO) case Q4_K: DO(rows, 4, 0, 0, BYTES, -1); break;
#else
#define CASE_Q4_K(rows, DO)
#endif
#if HAS(Q5_K)
#define CASE_Q5_K(rows, DO) case Q5_K: DO(rows, 5, 0, 0, BYTES, -1); break;
#else
#define CASE_Q5_K(rows, DO)
#endif
#if HAS(Q6_K)
#define CASE_Q6_K(rows, DO) case Q6_K: DO(rows, 6, 32, 0, TWO_BYTES, 0); break;
#else
#define CASE_Q6_K(rows, DO)
#endif
#if HAS(IQ4_NL)
#define CASE_IQ4_NL(rows, DO) case IQ4_NL: DO(rows, 4, 128, 1, ONE_F16, 0); break;
#else
#define CASE_IQ4_NL(rows, DO)
#endif
#if HAS(IQ4_XS)
#define CASE_IQ4_XS(rows, DO) case IQ4_XS: DO(rows, 4, 128, 1, ONE_BYTE, 0); break;
#else
#define CASE_IQ4_XS(rows, DO)
#endif
#define EACH_QUANT(rows, DO)                                                                       \
    CASE_Q4_0(rows, DO)                                                                            \
    CASE_Q4_1(rows, DO) CASE_Q5_0(rows, DO) CASE_Q5_1(rows, DO) CASE_Q8_0(rows, DO)                \
        CASE_Q2_K(rows, DO) CASE_Q3_K(rows, DO) CASE_Q4_K(rows, DO) CASE_Q5_K(rows, DO)            \
            CASE_Q6_K(rows, DO) CASE_IQ4_NL(rows, DO) CASE_IQ4_XS(rows, DO)

#if LANES == 16
#define WHOLE_PANEL(rows, bits, zero, table, kind, sign)                                           \
    quant_product(rows, bits, zero, table, kind, sign, panel, k, x, y)
#define QUANT_CASES(rows) EACH_QUANT(rows, WHOLE_PANEL)
#else
#define OWN_PARTS(rows, bits, zero, table, kind, sign)                                             \
    quant_parts(rows, bits, zero, table, kind, sign, panel, k, first, step, x, y)
#define QUANT_CASES(rows) EACH_QUANT(rows, OWN_PARTS)
#endif

/* ---- activations ---- */

/* 127 / max|x|, or 0 for a block that is taken for zeros. NaN stays. */
INLINE floats inverse_scale(floats largest)
{
    return select(127.0f / largest, (floats)(0.0f), largest <= 1e-30f);
}

INLINE floats scale_of(floats largest)
{
    return select(largest / 127.0f, (floats)(0.0f), largest <= 1e-30f);
}

/* A block's fields, `stride` apart, from its scale and the sums of its halves. */
static void keep_fields(float scale, int first, int last, __global uint *fields, uint stride)
{
    fields[SCALE * stride] = as_uint(scale);
    fields[MINUS_SUM * stride] = as_uint(-(first + last));
    fields[MINUS_FIRST * stride] = as_uint(-first);
    fields[MINUS_LAST * stride] = as_uint(-last);
    fields[SCALED_SUM * stride] = as_uint(scale * (float)(first + last));
}

/* In decode a task makes up to QUANT_BLOCKS blocks of a row int8. */
#ifdef QUANT_BLOCKS
static uint quant_tasks_of_row(uint k)
{
    return (k / 32 + QUANT_BLOCKS - 1) / QUANT_BLOCKS;
}
#endif
