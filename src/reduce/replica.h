/* Whether the replicas are still equal; see replica.c. */
#ifndef LS_REDUCE_REPLICA_H
#define LS_REDUCE_REPLICA_H

#include "reduce/internal.h"

/* Of the domain's parameters; 0 if this step does not look at them. */
uint64_t ls__replica_hash(const ls_reducer *r, const ls__reduce_domain *domain);
/* After a backward: names the parameter and the rank if the replicas differ. Collective then. */
ls_status ls__replica_check(ls_reducer *r);

#endif
