/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention by tiles of 32 queries; formulas in ref/attention.c.
 *
 *            keys ->                        A tile's scores [32, nk] fit the second-level cache, so
 *          +----+----+----+----+            the softmax sees a whole row at once; keys to the right
 *  queries |####|    |    |    |  tile 0    of the tile (blank) are never touched. K is transposed
 *          |####|####|    |    |  tile 1    once a head, so that both matrix products of a tile run
 *          |####|####|####|    |  tile 2    on rows as they lie. Backward recomputes P from lse.
 *
 * bfloat16 is widened a head at a time into the slot, where the head lies row-major, and the
 * result is narrowed: the rest sees float32 only. Where the processor has matrix tiles, products
 * are of bfloat16 instead (attention_tiles.c).
 *
 * With more keys than queries the causal edge ends at the last key. Heads that share keys and
 * values (a group) are one task, so that their sums dk and dv have one owner. Tasks are shared
 * among threads; a head's arithmetic does not depend on who computes it. Threads own a slot of the
 * workspace each, SLOTS at most.
 */
#include <string.h>

#include "base/compiler.h"
#include "kernel/cpu/attention_rows.h"
#include "kernel/cpu/halves.h"
#include "kernel/cpu/transpose.h"

#define TILE 32 /* queries; row strides of the workspace are multiples of it, too */
#define SLOTS LS__ATTENTION_SLOTS
#define PARALLEL_MIN_WORK (1 << 18) /* score elements times dim */

/* The workspace of a thread (slot): K^T, a tile of scores and, in backward, V^T, the scores'
 * gradients and a row of dropout's factors. Slots follow each other; behind them lie the float32
 * heads of bfloat16 calls, one a thread. */
typedef struct head { /* one (batch, head) and a slot of the workspace */
    int64_t index;    /* b H + h */
    const float *q, *k, *v, *d_o, *mask;
    float *o, *lse, *dq, *dk, *dv;
    int64_t stride;              /* of rows of the following: keys rounded up */
    float *keys, *values;        /* [dim,stride]: scale k^T and v^T, zero beyond the keys */
    float *scores, *score_grads; /* [TILE,stride] */
    float *keep;                 /* [stride]: dropout's factors of a row, in backward */
} head;

/* A multiple of TILE, so that a row of scores never needs a remainder loop at its end. */
static int64_t row_stride(const ls__attention *a)
{
    return (a->keys + TILE - 1) / TILE * TILE;
}

/* One thread's workspace: keys and a tile of scores; backward adds values, score gradients and
 * dropout's factors. */
static int64_t slot_floats(const ls__attention *a, bool backward)
{
    return row_stride(a) * ((a->dim + TILE) * (backward ? 2 : 1) + (backward ? 1 : 0));
}

/* A group is the unit of work: all heads of a batch entry that share keys and values. */
static int64_t groups_of(const ls__attention *a)
{
    return a->batch * a->kv_heads;
}

/* A head in float32, [T,D] and [S,D]: q, o, k, v and in backward as many gradients. */
static int64_t wide_floats(const ls__attention *a, bool backward)
{
    int64_t count = 2 * (a->time + a->keys) * a->dim * (backward ? 2 : 1);
    return a->half ? (count + TILE - 1) / TILE * TILE : 0;
}

/* No more slots than tasks, and never a number that depends on the threads: the caller sizes the
 * workspace before it knows them. */
static int64_t slots_of(const ls__attention *a)
{
    return ls__min(SLOTS, groups_of(a));
}

/* Bytes for all slots. The same shape gives the same answer on every host with this instruction
 * set, so callers may keep the buffer. */
size_t LS__K(attention_workspace)(const ls__attention *a, bool backward)
{
    if (LS__K(attention_is_tiled)(a)) {
        return LS__K(attention_tiles_workspace)(a, backward);
    }
    int64_t floats = slot_floats(a, backward) + wide_floats(a, backward);
    return (size_t)slots_of(a) * (size_t)floats * sizeof(float);
}

/* Head `member` of a group. */
static head head_of(const ls__attention *a, int64_t group, int64_t member, bool backward)
{
    const ls__kernel_place at = ls__place_of(a, group, member);
    head out = {.q = a->q + at.q, .k = a->k + at.k, .v = a->v + at.v, .o = a->o + at.o};
    out.index = at.index;
    out.lse = at.lse;
    out.mask = at.mask;
    out.stride = row_stride(a);
    out.keys = (float *)a->workspace + ls__thread_index() * slot_floats(a, backward);
    out.scores = out.keys + a->dim * out.stride;
    if (backward) {
        out.d_o = a->d_o + at.o;
        out.dq = a->dq + at.q;
        out.dk = a->dk + at.k;
        out.dv = a->dv + at.v;
        out.values = out.scores + TILE * out.stride;
        out.score_grads = out.values + a->dim * out.stride;
        out.keep = out.score_grads + TILE * out.stride;
    }
    return out;
}

/* out[dim,stride] = factor x^T, zero beyond the keys. */
static void transpose(float *restrict out, const float *x, int64_t x_t, const ls__attention *a,
                      int64_t stride, float factor)
{
    ls__transpose(out, stride, x, x_t, a->keys, a->dim, factor);
    for (int64_t d = 0; d < a->dim; d++) {
        memset(out + d * stride + a->keys, 0, (size_t)(stride - a->keys) * sizeof(float));
    }
}

/* The matrix product on this thread: C[m,n] = op(A) B + beta C. */
static void product(bool trans_a, int64_t m, int64_t n, int64_t k, const float *x, int64_t x_row,
                    const float *y, int64_t y_row, float *out, int64_t out_row, float beta)
{
    ls__gemm g = {.trans_a = trans_a, .m = m, .n = n, .k = k, .beta = beta};
    g.a = x;
    g.lda = x_row;
    g.b = y;
    g.ldb = y_row;
    g.c = out;
    g.ldc = out_row;
    LS__K(gemm_builtin)(&g);
}

/* Keys a tile that starts at query `first` may see, rounded up: columns beyond hold zero scores. */
static int64_t keys_of(const ls__attention *a, const head *h, int64_t first)
{
    int64_t last = ls__row_keys(a, first + TILE - 1);
    return ls__min(h->stride, (last + TILE - 1) / TILE * TILE);
}

/* The arguments of the row functions for query `i`, of which the first `width` scores are
 * computed. */
static ls__row row_of(const head *h, int64_t i, int64_t width)
{
    return (ls__row){h->index, i, width, h->mask, h->keep};
}

/* One tile of queries: S = q (scale K^T) [rows,nk], softmax by rows, then O = P V. Rows of P are
 * not normalised; the rows of O are scaled instead, which are shorter. The sums of a product run
 * over the depth in order (gemm_builtin.c), those of a row by lanes. */
static void forward_tile(const ls__attention *a, const head *h, int64_t first)
{
    int64_t rows = ls__min(TILE, a->time - first), nk = keys_of(a, h, first);
    float scale[TILE];
    product(false, rows, nk, a->dim, h->q + first * a->q_t, a->q_t, h->keys, h->stride, h->scores,
            h->stride, 0.0f);
    for (int64_t i = 0; i < rows; i++) {
        const ls__row row = row_of(h, first + i, nk);
        scale[i] = ls__row_softmax(a, &row, h->scores + i * h->stride, &h->lse[first + i]);
    }
    product(false, rows, a->dim, ls__min(nk, a->keys), h->scores, h->stride, h->v, a->v_t,
            h->o + first * a->o_t, a->o_t, 0.0f);
    for (int64_t i = 0; i < rows; i++) {
        float *o = h->o + (first + i) * a->o_t;
#pragma omp simd
        for (int64_t d = 0; d < a->dim; d++) {
            o[d] *= scale[i];
        }
    }
}

/* Below this much work starting the threads costs more than they save. */
static bool is_parallel(const ls__attention *a)
{
    return a->batch * a->heads * a->time * a->keys * a->dim >= PARALLEL_MIN_WORK;
}

/* At most SLOTS threads, because each needs a slot of the workspace of its own. */
static int team_of(const ls__attention *a)
{
    int64_t most = ls__min(SLOTS, groups_of(a));
    return is_parallel(a) ? (int)ls__min(most, ls__threads_own()) : 1;
}

/* ---- bfloat16 ----------------------------------------------------------------------------- */

typedef struct wide { /* a head of this thread in float32, row-major */
    float *q, *o, *k, *v, *d_o, *dq, *dk, *dv;
} wide;

/* The places of this thread's float32 head, behind all slots. Gradients stay NULL in forward, which
 * widen_head and narrow_head take as the sign of it. */
static wide wide_of(const ls__attention *a, bool backward)
{
    int64_t of_q = a->time * a->dim, of_k = a->keys * a->dim;
    float *at = (float *)a->workspace + slots_of(a) * slot_floats(a, backward) +
                ls__thread_index() * wide_floats(a, backward);
    wide w = {.q = at, .o = at + of_q, .k = at + 2 * of_q, .v = at + 2 * of_q + of_k};
    at += 2 * (of_q + of_k);
    if (backward) {
        w.d_o = at;
        w.dq = at + of_q;
        w.dk = at + 2 * of_q;
        w.dv = at + 2 * of_q + of_k;
    }
    return w;
}

/* The attention of that head alone: all heads lie in the same place. */
static ls__attention attention_of(const ls__attention *a, const wide *w)
{
    ls__attention one = *a;
    one.q = w->q, one.k = w->k, one.v = w->v, one.o = w->o;
    one.d_o = w->d_o, one.dq = w->dq, one.dk = w->dk, one.dv = w->dv;
    one.q_b = one.q_h = one.k_b = one.k_h = one.v_b = one.v_h = one.o_b = one.o_h = 0;
    one.q_t = one.k_t = one.v_t = one.o_t = a->dim;
    return one;
}

/* Gathers `rows` rows that lie x_t elements apart into a dense float32 matrix. */
static void widen_rows(float *out, const void *x, int64_t at, int64_t x_t, int64_t rows,
                       int64_t dim)
{
    for (int64_t t = 0; t < rows; t++) {
        ls__halves_widen(out + t * dim, (const ls__bfloat16 *)x + at + t * x_t, dim);
    }
}

/* The inverse of widen_rows: a dense float32 matrix is rounded into rows that lie out_t apart. */
static void narrow_rows(void *out, int64_t at, int64_t out_t, const float *x, int64_t rows,
                        int64_t dim)
{
    for (int64_t t = 0; t < rows; t++) {
        ls__halves_narrow((ls__bfloat16 *)out + at + t * out_t, x + t * dim, dim);
    }
}

/* Keys and values are widened with the group's first member only; the other members find them in
 * place. */
static void widen_head(const ls__attention *a, const wide *w, int64_t group, int64_t member)
{
    ls__kernel_place at = ls__place_of(a, group, member);
    widen_rows(w->q, a->q, at.q, a->q_t, a->time, a->dim);
    if (member == 0) {
        widen_rows(w->k, a->k, at.k, a->k_t, a->keys, a->dim);
        widen_rows(w->v, a->v, at.v, a->v_t, a->keys, a->dim);
    }
    if (w->d_o != NULL) {
        widen_rows(w->o, a->o, at.o, a->o_t, a->time, a->dim);
        widen_rows(w->d_o, a->d_o, at.o, a->o_t, a->time, a->dim);
    }
}

/* dk and dv are sums over the group, so they are rounded once, after its last member. */
static void narrow_head(const ls__attention *a, const wide *w, int64_t group, int64_t member)
{
    ls__kernel_place at = ls__place_of(a, group, member);
    if (w->d_o == NULL) {
        narrow_rows(a->o, at.o, a->o_t, w->o, a->time, a->dim);
        return;
    }
    narrow_rows(a->dq, at.q, a->q_t, w->dq, a->time, a->dim);
    if (member == a->heads / a->kv_heads - 1) {
        narrow_rows(a->dk, at.k, a->k_t, w->dk, a->keys, a->dim);
        narrow_rows(a->dv, at.v, a->v_t, w->dv, a->keys, a->dim);
    }
}

/* ---- forward ------------------------------------------------------------------------------ */

/* K is transposed with the group's first member and stays in this thread's slot for the others, so
 * members must run in order on one thread. */
static void forward_head(const ls__attention *a, int64_t group, int64_t member)
{
    head h = head_of(a, group, member, false);
    if (member == 0) {
        transpose(h.keys, h.k, a->k_t, a, h.stride, a->scale);
    }
    for (int64_t first = 0; first < a->time; first += TILE) {
        forward_tile(a, &h, first);
    }
}

typedef void run_head(const ls__attention *a, int64_t group, int64_t member);

/* All heads of a group, in order on this thread, by `run` (forward_head or backward_head) or on
 * matrix tiles; of bfloat16 each head is widened before and narrowed after. */
static void run_group(const ls__attention *a, int64_t group, bool backward, run_head *run)
{
    if (LS__K(attention_is_tiled)(a)) {
        LS__K(attention_tiles_group)(a, group, backward);
        return;
    }
    wide w = {0};
    ls__attention one = *a;
    if (a->half) {
        w = wide_of(a, backward);
        one = attention_of(a, &w);
    }
    for (int64_t member = 0; member < a->heads / a->kv_heads; member++) {
        if (a->half) {
            widen_head(a, &w, group, member);
        }
        run(&one, group, member);
        if (a->half) {
            narrow_head(a, &w, group, member);
        }
    }
}

/* Each group has one owner, so the number of threads changes no bit of the output. A team of one
 * runs without a parallel region, which costs time on one thread too, and memory in clang's
 * OpenMP. */
static void run_groups(const ls__attention *a, bool backward, run_head *run)
{
    const int64_t groups = groups_of(a);
    const int team = team_of(a);
    if (groups <= 0 || a->time <= 0 || a->keys <= 0) {
        return;
    }
    if (team <= 1) {
        for (int64_t i = 0; i < groups; i++) {
            run_group(a, i, backward, run);
        }
        return;
    }
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < groups; i++) {
        run_group(a, i, backward, run);
    }
}

void LS__K(attention)(const ls__attention *a, ls_stream *stream)
{
    (void)stream;
    run_groups(a, false, forward_head);
}

/* ---- backward ----------------------------------------------------------------------------- */

/* Scores of query first + i become P, score gradients become scale dS; delta = sum of o dO over
 * the head's elements, in float32. */
static void gradient_row(const ls__attention *a, const head *h, int64_t first, int64_t i,
                         int64_t nk)
{
    const float *o = h->o + (first + i) * a->o_t, *d_o = h->d_o + (first + i) * a->o_t;
    const ls__row row = row_of(h, first + i, nk);
    float delta = 0.0f;
#pragma omp simd reduction(+ : delta)
    for (int64_t d = 0; d < a->dim; d++) {
        delta += o[d] * d_o[d];
    }
    ls__row_gradient(a, &row, h->scores + i * h->stride, h->score_grads + i * h->stride,
                     h->lse[first + i], delta);
}

/* Adds this tile's share to dv and dk and writes its rows of dq. P is recomputed from the scores
 * and the saved lse, so the order of the products matters: scores, then rows, then the
 * gradients. */
static void backward_tile(const ls__attention *a, const head *h, int64_t first)
{
    int64_t rows = ls__min(TILE, a->time - first), nk = keys_of(a, h, first);
    const float *q = h->q + first * a->q_t, *d_o = h->d_o + first * a->o_t;
    product(false, rows, nk, a->dim, q, a->q_t, h->keys, h->stride, h->scores, h->stride, 0.0f);
    product(false, rows, nk, a->dim, d_o, a->o_t, h->values, h->stride, h->score_grads, h->stride,
            0.0f);
    for (int64_t i = 0; i < rows; i++) {
        gradient_row(a, h, first, i, nk);
    }
    int64_t keys = ls__min(nk, a->keys);
    product(true, keys, a->dim, rows, h->scores, h->stride, d_o, a->o_t, h->dv, a->v_t, 1.0f);
    product(true, keys, a->dim, rows, h->score_grads, h->stride, q, a->q_t, h->dk, a->k_t, 1.0f);
    product(false, rows, a->dim, keys, h->score_grads, h->stride, h->k, a->k_t,
            h->dq + first * a->q_t, a->q_t, 0.0f);
}

/* dk and dv are sums over tiles and members and must start from zero. */
static void clear_rows(float *x, int64_t stride, const ls__attention *a)
{
    for (int64_t t = 0; t < a->keys; t++) {
        for (int64_t d = 0; d < a->dim; d++) {
            x[t * stride + d] = 0.0f;
        }
    }
}

/* As forward_head, members of a group must run in order on one thread: the first one transposes K
 * and V and clears the sums that all of them add to. */
static void backward_head(const ls__attention *a, int64_t group, int64_t member)
{
    head h = head_of(a, group, member, true);
    if (member == 0) {
        transpose(h.keys, h.k, a->k_t, a, h.stride, a->scale);
        transpose(h.values, h.v, a->v_t, a, h.stride, 1.0f);
        clear_rows(h.dk, a->k_t, a);
        clear_rows(h.dv, a->v_t, a);
    }
    for (int64_t first = 0; first < a->time; first += TILE) {
        backward_tile(a, &h, first);
    }
}

/* The workspace must be one that attention_workspace sized for backward; dq, dk and dv are
 * overwritten. */
void LS__K(attention_backward)(const ls__attention *a, ls_stream *stream)
{
    (void)stream;
    run_groups(a, true, backward_head);
}
