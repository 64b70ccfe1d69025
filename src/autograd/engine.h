/* SPDX-License-Identifier: Apache-2.0 */
/* Running a backward pass, for the operations of autograd itself; see engine.c. */
#ifndef LS_AUTOGRAD_ENGINE_H
#define LS_AUTOGRAD_ENGINE_H

#include "autograd/pass.h"

/* Runs the nodes of `order`, whose gradients are there or will be. */
ls_status ls__pass_run(ls__autograd_pass *pass, const ls__autograd_pile *order);
/* Runs one node. `kept`: only for some of its edges (parts.c); out, the gradient that the others
 * will read, with a reference. NULL: for all. */
ls_status ls__pass_one(ls__autograd_pass *pass, ls__tensor_node *node, ls__storage **kept);
/* LS_ERR_STATE: what `node` saved was changed in place since. */
ls_status ls__fail_changed(const ls__autograd_pass *pass, const ls__tensor_node *node,
                           const ls__tensor_saved *saved);

#endif
