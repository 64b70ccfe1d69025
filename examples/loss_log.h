/* A file with a line for each step: its number and the loss. */
#ifndef EXAMPLES_LOSS_LOG_H
#define EXAMPLES_LOSS_LOG_H

#include <stdint.h>
#include <stdio.h>

/* A job that begins anew makes the file anew. One that goes on behind step `start` keeps the lines
 * up to there and drops the rest: those steps were lost with the job before and come again. What
 * cannot be done ends the program with words. */
FILE *loss_log_open(const char *path, int64_t start);
void loss_log_add(FILE *log, const char *path, int64_t step, double loss);
void loss_log_close(FILE *log, const char *path); /* NULL is allowed */

#endif
