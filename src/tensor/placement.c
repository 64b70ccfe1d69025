/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of placements; see placement.h. Each axis of the mesh is looked at alone: what the
 * inputs are there, and how the operation is linear and moves dimensions, gives what the result
 * is, or the conversion that is missing. */
#include "tensor/placement.h"

#include <stdio.h>
#include <string.h>

#include "tensor/fill.h"
#include "tensor/op.h"
#include "tensor/through.h"

/* ---- words -------------------------------------------------------------------------------- */

static bool is_leaf(const ls__record *record)
{
    return record->node != NULL && ls__node_is_leaf(record->node);
}

/* A leaf that belongs to a module: an optimizer will step it. */
static bool is_param(const ls__record *record)
{
    return is_leaf(record) && record->storage->initial != NULL &&
           record->storage->initial->owner != NULL;
}

static bool is_summed(const ls__record *record, int axis)
{
    return is_leaf(record) && (ls__leaf_of(record->node)->notes.summed >> axis & 1u);
}

int ls__place_of(const ls__record *record, int axis)
{
    const int place = ls__place_at(record->place, axis);
    if (place != LS__PLACED_UNPLACED || !is_param(record)) {
        return place;
    }
    return is_summed(record, axis) ? LS__PLACED_REPLICATED : LS__PLACED_INVARIANT;
}

uint32_t ls__place_word(const ls__axes_in_force *axes, const ls__record *record)
{
    uint32_t word = 0;
    for (int a = 0; a < axes->count; a++) {
        word = ls__place_with(word, a, axes->axis[a].size > 1 ? ls__place_of(record, a) : 0);
    }
    return word;
}

unsigned ls__place_parts(const ls__axes_in_force *axes, uint32_t word)
{
    unsigned parts = 0;
    for (int a = 0; a < axes->count; a++) {
        const int place = ls__place_at(word, a);
        const bool own = place >= LS__PLACED_VARYING;
        parts |= (unsigned)(own && axes->axis[a].size > 1) << a;
    }
    return parts;
}

ls_placement ls__placement_public(int place)
{
    return place >= LS__PLACED_SHARDED  ? LS_SHARDED(place - LS__PLACED_SHARDED)
           : place >= LS__PLACED_ZIGZAG ? LS_ZIGZAG(place - LS__PLACED_ZIGZAG)
                                        : place;
}

const char *ls_placement_name(ls_placement placement)
{
    static const char *const names[] = {"unplaced", "replicated", "invariant", "partial",
                                        "varying"};
    static _Thread_local char text[4][24];
    static _Thread_local unsigned next;
    if (placement >= 0 && placement <= LS_VARYING) {
        return names[placement];
    }
    char *out = text[next++ % 4];
    const bool zigzag = placement >= LS_ZIGZAG(0);
    (void)snprintf(out, sizeof text[0], "%s(%d)", zigzag ? "zigzag" : "sharded",
                   placement - (zigzag ? LS_ZIGZAG(0) : LS_SHARDED(0)));
    return out;
}

static const char *name_of(int place)
{
    return ls_placement_name(ls__placement_public(place));
}

const char *ls__place_subject(const ls__record *record, int argument, char *out, size_t bytes)
{
    const char *name = is_leaf(record) ? ls__leaf_of(record->node)->name : NULL;
    const ls__initial *initial = record->storage->initial;
    if (name == NULL && is_leaf(record) && initial != NULL && initial->name[0] != '\0') {
        name = initial->name;
    }
    if (name != NULL) {
        (void)snprintf(out, bytes, "argument %d (parameter %.100s)", argument, name);
    } else if (record->file != NULL) {
        (void)snprintf(out, bytes, "argument %d (made at %.100s:%d)", argument, record->file,
                       (int)record->line);
    } else {
        (void)snprintf(out, bytes, "argument %d", argument);
    }
    return out;
}

/* ---- where dimensions go ------------------------------------------------------------------ */

ls__follows ls__follows_moves(ls__linearity linear)
{
    ls__follows f = {.how = LS__FOLLOW_MOVES, .linear = (uint8_t)linear};
    for (int d = 0; d < LS_DIMS_MAX; d++) {
        f.to[d] = (int8_t)d;
    }
    return f;
}

static int through_reduction(const ls__follows *f, int d)
{
    if (f->dims >> d & 1u) {
        return f->over;
    }
    return f->keep ? d : d - __builtin_popcount(f->dims & ((1u << d) - 1u));
}

/* The first dimension at `d` or after it that is not 1. */
static int not_one(const int64_t *dim, int ndim, int d)
{
    while (d < ndim - 1 && dim[d] == 1) {
        d++;
    }
    return d;
}

/* As many of size 1 passed over, at most. */
static int after_ones(const ls__record *out, int o, int count)
{
    while (count-- > 0 && o < out->ndim - 1 && out->dim[o] == 1) {
        o++;
    }
    return o;
}

/* A sharded dimension must lead the group of dimensions that becomes another group: then its parts
 * are parts of the group's first. A part of size 1 (one head on each rank) is no missing
 * dimension: it leads its group, and becomes one of size 1 where the result has that, after those
 * of size 1 that were before it (one token). */
static int through_reshape(const ls__record *in, const ls__record *out, int d)
{
    int i = 0, o = 0;
    while (i < in->ndim && o < out->ndim) {
        const int i1 = not_one(in->dim, in->ndim, i), i0 = d >= i && d < i1 ? d : i1;
        o = i0 < i1 ? after_ones(out, o, i0 - i) : o;
        const int o0 = i0 < i1 && out->dim[o] == 1 ? o : not_one(out->dim, out->ndim, o);
        int64_t from = in->dim[i0], to = out->dim[o0];
        i = i0 + 1;
        o = o0 + 1;
        while (from != to && (i < in->ndim || o < out->ndim)) {
            if (from < to && i < in->ndim) {
                from *= in->dim[i++];
            } else if (o < out->ndim) {
                to *= out->dim[o++];
            } else {
                return LS__TO_VARYING;
            }
        }
        if (d <= i - 1) {
            return d == i0 ? o0 : LS__TO_VARYING;
        }
    }
    return LS__TO_VARYING;
}

static int through_matmul(const ls__record *in, const ls__record *out, int i, int d)
{
    const int from_end = in->ndim - d, n = out->ndim;
    if (in->ndim < 2 || from_end > 2) {
        return n - from_end;
    }
    if (i == 0) {
        return from_end == 1 ? LS__TO_SUM : n - 2;
    }
    return from_end == 1 ? n - 1 : LS__TO_SUM;
}

static int through_linear(const ls__record *in, const ls__record *out, int i, int d)
{
    if (i == 0) {
        return d == in->ndim - 1 ? LS__TO_SUM : d;
    }
    return i == 1 && d == 1 ? LS__TO_SUM : out->ndim - 1;
}

/* Rows of a table [n,..] at index [..]: the table's other dimensions come last. */
static int through_index(const ls__record *in, const ls__record *out, int i, int d)
{
    if (i == 1) {
        return d;
    }
    return d == 0 ? LS__TO_WHOLE : out->ndim - in->ndim + d;
}

/* Queries know their positions by their distance from the end. */
static int through_attention(const ls__follows *f, const ls__record *in, int i, int d)
{
    if (i == LS__PLACE_MASK) {
        const int at = 4 - in->ndim + d;
        return at == 3 ? LS__TO_WHOLE : at == 2 ? 1 : 2 * at;
    }
    if (d == 2 && i == 0 && f->over == LS__TO_WHOLE) {
        return LS__TO_WHOLE;
    }
    return d < 2 ? 2 * d : i == 0 && d == 2 ? 1 : i == 2 && d == 3 ? 3 : LS__TO_WHOLE;
}

/* Other inputs than the first align with it at the right. */
static int through_rows(const ls__follows *f, const ls__record *in, const ls__record *out, int d)
{
    const int at = out->ndim - in->ndim + d;
    return at < 0 || f->dims >> at & 1u ? LS__TO_WHOLE : at;
}

int ls__place_through(const ls__call *call, int i, int d, const ls__record *out)
{
    const ls__follows *f = &call->follows;
    const ls__record *in = call->in[i];
    switch ((ls__follow)f->how) {
    case LS__FOLLOW_ELEMENTWISE:
        return out->ndim - in->ndim + d;
    case LS__FOLLOW_ROWS:
        return through_rows(f, in, out, d);
    case LS__FOLLOW_REDUCES:
        return through_reduction(f, d);
    case LS__FOLLOW_MOVES:
        return in->ndim == call->in[0]->ndim ? f->to[d] : LS__TO_WHOLE;
    case LS__FOLLOW_RESHAPES:
        return through_reshape(in, out, d);
    case LS__FOLLOW_MATMUL:
        return through_matmul(in, out, i, d);
    case LS__FOLLOW_LINEAR:
        return through_linear(in, out, i, d);
    case LS__FOLLOW_EMBEDS:
        return through_index(in, out, i, d);
    case LS__FOLLOW_ATTENDS:
        return through_attention(f, in, i, d);
    case LS__FOLLOW_CLASSES:
        return i == 0 && d == in->ndim - 1 ? LS__TO_WHOLE : LS__TO_MEAN;
    case LS__FOLLOW_SAMPLES:
        return i == 0 && d == 0 ? 0 : LS__TO_WHOLE;
    case LS__FOLLOW_UNKNOWN:
        break;
    }
    return LS__TO_VARYING;
}

/* ---- one axis ----------------------------------------------------------------------------- */

typedef struct crossing { /* an operation on one axis */
    ls__call *call;
    const ls__record *out;
    const ls__axis_in_force *axis;
    int number;
    int place[LS__INPUTS_MAX]; /* of the inputs; -1: not given */
    int first[6]; /* the first input that is so, by its kind (SHARDED as 5); -1: none */
} crossing;

static int kind_of(int place)
{
    return place >= LS__PLACED_ZIGZAG ? 5 : place;
}

/* LS_ERR_PLACEMENT: what inputs i and j (j < 0: none) are on the axis, and what to do. */
static int refuse(const crossing *c, int i, int j, const char *why)
{
    char a[160], b[160] = "", both[400];
    (void)ls__place_subject(c->call->in[i], i + 1, a, sizeof a);
    if (j >= 0) {
        (void)snprintf(both, sizeof both, "%s is %s, and %s %s", a, name_of(c->place[i]),
                       ls__place_subject(c->call->in[j], j + 1, b, sizeof b), name_of(c->place[j]));
    } else {
        (void)snprintf(both, sizeof both, "%s is %s", a, name_of(c->place[i]));
    }
    (void)ls__call_fail(c->call, LS_ERR_PLACEMENT, "on axis %s %s; %s", c->axis->name, both, why);
    return -1;
}

/* Whether gradients flow through the call. In the first run of what ls_recompute runs again no
 * graph is recorded, but one will be. */
static bool flows(const ls__call *call)
{
    return call->grad || ls__self.record != NULL;
}

static bool flows_to(const ls__call *call, const ls__record *out)
{
    return call->grad ? out->node != NULL : ls__self.record != NULL;
}

/* Input i is a mask, which takes no gradient. */
static bool is_mask(const ls__call *call, int i)
{
    return call->follows.how == LS__FOLLOW_ATTENDS && i == LS__PLACE_MASK;
}

static void survey(crossing *c)
{
    for (int k = 0; k < 6; k++) {
        c->first[k] = -1;
    }
    for (int i = 0; i < c->call->count; i++) {
        const ls__record *in = c->call->in[i];
        if (in == NULL) {
            c->place[i] = -1;
            continue;
        }
        int place = ls__place_of(in, c->number);
        const bool flows_back = flows(c->call) && !is_mask(c->call, i);
        if (!flows_back && (place == LS__PLACED_INVARIANT || place == LS__PLACED_REPLICATED)) {
            place = LS__PLACED_UNPLACED; /* no gradient flows: they are one */
        }
        c->place[i] = place;
        const int kind = kind_of(place);
        c->first[kind] = c->first[kind] < 0 ? i : c->first[kind];
    }
}

/* An input other than i that is given and is not of the kinds that may stand beside it. */
static int beside(const crossing *c, int i, unsigned kinds)
{
    for (int j = 0; j < c->call->count; j++) {
        if (j != i && c->place[j] >= 0 && !(kinds >> kind_of(c->place[j]) & 1u)) {
            return j;
        }
    }
    return -1;
}

#define KIND(name) (1u << LS__PLACED_##name)

/* Some input is a partial sum. */
static int of_partial(const crossing *c)
{
    const int i = c->first[LS__PLACED_PARTIAL];
    const int linear = c->call->follows.linear;
    if (linear == LS__LINEAR_NOT || (linear == LS__LINEAR_FIRST && i != 0)) {
        return refuse(c, i, -1,
                      "the operation is not linear in it, so its terms do not add up afterwards; "
                      "convert it before: ls_redistribute from LS_PARTIAL");
    }
    const int j =
        beside(c, i, linear == LS__LINEAR_ALL ? KIND(PARTIAL) : KIND(UNPLACED) | KIND(REPLICATED));
    if (j >= 0 && linear == LS__LINEAR_ALL) {
        return refuse(c, i, j,
                      "a term added on every rank would count once for each; convert the sum "
                      "before: ls_redistribute from LS_PARTIAL");
    }
    if (j >= 0) {
        return refuse(c, i, j,
                      "a partial sum goes with what is replicated only; convert one of them: "
                      "ls_redistribute");
    }
    return LS__PLACED_PARTIAL;
}

/* Some input is invariant. */
static int of_invariant(const crossing *c)
{
    const int i = c->first[LS__PLACED_INVARIANT];
    const int j = beside(c, i, KIND(UNPLACED) | KIND(INVARIANT));
    if (j < 0) {
        return LS__PLACED_INVARIANT;
    }
    const ls__record *in = c->call->in[i];
    if (is_leaf(in)) {
        return refuse(c, i, j,
                      "its gradient would be this rank's share alone; wrap the module by "
                      "ls_ddp_new over this axis, or convert the parameter: ls_redistribute from "
                      "LS_INVARIANT to LS_REPLICATED");
    }
    return refuse(c, i, j,
                  "its gradient would be this rank's share alone; convert it before: "
                  "ls_redistribute from LS_INVARIANT to LS_REPLICATED");
}

/* Whether input i, sharded along the dimension that is summed, has its counterpart. */
static int of_contraction(const crossing *c, int i)
{
    const ls__follows *f = &c->call->follows;
    if (f->how == LS__FOLLOW_REDUCES) {
        return LS__PLACED_PARTIAL;
    }
    for (int j = 0; j < 2; j++) {
        const int d = ls__place_dim(c->place[j]);
        if (d < 0 || ls__place_through(c->call, j, d, c->out) != LS__TO_SUM) {
            return refuse(c, i, j,
                          "the product adds over a dimension of which one has a part and the "
                          "other does not; shard both along it, or neither");
        }
    }
    return LS__PLACED_PARTIAL;
}

/* Whether broadcasting repeats a sharded dimension, whose part is of size 1. */
static bool repeated(const crossing *c, int i, int d, int to)
{
    const int how = c->call->follows.how;
    const bool aligns = how == LS__FOLLOW_ELEMENTWISE || how == LS__FOLLOW_ROWS ||
                        how == LS__FOLLOW_MATMUL || is_mask(c->call, i);
    return aligns && c->call->in[i]->dim[d] == 1 && c->out->dim[to] != 1;
}

/* Samples and heads of queries, keys and values belong together: an operand that is whole, or
 * divided otherwise, would be read as grouped-query attention. A mask is divided as the
 * queries are. -1: all agree. */
static int other_heads(const crossing *c, int i)
{
    const int d = ls__place_dim(c->place[i]);
    if (c->call->follows.how != LS__FOLLOW_ATTENDS) {
        return -1;
    }
    if (i == LS__PLACE_MASK) {
        const int as_queries = ls__place_along(c->place[i], 4 - c->call->in[i]->ndim + d);
        return c->place[0] == as_queries || c->place[0] == LS__PLACED_VARYING ? -1 : 0;
    }
    for (int j = 0; d < 2 && j < 3; j++) {
        if (c->place[j] != c->place[i] && c->place[j] != LS__PLACED_VARYING) {
            return j;
        }
    }
    return -1;
}

/* A replicated input that has as many elements where another one has its part: of whole tensors the
 * sizes would differ, and every rank would take the same ones, as the first positions of a table
 * for those of its part of a sequence. -1: none. */
static int of_part_size(const crossing *c, int to)
{
    const int how = c->call->follows.how;
    for (int j = 0; how == LS__FOLLOW_ELEMENTWISE && to >= 0 && j < c->call->count; j++) {
        const ls__record *in = c->call->in[j];
        const int d = in != NULL ? to - (c->out->ndim - in->ndim) : -1;
        if (c->place[j] == LS__PLACED_REPLICATED && d >= 0 && in->dim[d] != 1) {
            return j;
        }
    }
    return -1;
}

/* No input is partial or invariant, and some is sharded or varying. */
static int of_sharded(const crossing *c)
{
    int result = -1, by = -1;
    for (int i = 0; i < c->call->count; i++) {
        const int d = ls__place_dim(c->place[i]);
        if (d < 0) {
            continue;
        }
        const int to = ls__place_through(c->call, i, d, c->out);
        if (to == LS__TO_SUM) {
            return of_contraction(c, i);
        }
        if (to == LS__TO_WHOLE) {
            return refuse(c, i, -1,
                          "the operation needs the whole of this dimension; gather it before: "
                          "ls_redistribute to LS_REPLICATED, or use the operation's parallel "
                          "form");
        }
        const int whole = other_heads(c, i);
        if (whole >= 0) {
            return refuse(c, i, whole,
                          "queries, keys, values and a mask must be divided alike; ls_redistribute "
                          "one of them");
        }
        if (to >= 0 && repeated(c, i, d, to)) {
            return refuse(c, i, -1,
                          "its part, of size 1, would be repeated as if it were whole; gather it "
                          "before: ls_redistribute to LS_REPLICATED");
        }
        const int same = of_part_size(c, to);
        if (same >= 0) {
            return refuse(c, i, same,
                          "a part and a whole of the part's size do not belong together; shard the "
                          "whole alike: ls_redistribute to LS_SHARDED, ls_context_shard, or of "
                          "positions ls_context_positions");
        }
        const int place = to < 0 ? LS__PLACED_VARYING : ls__place_along(c->place[i], to);
        if (by >= 0 && place != result && result != LS__PLACED_VARYING &&
            place != LS__PLACED_VARYING) {
            return refuse(c, by, i,
                          "their parts do not belong together; bring them to one dimension: "
                          "ls_redistribute");
        }
        result = result == LS__PLACED_VARYING ? result : place;
        by = i;
    }
    return result < 0 || c->first[LS__PLACED_VARYING] >= 0 ? LS__PLACED_VARYING : result;
}

/* Whether of the product of inputs 0 and 1 and of input 2, which is added to it, one is a partial
 * sum. */
static bool biased(const crossing *c)
{
    const ls__call *call = c->call;
    if (call->follows.linear != LS__LINEAR_EACH || call->count < 3 || call->in[2] == NULL) {
        return false;
    }
    const int d = ls__place_dim(c->place[0]);
    return c->place[0] == LS__PLACED_PARTIAL || c->place[1] == LS__PLACED_PARTIAL ||
           c->place[2] == LS__PLACED_PARTIAL ||
           (d >= 0 && ls__place_through(call, 0, d, c->out) == LS__TO_SUM);
}

/* A parameter that was placed as replicated, without a reducer that makes it so; -1: none. */
static int unsummed(const crossing *c)
{
    const int i = flows(c->call) ? c->first[LS__PLACED_REPLICATED] : -1;
    for (int j = i; j >= 0 && j < c->call->count; j++) {
        const ls__record *in = c->call->in[j];
        if (c->place[j] == LS__PLACED_REPLICATED && is_param(in) && !is_summed(in, c->number)) {
            return j;
        }
    }
    return -1;
}

static int of_axis(ls__call *call, const ls__record *out, const ls__axis_in_force *axis, int number)
{
    crossing c = {.call = call, .out = out, .axis = axis, .number = number};
    survey(&c);
    const int lonely = unsummed(&c);
    if (lonely >= 0) {
        return refuse(&c, lonely, -1,
                      "no reducer adds its gradient over this axis; wrap the module by "
                      "ls_ddp_new over a group with it");
    }
    if (biased(&c)) {
        return refuse(&c, 0, 2,
                      "of a partial sum and what is added to it the latter would count once for "
                      "each rank; add the bias after ls_redistribute from LS_PARTIAL");
    }
    if (c.first[LS__PLACED_PARTIAL] >= 0) {
        return of_partial(&c);
    }
    if (c.first[LS__PLACED_INVARIANT] >= 0) {
        return of_invariant(&c);
    }
    if (c.first[5] >= 0 || c.first[LS__PLACED_VARYING] >= 0) {
        return of_sharded(&c);
    }
    return c.first[LS__PLACED_REPLICATED] >= 0 ? LS__PLACED_REPLICATED : LS__PLACED_UNPLACED;
}

static uint32_t words_of(const ls__call *call)
{
    uint32_t words = 0;
    for (int i = 0; i < call->count; i++) {
        words |= call->in[i] != NULL ? call->in[i]->place : 0;
    }
    return words;
}

static bool any_leaf(const ls__call *call)
{
    for (int i = 0; i < call->count; i++) {
        if (call->in[i] != NULL && is_leaf(call->in[i])) {
            return true;
        }
    }
    return false;
}

void ls__call_place(ls__call *call, ls__record *out)
{
    const ls__axes_in_force *axes = ls__axes_of(call->tensors);
    if (call->count == 0) { /* made from nothing, or placed by its own operation */
        return;
    }
    uint32_t word = 0;
    if (words_of(call) != 0 || any_leaf(call)) {
        for (int a = 0; a < axes->count; a++) {
            if (axes->axis[a].size == 1) {
                continue;
            }
            const int place =
                call->across == a + 1 ? call->across_place : of_axis(call, out, &axes->axis[a], a);
            if (place < 0) {
                return;
            }
            const bool constant = !flows_to(call, out) &&
                                  (place == LS__PLACED_REPLICATED || place == LS__PLACED_INVARIANT);
            word = ls__place_with(word, a, constant ? LS__PLACED_UNPLACED : place);
        }
    }
    out->place = word;
}

/* ---- losses ------------------------------------------------------------------------------- */

/* The gradient of a loss is its weight on every rank. That is complete where the loss is invariant
 * and, after the reducer's division, on axes of batches. Where it is replicated the ranks' shares
 * are added up, so each gives one part of it. */
ls_status ls__place_check_loss(const ls__axes_in_force *axes, const char *name,
                               const ls__record *loss, double *share)
{
    *share = 1.0;
    for (int a = 0; a < axes->count; a++) {
        const ls__axis_in_force *axis = &axes->axis[a];
        const int place = ls__place_of(loss, a);
        if (axis->size == 1 || axis->batches > 0 || place == LS__PLACED_INVARIANT ||
            place == LS__PLACED_UNPLACED) {
            continue;
        }
        if (place == LS__PLACED_REPLICATED) {
            *share /= axis->size;
            continue;
        }
        return ls__fail(LS_ERR_PLACEMENT,
                        "%s: the loss is %s on axis %s, whose ranks would each start from a part "
                        "of it; %s",
                        name, name_of(place), axis->name,
                        place == LS__PLACED_PARTIAL
                            ? "add it up before: ls_redistribute from LS_PARTIAL to LS_INVARIANT"
                            : "wrap the module by ls_ddp_new over this axis, which divides by the "
                              "number of ranks, or by their weights");
    }
    return LS_OK;
}

/* ---- said by the user --------------------------------------------------------------------- */

/* The axis of this name; -1 with the error set. */
static int find_axis(const ls__axes_in_force *axes, const char *name, const char *what)
{
    if (axes == NULL) {
        (void)ls__fail(LS_ERR_STATE,
                       "%s: no mesh is in force; make one with ls_mesh_new, or put "
                       "it in force with ls_mesh_use",
                       what);
        return -1;
    }
    for (int a = 0; name != NULL && a < axes->count; a++) {
        if (strcmp(axes->axis[a].name, name) == 0) {
            return a;
        }
    }
    char all[LS__AXES_MAX * (LS__AXIS_NAME_BYTES + 2)] = "";
    for (int a = 0, at = 0; a < axes->count; a++) {
        at += snprintf(all + at, sizeof all - (size_t)at, "%s%s", a > 0 ? ", " : "",
                       axes->axis[a].name);
    }
    (void)ls__fail(LS_ERR_NOT_FOUND, "%s: the mesh in force has no axis \"%.40s\"; it has %s", what,
                   name != NULL ? name : "NULL", all);
    return -1;
}

int ls__axis_find(const char *name, const char *what, ls__axes_in_force **out)
{
    const ls__tensors *tensors = ls__tensors_get(what);
    *out = tensors != NULL ? ls__axes_of(tensors) : NULL;
    return tensors != NULL ? find_axis(*out, name, what) : -1;
}

int ls__place_from_public(ls_placement placement, int ndim)
{
    if (placement >= LS_UNPLACED && placement <= LS_VARYING) {
        return placement;
    }
    if (placement >= LS_ZIGZAG(0)) {
        const int d = placement - LS_ZIGZAG(0);
        return d < ndim && d < LS__ZIGZAG_DIMS ? LS__PLACED_ZIGZAG + d : -1;
    }
    const int given = placement - LS_SHARDED(0), d = given < 0 ? given + ndim : given;
    return d >= 0 && d < ndim ? LS__PLACED_SHARDED + d : -1;
}

void ls__place_set(const ls__axes_in_force *axes, ls__record *record, int a, int place)
{
    ls__param_notes *notes = is_leaf(record) ? &ls__leaf_of(record->node)->notes : &record->notes;
    record->place = ls__place_with(record->place, a, place);
    notes->layout = ls__place_parts(axes, record->place) != 0 ? axes->layout : 0;
}

static ls_status set_place(ls__record *record, const ls__axes_in_force *axes, int a, int place)
{
    const int now = ls__place_of(record, a);
    if (record->node != NULL && !is_leaf(record) && now != LS__PLACED_VARYING && now != place) {
        return ls__fail(LS_ERR_PLACEMENT,
                        "place: the tensor is %s on axis %s, and operations made it so; convert it "
                        "with ls_redistribute",
                        name_of(now), axes->axis[a].name);
    }
    ls__place_set(axes, record, a, place);
    return LS_OK;
}

static ls_status no_place(const ls__record *record, ls_placement placement)
{
    return ls__fail(LS_ERR_INVALID,
                    "place: %s of a tensor of %s; give one of ls_placement, and a dimension that "
                    "it has",
                    ls_placement_name(placement), ls__record_print(record).text);
}

ls_status ls_place(ls_tensor *t, const char *axis, ls_placement placement)
{
    ls__axes_in_force *axes;
    const int a = ls__axis_find(axis, "place", &axes);
    ls__record *record = a >= 0 ? ls__record_sound(ls__tensors_get("place"), t, "place") : NULL;
    if (record == NULL) {
        return ls__self.status;
    }
    const int place = ls__place_from_public(placement, record->ndim);
    return place >= 0 ? set_place(record, axes, a, place) : no_place(record, placement);
}

ls_status ls_place_like(ls_tensor *t, const ls_tensor *like)
{
    ls__tensors *tensors = ls__tensors_get("place");
    ls__record *record = tensors != NULL ? ls__record_sound(tensors, t, "place") : NULL;
    const ls__record *other = record != NULL ? ls__record_sound(tensors, like, "place") : NULL;
    if (other == NULL) {
        return ls__self.status;
    }
    const ls__axes_in_force *axes = ls__axes_of(tensors);
    for (int a = 0; axes != NULL && a < axes->count; a++) {
        const int place = ls__place_of(other, a);
        LS_TRY(ls__place_dim(place) < record->ndim ? set_place(record, axes, a, place)
                                                   : no_place(record, ls__placement_public(place)));
    }
    return LS_OK;
}

ls_placement ls_placement_of(const ls_tensor *t, const char *axis)
{
    ls__axes_in_force *axes;
    const int a = ls__axis_find(axis, "placement_of", &axes);
    const ls__record *record =
        a >= 0 ? ls__record_sound(ls__tensors_get("placement_of"), t, "placement_of") : NULL;
    return record != NULL ? ls__placement_public(ls__place_of(record, a)) : LS_UNPLACED;
}
