/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by convolutions. */
#ifndef LS_TENSOR_CONV_H
#define LS_TENSOR_CONV_H

#include "tensor/op.h"

#define LS__CONV_EXTENT_MAX                                                                        \
    ((int64_t)1 << 30) /* of sizes along one axis: their products are exact */

/* One pass with workspace of its own. */
ls_status ls__conv2d_run(ls__pool *on, const ls__conv2d *c, ls__conv2d_pass pass,
                         ls__conv2d_data *d);

#endif
