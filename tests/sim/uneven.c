/* SPDX-License-Identifier: Apache-2.0 */
/* The v-variants in the script: how long blocks are and where they lie follows from the operation's
 * number, and so does what must come out. Some blocks are empty, some ranks leave gaps. */
#include <string.h>

#include "sim/scenario.h"

#define GAP 2
#define PLACE_SHIFT 24 /* element k of the block for rank r has the value of place r << 24 | k */

ls__operation ls__uneven_operation(ls__plan_kind kind)
{
    switch (kind) {
    case LS__PLAN_ALL_TO_ALL_V:
        return LS__OP_ALL_TO_ALL_V;
    case LS__PLAN_ALL_GATHER_V:
        return LS__OP_ALL_GATHER_V;
    case LS__PLAN_REDUCE_SCATTER_V:
        return LS__OP_REDUCE_SCATTER_V;
    case LS__PLAN_GATHER_V:
        return LS__OP_GATHER_V;
    case LS__PLAN_SCATTER_V:
        return LS__OP_SCATTER_V;
    default:
        return LS__OP_COUNT;
    }
}

/* What rank `from` gives rank `to`; where all get or give the same, one of them is 0. */
static int64_t length_of(const ls__plan_operation *o, int from, int to)
{
    ls__sim_random r = {o->id ^ (uint64_t)(from * LS__PLAN_RANKS_MAX + to + 1) << 32};
    switch (ls__sim_below(&r, 4)) {
    case 0:
        return 0;
    case 1:
        return o->count;
    default:
        return (int64_t)ls__sim_below(&r, (uint64_t)o->count + 1);
    }
}

static bool exists(ls__operation operation, int side, bool is_root)
{
    return is_root || ls__operation_on_all(operation, side == 0);
}

void ls__uneven_lay_out(const ls__plan_operation *o, int rank, int size, ls__uneven *u)
{
    const ls__operation operation = ls__uneven_operation(o->kind);
    const bool gaps = (o->id >> rank & 1) != 0, both = operation == LS__OP_ALL_TO_ALL_V;
    *u = (ls__uneven){.operation = operation, .rank = rank, .size = size, .root = o->root % size};
    u->own = length_of(o, rank, 0);
    for (int side = 0; side < 2; side++) {
        const bool blocks = ls__operation_has_blocks(operation, side == 0);
        for (int r = 0; r < (blocks ? size : 1); r++) {
            u->count[side][r] = !blocks     ? u->own
                                : !both     ? length_of(o, r, 0)
                                : side == 0 ? length_of(o, rank, r)
                                            : length_of(o, r, rank);
            u->offset[side][r] = u->end[side];
            u->end[side] += u->count[side][r] + (gaps && blocks ? GAP : 0);
        }
        u->blocks[side] = !exists(operation, side, rank == u->root) ? 0 : blocks ? size : 1;
        u->end[side] = u->blocks[side] == 0 ? 0 : u->end[side];
        u->offsets[side] = gaps ? u->offset[side] : NULL;
    }
}

static int64_t place_of(int rank, int64_t k)
{
    return (int64_t)rank << PLACE_SHIFT | k;
}

void ls__uneven_fill(const ls__plan_operation *o, const ls__uneven *u, void *in)
{
    const bool long_in = ls__operation_has_blocks(u->operation, true);
    const size_t size = ls_dtype_size(o->dtype);
    for (int r = 0; r < u->blocks[0]; r++) {
        unsigned char *block = (unsigned char *)in + (size_t)u->offset[0][r] * size;
        for (int64_t k = 0; k < u->count[0][r]; k++) {
            ls__oracle_value(o, u->rank, place_of(long_in ? r : 0, k), block + (size_t)k * size);
        }
    }
}

static void wanted(const ls__plan_operation *o, const ls__uneven *u, int block, int64_t k,
                   void *out)
{
    switch (u->operation) {
    case LS__OP_ALL_TO_ALL_V:
        ls__oracle_value(o, block, place_of(u->rank, k), out);
        break;
    case LS__OP_REDUCE_SCATTER_V:
        ls__oracle_reduced(o, place_of(u->rank, k), u->size, out);
        break;
    case LS__OP_SCATTER_V:
        ls__oracle_value(o, u->root, place_of(u->rank, k), out);
        break;
    default:
        ls__oracle_value(o, block, k, out);
    }
}

int64_t ls__uneven_wrong(const ls__plan_operation *o, const ls__uneven *u, const void *out)
{
    const size_t size = ls_dtype_size(o->dtype);
    for (int b = 0; b < u->blocks[1]; b++) {
        const unsigned char *block = (const unsigned char *)out + (size_t)u->offset[1][b] * size;
        for (int64_t k = 0; k < u->count[1][b]; k++) {
            unsigned char want[sizeof(double)];
            wanted(o, u, b, k, want);
            if (memcmp(block + (size_t)k * size, want, size) != 0) {
                return u->offset[1][b] + k;
            }
        }
    }
    return -1;
}

ls_status ls__uneven_start(const ls__plan_operation *o, const ls__uneven *u, ls_group *g,
                           const void *in, void *out, const ls_collective_options *with,
                           ls_work **work)
{
    const ls_dtype t = o->dtype;
    switch (u->operation) {
    case LS__OP_ALL_TO_ALL_V:
        return ls_all_to_all_v(g, in, u->count[0], u->offsets[0], out, u->count[1], u->offsets[1],
                               t, with, work);
    case LS__OP_ALL_GATHER_V:
        return ls_all_gather_v(g, in, u->own, out, u->count[1], u->offsets[1], t, with, work);
    case LS__OP_REDUCE_SCATTER_V:
        return ls_reduce_scatter_v(g, in, u->count[0], u->offsets[0], out, t, o->op, with, work);
    case LS__OP_GATHER_V:
        return ls_gather_v(g, in, u->own, out, u->count[1], u->offsets[1], t, u->root, with, work);
    default:
        return ls_scatter_v(g, in, u->count[0], u->offsets[0], out, u->own, t, u->root, with, work);
    }
}
