/* The steward of a host: what the launcher's agent is under `lockstep run`, a thread in the process
 * of the host's local rank 0 under other launchers. It keeps the store (or passes requests on to
 * the one of rank 0's host), makes the board, watches the host's processes and gives the verdict.
 *
 * It cannot start or end processes: that is their launcher's. And it dies with local rank 0, which
 * the others of the host watch (join.c). */
#ifndef LS_JOB_BOOTSTRAP_HOST_AGENT_H
#define LS_JOB_BOOTSTRAP_HOST_AGENT_H

#include "base/env.h"
#include "job/bootstrap/detect.h"

typedef struct ls__host_agent ls__host_agent;

/* Listens and starts the thread; what goes wrong later the ranks are told at the meeting. */
ls_status ls__host_agent_start(const ls__env *env, const ls__found *found, uint64_t deadline_ns,
                               ls__host_agent **out);
/* Waits until the other ranks of this host have left too, and, on rank 0's host, the other hosts;
 * after a failure only a moment. NULL is allowed. */
void ls__host_agent_end(ls__host_agent *steward);

#endif
