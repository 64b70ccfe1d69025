/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes: text, broadcasting and the geometry of views. Pure functions. */
#ifndef LS_TENSOR_SHAPE_H
#define LS_TENSOR_SHAPE_H

#include "tensor/tensor.h"

typedef struct ls__shape_text {
    char text[192]; /* "[8,3,224,224]" with the longest numbers */
} ls__shape_text;

ls__shape_text ls__shape_print(ls_shape shape);
ls__shape_text ls__record_print(const ls__record *record);
ls_shape ls__record_shape(const ls__record *record);

/* Elements of a shape; false when a dimension is negative, too many or the product overflows. */
bool ls__shape_numel(ls_shape shape, int64_t *out);
bool ls__shape_equal(const ls__record *a, const ls__record *b);

/* The shape two operands broadcast to; false when they do not. */
bool ls__shape_broadcast(ls_shape a, ls_shape b, ls_shape *out);
/* Strides of `record` seen as `shape`, 0 where it repeats. */
ls__strided ls__shape_expand(const ls__record *record, ls_shape shape);

/* Strides that show `record`'s elements, in row-major order, as `shape` without a copy; false when
 * they do not exist. numel must agree. */
bool ls__shape_view(const ls__record *record, ls_shape shape, int64_t stride[LS_DIMS_MAX]);

/* `dim` counted from the end when negative; false when outside. */
bool ls__shape_dim(const ls__record *record, int dim, int *out);

/* Product of dims [from, to). */
int64_t ls__shape_product(const ls__record *record, int from, int to);

/* Images: the elements of [N,C,H,W] seen as [N,H,W,C], and back. */
void ls__record_see_channels_last(ls__record *record);
void ls__record_see_channels_first(ls__record *record);
/* Whether the images lie in memory as [N,H,W,C] does in row-major order, and not as [N,C,H,W]. */
bool ls__record_channels_last(const ls__record *record);

#endif
