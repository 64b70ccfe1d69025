/* A rank's eye on the process that holds its host's steward: when that dies, nobody else would say
 * so on the board. A thread that sleeps until then. */
#ifndef LS_JOB_BOOTSTRAP_PARENT_WATCH_H
#define LS_JOB_BOOTSTRAP_PARENT_WATCH_H

#include "job/board.h"

typedef struct ls__parent_watch ls__parent_watch;

/* `board` must outlive it; `launcher` is a literal. */
ls_status ls__parent_watch_start(const ls__env *env, int pid, ls__board *board,
                                 const char *launcher, ls__parent_watch **out);
void ls__parent_watch_end(ls__parent_watch *watch); /* NULL is allowed */

#endif
