/* SPDX-License-Identifier: Apache-2.0 */
/* How a rule's results reach the nodes behind its edges; see accumulate.c. */
#ifndef LS_AUTOGRAD_ACCUMULATE_H
#define LS_AUTOGRAD_ACCUMULATE_H

#include "autograd/pass.h"

typedef struct ls__autograd_target { /* of one edge, while its rule runs */
    ls__storage *aside; /* the rule writes here, close adds it up; NULL: written in place */
} ls__autograd_target;

ls_status ls__target_open(const ls__tensor_node *node, int i, ls__tensor_rule *rule,
                          ls__autograd_target *out);
/* `dy` is the node's own gradient, for edges that pass it on. Drops what the target holds. */
ls_status ls__target_close(ls__autograd_pass *pass, const ls__tensor_node *node, int i,
                           ls__tensor_rule *rule, ls__storage *dy, ls__autograd_target *target);
/* Adds `from`, row-major at offset 0, to where `edge` leads; may keep a reference to it. */
ls_status ls__accumulate(const ls__edge *edge, ls__storage *from);
/* The accumulation that `to` (NULL: nothing) was promised does not come. An observer will read the
 * gradient of its parameter all the same, so an absent one becomes zero. */
ls_status ls__accumulate_nothing(ls__autograd_pass *pass, ls__tensor_node *to);
/* Zeros as the gradient of a node that has none, for a rule that runs because losses of other ranks
 * reach its input. */
ls_status ls__give_zeros(ls__autograd_pass *pass, ls__tensor_node *node);
/* The gradient of `to`, which is there, becomes memory that no other node reads. */
ls_status ls__gradient_own(ls__tensor_node *to);
/* One accumulation of a leaf is done: reports the gradient as final after the last. */
ls_status ls__arrived(ls__autograd_pass *pass, ls__tensor_node *to);
/* The contribution that `edge` was promised: `from`, or nothing (NULL). */
ls_status ls__contribute(ls__autograd_pass *pass, const ls__edge *edge, ls__storage *from);

#endif
