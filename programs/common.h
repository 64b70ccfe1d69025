/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the programs: options, and ending with an error text. */
#ifndef PROGRAMS_COMMON_H
#define PROGRAMS_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lockstep/status.h>

#include "tools/cli/cli.h"
#include "tools/cli/live.h"

#define EXIT_USAGE CLI_WRONG_USE

/* As cli_parse; help and mistakes end the program. */
void read_options(const cli_command *command, int argc, char **argv);

/* Prints the reason to stderr and ends the program. If all ranks have the same reason, rank 0
 * prints it. */
_Noreturn void give_up(int code, const char *format, ...) LS_PRINTF(2, 3);
/* Gives up with the library's error text, without a source line, because the cause is the user's
 * data and not the program. */
void must(ls_status status);

/* Whether the command line, which ends with NULL, has --`flag`. */
bool is_given(const char *flag, char *const *argv);

/* "1:05", "2:03:04" */
const char *duration(double seconds, char *out, size_t bytes);

/* Bytes as text: printable ones and newlines as they are, others as \xNN. */
void print_escaped(const uint8_t *bytes, int64_t count);

#endif
