/*
 * decode_product.cl - products of a few rows with a weight matrix (decode): a panel of 16 outputs
 * times every row. Follows product.cl, which has the tensor types.
 *
 * Rows are x [n][stride], F32, and for quantised panels what quantise() made of them, q
 * [n][QUANT_STRIDE] words. A panel is read once for all rows, four rows at a time; each row has
 * sums of its own, whose order does not depend on how many rows there are, nor on which one it is.
 */
/* One panel of 16 outputs: X(i) . w */
#define PANEL_PRODUCT(LOAD, X)                                                                     \
    float16 a = (float16)(0.0f), b = a, c = a, d = a;                                              \
    size_t i = 0,                                                                                  \
           whole = k & ~3u; /* 64 bits: 32 would cost an addition and a shift for each row */      \
    for (; i < whole; i += 4) {                                                                    \
        a = fma((float16)(X(i)), LOAD(i, w), a);                                                   \
        b = fma((float16)(X(i + 1)), LOAD(i + 1, w), b);                                           \
        c = fma((float16)(X(i + 2)), LOAD(i + 2, w), c);                                           \
        d = fma((float16)(X(i + 3)), LOAD(i + 3, w), d);                                           \
    }                                                                                              \
    for (; i < k; i++)                                                                             \
        a = fma((float16)(X(i)), LOAD(i, w), a);                                                   \
    return (a + b) + (c + d);
#define PLAIN(i)  x[i]
#define SCALED(i) x[i] * g[i]

#define DEFINE_ROW(NAME, TYPE, LOAD)                                                               \
    static float16 plain_##NAME##_1(__global const float *x, __global const TYPE *w, uint k)       \
    {                                                                                              \
        PANEL_PRODUCT(LOAD, PLAIN)                                                                 \
    }                                                                                              \
    static float16 scaled_##NAME##_1(__global const float *x, __global const float *g,             \
                                     __global const TYPE *w, uint k)                               \
    {                                                                                              \
        PANEL_PRODUCT(LOAD, SCALED)                                                                \
    }

/*
 * The same of several rows of x, `stride` apart: a weight is loaded and widened once for them. x
 * times g is computed for some places at a time; x and g are padded. Weights `ahead` of these are
 * called to the cache: the next panel's, while this one's are there already.
 */
#define PREFETCH_WEIGHTS(p)                                                                        \
    PREFETCH(p);                                                                                   \
    PREFETCH((p) + 32);
#if WIDE_VECTORS
#define ROW_CHAINS(r) float16 a##r = (float16)(0.0f), b##r = a##r, c##r = a##r, d##r = a##r;
#define ROW_FOUR(r, X, i)                                                                          \
    a##r = fma((float16)(X(r, i)), w0, a##r);                                                      \
    b##r = fma((float16)(X(r, i + 1)), w1, b##r);                                                  \
    c##r = fma((float16)(X(r, i + 2)), w2, c##r);                                                  \
    d##r = fma((float16)(X(r, i + 3)), w3, d##r);
#define ROW_END(r)            y[r] = (a##r + b##r) + (c##r + d##r);
#define PLAIN_ROW(r, i)       x[(r) * stride + (i)]
#define SCALED_ROW(r, i)      xs[r][(i) - base]
#define SCALED_ROW_TAIL(r, i) x[(r) * stride + (i)] * g[i]
#define SCALE_ROW(r)                                                                               \
    vstore16(vload16(0, x + (r)*stride + base) * vload16(0, g + base), 0, xs[r]);
#define ROW_TAIL(r, X)        a##r = fma((float16)(X(r, i)), w0, a##r);

#define EACH_OF_2(DO, ...) DO(0, ##__VA_ARGS__) DO(1, ##__VA_ARGS__)
#define EACH_OF_4(DO, ...) EACH_OF_2(DO, ##__VA_ARGS__) DO(2, ##__VA_ARGS__) DO(3, ##__VA_ARGS__)

#define DEFINE_ROWS(N, NAME, TYPE, LOAD)                                                           \
    static void plain_##NAME##_##N(__global const float *x, size_t stride, __global const TYPE *w, \
                                   uint k, size_t ahead, float16 *y)                               \
    {                                                                                              \
        EACH_OF_##N(ROW_CHAINS) size_t i = 0, whole = k & ~3u;                                     \
        for (; i < whole; i += 4) {                                                                \
            float16 w0 = LOAD(i, w), w1 = LOAD(i + 1, w), w2 = LOAD(i + 2, w),                     \
                    w3 = LOAD(i + 3, w);                                                           \
            PREFETCH_WEIGHTS(w + ahead + i * 16)                                                   \
            EACH_OF_##N(ROW_FOUR, PLAIN_ROW, i)                                                    \
        }                                                                                          \
        for (; i < k; i++) {                                                                       \
            float16 w0 = LOAD(i, w);                                                               \
            EACH_OF_##N(ROW_TAIL, PLAIN_ROW)                                                       \
        }                                                                                          \
        EACH_OF_##N(ROW_END)                                                                       \
    }                                                                                              \
    static void scaled_##NAME##_##N(__global const float *x, size_t stride,                        \
                                    __global const float *g, __global const TYPE *w, uint k,       \
                                    size_t ahead, float16 *y)                                      \
    {                                                                                              \
        EACH_OF_##N(ROW_CHAINS) size_t i = 0, whole = k & ~3u;                                     \
        for (size_t base = 0; base < whole; base += 16) {                                          \
            float xs[N][16];                                                                       \
            EACH_OF_##N(SCALE_ROW) size_t end = min(base + 16, whole);                             \
            for (; i < end; i += 4) {                                                              \
                float16 w0 = LOAD(i, w), w1 = LOAD(i + 1, w), w2 = LOAD(i + 2, w),                 \
                        w3 = LOAD(i + 3, w);                                                       \
                PREFETCH_WEIGHTS(w + ahead + i * 16)                                               \
                EACH_OF_##N(ROW_FOUR, SCALED_ROW, i)                                               \
            }                                                                                      \
        }                                                                                          \
        for (; i < k; i++) {                                                                       \
            float16 w0 = LOAD(i, w);                                                               \
            EACH_OF_##N(ROW_TAIL, SCALED_ROW_TAIL)                                                 \
        }                                                                                          \
        EACH_OF_##N(ROW_END)                                                                       \
    }
#else
/* For 16 registers of 8 floats. Of each row's four sums, 4 / N (N rows: 2 or 4) are added up over
 * CHAIN_BLOCK places, then the next sums over these places again. */
#define CHAIN_BLOCK 64
#define DEFINE_ROWS_OF(FUNCTION, N, TYPE, LOAD, SCALED)                                            \
    static void FUNCTION(__global const float *x, size_t stride, __global const float *g,          \
                         __global const TYPE *w, uint k, size_t ahead, float16 *y)                 \
    {                                                                                              \
        float16 sums[4][N];                                                                        \
        float xs[N][CHAIN_BLOCK];                                                                  \
        for (int r = 0; r < N; r++)                                                                \
            sums[0][r] = sums[1][r] = sums[2][r] = sums[3][r] = (float16)(0.0f);                   \
        size_t whole = k & ~3u;                                                                    \
        for (size_t base = 0; base < whole; base += CHAIN_BLOCK) {                                 \
            size_t end = min(base + CHAIN_BLOCK, whole);                                           \
            for (size_t v = base / 16; SCALED && v < (end + 15) / 16; v++)                         \
                for (int r = 0; r < N; r++)                                                        \
                    vstore16(vload16(v, x + r * stride) * vload16(v, g), v - base / 16, xs[r]);    \
            _Pragma("nounroll") for (int chain = 0; chain < 4; chain += 4 / N)                     \
            {                                                                                      \
                float16 acc[4 / N][N];                                                             \
                _Pragma("unroll") for (int c = 0; c < 4 / N; c++)                                  \
                    _Pragma("unroll") for (int r = 0; r < N; r++)                                  \
                        acc[c][r] = sums[chain + c][r];                                            \
                for (size_t i = base; i < end; i += 4) {                                           \
                    if (chain == 0) {                                                              \
                        PREFETCH_WEIGHTS(w + ahead + i * 16)                                       \
                    }                                                                              \
                    _Pragma("unroll") for (int c = 0; c < 4 / N; c++)                              \
                    {                                                                              \
                        size_t at = i + chain + c;                                                 \
                        float16 weight = LOAD(at, w);                                              \
                        _Pragma("unroll") for (int r = 0; r < N; r++)                              \
                        {                                                                          \
                            float one = SCALED ? xs[r][at - base] : x[r * stride + at];            \
                            acc[c][r] = fma((float16)(one), weight, acc[c][r]);                    \
                        }                                                                          \
                    }                                                                              \
                }                                                                                  \
                _Pragma("unroll") for (int c = 0; c < 4 / N; c++)                                  \
                    _Pragma("unroll") for (int r = 0; r < N; r++)                                  \
                        sums[chain + c][r] = acc[c][r];                                            \
            }                                                                                      \
        }                                                                                          \
        for (size_t i = whole; i < k; i++)                                                         \
            for (int r = 0; r < N; r++) {                                                          \
                float one = SCALED ? x[r * stride + i] * g[i] : x[r * stride + i];                 \
                sums[0][r] = fma((float16)(one), LOAD(i, w), sums[0][r]);                          \
            }                                                                                      \
        for (int r = 0; r < N; r++)                                                                \
            y[r] = (sums[0][r] + sums[1][r]) + (sums[2][r] + sums[3][r]);                          \
    }
#define DEFINE_ROWS(N, NAME, TYPE, LOAD)                                                           \
    DEFINE_ROWS_OF(plain_of_##NAME##_##N, N, TYPE, LOAD, 0)                                        \
    DEFINE_ROWS_OF(scaled_##NAME##_##N, N, TYPE, LOAD, 1)                                          \
    static void plain_##NAME##_##N(__global const float *x, size_t stride, __global const TYPE *w, \
                                   uint k, size_t ahead, float16 *y)                               \
    {                                                                                              \
        plain_of_##NAME##_##N(x, stride, x, w, k, ahead, y);                                       \
    }
#endif

/* y [rows] of a panel of a float type; four rows at a time, for which the panel comes from memory
 * once and then from the cache, while memory gives the next one. */
#define DEFINE_FLOAT_PANEL(NAME, TYPE, LOAD)                                                       \
    DEFINE_ROW(NAME, TYPE, LOAD)                                                                   \
    DEFINE_ROWS(2, NAME, TYPE, LOAD)                                                               \
    DEFINE_ROWS(4, NAME, TYPE, LOAD)                                                               \
    static void plain_##NAME(__global const float *x, size_t stride, uint n_rows,                  \
                             __global const TYPE *w, uint k, float16 *y)                           \
    {                                                                                              \
        uint r = 0;                                                                                \
        for (; r + 4 <= n_rows; r += 4)                                                            \
            plain_##NAME##_4(x + r * stride, stride, w, k, r == 4 ? (size_t)16 * k : 0, y + r);    \
        for (; r + 2 <= n_rows; r += 2)                                                            \
            plain_##NAME##_2(x + r * stride, stride, w, k, r == 4 ? (size_t)16 * k : 0, y + r);    \
        if (r < n_rows)                                                                            \
            y[r] = plain_##NAME##_1(x + r * stride, w, k);                                         \
    }                                                                                              \
    static void scaled_##NAME(__global const float *x, size_t stride, uint n_rows,                 \
                              __global const float *g, __global const TYPE *w, uint k, float16 *y) \
    {                                                                                              \
        uint r = 0;                                                                                \
        for (; r + 4 <= n_rows; r += 4)                                                            \
            scaled_##NAME##_4(x + r * stride, stride, g, w, k, r == 4 ? (size_t)16 * k : 0,        \
                              y + r);                                                              \
        for (; r + 2 <= n_rows; r += 2)                                                            \
            scaled_##NAME##_2(x + r * stride, stride, g, w, k, r == 4 ? (size_t)16 * k : 0,        \
                              y + r);                                                              \
        if (r < n_rows)                                                                            \
            y[r] = scaled_##NAME##_1(x + r * stride, g, w, k);                                     \
    }
#if HAS(F32)
DEFINE_FLOAT_PANEL(f32, float, LOAD_F32)
#endif
#if HAS(F16)
DEFINE_FLOAT_PANEL(f16, half, LOAD_F16)
#endif
#if HAS(BF16)
DEFINE_FLOAT_PANEL(bf16, ushort, LOAD_BF16)
#endif

/* y [n_rows] of a panel of a quantised type and the rows at q. */
static void quant_panel(uint type, __global const uint *q, uint n_rows, __global const uchar *panel,
                        uint k, float16 *all)
{
    uint r = 0;
    for (; r + 4 <= n_rows; r += 4) {
        float16 *y = all + r;
        __global const uint *row = q + (size_t)r * QUANT_STRIDE;
        struct activations x = {row, 1, QUANT_STRIDE, row + k / 4, FIELDS, 1, QUANT_STRIDE};
        switch (type) {
            QUANT_CASES(4)
        default: break;
        }
    }
    for (; r < n_rows; r++) {
        float16 *y = all + r;
        __global const uint *row = q + (size_t)r * QUANT_STRIDE;
        struct activations x = {row, 1, QUANT_STRIDE, row + k / 4, FIELDS, 1, QUANT_STRIDE};
        switch (type) {
            QUANT_CASES(1)
        default: break;
        }
    }
}

/* y [n_rows]: a panel of w times every row of x, or, where the panel is quantised, of q. */
static void product(uint n_rows, __global const float *x, size_t stride, __global const uint *q,
                    __global const uint *matrix, uint k, uint panel, float16 *y)
{
    struct run run = find_run(matrix, panel);
    __global const uchar *p = panel_of(matrix, run, panel);
    switch (run.type) {
#if HAS(F32)
    case F32: plain_f32(x, stride, n_rows, (__global const float *)p, k, y); break;
#endif
#if HAS(F16)
    case F16: plain_f16(x, stride, n_rows, (__global const half *)p, k, y); break;
#endif
#if HAS(BF16)
    case BF16: plain_bf16(x, stride, n_rows, (__global const ushort *)p, k, y); break;
#endif
    default: quant_panel(run.type, q, n_rows, p, k, y);
    }
}

/* y [n_rows]: a panel of w times every row of x and the norm's weights g; q has that product
 * already. */
static void product_scaled(uint n_rows, __global const float *x, size_t stride,
                           __global const float *g, __global const uint *q,
                           __global const uint *matrix, uint k, uint panel, float16 *y)
{
    struct run run = find_run(matrix, panel);
    __global const uchar *p = panel_of(matrix, run, panel);
    switch (run.type) {
#if HAS(F32)
    case F32: scaled_f32(x, stride, n_rows, g, (__global const float *)p, k, y); break;
#endif
#if HAS(F16)
    case F16: scaled_f16(x, stride, n_rows, g, (__global const half *)p, k, y); break;
#endif
#if HAS(BF16)
    case BF16: scaled_bf16(x, stride, n_rows, g, (__global const ushort *)p, k, y); break;
#endif
    default: quant_panel(run.type, q, n_rows, p, k, y);
    }
}

/* ---- activations for quantised weights ---- */

static int add_ints(int16 v)
{
    int8 a = v.lo + v.hi;
    int4 b = a.lo + a.hi;
    return (b.x + b.z) + (b.y + b.w);
}

/* A block of 32 values as product.cl takes it. */
static void quantise_block(float16 a, float16 b, __global uint *words, __global uint *fields)
{
    int16 bits = max(MAGNITUDE(int16, a), MAGNITUDE(int16, b));
    int8 half_bits = max(bits.lo, bits.hi);
    int4 most = max(half_bits.lo, half_bits.hi);
    float largest = as_float(max(max(most.x, most.z), max(most.y, most.w)));
    float16 inverse = inverse_scale((float16)(largest));
    float scale = scale_of((float16)(largest)).x;
    int16 qa = convert_int16(rint(a * inverse)), qb = convert_int16(rint(b * inverse));
    int first = add_ints(qa), last = add_ints(qb);
    vstore16(convert_char16(qa), 0, (__global char *)words);
    vstore16(convert_char16(qb), 1, (__global char *)words);
    keep_fields(scale, first, last, fields, 1);
}

/* Some blocks of a row of x [n][stride], times g unless NULL, to q. */
static void quantise(__global const float *x, size_t stride, __global const float *g, uint k,
                     __global uint *q, uint task)
{
    uint r = task / quant_tasks_of_row(k), block = task % quant_tasks_of_row(k) * QUANT_BLOCKS;
    uint end = min(block + QUANT_BLOCKS, k / 32);
    x += r * stride;
    q += (size_t)r * QUANT_STRIDE;
    for (; block < end; block++) {
        float16 a = vload16(2 * block, x), b = vload16(2 * block + 1, x);
        if (g) {
            a *= vload16(2 * block, g);
            b *= vload16(2 * block + 1, g);
        }
        quantise_block(a, b, q + block * 8, q + k / 4 + block * FIELDS);
    }
}
