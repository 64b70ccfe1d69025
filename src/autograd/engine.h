/* What layers above autograd may hang on to: observers of a backward pass, and where gradients
 * live.
 *
 * An observer (DistributedDataParallel's reducer) owns some parameters: leaves whose `observer` and
 * `observer_index` are set. ls_backward, before it computes anything, counts the accumulations
 * every parameter will receive and calls begin once per observer that is armed or reached, with the
 * bitmap of its parameters that will be reached; ready once per reached parameter, when its count
 * is complete and its gradient is in place; end after the last node, whose status ls_backward
 * returns. If the pass fails after begin, abort is called instead of end.
 */
#ifndef LS_AUTOGRAD_ENGINE_H
#define LS_AUTOGRAD_ENGINE_H

#include <lockstep/autograd.h>

#include "base/list.h"

typedef struct ls__observer ls__observer;

typedef struct ls__backward_info {
    const uint8_t *used; /* [param_count] */
    bool weighted;
    double weight;
} ls__backward_info;

struct ls__observer {
    ls__list link; /* in the runtime's list; ls__observer_add / _remove */
    int param_count;
    bool
        armed; /* a forward went through its module: begin is due even if no parameter is reached */
    ls_status (*begin)(ls__observer *self, const ls__backward_info *info);
    ls_status (*ready)(ls__observer *self, int index);
    ls_status (*end)(ls__observer *self);
    void (*abort)(ls__observer *self, ls_status status, const char *message);
    /* Whether an optimizer may use the gradients now: LS_OK, or LS_ERR_STATE in words when they
     * were accumulated but never synchronised or the last synchronisation failed. NULL: always. */
    ls_status (*usable)(ls__observer *self);
};

ls_status ls__observer_add(ls__observer *observer);
void ls__observer_remove(ls__observer *observer);

/* Makes `param` number `index` of the observer (NULL: of none). */
ls_status ls__param_observe(ls_tensor *param, ls__observer *observer, int index);

/* The name reports use for `param`, "layers.0.fc1.weight". Borrowed: it must outlive the parameter,
 * or be set anew (NULL: none). */
ls_status ls__param_set_name(ls_tensor *param, const char *name);

/* The observer `param` belongs to, or NULL. Optimizers ask its `usable` before they step. */
ls__observer *ls__param_observer(const ls_tensor *param);

/* Lets the gradient of `param` live at `memory` (numel elements of its dtype, which outlives it or
 * is bound anew); a present gradient is copied there. NULL: autograd's own memory again. */
ls_status ls__param_bind_grad(ls_tensor *param, void *memory);
/* Moves the elements of `param` to `memory` (NULL: back to memory of its own); every view of it
 * follows. LS_ERR_UNSUPPORTED, and nothing moves, for a parameter that is part of a larger tensor.
 */
ls_status ls__param_bind_value(ls_tensor *param, void *memory);
/* Absent / present without touching the numbers (zero_grad; a reduced bucket of an unused
 * parameter). */
ls_status ls__param_set_grad_present(ls_tensor *param, bool present);
bool ls__param_grad_present(const ls_tensor *param);

#endif
