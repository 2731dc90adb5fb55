/*
 * tests/csd_agent/xrt/mock_xrt.h - what tests ask of the stand-in for Xilinx' OpenCL runtime, which
 * is a shared object of its own (mock_xrt.c): names for dlsym.
 */
#pragma once

#define MOCK_XCLBIN_MAGIC "xclbin2" /* a file begins with it */

struct mock_xrt {
    const char *(*report)(void);      /* rules that were broken since reset, one a line */
    const char *(*calls)(void);       /* what was called, one word each, in order */
    unsigned (*live)(void);           /* objects that nobody has released */
    void (*refuse)(const char *call); /* that call fails from now on; NULL: none */
    void (*reset)(void);
};

extern const struct mock_xrt mock_xrt;
