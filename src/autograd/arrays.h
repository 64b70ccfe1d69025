/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of calls with arrays of inputs and outputs; see arrays.c. */
#ifndef LS_AUTOGRAD_ARRAYS_H
#define LS_AUTOGRAD_ARRAYS_H

#include <lockstep/autograd.h>

#include "tensor/op.h"
#include "tensor/tensor.h"

/* LS_ERR_INVALID unless both arrays are there and have 1 to LS_CALL_TENSORS_MAX places. `name` is
 * that of the call. */
ls_status ls__arrays_check(const char *name, ls_tensor *const *inputs, int input_count,
                           ls_tensor *const *outputs, int output_count);
/* The record of input i of `count`; a poisoned tensor's error is passed on. *out is NULL where the
 * input is NULL and may be. */
ls_status ls__arrays_input(ls__tensors *tensors, const char *name, ls_tensor *const *inputs, int i,
                           int count, bool optional, ls__record **out);
/* Fills the outputs of a call that failed with tensors that carry this thread's error. */
void ls__arrays_poison(ls_tensor **outputs, int count);
/* Ends a call that was begun, unless `status` is an error: its results y[count] become the outputs.
 * After an error the outputs carry it. Returns the status. */
ls_status ls__arrays_finish(ls__call *call, ls_status status, ls__record *const *y,
                            ls_tensor **outputs, int count);

#endif
