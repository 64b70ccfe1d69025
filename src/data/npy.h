/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a .npy file (NumPy's numpy.lib.format, NEP 1).
 *
 *     93 "NUMPY", major, minor | length: uint16, from version 2 on uint32 | header | the elements
 *     header: {'descr': '<f4', 'fortran_order': False, 'shape': (60, 28, 28), } and white space
 *
 * The header is a Python literal; only dictionaries of just these keys, in any order, are read.
 */
#ifndef LS_DATA_NPY_H
#define LS_DATA_NPY_H

#include <stddef.h>
#include <stdint.h>

#include <lockstep/state.h>

typedef struct ls__npy {
    ls_dtype dtype;
    int ndim;
    int64_t dim[LS_DIMS_MAX];
    int64_t count; /* elements */
    size_t begin;  /* of the first element, in the file */
} ls__npy;

/* `data` is the whole file; `path` names it in messages. LS_ERR_FORMAT, or LS_ERR_UNSUPPORTED for
 * files that NumPy can write but this library does not read: Fortran order, big-endian numbers,
 * other types. */
ls_status ls__npy_parse(const uint8_t *data, size_t bytes, const char *path, ls__npy *out);

#endif
