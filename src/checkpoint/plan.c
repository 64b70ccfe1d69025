/* SPDX-License-Identifier: Apache-2.0 */
/* Who writes what. Each box that ranks show is written once, by ranks that show it. Boxes of one
 * rank leave no choice; the others go, the largest first, each to the rank with the fewest bytes so
 * far of those that show it (longest processing time first, Graham 1969). What is larger than a
 * fraction of a rank's share is cut into parts, each for a rank of its own, so that one huge
 * embedding does not keep one disk busy while the others wait:
 *
 *     4 ranks, shares of 40 MB:   embedding 100 MB  ->  25 | 25 | 25 | 25
 *                                 everything else   ->  15 | 15 | 15 | 15
 *
 * If all ranks show everything, none has more than its even share and one part (1/8 of that), up to
 * a row of each tensor. The plan follows from what all ranks show, and is the same on all of them.
 */
#include <stdio.h>
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

/* The entries [first, end) of the sorted list, which show the same box. */
typedef struct box {
    int name, first, end;
    int holders; /* ranks */
    size_t bytes;
} box;

typedef struct planner {
    ls__shown *shown;
    share *shares; /* [size], the fewest bytes first */
    int *equal;    /* [size]: how many ranks have the table of this one */
    int *holds;    /* [size]: the last box that this rank's table held */
    box *boxes;    /* [box_count] */
    int box_count;
    size_t part_bytes; /* larger boxes are cut */
} planner;

/* Those of one rank come first: they are part of its share when there is a choice. Then the largest
 * first; names break ties, so that the order is total and the same on all ranks. */
static int by_choice(const void *a, const void *b)
{
    const box *x = a, *y = b;
    if ((x->holders == 1) != (y->holders == 1)) {
        return x->holders == 1 ? -1 : 1;
    }
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    return x->first - y->first;
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
    while (c.dim < t->ndim - 1 && t->local[c.dim] <= parts / c.before) {
        c.before *= t->local[c.dim++];
    }
    int64_t room = parts / c.before;
    c.ranges = t->local[c.dim] < room ? t->local[c.dim] : room;
    return c;
}

/* Earlier ranges get the remainder, one row each. There may be fewer parts than asked for: a
 * part is never smaller than one index of the cut dimension. `skip` counts from the box's first
 * byte. */
int ls__part_cut(const ls__saved_entry *e, int parts, int index, ls__part *out)
{
    const ls_state_tensor *t = &e->tensor;
    memcpy(out->start, t->start, sizeof out->start);
    memcpy(out->dim, t->local, sizeof out->dim);
    out->skip = 0;
    out->bytes = e->bytes;
    if (t->ndim == 0 || e->bytes == 0) {
        return 1;
    }
    const cut c = find_cut(t, parts);
    LS_ASSERT(index >= 0 && index < c.before * c.ranges);
    int64_t lead = index / c.ranges, range = index % c.ranges;
    const int64_t least = t->local[c.dim] / c.ranges, more = t->local[c.dim] % c.ranges;
    const int64_t first = range * least + (range < more ? range : more);
    const size_t row = e->bytes / (size_t)(c.before * t->local[c.dim]);
    out->start[c.dim] = t->start[c.dim] + first;
    out->dim[c.dim] = least + (range < more ? 1 : 0);
    out->skip = (size_t)(lead * t->local[c.dim] + first) * row;
    out->bytes = (size_t)out->dim[c.dim] * row;
    for (int i = c.dim - 1; i >= 0; i--) {
        out->start[i] = t->start[i] + lead % t->local[i];
        out->dim[i] = 1;
        lead /= t->local[i];
    }
    return (int)(c.before * c.ranges);
}

/* ---- boxes ---------------------------------------------------------------------------------- */

static bool is_empty(const ls_state_tensor *t)
{
    for (int i = 0; i < t->ndim; i++) {
        if (t->global[i] == 0) {
            return true;
        }
    }
    return false;
}

/* An empty box is written only if the tensor is empty, and then once: files list every name. */
static bool is_written(const box *b, const ls__saved_entry *e)
{
    return e->type == LS__ENTRY_TENSOR &&
           (b->bytes > 0 || (b->first == b->name && is_empty(&e->tensor)));
}

/* The end of the entries from `first` on that show the same box. */
static int end_of(const ls__shown *s, int first)
{
    const ls__saved_entry *e = s->sorted[first];
    int end = first + 1;
    while (end < s->count && strcmp(e->name, s->sorted[end]->name) == 0 &&
           ls__entry_same_box(e, s->sorted[end])) {
        end++;
    }
    return end;
}

static void find_boxes(planner *p)
{
    const ls__shown *s = p->shown;
    for (int i = 0, end, name = 0; i < s->count; i = end) {
        end = end_of(s, i);
        name = strcmp(s->sorted[name]->name, s->sorted[i]->name) == 0 ? name : i;
        box b = {.name = name, .first = i, .end = end, .bytes = s->sorted[i]->bytes};
        for (int k = i; k < end; k++) {
            b.holders += p->equal[s->sorted[k]->rank];
        }
        if (is_written(&b, s->sorted[i])) {
            p->boxes[p->box_count++] = b;
        }
    }
    qsort(p->boxes, (size_t)p->box_count, sizeof *p->boxes, by_choice);
}

/* The total saturates instead of overflowing; an absurd size then yields large parts, and the
 * allocation of the image reports the problem. */
static void find_part_bytes(planner *p)
{
    size_t total = 0;
    for (int i = 0; i < p->box_count; i++) {
        if (!ls__add_size(total, p->boxes[i].bytes, &total)) {
            total = SIZE_MAX;
        }
    }
    p->part_bytes = total / (size_t)p->shown->size / PARTS_A_RANK;
    p->part_bytes = p->part_bytes < PART_BYTES_MIN ? PART_BYTES_MIN : p->part_bytes;
}

/* ---- assigning ----------------------------------------------------------------------------- */

/* At most one part for each rank, since two parts on one rank would only add names. */
static int parts_of(const planner *p, const box *b)
{
    LS_ASSERT(p->part_bytes > 0);
    const size_t parts = b->bytes / p->part_bytes + (b->bytes % p->part_bytes > 0);
    return parts < 1 ? 1 : parts < (size_t)b->holders ? (int)parts : b->holders;
}

static ls__piece *add_piece(ls__shown *s)
{
    if (s->piece_count == s->piece_room) {
        const int room = s->piece_room > 0 ? 2 * s->piece_room : 64;
        ls__piece *pieces = realloc(s->pieces, (size_t)room * sizeof *pieces);
        if (pieces == NULL) {
            return NULL;
        }
        s->pieces = pieces;
        s->piece_room = room;
    }
    return &s->pieces[s->piece_count++];
}

/* The first part goes to the rank with the fewest bytes of those that show the box, the second to
 * the next, and so on. Returns false without memory. */
static bool assign(planner *p, int index)
{
    ls__shown *s = p->shown;
    const box *b = &p->boxes[index];
    const ls__saved_entry *e = s->sorted[b->first];
    const int parts = parts_of(p, b);
    ls__part part;
    const int count = ls__part_cut(e, parts, 0, &part);
    for (int i = b->first; i < b->end; i++) {
        p->holds[s->sorted[i]->rank] = index;
    }
    for (int i = 0, k = 0; i < count; k++) {
        LS_ASSERT(k < s->size);
        share *to = &p->shares[k];
        if (p->holds[s->same_as[to->rank]] != index) {
            continue;
        }
        ls__piece *piece = add_piece(s);
        if (piece == NULL) {
            return false;
        }
        *piece = (ls__piece){.entry = e, .rank = to->rank, .name = b->name, .box = b->first};
        (void)ls__part_cut(e, parts, i++, &piece->part);
        to->bytes += piece->part.bytes;
    }
    lightest_first(p->shares, s->size);
    return true;
}

/* ---- keys ----------------------------------------------------------------------------------- */

const char *ls__piece_key(const char *name, int key, char out[LS__PIECE_KEY_MAX])
{
    if (key == 0) {
        return name;
    }
    (void)snprintf(out, LS__PIECE_KEY_MAX, "%s#%d", name, key);
    return out;
}

static int by_rank(const void *a, const void *b)
{
    const ls__piece *x = a, *y = b;
    const int order = x->name != y->name ? x->name - y->name : x->rank - y->rank;
    return order != 0 ? order : x->box - y->box;
}

static int by_name(const void *key, const void *entry)
{
    return strcmp(key, (*(ls__saved_entry *const *)entry)->name);
}

/* The next key that is not itself a name. */
static int next_key(const ls__shown *s, const char *name, int key)
{
    char text[LS__PIECE_KEY_MAX];
    do {
        (void)ls__piece_key(name, ++key, text);
    } while (bsearch(text, s->sorted, (size_t)s->count, sizeof *s->sorted, by_name) != NULL);
    return key;
}

/* Pieces of one name in one file get keys; this rank's entries get their pieces. */
static void finish_plan(ls__shown *s)
{
    if (s->piece_count > 0) { /* else there is no list */
        qsort(s->pieces, (size_t)s->piece_count, sizeof *s->pieces, by_rank);
    }
    for (int i = 0; i < s->piece_count; i++) {
        ls__piece *p = &s->pieces[i];
        if (i > 0 && p[-1].name == p->name && p[-1].rank == p->rank) {
            p->key = next_key(s, p->entry->name, p[-1].key);
        }
        if (p->rank == s->rank) {
            int k = p->box;
            while (s->sorted[k]->rank != s->same_as[s->rank]) {
                k++;
            }
            s->sorted[k]->mine = p;
        }
    }
}

static bool plan(planner *p)
{
    ls__shown *s = p->shown;
    for (int r = 0; r < s->size; r++) {
        p->shares[r] = (share){.rank = r};
        p->equal[s->same_as[r]]++;
        p->holds[r] = -1;
    }
    find_boxes(p);
    find_part_bytes(p);
    for (int i = 0; i < p->box_count; i++) {
        if (!assign(p, i)) {
            return false;
        }
    }
    finish_plan(s);
    return true;
}

/* Needs the entries of all ranks, compared. Local: the ranks reach the same plan. */
ls_status ls__plan_writers(ls__shown *s)
{
    planner p = {.shown = s};
    p.shares = calloc((size_t)s->size, sizeof *p.shares);
    p.equal = calloc((size_t)s->size, sizeof *p.equal);
    p.holds = calloc((size_t)s->size, sizeof *p.holds);
    p.boxes = malloc(((size_t)s->count + 1) * sizeof *p.boxes);
    const bool done = p.shares && p.equal && p.holds && p.boxes && plan(&p);
    free(p.shares);
    free(p.equal);
    free(p.holds);
    free(p.boxes);
    return done ? LS_OK
                : ls__fail(LS_ERR_MEMORY, "checkpoint: no memory to assign %d tensors", s->count);
}
