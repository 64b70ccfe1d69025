/* Statistics of a reducer; see stats.c. */
#ifndef LS_REDUCE_STATS_H
#define LS_REDUCE_STATS_H

#include "reduce/internal.h"

/* The backward whose ls_reducer_wait began at wait_start_ns has ended. */
void ls__stats_record(ls_reducer *r, uint64_t wait_start_ns);
/* Bytes that this rank has sent by the reducer's groups so far. */
uint64_t ls__stats_sent(const ls_reducer *r);

#endif
