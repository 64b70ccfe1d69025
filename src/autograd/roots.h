/* SPDX-License-Identifier: Apache-2.0 */
/* The roots of a backward pass; see roots.c. */
#ifndef LS_AUTOGRAD_ROOTS_H
#define LS_AUTOGRAD_ROOTS_H

#include "autograd/pass.h"

/* Check the arguments and fill pass->root. */
ls_status ls__roots_of_loss(ls__autograd_pass *pass, const ls_tensor *loss);
ls_status ls__roots_given(ls__autograd_pass *pass, ls_tensor *const *ys, ls_tensor *const *dys,
                          int count);
/* Adds the gradients of the roots; the first contributions of the pass. */
ls_status ls__roots_seed(ls__autograd_pass *pass);
void ls__roots_drop(ls__autograd_pass *pass);

#endif
