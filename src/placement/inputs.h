/* SPDX-License-Identifier: Apache-2.0 */
/* The inputs of a model that ranks share. */
#ifndef LS_PLACEMENT_INPUTS_H
#define LS_PLACEMENT_INPUTS_H

#include <lockstep/tensor.h>

#include "base/axes.h"

/* Whether the ranks along axis number `axis`, among which a model is divided, have the same
 * inputs, as far as these are unplaced there: nothing else sees that they do not. Collective; every
 * rank returns the same. `what` names the caller. */
ls_status ls__inputs_compare(const ls__axes_in_force *axes, int axis, ls_tensor *const *inputs,
                             int count, const char *what);

#endif
