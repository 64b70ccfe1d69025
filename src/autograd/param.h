/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters, for the layers above: their observers, and where their numbers and gradients live. */
#ifndef LS_AUTOGRAD_PARAM_H
#define LS_AUTOGRAD_PARAM_H

#include "autograd/observers.h"

/* Makes `param` number `index` of the observer (NULL: of none). */
ls_status ls__param_observe(ls_tensor *param, ls__observer *observer, int index);

/* Notes that `param` is a table [rows, columns], of which a pass may reach few rows; asks whether
 * it is. */
void ls__param_set_table(ls_tensor *param);
bool ls__param_is_table(const ls_tensor *param);

/* Notes that `param` is of a stage on this rank: the other stages step when it does. They are along
 * these axes (bit a: axis a of the mesh in force). */
void ls__param_set_staged(ls_tensor *param, unsigned axes);
unsigned ls__param_staged_along(const ls_tensor *param); /* 0: of no stage */
bool ls__param_is_staged(const ls_tensor *param);

/* The name reports use for `param`, "layers.0.fc1.weight". Borrowed: it must outlive the parameter,
 * or be set anew (NULL: none). */
/* Bit a: a reducer adds its gradient over axis a of the mesh in force. */
ls_status ls__param_set_summed(ls_tensor *param, unsigned axes);
/* Bit a: what comes to its gradient on this rank is of the batches of all ranks of axis a, which
 * have other parts of it (experts): no reducer is to add over that axis. */
ls_status ls__param_set_complete(ls_tensor *param, unsigned axes);
unsigned ls__param_complete(const ls_tensor *param);
uint32_t ls__param_placed(const ls_tensor *param); /* its word (tensor/placement.h) */
uint8_t ls__param_layout(const ls_tensor *param);  /* of the mesh of its parts; 0: it is whole */
ls_status ls__param_set_name(ls_tensor *param, const char *name);

/* The observer `param` belongs to, or NULL. Optimizers ask its `usable` before they step. */
ls__observer *ls__param_observer(const ls_tensor *param);
/* The elements of `param` that are this rank's to step; all, unless its observer has `owners`. */
void ls__param_owned(const ls_tensor *param, int64_t *from, int64_t *count);
/* Whether a rank of its observer's `owners` is among those that divide it. */
bool ls__param_divided_with(const ls_tensor *param, int world_rank);
/* Tells the observer that this rank's elements were changed. */
void ls__param_updated(const ls_tensor *param);

/* Lets the gradient of `param` live at `memory` (numel elements of its dtype); a present gradient
 * is copied there. From now on *present says whether it is there. Both outlive the parameter, or it
 * is bound anew. NULL: autograd's own again. */
ls_status ls__param_bind_grad(ls_tensor *param, void *memory, bool *present);
/* Moves the elements of `param` to `memory` (NULL: back to memory of its own); every view of it
 * follows. LS_ERR_UNSUPPORTED, and nothing moves, for a parameter that is part of a larger tensor.
 */
ls_status ls__param_bind_value(ls_tensor *param, void *memory);
/* The same of what is bound already, without a copy: the numbers are there, or do not matter. A
 * gradient that is not bound, as that of a frozen parameter, is left alone. */
void ls__param_place_grad(ls_tensor *param, void *memory);
void ls__param_place_value(ls_tensor *param, void *memory);
/* The memory of `param` and that of `copy`, a tensor of its shape and dtype, change places, and so
 * do the counts of their changes in place; every view follows. ls__param_copy gives `copy` the
 * numbers of `param` and its count. */
void ls__param_swap(ls_tensor *param, ls_tensor *copy);
void ls__param_copy(ls_tensor *param, ls_tensor *copy);
/* Absent / present without touching the numbers (zero_grad; a reduced bucket of an unused
 * parameter). */
ls_status ls__param_set_grad_present(ls_tensor *param, bool present);
bool ls__param_grad_present(const ls_tensor *param);
/* A captured step is about to use the gradient (tensor/gradients.h). */
void ls__param_meet_grad(const ls_tensor *param);

#endif
