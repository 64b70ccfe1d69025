/* SPDX-License-Identifier: Apache-2.0 */
/* Weight-only quantization of a module: its matrices are marked, and products round them when they
 * first read them (tensor/quantize.h). */
#include "tensor/quantize.h"

#include "base/error.h"
#include "nn/module.h"

ls_status ls_module_quantize(ls_module *module, ls_dtype weights)
{
    if (weights != LS_INT8 && weights != LS_BFLOAT16 && weights != LS_FLOAT32) {
        return ls__fail(LS_ERR_INVALID,
                        "module_quantize: weights of %s; give int8, bfloat16, or float32 for the "
                        "weights as they are",
                        ls_dtype_name(weights));
    }
    int count = 0;
    const ls__module_item *items = ls__module_items(module, &count);
    if (items == NULL) {
        return ls__self.status;
    }
    for (int i = 0; i < count; i++) {
        ls_tensor *value = items[i].value;
        if (!items[i].buffer && ls_ndim(value) == 2 && ls_dtype_of(value) == LS_FLOAT32) {
            LS_TRY(ls__quantize(value, weights));
        }
    }
    return LS_OK;
}
