/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep top`: the jobs of this user on this host, read from their boards (src/job/board.h).
 *
 *     top_find.c finds the boards among the descriptors of processes  ▸  top_print.c prints one
 *
 * A board is mapped read-only, and its ranks write to it meanwhile: each number and text is checked
 * or bounded when it is printed.
 */
#ifndef TOOLS_TOP_H
#define TOOLS_TOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "job/board.h"

#define TOP_JOBS_MAX 64

typedef struct top_job {
    const ls__board *board;
    size_t bytes;
    uint64_t file;    /* tells boards apart */
    int launcher;     /* the process that the user has started; it may run the job in a child */
    char program[96]; /* the command of its first rank; "" if that has ended */
} top_job;

/* Maps the boards of this user's jobs, by the processes of their launchers; returns how many. */
int top_find(top_job *out, int room);
void top_close(top_job *jobs, int count);

/* Whether the process is the job's launcher or one of its ranks. */
bool top_has_process(const top_job *job, int pid);
/* Why no board of a process can be shown, in words. */
void top_explain(int pid, char *out, size_t bytes);

/* "2 ranks on host h, launcher 1234: ./train" */
#define TOP_NAME_BYTES 256
void top_name(const top_job *job, char *out, size_t bytes);
/* On standard output, rows of `width` bytes at most; 0: of any. */
void top_print(const top_job *job, int width);

#endif
