/* The host agent as a thread in the process of the host's local rank 0, under launchers other than
 * `lockstep run`. It cannot start or end processes, because their launcher does. It dies with local
 * rank 0, whose process the other ranks of the host watch (parent_watch.h). */
#ifndef LS_JOB_BOOTSTRAP_AGENT_THREAD_H
#define LS_JOB_BOOTSTRAP_AGENT_THREAD_H

#include "base/env.h"
#include "job/bootstrap/detect.h"

typedef struct ls__agent_thread ls__agent_thread;

/* Listens for the ranks of this host and starts the thread. Ranks learn of later failures from the
 * reply to their hello. */
ls_status ls__agent_thread_start(const ls__env *env, const ls__detected *detected,
                                 uint64_t deadline_ns, ls__agent_thread **out);
/* Waits until the other ranks of this host have left too, and, on rank 0's host, the other hosts;
 * after a failure only a moment. NULL is allowed. */
void ls__agent_thread_end(ls__agent_thread *t);

#endif
