/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to ranks, each with a number of its own for each: one all-to-all of unequal blocks.
 *
 *     rank 0   a a b         counts 2 1         a a c
 *     rank 1   c d d d       counts 1 3         b d d d       from rank 0, then from rank 1
 *
 * Backward is the same exchange with both counts swapped. Rows of a device whose backend moves its
 * memory go from there to there, in its stream. */
#include <stdio.h>
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/function.h>
#include <lockstep/placement.h>

#include "base/error.h"
#include "base/options.h"
#include "comm/core/group.h"
#include "placement/redistribute.h"
#include "tensor/across.h"
#include "tensor/op.h"
#include "tensor/placement.h"

#define NAME "redistribute_rows"

typedef struct rows_plan {
    ls__axis_kept axis;
    ls_shape one; /* of x, and of the result but for its rows */
    const char *pass;
    int64_t counts[]; /* [ranks] to send, [ranks] to receive */
} rows_plan;

static size_t plan_bytes(int ranks)
{
    return sizeof(rows_plan) + 2 * (size_t)ranks * sizeof(int64_t);
}

static int64_t sum(const int64_t *counts, int ranks)
{
    int64_t total = 0;
    for (int r = 0; r < ranks; r++) {
        total += counts[r];
    }
    return total;
}

static int64_t row_numel(const ls_shape *shape)
{
    int64_t numel = 1;
    for (int d = 1; d < shape->ndim; d++) {
        numel *= shape->dim[d];
    }
    return numel;
}

/* to[i] = numbers of rows in elements. */
static void in_elements(const int64_t *rows, int64_t each, int ranks, int64_t *to)
{
    for (int r = 0; r < ranks; r++) {
        to[r] = rows[r] * each;
    }
}

static void count_sent(ls__axis_in_force *axis, const int64_t *elements, ls_dtype dtype)
{
    const int64_t leaves = sum(elements, axis->size) - elements[axis->coordinate];
    axis->sent[LS__MOVE_ALL_TO_ALL - LS__MOVE_ALL_REDUCE]++;
    axis->sent[LS__SENT_BYTES] += (uint64_t)leaves * ls_dtype_size(dtype);
}

/* `send` and `receive` in rows. The device's stream waits for what the host has only started. */
static ls_status move(const rows_plan *p, const ls__operands *o, const int64_t *send,
                      const int64_t *receive, const char *pass)
{
    char tag[64];
    ls__pool *on = NULL;
    ls_work *work = NULL, **later = o->stream != NULL ? &work : NULL;
    ls__axis_in_force *axis = p->axis.axis;
    const int n = axis->size;
    const int64_t each = row_numel(&p->one);
    ls__storage *room = ls__storage_new(&ls__tensors_get(NAME)->host, 2 * (size_t)n * sizeof each);
    if (room == NULL) {
        return ls__self.status;
    }
    int64_t *to = room->data, *from = to + n;
    in_elements(send, each, n, to);
    in_elements(receive, each, n, from);
    (void)snprintf(tag, sizeof tag, "redistribute rows%s", pass);
    const ls_status status =
        ls_all_to_all_v(o->group, ls__tensor_elements(o->x, &on), to, NULL,
                        ls__tensor_elements(o->out, &on), from, NULL, ls_dtype_of(o->x),
                        LS_OPTIONS(ls_collective_options, .tag = tag, .stream = o->stream), later);
    count_sent(axis, to, ls_dtype_of(o->x));
    ls__storage_unref(room);
    return status == LS_OK && work != NULL ? ls_work_wait_stream(work, o->stream) : status;
}

/* *out becomes the rows that arrive. */
static ls_status exchange(const rows_plan *p, ls_tensor *x, const int64_t *send,
                          const int64_t *receive, const char *pass, ls_tensor **out)
{
    ls__operands o;
    ls_shape shape = p->one;
    shape.dim[0] = sum(receive, p->axis.axis->size);
    LS_TRY(ls__operands_find(p->axis.axis->group, ls__unplaced(x), shape, &o));
    LS_TRY(move(p, &o, send, receive, pass));
    *out = ls__operands_result(&o);
    return LS_OK;
}

static ls_status forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                         int m, void *arg)
{
    (void)n, (void)m;
    const rows_plan *p = arg;
    const int ranks = p->axis.axis->size;
    LS_TRY(exchange(p, in[0], p->counts, p->counts + ranks, p->pass, &out[0]));
    return ls_function_save_data(call, p, plan_bytes(ranks));
}

static ls_status backward(ls_function_call *call, ls_tensor *const *dout, int m, ls_tensor **din,
                          int n)
{
    (void)n, (void)m;
    const rows_plan *p = ls_function_data(call);
    LS_TRY(ls__axis_check(&p->axis, NAME));
    const int ranks = p->axis.axis->size;
    return exchange(p, dout[0], p->counts + ranks, p->counts, ", backward", &din[0]);
}

/* Of weight 0, too: the rows of the other ranks come through this one. */
static const ls_function exchange_rows =
    LS_FUNCTION(.name = NAME, .forward = forward, .backward = backward, .collective = true,
                .placing = LS_PLACING_BY_CALLER, .gathers = true);

/* ---- the call ------------------------------------------------------------------------------ */

static ls_status check_counts(const ls__record *in, const ls__axis_in_force *axis,
                              const int64_t *counts, const int64_t *received)
{
    if (counts == NULL || received == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "redistribute_rows: counts are NULL; give %d of rows to send and %d of "
                        "rows to receive, one for each rank of axis %s",
                        axis->size, axis->size, axis->name);
    }
    const int64_t most = INT64_MAX / axis->size; /* the sum can be taken */
    for (int r = 0; r < axis->size; r++) {
        if (counts[r] < 0 || received[r] < 0 || counts[r] > most || received[r] > most) {
            return ls__fail(
                LS_ERR_INVALID,
                "redistribute_rows: %lld rows to rank %d of axis %s and %lld from it; give numbers "
                "of rows that there can be",
                (long long)counts[r], r, axis->name, (long long)received[r]);
        }
    }
    const int64_t rows = in->ndim > 0 ? in->dim[0] : -1;
    if (rows != sum(counts, axis->size)) {
        return ls__fail(
            LS_ERR_INVALID,
            "redistribute_rows: the counts for the ranks of axis %s are %lld rows, and argument 1 "
            "is %s; give counts that add up to its dimension 0",
            axis->name, (long long)sum(counts, axis->size), ls__record_print(in).text);
    }
    return LS_OK;
}

/* Where no gradient flows the rows may be taken from anything. */
static ls_status check_place(const ls__record *in, int axis, const char *name)
{
    char subject[160];
    const int place = ls__place_of(in, axis);
    const bool free = place == LS__PLACED_UNPLACED || (in->node == NULL && ls__self.no_grad);
    if (place == LS__PLACED_VARYING || place == LS__PLACED_SHARDED ||
        (free && place != LS__PLACED_PARTIAL)) {
        return LS_OK;
    }
    return ls__fail(
        LS_ERR_PLACEMENT,
        "redistribute_rows: on axis %s %s is %s; give each rank rows of its own: of a batch that "
        "varies along the axis",
        name, ls__place_subject(in, 1, subject, sizeof subject),
        ls_placement_name(ls__placement_public(place)));
}

static ls_tensor *apply(ls__tensors *tensors, ls_tensor *x, rows_plan *plan, int axis)
{
    const ls__axes_in_force *axes = ls__axes_of(tensors);
    const ls__record *in = ls__record_sound(tensors, x, NAME);
    const uint32_t word = in != NULL ? ls__place_word(axes, in) : 0;
    ls_tensor *y = ls_function_apply(&exchange_rows, x, plan);
    ls__record *out = ls__record_sound(tensors, y, NAME);
    if (out != NULL) {
        out->place = ls__place_with(word, axis, LS__PLACED_VARYING);
    }
    return y;
}

static ls_tensor *planned(ls__tensors *tensors, ls_tensor *x, const ls__record *in, int axis,
                          const int64_t *counts, const int64_t *received)
{
    ls__axis_in_force *along = &ls__axes_of(tensors)->axis[axis];
    const size_t bytes = (size_t)along->size * sizeof *counts;
    ls__storage *room = ls__storage_new(&tensors->host, plan_bytes(along->size));
    if (room == NULL) {
        return ls__call_refused();
    }
    rows_plan *plan = room->data;
    *plan = (rows_plan){.axis = ls__axis_keep(along),
                        .one = ls__record_shape(in),
                        .pass = ls__self.no_grad && ls__self.record == NULL ? ", without gradients"
                                                                            : ""};
    memcpy(plan->counts, counts, bytes);
    memcpy(plan->counts + along->size, received, bytes);
    ls_tensor *y = apply(tensors, x, plan, axis);
    ls__storage_unref(room);
    return y;
}

ls_tensor *(ls_redistribute_rows)(ls_tensor *x, const char *axis, const int64_t *counts,
                                  const int64_t *received)
{
    ls__axes_in_force *axes;
    const int a = ls__axis_find(axis, NAME, &axes);
    ls__tensors *tensors = a >= 0 ? ls__tensors_get(NAME) : NULL;
    const ls__record *in = tensors != NULL ? ls__record_sound(tensors, x, NAME) : NULL;
    if (tensors != NULL && in == NULL && x != NULL && ls_tensor_status(x) < 0) {
        return x; /* poisoned: passed on */
    }
    if (in == NULL || check_counts(in, &axes->axis[a], counts, received) < 0) {
        return ls__call_refused();
    }
    if (axes->axis[a].size == 1) {
        return x;
    }
    return check_place(in, a, axis) < 0 ? ls__call_refused()
                                        : planned(tensors, x, in, a, counts, received);
}
