/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a logical tensor that one tensor is.
 *
 *     a fused projection [12,C] cut by heads on two ranks; rank 1 has
 *
 *     whole   0 1 2 3 | 4 5 6 7 | 8 9 10 11         3 groups
 *     part        2 3       6 7       10 11         3 runs of 2, so 3 boxes of [2,C]
 *
 * In every dimension a part has runs of indices of the whole, in order; its elements are their
 * product. From this follow its first values (each element is numbered by its place in the whole)
 * and the boxes that it shows to a visitor of states. */
#ifndef LS_TENSOR_PART_H
#define LS_TENSOR_PART_H

#include <lockstep/state.h>

#include "tensor/tensor.h"

#define LS__TENSOR_PART_RUNS_MAX 16 /* of all dimensions together: 9 or more in one of them */

typedef struct ls__part_run {
    int64_t first, count;
} ls__part_run;

typedef struct ls__tensor_part {
    ls_shape whole;
    uint8_t runs[LS_DIMS_MAX];                  /* of each dimension … */
    ls__part_run run[LS__TENSOR_PART_RUNS_MAX]; /* … which lie here one after the other */
} ls__tensor_part;

/* The box of `shape` from `first` on. */
ls__tensor_part ls__tensor_part_box(ls_shape whole, ls_shape first, ls_shape shape);
ls_shape ls__tensor_part_shape(const ls__tensor_part *part);
/* Keeps runs of dimension `dim`, in indices of the part's own, ascending. False: there would be
 * more than LS__TENSOR_PART_RUNS_MAX. */
bool ls__tensor_part_cut(ls__tensor_part *part, int dim, const ls__part_run *keep, int count);
/* Where element `at` of the part is in the whole; *left: how many from there on follow each other
 * in both. Of a part with elements. */
int64_t ls__tensor_part_place(const ls__tensor_part *part, int64_t at, int64_t *left);
/* Whether every element of one whole is in exactly one of part[0 … count-1]. */
bool ls__tensor_part_tile(const ls__tensor_part *part, int count);
/* Shows `visitor` each box of the part, of elements that lie in host memory at `data` as the part's
 * shape says. Boxes with gaps between their elements are copied there and back, in memory of
 * `host`. */
ls_status ls__tensor_part_visit(const ls__tensor_part *part, ls_dtype dtype, void *data,
                                const char *name, const ls_state_visitor *visitor, ls__pool *host);
/* The same for elements [from, from + count) of the part, which lie at `data`: a range that begins
 * and ends in the middle of a row is up to three boxes of a matrix. */
ls_status ls__tensor_part_visit_range(const ls__tensor_part *part, ls_dtype dtype, void *data,
                                      int64_t from, int64_t count, const char *name,
                                      const ls_state_visitor *visitor, ls__pool *host);

#endif
