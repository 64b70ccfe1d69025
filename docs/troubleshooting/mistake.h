/* SPDX-License-Identifier: Apache-2.0 */
/* What the MPI and the Lockstep program share: two ranks, rank 1 makes the mistake.
 *
 *     PROGRAM MODE FOLDER
 *
 * FOLDER/pid.R holds each rank's process number; FOLDER/fault is made at the moment of the mistake,
 * so that `reproduce` can tell how long it took until everybody had ended. Lines that begin with
 * SILENT are results of a call that was wrong and returned success.
 */
#ifndef MISTAKE_H
#define MISTAKE_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { COUNT = 1000 };

static const char *mode = "", *folder = ".";

static inline int is(const char *name)
{
    return strcmp(mode, name) == 0;
}

static inline int is_one_of(const char *const *names)
{
    while (*names != NULL && !is(*names)) {
        names++;
    }
    return *names != NULL;
}

static inline void write_file(const char *name, int number)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wx");
    if (file != NULL) {
        fprintf(file, "%d\n", number);
        fclose(file);
    }
}

static inline void note_pid(int rank)
{
    char name[32];
    snprintf(name, sizeof name, "pid.%d", rank);
    write_file(name, (int)getpid());
}

static inline void note_fault(void)
{
    write_file("fault", 0);
}

/* What is left of a wrong call that reported no error. */
static inline void tell_silent(int rank, const char *call, double first, double last)
{
    printf("SILENT: rank %d: %s returned success; its first element is %g, its last %g\n", rank,
           call, first, last);
    fflush(stdout);
}

/* A bad pointer, which the compiler does not see. */
static inline void write_to_nowhere(void)
{
    int *volatile nowhere = NULL;
    *nowhere = 1;
}

/* Ends this process as `mode` says; returns for other modes. A second passes first, so that the
 * other rank is inside the all-reduce that this one should have joined. */
static inline void end_as_told(void)
{
    static const char *const ends[] = {"kill", "stop", "exit0", "exit3", "abort", "segfault", NULL};
    if (!is_one_of(ends)) {
        return;
    }
    sleep(1);
    note_fault();
    if (is("kill")) {
        raise(SIGKILL);
    } else if (is("stop")) {
        raise(SIGSTOP);
    } else if (is("exit0")) {
        _exit(0);
    } else if (is("exit3")) {
        _exit(3);
    } else if (is("abort")) {
        abort();
    } else if (is("segfault")) {
        write_to_nowhere();
    }
}

#endif
