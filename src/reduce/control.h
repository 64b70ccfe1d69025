/* The control exchange that opens a synchronising backward; see control.c. */
#ifndef LS_REDUCE_CONTROL_H
#define LS_REDUCE_CONTROL_H

#include "reduce/internal.h"

/* Sends this rank's part. */
ls_status ls__control_start(ls_reducer *r);
/* Under the lock, after the exchange completed: combines all parts into divisor and params[].used.
 */
ls_status ls__control_finish(ls_reducer *r);

#endif
