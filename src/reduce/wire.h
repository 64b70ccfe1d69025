/* Gradients that travel in a smaller type than they are kept in; see wire.c. */
#ifndef LS_REDUCE_WIRE_H
#define LS_REDUCE_WIRE_H

#include "reduce/internal.h"

/* Whether the options' type can be sent. */
ls_status ls__wire_check(const ls_reducer_options *options);

/* The memory from which the buckets of a region are sent, if it is not the region's. Collective in
 * that all ranks do it. */
ls_status ls__wire_open(ls_reducer *r, ls__reduce_region *region);
void ls__wire_close(ls_reducer *r, ls__reduce_region *region);

/* The bucket is rounded, and the averages are widened again. */
extern const struct ls__exchange_kind ls__exchange_rounded;

#endif
