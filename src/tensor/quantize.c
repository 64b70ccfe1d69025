/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric rounding to int8, a scale for each output (row of w [out,in]):
 *
 *     scale[j] = max |w[j,:]| / 127        q[j,p] = round(w[j,p] / scale[j])
 *
 * An element is off by half a scale at most. A row with an element that is not finite has the scale
 * NaN, and so have its results. See quantize.h. */
#include "tensor/quantize.h"

#include <float.h>
#include <math.h>

#include "base/half.h"
#include "base/size.h"
#include "tensor/fill.h"

#define INT8_MOST 127
#define SCALE_ALIGN 64

/* Of the roundings of all parameters: two threads may use a model at once, and the first makes the
 * copies. */
static pthread_mutex_t rounding_lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct matrix {
    const float *w; /* element [j,p] at j*row + p*column */
    int64_t out, in, row, column;
} matrix;

/* ---- rounding ----------------------------------------------------------------------------- */

static float scale_of(const matrix *m, int64_t j)
{
    float most = 0.0f;
    for (int64_t p = 0; p < m->in; p++) {
        const float size = fabsf(m->w[j * m->row + p * m->column]);
        if (!(size <= FLT_MAX)) {
            return NAN;
        }
        most = size > most ? size : most;
    }
    return most / INT8_MOST;
}

/* A scale that is no normal number has lost digits, so its row may exceed the range. */
static int8_t nearest(float x)
{
    return (int8_t)lrintf(fminf(fmaxf(x, -INT8_MOST), INT8_MOST));
}

static void round_int8(const matrix *m, int8_t *out, float *scale)
{
    for (int64_t j = 0; j < m->out; j++, out += m->in) {
        scale[j] = scale_of(m, j);
        for (int64_t p = 0; p < m->in; p++) {
            const float w = m->w[j * m->row + p * m->column];
            out[p] = scale[j] > 0.0f ? nearest(w / scale[j]) : 0;
        }
    }
}

static void round_bfloat16(const matrix *m, ls__bfloat16 *out)
{
    for (int64_t j = 0; j < m->out; j++, out += m->in) {
        for (int64_t p = 0; p < m->in; p++) {
            out[p] = ls__bfloat16_round(m->w[j * m->row + p * m->column]);
        }
    }
}

/* ---- copies ------------------------------------------------------------------------------- */

/* Where the scales are, in a copy of int8; behind the elements. */
static size_t scales_at(int64_t numel)
{
    return ls__round_up((size_t)numel, SCALE_ALIGN);
}

static size_t copy_bytes(const ls__record *w, int64_t out, ls_dtype dtype)
{
    return dtype == LS_INT8 ? scales_at(w->numel) + (size_t)out * sizeof(float)
                            : (size_t)w->numel * sizeof(ls__bfloat16);
}

/* Both are where the program may read and write them. */
static void round_matrix(const matrix *m, void *copy, ls_dtype dtype)
{
    if (dtype == LS_INT8) {
        float *scale = (float *)(void *)((char *)copy + scales_at(m->out * m->in));
        round_int8(m, copy, scale);
    } else {
        round_bfloat16(m, copy);
    }
}

/* NULL with the error set. */
static ls__storage *make_copy(ls__pool *on, const ls__record *w, bool turned, ls_dtype dtype)
{
    const int64_t out = w->dim[turned ? 1 : 0], in = w->dim[turned ? 0 : 1];
    ls__host_view from = {0}, to = {0};
    ls__storage *copy = ls__storage_new(on, copy_bytes(w, out, dtype));
    if (copy == NULL || ls__host_view_open(on, ls__record_data(w), w->storage->bytes, &from) < 0) {
        ls__storage_unref(copy);
        return NULL;
    }
    const bool open = ls__host_view_open(on, copy->data, copy->bytes, &to) == LS_OK;
    if (open) {
        const matrix m = {from.data, out, in, turned ? 1 : in, turned ? out : 1};
        round_matrix(&m, to.data, dtype);
        ls__host_view_close(&to, true);
    }
    ls__host_view_close(&from, false);
    if (!open) {
        ls__storage_unref(copy);
    }
    return open ? copy : NULL;
}

static void forget_copy(ls__storage *storage)
{
    ls__storage_unref(storage->rounded);
    storage->rounded = NULL;
}

/* Under the lock. */
static bool is_current(ls__storage *storage, bool turned)
{
    const ls__rounding *r = &storage->initial->rounding;
    return storage->rounded != NULL && r->turned == turned &&
           r->version == ls__storage_version(storage);
}

/* A reference to the copy; NULL with the error set. */
static ls__storage *take_copy(ls__pool *on, const ls__record *w, bool turned)
{
    ls__storage *storage = w->storage;
    ls__rounding *r = &storage->initial->rounding;
    (void)pthread_mutex_lock(&rounding_lock);
    if (!is_current(storage, turned)) {
        forget_copy(storage);
        storage->rounded = make_copy(on, w, turned, r->dtype);
        r->turned = turned;
        r->version = ls__storage_version(storage);
    }
    ls__storage *copy = storage->rounded != NULL ? ls__storage_ref(storage->rounded) : NULL;
    (void)pthread_mutex_unlock(&rounding_lock);
    return copy;
}

/* ---- for operations ------------------------------------------------------------------------- */

ls_dtype ls__call_rounding(const ls__call *call, int i)
{
    const ls__record *w = call->in[i];
    const ls__initial *initial = w->storage->initial;
    const bool asked = initial != NULL && initial->rounding.dtype != LS_FLOAT32;
    return asked && w->ndim == 2 && w->dtype == LS_FLOAT32 && ls__record_covers_storage(w)
               ? initial->rounding.dtype
               : LS_FLOAT32;
}

ls__rounded ls__call_rounded(ls__call *call, int i, bool turned)
{
    const ls__record *w = call->in[i];
    const bool is_int8 = ls__call_rounding(call, i) == LS_INT8;
    ls__storage *copy = take_copy(call->on, w, turned);
    if (copy == NULL) {
        call->failed = ls__poison(call->tensors);
        return (ls__rounded){0};
    }
    const char *scales = (const char *)copy->data + scales_at(w->numel);
    return (ls__rounded){copy, copy->data, is_int8 ? (const float *)(const void *)scales : NULL};
}

ls_status ls__quantize(ls_tensor *t, ls_dtype dtype)
{
    ls__tensors *tensors = ls__tensors_get("quantize");
    const ls__record *record = tensors != NULL ? ls__record_sound(tensors, t, "quantize") : NULL;
    ls__initial *initial = record != NULL ? ls__initial_of(record->storage) : NULL;
    if (initial == NULL) {
        return ls__self.status;
    }
    (void)pthread_mutex_lock(&rounding_lock);
    forget_copy(record->storage);
    initial->rounding.dtype = dtype;
    (void)pthread_mutex_unlock(&rounding_lock);
    return LS_OK;
}
