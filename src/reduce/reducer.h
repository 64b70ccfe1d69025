/* The reducer's calls for DistributedDataParallel beyond the public ones: ddp knows which gradients
 * are present, and can move them to other memory. */
#ifndef LS_REDUCE_REDUCER_H
#define LS_REDUCE_REDUCER_H

#include <lockstep/reducer.h>

/* The caller overwrites a gradient that is absent instead of adding to it, so absent ones need no
 * zeroing. Set once, before the first backward. */
void ls__reducer_set_overwrites(ls_reducer *r);

/* ls_reducer_begin, with the knowledge which gradients hold numbers just now ([count]; NULL: those
 * of which the reducer knows). */
ls_status ls__reducer_begin(ls_reducer *r, const ls_reducer_begin_options *options,
                            const uint8_t *present);

/* The group of its operations, a duplicate of the user's, whose order of operations is the
 * reducer's: buckets may be launched from ls__reducer_begin to ls_reducer_wait. */
ls_group *ls__reducer_group(const ls_reducer *r);

/* Fails the reducer's group on all ranks with this cause. */
void ls__reducer_abort(ls_reducer *r, ls_status status, const char *message);

/* Launches the buckets that can be launched; call it without the lock. */
void ls__reducer_advance(ls_reducer *r);
/* The control exchange ended (control.c). */
void ls__reducer_control_done(void *reducer, ls_status status);

#endif
