/* SPDX-License-Identifier: Apache-2.0 */
/* A backward pass in two parts; see parts.c. */
#ifndef LS_AUTOGRAD_PARTS_H
#define LS_AUTOGRAD_PARTS_H

#include "autograd/pass.h"

/* ---- the input part -------------------------------------------------------------------------- */

/* Makes pass->later, and marks the inputs (`count` leaves) as led to. */
ls_status ls__parts_begin(ls__autograd_pass *pass, ls_tensor *const *inputs, int count);
/* Finds which nodes of a graph lead to an input; everything outside it is marked already. */
void ls__parts_mark(const ls__autograd_pile *order);
/* Runs of a node what leads to an input, and puts off the rest. */
ls_status ls__parts_input(ls__autograd_pass *pass, ls__tensor_node *node);
/* Takes the marks off the inputs and, after success, gives pass->later to the innermost scope. */
void ls__parts_end(ls__autograd_pass *pass, ls_status status);

/* ---- the weight part ------------------------------------------------------------------------- */

/* Takes what was put off from the innermost scope: pass->later, and its weight. */
ls_status ls__parts_take(ls__autograd_pass *pass);
/* Counts the contributions that leaves will receive. */
ls_status ls__parts_expect(ls__autograd_pass *pass);
ls_status ls__parts_run(ls__autograd_pass *pass);

#endif
