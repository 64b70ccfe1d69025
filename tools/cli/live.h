/* Progress: one line that is updated in place on a terminal; in a pipe, a line every two seconds. */
#ifndef TOOLS_LIVE_H
#define TOOLS_LIVE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct live {
    FILE *out;
    bool terminal;
    bool open;    /* an unfinished line stands on the terminal */
    double shown; /* when the last line was printed, in seconds */
    int width;    /* of the line on the terminal */
} live;

/* `out`: stdout or stderr. The launcher's LOCKSTEP_LIVE tells whether its own stdout is a terminal. */
void live_start(live *line, FILE *out);
/* `last`: shown even if the time since the line before is short. */
void live_show(live *line, bool last, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void live_end(live *line); /* what is printed next starts on a new line */

#endif
