/* Eager receives: when a message may be received before its turn; see eager_recv.c. */
#ifndef LS_COMM_PROGRAM_EAGER_RECV_H
#define LS_COMM_PROGRAM_EAGER_RECV_H

#include "comm/program/program.h"

ls_status ls__program_find_eager_recvs(ls__program *p); /* fills in ls__step.need; LS_ERR_MEMORY */

#endif
