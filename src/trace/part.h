/* One rank's part of a trace: the spans that it has recorded (base/trace.h), in order of time. */
#ifndef LS_TRACE_PART_H
#define LS_TRACE_PART_H

#include "base/trace.h"

typedef struct ls__trace_part {
    const ls__env *env;
    const ls__trace_head *head;     /* NULL: the rank's part is missing */
    size_t bytes;                   /* of the mapping */
    const ls__trace_event **events; /* [count] by their begin; of two that begin together the
                                       longer one first */
    int64_t count;
    size_t events_bytes;
    uint64_t dropped; /* recorded, but no longer there */
    ls__trace_clock clock[2];
} ls__trace_part;

/* Maps the memfd `fd` (borrowed), which a rank has written. LS_ERR_FORMAT: it is not a
 * part. */
ls_status ls__trace_part_open(const ls__env *env, int fd, ls__trace_part *out);
void ls__trace_part_close(ls__trace_part *part); /* zeros are allowed */

/* A time of the part's host as a time of node 0. */
uint64_t ls__trace_part_time(const ls__trace_part *part, uint64_t ns);

#endif
