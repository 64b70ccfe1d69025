/* SPDX-License-Identifier: Apache-2.0 */
/* Making tensors from nothing, from data and from random numbers. A new tensor belongs to the
 * innermost scope; it has no node, so gradients begin only where ls_set_requires_grad says.
 * ls_rand and ls_randn draw from the runtime's counter-based stream (rng_stream.h): which
 * numbers they give depends on seed, step, rank's samples and the order of calls, never on
 * threads. */
#include <math.h>

#include <lockstep/ops.h>

#include "base/size.h"
#include "device/captured.h"
#include "tensor/convert.h"
#include "tensor/op.h"
#include "tensor/rng_stream.h"

/* The frame of all constructors: an uninitialised tensor of this shape. *out is its record, to
 * be filled by the caller, or NULL after a failure, when the poisoned tensor is returned. */
static ls_tensor *make_tensor(const char *name, ls_shape shape, ls_dtype dtype, ls__call *call,
                              ls__record **out)
{
    *out = NULL;
    if (!ls__call_begin(call, name, 0, NULL)) {
        return call->failed;
    }
    *out = ls__call_output(call, shape, dtype);
    return ls__call_finish(call, *out);
}

/* The elements are whatever the memory held. */
ls_tensor *ls_empty(ls_shape shape, ls_dtype dtype)
{
    ls__call call;
    ls__record *out;
    return make_tensor("empty", shape, dtype, &call, &out);
}

/* Zero is all bits clear in every type. */
ls_tensor *ls_zeros(ls_shape shape, ls_dtype dtype)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make_tensor("zeros", shape, dtype, &call, &out);
    if (out != NULL) {
        call.k->zero(ls__record_data(out), (size_t)out->numel * ls_dtype_size(dtype), call.stream);
    }
    return t;
}

/* Every element is `value`, converted once. */
static ls_tensor *filled(const char *name, ls_shape shape, ls_dtype dtype, double value)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make_tensor(name, shape, dtype, &call, &out);
    ls__dense stage = ls__call_stage(&call, out);
    if (stage.data != NULL) {
        ls__convert_fill(stage.data, dtype, out->numel, value);
    }
    ls__call_staged(&call, out, &stage);
    return call.failed != NULL ? call.failed : t;
}

ls_tensor *ls_full(ls_shape shape, ls_dtype dtype, double value)
{
    return filled("full", shape, dtype, value);
}

ls_tensor *ls_ones(ls_shape shape, ls_dtype dtype)
{
    return filled("ones", shape, dtype, 1.0);
}

/* Copies row-major elements from `data`, which the caller keeps; NULL is refused unless there
 * are no elements. */
ls_tensor *ls_from_data(const void *data, ls_shape shape, ls_dtype dtype)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make_tensor("from_data", shape, dtype, &call, &out);
    if (out == NULL || out->numel == 0) {
        return t;
    }
    if (data == NULL) {
        return ls__call_fail(&call, LS_ERR_INVALID, "data is NULL for shape %s; give its elements",
                             ls__shape_print(shape).text);
    }
    ls__captured_refuse("ls_from_data copies from the program's memory");
    ls__device_write(call.on->device, ls__record_data(out), data,
                     (size_t)out->numel * ls_dtype_size(dtype));
    return t;
}

/* A tensor over memory of the caller's, which must outlive it, its views and the graphs that
 * save it, and is never freed here. The address must be aligned to the element. */
ls_tensor *ls_from_memory(void *data, ls_shape shape, ls_dtype dtype)
{
    ls__call call;
    if (!ls__call_begin(&call, "from_memory", 0, NULL)) {
        return call.failed;
    }
    ls__record *out = ls__record_new(call.tensors);
    if (out == NULL || !ls__record_set_shape(out, shape, dtype, call.name)) {
        call.failed = ls__poison(call.tensors);
        return ls__call_finish(&call, out);
    }
    if (data == NULL || (uintptr_t)data % ls_dtype_size(dtype) != 0) {
        ls__record_free(call.tensors, out);
        return data == NULL
                   ? ls__call_fail(&call, LS_ERR_INVALID,
                                   "data is NULL for shape %s; give memory for its elements",
                                   ls__shape_print(shape).text)
                   : ls__call_fail(&call, LS_ERR_INVALID,
                                   "data is at %p; give memory aligned to %zu bytes", data,
                                   ls_dtype_size(dtype));
    }
    out->storage =
        ls__storage_borrow(&call.tensors->host, data, (size_t)out->numel * ls_dtype_size(dtype));
    if (out->storage == NULL) {
        call.failed = ls__poison(call.tensors);
    }
    return ls__call_finish(&call, out);
}

/* ---- rows of numbers ---------------------------------------------------------------------- */

/* start, start + step, … below `end`; each element is computed from its index, so errors do not
 * add up. The conditions are written so that NaN and a step of 0 fail them. */
ls_tensor *ls_arange(double start, double end, double step, ls_dtype dtype)
{
    ls__call call;
    ls__record *out;
    const double count = ceil((end - start) / step);
    if (!(step != 0.0 && isfinite(count) && fabs(count) < 0x1p53) || (end - start) / step < 0.0) {
        return ls__call_begin(&call, "arange", 0, NULL)
                   ? ls__call_fail(&call, LS_ERR_INVALID,
                                   "from %.15g to %.15g in steps of %.15g; give finite numbers and "
                                   "a step that leads from the first to the second",
                                   start, end, step)
                   : call.failed;
    }
    ls_tensor *t = make_tensor("arange", LS_SHAPE((int64_t)count), dtype, &call, &out);
    ls__dense stage = ls__call_stage(&call, out);
    for (int64_t i = 0; stage.data != NULL && i < out->numel; i++) {
        ls__convert_store(stage.data, dtype, i, start + (double)i * step);
    }
    ls__call_staged(&call, out, &stage);
    return call.failed != NULL ? call.failed : t;
}

/* From both ends to the middle, so that both ends are met exactly (as in PyTorch). */
ls_tensor *ls_linspace(double start, double end, int64_t count, ls_dtype dtype)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make_tensor("linspace", LS_SHAPE(count), dtype, &call, &out);
    const double step = count > 1 ? (end - start) / (double)(count - 1) : 0.0;
    ls__dense stage = ls__call_stage(&call, out);
    for (int64_t i = 0; stage.data != NULL && i < count; i++) {
        const double value =
            i < (count + 1) / 2 ? start + (double)i * step : end - (double)(count - 1 - i) * step;
        ls__convert_store(stage.data, dtype, i, value);
    }
    ls__call_staged(&call, out, &stage);
    return call.failed != NULL ? call.failed : t;
}

/* Uniform in [0,1). */
ls_tensor *ls_rand(ls_shape shape)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make_tensor("rand", shape, LS_FLOAT32, &call, &out);
    if (out != NULL) {
        ls__rng_stream stream =
            ls__rng_stream_next(call.tensors->runtime, LS__RNG_VALUES, out, NULL);
        call.k->random_uniform(ls__record_floats(out), out->numel, stream.first, 0.0, 1.0,
                               stream.seed, stream.id, call.stream);
    }
    return t;
}

/* Normal with mean 0 and standard deviation 1. */
ls_tensor *ls_randn(ls_shape shape)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make_tensor("randn", shape, LS_FLOAT32, &call, &out);
    if (out != NULL) {
        ls__rng_stream stream =
            ls__rng_stream_next(call.tensors->runtime, LS__RNG_VALUES, out, NULL);
        call.k->random_normal(ls__record_floats(out), out->numel, stream.first, 0.0, 1.0,
                              stream.seed, stream.id, call.stream);
    }
    return t;
}
