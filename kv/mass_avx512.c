/*
 * kv/mass_avx512.c - attention mass with AVX-512, bit-equal to the others; see mass_lanes.h.
 * On other machines it is plain C and is not chosen.
 */
#include "kv/mass_paths.h"

#if defined(__x86_64__) && !defined(__clang__) /* who has other pragmas */
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#define MASS_HALVES 2
#else
#define MASS_HALVES 0
#endif
#define MASS_NAME "avx512"
#define MASS_OPS  kv_mass_avx512
#include "kv/mass_lanes.h"
