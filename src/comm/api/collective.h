/* SPDX-License-Identifier: Apache-2.0 */
/* Starting an operation from inside the library: what the public calls of comm.h are made of, and
 * what the reducer uses.
 *
 * One call, one record. Beside the public form it offers a callback: `done` runs exactly once when
 * the operation has ended, on whatever thread drives the engine, with no lock of the engine held.
 * It may start further operations on any group (so "when the control exchange is in, launch the
 * buckets" needs no thread), but it must not wait for one, and it must be short.
 *
 *   work  done   effect
 *   NULL  NULL   blocks until the operation has ended; returns its status
 *   set   -      returns at once; *work is waited for with ls_work_wait
 *   NULL  set    returns at once; the engine keeps the handle: `done` is the only notice
 *
 * A start that fails (bad arguments, a group that failed before) returns the error, never runs
 * `done` and leaves *work NULL. The record is described in core/collective.h.
 */
#ifndef LS_COMM_API_COLLECTIVE_H
#define LS_COMM_API_COLLECTIVE_H

#include "comm/core/collective.h"
#include "comm/core/group.h"

/* Errors: LS_ERR_INVALID for arguments, LS_ERR_STATE / LS_ERR_FORKED without a runtime, the
 * group's root cause when it failed before. */
ls_status ls__collective_start(ls_group *group, const ls__collective *args, ls_work **work);

/* collective_check.c: the arguments; `what` is the operation's name. */
ls_status ls__collective_check(const char *what, const ls_group *group, const ls__collective *args,
                               const ls_collective_options *options);

/* ---- operators.c: the user's reduction operators, and premultiplied sums --------------------- */

/* A copy of the user's operator with this value; its function is NULL if it does not exist. */
ls__operator ls__operator_of(ls__comm *comm, ls_reduce_op op);
/* Multiplies the input of a PREMUL_SUM: in place, or into a pack, which `args` uses then. */
ls_status ls__premultiply(ls_group *group, ls__collective *args, double factor);

/* ---- overlap.c ------------------------------------------------------------------------------- */

/* LS_ERR_INVALID if the buffers overlap in any other way than "in place". Both buffers are in use
 * on this rank, and their sizes were checked. */
ls_status ls__overlap_check(const char *what, const ls_group *group, const ls__collective *args);

#endif
