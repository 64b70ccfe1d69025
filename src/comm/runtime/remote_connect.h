/* Connecting the ranks on other hosts in ls_init, and leaving them in ls_finalize. */
#ifndef LS_COMM_RUNTIME_REMOTE_CONNECT_H
#define LS_COMM_RUNTIME_REMOTE_CONNECT_H

#include "comm/core/comm.h"

/* Called after the own heap is made and before the peers' are mapped: finds the
 * remote ranks and allocates their cached state. comm->remote stays NULL if all ranks are local. */
ls_status ls__remote_open(ls__comm *comm);
/* Connects, and makes comm->transport, which owns `host` from then on (closed on failure, too). */
ls_status ls__remote_connect(ls__comm *comm, ls__transport *host);
void ls__remote_leave(ls__comm *comm); /* says BYE; takes the progress lock itself */
void ls__remote_close(ls__comm *comm);

#endif
