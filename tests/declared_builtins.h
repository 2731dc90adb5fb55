/*
 * tests/declared_builtins.h - PoCL builds the kernels without clang's header.
 *
 * What: with PoCL 3.1, where that is known to work, a test that calls declared_builtins_only fails
 * at a kernel that calls a function which base/opencl_builtins.cl does not declare. Elsewhere
 * nothing changes. Who calls it: tests that build the product's kernels, before they build one.
 */
#pragma once

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <CL/cl.h>

static inline bool is_pocl_3_1(void)
{
    cl_platform_id platforms[8];
    cl_uint n = 0;
    bool found = false;
    if (clGetPlatformIDs(8, platforms, &n) != CL_SUCCESS)
        return false;
    for (cl_uint p = 0; p < n && p < 8; p++) {
        char version[128] = "";
        clGetPlatformInfo(platforms[p], CL_PLATFORM_VERSION, sizeof version - 1, version, NULL);
        found |= strstr(version, "PoCL 3.1") != NULL;
    }
    return found;
}

static inline void declared_builtins_only(void)
{
    if (is_pocl_3_1())
        setenv("HILL_TEST_BUILTINS", "declared", 0);
}
