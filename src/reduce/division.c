/* SPDX-License-Identifier: Apache-2.0 */
/* Averages that are divided among ranks (ZeRO): of all ranks each has a part of a bucket, or the
 * ranks are split, and each split has all parts (hybrid sharding; Zhao et al., VLDB 2023, section
 * 3.2.2).
 *
 *     4 ranks, split in 2            rank 0    rank 1  |  rank 2    rank 3
 *     phase 0  reduce-scatter      [ ███████ · ······· | ███████ · ······· ]   within a split
 *     phase 1  all-reduce            ███████ ───────────▶ ███████              across
 *
 * In the first phase each rank of a split gets the sum over its ranks for a part of the bucket; in
 * the second the ranks with the same part, one of each split, add these up. Across splits goes
 * 1/size of what an all-reduce over all ranks sends. With splits of a power of two of neighbouring
 * ranks the order of the sums is that of such an all-reduce. */
#include "reduce/internal.h"

#include "base/assert.h"
#include "base/options.h"
#include "comm/api/control.h"
#include "comm/core/group.h"
#include "comm/core/round_robin.h"
#include "reduce/bucket.h"
#include "reduce/domain.h"
#include "reduce/pool.h"
#include "reduce/reducer.h"

/* A rank's description of its split. */
typedef struct given {
    int32_t size, hash; /* of the world ranks of its members, in their order */
} given;

static given given_of(const ls_group *group)
{
    uint32_t hash = 0;
    for (int i = 0; i < group->size; i++) {
        hash = (hash ^ (uint32_t)group->member[i].world_rank) * UINT32_C(0x9E3779B1);
        hash ^= hash >> 15;
    }
    return (given){group->size, (int32_t)(hash & INT32_MAX)};
}

/* The first rank whose split is not one of equal ones that have all ranks; `size` when all are. */
static int first_odd(const given *all, int size, int *members)
{
    for (int i = 0; i < size; i++) {
        *members = 0;
        for (int k = 0; k < size; k++) {
            *members += all[k].hash == all[i].hash && all[k].size == all[i].size;
        }
        if (all[i].size != all[0].size || *members != all[i].size) {
            return i;
        }
    }
    return size;
}

/* All ranks find the same. */
static ls_status check(ls_reducer *r, const given *own)
{
    const ls__arena_mark mark = ls__arena_mark_get(&r->arena);
    given *all = ls__arena_alloc(&r->arena, (size_t)r->size * sizeof *all);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for %d parameters", r->name,
                        r->param_count);
    }
    ls_status status =
        ls__control_all_gather(r->group, own, all, sizeof *own / sizeof(int32_t), LS_INT32,
                               LS_OPTIONS(ls_collective_options, .tag = "shard_group"));
    int members = 0;
    const int odd = status == LS_OK ? first_odd(all, r->size, &members) : r->size;
    if (odd < r->size) {
        status = ls__fail(LS_ERR_INVALID,
                          "shard_group: that of rank %d has %d ranks, of which %d are ranks of the "
                          "ddp that give it, and that of rank %d has %d; give each rank of the ddp "
                          "its own one of groups of equal size, which together have all of them",
                          ls__reducer_rank(r, odd), all[odd].size, members, ls__reducer_rank(r, 0),
                          all[0].size);
    }
    ls__arena_rewind(&r->arena, mark);
    return status;
}

ls_status ls__reducer_divide(ls_reducer *r, bool release, ls_group *within)
{
    ls__reduce_division *s = &r->division;
    const ls_group *own = ls__round_robin_at(within != NULL ? within : r->group, 0);
    r->keeps_parts = true;
    r->releases = release;
    s->rank = own->rank;
    s->size = own->size;
    if (within == NULL) {
        return LS_OK;
    }
    const given mine = given_of(own);
    LS_TRY(check(r, &mine));
    if (own->size == r->size) { /* maybe in another order */
        s->rank = r->rank;
        return LS_OK;
    }
    LS_TRY(ls_group_create(
        (ls_group *)own,
        LS_OPTIONS(ls_group_options, .name = r->name, .backend = r->options.backend),
        &s->group[0]));
    return ls_group_split(r->domains[0].turns[0], s->rank, 0, r->name, &s->group[1]);
}

ls_status ls__reducer_second_group(ls_reducer *r, ls_group **out)
{
    ls__reduce_division *s = &r->division;
    if (ls__division_is_hybrid(r)) {
        LS_TRY(s->group[2] == NULL ? ls_group_new(s->group[0], NULL, 0, r->name, &s->group[2])
                                   : LS_OK);
        *out = s->group[2];
        return LS_OK;
    }
    LS_TRY(ls__domains_add_phases(r, 2));
    *out = ls__domain_phase_group(&r->domains[0], 1);
    return LS_OK;
}

ls_status ls__reducer_scatter(ls_reducer *r)
{
    LS_ASSERT(r->keeps_parts);
    LS_TRY(ls__pool_open(r));
    for (int b = 0; r->size > 1 && r->releases && b < r->plan.count; b++) {
        ls__bucket_release(r, &r->plan.buckets[b]);
    }
    LS_ASSERT(r->phase != LS__REDUCER_CONTROL && r->phase != LS__REDUCER_RUNNING);
    r->scattered = r->size > 1;
    r->phases = ls__division_is_hybrid(r) ? 2 : 1;
    return LS_OK;
}

ls_status ls__division_free(ls_reducer *r)
{
    ls_status first = LS_OK;
    for (int i = LS__DIVISION_GROUPS - 1; i >= 0; i--) {
        const ls_status status = ls_group_free(r->division.group[i]);
        first = first < 0 ? first : status;
        r->division.group[i] = NULL;
    }
    return first;
}

uint64_t ls__division_sent(const ls_reducer *r)
{
    uint64_t sent = 0;
    for (int i = 0; i < LS__DIVISION_GROUPS; i++) {
        ls_counters counters = {.size = sizeof counters};
        if (r->division.group[i] != NULL) {
            (void)ls_group_get_counters(r->division.group[i], &counters);
            sent += counters.bytes_sent;
        }
    }
    return sent;
}
