/* What a module holds besides parameters, made equal on all ranks. */
#ifndef EXAMPLES_BUFFERS_H
#define EXAMPLES_BUFFERS_H

#include <lockstep/lockstep.h>

/* Buffers (running statistics of batch norm) follow each rank's own batches. Broadcasts rank 0's,
 * as PyTorch's DDP does before each forward; since training does not read them, before they are
 * judged or saved is enough. Collective. */
ls_status buffers_share(ls_module *module);

#endif
