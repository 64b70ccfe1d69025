/* Replicas of a module: making them equal, and finding out whether they are (ddp.h). */
#ifndef LS_DDP_REPLICAS_H
#define LS_DDP_REPLICAS_H

#include <lockstep/comm.h>
#include <lockstep/nn.h>
#include <lockstep/reducer.h>

/* Collective: rank 0's state on every rank, parameters, buffers, and the numbers that module
 * classes keep beside them; of params[count], which are the reducer's, that of the rank 0 of each
 * one's own group. One operation for each group, and a comparison. */
ls_status ls__replicas_broadcast(ls_module *module, const ls_reducer *reducer,
                                 const ls_param *params, int count);

#endif
