/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by cuDNN: the only file that knows the library. It is loaded for the first of them;
 * where it is missing, and for what it does not compute, kernels of our own do (entries.c). */
#ifndef LS_CUDA_DNN_H
#define LS_CUDA_DNN_H

#include "cuda/launch.h"

size_t ls__cuda_dnn_workspace(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d);
/* False: nothing was started. */
bool ls__cuda_dnn_conv2d(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                         ls_stream *stream);

#endif
