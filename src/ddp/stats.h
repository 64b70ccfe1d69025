/* Where the time of a data-parallel step goes; see stats.c. */
#ifndef LS_DDP_STATS_H
#define LS_DDP_STATS_H

#include <lockstep/ddp.h>

#include "base/env.h"

/* All zero is a valid state. The thread that trains owns it. */
typedef struct ls__step_stats {
    ls_ddp_stats shown;
    uint64_t steps;                   /* that count in the means */
    double squares[6];                /* sums of squared distances from the means */
    uint64_t forward_ns, backward_ns; /* of the step under way */
    uint64_t optimizer_ns, passed_ns; /* since the last step; the end of that step, 0: none */
} ls__step_stats;

/* ls_ddp_timeline of a reducer with so many parameters. */
ls_status ls__timeline_print(ls_reducer *reducer, int params, char *out, size_t bytes,
                             size_t *needed);

/* A synchronised backward has ended. */
void ls__step_ended(ls__step_stats *s, const ls__env *env, const ls_reducer *reducer);

#endif
