/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of unequal lengths: the arguments of the v-variants, the table to which programs are
 * bound, and the search for the entry that differs.
 *
 * Note [Which entry]
 * Ranks that all give all counts compare a hash of them. When it differs, the descriptors also hold
 * the sum of the counts and the sum of (i + 1) * counts[i]. A rank whose own counts are those of
 * one side then finds the other's: if entry i alone differs, by d, the sums differ by d and
 * (i + 1) * d; if two differ, each pair of entries leaves one solution. The hash of the own counts
 * with these entries changed must be the other's, so an entry is named only if it is certain.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/operation/exec.h"
#include "comm/operation/v_counts.h"

#define PAIRS_RANKS_MAX 256 /* pairs are tried for groups up to this size: 2^15 hashes of 2 KB */

/* ---- arguments ---------------------------------------------------------------------------- */

/* Whether this side consists of blocks on this rank; in rooted operations only the root's does. */
static bool is_long(const ls_group *group, const ls__collective *args, int side)
{
    return ls__operation_has_blocks(args->operation, side == 0) &&
           ls__operation_uses(args->operation, side == 0, group->rank, args->root);
}

/* Prefix of the argument's name in error texts; all_to_all_v has counts on both sides. */
static const char *side_name(const ls__collective *args, int side)
{
    const bool both = ls__operation_plain(args->operation) == LS__OP_ALL_TO_ALL;
    return !both ? "" : side == 0 ? "in_" : "out_";
}

/* Checks entry r of a long side and whether memory could hold it. *end is where the next block
 * begins without offsets. */
static ls_status check_entry(const char *what, const ls_group *group, const ls__collective *args,
                             int side, int r, int64_t *end)
{
    const int64_t count = args->counts[side][r];
    const int64_t offset = args->offsets[side] != NULL ? args->offsets[side][r] : *end;
    const char *name = side_name(args, side);
    size_t bytes = 0;
    if (count < 0 || offset < 0 || count > INT64_MAX - offset ||
        !ls__bytes_of(offset + count, ls_dtype_size(args->dtype), &bytes)) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": %scounts[%d] is %lld at offset %lld; give values of "
                        "0 or more that fit in memory",
                        what, group->name, name, r, (long long)count, (long long)offset);
    }
    if (args->offsets[side] == NULL) {
        *end = offset + count;
    }
    const void *memory = side == 0 ? args->input : args->output;
    if (count > 0 && memory == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": the buffer is NULL and %scounts[%d] is %lld; give "
                        "memory, or counts of 0",
                        what, group->name, name, r, (long long)count);
    }
    return LS_OK;
}

/* All entries of one long side. */
static ls_status check_side(const char *what, const ls_group *group, const ls__collective *args,
                            int side)
{
    int64_t end = 0;
    if (args->counts[side] == NULL) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s on group \"%s\": %scounts is NULL; give a count for each of the %d ranks", what,
            group->name, side_name(args, side), group->size);
    }
    for (int r = 0; r < group->size; r++) {
        LS_TRY(check_entry(what, group, args, side, r, &end));
    }
    return LS_OK;
}

/* In place, both sides must describe the same blocks. */
static bool same_places(const ls_group *group, const ls__collective *args)
{
    const size_t bytes = (size_t)group->size * sizeof(int64_t);
    const int64_t *in = args->offsets[0], *out = args->offsets[1];
    return memcmp(args->counts[0], args->counts[1], bytes) == 0 &&
           (in == out || (in != NULL && out != NULL && memcmp(in, out, bytes) == 0));
}

/* The block of this rank appears on both sides and must have one length. */
static ls_status check_own(const char *what, const ls_group *group, const ls__collective *args)
{
    const int me = group->rank, side = is_long(group, args, 0) ? 0 : 1;
    const bool both = ls__operation_plain(args->operation) == LS__OP_ALL_TO_ALL;
    const bool at_root = is_long(group, args, 0) || is_long(group, args, 1);
    if (both && args->counts[0][me] != args->counts[1][me]) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": in_counts[%d] is %lld and out_counts[%d] %lld; a rank "
                        "must send itself as many elements as it receives from itself",
                        what, group->name, me, (long long)args->counts[0][me], me,
                        (long long)args->counts[1][me]);
    }
    if (both && args->input == args->output && args->input != NULL && !same_places(group, args)) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": in place, but the counts or offsets of in and out "
                        "differ; make them equal or give two buffers",
                        what, group->name);
    }
    if (!both && at_root && args->operation != LS__OP_REDUCE_SCATTER_V &&
        args->counts[side][me] != args->count) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s on group \"%s\": count is %lld, but counts[%d] of this rank is %lld; make "
            "them equal",
            what, group->name, (long long)args->count, me, (long long)args->counts[side][me]);
    }
    return LS_OK;
}

/* The side that is one block must fit in memory. */
static ls_status check_short(const char *what, const ls_group *group, const ls__collective *args)
{
    const bool input = ls__operation_is_short(args->operation, true);
    const bool output = ls__operation_is_short(args->operation, false);
    const int64_t count =
        args->operation == LS__OP_REDUCE_SCATTER_V ? args->counts[0][group->rank] : args->count;
    size_t bytes = 0;
    if (!ls__bytes_of(count, ls_dtype_size(args->dtype), &bytes) ||
        (count > 0 && ((input && args->input == NULL) || (output && args->output == NULL)))) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": count is %lld, but the buffer is NULL or cannot be so "
                        "large; give memory for that many elements",
                        what, group->name, (long long)count);
    }
    return LS_OK;
}

/* The long sides first: the other checks read their entries. */
ls_status ls__counts_check(const char *what, const ls_group *group, const ls__collective *args)
{
    for (int side = 0; side < 2; side++) {
        if (is_long(group, args, side)) {
            LS_TRY(check_side(what, group, args, side));
        }
    }
    LS_TRY(check_own(what, group, args));
    return check_short(what, group, args);
}

/* ---- the table ---------------------------------------------------------------------------- */

/* The table stays with the work when that is used again, so it has room for any group. */
bool ls__counts_room(ls__comm *comm, ls_work *work)
{
    const size_t ranks = (size_t)comm->world->size;
    if (work->table == NULL) {
        work->table = ls__arena_alloc(&comm->pool.memory, 4 * ranks * sizeof *work->table);
    }
    return work->table != NULL;
}

/* FNV-1a by words, with the low bit set, since 0 means that there is no hash. */
static uint64_t hash_of(const int64_t *counts, int n)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < n; i++) {
        hash = (hash ^ (uint64_t)counts[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash | 1;
}

/* Copies counts and offsets, computes missing offsets, and raises the count to the longest
 * block. */
static void fill_long(const ls__collective *args, int side, int n, ls_work *work)
{
    int64_t end = 0;
    for (int r = 0; r < n; r++) {
        const int64_t count = args->counts[side][r];
        work->count_of[side][r] = count;
        work->offset_of[side][r] = args->offsets[side] != NULL ? args->offsets[side][r] : end;
        end += count;
        work->count = count > work->count ? count : work->count;
    }
}

/* Wraps around, as the difference of two sums does. */
static int64_t sum_of(const int64_t *counts, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += (uint64_t)counts[i];
    }
    return (int64_t)sum;
}

/* Each count times its position; see Note [Which entry]. */
static uint64_t weight_of(const int64_t *counts, int n)
{
    uint64_t weight = 0;
    for (int i = 0; i < n; i++) {
        weight += (uint64_t)(i + 1) * (uint64_t)counts[i];
    }
    return weight;
}

/* If all ranks know all counts, hash, sum and weight go into the descriptor; otherwise the two ends
 * of each block compare their lengths. */
void ls__counts_fill(const ls_group *group, const ls__collective *args, ls_work *work)
{
    LS_ASSERT(work->table != NULL);
    const int n = group->size, me = group->rank;
    ls__descriptor *d = &work->descriptor;
    work->count = 0;
    for (int side = 0; side < 2; side++) {
        work->count_of[side] = work->table + (size_t)(2 * side) * (size_t)n;
        work->offset_of[side] = work->table + (size_t)(2 * side + 1) * (size_t)n;
        memset(work->count_of[side], 0, 2 * (size_t)n * sizeof(int64_t));
    }
    for (int side = 0; side < 2; side++) {
        if (is_long(group, args, side)) {
            fill_long(args, side, n, work);
        }
        if (ls__operation_is_short(args->operation, side == 0)) {
            const int64_t own =
                args->operation == LS__OP_REDUCE_SCATTER_V ? args->counts[0][me] : args->count;
            work->count_of[side][me] = own;
            work->count = own > work->count ? own : work->count;
        }
    }
    if (ls__operation_counts_known(args->operation)) {
        const int64_t *counts = work->count_of[args->operation == LS__OP_ALL_GATHER_V];
        d->count = sum_of(counts, n);
        d->counts_hash = hash_of(counts, n);
        d->counts_weight = weight_of(counts, n);
    } else if (args->operation == LS__OP_ALL_TO_ALL_V) {
        d->count = sum_of(work->count_of[0], n);
    }
}

/* For mismatch.c, which does not know the execution's state. */
const ls__descriptor *ls__counts_descriptor(const ls_group *group)
{
    return &group->exec->work->descriptor;
}

/* ---- which entry differs ------------------------------------------------------------------- */

typedef struct difference {
    int64_t *counts; /* this rank's; would_be changes and restores entries */
    int n;
    uint64_t sum, weight; /* of the other rank, minus this rank's */
    uint64_t hash;        /* of the other rank */
} difference;

/* Whether changing entry i by `by` gives the other rank's counts. */
static bool would_be(difference *d, int i, uint64_t by)
{
    d->counts[i] = (int64_t)((uint64_t)d->counts[i] + by);
    const bool same = hash_of(d->counts, d->n) == d->hash;
    d->counts[i] = (int64_t)((uint64_t)d->counts[i] - by);
    return same;
}

/* The first entry that differs, and by how much; -1: not found. For a pair i, j: by_i + by_j = sum
 * and (i + 1) * by_i + (j + 1) * by_j = weight. */
static int find_entry(difference *d, uint64_t *by)
{
    for (int i = 0; i < d->n; i++) {
        *by = d->sum;
        if (would_be(d, i, *by)) {
            return i;
        }
    }
    for (int i = 0; i < d->n && d->n <= PAIRS_RANKS_MAX; i++) {
        for (int j = i + 1; j < d->n; j++) {
            const int64_t rest = (int64_t)((uint64_t)(j + 1) * d->sum - d->weight);
            *by = (uint64_t)(rest / (j - i));
            if (rest % (j - i) != 0) {
                continue;
            }
            const int64_t own = d->counts[i];
            d->counts[i] = (int64_t)((uint64_t)own + *by);
            const bool found = would_be(d, j, d->sum - *by);
            d->counts[i] = own;
            if (found) {
                return i;
            }
        }
    }
    return -1;
}

/* Only a rank whose own counts are those of one side can find the entry. */
void ls__counts_difference(const ls_group *group, const ls__descriptor *a, int rank_a,
                           const ls__descriptor *b, int rank_b, char *out, size_t bytes)
{
    const ls_work *work = group->exec->work;
    out[0] = '\0';
    if (a->counts_hash == b->counts_hash) {
        return;
    }
    const bool current = work != NULL && work->descriptor.sequence == a->sequence &&
                         work->descriptor.operation == a->operation && work->count_of[0] != NULL;
    const uint64_t own = current ? work->descriptor.counts_hash : 0;
    if (own != a->counts_hash && own != b->counts_hash) {
        return;
    }
    const ls__descriptor *other = own == a->counts_hash ? b : a;
    difference d = {.counts = work->count_of[a->operation == LS__OP_ALL_GATHER_V],
                    .n = group->size,
                    .sum = (uint64_t)other->count - (uint64_t)work->descriptor.count,
                    .weight = other->counts_weight - work->descriptor.counts_weight,
                    .hash = other->counts_hash};
    uint64_t by = 0;
    const int i = find_entry(&d, &by);
    if (i < 0) {
        snprintf(out, bytes, ": more than two of the counts differ");
        return;
    }
    const int64_t mine = d.counts[i], theirs = (int64_t)((uint64_t)mine + by);
    snprintf(out, bytes, ": counts[%d] is %lld on rank %d and %lld on rank %d", i,
             (long long)(other == b ? mine : theirs), rank_a,
             (long long)(other == b ? theirs : mine), rank_b);
}
