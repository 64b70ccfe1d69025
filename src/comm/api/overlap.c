/* SPDX-License-Identifier: Apache-2.0 */
/* Overlap of input and output: they must be disjoint, or in place as each operation defines it.
 * With any other overlap a step would overwrite input that this rank or a peer still reads, and the
 * result would be silently wrong; so it is refused. In the v-variants only the blocks count, not
 * the gaps between them. */
#include "comm/api/collective.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"

typedef struct span {
    uintptr_t begin, end;
} span;

/* A range of addresses. Earlier checks have made sure that the end does not overflow. */
static span span_of(const void *memory, int64_t from, int64_t count, size_t element)
{
    const uintptr_t begin = (uintptr_t)memory + (uintptr_t)from * element;
    return (span){begin, begin + (uintptr_t)count * element};
}

/* An empty span overlaps nothing. */
static bool are_apart(span a, span b)
{
    return a.end <= b.begin || b.end <= a.begin || a.begin == a.end || b.begin == b.end;
}

/* The message says which overlap would be allowed. */
static ls_status refuse(const char *what, const ls_group *group, const char *rule)
{
    return ls__fail(LS_ERR_INVALID, "%s on group \"%s\": in and out overlap; %s", what, group->name,
                    rule);
}

/* Whether one block `own` overlaps only its own place among the blocks of the other side. */
static bool fits(const ls_group *group, const ls__collective *args, int side, span own)
{
    const void *memory = side == 0 ? args->input : args->output;
    const size_t element = ls_dtype_size(args->dtype);
    int64_t from = 0;
    for (int r = 0; r < group->size; r++) {
        const int64_t count = args->counts[side] != NULL ? args->counts[side][r] : args->count;
        const int64_t at = args->offsets[side] != NULL ? args->offsets[side][r] : from;
        const span block = span_of(memory, at, count, element);
        if (!are_apart(own, block) && (r != group->rank || own.begin != block.begin)) {
            return false;
        }
        from += count;
    }
    return true;
}

/* Where one side is a single block, in place means that the block lies at its own place among those
 * of the other side; otherwise both buffers are equal. */
ls_status ls__overlap_check(const char *what, const ls_group *group, const ls__collective *args)
{
    const size_t element = ls_dtype_size(args->dtype);
    const bool short_in = ls__operation_is_short(args->operation, true);
    const bool short_out = ls__operation_is_short(args->operation, false);
    if (short_in || short_out) {
        const int64_t count =
            args->operation == LS__OP_REDUCE_SCATTER_V ? args->counts[0][group->rank] : args->count;
        const span own = span_of(short_in ? args->input : args->output, 0, count, element);
        return fits(group, args, short_in ? 1 : 0, own) ? LS_OK
               : short_in ? refuse(what, group, "only in may be this rank's own block of out")
                          : refuse(what, group, "only out may be this rank's own block of in");
    }
    if (args->input == args->output || ls__operation_is_v(args->operation)) {
        return LS_OK; /* all_to_all_v in place: v_counts.c */
    }
    const int64_t blocks = ls__operation_has_blocks(args->operation, true) ? group->size : 1;
    const int64_t count = args->count * blocks;
    return are_apart(span_of(args->input, 0, count, element),
                     span_of(args->output, 0, count, element))
               ? LS_OK
               : refuse(what, group, "give one buffer for both, or two that are disjoint");
}
