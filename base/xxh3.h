/*
 * base/xxh3.h - XXH3 of some bytes by the widest vectors that the CPU has.
 *
 * What: the value of XXH3_64bits, which xxHash's library has once for the machine that it was
 * built for (x86-64: SSE2) and once for each newer one, to be chosen while the program runs. Pages
 * and entries of the cold pool are checked with it. Who calls it: pool, csd_agent. Concurrency: a
 * pure function. Elsewhere than on x86-64 it is XXH3_64bits.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
#define XXH3_WIDEST XXH3_64bits_dispatch
#else
#define XXH3_WIDEST XXH3_64bits
#endif

static inline uint64_t xxh3_64(const void *bytes, size_t n)
{
    return XXH3_WIDEST(bytes, n);
}
