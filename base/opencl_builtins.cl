/*
 * opencl_builtins.cl - declarations of the built-in functions that the kernels call, for PoCL.
 *
 * PoCL puts clang's opencl-c.h in front of every program: 18 000 lines that declare every built-in
 * function for every type, read anew at each clBuildProgram, also when all kernels are in PoCL's
 * cache. With _OPENCL_H_ defined, the header's own guard, PoCL reads its header of types and
 * constants alone, and these lines declare what the kernels call (base/cldevice.c puts them in
 * front of the source). The declarations are those of OpenCL C 1.2 with the attributes of clang's
 * header: the compiler makes the same code. A function that is missing here costs time and nothing
 * else: the program is built with the whole header then. HILL_TEST_BUILTINS=declared in the
 * environment refuses such a program, =header takes the header for all. What was measured, and why
 * no cache of binaries: docs/decisions/pocl-header.md.
 */
#define BUILTIN __attribute__((overloadable))
#define VALUE   __attribute__((overloadable, const))
#define LOADS   __attribute__((overloadable, pure))

/* ---- work items ---------------------------------------------------------------------------- */

size_t VALUE get_global_id(uint);
size_t VALUE get_global_size(uint);
size_t VALUE get_group_id(uint);
size_t VALUE get_num_groups(uint);
size_t VALUE get_local_id(uint);
size_t VALUE get_local_size(uint);
void BUILTIN __attribute__((convergent)) barrier(cl_mem_fence_flags);

/* ---- arithmetic ---------------------------------------------------------------------------- */

#define ONE(name, type)   type VALUE name(type);
#define TWO(name, type)   type VALUE name(type, type);
#define THREE(name, type) type VALUE name(type, type, type);
#define FLOATS(many, name)                                                                         \
    many(name, float) many(name, float2) many(name, float4) many(name, float8) many(name, float16)
#define INTEGERS(many, name)                                                                       \
    many(name, int) many(name, uint) many(name, long) many(name, ulong) many(name, int4)           \
        many(name, uint4) many(name, int8) many(name, uint8) many(name, int16) many(name, uint16)  \
            many(name, long16) many(name, ulong16)

FLOATS(ONE, exp)
FLOATS(ONE, exp2)
FLOATS(ONE, fabs)
FLOATS(ONE, log2)
FLOATS(ONE, rint)
FLOATS(ONE, sqrt)
FLOATS(TWO, fmax)
FLOATS(THREE, fma)
FLOATS(THREE, clamp)
FLOATS(TWO, max)
FLOATS(TWO, min)
INTEGERS(ONE, clz)
INTEGERS(TWO, max)
INTEGERS(TWO, min)
INTEGERS(THREE, clamp)

#define SELECT(type, choice) type VALUE select(type, type, choice);
SELECT(int, int)
SELECT(uint, int)
SELECT(uint, uint)
SELECT(float, int)
SELECT(float, uint)
SELECT(int16, int16)
SELECT(uint16, int16)
SELECT(uint16, uint16)
SELECT(long16, long16)
SELECT(ulong16, long16)
SELECT(float16, int16)
SELECT(float16, uint16)

/* ---- conversions --------------------------------------------------------------------------- */

#define FROM(to, from, n) to##n VALUE convert_##to##n(from##n);
#define TO(to, n)                                                                                  \
    FROM(to, char, n)                                                                              \
    FROM(to, uchar, n)                                                                             \
    FROM(to, short, n)                                                                             \
    FROM(to, ushort, n)                                                                            \
    FROM(to, int, n)                                                                               \
    FROM(to, uint, n) FROM(to, long, n) FROM(to, ulong, n) FROM(to, float, n)
#define CONVERSIONS(n) TO(char, n) TO(int, n) TO(uint, n) TO(long, n) TO(ulong, n) TO(float, n)
CONVERSIONS()
CONVERSIONS(4)
CONVERSIONS(16)

/* ---- memory -------------------------------------------------------------------------------- */

#define MOVES(space, type, n)                                                                      \
    type##n LOADS vload##n(size_t, const space type *);                                            \
    void BUILTIN vstore##n(type##n, size_t, space type *);
#define MOVES_OF(space, type)                                                                      \
    MOVES(space, type, 2) MOVES(space, type, 4) MOVES(space, type, 8) MOVES(space, type, 16)
#define HALVES(space)                                                                              \
    float LOADS vload_half(size_t, const space half *);                                            \
    float2 LOADS vload_half2(size_t, const space half *);                                          \
    float16 LOADS vload_half16(size_t, const space half *);                                        \
    void BUILTIN vstore_half(float, size_t, space half *);
#define SPACE(space)                                                                               \
    MOVES_OF(space, char)                                                                          \
    MOVES_OF(space, uchar)                                                                         \
    MOVES_OF(space, short)                                                                         \
    MOVES_OF(space, ushort)                                                                        \
    MOVES_OF(space, int)                                                                           \
    MOVES_OF(space, uint)                                                                          \
    MOVES_OF(space, long) MOVES_OF(space, ulong) MOVES_OF(space, float) HALVES(space)
SPACE(__global)
SPACE(__local)
SPACE(__private)

#define ATOMICS(space, type)                                                                       \
    type BUILTIN atomic_add(volatile space type *, type);                                          \
    type BUILTIN atomic_inc(volatile space type *);                                                \
    type BUILTIN atomic_cmpxchg(volatile space type *, type, type);
ATOMICS(__global, int)
ATOMICS(__global, uint)
ATOMICS(__local, int)
ATOMICS(__local, uint)

#undef BUILTIN
#undef VALUE
#undef LOADS
#undef ONE
#undef TWO
#undef THREE
#undef FLOATS
#undef INTEGERS
#undef SELECT
#undef FROM
#undef TO
#undef CONVERSIONS
#undef MOVES
#undef MOVES_OF
#undef HALVES
#undef SPACE
#undef ATOMICS
