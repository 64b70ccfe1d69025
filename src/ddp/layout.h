/* Equal bits for any number of ranks: what the wrapper does beyond Note [Shards] in
 * reduce/shards.h. */
#ifndef LS_DDP_LAYOUT_H
#define LS_DDP_LAYOUT_H

#include "ddp/wrapper.h"

/* Divides steps into options->shards, unless that is 0. */
ls_status ls__layout_set(ls__ddp *d, const ls_ddp_options *options);
/* When a backward begins, and when one ends that did not synchronise. */
ls_status ls__layout_begin(ls__ddp *d);
void ls__layout_end(ls__ddp *d);
/* An optimizer is about to step in the middle of a step. */
ls_status ls__layout_fail_early(const ls__ddp *d);

#endif
