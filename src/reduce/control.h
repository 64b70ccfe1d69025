/* The control exchange that opens a synchronising backward; see control.c. */
#ifndef LS_REDUCE_CONTROL_H
#define LS_REDUCE_CONTROL_H

#include "reduce/internal.h"

/* Sends this rank's parts. After a failure those that were sent must be waited for. */
ls_status ls__control_start(ls_reducer *r);
ls_status ls__control_wait(ls_reducer *r);
/* Under the lock, after all exchanges completed: combines the parts into divisors and
 * params[].used. */
ls_status ls__control_finish(ls_reducer *r);

#endif
