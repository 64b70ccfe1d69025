/* SPDX-License-Identifier: Apache-2.0 */
/* Bootstrap methods that have a file of their own. LS_IN_PROGRESS: the method does not apply. */
#ifndef LS_JOB_BOOTSTRAP_METHODS_H
#define LS_JOB_BOOTSTRAP_METHODS_H

#include "base/env.h"
#include "job/board.h"
#include "job/bootstrap/bootstrap.h"
#include "job/bootstrap/detect.h"
#include "job/store/store.h"

ls_status ls__bootstrap_others(const ls__env *env, int64_t timeout_ms, ls__boot *out);
ls_status ls__bootstrap_launcher(const ls__env *env, int64_t timeout_ms, ls__boot *out);
/* Records the error that is set on the place of a rank that could not join. */
void ls__boot_record_failure(const ls__env *env, ls__board_rank *place, ls_status status);

/* ---- parent_watch.c -------------------------------------------------------------------------- */

/* Watches the process of local rank 0, which holds this host's agent, for another rank of the host.
 * If it dies, nobody else can record the failure on the board. A thread that sleeps until then. */
typedef struct ls__parent_watch ls__parent_watch;

/* `board` must outlive it; `launcher` is a literal. */
ls_status ls__parent_watch_start(const ls__env *env, int pid, ls__board *board,
                                 const char *launcher, ls__parent_watch **out);
void ls__parent_watch_end(ls__parent_watch *watch); /* NULL is allowed */

/* ---- agent_thread.c -------------------------------------------------------------------------- */

/* The host agent as a thread in the process of the host's local rank 0, under launchers other than
 * `lockstep run`. It cannot start or end processes, because their launcher does. It dies with local
 * rank 0, whose process the other ranks of the host watch (parent_watch.c). */
typedef struct ls__agent_thread ls__agent_thread;

/* Listens for the ranks of this host and starts the thread. Ranks learn of later failures from the
 * reply to their hello. */
ls_status ls__agent_thread_start(const ls__env *env, const ls__detected *detected,
                                 uint64_t deadline_ns, ls__agent_thread **out);
/* Waits until the other ranks of this host have left too, and, on rank 0's host, the other hosts;
 * after a failure only a moment. NULL is allowed. */
void ls__agent_thread_end(ls__agent_thread *t);

#endif
