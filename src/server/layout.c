/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer has laid gradients out in buckets. A server has a range of each, so every push and
 * every pull keeps all servers equally busy:
 *
 *     bucket 0 [ shard 0 | shard 1 | shard 2 ]     bucket 1 [ shard 0 | shard 1 | shard 2 ]
 *     shard 0, packed  [ of bucket 0 | of bucket 1 ]
 *
 * Ranges begin on 64-byte borders and depend on the parameters and bucket_bytes alone: the padding
 * that the reducer adds for its ranks is left out. A log is therefore replayed by one process. */
#include "server/layout.h"

#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"
#include "kernel/reduce/reduce.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"

/* ---- the tables ----------------------------------------------------------------------------- */

static size_t bytes_of(const ls__ddp *d, int i)
{
    const ls_tensor *value = d->params[i].value;
    return (size_t)ls_numel(value) * ls_dtype_size(ls_dtype_of(value));
}

/* Of the bucket, as far as parameters lie in it. */
static size_t used_bytes(const ls__ddp *d, int bucket)
{
    const ls__bucket_place place = ls__reducer_bucket_place(d->reducer, bucket);
    size_t used = 0;
    for (int i = 0; i < d->param_count; i++) {
        if (ls__reducer_bucket_of(d->reducer, i) == bucket) {
            const size_t begin = ls__reducer_place(d->reducer, i).offset - place.offset;
            const size_t end = ls__round_up(begin + bytes_of(d, i), LS__CACHE_LINE);
            used = end > used ? end : used;
        }
    }
    return used;
}

static void cut_buckets(ls__server_layout *l, const ls__ddp *d)
{
    for (int b = 0; b < l->buckets; b++) {
        const ls__bucket_place place = ls__reducer_bucket_place(d->reducer, b);
        const size_t lines = used_bytes(d, b) / LS__CACHE_LINE, shards = (size_t)l->shards;
        for (size_t s = 0; s < shards; s++) {
            const size_t from = lines * s / shards, to = lines * (s + 1) / shards;
            l->slices[s * (size_t)l->buckets + (size_t)b] =
                (ls__server_slice){.region = place.region,
                                   .from = place.offset + from * LS__CACHE_LINE,
                                   .bytes = (to - from) * LS__CACHE_LINE,
                                   .at = l->shard_bytes[s],
                                   .dtype = place.dtype};
            l->shard_bytes[s] += (to - from) * LS__CACHE_LINE;
        }
    }
}

static void add_part(ls__server_layout *l, const ls__ddp *d, int shard, int i)
{
    const ls__reduce_place place = ls__reducer_place(d->reducer, i);
    const ls__server_slice *slice =
        ls__server_slice_of(l, shard, ls__reducer_bucket_of(d->reducer, i));
    const size_t end = place.offset + bytes_of(d, i), slice_end = slice->from + slice->bytes;
    const size_t first = slice->from > place.offset ? slice->from : place.offset;
    const size_t last = slice_end < end ? slice_end : end, unit = ls_dtype_size(slice->dtype);
    if (first < last) {
        l->parts[l->part_count++] =
            (ls__server_part){.shard = shard,
                              .param = i,
                              .from = (int64_t)((first - place.offset) / unit),
                              .count = (int64_t)((last - first) / unit),
                              .at = slice->at + (first - slice->from),
                              .bytes = last - first};
    }
}

ls_status ls__server_layout_init(ls__server_layout *l, const ls__ddp *d, int shards)
{
    const int buckets = ls__reducer_bucket_count(d->reducer);
    const int regions = ls__reducer_regions(d->reducer);
    const size_t slices = (size_t)shards * (size_t)buckets;
    const size_t parts = (size_t)shards * (size_t)d->param_count;
    *l = (ls__server_layout){
        .env = d->env, .shards = shards, .buckets = buckets, .regions = regions};
    l->table_bytes = slices * sizeof *l->slices + parts * sizeof *l->parts +
                     ((size_t)shards + (size_t)regions) * sizeof *l->shard_bytes;
    char *memory = d->env->allocate(d->env, l->table_bytes);
    if (memory == NULL) {
        return ls__fail(LS_ERR_MEMORY, "server: no memory for the ranges of %d buckets", buckets);
    }
    l->slices = (void *)memory;
    l->parts = (void *)(l->slices + slices);
    l->shard_bytes = (void *)(l->parts + parts);
    l->region_at = l->shard_bytes + shards;
    for (int s = 0; s < shards; s++) {
        l->shard_bytes[s] = 0;
    }
    for (int i = 0; i < regions; i++) {
        l->region_at[i] = l->all_bytes;
        l->all_bytes += ls__round_up(ls__reducer_region_bytes(d->reducer, i), LS__CACHE_LINE);
    }
    cut_buckets(l, d);
    for (int s = 0; s < shards; s++) {
        for (int i = 0; i < d->param_count; i++) {
            add_part(l, d, s, i);
        }
    }
    return LS_OK;
}

void ls__server_layout_fini(ls__server_layout *l)
{
    if (l->slices != NULL) {
        l->env->release(l->env, l->slices, l->table_bytes);
    }
    *l = (ls__server_layout){0};
}

/* ---- using them ----------------------------------------------------------------------------- */

const ls__server_slice *ls__server_slice_of(const ls__server_layout *l, int shard, int bucket)
{
    LS_ASSERT(shard >= 0 && shard < l->shards && bucket >= 0 && bucket < l->buckets);
    return &l->slices[(size_t)shard * (size_t)l->buckets + (size_t)bucket];
}

size_t ls__server_slice_at(const ls__server_layout *l, const ls__server_slice *slice)
{
    return l->region_at[slice->region] + slice->from;
}

size_t ls__server_param_at(const ls__server_layout *l, const ls__ddp *d, int i)
{
    const ls__reduce_place place = ls__reducer_place(d->reducer, i);
    return l->region_at[place.region] + place.offset;
}

char *ls__server_grads(const ls__ddp *d, int region)
{
    for (int i = 0; i < d->param_count; i++) {
        const ls__reduce_place place = ls__reducer_place(d->reducer, i);
        if (place.region == region) {
            return (char *)ls__reducer_grad(d->reducer, i) - place.offset;
        }
    }
    return NULL; /* no region without a parameter */
}

void ls__server_pack(const ls__server_layout *l, int shard, char *packed, const char *all)
{
    for (int b = 0; b < l->buckets; b++) {
        const ls__server_slice *slice = ls__server_slice_of(l, shard, b);
        ls__elements_copy(packed + slice->at, all + ls__server_slice_at(l, slice), slice->bytes);
    }
}

void ls__server_unpack(const ls__server_layout *l, int shard, const char *packed, char *all)
{
    for (int b = 0; b < l->buckets; b++) {
        const ls__server_slice *slice = ls__server_slice_of(l, shard, b);
        ls__elements_copy(all + ls__server_slice_at(l, slice), packed + slice->at, slice->bytes);
    }
}

ls_status ls__server_copy_out(const ls__server_layout *l, const ls__ddp *d, char *all)
{
    for (int i = 0; i < d->param_count; i++) {
        LS_TRY(ls_copy_out(d->params[i].value, all + ls__server_param_at(l, d, i), bytes_of(d, i)));
    }
    return LS_OK;
}

ls_status ls__server_copy_in(const ls__server_layout *l, const ls__ddp *d, const char *all)
{
    for (int i = 0; i < d->param_count; i++) {
        LS_TRY(ls_copy_in(d->params[i].value, all + ls__server_param_at(l, d, i), bytes_of(d, i)));
    }
    return LS_OK;
}

/* Gaps between parameters hold zeros. */
uint64_t ls__server_hash(const ls__server_layout *l, int shard, const char *packed)
{
    return ls__hash_bytes(0, packed, l->shard_bytes[shard]);
}
