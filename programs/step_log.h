/* A text file with one line per step, which a resumed job continues. */
#ifndef PROGRAMS_STEP_LOG_H
#define PROGRAMS_STEP_LOG_H

#include <stdint.h>
#include <stdio.h>

#include <lockstep/types.h>

typedef struct step_log {
    FILE *file;
    const char *path;
    const char *asked_by; /* the option for this file, for error texts: "log" */
    const char *head;     /* the text before the step's number in every line; may be "" */
} step_log;

/* A job that begins at step 0 overwrites the file. A job that resumes after step `start` keeps the
 * lines up to that step and drops the others, because the steps after the checkpoint are repeated.
 * Here and below, a failure ends the program with an error text. Borrows the texts. */
void step_log_open(step_log *log, const char *path, const char *asked_by, const char *head,
                   int64_t start);
/* Writes a line and its newline; does nothing if the log was not opened. */
void step_log_add(step_log *log, const char *format, ...) LS_PRINTF(2, 3);
void step_log_close(step_log *log); /* does nothing if it was not opened */

#endif
