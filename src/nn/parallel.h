/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism of modules (lockstep/tensor_parallel.h), between its files. */
#ifndef LS_NN_PARALLEL_H
#define LS_NN_PARALLEL_H

#include <lockstep/tensor_parallel.h>

#include "base/compiler.h"
#include "nn/module.h"

static inline bool ls__is_parallel(const ls_module *module)
{
    return LS__UNLIKELY(module->entries->parallel.axis[0] != '\0');
}

/* All conversions of layers go through one function, ls_redistribute. Tests replace it, to leave
 * one out or make one twice. Returns the former one. */
typedef ls_tensor *ls__converter(ls_tensor *x, const char *axis, ls_placement from,
                                 ls_placement to);
ls__converter *ls__parallel_use_converter(ls__converter *converter);

/* Rows of `weight`, a table of which each rank may have a part. */
ls_tensor *ls__parallel_embedding(ls_module *m, ls_tensor *weight, ls_tensor *index);

#endif
