/* SPDX-License-Identifier: Apache-2.0 */
/* The present activity of a rank, for reports: one record a rank, written by its user thread. The
 * launcher and the peers can read it, even after the rank died. A sequence lock guards it, whose
 * number is odd while the record is written. */
#ifndef LS_BASE_ACTIVITY_H
#define LS_BASE_ACTIVITY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum ls__phase {
    LS__PHASE_USER = 0, /* the user's own code */
    LS__PHASE_START = 1,
    LS__PHASE_DATA = 2,
    LS__PHASE_FORWARD = 3,
    LS__PHASE_BACKWARD = 4,
    LS__PHASE_OPTIMIZER = 5,
    LS__PHASE_COLLECTIVE = 6, /* blocked in a collective or a wait */
    LS__PHASE_CHECKPOINT = 7,
    LS__PHASE_EXIT = 8
} ls__phase;

#define LS__ACTIVITY_DETAIL_MAX 64
#define LS__ACTIVITY_FILE_MAX 48

typedef struct ls__activity {
    _Atomic uint32_t sequence; /* Sync: release by the writer, acquire by readers */
    _Atomic uint32_t phase;
    _Atomic uint64_t since_ns;
    /* How far training has come, so that a launcher can tell a failure that will come again: step
     * context's step + 1, and the optimizer's steps. 0: unknown. Both go on in a program that
     * resumes from a checkpoint. Sync: relaxed, each a number of its own. */
    _Atomic uint64_t step, updates;
    char detail[LS__ACTIVITY_DETAIL_MAX]; /* "fc1", "bucket 3" …; may be "" */
    char file[LS__ACTIVITY_FILE_MAX];     /* tail of the user's file name */
    int32_t line;
} ls__activity;

typedef struct ls__activity_copy {
    ls__phase phase;
    uint64_t since_ns;
    char detail[LS__ACTIVITY_DETAIL_MAX];
    char file[LS__ACTIVITY_FILE_MAX];
    int32_t line;
} ls__activity_copy;

/* Enters a phase on the current runtime (nothing without one) and returns the former one, which
 * ls__activity_leave restores. detail may be NULL. Cheap: no system call. */
ls__phase ls__activity_enter(ls__phase phase, const char *detail);
void ls__activity_leave(ls__phase former);

/* A consistent copy. False, with the last copy, when the writer died (or sleeps) within a write. */
bool ls__activity_read(const ls__activity *activity, ls__activity_copy *out);
const char *ls__phase_name(ls__phase phase); /* "the forward pass" … */

/* How far training has come, for the end of a message: " (after optimizer step 14)", or
 * " (in step 3, counted from 0)" while no optimizer of this library has stepped; "": not known. */
#define LS__PROGRESS_MAX 64
void ls__activity_progress(const ls__activity *activity, char out[LS__PROGRESS_MAX]);

#endif
