/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values. They are noted here and drawn later, under the parameter's name in the model
 * (tensor/fill.h): the same on every rank, whatever the thread count and whatever other parameters
 * the rank has.
 */
#include <lockstep/nn.h>

#include <math.h>

#include "device/captured.h"
#include "tensor/fill.h"
#include "tensor/shape.h"

/* A tensor that is about to be filled. */
typedef struct target {
    ls__tensors *tensors;
    ls__record *record;
} target;

/* Checks `t`, and says that its elements change. */
static ls_status prepare(const char *what, ls_tensor *t, target *out)
{
    out->tensors = ls__tensors_get(what);
    if (out->tensors == NULL) {
        return ls__self.status;
    }
    ls__captured_refuse("a tensor is filled (ls_fill_normal), with the same numbers in every step");
    LS_TRY(ls_tensor_status(t));
    if (ls_dtype_of(t) != LS_FLOAT32) {
        return ls__fail(LS_ERR_UNSUPPORTED, "%s: the tensor is %s; give one of float32", what,
                        ls_dtype_name(ls_dtype_of(t)));
    }
    if (!ls_is_contiguous(t)) {
        (void)ls_data(t); /* says why */
        return ls__fail_within(ls__self.status, "%s", what);
    }
    out->record = ls__record_sound(out->tensors, t, what);
    ls__tensor_changed(t);
    return out->record != NULL ? LS_OK : ls__self.status;
}

/* A mode of the calling thread; returns the former one. */
bool ls_set_skip_init(bool skip)
{
    const bool before = ls__self.skip_init;
    ls__self.skip_init = skip;
    return before;
}

/* Element i is number i of the parameter's stream. */
static ls_status fill(const char *what, ls_tensor *t, bool normal, double from, double to)
{
    target at = {0};
    LS_TRY(prepare(what, t, &at));
    const ls__fill given = {
        .normal = normal, .from = from, .to = to, .seed = at.tensors->runtime->seed};
    return ls__fill_note(at.tensors, at.record, ls__self.skip_init ? NULL : &given);
}

ls_status ls_fill_uniform(ls_tensor *t, double low, double high)
{
    return fill("ls_fill_uniform", t, false, low, high);
}

ls_status ls_fill_normal(ls_tensor *t, double mean, double std)
{
    return fill("ls_fill_normal", t, true, mean, std);
}

/* Not subject to ls_set_skip_init: it costs little, and draws nothing. */
ls_status ls_fill_constant(ls_tensor *t, double value)
{
    target at = {0};
    LS_TRY(prepare("ls_fill_constant", t, &at));
    LS_TRY(ls__fill_cancel(at.record));
    const ls__pool *on = at.record->storage->pool;
    on->k->fill(ls__record_floats(at.record), at.record->numel, (float)value, on->stream);
    return LS_OK;
}

/* N(0, 2 / fan) (He et al. 2015, equations 10 and 14): fan is the number of elements that add up to
 * one output (fan_in), or into which one input goes (fan_out). */
ls_status ls_fill_kaiming_normal(ls_tensor *weight, bool fan_out)
{
    target at = {0};
    LS_TRY(prepare("ls_fill_kaiming_normal", weight, &at));
    const ls_shape shape = ls__fill_whole(at.record);
    int64_t numel = 1, side = fan_out ? 1 : 0; /* the other side of the weight */
    for (int d = 0; d < shape.ndim; d++) {
        numel *= shape.dim[d];
    }
    if (shape.ndim < 2 || numel == 0) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_fill_kaiming_normal: the weight is %s; it must be [out,in,..] with "
                        "elements",
                        ls__shape_print(shape).text);
    }
    return ls_fill_normal(weight, 0.0, sqrt(2.0 / (double)(numel / shape.dim[side])));
}
