/* SPDX-License-Identifier: Apache-2.0 */
/* Moving tensors between devices: a copy is an operation like others, whose gradient is the copy
 * back. */
#include "tensor/across.h"
#include "tensor/op.h"

typedef struct to_context {
    ls__pool *from; /* where the input lies */
    size_t bytes;
} to_context;

static ls_status to_backward(ls__tensor_rule *r)
{
    const to_context *c = r->node->context;
    r->in[0].give = ls__storage_new(c->from, c->bytes);
    if (r->in[0].give == NULL) {
        return ls__self.status;
    }
    ls__device_carry(c->from->device, r->in[0].give->data, r->on->device, r->dy, c->bytes);
    return LS_OK;
}

static const ls__op to_op = {.name = "to", .backward = to_backward, .gives = true};

/* The input lies elsewhere. */
static ls_tensor *copy(ls__call *call, ls__pool *on)
{
    ls__call_as_stored(call);
    ls__record *in = call->in[0];
    ls__pool *from = call->on;
    ls__dense dense = ls__call_dense(call, 0);
    call->on = on;
    ls__record *out = ls__call_output(call, ls__record_shape(in), (ls_dtype)in->dtype);
    if (out != NULL) {
        const size_t bytes = (size_t)out->numel * ls_dtype_size((ls_dtype)out->dtype);
        ls__device_carry(on->device, ls__record_data(out), from->device, dense.data, bytes);
        ls__tensor_node *node = ls__call_record(call, &to_op, out, sizeof(to_context));
        if (node != NULL) {
            *(to_context *)node->context = (to_context){from, bytes};
        }
    }
    ls__dense_drop(&dense);
    return ls__call_finish(call, out);
}

ls_tensor *ls__tensor_to(ls_tensor *t, ls__pool *on)
{
    ls__call call;
    if (!ls__call_begin(&call, "to", 1, &t)) {
        return call.failed;
    }
    call.follows = LS__ELEMENTWISE(FIRST);
    return call.on == on ? ls__call_finish(&call, ls__call_view(&call, call.in[0]))
                         : copy(&call, on);
}
