/* SPDX-License-Identifier: Apache-2.0 */
/* See live.h. */
#include "tools/cli/live.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli/cli.h"

#define PIPE_SECONDS 2.0
#define TERMINAL_SECONDS 0.1

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Under the launcher a rank's stdout is a pipe; the launcher says whether its own is a terminal. */
static bool may_update_lines(FILE *out)
{
    const char *launcher = getenv("LOCKSTEP_LIVE");
    return isatty(fileno(out)) == 1 ||
           (out == stdout && launcher != NULL && strcmp(launcher, "1") == 0);
}

void live_start(live *line, FILE *out)
{
    *line = (live){.out = out, .terminal = may_update_lines(out), .shown = -PIPE_SECONDS};
}

void live_show(live *line, bool last, const char *format, ...)
{
    const double time = now(), least = line->terminal ? TERMINAL_SECONDS : PIPE_SECONDS;
    if (!last && time - line->shown < least) {
        return;
    }
    va_list args;
    va_start(args, format);
    const int width = vfprintf(line->out, format, args);
    va_end(args);
    if (line->terminal) {
        /* Blanks cover the rest of a longer line. */
        fprintf(line->out, "%*s\r", line->width > width ? line->width - width : 0, "");
        line->width = width;
        line->open = true;
    } else {
        fprintf(line->out, "\n");
    }
    line->shown = time;
    cli_flush(line->out);
}

void live_end(live *line)
{
    if (line->open) {
        fprintf(line->out, "\n");
        line->open = false;
        line->width = 0;
    }
}
