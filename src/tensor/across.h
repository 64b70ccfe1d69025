/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors across devices, for what passes through memory of the program: messages. */
#ifndef LS_TENSOR_ACROSS_H
#define LS_TENSOR_ACROSS_H

#include "tensor/tensor.h"

/* Uninitialised, in memory that the program may read and write; on a device. */
ls_tensor *ls__tensor_here(ls_shape shape, ls_dtype dtype);
ls_tensor *ls__tensor_on(ls__pool *on, ls_shape shape, ls_dtype dtype);
/* The elements there, and where tensors are made from nothing. The tensor itself where it lies so;
 * else a copy, row-major and outside the graph, that is complete. */
ls_tensor *ls__tensor_to_here(ls_tensor *t);
ls_tensor *ls__tensor_to_made(ls_tensor *t);

/* The elements on another device, as an operation of the graph; a view of a tensor that lies
 * there. */
ls_tensor *ls__tensor_to(ls_tensor *t, ls__pool *on);

#endif
