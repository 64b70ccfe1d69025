/* Shell scripts as tests of the command. */
#ifndef TEST_SCRIPT_H
#define TEST_SCRIPT_H

#include "test.h"

/* Runs a shell script in a new folder $D, removed afterwards; $L is the command, $E the folder of
 * the examples. `until_file F` waits for F to hold something, `until_gone PID …` for processes. */
test_output script(const char *text);

/* Its status is `status` and its output contains `part`. */
void check_script(const char *text, int status, const char *part);

/* How often `part` stands in `text`. */
int count_of(const char *text, const char *part);

#endif
