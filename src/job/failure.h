/* The record of a failure: what one host's agent knows about it. Of all records of a job one becomes
 * the root cause, which every rank and the user read (job/agent/root_cause.c). */
#ifndef LS_JOB_FAILURE_H
#define LS_JOB_FAILURE_H

#include <stdbool.h>
#include <stdint.h>

/* Kinds of failure: the lower explains the higher. Pinned: they travel between hosts. */
typedef enum ls__failure_kind {
    LS__FAILURE_OWN,        /* of the launcher: the program cannot be started, it was killed … */
    LS__FAILURE_MISMATCH,   /* a rank's own: another shape, a poisoned loss … */
    LS__FAILURE_SIGNAL,     /* a rank was killed: nobody does that to itself */
    LS__FAILURE_LOST,       /* a whole host is not there any more */
    LS__FAILURE_WAITED,     /* a deadline, an abort, a lost peer */
    LS__FAILURE_CODE,       /* an exit code */
    LS__FAILURE_UNFINISHED, /* status 0 without ls_finalize: the others wait for it */
    LS__FAILURE_NONE
} ls__failure_kind;

typedef struct ls__failure_record {
    ls__failure_kind kind;
    int culprit; /* rank of the world; -1: not a rank */
    int pid, signal, code;
    int job_code;     /* the job's exit code if this is the root cause */
    int status;       /* the ls_status that the rank noted; 0: it noted nothing */
    bool final;       /* not the ranks' doing, or the user's stop request: nothing to restart */
    bool stop;        /* the user's stop request: time to save is left */
    bool before_init; /* an exit without ls_init */
    uint64_t step, updates;
    char text[1024];
} ls__failure_record;

#endif
