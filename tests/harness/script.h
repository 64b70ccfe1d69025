/* SPDX-License-Identifier: Apache-2.0 */
/* Shell scripts as tests of the command. */
#ifndef TEST_SCRIPT_H
#define TEST_SCRIPT_H

#include "says.h"

/* Runs a shell script in a new folder $D, removed afterwards; $L is the command, $E the folder of
 * the examples. `until_file F` waits for F to hold something, `until_gone PID …` for processes.
 * $LATE is a deadline in seconds, as short as this machine now allows, for tests in which it
 * passes. */
test_output script(const char *text);

/* The same behind `definitions` of shell functions and variables, with more time. $M and $W are the
 * member and the worker of tests/dist/launch. */
test_output script_with(const char *definitions, const char *text, int seconds);

/* Its status is `status` and its output holds `part`, which may be a format of the library
 * (says.h). */
void check_script(const char *text, int status, const char *part);

/* How often `part` stands in `text`. */
int count_of(const char *text, const char *part);

/* `part` stands `times` in what run(text) prints. */
void check_count(test_output (*run)(const char *text), const char *text, const char *part,
                 int times);

#endif
