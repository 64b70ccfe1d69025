/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the ranks' entries fit together: what several ranks show under one name is the same, and
 * the boxes of a tensor, each counted once, make up the whole tensor. Linear in the entries, unless
 * there is something to explain.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/boxes.h"
#include "checkpoint/internal.h"
#include "checkpoint/shape.h"

#define VALUE_TEXT (LS__SHAPE_TEXT + 32)

/* Any key will do: the boxes are those of this job's ranks, which choose none for a key. */
static const ls__boxes keys = {{0x9e3779b9, 0x7f4a7c15}};

static const char *value_text(const ls__saved_entry *e, char out[VALUE_TEXT])
{
    char shape[LS__SHAPE_TEXT];
    if (e->type == LS__ENTRY_TENSOR) {
        (void)snprintf(out, VALUE_TEXT, "%s %s", ls_dtype_name(e->tensor.dtype),
                       ls__shape_text(e->tensor.global, e->tensor.ndim, shape));
    } else if (e->type == LS__ENTRY_INT64) {
        (void)snprintf(out, VALUE_TEXT, "int64 %lld", (long long)e->int64);
    } else {
        (void)snprintf(out, VALUE_TEXT, "float64 %.17g", e->float64);
    }
    return out;
}

/* Numbers by their bits: a NaN is equal to itself. */
static bool is_same(const ls__saved_entry *a, const ls__saved_entry *b)
{
    if (a->type == LS__ENTRY_TENSOR) {
        return ls__entry_same_tensor(a, b);
    }
    return a->type == b->type && a->int64 == b->int64 &&
           memcmp(&a->float64, &b->float64, sizeof a->float64) == 0;
}

/* The two are of different ranks, since ls__table_collect refuses such a pair of one. */
static ls_status say_mismatch(const ls__saved_entry *a, const ls__saved_entry *b)
{
    char here[VALUE_TEXT], there[VALUE_TEXT];
    const ls__saved_entry *low = a->rank < b->rank ? a : b, *high = low == a ? b : a;
    return ls__fail(LS_ERR_MISMATCH,
                    "ls_checkpoint_save: \"%.200s\" is %s on rank %d and %s on rank %d; what "
                    "several ranks show under one name must be the same (is a loader at another "
                    "place of the epoch?)",
                    a->name, value_text(low, here), low->rank, value_text(high, there), high->rank);
}

/* Replicas that have gone apart: a file could hold one rank's numbers only. CRC-32C finds every
 * difference of up to 32 bits in a row, and misses one in 2^32 of the others. */
static ls_status say_differing(const ls__saved_entry *a, const ls__saved_entry *b)
{
    char tensor[VALUE_TEXT];
    return ls__fail(
        LS_ERR_MISMATCH,
        "ls_checkpoint_save: \"%.200s\" (%s) has other numbers on rank %d than on rank %d, and "
        "only "
        "one of them could be saved. After local steps (ls_ddp_set_local) call ls_ddp_average with "
        "the optimizer first; else show the state of each rank under a name of its own (its rank "
        "in "
        "the item's prefix)",
        a->name, value_text(a, tensor), b->rank, a->rank);
}

/* ---- boxes ---------------------------------------------------------------------------------- */

/* Ranks that show the same box, or an empty one, count once. */
static bool counts(ls__saved_entry *const *list, int i)
{
    return list[i]->bytes > 0 && (i == 0 || !ls__entry_same_box(list[i - 1], list[i]));
}

static ls_status say_missing(const ls__saved_entry *e, const ls__box *region)
{
    char box[LS__BOX_TEXT], tensor[VALUE_TEXT];
    return ls__fail(LS_ERR_MISMATCH,
                    "ls_checkpoint_save: no rank shows %s of \"%.200s\" (%s); the slices of all "
                    "ranks together must be the whole tensor",
                    ls__shape_box_text(region->start, region->dim, e->tensor.ndim, box), e->name,
                    value_text(e, tensor));
}

static ls_status say_overlap(const ls__saved_entry *a, const ls__saved_entry *b)
{
    const ls_state_tensor *s = &a->tensor, *t = &b->tensor;
    char first[LS__BOX_TEXT], second[LS__BOX_TEXT], tensor[VALUE_TEXT];
    return ls__fail(LS_ERR_MISMATCH,
                    "ls_checkpoint_save: of \"%.200s\" (%s) rank %d shows %s and rank %d %s, which "
                    "overlap; slices must be equal or apart",
                    a->name, value_text(a, tensor), a->rank,
                    ls__shape_box_text(s->start, s->local, s->ndim, first), b->rank,
                    ls__shape_box_text(t->start, t->local, t->ndim, second));
}

/* Finds a place that no box holds or that several do. boxes and from have room for `count`. */
static ls_status explain(ls__saved_entry *const *list, int count, ls__box *boxes, int *from)
{
    int n = 0, pair[2];
    ls__box region;
    const ls_state_tensor *t = &list[0]->tensor;
    for (int i = 0; i < count; i++) {
        if (counts(list, i)) {
            memcpy(boxes[n].start, list[i]->tensor.start, sizeof boxes[n].start);
            memcpy(boxes[n].dim, list[i]->tensor.local, sizeof boxes[n].dim);
            from[n++] = i;
        }
    }
    LS_TRY(ls__boxes_explain(&keys, boxes, n, t->global, t->ndim, &region, pair));
    return pair[1] < 0 ? say_missing(list[0], &region)
                       : say_overlap(list[from[pair[0]]], list[from[pair[1]]]);
}

static ls_status compare_boxes(ls__saved_entry *const *list, int count)
{
    static const int64_t origin[LS_DIMS_MAX];
    const ls_state_tensor *t = &list[0]->tensor;
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) {
        if (counts(list, i)) {
            const ls_state_tensor *box = &list[i]->tensor;
            sum = ls__box_add(sum, ls__box_print(&keys, box->start, box->local, t->ndim));
        }
    }
    if (sum == ls__box_print(&keys, origin, t->global, t->ndim)) {
        return LS_OK;
    }
    ls__box *boxes = malloc((size_t)count * sizeof *boxes);
    int *from = malloc((size_t)count * sizeof *from);
    ls_status status = boxes != NULL && from != NULL
                           ? explain(list, count, boxes, from)
                           : ls__fail(LS_ERR_MEMORY, "checkpoint: no memory to compare slices");
    free(boxes);
    free(from);
    return status;
}

ls_status ls__shown_compare(const ls__shown *s)
{
    for (int i = 0, end; i < s->count; i = end) {
        for (end = i + 1; end < s->count && strcmp(s->sorted[i]->name, s->sorted[end]->name) == 0;
             end++) {
            if (!is_same(s->sorted[i], s->sorted[end])) {
                return say_mismatch(s->sorted[i], s->sorted[end]);
            }
            if (s->sorted[end - 1]->sum != s->sorted[end]->sum &&
                ls__entry_same_box(s->sorted[end - 1], s->sorted[end])) {
                return say_differing(s->sorted[end - 1], s->sorted[end]);
            }
        }
        if (s->sorted[i]->type == LS__ENTRY_TENSOR) {
            LS_TRY(compare_boxes(&s->sorted[i], end - i));
        }
    }
    return LS_OK;
}
