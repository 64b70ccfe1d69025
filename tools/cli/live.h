/* SPDX-License-Identifier: Apache-2.0 */
/* Progress: one line that is updated in place on a terminal; in a pipe, a line every two
 * seconds. */
#ifndef TOOLS_LIVE_H
#define TOOLS_LIVE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct live {
    FILE *out;
    bool terminal;
    bool open;    /* the line on the terminal is not finished */
    double shown; /* when the last line was printed, in seconds */
    int width;    /* of the line on the terminal */
} live;

/* `out`: stdout or stderr. LOCKSTEP_LIVE=1 says that the launcher's stdout is a terminal. */
void live_start(live *line, FILE *out);
/* Shows the line if enough time has passed since the previous one, or if `last`. */
void live_show(live *line, bool last, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void live_end(live *line); /* ends the line, so that the next output starts on a new one */

#endif
