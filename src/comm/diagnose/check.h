/* Deadlines, stalls, and members that have left or died. */
#ifndef LS_COMM_DIAGNOSE_CHECK_H
#define LS_COMM_DIAGNOSE_CHECK_H

#include "comm/core/comm.h"

/* Fails groups that cannot go on, and warns of stragglers. The caller holds the progress lock. */
void ls__engine_check(ls__comm *comm, uint64_t now_ns);

#endif
