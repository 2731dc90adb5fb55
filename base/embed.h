/*
 * base/embed.h - put a file of the source tree (an OpenCL kernel) into the binary.
 *
 * HILL_EMBED(name, "gpu_worker/attention.cl") defines `const char name[]` (NUL-terminated) and
 * `const char name_end[]` (its end, the NUL not counted). The path is relative to the repository
 * root, which the Makefile passes to the assembler as an include folder. One use per name and
 * translation unit.
 */
#pragma once

#define HILL_EMBED(name, path)                                                                     \
    __asm__(".pushsection .rodata\n"                                                               \
            ".balign 16\n"                                                                         \
            ".global " #name "\n" #name ":\n"                                                      \
            ".incbin \"" path "\"\n"                                                               \
            ".global " #name "_end\n" #name "_end:\n"                                              \
            ".byte 0\n"                                                                            \
            ".popsection\n");                                                                      \
    extern const char name[];                                                                      \
    extern const char name##_end[]
