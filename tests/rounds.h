/*
 * tests/rounds.h - how often a random test tries.
 *
 * A random test draws from the same seeds in every configuration. The release build tries all of
 * them. A sanitizer makes a round up to twenty times as slow and looks at the same lines in each:
 * it tries a part. Of settings that differ in numbers alone, TSan takes one in n (TEST_STRIDE): the
 * threads do the same with each other in all of them.
 */
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_ROUNDS(n) (((n) + 3) / 4)
#else
#define TEST_ROUNDS(n) (n)
#endif

#ifdef __SANITIZE_THREAD__
#define TEST_STRIDE(n) (n)
#else
#define TEST_STRIDE(n) 1
#endif
