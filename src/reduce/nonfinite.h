/* Naming the rank and the parameter with which NaN or infinity enters the gradients. */
#ifndef LS_REDUCE_NONFINITE_H
#define LS_REDUCE_NONFINITE_H

#include "reduce/internal.h"

/* Looks at this rank's contribution right before it is summed; afterwards every rank has the same
 * sum, and nothing tells whose it was. Warns once per reducer, and records the failure for the
 * launcher. */
void ls__nonfinite_look(ls_reducer *r, const ls__reduce_bucket *bucket);
/* Looks at the average, on the first rank of the domain, unless it has reported its own: the sum
 * may overflow where every contribution is finite. */
void ls__nonfinite_look_again(ls_reducer *r, const ls__reduce_bucket *bucket);

#endif
