/*
 * csd_agent/score.cl - in-storage scoring: the integer score of keys, from their digests.
 *
 * Equals kv_score_reference (kv/score.h) bit for bit: int8 products, int32 sum per KV head, shifted by key and query
 * exponent, int64 combination over heads, 16-bit score. Integers only, so that no order of
 * additions matters. Source: paper 4.4 (raw inner product, the query held, the keys streamed).
 * Built with -D KV_HEADS, HEAD_DIM. One work-group scores the slots of one struct group; its items
 * share them out, so that a CPU device runs with one item (a plain loop) and others with many.
 */
#define KEY_DIMS (KV_HEADS * HEAD_DIM)

/* Product of one head. The int8 products fit in 16 bits (127 * 127), their sum needs 32. */
int head_product(const global char *key, const global char *query)
{
    int product = 0;
    uint j = 0;
#if HEAD_DIM >= 16
    int16 sums = (int16)(0);
    for (; j + 16 <= HEAD_DIM; j += 16)
        sums += convert_int16(convert_short16(vload16(0, key + j)) *
                              convert_short16(vload16(0, query + j)));
    int8 eight = sums.lo + sums.hi;
    int4 four = eight.lo + eight.hi;
    product = four.x + four.y + four.z + four.w;
#endif
    for (; j < HEAD_DIM; j++)
        product += (int)key[j] * (int)query[j];
    return product;
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

/*
 * digests     a batch as read from flash
 * groups      x: byte where the group's mantissas [n][KEY_DIMS] start, y: its exponents [n][KV_HEADS],
 *             z: n slots, w: index of the first score
 * query       mantissas [KEY_DIMS], then shifts [KV_HEADS]
 * importance  enum kv_importance: 0 the sum over heads, else the maximum
 * scores      [slots of the batch]
 */
kernel void score_keys(const global uchar *digests, const global uint4 *groups,
                       const global uchar *query, uint importance, global ushort *scores)
{
    uint4 group = groups[get_group_id(0)];
    const global char *mantissas = (const global char *)digests + group.x;
    const global uchar *exponents = digests + group.y;
    const global char *query_mantissas = (const global char *)query;
    const global uchar *shifts = query + KEY_DIMS;

    for (uint s = get_local_id(0); s < group.z; s += get_local_size(0)) {
        ulong sum = 0;
        long maximum = LONG_MIN;
        for (uint h = 0; h < KV_HEADS; h++) {
            int product = head_product(mantissas + s * KEY_DIMS + h * HEAD_DIM,
                                       query_mantissas + h * HEAD_DIM);
            uint shift = (uint)exponents[s * KV_HEADS + h] + shifts[h];
            /* unsigned, modulo 64: a damaged exponent gives the reference's wrong score */
            ulong term = (ulong)(long)product << (shift & 63u);
            sum += term;
            maximum = max(maximum, (long)term);
        }
        scores[group.w + s] = score16(importance == 0 ? (long)sum : maximum);
    }
}
