/* Who writes what. Replicated tensors go, the largest first, each to the rank that has the fewest
 * bytes so far (longest processing time first, Graham 1969). What is larger than a fraction of a
 * rank's share is cut into parts, each for a rank of its own, so that one huge embedding does not
 * keep one disk busy while the others wait:
 *
 *     4 ranks, shares of 40 MB:   embedding 100 MB  ->  25 | 25 | 25 | 25
 *                                 everything else   ->  15 | 15 | 15 | 15
 *
 * Then no rank has more than its even share and one part (1/8 of that), up to a row of each tensor.
 * A rank's slice of a distributed tensor is its own to write and counts for nobody, so the plan
 * follows from names and shapes alone and is the same on all ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "checkpoint/internal.h"

#define PARTS_A_RANK 8                    /* roughly; more balance better and take more names */
#define PART_BYTES_MIN ((size_t)64 << 10) /* below, a part is not worth its line */

typedef struct share { /* the bytes that a rank has to write so far */
    size_t bytes;
    int rank;
} share;

typedef struct planner {
    share *shares; /* [size] */
    ls__saved_entry **order;
    int rank, size, tensors;
    size_t part_bytes; /* larger tensors are cut */
} planner;

/* The largest first; names break ties, so that the order is total and the same on all ranks. */
static int by_bytes(const void *a, const void *b)
{
    const ls__saved_entry *x = *(ls__saved_entry *const *)a, *y = *(ls__saved_entry *const *)b;
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

/* Insertion sort: the shares were in order before a few of them grew, so few elements move. */
static void lightest_first(share *shares, int size)
{
    for (int i = 1; i < size; i++) {
        const share s = shares[i];
        int k = i;
        while (k > 0 && (shares[k - 1].bytes > s.bytes ||
                         (shares[k - 1].bytes == s.bytes && shares[k - 1].rank > s.rank))) {
            shares[k] = shares[k - 1];
            k--;
        }
        shares[k] = s;
    }
}

/* ---- cutting ------------------------------------------------------------------------------- */

/* Parts are contiguous boxes: all dimensions before `dim` at one index, a range of `dim`, and
 * everything behind it. Most tensors have more rows than there are ranks; then `dim` is 0. */
typedef struct cut {
    int dim;
    int64_t before; /* how many indices the dims before have together */
    int64_t ranges; /* of `dim` */
} cut;

/* Leading dimensions are fixed one by one while all their indices fit into `parts`. Invariant:
 * before <= parts, so room >= 1. Needs ndim >= 1 and no empty dimension. */
static cut find_cut(const ls_state_tensor *t, int parts)
{
    cut c = {.dim = 0, .before = 1};
    while (c.dim < t->ndim - 1 && t->global[c.dim] <= parts / c.before) {
        c.before *= t->global[c.dim++];
    }
    int64_t room = parts / c.before;
    c.ranges = t->global[c.dim] < room ? t->global[c.dim] : room;
    return c;
}

/* The part that equals this rank's slice; also the start from which ls__part_cut narrows. */
static void whole_part(const ls__saved_entry *e, ls__part *out)
{
    memcpy(out->start, e->tensor.start, sizeof out->start);
    memcpy(out->dim, e->tensor.local, sizeof out->dim);
    out->skip = 0;
    out->bytes = e->bytes;
}

/* Earlier ranges get the remainder, one row each. There may be fewer parts than asked for: a
 * part is never smaller than one index of the cut dimension. `skip` counts from the tensor's
 * first byte. */
int ls__part_cut(const ls__saved_entry *e, int parts, int index, ls__part *out)
{
    const ls_state_tensor *t = &e->tensor;
    whole_part(e, out);
    if (t->ndim == 0 || e->bytes == 0) {
        return 1;
    }
    const cut c = find_cut(t, parts);
    LS_ASSERT(index >= 0 && index < c.before * c.ranges);
    int64_t lead = index / c.ranges, range = index % c.ranges;
    const int64_t least = t->global[c.dim] / c.ranges, more = t->global[c.dim] % c.ranges;
    const size_t row = e->bytes / (size_t)(c.before * t->global[c.dim]);
    out->start[c.dim] = range * least + (range < more ? range : more);
    out->dim[c.dim] = least + (range < more ? 1 : 0);
    out->skip = (size_t)(lead * t->global[c.dim] + out->start[c.dim]) * row;
    out->bytes = (size_t)out->dim[c.dim] * row;
    for (int i = c.dim - 1; i >= 0; i--) {
        out->start[i] = lead % t->global[i];
        out->dim[i] = 1;
        lead /= t->global[i];
    }
    return (int)(c.before * c.ranges);
}

/* ---- assigning ----------------------------------------------------------------------------- */

/* At most one part for each rank, since two parts on one rank would only add names. */
static int parts_of(const planner *p, const ls__saved_entry *e)
{
    LS_ASSERT(p->part_bytes > 0);
    const size_t parts = e->bytes / p->part_bytes + (e->bytes % p->part_bytes > 0);
    return parts < 1 ? 1 : parts < (size_t)p->size ? (int)parts : p->size;
}

/* The first part goes to the rank with the fewest bytes, the second to the next, and so on.
 * Every rank computes all shares but keeps only its own part. */
static void assign(planner *p, ls__saved_entry *e)
{
    ls__part part;
    int count = ls__part_cut(e, parts_of(p, e), 0, &part);
    for (int i = 0; i < count; i++) {
        (void)ls__part_cut(e, parts_of(p, e), i, &part);
        p->shares[i].bytes += part.bytes;
        if (p->shares[i].rank == p->rank) {
            e->mine = true;
            e->part = part;
        }
    }
    lightest_first(p->shares, p->size);
}

/* The total saturates instead of overflowing; an absurd size then yields large parts, and the
 * allocation of the image reports the problem. */
static void find_part_bytes(planner *p)
{
    size_t total = 0;
    for (int i = 0; i < p->tensors; i++) {
        const ls__saved_entry *e = p->order[i];
        if (ls__tensor_is_whole(&e->tensor) && !ls__add_size(total, e->bytes, &total)) {
            total = SIZE_MAX;
        }
    }
    p->part_bytes = total / (size_t)p->size / PARTS_A_RANK;
    p->part_bytes = p->part_bytes < PART_BYTES_MIN ? PART_BYTES_MIN : p->part_bytes;
}

/* Deterministic in names, shapes, rank count; it must not depend on local slices' contents or
 * addresses, since no message is exchanged. */
static void plan(planner *p, ls__table *table)
{
    for (int r = 0; r < p->size; r++) {
        p->shares[r] = (share){.rank = r};
    }
    for (int i = 0; i < table->count; i++) {
        if (table->list[i].type == LS__ENTRY_TENSOR) {
            p->order[p->tensors++] = &table->list[i];
        }
    }
    qsort(p->order, (size_t)p->tensors, sizeof(ls__saved_entry *), by_bytes);
    find_part_bytes(p);
    for (int i = 0; i < p->tensors; i++) {
        ls__saved_entry *e = p->order[i];
        if (ls__tensor_is_whole(&e->tensor)) {
            assign(p, e);
        } else {
            e->mine = true;
            whole_part(e, &e->part);
        }
    }
}

/* Needs the collected table of all items. Local: the ranks reach the same plan without
 * communication, and the caller has their tables compared. */
ls_status ls__plan_writers(ls__table *table, int rank, int size)
{
    planner p = {.rank = rank, .size = size};
    p.shares = calloc((size_t)size, sizeof *p.shares);
    p.order = malloc(((size_t)table->count + 1) * sizeof(ls__saved_entry *));
    ls_status status = LS_OK;
    if (p.shares != NULL && p.order != NULL) {
        plan(&p, table);
    } else {
        status =
            ls__fail(LS_ERR_MEMORY, "checkpoint: no memory to assign %d tensors", table->count);
    }
    free(p.shares);
    free(p.order);
    return status;
}
