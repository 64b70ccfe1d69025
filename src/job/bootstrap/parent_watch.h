/* Watches the process of local rank 0, which holds this host's agent, for another rank of the host.
 * If it dies, nobody else can record the failure on the board. A thread that sleeps until then. */
#ifndef LS_JOB_BOOTSTRAP_PARENT_WATCH_H
#define LS_JOB_BOOTSTRAP_PARENT_WATCH_H

#include "job/board.h"

typedef struct ls__parent_watch ls__parent_watch;

/* `board` must outlive it; `launcher` is a literal. */
ls_status ls__parent_watch_start(const ls__env *env, int pid, ls__board *board,
                                 const char *launcher, ls__parent_watch **out);
void ls__parent_watch_end(ls__parent_watch *watch); /* NULL is allowed */

#endif
