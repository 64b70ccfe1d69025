/* SPDX-License-Identifier: Apache-2.0 */
/* What the rules of placements claim is true: each operation runs on the parts, terms or copies
 * that the ranks of an axis would have, in every combination that is not refused; what it gives
 * must be the parts, terms or copies of the operation on the whole, and so must be the gradients,
 * with the dual placements. One process plays the ranks in turn. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/axes.h"
#include "base/runtime.h"
#include "test.h"

enum { INPUTS_MAX = 3, RANKS = 2, PLACES_MAX = 12 };

typedef struct operation {
    const char *name;
    int count;
    ls_shape in[INPUTS_MAX];
    ls_tensor *(*run)(ls_tensor **x);
    bool positive; /* inputs must be */
    int accepted;  /* combinations of placements */
    int constants; /* the last ones, which take no gradient */
} operation;

#define A LS_SHAPE_OF(4, 6, 8)
#define LS_SHAPE_OF(...)                                                                           \
    {                                                                                              \
        .ndim = sizeof((int64_t[]){__VA_ARGS__}) / 8, .dim = { __VA_ARGS__ }                       \
    }

static ls_tensor *indices(int64_t n, int64_t below)
{
    ls_tensor *t = ls_empty(LS_SHAPE(n), LS_INT64);
    for (int64_t i = 0; i < n; i++) {
        ((int64_t *)ls_data(t))[i] = (i * 3 + 1) % below;
    }
    return t;
}

#define OP(name, expression)                                                                       \
    static ls_tensor *name(ls_tensor **x)                                                          \
    {                                                                                              \
        return expression;                                                                         \
    }
#define X x[0]
#define Y x[1]
#define Z x[2]
OP(relu_, ls_relu(X))
OP(gelu_, ls_gelu(X, LS_GELU_ERF))
OP(neg_, ls_neg(X))
OP(exp_, ls_exp(X))
OP(scale_, ls_scale(X, -1.5))
OP(add_scalar_, ls_add_scalar(X, 2.0))
OP(clamp_, ls_clamp(X, -0.5, 0.5))
OP(pow_, ls_pow_scalar(X, 2.0))
OP(add_, ls_add(X, Y))
OP(sub_, ls_sub(X, Y))
OP(mul_, ls_mul(X, Y))
OP(div_, ls_div(X, Y))
OP(maximum_, ls_maximum(X, Y))
OP(where_, ls_where(ls_gt(X, ls_zeros(LS_SCALAR, LS_FLOAT32)), X, Y))
OP(sum_, ls_sum(X))
OP(sum0_, ls_sum_dim(X, 0, false))
OP(sum2_, ls_sum_dim(X, 2, true))
OP(sums_, ls_sum_dims(X, LS_SHAPE(0, 2), false))
OP(mean_, ls_mean(X))
OP(mean1_, ls_mean_dim(X, 1, false))
OP(var_, ls_var_dims(X, LS_SHAPE(2), true, false))
OP(var_keep_, ls_var_dims(X, LS_SHAPE(0), true, true))
OP(max_, ls_max_dim(X, 1, false))
OP(logsumexp_, ls_logsumexp(X, 1, false))
OP(logsumexp_keep_, ls_logsumexp(X, -1, true))
OP(leaky_relu_, ls_leaky_relu(X, 0.2))
OP(softmax2_, ls_softmax(X, 2))
OP(softmax0_, ls_softmax(X, 0))
OP(log_softmax_, ls_log_softmax(X, -1))
OP(layer_norm_, ls_layer_norm(X, Y, Z, 1e-5))
OP(rms_norm_, ls_rms_norm(X, Y, 1e-5))
OP(group_norm_, ls_group_norm(X, 2, Y, Z, 1e-5))
OP(matmul_, ls_matmul(X, Y))
OP(linear_, ls_linear(X, Y, Z))
OP(linear_plain_, ls_linear(X, Y, NULL))
OP(transpose_, ls_transpose(X, 0, 2))
OP(permute_, ls_permute(X, LS_SHAPE(2, 0, 1)))
OP(merge_, ls_reshape(X, LS_SHAPE(-1, ls_size(X, 2))))
OP(merge_last_, ls_reshape(X, LS_SHAPE(ls_size(X, 0), -1)))
OP(split_, ls_reshape(X, LS_SHAPE(ls_size(X, 0), ls_size(X, 1), -1, 2)))
OP(ones_, ls_reshape(X, LS_SHAPE(ls_size(X, 0), 1, ls_size(X, 1), ls_size(X, 2), 1)))
OP(slice_, ls_slice(X, 1, 0, 2))
OP(concat0_, ls_concat(x, 2, 0))
OP(concat2_, ls_concat(x, 2, 2))
OP(stack_, ls_stack(x, 2, 1))
OP(stack3_, ls_stack(x, 3, 0))
OP(expand_, ls_expand(X, LS_SHAPE(3, ls_size(X, 1), ls_size(X, 2))))
OP(pad_, ls_pad(X, LS_SHAPE(0, 1), LS_SHAPE(0, 2), 0.0))
OP(pad_ones_, ls_pad(X, LS_SHAPE(0, 1), LS_SHAPE(0, 2), 1.0))
OP(cumsum_, ls_cumsum(X, 1))
OP(sort_, ls_sort(X, 1, false, NULL))
OP(topk_, ls_topk(X, 2, 1, true, NULL))
OP(index_select_, ls_index_select(X, 1, indices(3, 3)))
OP(index_add_, ls_index_add(X, 1, indices(3, 3), Y))
OP(embedding_, ls_embedding(X, indices(5, 4)))
OP(attention_, ls_attention(X, Y, Z, LS_OPTIONS(ls_attention_options, .causal = true)))
OP(attention_all_, ls_attention(X, Y, Z, NULL))
#define MASKED(is_causal)                                                                          \
    ls_attention(X, Y, Y, LS_OPTIONS(ls_attention_options, .causal = (is_causal), .mask = Z))
OP(masked_, MASKED(true))
OP(masked_all_, MASKED(false))
OP(rotary_, ls_rotary(X, 0, 10000.0))
OP(cross_entropy_, ls_cross_entropy(X, indices(ls_size(X, 0), 8), NULL))
OP(weighted_cross_entropy_,
   ls_cross_entropy(X, indices(ls_size(X, 0), 8),
                    LS_OPTIONS(ls_cross_entropy_options,
                               .weight = ls_add_scalar(ls_ones(LS_SHAPE(8), LS_FLOAT32), 0.5))))
OP(mse_, ls_mse_loss(X, Y))
OP(l1_, ls_l1_loss(X, Y))
OP(bce_, ls_bce_with_logits(X, ls_ones(ls_shape_of(X), LS_FLOAT32)))
OP(clone_, ls_clone(X))
OP(conv_, ls_conv2d(X, Y, Z, NULL))
OP(pool_, ls_avg_pool2d(X, LS_OPTIONS(ls_pool2d_options, .kernel = {2, 2})))
OP(gather_, ls_gather_dim(X, 0, ls_reshape(indices(24, 4), LS_SHAPE(4, 6))))
OP(scatter_, ls_scatter_add(X, 0, ls_reshape(indices(24, 4), LS_SHAPE(4, 6)), Y))

#define IMAGE LS_SHAPE_OF(4, 2, 6, 6)
#define HEADS LS_SHAPE_OF(2, 4, 6, 8)
static const operation operations[] = {
    {"relu", 1, {A}, relu_, .accepted = 6},
    {"gelu", 1, {A}, gelu_, .accepted = 6},
    {"neg", 1, {A}, neg_, .accepted = 7},
    {"exp", 1, {A}, exp_, .accepted = 6},
    {"scale", 1, {A}, scale_, .accepted = 7},
    {"add_scalar", 1, {A}, add_scalar_, .accepted = 6},
    {"clamp", 1, {A}, clamp_, .accepted = 6},
    {"pow", 1, {A}, pow_, .accepted = 6},
    {"add", 2, {A, A}, add_, .accepted = 11},
    {"add a row", 2, {A, LS_SHAPE_OF(8)}, add_, .accepted = 13},
    {"sub", 2, {A, A}, sub_, .accepted = 11},
    {"mul", 2, {A, A}, mul_, .accepted = 14},
    {"mul by a row", 2, {A, LS_SHAPE_OF(6, 1)}, mul_, .accepted = 16},
    {"div", 2, {A, A}, div_, .positive = true, .accepted = 12},
    {"maximum", 2, {A, A}, maximum_, .accepted = 10},
    {"where", 2, {A, A}, where_, .accepted = 10},
    {"sum", 1, {A}, sum_, .accepted = 7},
    {"sum dim 0", 1, {A}, sum0_, .accepted = 7},
    {"sum dim 2, kept", 1, {A}, sum2_, .accepted = 7},
    {"sum dims", 1, {A}, sums_, .accepted = 7},
    {"mean", 1, {A}, mean_, .accepted = 7},
    {"mean dim", 1, {A}, mean1_, .accepted = 7},
    {"var", 1, {A}, var_, .accepted = 5},
    {"var, kept", 1, {A}, var_keep_, .accepted = 5},
    {"max", 1, {A}, max_, .accepted = 5},
    {"logsumexp", 1, {A}, logsumexp_, .accepted = 5},
    {"logsumexp, kept", 1, {A}, logsumexp_keep_, .accepted = 5},
    {"leaky_relu", 1, {A}, leaky_relu_, .accepted = 6},
    {"softmax", 1, {A}, softmax2_, .accepted = 5},
    {"softmax dim 0", 1, {A}, softmax0_, .accepted = 5},
    {"log_softmax", 1, {A}, log_softmax_, .accepted = 5},
    {"layer_norm", 3, {A, LS_SHAPE_OF(8), LS_SHAPE_OF(8)}, layer_norm_, .accepted = 23},
    {"rms_norm", 2, {A, LS_SHAPE_OF(8)}, rms_norm_, .accepted = 11},
    {"group_norm", 3, {IMAGE, LS_SHAPE_OF(2), LS_SHAPE_OF(2)}, group_norm_, .accepted = 25},
    {"matmul", 2, {LS_SHAPE_OF(4, 6), LS_SHAPE_OF(6, 8)}, matmul_, .accepted = 16},
    {"batched matmul", 2, {LS_SHAPE_OF(2, 4, 6), LS_SHAPE_OF(2, 6, 8)}, matmul_, .accepted = 17},
    {"matmul of a matrix", 2, {LS_SHAPE_OF(2, 4, 6), LS_SHAPE_OF(6, 8)}, matmul_, .accepted = 18},
    {"linear",
     3,
     {LS_SHAPE_OF(4, 2, 6), LS_SHAPE_OF(8, 6), LS_SHAPE_OF(8)},
     linear_,
     .accepted = 25},
    {"linear without bias",
     2,
     {LS_SHAPE_OF(4, 2, 6), LS_SHAPE_OF(8, 6)},
     linear_plain_,
     .accepted = 18},
    {"transpose", 1, {A}, transpose_, .accepted = 7},
    {"permute", 1, {A}, permute_, .accepted = 7},
    {"reshape, first merged", 1, {A}, merge_, .accepted = 7},
    {"reshape, last merged", 1, {A}, merge_last_, .accepted = 7},
    {"reshape, split", 1, {A}, split_, .accepted = 7},
    {"reshape, ones", 1, {A}, ones_, .accepted = 7},
    {"slice", 1, {A}, slice_, .accepted = 7},
    {"concat", 2, {A, A}, concat0_, .accepted = 15},
    {"concat last", 2, {A, A}, concat2_, .accepted = 15},
    {"stack", 2, {A, A}, stack_, .accepted = 11},
    {"stack of three", 3, {A, A, A}, stack3_, .accepted = 19},
    {"expand", 1, {LS_SHAPE_OF(1, 6, 8)}, expand_, .accepted = 6},
    {"pad", 1, {A}, pad_, .accepted = 7},
    {"pad with ones", 1, {A}, pad_ones_, .accepted = 6},
    {"cumsum", 1, {A}, cumsum_, .accepted = 6},
    {"sort", 1, {A}, sort_, .accepted = 4},
    {"topk", 1, {A}, topk_, .accepted = 4},
    {"index_select", 1, {A}, index_select_, .accepted = 6},
    {"index_add", 2, {A, LS_SHAPE_OF(4, 3, 8)}, index_add_, .accepted = 9},
    {"embedding", 1, {LS_SHAPE_OF(4, 6)}, embedding_, .accepted = 5},
    {"attention", 3, {HEADS, HEADS, HEADS}, attention_, .accepted = 17},
    {"attention to all", 3, {HEADS, HEADS, HEADS}, attention_all_, .accepted = 21},
    {"mask of samples",
     3,
     {HEADS, HEADS, LS_SHAPE_OF(2, 1, 1, 6)},
     masked_,
     .accepted = 25,
     .constants = 1},
    {"mask of heads",
     3,
     {HEADS, HEADS, LS_SHAPE_OF(4, 1, 6)},
     masked_,
     .accepted = 25,
     .constants = 1},
    {"mask of all",
     3,
     {HEADS, HEADS, LS_SHAPE_OF(2, 4, 6, 6)},
     masked_all_,
     .accepted = 25,
     .constants = 1},
    {"rotary", 1, {HEADS}, rotary_, .accepted = 6},
    {"cross_entropy", 1, {LS_SHAPE_OF(4, 8)}, cross_entropy_, .accepted = 4},
    {"cross_entropy with weights", 1, {LS_SHAPE_OF(4, 8)}, weighted_cross_entropy_, .accepted = 4},
    {"mse", 2, {A, A}, mse_, .accepted = 10},
    {"l1", 2, {A, A}, l1_, .accepted = 10},
    {"bce", 1, {A}, bce_, .accepted = 6},
    {"clone", 1, {A}, clone_, .accepted = 7},
    {"conv2d", 3, {IMAGE, LS_SHAPE_OF(4, 2, 3, 3), LS_SHAPE_OF(4)}, conv_, .accepted = 19},
    {"avg_pool2d", 1, {IMAGE}, pool_, .accepted = 5},
    {"gather_dim", 1, {LS_SHAPE_OF(4, 6)}, gather_, .accepted = 4},
    {"scatter_add", 2, {LS_SHAPE_OF(4, 6), LS_SHAPE_OF(4, 6)}, scatter_, .accepted = 7},
};

/* ---- whole tensors and what a rank has of them -------------------------------------------- */

static ls__axes_in_force axes;

static void play(int rank)
{
    axes = (ls__axes_in_force){.count = 1,
                               .axis = {{.name = "tp", .size = RANKS, .coordinate = rank}}};
    ls__runtime_get("test")->axes = rank < 0 ? NULL : &axes;
}

static uint64_t drawn;

static ls_tensor *drawn_tensor(ls_shape shape, bool positive)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *at = ls_data(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        const float v = ls_random_normal(5, drawn, (uint64_t)i);
        at[i] = positive ? 0.5f + fabsf(v) : v;
    }
    drawn++;
    return t;
}

/* This rank's of `whole`; a term of a sum is a multiple of it. */
static ls_tensor *own_of(ls_tensor *whole, ls_placement p, int rank)
{
    if (p >= LS_SHARDED(0)) {
        const int d = p - LS_SHARDED(0);
        const int64_t part = ls_size(whole, d) / RANKS;
        return ls_clone(ls_slice(whole, d, rank * part, (rank + 1) * part));
    }
    return p == LS_PARTIAL ? ls_scale(whole, rank == 0 ? 0.25 : 0.75) : ls_clone(whole);
}

static ls_placement dual(ls_placement p)
{
    return p == LS_PARTIAL ? LS_REPLICATED : p == LS_REPLICATED ? LS_PARTIAL : p;
}

static bool close_to(ls_tensor *a, ls_tensor *b)
{
    if (ls_numel(a) != ls_numel(b)) {
        return false;
    }
    const float *x = ls_data(ls_contiguous(a)), *y = ls_data(ls_contiguous(b));
    for (int64_t i = 0; i < ls_numel(a); i++) {
        if (!(fabsf(x[i] - y[i]) <= 2e-4f * (1.0f + fabsf(y[i])))) {
            return false;
        }
    }
    return true;
}

/* Whether what the ranks have is `whole`, so placed. */
static bool is_whole(ls_tensor *const *own, ls_placement p, ls_tensor *whole)
{
    if (p >= LS_SHARDED(0)) {
        return close_to(ls_concat(own, RANKS, p - LS_SHARDED(0)), whole);
    }
    if (p == LS_PARTIAL) {
        return close_to(ls_add(own[0], own[1]), whole);
    }
    return close_to(own[0], whole) && close_to(own[1], whole);
}

/* ---- one combination ---------------------------------------------------------------------- */

typedef struct combination {
    const operation *op;
    ls_tensor *whole[INPUTS_MAX], *result, *dresult, *dwhole[INPUTS_MAX];
    ls_placement place[INPUTS_MAX];
} combination;

static void describe(const combination *c, char *out, size_t bytes)
{
    int at = snprintf(out, bytes, "%s of", c->op->name);
    for (int i = 0; i < c->op->count; i++) {
        at += snprintf(out + at, bytes - (size_t)at, " %s", ls_placement_name(c->place[i]));
    }
}

static bool takes_gradient(const combination *c, int i)
{
    return c->place[i] != LS_UNPLACED && i < c->op->count - c->op->constants;
}

/* The operation on rank `rank`; *y is poisoned where it is refused. */
static void run_rank(const combination *c, int rank, ls_tensor **x, ls_tensor **y)
{
    play(-1);
    for (int i = 0; i < c->op->count; i++) {
        x[i] = own_of(c->whole[i], c->place[i], rank);
        CHECK_OK(ls_set_requires_grad(x[i], takes_gradient(c, i)));
    }
    play(rank);
    for (int i = 0; i < c->op->count; i++) {
        CHECK_OK(ls_place(x[i], "tp", c->place[i]));
    }
    *y = c->op->run(x);
}

static bool refused(ls_tensor *y)
{
    return ls_tensor_status(y) == LS_ERR_PLACEMENT || ls_tensor_status(y) == LS_ERR_INVALID;
}

static void check_gradients(const combination *c, ls_tensor *(*x)[INPUTS_MAX], const char *what)
{
    for (int i = 0; i < c->op->count; i++) {
        if (!takes_gradient(c, i)) {
            continue;
        }
        ls_tensor *grads[RANKS];
        for (int r = 0; r < RANKS; r++) {
            grads[r] = ls_detach(ls_grad(x[r][i]));
        }
        if (!is_whole(grads, dual(c->place[i]), c->dwhole[i])) {
            test_fail(__FILE__, __LINE__, "%s: the gradient of input %d is wrong", what, i + 1);
        }
    }
}

/* False: refused. A varying result claims nothing. */
static bool check_combination(const combination *c)
{
    LS_SCOPE;
    ls_tensor *x[RANKS][INPUTS_MAX], *y[RANKS], *own[RANKS];
    ls_placement p = LS_UNPLACED;
    char what[200];
    describe(c, what, sizeof what);
    for (int r = 0; r < RANKS; r++) {
        run_rank(c, r, x[r], &y[r]);
        if (refused(y[r])) {
            play(-1);
            return false;
        }
        CHECK_OK(ls_tensor_status(y[r]));
        p = ls_placement_of(y[r], "tp");
        own[r] = ls_detach(y[r]);
    }
    play(-1);
    if (p == LS_VARYING) {
        return true;
    }
    if (!is_whole(own, p, c->result)) {
        test_fail(__FILE__, __LINE__, "%s is not %s", what, ls_placement_name(p));
    }
    for (int r = 0; r < RANKS && ls_requires_grad(y[r]); r++) {
        ls_tensor *dy = own_of(c->dresult, dual(p), r);
        CHECK_OK(ls_backward_from(&y[r], &dy, 1));
    }
    if (ls_requires_grad(y[0])) {
        check_gradients(c, x, what);
    }
    return true;
}

/* ---- all combinations --------------------------------------------------------------------- */

static int places_of(ls_shape shape, ls_placement *out)
{
    int count = 0;
    out[count++] = LS_UNPLACED;
    out[count++] = LS_REPLICATED;
    out[count++] = LS_INVARIANT;
    out[count++] = LS_PARTIAL;
    for (int d = 0; d < shape.ndim; d++) {
        if (shape.dim[d] % RANKS == 0) {
            out[count++] = LS_SHARDED(d);
        }
    }
    return count;
}

static void prepare(combination *c, const operation *op)
{
    ls_tensor *x[INPUTS_MAX];
    c->op = op;
    for (int i = 0; i < op->count; i++) {
        c->whole[i] = drawn_tensor(op->in[i], op->positive);
        x[i] = ls_clone(c->whole[i]);
        CHECK_OK(ls_set_requires_grad(x[i], i < op->count - op->constants));
    }
    ls_tensor *y = op->run(x);
    CHECK_OK(ls_tensor_status(y));
    c->result = ls_detach(y);
    c->dresult = drawn_tensor(ls_shape_of(y), false);
    CHECK_OK(ls_backward_from(&y, &c->dresult, 1));
    for (int i = 0; i < op->count - op->constants; i++) {
        c->dwhole[i] = ls_grad(x[i]);
    }
}

static void check_operation(const operation *op)
{
    LS_SCOPE;
    combination c;
    ls_placement places[INPUTS_MAX][PLACES_MAX];
    int counts[INPUTS_MAX] = {1, 1, 1}, accepted = 0;
    play(-1);
    prepare(&c, op);
    for (int i = 0; i < op->count; i++) {
        counts[i] = places_of(op->in[i], places[i]);
    }
    for (int k = 0; k < counts[0] * counts[1] * counts[2]; k++) {
        int at = k;
        for (int i = 0; i < op->count; i++) {
            c.place[i] = places[i][at % counts[i]];
            at /= counts[i];
        }
        accepted += check_combination(&c);
    }
    if (accepted != op->accepted) {
        test_fail(__FILE__, __LINE__, "%s: %d combinations accepted, not %d", op->name, accepted,
                  op->accepted);
    }
}

TEST(what_the_rules_of_placements_claim_is_true)
{
    CHECK_OK(ls_init(NULL));
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        check_operation(&operations[i]);
    }
    CHECK_OK(ls_finalize());
}

TEST_MAIN
