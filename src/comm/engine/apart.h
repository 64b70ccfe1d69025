/* Ranks that take turns on one core while another is idle. The system notices after some
 * milliseconds, during which every small operation costs two switches of threads (1.3 us instead of
 * 0.3 with two ranks): a rank that yields again and again looks where the others are, and moves.
 * It is bound to nothing: what it may run on stays as it was. */
#ifndef LS_COMM_ENGINE_APART_H
#define LS_COMM_ENGINE_APART_H

#include "comm/group/group.h"

#define LS__APART_YIELDS 256 /* some 0.2 ms, if all of them give another rank its turn */

/* After that many yields of this rank's threads. */
void ls__apart_look(ls__comm *comm);
/* Whether rank `me` is to leave its core, cpu[me], for one that is not in taken[]: cores of as many
 * ranks as it would leave behind. Of those on one core the last goes. cpu[r] < 0: not known.
 * taken: room for `ranks`; its length. */
bool ls__apart_leaves(const int *cpu, int ranks, int me, int *taken, int *count);

#endif
