/*
 * csd_agent/xrt_extensions.h - the few names of Xilinx' OpenCL extensions that xrt_backend.c uses.
 *
 * Their header is in no Debian package, so values and layout are stated here, as in XRT's
 * CL/cl_ext_xilinx.h (github.com/Xilinx/XRT, src/include/1_2/CL). A buffer whose flags have
 * CL_MEM_EXT_PTR_XILINX takes a pointer to a cl_mem_ext_ptr_t in the place of a host pointer.
 */
#pragma once

#include <CL/cl.h>

/* Bit 31 of an int there, and so, in 64 bits, all above it. */
#define XRT_MEM_EXT_PTR ((cl_mem_flags)(cl_long)INT32_MIN)
/* Of its flags: the memory is seen through the card's PCIe window, and other devices write to
 * it. */
#define XRT_EXT_P2P_BUFFER (1u << 30)

struct xrt_mem_ext_ptr {
    cl_uint flags;    /* XRT_EXT_P2P_BUFFER, and the number of the kernel's argument */
    void *host_ptr;   /* NULL */
    cl_kernel kernel; /* that takes it: its port says in which memory bank it lies */
};

_Static_assert(sizeof(struct xrt_mem_ext_ptr) == 24, "as XRT has it");
