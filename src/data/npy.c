/* SPDX-License-Identifier: Apache-2.0 */
/* Two .npy files as a data set: row i of x and of y is sample i. The files are mapped, so they may
 * be larger than memory; elements keep the type they have there. */
#include <lockstep/data.h>

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/runtime.h"
#include "data/dataset.h"
#include "data/npy.h"
#include "data/unpack.h"

/* One mapped file; `row_bytes` is one index of the first dimension. */
typedef struct array {
    ls__file file;
    ls__npy header;
    size_t row_bytes;
} array;

/* The data set; both arrays have the same number of rows. */
typedef struct npy {
    ls_dataset base;
    const ls__env *env;
    array x, y;
} npy;

/* Also used after a failed load: an array that was not opened is zero, which ls__file_release
 * accepts. */
static void npy_free(ls_dataset *self)
{
    npy *d = (npy *)self;
    ls__file_release(d->env, &d->x.file);
    ls__file_release(d->env, &d->y.file);
    free(d);
}

/* The parser has compared the size of the file with the header, so every row lies inside the
 * mapping. */
static void copy_row(const array *a, int64_t index, void *out)
{
    memcpy(out, a->file.data + a->header.begin + (size_t)index * a->row_bytes, a->row_bytes);
}

/* Runs on the loader's thread; a page that is not in memory yet is read from the disk here. */
static ls_status npy_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const npy *d = (const npy *)self;
    LS_TRY(ls__dataset_check(self, "npy", index));
    copy_row(&d->x, index, x);
    copy_row(&d->y, index, y);
    return LS_OK;
}

/* An array without elements is refused here, which also keeps dim[0] from being 0 in the
 * division. */
static ls_status open_array(const ls__env *env, const char *path, array *a)
{
    LS_TRY(ls__file_map(env, "npy", path, &a->file));
    LS_TRY(ls__unpack(env, "npy", path, &a->file));
    LS_TRY(ls__npy_parse(a->file.data, a->file.bytes, path, &a->header));
    if (a->header.ndim == 0) {
        return ls__fail(LS_ERR_INVALID,
                        "npy: \"%s\" holds a single number; the first dimension must count the "
                        "samples",
                        path);
    }
    if (a->header.count == 0) {
        return ls__fail(LS_ERR_INVALID, "npy: \"%s\" holds no elements; give another file", path);
    }
    a->row_bytes = (size_t)(a->header.count / a->header.dim[0]) * ls_dtype_size(a->header.dtype);
    return LS_OK;
}

/* The array's shape without its first dimension; a vector has scalars as rows. */
static ls_shape row_shape(const ls__npy *header)
{
    ls_shape shape = {.ndim = header->ndim - 1};
    memcpy(shape.dim, header->dim + 1, (size_t)shape.ndim * sizeof shape.dim[0]);
    return shape;
}

/* x and y may differ in shape and type but must have the same number of rows. */
static ls_status load(npy *d, const char *x, const char *y)
{
    d->env = ls__self.runtime->env;
    if (x == NULL || !*x || y == NULL || !*y) {
        return ls__fail(LS_ERR_INVALID, "npy: a path is missing; give a file of x and one of y");
    }
    LS_TRY(open_array(d->env, x, &d->x));
    LS_TRY(open_array(d->env, y, &d->y));
    if (d->x.header.dim[0] != d->y.header.dim[0]) {
        return ls__fail(LS_ERR_INVALID,
                        "npy: \"%s\" has %lld samples and \"%s\" %lld; they belong to different "
                        "sets",
                        x, (long long)d->x.header.dim[0], y, (long long)d->y.header.dim[0]);
    }
    d->base.count = d->x.header.dim[0];
    d->base.x_shape = row_shape(&d->x.header);
    d->base.y_shape = row_shape(&d->y.header);
    d->base.x_dtype = d->x.header.dtype;
    d->base.y_dtype = d->y.header.dtype;
    return LS_OK;
}

ls_dataset *ls_npy_dataset_new(const char *x, const char *y)
{
    npy *d = ls__dataset_new(__func__, "npy", sizeof *d, npy_get, npy_free);
    return d != NULL ? ls__dataset_loaded(&d->base, load(d, x, y)) : NULL;
}
