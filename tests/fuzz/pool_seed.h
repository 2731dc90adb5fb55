/*
 * tests/fuzz/pool_seed.h - what the two bytes before the file in an input of fuzz_pool mean; shared
 * by the harness and the seed maker.
 */
#pragma once

#define FUZZ_POOL_SEAL_SUPERBLOCK 1u
#define FUZZ_POOL_SEAL_RECORDS    2u
#define FUZZ_POOL_SIZE_SHIFT      21 /* byte 1: the file's size in units of 2 MiB */
#define FUZZ_POOL_FINGERPRINT     0x68696c6cull
