/* A text file with a line for each step, which a resumed job continues. */
#ifndef PROGRAMS_STEP_LOG_H
#define PROGRAMS_STEP_LOG_H

#include <stdint.h>
#include <stdio.h>

#include <lockstep/types.h>

typedef struct step_log {
    FILE *file;
    const char *path;
    const char *asked_by; /* "log": the flag that asked for it, for words about it */
    const char *head;     /* what stands before the step's number in every line; "" is allowed */
} step_log;

/* A job that begins anew makes the file anew. One that goes on behind step `start` keeps the lines
 * up to there and drops the rest: those steps were lost with the job before and come again. What
 * cannot be done ends the program with words, here and below. Borrows the texts. */
void step_log_open(step_log *log, const char *path, const char *asked_by, const char *head,
                   int64_t start);
/* A line, with its newline; nothing when the log was not opened. */
void step_log_add(step_log *log, const char *format, ...) LS_PRINTF(2, 3);
void step_log_close(step_log *log); /* one that was not opened is allowed */

#endif
