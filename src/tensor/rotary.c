/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding (Su et al. 2021, section 3.2.2): x [B,H,T,D], D even; element pairs
 * (d, d + D/2) of the row at position p = first + t turn by the angle p base^(-2d/D). Formula in
 * kernel/ref/rotary.c. Nothing is saved: its gradient is the rotation back. */
#include <math.h>

#include <lockstep/ops.h>

#include "base/options.h"
#include "tensor/op.h"

typedef struct rotary_context {
    /* Of the gradient: row-major, turning back; pointers are filled in when it runs. */
    ls__rotary args;
} rotary_context;

/* dx is dy turned the other way, because a rotation's transpose is its inverse. dy is row-major. */
static ls_status rotary_backward(ls__tensor_rule *r)
{
    const rotary_context *c = r->node->context;
    ls__rotary args = c->args;
    ls__storage *work = ls__storage_new(r->on, r->k->rotary_workspace(&args) + 64);
    if (work == NULL) {
        return ls__self.status;
    }
    args.x = r->dy;
    args.y = r->in[0].data;
    args.beta = r->in[0].beta;
    args.workspace = work->data;
    r->k->rotary(&args, r->stream);
    ls__storage_unref(work);
    return LS_OK;
}

static const ls__op rotary_op = {
    .name = "rotary", .backward = rotary_backward, .accumulates = true};

/* A factor below 1 would turn the slow pairs faster than those that keep their frequency. */
static bool scaling_valid(ls__call *call, const ls_rotary_scaling_options *s)
{
    const bool ordered = s->original_positions == 0 || s->low_freq_factor < s->high_freq_factor;
    if (!(s->factor >= 1.0) || !isfinite(s->factor) || s->original_positions < 0 || !ordered) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "scaling by factor %g of %lld original positions, low_freq_factor %g "
                            "and high_freq_factor %g; the factor must be >= 1, the positions >= 0, "
                            "and low_freq_factor below high_freq_factor (Llama 3.1 has 8 of 8192, "
                            "1 and 4)",
                            s->factor, (long long)s->original_positions, s->low_freq_factor,
                            s->high_freq_factor);
        return false;
    }
    return true;
}

/* x [B,H,T,D] with D even, since pairs are (d, d + D/2); a base above 1. False with call->failed
 * set. */
static bool rotary_valid(ls__call *call, int64_t first, double base)
{
    const ls__record *in = call->in[0];
    if (in->ndim != 4 || in->dim[3] % 2 != 0) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s; it must be [batch,heads,time,dim], dim even",
                            ls__record_print(in).text);
        return false;
    }
    if (first < 0 || !(base > 1.0) || !isfinite(base)) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "first %lld and base %g; the first position must be >= 0, the base > 1 "
                            "(10000 is usual)",
                            (long long)first, base);
        return false;
    }
    return true;
}

/* Strides of a dense [B,H,T,D]. */
static void row_major(ls__rotary *args)
{
    args->x_t = args->dim;
    args->x_h = args->time * args->x_t;
    args->x_b = args->heads * args->x_h;
}

/* A reference to x: its own memory as long as the last dimension is in order, with its strides
 * in *args, else a copy. */
static ls__dense operand(ls__call *call, ls__rotary *args)
{
    const ls__record *in = call->in[0];
    if (in->stride[3] != 1) {
        row_major(args);
        return ls__call_dense(call, 0);
    }
    args->x_b = in->stride[0];
    args->x_h = in->stride[1];
    args->x_t = in->stride[2];
    return ls__dense_of_output(in);
}

/* A view from ls_permute is read in place; the result is row-major. */
static ls_tensor *rotary(ls__call *call, int64_t first, double base, const ls__rotary_scaling *by)
{
    const ls__record *in = call->in[0];
    ls__rotary args = {.batch = in->dim[0], .heads = in->dim[1], .time = in->dim[2]};
    args.dim = in->dim[3];
    args.first = first;
    args.base = base;
    args.scaling = *by;
    ls__dense from = operand(call, &args);
    ls__dense work = ls__call_memory(call, call->k->rotary_workspace(&args) + 64);
    ls__record *out = ls__call_output(call, ls__record_shape(in), LS_FLOAT32);
    if (out != NULL && out->numel > 0) {
        args.x = from.data;
        args.y = ls__record_floats(out);
        args.workspace = work.data;
        call->k->rotary(&args, call->stream);
    }
    ls__tensor_node *node = ls__call_record(call, &rotary_op, out, sizeof(rotary_context));
    if (node != NULL) {
        row_major(&args);
        args.back = true;
        ((rotary_context *)node->context)->args = args;
    }
    ls__dense_drop(&from);
    ls__dense_drop(&work);
    call->follows = LS__ROWS(LS__LAST_DIMS(4, 2), FIRST);
    return ls__call_finish(call, out);
}

/* `first` is the position of the first row, for decoding with a cache of keys. */
ls_tensor *ls_rotary(ls_tensor *x, int64_t first, double base)
{
    ls__call call;
    if (!ls__call_begin(&call, "rotary", 1, &x) || !ls__call_float32(&call) ||
        !rotary_valid(&call, first, base)) {
        return call.failed;
    }
    return rotary(&call, first, base, &(ls__rotary_scaling){0});
}

ls_tensor *ls_rotary_scaled(ls_tensor *x, int64_t first, double base,
                            const ls_rotary_scaling_options *given)
{
    ls__call call;
    if (given == NULL) {
        return ls_rotary(x, first, base);
    }
    LS__OPTIONS_OR(ls__call_refused(), ls_rotary_scaling_options, o, given);
    if (!ls__call_begin(&call, "rotary", 1, &x) || !ls__call_float32(&call) ||
        !rotary_valid(&call, first, base) || !scaling_valid(&call, &o)) {
        return call.failed;
    }
    const ls__rotary_scaling by = {.factor = o.factor,
                                   .low = o.low_freq_factor,
                                   .high = o.high_freq_factor,
                                   .positions = o.original_positions};
    return rotary(&call, first, base, &by);
}
