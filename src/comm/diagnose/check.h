/* Deadlines, stalls, members that are gone. */
#ifndef LS_COMM_DIAGNOSE_CHECK_H
#define LS_COMM_DIAGNOSE_CHECK_H

#include "comm/comm.h"

void ls__engine_check(ls__comm *comm, uint64_t now_ns); /* token: verdict, deadlines, stalls */

#endif
