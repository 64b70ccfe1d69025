/* Calls about files with a deadline.
 *
 * A system call about a file cannot be cancelled, and on a file system that hangs it never returns. A
 * patient table makes such calls on a thread of its own: one that has taken timeout_ms returns
 * -ETIMEDOUT, and so do all later ones, at once. The thread that hangs, and what it may still write to,
 * remain until the end of the process. */
#ifndef LS_BASE_PATIENT_H
#define LS_BASE_PATIENT_H

#include "base/env.h"

typedef struct ls__patient ls__patient;

/* For one thread at a time. Without memory or without a thread: NULL, and the real table serves. */
ls__patient *ls__patient_new(const ls__env *real, int64_t timeout_ms);
void ls__patient_free(ls__patient *patient); /* NULL is allowed */

/* The table: memory, clock and calls about files; no other entry is set. `real` for NULL. */
const ls__env *ls__patient_env(ls__patient *patient, const ls__env *real);

#endif
