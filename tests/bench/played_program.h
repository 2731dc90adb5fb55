/*
 * tests/bench/played_program.h - a shell script that stands in for another program. Failure: the
 * test fails.
 */
#ifndef TESTS_BENCH_PLAYED_PROGRAM_H
#define TESTS_BENCH_PLAYED_PROGRAM_H

/* FOLDER/name, that its owner may run. */
void put_program(const char *folder, const char *name, const char *text);

#endif
