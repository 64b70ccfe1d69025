/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of placements: one table, read forward for the values and, with the dual placements
 * in the other order, for the gradient.
 *
 *     gradient of a tensor that is   replicated  invariant  partial     sharded(d)
 *     is                             partial     invariant  replicated  sharded(d)
 */
#include <stdio.h>
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/mesh.h>
#include <lockstep/ops.h>
#include <lockstep/placement.h>

#include "autograd/function_call.h"
#include "autograd/mode.h"
#include "base/error.h"
#include "base/options.h"
#include "base/runtime.h"
#include "comm/core/group.h"
#include "comm/group/make.h"
#include "placement/redistribute.h"
#include "tensor/across.h"
#include "tensor/op.h"
#include "tensor/placement.h"

/* ---- the table ---------------------------------------------------------------------------- */

enum { SHARD = 4, KINDS }; /* after replicated, invariant, partial */

static const uint8_t table[KINDS + 1][KINDS + 1] = {
    [LS__PLACED_INVARIANT] = {[LS__PLACED_REPLICATED] = LS__MOVE_NOTHING,
                              [LS__PLACED_PARTIAL] = LS__MOVE_FIRST,
                              [SHARD] = LS__MOVE_SLICE},
    [LS__PLACED_REPLICATED] = {[LS__PLACED_INVARIANT] = LS__MOVE_NOTHING,
                               [LS__PLACED_PARTIAL] = LS__MOVE_FIRST,
                               [SHARD] = LS__MOVE_SLICE},
    [LS__PLACED_PARTIAL] = {[LS__PLACED_INVARIANT] = LS__MOVE_ALL_REDUCE,
                            [LS__PLACED_REPLICATED] = LS__MOVE_ALL_REDUCE,
                            [SHARD] = LS__MOVE_REDUCE_SCATTER},
    [SHARD] = {[LS__PLACED_INVARIANT] = LS__MOVE_ALL_GATHER,
               [LS__PLACED_REPLICATED] = LS__MOVE_ALL_GATHER,
               [LS__PLACED_PARTIAL] = LS__MOVE_PAD,
               [SHARD] = LS__MOVE_ALL_TO_ALL},
};

static int kind_of(int place)
{
    return place >= LS__PLACED_SHARDED ? SHARD : place;
}

static bool has_conversions(int place)
{
    return place >= LS__PLACED_SHARDED ||
           (place != LS__PLACED_UNPLACED && place < LS__PLACED_VARYING);
}

ls__move ls__move_of(int from, int to)
{
    const bool known = has_conversions(from) && has_conversions(to) && from != to;
    return known ? (ls__move)table[kind_of(from)][kind_of(to)] : LS__MOVE_NONE;
}

int ls__place_dual(int place)
{
    return place == LS__PLACED_REPLICATED ? LS__PLACED_PARTIAL
           : place == LS__PLACED_PARTIAL  ? LS__PLACED_REPLICATED
                                          : place;
}

int64_t ls__move_bytes(ls__move move, int ranks, int64_t whole)
{
    switch (move) {
    case LS__MOVE_ALL_REDUCE:
        return 2 * whole * (ranks - 1) / ranks;
    case LS__MOVE_ALL_GATHER:
    case LS__MOVE_REDUCE_SCATTER:
        return whole * (ranks - 1) / ranks;
    case LS__MOVE_ALL_TO_ALL:
        return whole / ranks * (ranks - 1) / ranks;
    default:
        return 0;
    }
}

/* ---- the moves ---------------------------------------------------------------------------- */

typedef struct conversion {
    ls__axis_in_force *axis;
    int from, to;
    const char *pass; /* of its tag, so that no rank evaluates or runs forward while another one
                         runs backward: their operations are alike otherwise */
} conversion;

static int dim_of(int place)
{
    return place - LS__PLACED_SHARDED;
}

static ls_group *group_of(const conversion *c)
{
    return c->axis->group;
}

/* `whole`: in elements. */
static void count(ls__axis_in_force *axis, ls__move move, int64_t whole, ls_dtype dtype)
{
    const int64_t bytes = whole * (int64_t)ls_dtype_size(dtype);
    axis->sent[move - LS__MOVE_ALL_REDUCE]++;
    axis->sent[LS__SENT_BYTES] += (uint64_t)ls__move_bytes(move, axis->size, bytes);
}

ls_status ls__group_there(ls_group *group, const ls__pool *on, ls_group **out)
{
    *out = NULL;
    return on->device->backend != NULL ? ls__group_beside(group, on->device->backend, out) : LS_OK;
}

ls_status ls__numbers_all_reduce(ls_group *group, const ls__numbers *x, ls_reduce_op op,
                                 const char *tag)
{
    ls__host_view view;
    ls_group *there = NULL;
    ls_work *work = NULL;
    LS_TRY(ls__group_there(group, x->on, &there));
    if (there != NULL) {
        LS_TRY(ls_all_reduce(there, x->data, x->data, x->count, x->dtype, op,
                             LS_OPTIONS(ls_collective_options, .tag = tag, .stream = x->on->stream),
                             &work));
        return ls_work_wait_stream(work, x->on->stream);
    }
    const size_t bytes = (size_t)x->count * ls_dtype_size(x->dtype);
    LS_TRY(ls__host_view_open(x->on, x->data, bytes, &view));
    const ls_status status = ls_all_reduce(group, view.data, view.data, x->count, x->dtype, op,
                                           LS_OPTIONS(ls_collective_options, .tag = tag), NULL);
    ls__host_view_close(&view, status == LS_OK);
    return status;
}

ls_status ls__axis_all_reduce(ls__axis_in_force *axis, ls__pool *on, float *data, int64_t numel,
                              ls_reduce_op op, const char *tag)
{
    const ls__numbers x = {.on = on, .data = data, .count = numel, .dtype = LS_FLOAT32};
    count(axis, LS__MOVE_ALL_REDUCE, numel, LS_FLOAT32);
    return ls__numbers_all_reduce(axis->group, &x, op, tag);
}

ls__axis_kept ls__axis_keep(ls__axis_in_force *axis)
{
    ls_group *group = axis->group;
    return (ls__axis_kept){.axis = axis, .comm = group->comm, .group = group->id};
}

ls_status ls__axis_check(const ls__axis_kept *kept, const char *what)
{
    return ls__group_exists(kept->comm, kept->group)
               ? LS_OK
               : ls__fail(LS_ERR_STATE,
                          "%s: the mesh of the forward pass was freed; call ls_backward before "
                          "ls_mesh_free",
                          what);
}

/* Elements before, in and after dimension d: [outer, size, inner]. */
static ls_shape around(ls_shape shape, int d, int64_t parts)
{
    ls_shape out = LS_SHAPE(1, parts, shape.dim[d] / parts);
    for (int i = 0; i < d; i++) {
        out.dim[0] *= shape.dim[i];
    }
    for (int i = d + 1; i < shape.ndim; i++) {
        out.dim[2] *= shape.dim[i];
    }
    return out;
}

/* The parts of dimension d, one after the other: a new first dimension of n. */
static ls_tensor *parts_first(ls_tensor *x, int d, int n)
{
    return ls_contiguous(ls_transpose(ls_reshape(x, around(ls_shape_of(x), d, n)), 0, 1));
}

/* The opposite: [n, ...] of parts of `shape` along d. */
static ls_tensor *parts_joined(ls_tensor *x, ls_shape shape, int d, int n)
{
    const ls_shape one = around(shape, d, 1);
    ls_tensor *seen = ls_reshape(x, LS_SHAPE(n, one.dim[0], one.dim[2]));
    shape.dim[d] *= n;
    return ls_reshape(ls_contiguous(ls_transpose(seen, 0, 1)), shape);
}

ls_status ls__operands_find(ls_group *group, ls_tensor *x, ls_shape shape, ls__operands *o)
{
    ls__pool *on = NULL;
    ls_group *there = NULL;
    *o = (ls__operands){.group = group, .x = x};
    if (ls__tensor_elements(x, &on) == NULL) {
        return ls__self.status;
    }
    LS_TRY(ls__group_there(group, on, &there));
    if (there != NULL) {
        o->group = there;
        o->stream = on->stream;
        o->out = ls__tensor_on(on, shape, ls_dtype_of(x));
    } else {
        o->x = ls__tensor_to_here(x);
        o->out = ls__tensor_here(shape, ls_dtype_of(x));
    }
    LS_TRY(ls_tensor_status(o->x));
    return ls_tensor_status(o->out);
}

ls_tensor *ls__operands_result(const ls__operands *o)
{
    return o->stream != NULL ? o->out : ls__tensor_to_made(o->out);
}

/* The device's stream waits for what the host has only started. */
static ls_status run_move(const conversion *c, ls__move move, const ls__operands *o)
{
    char tag[96];
    ls__pool *on = NULL;
    ls_work *work = NULL, **later = o->stream != NULL ? &work : NULL;
    const int64_t n = c->axis->size, numel = ls_numel(o->x), outputs = ls_numel(o->out);
    const ls_dtype dtype = ls_dtype_of(o->x);
    const void *from = ls__tensor_elements(o->x, &on);
    void *to = ls__tensor_elements(o->out, &on);
    ls_status status = LS_OK;
    (void)snprintf(tag, sizeof tag, "redistribute %s to %s%s",
                   ls_placement_name(ls__placement_public(c->from)),
                   ls_placement_name(ls__placement_public(c->to)), c->pass);
    const ls_collective_options options =
        *LS_OPTIONS(ls_collective_options, .tag = tag, .stream = o->stream);
    if (move == LS__MOVE_ALL_REDUCE) {
        status = ls_all_reduce(o->group, from, to, numel, dtype, LS_SUM, &options, later);
        count(c->axis, move, numel, dtype);
    } else if (move == LS__MOVE_REDUCE_SCATTER) {
        status = ls_reduce_scatter(o->group, from, to, outputs, dtype, LS_SUM, &options, later);
        count(c->axis, move, numel, dtype);
    } else if (move == LS__MOVE_ALL_GATHER) {
        status = ls_all_gather(o->group, from, to, numel, dtype, &options, later);
        count(c->axis, move, outputs, dtype);
    } else {
        status = ls_all_to_all(o->group, from, to, numel / n, dtype, &options, later);
        count(c->axis, move, numel * n, dtype);
    }
    return status == LS_OK && work != NULL ? ls_work_wait_stream(work, o->stream) : status;
}

/* A collective from x to a new tensor of `shape`. */
static ls_tensor *exchange(const conversion *c, ls__move move, ls_tensor *x, ls_shape shape)
{
    ls__operands o;
    if (ls__operands_find(group_of(c), ls_contiguous(x), shape, &o) < 0) {
        return NULL;
    }
    return run_move(c, move, &o) < 0 ? NULL : ls__operands_result(&o);
}

static ls_tensor *all_reduce(const conversion *c, ls_tensor *x)
{
    return exchange(c, LS__MOVE_ALL_REDUCE, x, ls_shape_of(x));
}

static ls_tensor *reduce_scatter(const conversion *c, ls_tensor *x, int d)
{
    const int n = c->axis->size;
    ls_shape part = ls_shape_of(x);
    part.dim[d] /= n;
    return exchange(c, LS__MOVE_REDUCE_SCATTER, d == 0 ? x : parts_first(x, d, n), part);
}

static ls_tensor *all_gather(const conversion *c, ls_tensor *x, int d)
{
    const int n = c->axis->size;
    const ls_shape part = ls_shape_of(x);
    ls_shape whole = part;
    whole.dim[0] *= n;
    ls_tensor *all = exchange(c, LS__MOVE_ALL_GATHER, x, whole);
    return all == NULL || d == 0 ? all : parts_joined(all, part, d, n);
}

/* From parts along i to parts along j. */
static ls_tensor *all_to_all(const conversion *c, ls_tensor *x, int i, int j)
{
    const int n = c->axis->size;
    ls_shape part = ls_shape_of(x);
    ls_tensor *sent = parts_first(x, j, n);
    part.dim[j] /= n;
    ls_tensor *all = exchange(c, LS__MOVE_ALL_TO_ALL, sent, ls_shape_of(sent));
    return all == NULL ? NULL : parts_joined(all, part, i, n);
}

static ls_tensor *slice(const conversion *c, ls_tensor *x, int d)
{
    const int64_t length = ls_size(x, d) / c->axis->size, first = length * c->axis->coordinate;
    return ls_contiguous(ls_slice(x, d, first, first + length));
}

/* Zeros where the other ranks have their parts. */
static ls_tensor *padded(const conversion *c, ls_tensor *x, int d)
{
    ls_shape before = ls_shape_of(x), after = before;
    before.dim[d] *= c->axis->coordinate;
    after.dim[d] *= c->axis->size - 1 - c->axis->coordinate;
    const ls_dtype dtype = ls_dtype_of(x);
    return ls_concat((ls_tensor *[]){ls_zeros(before, dtype), x, ls_zeros(after, dtype)}, 3, d);
}

static ls_tensor *convert(const conversion *c, ls_tensor *x)
{
    switch (ls__move_of(c->from, c->to)) {
    case LS__MOVE_ALL_REDUCE:
        return all_reduce(c, x);
    case LS__MOVE_ALL_GATHER:
        return all_gather(c, x, dim_of(c->from));
    case LS__MOVE_REDUCE_SCATTER:
        return reduce_scatter(c, x, dim_of(c->to));
    case LS__MOVE_ALL_TO_ALL:
        return all_to_all(c, x, dim_of(c->from), dim_of(c->to));
    case LS__MOVE_SLICE:
        return slice(c, x, dim_of(c->to));
    case LS__MOVE_PAD:
        return padded(c, x, dim_of(c->from));
    case LS__MOVE_FIRST:
        return c->axis->coordinate == 0 ? ls_detach(x) : ls_zeros(ls_shape_of(x), ls_dtype_of(x));
    case LS__MOVE_NOTHING:
    case LS__MOVE_NONE:
        break;
    }
    return ls_detach(x);
}

/* ---- in the graph ------------------------------------------------------------------------- */

typedef struct node_context {
    conversion adjoint;
    ls__axis_kept axis;
    ls_shape shape; /* of the result */
} node_context;

ls_tensor *ls__unplaced(ls_tensor *x)
{
    ls_tensor *seen = ls_reshape(ls_contiguous(x), ls_shape_of(x));
    ls__record *record = ls__record_sound(ls__tensors_get("redistribute"), seen, "redistribute");
    if (record != NULL) {
        record->place = 0;
    }
    return seen;
}

/* Runs the conversion outside of the graph. *out holds a reference to the result's elements. */
static ls_status run(const conversion *c, ls_tensor *x, ls__record *out)
{
    const ls__autograd_mode before = ls__autograd_mode_get();
    ls__self.no_grad = true;
    ls_scope *scope = ls_scope_enter();
    ls_tensor *y = convert(c, ls__unplaced(x));
    ls_status status = y != NULL ? ls_tensor_status(y) : ls__self.status;
    if (status == LS_OK) {
        *out = *ls__record_sound(ls__tensors_get("redistribute"), y, "redistribute");
        ls__storage_ref(out->storage);
    }
    ls_scope_leave(scope);
    ls__autograd_mode_set(&before);
    return status;
}

ls_tensor *ls__tensor_over(ls__pool *on, const void *data, ls_shape shape, ls_dtype dtype)
{
    ls__record *record = ls__record_new(on->tensors);
    if (record == NULL || !ls__record_set_shape(record, shape, dtype, "redistribute")) {
        return NULL;
    }
    record->storage = ls__storage_borrow(on, (void *)(uintptr_t)data,
                                         (size_t)record->numel * ls_dtype_size(dtype));
    return record->storage != NULL ? ls__handle(record) : NULL;
}

ls_status ls__rule_give(ls__tensor_rule *r, int i, const ls__record *dx)
{
    if (dx->storage->size_class != LS__STORAGE_BORROWED && dx->offset == 0) {
        r->in[i].give = ls__storage_ref(dx->storage);
        return LS_OK;
    }
    const size_t bytes = (size_t)dx->numel * ls_dtype_size((ls_dtype)dx->dtype);
    r->in[i].give = ls__storage_new(r->on, bytes);
    if (r->in[i].give == NULL) {
        return ls__self.status;
    }
    r->k->copy(r->in[i].give->data, ls__record_data(dx), bytes, r->stream);
    return LS_OK;
}

static ls_status give(ls__tensor_rule *r, const node_context *c)
{
    ls__record dx;
    LS_TRY(ls__axis_check(&c->axis, "redistribute"));
    ls_tensor *dy = ls__tensor_over(r->on, r->dy, c->shape, (ls_dtype)r->node->dtype);
    if (dy == NULL) {
        return ls__self.status;
    }
    LS_TRY(run(&c->adjoint, dy, &dx));
    const ls_status status = ls__rule_give(r, 0, &dx);
    ls__storage_unref(dx.storage);
    return status;
}

static ls_status backward(ls__tensor_rule *r)
{
    ls_scope *scope = ls_scope_enter();
    const ls_status status = give(r, r->node->context);
    ls_scope_leave(scope);
    return status;
}

/* Of weight 0, too, where the ranks of the axis exchange gradients. */
static const ls__op passing = {.name = "redistribute", .passes = 1};
static const ls__op local = {.name = "redistribute", .backward = backward, .gives = true};
static const ls__op exchanging = {
    .name = "redistribute", .backward = backward, .gives = true, .gathers = true};

static const ls__op *op_of(const conversion *adjoint)
{
    const ls__move move = ls__move_of(adjoint->from, adjoint->to);
    return move == LS__MOVE_NOTHING ? &passing : move >= LS__MOVE_ALL_REDUCE ? &exchanging : &local;
}

/* The result's record, in the graph; NULL after a failure. */
static ls__record *converted(ls__call *call, const conversion *c, ls_tensor *x)
{
    ls__record done;
    const conversion adjoint = {.axis = c->axis,
                                .from = ls__place_dual(c->to),
                                .to = ls__place_dual(c->from),
                                .pass = ", backward"};
    const ls__op *op = op_of(&adjoint);
    ls__function_collective_begun(op->gathers);
    if (run(c, x, &done) < 0) {
        (void)ls__fail_at_site(ls__self.status);
        call->failed = ls__poison(call->tensors);
        return NULL;
    }
    ls__record *out = ls__record_alias(call->tensors, &done);
    ls__storage_unref(done.storage);
    if (out == NULL) {
        call->failed = ls__poison(call->tensors);
        return NULL;
    }
    ls__tensor_node *node = ls__call_record(call, op, out, sizeof(node_context));
    if (node != NULL) {
        *(node_context *)node->context = (node_context){
            .adjoint = adjoint, .axis = ls__axis_keep(c->axis), .shape = ls__record_shape(out)};
    }
    return out;
}

/* ---- the call ----------------------------------------------------------------------------- */

/* Whether x is what the caller takes it for. Where no gradient flows, replicated and invariant are
 * one, and what is unplaced is either. */
static bool is_from(const ls__record *x, int axis, int from)
{
    const int place = ls__place_of(x, axis);
    const bool equal = from == LS__PLACED_REPLICATED || from == LS__PLACED_INVARIANT;
    const bool loose = place == LS__PLACED_UNPLACED || ls__self.no_grad;
    return place == from || (equal && loose && place <= LS__PLACED_INVARIANT);
}

static ls_status check_divides(const ls__record *x, const conversion *c)
{
    const int place = c->to, n = c->axis->size;
    const int64_t given = place < LS__PLACED_SHARDED ? 0 : x->dim[dim_of(place)];
    if (given % n == 0) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_INVALID,
                    "redistribute: dimension %d of %s for %d ranks of axis %s; give a size that "
                    "%d divides, as %lld",
                    dim_of(place), ls__record_print(x).text, n, c->axis->name, n,
                    (long long)(given + n - given % n));
}

static ls_status check(const ls__record *x, int axis, const conversion *c)
{
    char subject[160];
    if (!is_from(x, axis, c->from)) {
        return ls__fail(LS_ERR_PLACEMENT,
                        "redistribute: on axis %s %s is %s, and the call takes it for %s; %s",
                        c->axis->name, ls__place_subject(x, 1, subject, sizeof subject),
                        ls_placement_name(ls__placement_public(ls__place_of(x, axis))),
                        ls_placement_name(ls__placement_public(c->from)),
                        ls__place_of(x, axis) == LS__PLACED_VARYING
                            ? "a mean or a piece of parts is no part: make it of sums (ls_sum), or "
                              "say by ls_place what it is"
                            : "give what it is, or leave this conversion out");
    }
    if (ls__move_of(c->from, c->to) == LS__MOVE_NONE) {
        return ls__fail(LS_ERR_PLACEMENT,
                        "redistribute: there is no conversion from %s to %s; placement.h lists "
                        "them, and ls_context_gather joins parts in zigzag order",
                        ls_placement_name(ls__placement_public(c->from)),
                        ls_placement_name(ls__placement_public(c->to)));
    }
    return check_divides(x, c);
}

static ls_status read_placement(ls_placement given, const ls__record *x, int *out)
{
    *out = ls__place_from_public(given, x->ndim);
    return *out >= 0 ? LS_OK
                     : ls__fail(LS_ERR_INVALID,
                                "redistribute: %s of %s; give one of ls_placement, and a "
                                "dimension that the tensor has",
                                ls_placement_name(given), ls__record_print(x).text);
}

/* A result without a gradient that is equal on all ranks is a constant. */
static void mark(ls__record *record, uint32_t word, int axis, int to)
{
    const bool constant = record->node == NULL && ls__self.record == NULL &&
                          (to == LS__PLACED_REPLICATED || to == LS__PLACED_INVARIANT);
    record->place = ls__place_with(word, axis, constant ? LS__PLACED_UNPLACED : to);
}

ls_tensor *(ls_redistribute)(ls_tensor *x, const char *axis, ls_placement from, ls_placement to)
{
    ls__axes_in_force *axes;
    const int a = ls__axis_find(axis, "redistribute", &axes);
    const ls__record *in =
        a >= 0 ? ls__record_sound(ls__tensors_get("redistribute"), x, "redistribute") : NULL;
    const bool evaluates = ls__self.no_grad && ls__self.record == NULL;
    conversion c = {.axis = a >= 0 ? &axes->axis[a] : NULL,
                    .pass = evaluates ? ", without gradients" : ""};
    if (a >= 0 && in == NULL && x != NULL && ls_tensor_status(x) < 0) {
        return x; /* poisoned: passed on */
    }
    if (in == NULL || read_placement(from, in, &c.from) < 0 || read_placement(to, in, &c.to) < 0) {
        return ls__call_refused();
    }
    if (c.axis->size == 1) {
        return x;
    }
    if (check(in, a, &c) < 0) {
        return ls__call_refused();
    }
    ls__call call;
    if (!ls__call_begin(&call, "redistribute", 1, &x)) {
        return call.failed;
    }
    const uint32_t word = ls__place_word(axes, in);
    ls__record *out = converted(&call, &c, x);
    if (out != NULL) {
        mark(out, word, a, c.to);
    }
    call.count = 0; /* placed already */
    return ls__call_finish(&call, out);
}

ls_status ls_redistribute_get_stats(const char *axis, ls_redistribute_stats *out)
{
    static const ls__axis_in_force none;
    ls__axes_in_force *axes;
    const int a = ls_mesh_in_force() != NULL ? ls__axis_find(axis, "redistribute_get_stats", &axes)
                                             : LS__AXES_MAX;
    if (a < 0) {
        return ls__self.status;
    }
    const uint64_t *sent = a < LS__AXES_MAX ? axes->axis[a].sent : none.sent;
    const ls_redistribute_stats all = {.all_reduces = sent[0],
                                       .all_gathers = sent[1],
                                       .reduce_scatters = sent[2],
                                       .all_to_alls = sent[3],
                                       .bytes = sent[LS__SENT_BYTES],
                                       .messages = sent[LS__SENT_MESSAGES]};
    return ls__struct_fill(out, &all, sizeof all, "ls_redistribute_stats",
                           "ls_redistribute_get_stats");
}
