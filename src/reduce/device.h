/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients in memory of a device; see device.c. Each function does nothing where they lie on the
 * host. */
#ifndef LS_REDUCE_DEVICE_H
#define LS_REDUCE_DEVICE_H

#include "reduce/internal.h"

/* Refuse in words what the host would have to compute. */
ls_status ls__device_check_param(const ls_reducer *r, const ls_reducer_param *param);
ls_status ls__device_check_begin(const ls_reducer *r, const ls_reducer_begin_options *options);

/* A synchronising backward begins: gradients that this rank does not reach become zero, and no
 * bucket is sent before that. */
ls_status ls__device_begin(ls_reducer *r);
/* Under the lock: the gradient is final after what is in the stream now. */
ls_status ls__device_mark(ls_reducer *r, int param, ls_stream *stream);
/* What the bucket's operation waits for; the operation has it from now on. */
void *ls__device_take_place(ls__reduce_bucket *bucket);
void ls__device_drop_place(const ls_reducer *r, ls__reduce_bucket *bucket); /* there is none */
ls_status ls__device_zero_all(ls_reducer *r);

#endif
