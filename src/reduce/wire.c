/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are sent as bfloat16 (torch's bf16_compress_hook):
 *
 *     region   float32  ──round──▶  wire  bfloat16  ──all_reduce──▶  wire  ──widen──▶  region
 *
 * Each rank's contribution is rounded to 8 bits of precision, the sum over the ranks is made in
 * float32, divided, and rounded once more, so the bytes of all ranks stay equal. A gradient that is
 * summed in several micro-batches is still summed in float32, and so is one that was set aside. Of
 * a group of one rank nothing is sent, and nothing rounded. */
#include "reduce/internal.h"

#include "base/assert.h"
#include "comm/backend/plugin_group.h"
#include "kernel/reduce/reduce.h"
#include "reduce/bucket.h"
#include "reduce/exchange.h"

ls_status ls__wire_check(const ls_reducer_options *options)
{
    if (options->wire_dtype == LS_FLOAT32 || options->wire_dtype == LS_BFLOAT16) {
        return LS_OK;
    }
    return ls__fail(
        LS_ERR_INVALID,
        "ls_reducer_new: wire_dtype is %s; give LS_BFLOAT16, or LS_FLOAT32 for no change",
        ls_dtype_name(options->wire_dtype));
}

ls_status ls__wire_open(ls_reducer *r, ls__reduce_region *region)
{
    ls_group *group = r->domains[region->key.domain].group;
    if (r->options.wire_dtype == region->key.dtype || region->key.dtype != LS_FLOAT32 ||
        ls_group_size(group) == 1) {
        return LS_OK;
    }
    void *memory = NULL;
    const size_t elements = region->bytes / sizeof(float);
    const ls_status status =
        ls__group_memory(group, elements * ls_dtype_size(r->options.wire_dtype), &memory);
    if (status < 0) {
        return ls__fail_within(status, "reducer \"%s\", %s gradients", r->name,
                               ls_dtype_name(r->options.wire_dtype));
    }
    region->wire = memory;
    return LS_OK;
}

void ls__wire_close(ls_reducer *r, ls__reduce_region *region)
{
    if (region->wire != NULL) {
        (void)ls_group_dealloc(r->domains[region->key.domain].group, region->wire);
        region->wire = NULL;
    }
}

/* Where the bucket lies in the memory that is sent. */
static void *place_of(const ls_reducer *r, const ls__reduce_bucket *bucket)
{
    const ls__reduce_region *region = &r->plan.regions[bucket->region];
    return region->wire + bucket->offset / sizeof(float) * ls_dtype_size(r->options.wire_dtype);
}

static ls_status round_bucket(ls_reducer *r, ls__reduce_bucket *bucket, int phase LS__UNUSED,
                              ls__reduce_exchange *out)
{
    void *to = place_of(r, bucket);
    const ls_dtype dtype = r->options.wire_dtype;
    const int64_t count = ls__bucket_elements(r, bucket);
    LS_ASSERT(ls__reduce_accumulator(dtype) == r->plan.regions[bucket->region].key.dtype);
    ls__round(to, ls__bucket_memory(r, bucket), count, dtype);
    *out = (ls__reduce_exchange){.operation = LS__OP_ALL_REDUCE,
                                 .input = to,
                                 .output = to,
                                 .count = count,
                                 .dtype = dtype,
                                 .divisor = ls__bucket_divisor(r, bucket)};
    return LS_OK;
}

static ls_status widen_bucket(ls_reducer *r, ls__reduce_bucket *bucket, int phase LS__UNUSED)
{
    ls__widen(ls__bucket_memory(r, bucket), place_of(r, bucket), ls__bucket_elements(r, bucket),
              r->options.wire_dtype);
    return LS_OK;
}

const ls__exchange_kind ls__exchange_rounded = {1, round_bucket, widen_bucket};
