/* A rank's eye on the process that holds its host's steward: when that dies, nobody else would say
 * so on the board. A thread that sleeps until then. */
#ifndef LS_COMM_BOOTSTRAP_WATCH_H
#define LS_COMM_BOOTSTRAP_WATCH_H

#include "comm/board.h"

typedef struct ls__watch ls__watch;

/* `board` must outlive it; `launcher` is a literal. */
ls_status ls__watch_start(const ls__env *env, int pid, ls__board *board, const char *launcher,
                          ls__watch **out);
void ls__watch_end(ls__watch *watch); /* NULL is allowed */

#endif
