/* SPDX-License-Identifier: Apache-2.0 */
/* See common.h. Nothing here depends on training. */
#include "common.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/runtime.h>

/* ---- ending ------------------------------------------------------------------------------- */

void give_up(int code, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cli_let_rank_0_speak();
    cli_flush(stdout);
    (void)fprintf(stderr, "error: %s\n", text);
    exit(code);
}

void must(ls_status status)
{
    if (status < 0) {
        give_up(EXIT_FAILURE, "%s", ls_error_message());
    }
}

void read_options(const cli_command *command, int argc, char **argv)
{
    const int first = cli_parse(command, argc, argv);
    if (first < 0) {
        exit(cli_end(-1 - first));
    }
}

bool is_given(const char *flag, char *const *argv)
{
    const size_t length = strlen(flag);
    for (char *const *word = argv + 1; *word != NULL; word++) {
        if (strncmp(*word, "--", 2) == 0 && strncmp(*word + 2, flag, length) == 0 &&
            ((*word)[2 + length] == '\0' || (*word)[2 + length] == '=')) {
            return true;
        }
    }
    return false;
}

const char *duration(double seconds, char *out, size_t bytes)
{
    long long whole = seconds > 0.0 ? (long long)(seconds + 0.5) : 0;
    if (whole >= 3600) {
        (void)snprintf(out, bytes, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    } else {
        (void)snprintf(out, bytes, "%lld:%02lld", whole / 60, whole % 60);
    }
    return out;
}

void print_escaped(const uint8_t *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (bytes[i] == '\n' || (bytes[i] >= ' ' && bytes[i] <= '~')) {
            (void)putchar(bytes[i]);
        } else {
            (void)printf("\\x%02x", bytes[i]);
        }
    }
}
