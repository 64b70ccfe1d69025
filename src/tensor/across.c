/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors across devices; see across.h. */
#include "tensor/across.h"

#include "tensor/shape.h"

/* NULL with the error set. */
static ls__record *made_on(ls__pool *on, ls_shape shape, ls_dtype dtype)
{
    ls__record *out = ls__record_new(on->tensors);
    if (out != NULL && ls__record_set_shape(out, shape, dtype, "copy")) {
        out->storage = ls__storage_new(on, (size_t)out->numel * ls_dtype_size(dtype));
        if (out->storage != NULL) {
            return out;
        }
    }
    if (out != NULL) {
        ls__record_free(on->tensors, out);
    }
    return NULL;
}

ls_tensor *ls__tensor_here(ls_shape shape, ls_dtype dtype)
{
    ls__tensors *tensors = ls__tensors_get("tensor_here");
    if (tensors == NULL) {
        return ls__poison_fixed(ls__self.status);
    }
    return ls__tensor_on(&tensors->host, shape, dtype);
}

ls_tensor *ls__tensor_on(ls__pool *on, ls_shape shape, ls_dtype dtype)
{
    const ls__record *out = made_on(on, shape, dtype);
    return out != NULL ? ls__handle(out) : ls__poison(on->tensors);
}

static void carry(const ls__record *to, const ls__record *from)
{
    ls__device_carry(to->storage->pool->device, ls__record_data(to), from->storage->pool->device,
                     ls__record_data(from),
                     (size_t)from->numel * ls_dtype_size((ls_dtype)from->dtype));
}

static ls_tensor *copy_to(ls__pool *on, ls_tensor *t)
{
    const ls__record *from = ls__record_sound(on->tensors, ls_contiguous(ls_detach(t)), "copy");
    const ls__record *to =
        from != NULL ? made_on(on, ls__record_shape(from), (ls_dtype)from->dtype) : NULL;
    if (to == NULL) {
        return ls__poison(on->tensors);
    }
    carry(to, from);
    return ls__handle(to);
}

static bool lies_on(const ls__pool *on, const ls_tensor *t)
{
    const ls__record *record = ls__record_of(on->tensors, t, "copy", 0);
    return record == NULL || record->status < 0 || record->storage->pool == on;
}

ls_tensor *ls__tensor_to_here(ls_tensor *t)
{
    ls__tensors *tensors = ls__tensors_get("tensor_to_here");
    return tensors == NULL || lies_on(&tensors->host, t) ? t : copy_to(&tensors->host, t);
}

ls_tensor *ls__tensor_to_made(ls_tensor *t)
{
    ls__tensors *tensors = ls__tensors_get("tensor_to_made");
    return tensors == NULL || lies_on(tensors->made, t) ? t : copy_to(tensors->made, t);
}
