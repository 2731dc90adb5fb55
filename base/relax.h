/*
 * base/relax.h - what a loop that looks again at once tells its CPU: the other thread of the core
 * may go first, and the loop takes less power. Nothing where there is no such instruction.
 */
#pragma once

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
