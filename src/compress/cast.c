/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that travel in 16 bits (ddp_comm_hooks/default_hooks.py). The sum over the ranks is
 * made in float32 by the all-reduce, which divides and rounds once more. */
#include "base/error.h"
#include "compress/state.h"
#include "kernel/reduce/reduce.h"

/* The types, at fixed addresses: a hook's state is a pointer. */
static const ls_dtype types[] = {LS_FLOAT16, LS_BFLOAT16};

static ls_status cast_before(void *state, ls_bucket *bucket, int phase LS__UNUSED, ls_exchange *out,
                             ls_stream *stream LS__UNUSED)
{
    const ls_dtype dtype = *(const ls_dtype *)state;
    ls__exchange_whole(bucket, out);
    if (out->dtype != LS_FLOAT32) {
        return LS_OK;
    }
    void *to = ls_bucket_scratch(bucket, 0, (size_t)out->count * ls_dtype_size(dtype));
    if (to == NULL) {
        return ls_error_status();
    }
    ls__round(to, out->input, out->count, dtype);
    out->input = out->output = to;
    out->dtype = dtype;
    return LS_OK;
}

static ls_status cast_after(void *state, ls_bucket *bucket, int phase LS__UNUSED,
                            ls_stream *stream LS__UNUSED)
{
    const ls_dtype dtype = *(const ls_dtype *)state;
    if (ls_bucket_dtype(bucket) != LS_FLOAT32) {
        return LS_OK;
    }
    const int64_t count = ls_bucket_numel(bucket);
    ls__widen(ls_bucket_memory(bucket),
              ls_bucket_scratch(bucket, 0, (size_t)count * ls_dtype_size(dtype)), count, dtype);
    return LS_OK;
}

ls_status ls_cast_hook_new(ls_dtype dtype, ls_comm_hook *out)
{
    if (out == NULL || (dtype != LS_FLOAT16 && dtype != LS_BFLOAT16)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_cast_hook_new: type %s, out %p; give LS_FLOAT16 or LS_BFLOAT16, and a "
                        "place for the hook",
                        ls_dtype_name(dtype), (void *)out);
    }
    const bool half = dtype == LS_FLOAT16;
    const ls_comm_hook hook = *LS_OPTIONS(ls_comm_hook, .name = half ? "fp16" : "bf16",
                                          .state = (void *)(uintptr_t)&types[half ? 0 : 1],
                                          .before = cast_before, .after = cast_after);
    return ls__hook_give(&hook, out, "ls_cast_hook_new");
}
