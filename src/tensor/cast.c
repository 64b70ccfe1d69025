/* Changing the element type. Only float32 carries gradients in this release, so a cast to another
 * type leaves the graph. */
#include "tensor/convert.h"
#include "tensor/op.h"

ls_tensor *ls_cast(ls_tensor *t, ls_dtype dtype)
{
    ls__call call;
    if (!ls__call_begin(&call, "cast", 1, &t)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    if (in->dtype == dtype) {
        return ls__call_finish(&call, ls__call_view(&call, in));
    }
    ls__dense from = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, ls__record_shape(in), dtype);
    if (out != NULL) {
        ls__convert(ls__record_data(out), dtype, from.data, (ls_dtype)in->dtype, in->numel);
    }
    ls__dense_drop(&from);
    return ls__call_finish(&call, out);
}
