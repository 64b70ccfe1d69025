/* SPDX-License-Identifier: Apache-2.0 */
/* The failure record: a failure as the agent of one host observed it. Among all records of a job
 * one becomes the root cause, which every rank and the user read (job/agent/root_cause.c). */
#ifndef LS_JOB_FAILURE_H
#define LS_JOB_FAILURE_H

#include <stdbool.h>
#include <stdint.h>

/* Kinds of failure, in the order in which they explain each other: a lower kind is the cause of the
 * higher ones. Pinned, because they travel between hosts. */
typedef enum ls__failure_kind {
    LS__FAILURE_OWN,        /* of the launcher: the program cannot be started, it was killed … */
    LS__FAILURE_MISMATCH,   /* of the rank itself: another shape, a poisoned loss … */
    LS__FAILURE_SIGNAL,     /* a signal killed a rank */
    LS__FAILURE_LOST,       /* the connection to a whole host is lost */
    LS__FAILURE_WAITED,     /* a deadline, an abort, a lost peer */
    LS__FAILURE_CODE,       /* an exit code */
    LS__FAILURE_UNFINISHED, /* status 0 without ls_finalize, for which the other ranks wait */
    LS__FAILURE_NONE
} ls__failure_kind;

typedef struct ls__failure_record {
    ls__failure_kind kind;
    int failed_rank;       /* of the world; -1: the failure is not that of a rank */
    int pid, signal, code; /* of the failed rank's process; 0: unknown */
    int job_code;          /* the job's exit code if this is the root cause */
    int status;            /* the ls_status that the rank recorded; 0: it recorded none */
    bool final;            /* a restart would not help: the launcher's failure, or a stop request */
    bool stop;             /* a stop request: the ranks get time to save a checkpoint */
    bool before_init;      /* the rank exited without ls_init */
    uint64_t step, updates; /* how far training had come, as in ls__activity; 0: unknown */
    char text[1024];
} ls__failure_record;

#endif
