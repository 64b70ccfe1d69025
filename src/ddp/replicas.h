/* Replicas of a module: making them equal, and finding out whether they are (ddp.h). */
#ifndef LS_DDP_REPLICAS_H
#define LS_DDP_REPLICAS_H

#include <lockstep/comm.h>
#include <lockstep/nn.h>

/* Collective: rank 0's state on every rank, parameters, buffers, and the numbers that module classes
 * keep beside them. */
ls_status ls__replicas_broadcast(ls_module *module, ls_group *group);

#endif
