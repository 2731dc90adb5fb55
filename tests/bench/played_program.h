/*
 * tests/bench/played_program.h - a shell script that stands in for another program. Failure: the
 * test fails.
 */
#pragma once

/* FOLDER/name, that its owner may run. */
void put_program(const char *folder, const char *name, const char *text);
