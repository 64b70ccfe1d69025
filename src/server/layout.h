/* SPDX-License-Identifier: Apache-2.0 */
/* The elements of each server: a range of every bucket; see layout.c. */
#ifndef LS_SERVER_LAYOUT_H
#define LS_SERVER_LAYOUT_H

#include "ddp/wrapper.h"

/* A shard's range of a bucket. */
typedef struct ls__server_slice {
    int region;         /* of the reducer */
    size_t from, bytes; /* in the region */
    size_t at;          /* in the shard, where ranges of all buckets lie one after the other */
    ls_dtype dtype;
} ls__server_slice;

/* A shard's elements [from, from + count) of a parameter, all of which lie in one bucket. */
typedef struct ls__server_part {
    int shard, param;
    int64_t from, count;
    size_t at, bytes; /* in the shard */
} ls__server_part;

typedef struct ls__server_layout {
    const ls__env *env;
    int shards, buckets, regions, part_count;
    ls__server_slice *slices; /* [shards][buckets] */
    ls__server_part *parts;   /* [part_count] shard by shard */
    size_t *shard_bytes;      /* [shards] */
    size_t *region_at;        /* [regions] in memory that holds all of them */
    size_t all_bytes;         /* of that memory */
    size_t table_bytes;
} ls__server_layout;

/* The same for every number of ranks. */
ls_status ls__server_layout_init(ls__server_layout *l, const ls__ddp *d, int shards);
void ls__server_layout_fini(ls__server_layout *l);

const ls__server_slice *ls__server_slice_of(const ls__server_layout *l, int shard, int bucket);
/* Where the slice begins in memory of all regions. */
size_t ls__server_slice_at(const ls__server_layout *l, const ls__server_slice *slice);
/* Where parameter i begins there. */
size_t ls__server_param_at(const ls__server_layout *l, const ls__ddp *d, int i);
/* The gradients of a region. */
char *ls__server_grads(const ls__ddp *d, int region);

/* Copies a shard between packed memory and that of all regions. */
void ls__server_pack(const ls__server_layout *l, int shard, char *packed, const char *all);
void ls__server_unpack(const ls__server_layout *l, int shard, const char *packed, char *all);
/* Copies all parameters to memory of all regions, and back. */
ls_status ls__server_copy_out(const ls__server_layout *l, const ls__ddp *d, char *all);
ls_status ls__server_copy_in(const ls__server_layout *l, const ls__ddp *d, const char *all);
/* Of a packed shard. */
uint64_t ls__server_hash(const ls__server_layout *l, int shard, const char *packed);

#endif
