/*
 * csd_agent/score.cl - in-storage scoring: the integer score of keys, from their digests.
 *
 * Equals kv_score_reference (kv/score.h) bit for bit: int8 (keys: or int4) products, int32 sum per
 * term, shifted by key and query exponent, less an offset, int64 combination of terms, 16-bit
 * score. Integers only, so that no order of additions matters. Source: paper 4.4 (raw inner
 * product, the query held, the keys streamed). Digests lie in groups of sixteen tokens
 * (kv/group.h): words of four mantissas, or of eight nibbles, sixteen tokens' words side by side.
 * Built with -D KV_HEADS, QUERY_HEADS (of a KV head), HEAD_DIM, HEAD_WORDS, BITS (of a mantissa),
 * LANES, TASK and CAST, for one of these forms:
 *     score_keys, LANES 16   an item scores a group's tokens side by side in vectors, as CPUs like
 *     score_keys, LANES 1    a token an item, so that neighbouring items read neighbouring words
 *     score_task, TASK 1     one item scores all runs, as FPGAs like it: a loop that takes 64 bytes
 *                            a turn, each read once and in order; LANES is 16
 *     CAST 1, LANES 1        both of them over FP16 keys as they are, a token's values side by
 *                            side in vectors: each head's are made the digest that kv_digest_keys
 *                            makes, and scored
 * Of score_keys one work-group scores the slots of one run; its items share them out.
 */
#define GROUP_TOKENS 16
#define MANTISSAS_AT ((KV_HEADS * GROUP_TOKENS + 63) / 64 * 64)
#define GROUP_BYTES  (MANTISSAS_AT + KV_HEADS * HEAD_WORDS * GROUP_TOKENS * 4)

#if LANES == 16
#define VECTOR(type) type##16
#else
#define VECTOR(type) type
#endif

typedef VECTOR(int) ints;
typedef VECTOR(uint) uints;
typedef VECTOR(long) longs;
typedef VECTOR(ulong) ulongs;
typedef VECTOR(uchar) uchars;
#if LANES == 16
#define CONVERT_UINTS(x)  convert_uint16(x)
#define CONVERT_LONGS(x)  convert_long16(x)
#define CONVERT_ULONGS(x) convert_ulong16(x)
#define AS_INTS(x)        as_int16(x)
#define AS_LONGS(x)       as_long16(x)
#define AS_ULONGS(x)      as_ulong16(x)
#else
#define CONVERT_UINTS(x)  convert_uint(x)
#define CONVERT_LONGS(x)  convert_long(x)
#define CONVERT_ULONGS(x) convert_ulong(x)
#define AS_INTS(x)        as_int(x)
#define AS_LONGS(x)       as_long(x)
#define AS_ULONGS(x)      as_ulong(x)
#endif

/* Four signed bytes of each token's word with four of the query's. */
ints word_products(uints key, int4 query)
{
    return (AS_INTS(key << 24) >> 24) * query.x + (AS_INTS(key << 16) >> 24) * query.y +
           (AS_INTS(key << 8) >> 24) * query.z + (AS_INTS(key) >> 24) * query.w;
}

/* The same for the lower nibbles of its bytes, which are mantissas + 8. */
ints nibble_products(uints key, int4 query)
{
    return (AS_INTS(key & 15u) - 8) * query.x + (AS_INTS(key >> 8 & 15u) - 8) * query.y +
           (AS_INTS(key >> 16 & 15u) - 8) * query.z + (AS_INTS(key >> 24 & 15u) - 8) * query.w;
}

#if LANES == 16 && !TASK
/* Eight tokens' words by products of 16 bits, two at a time: on CPUs fewer instructions than of 32
 * bits. A pair's sum is at most 2 * 128 * 127, since a query has no -128. */
int8 pair_products(uint8 key, short16 query)
{
    short16 k = as_short16(key);
    short16 sums = (k << (short)8 >> (short)8) * (query << (short)8 >> (short)8) +
                   (k >> (short)8) * (query >> (short)8);
    int8 pairs = as_int8(sums);
    return (pairs << 16 >> 16) + (pairs >> 16);
}

ints words_products(uints key, char4 query)
{
    short16 q = as_short16((int8)as_int(query));
    return (ints)(pair_products(key.lo, q), pair_products(key.hi, q));
}
#endif

#if !CAST
/* A word of each token with the query's; a macro, since address spaces of the query differ. */
#if BITS == 8 && LANES == 16 && !TASK
#define PRODUCTS(key, query) words_products(key, (query)[0])
#elif BITS == 8
#define PRODUCTS(key, query) word_products(key, convert_int4((query)[0]))
#else
#define PRODUCTS(key, query)                                                                       \
    (nibble_products(key, convert_int4((query)[0])) +                                              \
     nibble_products((key) >> 4, convert_int4((query)[1])))
#endif
#define QUERY_WORDS (8 / BITS) /* for a word of keys */
#endif

/* in unsigned numbers, and with limits: damaged bytes give the reference's wrong score */
ulongs term_of(ints product, uchars exponent, uchar query_shift, ulong offset)
{
    uints shift = min(CONVERT_UINTS(exponent), 16u) + min(query_shift, (uchar)8);
    return (AS_ULONGS(CONVERT_LONGS(product)) << CONVERT_ULONGS(shift)) - offset;
}

/* Terms of a KV head (kv/score.h): its query heads, or one. */
uint terms_of_head(uint importance)
{
    return importance == 3 ? QUERY_HEADS : 1;
}

/* The parts of a query as devices take it (kv_query_send). */
#define TERM_BYTES (HEAD_WORDS * 32 / BITS)
struct query_parts {
    const global ulong *offsets;
    const global char *words;
    const global uchar *shifts;
};

struct query_parts parts_of(const global uchar *query, uint terms)
{
    struct query_parts parts;
    parts.offsets = (const global ulong *)query;
    parts.words = (const global char *)(query + terms * sizeof(ulong));
    parts.shifts = query + terms * (sizeof(ulong) + TERM_BYTES);
    return parts;
}

/* kv_score16: sign, exponent, 9 bits of mantissa; monotone. */
ushort score16(long value)
{
    ulong a = value < 0 ? (ulong)0 - (ulong)value : (ulong)value;
    uint magnitude = (uint)a;
    if (a >= 512) {
        uint e = 63u - (uint)clz(a);
        magnitude = ((e - 8u) << 9) | ((uint)(a >> (e - 9u)) & 511u);
    }
    return (ushort)(value < 0 ? 0x7fffu - magnitude : 0x8000u + magnitude);
}

#if LANES == 16
/* The first n of a group's, at most all of them. */
void write_scores(longs value, uint n, global ushort *scores)
{
    long values[GROUP_TOKENS];
    vstore16(value, 0, values);
    for (uint t = 0; t < GROUP_TOKENS && t < n; t++)
        scores[t] = score16(values[t]);
}
#endif

/*
 * digests     a batch as read from flash: digests, or (CAST) keys
 * runs        x: byte where the run's first group starts, y: its slots, z: index of its first score
 * query       from an 8-byte boundary on: offsets [terms], mantissas [terms][HEAD_WORDS][32 /
 *             BITS], shifts [terms]
 * importance  enum kv_importance: 0 the sum over terms, else the maximum; terms are KV heads, or
 *             (3) query heads
 * scores      [slots of the batch]
 * n_runs      of score_task; score_keys has a work-group for each run
 */
#if CAST
#define MANTISSA_MAX (BITS == 8 ? 127 : 7)
#define EXPONENT_MIN (BITS == 8 ? -10 : -6)
#define EXPONENT_MAX (EXPONENT_MIN + 16)
#define TOP_BITS     (BITS == 8 ? 6 : 2) /* MANTISSA_MAX is less than 2^(TOP_BITS + 1) */
/* its fraction in FP32: 127 is 1.984375 * 2^6, 7 is 1.75 * 2^2 */
#define TOP_FRACTION (BITS == 8 ? 0x7e0000 : 0x600000)

/* Sixteen values of a head from d on, as bits; behind its end there are zeros. */
ushort16 load_halfs(const global ushort *head, uint d)
{
    ushort rest[16];
    if (d + 16 <= HEAD_DIM)
        return vload16(0, head + d);
    for (uint i = 0; i < 16; i++)
        rest[i] = d + i < HEAD_DIM ? head[d + i] : 0;
    return vload16(0, rest);
}

int16 load_query(const global char *query, uint d)
{
    char rest[16];
    if (d + 16 <= HEAD_DIM)
        return convert_int16(vload16(0, query + d));
    for (uint i = 0; i < 16; i++)
        rest[i] = d + i < HEAD_DIM ? query[d + i] : 0;
    return convert_int16(vload16(0, rest));
}

/* Bits of magnitudes as they count: NaN 0, infinity the largest finite one. (Vectors on both sides:
 * oclgrind's min of a vector and a number is wrong.) */
uint16 magnitudes(ushort16 halfs)
{
    uint16 m = convert_uint16(halfs) & 0x7fffu;
    return min(select(m, (uint16)0, m > 0x7c00u), (uint16)0x7bffu);
}

/* In FP32, where none of them is denormal. */
float16 floats(uint16 m)
{
    return select(as_float16((m << 13) + (112u << 23)), convert_float16(m) * 0x1p-24f, m < 0x400u);
}

uint largest_of(const global ushort *head)
{
    uint16 most = 0;
    for (uint d = 0; d < HEAD_DIM; d += 16)
        most = max(most, magnitudes(load_halfs(head, d)));
    uint8 a = max(most.lo, most.hi);
    uint4 b = max(a.lo, a.hi);
    return max(max(b.x, b.y), max(b.z, b.w));
}

/* The least e with the magnitude <= MANTISSA_MAX * 2^e, as far as a byte goes. */
int exponent_of(uint magnitude)
{
    int bits = as_int(floats((uint16)magnitude).s0);
    int e = (bits >> 23) - 127 - TOP_BITS + ((bits & 0x7fffff) > TOP_FRACTION ? 1 : 0);
    return clamp(e, EXPONENT_MIN, EXPONENT_MAX);
}

/* Times a power of two is exact; rint rounds half to even. */
int head_cast_product(const global ushort *head, const global char *query, float scale)
{
    int16 sum = 0;
    for (uint d = 0; d < HEAD_DIM; d += 16) {
        ushort16 halfs = load_halfs(head, d);
        int16 m = min(convert_int16(rint(floats(magnitudes(halfs)) * scale)), (int16)MANTISSA_MAX);
        sum += select(m, -m, convert_int16(halfs) << 16) * load_query(query, d);
    }
    int8 a = sum.lo + sum.hi;
    int4 b = a.lo + a.hi;
    return b.x + b.y + b.z + b.w;
}

ushort cast_score(const global ushort *key, const global uchar *query, uint importance)
{
    const uint share = terms_of_head(importance);
    const struct query_parts parts = parts_of(query, KV_HEADS * share);
    ulong sum = 0;
    long maximum = LONG_MIN;
    for (uint h = 0; h < KV_HEADS; h++) {
        const global ushort *head = key + h * HEAD_DIM;
        int exponent = exponent_of(largest_of(head));
        for (uint t = h * share; t < (h + 1) * share; t++) {
            int product = head_cast_product(head, parts.words + t * TERM_BYTES,
                                            as_float((127 - exponent) << 23));
            ulong term = term_of(product, (uchar)(exponent - EXPONENT_MIN), parts.shifts[t],
                                 parts.offsets[t]);
            sum += term;
            maximum = max(maximum, (long)term);
        }
    }
    return score16(importance == 0 ? (long)sum : maximum);
}

#if TASK
__attribute__((reqd_work_group_size(1, 1, 1))) kernel void
score_task(const global uchar *digests, const global uint4 *runs, const global uchar *query,
           uint importance, global ushort *scores, uint n_runs)
{
    for (uint r = 0; r < n_runs; r++) {
        const global ushort *keys = (const global ushort *)(digests + runs[r].x);
        for (uint s = 0; s < runs[r].y; s++)
            scores[runs[r].z + s] =
                cast_score(keys + (ulong)s * KV_HEADS * HEAD_DIM, query, importance);
    }
}
#else
kernel void score_keys(const global uchar *digests, const global uint4 *runs,
                       const global uchar *query, uint importance, global ushort *scores)
{
    const uint4 run = runs[get_group_id(0)];
    const global ushort *keys = (const global ushort *)(digests + run.x);
    for (uint s = get_local_id(0); s < run.y; s += get_local_size(0))
        scores[run.z + s] = cast_score(keys + (ulong)s * KV_HEADS * HEAD_DIM, query, importance);
}
#endif
#elif TASK
#define EXPONENT_BEATS (MANTISSAS_AT / 64)
#define GROUP_BEATS    (GROUP_BYTES / 64)

/* Of each token of the group that streams past. */
struct group {
    uint exponents[EXPONENT_BEATS * 16];
    ints product[QUERY_HEADS]; /* of the head's terms */
    ulongs sum;
    longs maximum;
};

void add_term(struct group *group, uint head, ints product, bool first, uchar query_shift,
              ulong offset)
{
    uchars exponent = as_uchar16(vload4(head, group->exponents));
    ulongs term = term_of(product, exponent, query_shift, offset);
    group->sum = (first ? (ulongs)0 : group->sum) + term;
    group->maximum = first ? AS_LONGS(term) : max(group->maximum, AS_LONGS(term));
}

__attribute__((reqd_work_group_size(1, 1, 1))) kernel void
score_task(const global uchar *digests, const global uint4 *runs, const global uchar *query,
           uint importance, global ushort *scores, uint n_runs)
{
    char4 words[KV_HEADS * QUERY_HEADS * HEAD_WORDS * QUERY_WORDS];
    uchar shifts[KV_HEADS * QUERY_HEADS];
    ulong offsets[KV_HEADS * QUERY_HEADS];
    struct group group;
    const uint share = terms_of_head(importance), terms = KV_HEADS * share;
    const struct query_parts parts = parts_of(query, terms);

    for (uint w = 0; w < terms * HEAD_WORDS * QUERY_WORDS; w++)
        words[w] = ((const global char4 *)parts.words)[w];
    for (uint t = 0; t < terms; t++) {
        shifts[t] = parts.shifts[t];
        offsets[t] = parts.offsets[t];
    }
    for (uint r = 0; r < n_runs; r++) {
        uint4 run = runs[r];
        const global uints *beats = (const global uints *)(digests + run.x);
        uint n_beats = (run.y + GROUP_TOKENS - 1) / GROUP_TOKENS * GROUP_BEATS;
        uint slot = 0, position = 0, head = 0, word = 0; /* of the beat: in its group, its head */
        for (uint beat = 0; beat < n_beats; beat++) {
            uints key = beats[beat];
            if (position < EXPONENT_BEATS) {
                vstore16(key, position, group.exponents);
            } else {
                const char4 *with = words + (head * share * HEAD_WORDS + word) * QUERY_WORDS;
                for (uint t = 0; t < share; t++, with += HEAD_WORDS * QUERY_WORDS)
                    group.product[t] =
                        (word == 0 ? (ints)0 : group.product[t]) + PRODUCTS(key, with);
                word++;
            }
            position++;
            if (word == HEAD_WORDS) {
                for (uint t = 0; t < share; t++)
                    add_term(&group, head, group.product[t], head + t == 0,
                             shifts[head * share + t], offsets[head * share + t]);
                word = 0;
                head++;
            }
            if (head == KV_HEADS) {
                write_scores(importance == 0 ? AS_LONGS(group.sum) : group.maximum, run.y - slot,
                             scores + run.z + slot);
                slot += GROUP_TOKENS;
                position = 0;
                head = 0;
            }
        }
    }
}
#else
ints head_products(const global uchar *words, const global char4 *query)
{
    ints product = 0;
    for (uint w = 0; w < HEAD_WORDS; w++) {
        uints key = *(const global uints *)(words + w * GROUP_TOKENS * 4);
        product += PRODUCTS(key, query + w * QUERY_WORDS);
    }
    return product;
}

kernel void score_keys(const global uchar *digests, const global uint4 *runs,
                       const global uchar *query, uint importance, global ushort *scores)
{
    uint4 run = runs[get_group_id(0)];
    const uint share = terms_of_head(importance);
    const struct query_parts parts = parts_of(query, KV_HEADS * share);
    const global char4 *words = (const global char4 *)parts.words;

    for (uint s = get_local_id(0) * LANES; s < run.y; s += get_local_size(0) * LANES) {
        const global uchar *group = digests + run.x + s / GROUP_TOKENS * GROUP_BYTES;
        uint lane = s % GROUP_TOKENS;
        ulongs sum = 0;
        longs maximum = LONG_MIN;
        for (uint h = 0; h < KV_HEADS; h++) {
            uchars exponent = *(const global uchars *)(group + h * GROUP_TOKENS + lane);
            for (uint t = h * share; t < (h + 1) * share; t++) {
                ints product =
                    head_products(group + MANTISSAS_AT + (h * HEAD_WORDS * GROUP_TOKENS + lane) * 4,
                                  words + t * HEAD_WORDS * QUERY_WORDS);
                ulongs term = term_of(product, exponent, parts.shifts[t], parts.offsets[t]);
                sum += term;
                maximum = max(maximum, AS_LONGS(term));
            }
        }
        longs value = importance == 0 ? AS_LONGS(sum) : maximum;
#if LANES == 16
        write_scores(value, run.y - s, scores + run.z + s);
#else
        scores[run.z + s] = score16(value);
#endif
    }
}
#endif
