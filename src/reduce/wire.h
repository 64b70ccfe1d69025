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

/* What an all-reduce of the bucket takes. */
typedef struct ls__reduce_wire {
    void *memory;
    int64_t count;
    ls_dtype dtype;
} ls__reduce_wire;

/* Rounds the bucket, or packs a table's rows, into the memory that is sent. */
ls__reduce_wire ls__wire_send(const ls_reducer *r, const ls__reduce_bucket *bucket);
/* The all-reduce has ended: brings the averages back. */
void ls__wire_receive(const ls_reducer *r, const ls__reduce_bucket *bucket);

#endif
