/* Making tensors from nothing, from data and from random numbers. */
#include <math.h>
#include <string.h>

#include <lockstep/ops.h>

#include "base/size.h"
#include "tensor/convert.h"
#include "tensor/op.h"
#include "tensor/rng_stream.h"

/* A tensor from nothing: the frame of all constructors. *out is NULL after a failure. */
static ls_tensor *make(const char *name, ls_shape shape, ls_dtype dtype, ls__call *call,
                       ls__record **out)
{
    *out = NULL;
    if (!ls__call_begin(call, name, 0, NULL)) {
        return call->failed;
    }
    *out = ls__call_output(call, shape, dtype);
    return ls__call_finish(call, *out);
}

ls_tensor *ls_empty(ls_shape shape, ls_dtype dtype)
{
    ls__call call;
    ls__record *out;
    return make("empty", shape, dtype, &call, &out);
}

ls_tensor *ls_zeros(ls_shape shape, ls_dtype dtype)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make("zeros", shape, dtype, &call, &out);
    if (out != NULL) {
        memset(ls__record_data(out), 0, (size_t)out->numel * ls_dtype_size(dtype));
    }
    return t;
}

static ls_tensor *filled(const char *name, ls_shape shape, ls_dtype dtype, double value)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make(name, shape, dtype, &call, &out);
    if (out != NULL) {
        ls__convert_fill(ls__record_data(out), dtype, out->numel, value);
    }
    return t;
}

ls_tensor *ls_full(ls_shape shape, ls_dtype dtype, double value)
{
    return filled("full", shape, dtype, value);
}

ls_tensor *ls_ones(ls_shape shape, ls_dtype dtype)
{
    return filled("ones", shape, dtype, 1.0);
}

ls_tensor *ls_from_data(const void *data, ls_shape shape, ls_dtype dtype)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make("from_data", shape, dtype, &call, &out);
    if (out == NULL || out->numel == 0) {
        return t;
    }
    if (data == NULL) {
        return ls__call_fail(&call, LS_ERR_INVALID, "data is NULL for shape %s; give its elements",
                             ls__shape_print(shape).text);
    }
    memcpy(ls__record_data(out), data, (size_t)out->numel * ls_dtype_size(dtype));
    return t;
}

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
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "data is at %p; give memory aligned to %zu bytes", data,
                             ls_dtype_size(dtype));
    }
    out->storage =
        ls__storage_borrow(call.tensors, data, (size_t)out->numel * ls_dtype_size(dtype));
    if (out->storage == NULL) {
        call.failed = ls__poison(call.tensors);
    }
    return ls__call_finish(&call, out);
}

/* ---- rows of numbers ---------------------------------------------------------------------- */

ls_tensor *ls_arange(double start, double end, double step, ls_dtype dtype)
{
    ls__call call;
    ls__record *out;
    const double count = ceil((end - start) / step);
    if (!(step != 0.0 && isfinite(count) && fabs(count) < 0x1p53) || (end - start) / step < 0.0) {
        return ls__call_begin(&call, "arange", 0, NULL)
                   ? ls__call_fail(&call, LS_ERR_INVALID,
                                   "from %g to %g in steps of %g; give numbers and a step that "
                                   "leads from the first to the second",
                                   start, end, step)
                   : call.failed;
    }
    ls_tensor *t = make("arange", LS_SHAPE((int64_t)count), dtype, &call, &out);
    for (int64_t i = 0; out != NULL && i < out->numel; i++) {
        ls__convert_store(ls__record_data(out), dtype, i, start + (double)i * step);
    }
    return t;
}

/* From both ends to the middle, so that both are met exactly (as in PyTorch). */
ls_tensor *ls_linspace(double start, double end, int64_t count, ls_dtype dtype)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make("linspace", LS_SHAPE(count), dtype, &call, &out);
    const double step = count > 1 ? (end - start) / (double)(count - 1) : 0.0;
    for (int64_t i = 0; out != NULL && i < count; i++) {
        const double value =
            i < (count + 1) / 2 ? start + (double)i * step : end - (double)(count - 1 - i) * step;
        ls__convert_store(ls__record_data(out), dtype, i, value);
    }
    return t;
}

ls_tensor *ls_rand(ls_shape shape)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make("rand", shape, LS_FLOAT32, &call, &out);
    if (out != NULL) {
        ls__rng_stream stream = ls__rng_stream_next(call.tensors->runtime, LS__RNG_VALUES, out);
        call.k->random_uniform((float *)(void *)ls__record_data(out), out->numel, stream.first, 0.0,
                               1.0, stream.seed, stream.id, NULL);
    }
    return t;
}

ls_tensor *ls_randn(ls_shape shape)
{
    ls__call call;
    ls__record *out;
    ls_tensor *t = make("randn", shape, LS_FLOAT32, &call, &out);
    if (out != NULL) {
        ls__rng_stream stream = ls__rng_stream_next(call.tensors->runtime, LS__RNG_VALUES, out);
        call.k->random_normal((float *)(void *)ls__record_data(out), out->numel, stream.first, 0.0,
                              1.0, stream.seed, stream.id, NULL);
    }
    return t;
}
