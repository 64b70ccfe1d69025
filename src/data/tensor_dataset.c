/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in memory as a data set: row i of x and of y is sample i. The data set holds views of its
 * own, so the caller's handles stay the caller's, or copies of a device's elements, and keeps raw
 * pointers for the loader's thread, which must not touch tensors. */
#include <lockstep/data.h>

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "data/dataset.h"
#include "tensor/across.h"

/* `x` and `y` keep the memory alive; samples are copied from the raw pointers. */
typedef struct tensor_dataset {
    ls_dataset base;
    ls_tensor *x, *y;
    const uint8_t *x_data, *y_data;
    size_t x_bytes, y_bytes; /* of one sample */
} tensor_dataset;

/* Also used after a failed construction: ls_free accepts NULL. */
static void tensor_dataset_free(ls_dataset *self)
{
    tensor_dataset *d = (tensor_dataset *)self;
    ls_free(d->x);
    ls_free(d->y);
    free(d);
}

/* Runs on the loader's thread, hence raw pointers only. The caller must not change the tensors
 * while a loader reads them. */
static ls_status tensor_dataset_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const tensor_dataset *d = (const tensor_dataset *)self;
    LS_TRY(ls__dataset_check(self, "tensor data set", index));
    memcpy(x, d->x_data + (size_t)index * d->x_bytes, d->x_bytes);
    memcpy(y, d->y_data + (size_t)index * d->y_bytes, d->y_bytes);
    return LS_OK;
}

/* Keeps a contiguous, detached view of t: a copy only if t is not contiguous. *row and
 * *row_bytes describe one sample. */
static ls_status hold(const char *name, ls_tensor *t, ls_tensor **held, const uint8_t **data,
                      ls_shape *row, size_t *row_bytes)
{
    const ls_status sound = ls_tensor_status(t);
    if (sound < 0) {
        return ls__fail_within(sound, "tensor data set: %s", name);
    }
    ls_shape shape = ls_shape_of(t);
    if (shape.ndim < 1) {
        return ls__fail(LS_ERR_INVALID,
                        "tensor data set: %s is a scalar; its first dimension must "
                        "count the samples",
                        name);
    }
    *held = ls_keep(ls__tensor_to_here(ls_contiguous(ls_detach(t))));
    LS_TRY(ls_tensor_status(*held));
    *data = ls_data(*held);
    *row = (ls_shape){.ndim = shape.ndim - 1};
    memcpy(row->dim, shape.dim + 1, (size_t)row->ndim * sizeof row->dim[0]);
    *row_bytes =
        shape.dim[0] ? (size_t)(ls_numel(t) / shape.dim[0]) * ls_dtype_size(ls_dtype_of(t)) : 0;
    return LS_OK;
}

/* On failure, what was held already stays in `d` for tensor_dataset_free. */
static ls_status fill(tensor_dataset *d, ls_tensor *x, ls_tensor *y)
{
    LS_TRY(hold("x", x, &d->x, &d->x_data, &d->base.x_shape, &d->x_bytes));
    LS_TRY(hold("y", y, &d->y, &d->y_data, &d->base.y_shape, &d->y_bytes));
    if (ls_size(x, 0) != ls_size(y, 0)) {
        return ls__fail(LS_ERR_INVALID,
                        "tensor data set: x has %lld samples and y %lld; give "
                        "both the same first dimension",
                        (long long)ls_size(x, 0), (long long)ls_size(y, 0));
    }
    d->base.count = ls_size(x, 0);
    d->base.x_dtype = ls_dtype_of(x);
    d->base.y_dtype = ls_dtype_of(y);
    return LS_OK;
}

ls_dataset *ls_tensor_dataset_new(ls_tensor *x, ls_tensor *y)
{
    tensor_dataset *d = ls__dataset_new(__func__, "tensor data set", sizeof *d, tensor_dataset_get,
                                        tensor_dataset_free);
    return d != NULL ? ls__dataset_loaded(&d->base, fill(d, x, y)) : NULL;
}
