/* Initial values. Every call takes the next stream of the runtime's seed, so a parameter's values
 * depend on (seed, how many were initialised before it) and its elements' indices: the same on
 * every rank, whatever the thread count. What LS_SKIP_INIT leaves out is counted all the same.
 */
#include <lockstep/nn.h>

#include <math.h>

#include "tensor/shape.h"

/* Keeps these streams apart from those of dropout and ls_rand, whose numbers have bit 62 or 63. */
#define PARAM_STREAMS ((uint64_t)0x7061726d << 24) /* "parm" */

/* A tensor that is about to be filled, and the random stream from which. */
typedef struct target {
    float *data;
    int64_t count;
    ls__tensors *tensors;
    uint64_t stream;
} target;

/* Checks `t` and takes the next stream for it, also when the fill is then skipped: parameters made
 * later get the same numbers either way. */
static ls_status prepare(const char *what, ls_tensor *t, target *out)
{
    out->tensors = ls__tensors_get(what);
    if (out->tensors == NULL) {
        return ls__self.status;
    }
    LS_TRY(ls_tensor_status(t));
    if (ls_dtype_of(t) != LS_FLOAT32) {
        return ls__fail(LS_ERR_UNSUPPORTED, "%s: the tensor is %s; give one of float32", what,
                        ls_dtype_name(ls_dtype_of(t)));
    }
    out->count = ls_numel(t);
    out->data = ls_data(t);
    if (out->data == NULL && out->count > 0) {
        return ls__fail_within(ls__self.status, "%s", what);
    }
    out->stream = PARAM_STREAMS + out->tensors->runtime->param_streams++;
    ls__tensor_changed(t);
    return LS_OK;
}

/* A mode of the calling thread; returns the former one. */
bool ls_set_skip_init(bool skip)
{
    const bool before = ls__self.skip_init;
    ls__self.skip_init = skip;
    return before;
}

/* Element i is number i of the stream, so threads can fill parts of it independently. */
ls_status ls_fill_uniform(ls_tensor *t, double low, double high)
{
    target at = {0};
    LS_TRY(prepare("ls_fill_uniform", t, &at));
    if (ls__self.skip_init) {
        return LS_OK;
    }
    at.tensors->kernels->random_uniform(at.data, at.count, 0, low, high, at.tensors->runtime->seed,
                                        at.stream, NULL);
    return LS_OK;
}

ls_status ls_fill_normal(ls_tensor *t, double mean, double std)
{
    target at = {0};
    LS_TRY(prepare("ls_fill_normal", t, &at));
    if (ls__self.skip_init) {
        return LS_OK;
    }
    at.tensors->kernels->random_normal(at.data, at.count, 0, mean, std, at.tensors->runtime->seed,
                                       at.stream, NULL);
    return LS_OK;
}

/* Not subject to ls_set_skip_init: it costs little, and draws nothing. */
ls_status ls_fill_constant(ls_tensor *t, double value)
{
    target at = {0};
    LS_TRY(prepare("ls_fill_constant", t, &at));
    at.tensors->kernels->fill(at.data, at.count, (float)value, NULL);
    return LS_OK;
}

/* N(0, 2 / fan) (He et al. 2015, equations 10 and 14): fan is the number of elements that add up to
 * one output (fan_in), or into which one input goes (fan_out). */
ls_status ls_fill_kaiming_normal(ls_tensor *weight, bool fan_out)
{
    LS_TRY(ls_tensor_status(weight));
    ls_shape shape = ls_shape_of(weight);
    int64_t numel = ls_numel(weight), side = fan_out ? 1 : 0; /* the other side of the weight */
    if (shape.ndim < 2 || numel == 0) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_fill_kaiming_normal: the weight is %s; it must be [out,in,..] with "
                        "elements",
                        ls__shape_print(shape).text);
    }
    return ls_fill_normal(weight, 0.0, sqrt(2.0 / (double)(numel / shape.dim[side])));
}
