/* SPDX-License-Identifier: Apache-2.0 */
/* Ring attention (Liu, Zaharia & Abbeel 2023) in zigzag order: context.h says what ranks hold.
 *
 *     step          0        1        2        3         rank r computes with the keys and values
 *     rank 0       kv0 ─┐   kv3 ─┐   kv2 ─┐   kv1        of rank r - step, while they travel on
 *     rank 1       kv1  └▶  kv0  └▶  kv3  └▶  kv2
 *
 * Step i gives o_i = softmax(q k_i^T) v_i, and lse_i, the logarithm of the softmax's denominator.
 * Two of them merge to the attention over the keys of both:
 *
 *     lse = log(exp(lse_1) + exp(lse_2))      o = exp(lse_1 - lse) o_1 + exp(lse_2 - lse) o_2
 *
 * The order of merging is that of the steps, so results do not depend on when messages arrive.
 *
 * Backward needs the whole's o and lse: with P_i = exp(q k_i^T - lse) each step's gradients are
 * terms of those of the whole. dq adds up here. dk and dv start at the rank after that of the keys,
 * travel with one rank's terms more in each step, and come home in n-1 messages:
 *
 *     block j:   rank j+1, step 1  ──▶  rank j+2, step 2  ──▶  …  rank j-1, step n-1  ──▶  rank j
 *
 * In memory of a device whose backend moves it each shift is an all-to-all with one block for the
 * next rank and one from the rank before, which NCCL starts together; the device's stream waits
 * for it where the host would.
 */
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/context.h>
#include <lockstep/function.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/options.h"
#include "placement/redistribute.h"
#include "placement/ring.h"
#include "tensor/across.h"
#include "tensor/attention.h"
#include "tensor/op.h"
#include "tensor/placement.h"

#define NAME "ring_attention"
#define HALVES 2       /* chunks of a rank under a causal mask */
#define TAG 0x52494e47 /* "RING": of its messages, apart from those of programs */

enum { SAVED_Q, SAVED_K, SAVED_V, SAVED_O, SAVED_LSE };

typedef struct ring {
    ls__axis_in_force *axis;
    ls__axis_kept kept;
    ls_group *there; /* of the device's backend; NULL: messages pass through the program's memory */
    ls_stream *stream; /* … and its stream */
    bool causal;
    double scale;
} ring;

/* ---- what a step computes ------------------------------------------------------------------ */

/* Chunks r and 2n-1-r of queries, with chunks j and 2n-1-j of keys: both see chunk j of a lower
 * rank and neither its other one; of a higher rank the second sees both and the first neither. */
ls__ring_block ls__ring_block_of(bool causal, int rank, int step, int64_t time, int64_t keys)
{
    if (!causal) {
        return (ls__ring_block){.rows = time, .keys = keys};
    }
    if (step == 0) {
        return (ls__ring_block){.rows = time, .keys = keys, .causal = true};
    }
    return step <= rank ? (ls__ring_block){.rows = time, .keys = keys / 2}
                        : (ls__ring_block){.row = time / 2, .rows = time - time / 2, .keys = keys};
}

static ls__ring_block block_of(const ring *r, int step, ls_tensor *q, ls_tensor *kv)
{
    return ls__ring_block_of(r->causal, r->axis->coordinate, step, ls_size(q, 2), ls_size(kv, 3));
}

static ls_tensor *rows_of(ls_tensor *t, int dim, int64_t first, int64_t rows)
{
    return ls_contiguous(ls_slice(t, dim, first, first + rows));
}

/* Keys (0) or values (1) of [2,B,G,S,D], the first `keys` of them. */
static ls_tensor *keys_of(ls_tensor *kv, int which, int64_t keys)
{
    ls_shape shape = ls_shape_of(kv);
    for (int d = 0; d < 4; d++) {
        shape.dim[d] = shape.dim[d + 1];
    }
    shape.ndim = 4;
    ls_tensor *one = ls_reshape(ls_slice(kv, 0, which, which + 1), shape);
    return ls__tensor_to_made(rows_of(one, 2, 0, keys));
}

static ls__attention_part part_of(const ring *r, const ls__ring_block *b, ls_tensor *q,
                                  ls_tensor *kv)
{
    return (ls__attention_part){.q = rows_of(q, 2, b->row, b->rows),
                                .k = keys_of(kv, 0, b->keys),
                                .v = keys_of(kv, 1, b->keys),
                                .causal = b->causal,
                                .scale = r->scale};
}

static bool is_empty(ls_tensor *q, ls_tensor *kv)
{
    return ls_numel(q) == 0 || ls_numel(kv) == 0;
}

/* Exchanges a tensor that outlives the steps' scopes. */
static ls_status replace(ls_tensor **kept, ls_tensor *by)
{
    ls_tensor *before = *kept;
    LS_TRY(ls_tensor_status(by));
    *kept = ls_keep(by);
    ls_free(before);
    return LS_OK;
}

/* ---- messages ------------------------------------------------------------------------------ */

typedef struct shift {       /* to the next rank, and from the one before */
    ls_work *send, *receive; /* over the group of the device `send` is both */
} shift;

/* Where keys and sums lie while they travel. */
static ls_status find_there(ring *r, ls_tensor *q)
{
    ls__pool *on = NULL;
    if (ls__tensor_place(q, &on) == NULL) {
        return ls__self.status;
    }
    r->stream = on->stream;
    return ls__group_there(r->axis->group, on, &r->there);
}

static ls_status start_together(const ring *r, ls_tensor *from, ls_tensor *to, shift *s)
{
    ls__pool *on = NULL;
    const int n = r->axis->size, me = r->axis->coordinate;
    ls__storage *room =
        ls__storage_new(&ls__tensors_get(NAME)->host, 2 * (size_t)n * sizeof(int64_t));
    if (room == NULL) {
        return ls__self.status;
    }
    int64_t *sent = room->data, *received = sent + n;
    memset(sent, 0, 2 * (size_t)n * sizeof *sent);
    sent[(me + 1) % n] = received[(me + n - 1) % n] = ls_numel(from);
    const ls_status status = ls_all_to_all_v(
        r->there, ls__tensor_elements(from, &on), sent, NULL, ls__tensor_elements(to, &on),
        received, NULL, ls_dtype_of(from),
        LS_OPTIONS(ls_collective_options, .tag = NAME, .stream = r->stream), &s->send);
    ls__storage_unref(room);
    return status;
}

static ls_status start(const ring *r, ls_tensor *from, ls_tensor *to, shift *s)
{
    const int n = r->axis->size, me = r->axis->coordinate;
    const ls_collective_options o = *LS_OPTIONS(ls_collective_options, .tag = NAME);
    const ls_dtype dtype = ls_dtype_of(from);
    LS_TRY(ls_tensor_status(from));
    LS_TRY(ls_tensor_status(to));
    r->axis->sent[LS__SENT_MESSAGES]++;
    r->axis->sent[LS__SENT_BYTES] += (uint64_t)ls_numel(from) * ls_dtype_size(dtype);
    if (r->there != NULL) {
        return start_together(r, from, to, s);
    }
    LS_TRY(ls_recv(r->axis->group, ls_data(to), ls_numel(to), dtype, (me + n - 1) % n, TAG, &o,
                   &s->receive));
    return ls_send(r->axis->group, ls_data(from), ls_numel(from), dtype, (me + 1) % n, TAG, &o,
                   &s->send);
}

/* Also after a failure: the memory of messages under way must stay. */
static ls_status finish(const ring *r, const shift *s, ls_status status)
{
    ls_work *const works[] = {s->receive, s->send};
    ls_stream *stream = r->there != NULL ? r->stream : NULL;
    for (int i = 0; i < 2; i++) {
        const ls_status waited = works[i] != NULL ? ls_work_wait_stream(works[i], stream) : LS_OK;
        status = status < 0 ? status : waited;
    }
    return status;
}

/* A row-major tensor where it can be sent from. */
static ls_tensor *to_send(const ring *r, ls_tensor *t)
{
    return r->there != NULL ? t : ls__tensor_to_here(t);
}

/* Keys and values in one message: [2,B,G,S,D]. */
static ls_tensor *packed(const ring *r, ls_tensor *k, ls_tensor *v)
{
    return to_send(r, ls_stack((ls_tensor *[]){k, v}, 2, 0));
}

/* Where it can be received into. */
static ls_tensor *like(ls_tensor *t)
{
    ls__pool *on = NULL;
    return ls__tensor_place(t, &on) != NULL ? ls__tensor_on(on, ls_shape_of(t), ls_dtype_of(t)) : t;
}

/* ---- forward ------------------------------------------------------------------------------- */

typedef struct merged { /* the attention of some queries over the keys so far; kept */
    int64_t row, rows;
    ls_tensor *o, *lse; /* float32 [B,rows,H,D], [B,H,rows]; NULL: no keys yet */
} merged;

/* exp(part - whole) [B,H,T], as a factor of [B,T,H,D]. */
static ls_tensor *share(ls_tensor *part, ls_tensor *whole)
{
    ls_tensor *factor = ls_contiguous(ls_transpose(ls_exp(ls_sub(part, whole)), 1, 2));
    const ls_shape shape = ls_shape_of(factor);
    return ls_reshape(factor, LS_SHAPE(shape.dim[0], shape.dim[1], shape.dim[2], 1));
}

/* log(exp(a) + exp(b)) */
static ls_tensor *log_sum(ls_tensor *a, ls_tensor *b)
{
    ls_tensor *most = ls_maximum(a, b);
    return ls_add(most, ls_log(ls_add(ls_exp(ls_sub(a, most)), ls_exp(ls_sub(b, most)))));
}

static ls_status merge(merged *m, const ls__attention_part *part, int64_t first)
{
    ls_tensor *o = ls_cast(rows_of(part->o, 1, m->row - first, m->rows), LS_FLOAT32);
    ls_tensor *lse = rows_of(part->lse, 2, m->row - first, m->rows);
    if (m->o != NULL) {
        ls_tensor *sum = log_sum(m->lse, lse);
        o = ls_add(ls_mul(m->o, share(m->lse, sum)), ls_mul(o, share(lse, sum)));
        lse = sum;
    }
    LS_TRY(replace(&m->o, o));
    return replace(&m->lse, lse);
}

static ls_status attend(const ring *r, int step, ls_tensor *q, ls_tensor *kv, merged *of)
{
    const ls__ring_block b = block_of(r, step, q, kv);
    if (is_empty(q, kv)) {
        return LS_OK;
    }
    LS_SCOPE;
    ls__attention_part part = part_of(r, &b, q, kv);
    LS_TRY(ls__attention_part_forward(&part));
    for (int h = 0; h < HALVES && of[h].rows > 0; h++) {
        if (of[h].row >= b.row) {
            LS_TRY(merge(&of[h], &part, b.row));
        }
    }
    return LS_OK;
}

/* The keys of the next step travel while this one computes. */
static ls_status run_forward(const ring *r, ls_tensor *q, ls_tensor *kv, merged *of)
{
    ls_tensor *const buffer[] = {kv, like(kv)};
    for (int step = 0; step < r->axis->size; step++) {
        shift s = {NULL, NULL};
        ls_tensor *now = buffer[step % 2];
        ls_status status = LS_OK;
        if (step < r->axis->size - 1) {
            status = start(r, now, buffer[(step + 1) % 2], &s);
        }
        status = status < 0 ? status : attend(r, step, q, now, of);
        LS_TRY(finish(r, &s, status));
    }
    return LS_OK;
}

/* Under a causal mask the chunks of a rank see different keys. */
static void divide(const ring *r, int64_t time, merged of[HALVES])
{
    const int64_t first = r->causal ? time / 2 : time;
    of[0].rows = first;
    of[1].row = first;
    of[1].rows = time - first;
}

/* One tensor of what the halves have, along `dim`. */
static ls_tensor *joined(ls_tensor *a, ls_tensor *b, int dim)
{
    return ls_concat((ls_tensor *[]){a, b}, b != NULL ? 2 : 1, dim);
}

/* Of no keys, o is zero. */
static ls_status give(ls_function_call *call, ls_tensor *q, const merged *of, ls_tensor **out)
{
    const ls_shape s = ls_shape_of(q);
    ls_tensor *lse = ls_zeros(LS_SHAPE(s.dim[0], s.dim[1], s.dim[2]), LS_FLOAT32);
    *out = ls_zeros(LS_SHAPE(s.dim[0], s.dim[2], s.dim[1], s.dim[3]), ls_dtype_of(q));
    if (of[0].o != NULL) {
        *out = ls_cast(joined(of[0].o, of[1].o, 1), ls_dtype_of(q));
        lse = joined(of[0].lse, of[1].lse, 2);
    }
    LS_TRY(ls_tensor_status(*out));
    LS_TRY(ls_function_save(call, *out));
    return ls_function_save(call, lse);
}

static ls_status forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                         int m, void *arg)
{
    (void)n, (void)m;
    merged of[HALVES] = {{0}};
    ring *r = arg;
    ls_tensor *q = ls__unplaced(in[0]);
    LS_TRY(find_there(r, q));
    ls_tensor *kv = packed(r, ls__unplaced(in[1]), ls__unplaced(in[2]));
    LS_TRY(ls_tensor_status(kv));
    LS_TRY(ls_function_save_data(call, r, sizeof *r));
    for (int i = 0; i < 3; i++) {
        LS_TRY(ls_function_save(call, in[i]));
    }
    divide(r, ls_size(q, 2), of);
    ls_status status = run_forward(r, q, kv, of);
    status = status < 0 ? status : give(call, q, of, &out[0]);
    for (int h = 0; h < HALVES; h++) {
        ls_free(of[h].o);
        ls_free(of[h].lse);
    }
    return status;
}

/* ---- backward ------------------------------------------------------------------------------ */

typedef struct gradients {
    ls_tensor *q, *o, *lse, *d_o;                   /* of this rank's queries, whole */
    ls_tensor *dq, *own, *passing, *part, *arrived; /* float32, kept; of keys [2,B,G,S,D] */
} gradients;

/* In float32, with zeros before and after it, to `size` along `dim`. */
static ls_tensor *widened(ls_tensor *part, int dim, int64_t first, int64_t size)
{
    ls_tensor *wide = ls_cast(part, LS_FLOAT32);
    ls_shape before = ls_shape_of(part), after = before;
    after.dim[dim] = size - first - before.dim[dim];
    before.dim[dim] = first;
    ls_tensor *rows[] = {ls_zeros(before, LS_FLOAT32), wide, ls_zeros(after, LS_FLOAT32)};
    return ls_size(part, dim) == size ? wide : ls_concat(rows, 3, dim);
}

/* What a step adds to dq, and its g->part of the keys' gradients. */
static ls_status differentiate(const ring *r, int step, ls_tensor *kv, gradients *g)
{
    LS_SCOPE;
    const int64_t time = ls_size(g->q, 2), keys = ls_size(kv, 3);
    const ls__ring_block b = block_of(r, step, g->q, kv);
    if (is_empty(g->q, kv)) {
        LS_TRY(replace(&g->dq, ls_zeros(ls_shape_of(g->q), LS_FLOAT32)));
        return replace(&g->part, ls_zeros(ls_shape_of(kv), LS_FLOAT32));
    }
    ls__attention_part part = part_of(r, &b, g->q, kv);
    part.o = rows_of(g->o, 1, b.row, b.rows);
    part.d_o = rows_of(g->d_o, 1, b.row, b.rows);
    part.lse = rows_of(g->lse, 2, b.row, b.rows);
    LS_TRY(ls__attention_part_backward(&part));
    ls_tensor *dq = widened(part.dq, 2, b.row, time);
    ls_tensor *dkv = widened(part.dkv, 3, 0, keys);
    LS_TRY(replace(&g->dq, g->dq != NULL ? ls_add(g->dq, dq) : dq));
    return replace(&g->part, to_send(r, dkv));
}

/* g->passing goes on, and the sum over the ranks before comes for the keys of this step. */
static ls_status pass_on(const ring *r, gradients *g, shift *s)
{
    LS_TRY(replace(&g->arrived, like(g->passing)));
    return start(r, g->passing, g->arrived, s);
}

/* Step 0 is of the own keys, and step 1 begins a sum. */
static ls_status collect(const ring *r, int step, gradients *g)
{
    LS_SCOPE;
    if (step < 2) {
        ls_tensor **first = step == 0 ? &g->own : &g->passing;
        *first = g->part;
        g->part = NULL;
        return LS_OK;
    }
    LS_TRY(replace(&g->passing, to_send(r, ls_add(g->arrived, g->part))));
    ls_free(g->part);
    ls_free(g->arrived);
    g->part = g->arrived = NULL;
    return LS_OK;
}

static ls_status run_backward(const ring *r, ls_tensor *kv, gradients *g)
{
    ls_tensor *const buffer[] = {kv, like(kv)};
    shift home = {NULL, NULL};
    for (int step = 0; step < r->axis->size; step++) {
        shift keys = {NULL, NULL}, sums = {NULL, NULL};
        ls_tensor *now = buffer[step % 2];
        ls_status status = LS_OK;
        if (step < r->axis->size - 1) {
            status = start(r, now, buffer[(step + 1) % 2], &keys);
        }
        if (status == LS_OK && step >= 2) {
            status = pass_on(r, g, &sums);
        }
        status = status < 0 ? status : differentiate(r, step, now, g);
        LS_TRY(finish(r, &sums, finish(r, &keys, status)));
        LS_TRY(collect(r, step, g));
    }
    const ls_status status = pass_on(r, g, &home);
    return finish(r, &home, status);
}

/* The gradient of keys (0) or values (1), from this rank and from the others. */
static ls_tensor *total(const gradients *g, int which, ls_dtype dtype)
{
    return ls_cast(keys_of(ls_add(g->own, g->arrived), which, ls_size(g->own, 3)), dtype);
}

static ls_status backward(ls_function_call *call, ls_tensor *const *dout, int m, ls_tensor **din,
                          int n)
{
    (void)m, (void)n;
    const ring *r = ls_function_data(call);
    ls_tensor *saved[SAVED_LSE + 1];
    LS_TRY(ls__axis_check(&r->kept, NAME));
    for (int i = 0; i <= SAVED_LSE; i++) {
        saved[i] = ls__unplaced(ls_function_saved(call, i));
        LS_TRY(ls_tensor_status(saved[i]));
    }
    gradients g = {.q = saved[SAVED_Q],
                   .o = saved[SAVED_O],
                   .lse = saved[SAVED_LSE],
                   .d_o = ls_contiguous(dout[0])};
    const ls_status status = run_backward(r, packed(r, saved[SAVED_K], saved[SAVED_V]), &g);
    if (status == LS_OK) {
        const ls_dtype dtype = ls_dtype_of(g.q);
        din[0] = ls_cast(ls_clone(g.dq), dtype);
        din[1] = total(&g, 0, dtype);
        din[2] = total(&g, 1, dtype);
    }
    ls_tensor *const kept[] = {g.dq, g.own, g.passing, g.part, g.arrived};
    for (int i = 0; i < 5; i++) {
        ls_free(kept[i]);
    }
    return status;
}

/* Of weight 0 as well: the other ranks' losses depend on this rank's keys and values. */
static const ls_function ring_attention =
    LS_FUNCTION(.name = NAME, .forward = forward, .backward = backward, .collective = true,
                .placing = LS_PLACING_BY_CALLER, .gathers = true);

/* ---- the call ------------------------------------------------------------------------------ */

static ls_status check_options(const ls_attention_options *o)
{
    if (o->mask != NULL || o->dropout != 0.0) {
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "ring_attention: %s; give none, or gather q, k and v (ls_context_gather) for "
            "ls_attention",
            o->mask != NULL ? "a mask" : "dropout of the weights");
    }
    if (!(o->scale - o->scale == 0.0)) {
        return ls__fail(LS_ERR_INVALID,
                        "ring_attention: scale is %g; give a finite number, or 0 for 1/sqrt(D)",
                        o->scale);
    }
    return LS_OK;
}

/* Input i must be a part of a whole along the sequence. */
static ls_status check_placed(const ls__record *in, int i, const ring *r, int axis)
{
    char subject[160];
    const int place = ls__place_of(in, axis);
    if (place == LS__PLACED_ZIGZAG + 2 || place == LS__PLACED_VARYING ||
        (!r->causal && place == LS__PLACED_SHARDED + 2)) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_PLACEMENT,
                    "ring_attention: on axis %s %s is %s, and each rank must give its part of the "
                    "sequence%s; shard what q, k and v are computed from: ls_context_shard",
                    r->axis->name, ls__place_subject(in, i + 1, subject, sizeof subject),
                    ls_placement_name(ls__placement_public(place)),
                    place == LS__PLACED_SHARDED + 2 ? ", in zigzag order under a causal mask" : "");
}

static ls_status check_shapes(const ls__record *const in[3], const ring *r)
{
    const ls__record *q = in[0], *k = in[1], *v = in[2];
    const bool fits = q->ndim == 4 && k->ndim == 4 && ls__shape_equal(k, v) &&
                      q->dim[0] == k->dim[0] && q->dim[3] == k->dim[3] &&
                      (k->dim[1] > 0 ? q->dim[1] % k->dim[1] == 0 : q->dim[1] == 0);
    if (!fits) {
        return ls__fail(
            LS_ERR_INVALID,
            "ring_attention: q %s, k %s, v %s; q must be [B,H,T,D], k and v [B,G,S,D] with H a "
            "multiple of G",
            ls__record_print(q).text, ls__record_print(k).text, ls__record_print(v).text);
    }
    if (r->causal && (q->dim[2] != k->dim[2] || q->dim[2] % 2 != 0)) {
        return ls__fail(
            LS_ERR_INVALID,
            "ring_attention: causal with %lld queries and %lld keys on this rank; it holds two "
            "chunks of one sequence, so give as many of both, an even number",
            (long long)q->dim[2], (long long)k->dim[2]);
    }
    return LS_OK;
}

/* All bfloat16, also where ls_autocast asks for it; else all float32. */
static ls_status to_one_type(ls_tensor *const given[3], ls_tensor *out[3])
{
    bool halves = true;
    for (int i = 0; i < 3; i++) {
        const ls_dtype dtype = ls_dtype_of(given[i]);
        if (dtype != LS_FLOAT32 && dtype != LS_BFLOAT16) {
            return ls__fail(LS_ERR_INVALID,
                            "ring_attention: argument %d is %s; give float32 or bfloat16", i + 1,
                            ls_dtype_name(dtype));
        }
        halves = halves && (dtype == LS_BFLOAT16 || ls__self.autocast);
    }
    for (int i = 0; i < 3; i++) {
        out[i] = ls_cast(given[i], halves ? LS_BFLOAT16 : LS_FLOAT32);
        LS_TRY(ls_tensor_status(out[i]));
    }
    return LS_OK;
}

/* On other axes heads and samples pass as in ls_attention. On this one the result is a part as q
 * is. */
static ls_status place(ls__tensors *tensors, ls_tensor *const in[3], ls_tensor *y, int axis)
{
    ls__record seen[3];
    ls__record *out = ls__record_sound(tensors, y, NAME);
    if (out == NULL) {
        return ls__self.status;
    }
    ls__call call = {.name = NAME, .tensors = tensors, .count = 3, .grad = out->node != NULL};
    for (int i = 0; i < 3; i++) {
        const ls__record *record = ls__record_sound(tensors, in[i], NAME);
        LS_ASSERT(record != NULL);
        seen[i] = *record;
        seen[i].place = ls__place_with(record->place, axis, LS__PLACED_VARYING);
        call.in[i] = &seen[i];
    }
    const int given = ls__place_of(ls__record_sound(tensors, in[0], NAME), axis);
    call.follows = LS__CONTRACTS(ATTENDS);
    ls__call_place(&call, out);
    const int own = ls__place_dim(given) == 2 ? ls__place_along(given, 1) : given;
    out->place = ls__place_with(out->place, axis, own);
    return call.failed == NULL ? LS_OK : ls__self.status;
}

/* NULL with the error set. */
static ls_tensor *run(ls__tensors *tensors, ls_tensor *const given[3], ring *r, int axis)
{
    const ls__record *record[3];
    ls_tensor *in[3], *y = NULL;
    for (int i = 0; i < 3; i++) {
        record[i] = ls__record_sound(tensors, given[i], NAME);
        if (record[i] == NULL || check_placed(record[i], i, r, axis) < 0) {
            return NULL;
        }
    }
    if (check_shapes(record, r) < 0 || to_one_type(given, in) < 0 ||
        ls_function_apply_many(&ring_attention, in, 3, &y, 1, r) < 0 ||
        place(tensors, in, y, axis) < 0) {
        return NULL;
    }
    return ls_transpose(y, 1, 2);
}

ls_tensor *(ls_ring_attention)(ls_tensor *q, ls_tensor *k, ls_tensor *v, const char *axis,
                               const ls_attention_options *options)
{
    LS__OPTIONS_OR(ls__call_refused(), ls_attention_options, given, options);
    ls__axes_in_force *axes;
    const int a = ls__axis_find(axis, NAME, &axes);
    if (a < 0 || check_options(&given) < 0) {
        return ls__call_refused();
    }
    if (axes->axis[a].size == 1) {
        return ls_attention(q, k, v, &given);
    }
    ring r = {.axis = &axes->axis[a],
              .kept = ls__axis_keep(&axes->axis[a]),
              .causal = given.causal,
              .scale = given.scale};
    ls_tensor *y = run(ls__tensors_get(NAME), (ls_tensor *[]){q, k, v}, &r, a);
    return y != NULL ? y : ls__call_refused();
}
