/*
 * kv/mass_avx2.c - attention mass with AVX2 and F16C, bit-equal to the others; see mass_lanes.h.
 * On other machines it is plain C and is not chosen.
 */
#include "kv/mass_paths.h"

#if defined(__x86_64__) && !defined(__clang__) /* who has other pragmas */
#pragma GCC target("avx2,f16c")
#define MASS_HALVES 1
#else
#define MASS_HALVES 0
#endif
#define MASS_NAME "avx2"
#define MASS_OPS  kv_mass_avx2
#include "kv/mass_lanes.h"
