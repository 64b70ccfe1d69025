/* SPDX-License-Identifier: Apache-2.0 */
/* Experts on the ranks of an axis against a twin in one process, which runs each expert on the
 * union of its tokens in the order (rank, token): the same bits. Then bytes, and what is named. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "says.h"
#include "test.h"

enum { RANKS_MAX = 8, EXPERTS = 8, DIM = 16, HIDDEN = 24, TOKENS_MAX = 64, CHOICES_MAX = 3 };
enum { ROWS_MAX = TOKENS_MAX * CHOICES_MAX };

static ls_mesh *mesh_of(const char *axes)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    return mesh;
}

/* Ranks have unequal numbers of tokens, and rank 2 none. */
static int64_t tokens_of(int rank)
{
    return rank == 2 ? 0 : TOKENS_MAX - 7 * rank;
}

static ls_tensor *numbers(ls_shape shape, int key)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *at = edit_elements(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        at[i] = sinf((float)(key * 1009 + i * 7) * 0.37f) * 1.5f;
    }
    put_elements(t, at);
    return t;
}

/* ---- the twin ------------------------------------------------------------------------------- */

typedef struct whole {          /* all parameters, on every rank */
    ls_tensor *gate[RANKS_MAX]; /* a copy for each rank, whose gradients lie apart */
    ls_tensor *w1, *b1, *w2, *b2, *w3;
} whole;

typedef struct twin { /* of one rank of the twin's */
    ls_tensor *x, *weights, *rows, *y, *loss;
    int64_t tokens, index[ROWS_MAX], place[ROWS_MAX], begin[EXPERTS + 1];
    int64_t counted[EXPERTS]; /* choices before drops */
} twin;

static ls_tensor *leaf(ls_tensor *t)
{
    if (t == NULL) {
        return NULL;
    }
    ls_tensor *own = ls_clone(ls_detach(t));
    CHECK_OK(ls_set_requires_grad(own, true));
    return own;
}

/* The gate of rank q, with the operations of the layer. */
static ls_tensor *twin_probs(const ls_moe_options *o, ls_tensor *scores, ls_tensor *logits)
{
    return o->gate == LS_MOE_SOFTMAX_FIRST  ? scores
           : o->gate == LS_MOE_SOFTMAX_LAST ? ls_softmax(logits, -1)
                                            : ls_div(scores, ls_sum_dim(scores, 1, true));
}

static void twin_gate(const ls_moe_options *o, const whole *w, int q, twin *t, ls_tensor **probs)
{
    ls_tensor *index = NULL;
    ls_tensor *logits = ls_linear_activation(t->x, w->gate[q], NULL, LS_ACTIVATION_NONE);
    ls_tensor *scores = o->gate == LS_MOE_SOFTMAX_FIRST ? ls_softmax(logits, -1)
                        : o->gate == LS_MOE_SIGMOID     ? ls_sigmoid(logits)
                                                        : logits;
    ls_tensor *chosen = ls_topk(scores, o->top_k, 1, true, &index);
    t->weights = o->gate == LS_MOE_SOFTMAX_LAST ? ls_softmax(chosen, -1)
                 : o->renormalise
                     ? ls_div(chosen, ls_add_scalar(ls_sum_dim(chosen, 1, true), 1e-20))
                     : chosen;
    *probs = twin_probs(o, scores, logits);
    CHECK_OK(ls_copy_out(index, t->index, (size_t)(t->tokens * o->top_k) * sizeof t->index[0]));
}

/* All firsts before seconds; with global tokens those of earlier ranks first. place[] becomes 1 for
 * what is kept. */
static void twin_keep(const ls_moe_options *o, twin *t, int n)
{
    int64_t taken[RANKS_MAX][EXPERTS] = {{0}}, all = 0;
    for (int q = 0; q < n; q++) {
        all += t[q].tokens;
    }
    for (int s = 0; s < o->top_k; s++) {
        for (int q = 0; q < n; q++) {
            const bool global = o->tokens == LS_MOE_GLOBAL;
            const double tokens = (double)(global ? all : t[q].tokens);
            const double places = ceil(o->capacity * o->top_k * tokens / EXPERTS - 1e-9);
            for (int64_t i = s; i < t[q].tokens * o->top_k; i += o->top_k) {
                int64_t *n_taken = &taken[global ? 0 : q][t[q].index[i]];
                t[q].place[i] = o->capacity == 0.0 || (double)*n_taken < places;
                *n_taken += t[q].place[i];
                t[q].counted[t[q].index[i]]++;
            }
        }
    }
}

/* Rows of rank q by (expert, token). */
static void twin_rows(const ls_moe_options *o, twin *t)
{
    int64_t source[ROWS_MAX], rows = 0;
    for (int64_t e = 0; e < EXPERTS; e++) {
        t->begin[e] = rows;
        for (int64_t i = 0; i < t->tokens * o->top_k; i++) {
            if (t->index[i] == e && t->place[i] == 1) {
                source[rows] = i / o->top_k;
                t->place[i] = -2 - rows++;
            }
        }
    }
    t->begin[EXPERTS] = rows;
    for (int64_t i = 0; i < t->tokens * o->top_k; i++) {
        t->place[i] = t->place[i] < 0 ? -2 - t->place[i] : rows; /* the row of zeros */
    }
    t->rows = ls_index_select(t->x, 0, ls_from_data(source, LS_SHAPE(rows), LS_INT64));
}

static ls_tensor *twin_part(ls_tensor *t, int64_t e)
{
    return ls_reshape(ls_slice(t, 0, e, e + 1), ls_ndim(t) == 3
                                                    ? LS_SHAPE(ls_size(t, 1), ls_size(t, 2))
                                                    : LS_SHAPE(ls_size(t, 1)));
}

static ls_tensor *twin_expert(const ls_moe_options *o, const whole *w, ls_tensor *rows, int64_t e)
{
    if (o->gated) {
        ls_tensor *gate = ls_linear_activation(rows, twin_part(w->w1, e), NULL, LS_ACTIVATION_SILU);
        return ls_linear(ls_mul(gate, ls_linear(rows, twin_part(w->w3, e), NULL)),
                         twin_part(w->w2, e), NULL);
    }
    ls_tensor *wide =
        ls_linear_activation(rows, twin_part(w->w1, e), twin_part(w->b1, e), o->activation);
    return ls_linear(wide, twin_part(w->w2, e), twin_part(w->b2, e));
}

/* y and the loss of rank q from what its rows have become. */
static void twin_combine(const ls_moe_options *o, twin *t, ls_tensor *probs, ls_tensor *done)
{
    int64_t dropped = 0;
    const int64_t k = o->top_k, rows = t->begin[EXPERTS];
    for (int64_t i = 0; i < t->tokens * k; i++) {
        dropped += t->place[i] == rows;
    }
    if (dropped > 0) {
        done = ls_concat((ls_tensor *[]){done, ls_zeros(LS_SHAPE(1, DIM), LS_FLOAT32)}, 2, 0);
    }
    ls_tensor *back =
        ls_index_select(done, 0, ls_from_data(t->place, LS_SHAPE(t->tokens * k), LS_INT64));
    ls_tensor *scaled = ls_mul(ls_reshape(back, LS_SHAPE(t->tokens, k, DIM)),
                               ls_reshape(t->weights, LS_SHAPE(t->tokens, k, 1)));
    t->y = ls_sum_dim(scaled, 1, false);
    float share[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        share[e] = t->tokens > 0 ? (float)((double)t->counted[e] / (double)(t->tokens * k)) : 0.0f;
    }
    ls_tensor *mean =
        ls_scale(ls_sum_dim(probs, 0, false), t->tokens > 0 ? 1.0 / (double)t->tokens : 0.0);
    ls_tensor *even = ls_sum(ls_mul(mean, ls_from_data(share, LS_SHAPE(EXPERTS), LS_FLOAT32)));
    t->loss = ls_scale(even, o->balance_loss * EXPERTS);
}

static ls_tensor *twin_run(const ls_moe_options *o, const whole *w, twin *t, int n)
{
    ls_tensor *probs[RANKS_MAX], *done[EXPERTS], *loss = NULL;
    for (int q = 0; q < n; q++) {
        t[q].tokens = tokens_of(q);
        t[q].x = leaf(numbers(LS_SHAPE(t[q].tokens, DIM), q));
        twin_gate(o, w, q, &t[q], &probs[q]);
    }
    twin_keep(o, t, n);
    for (int q = 0; q < n; q++) {
        twin_rows(o, &t[q]);
    }
    for (int64_t e = 0; e < EXPERTS; e++) {
        ls_tensor *part[RANKS_MAX];
        for (int q = 0; q < n; q++) {
            part[q] = ls_slice(t[q].rows, 0, t[q].begin[e], t[q].begin[e + 1]);
        }
        done[e] = twin_expert(o, w, ls_concat(part, n, 0), e);
    }
    for (int q = 0; q < n; q++) {
        ls_tensor *part[EXPERTS];
        for (int64_t e = 0; e < EXPERTS; e++) {
            int64_t at = 0;
            for (int p = 0; p < q; p++) {
                at += t[p].begin[e + 1] - t[p].begin[e];
            }
            part[e] = ls_slice(done[e], 0, at, at + t[q].begin[e + 1] - t[q].begin[e]);
        }
        twin_combine(o, &t[q], probs[q], ls_concat(part, EXPERTS, 0));
        ls_tensor *out = numbers(LS_SHAPE(t[q].tokens, DIM), 100 + q);
        ls_tensor *own = ls_add(ls_sum(ls_mul(t[q].y, out)), t[q].loss);
        loss = loss != NULL ? ls_add(loss, own) : own;
    }
    return loss;
}

/* ---- the comparison ------------------------------------------------------------------------- */

static void check_bits(const char *what, ls_tensor *got, ls_tensor *want)
{
    CHECK_OK(ls_tensor_status(got));
    CHECK_OK(ls_tensor_status(want));
    CHECK_INT(ls_numel(got), ls_numel(want));
    const float *a = elements_of(got), *b = elements_of(want);
    for (int64_t i = 0; i < ls_numel(got); i++) {
        if (!(a[i] == b[i])) {
            test_fail(__FILE__, __LINE__, "%s: number %lld is %.9g, the twin's %.9g", what,
                      (long long)i, (double)a[i], (double)b[i]);
        }
    }
}

static ls_tensor *own_part(ls_tensor *t)
{
    const int64_t own = EXPERTS / ls_world_size();
    return ls_slice(t, 0, own * ls_rank(), own * (ls_rank() + 1));
}

static void check_grad(ls_module *net, const char *name, ls_tensor *of)
{
    if (of != NULL) {
        check_bits(name, ls_grad(ls_module_param(net, name)), own_part(ls_grad(of)));
    }
}

static ls_tensor *all_of(ls_module *net, const char *name, bool has)
{
    return has ? leaf(ls_tensor_whole(ls_module_param(net, name))) : NULL;
}

static void gather(ls_module *net, const ls_moe_options *o, whole *w)
{
    for (int q = 0; q < ls_world_size(); q++) {
        w->gate[q] = all_of(net, "gate.weight", true);
    }
    w->w1 = all_of(net, "w1", true);
    w->w2 = all_of(net, "w2", true);
    w->w3 = all_of(net, "w3", o->gated);
    w->b1 = all_of(net, "b1", !o->gated);
    w->b2 = all_of(net, "b2", !o->gated);
}

/* Of equal scores the first top_k experts are chosen: they get all tokens, and the others none. */
static ls_module *layer_of(const ls_moe_options *o, bool equal_scores)
{
    ls_module *moe = ls_moe_new(DIM, HIDDEN, o);
    CHECK(moe != NULL);
    if (equal_scores) {
        CHECK_OK(ls_fill_constant(ls_module_param(moe, "gate.weight"), 0.0));
    }
    return moe;
}

/* Without synchronisation gradients are this rank's, of experts those of all ranks' rows. */
static void check_twin(const ls_moe_options *o, bool equal_scores)
{
    static twin t[RANKS_MAX];
    const int rank = ls_rank();
    ls_mesh *mesh = mesh_of("ep=*");
    whole w;
    CHECK_OK(ls_manual_seed(5));
    ls_module *net = ls_ddp_new(layer_of(o, equal_scores), ls_world(), NULL);
    CHECK(net != NULL);
    CHECK_OK(ls_ddp_set_sync(net, false));
    memset(t, 0, sizeof t);
    {
        LS_SCOPE;
        gather(net, o, &w);
        ls_tensor *x = leaf(numbers(LS_SHAPE(tokens_of(rank), DIM), rank));
        CHECK_OK(ls_place(x, "ep", LS_VARYING));
        ls_tensor *y = ls_forward(net, x);
        ls_tensor *out = numbers(LS_SHAPE(tokens_of(rank), DIM), 100 + rank);
        CHECK_OK(ls_backward(ls_add(ls_sum(ls_mul(y, out)), ls_moe_loss(net))));
        CHECK_OK(ls_mesh_use(NULL));
        CHECK_OK(ls_backward(twin_run(o, &w, t, ls_world_size())));
        check_bits("y", y, t[rank].y);
        check_bits("gradient of x", ls_grad(x), ls_grad(t[rank].x));
        check_bits("gate", ls_grad(ls_module_param(net, "gate.weight")), ls_grad(w.gate[rank]));
        check_grad(net, "w1", w.w1);
        check_grad(net, "w2", w.w2);
        check_grad(net, "w3", w.w3);
        check_grad(net, "b1", w.b1);
        check_grad(net, "b2", w.b2);
        CHECK_OK(ls_mesh_use(mesh));
    }
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TESTS(bits_of_, _ranks_are_those_of_one_process_with_the_union_of_the_tokens, 1, 2, 4, 8)
{
    static const double factors[] = {0.0, 0.75, 1.25};
    for (int gate = LS_MOE_SOFTMAX_FIRST; gate <= LS_MOE_SIGMOID; gate++) {
        for (int way = 0; way < 6; way++) {
            check_twin(LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .top_k = 1 + way % 3,
                                  .gate = (ls_moe_gate)gate, .capacity = factors[way % 3],
                                  .tokens = LS_MOE_LOCAL, .renormalise = way % 2 == 0,
                                  .gated = way > 2, .padded = false, .balance_loss = 0.1),
                       false);
        }
        check_twin(LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .gate = (ls_moe_gate)gate,
                              .capacity = 0.75, .tokens = LS_MOE_GLOBAL, .balance_loss = 0.0),
                   false);
        for (int top_k = 1; top_k <= 2; top_k++) {
            check_twin(LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .top_k = top_k,
                                  .gate = (ls_moe_gate)gate, .balance_loss = 0.1),
                       true);
        }
    }
}

/* ---- one expert has all, or none ------------------------------------------------------------ */

DIST_TESTS(experts_without_tokens_on_, _ranks_take_part_forward_and_backward, 1, 2, 3, 4, 5, 6, 7,
           8)
{
    const int n = ls_world_size();
    ls_mesh *mesh = mesh_of("ep=*");
    ls_module *moe =
        ls_moe_new(DIM, HIDDEN, LS_OPTIONS(ls_moe_options, .experts = 2 * n, .top_k = 1));
    ls_tensor *gate = ls_module_param(moe, "gate.weight");
    CHECK_OK(ls_fill_constant(gate, 0.0));
    put_float(gate, (2 * n - 1) * DIM, 1.0f); /* all to the last expert of the last rank */
    ls_module *net = ls_ddp_new(moe, ls_world(), NULL);
    CHECK(net != NULL);
    for (int pass = 0; pass < 3; pass++) {
        LS_SCOPE;
        const double weight = pass == 2 && ls_rank() == 0 && n > 1 ? 0.0 : 10.0;
        int64_t tokens[2 * RANKS_MAX];
        ls_tensor *y = ls_forward(net, ls_ones(LS_SHAPE(10, DIM), LS_FLOAT32));
        CHECK_OK(ls_moe_counts(net, tokens, NULL));
        CHECK_INT(tokens[2 * n - 1], 10);
        if (pass == 0) {
            LS_NO_GRAD;
            CHECK_OK(ls_tensor_status(ls_forward(net, ls_ones(LS_SHAPE(3, DIM), LS_FLOAT32))));
        }
        CHECK_OK(ls_backward_weighted(ls_mean(y), weight));
        const float *grad = elements_of(ls_grad(ls_module_param(net, "b2")));
        const int last = ls_rank() == n - 1 ? DIM : 0;
        for (int i = 0; i < 2 * DIM; i++) {
            const bool visited = last > 0 && i >= DIM;
            CHECK(visited ? fabsf(grad[i] - (float)(pass + 1) / DIM) < 1e-5f : grad[i] == 0.0f);
        }
    }
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- losses of ranks with unequal numbers of tokens ------------------------------------------ */

/* Gradients of the gate, too: ls_ddp_new takes the mean over the ranks. */
DIST_TEST(losses_of_global_tokens_are_those_of_one_process_with_all_of_them, 4)
{
    const ls_moe_options *o = LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .balance_loss = 0.3,
                                         .z_loss = 0.2, .tokens = LS_MOE_GLOBAL);
    ls_mesh *mesh = mesh_of("ep=4");
    CHECK_OK(ls_manual_seed(5));
    ls_module *net = ls_ddp_new(ls_moe_new(DIM, HIDDEN, o), ls_world(), NULL);
    double loss = 0.0, want_loss = 0.0;
    LS_SCOPE;
    ls_tensor *x = numbers(LS_SHAPE(tokens_of(ls_rank()), DIM), ls_rank()), *all[4];
    CHECK_OK(ls_tensor_status(ls_forward(net, x)));
    CHECK_OK(ls_item(ls_detach(ls_moe_loss(net)), &loss));
    CHECK_OK(ls_backward(ls_moe_loss(net)));
    CHECK_OK(ls_all_reduce(ls_world(), &loss, &loss, 1, LS_FLOAT64, LS_AVG, NULL, NULL));
    ls_tensor *grad = ls_grad(ls_module_param(net, "gate.weight"));
    CHECK_OK(ls_mesh_use(NULL));
    CHECK_OK(ls_manual_seed(5));
    ls_module *one = ls_moe_new(DIM, HIDDEN, o);
    for (int q = 0; q < 4; q++) {
        all[q] = numbers(LS_SHAPE(tokens_of(q), DIM), q);
    }
    CHECK_OK(ls_tensor_status(ls_forward(one, ls_concat(all, 4, 0))));
    CHECK_OK(ls_item(ls_detach(ls_moe_loss(one)), &want_loss));
    CHECK_OK(ls_backward(ls_moe_loss(one)));
    CHECK_NEAR(loss, want_loss, 1e-6 * want_loss);
    const float *got = elements_of(grad),
                *want = elements_of(ls_grad(ls_module_param(one, "gate.weight")));
    for (int i = 0; i < EXPERTS * DIM; i++) {
        CHECK_NEAR(got[i], want[i], 1e-6);
    }
    ls_module_free(one);
    CHECK_OK(ls_mesh_use(mesh));
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- padding -------------------------------------------------------------------------------- */

enum { PLACES = 30 };

static bool is_padding(int64_t token)
{
    return ls_rank() == 1 || token % 3 == 1;
}

/* Of one pass; gradients of this rank's. */
typedef struct outcome {
    ls_module *net;
    ls_tensor *y, *loss;
    int64_t tokens[EXPERTS], dropped;
} outcome;

static outcome outcome_of(const ls_moe_options *o, ls_tensor *x, ls_tensor *mask)
{
    outcome p;
    ls_tensor *out[2];
    CHECK_OK(ls_manual_seed(5));
    p.net = ls_ddp_new(ls_moe_new(DIM, HIDDEN, o), ls_world(), NULL);
    CHECK_OK(ls_ddp_set_sync(p.net, false));
    CHECK_OK(ls_forward_many(p.net, (ls_tensor *[]){x, mask}, mask != NULL ? 2 : 1, out, 2));
    CHECK_OK(ls_moe_counts(p.net, p.tokens, &p.dropped));
    p.y = out[0];
    p.loss = out[1];
    CHECK_OK(ls_backward(ls_add(ls_sum(ls_mul(p.y, p.y)), p.loss)));
    return p;
}

static void check_near(ls_tensor *got, ls_tensor *want)
{
    CHECK_INT(ls_numel(got), ls_numel(want));
    const float *a = elements_of(got), *b = elements_of(want);
    for (int64_t i = 0; i < ls_numel(got); i++) {
        CHECK_NEAR(a[i], b[i], 1e-5 * (1.0 + fabs(b[i])));
    }
}

/* As if only the other tokens had been given. */
static void check_padding(const ls_moe_options *o)
{
    static const char *const names[] = {"gate.weight", "w1", "w2"};
    int64_t others[PLACES], count = 0;
    float mask[PLACES];
    LS_SCOPE;
    ls_tensor *x = numbers(LS_SHAPE(PLACES, DIM), ls_rank());
    for (int64_t t = 0; t < PLACES; t++) {
        mask[t] = is_padding(t) ? 0.0f : 1.0f;
        add_float(x, t * DIM, is_padding(t) ? NAN : 0.0f);
        others[count] = t;
        count += !is_padding(t);
    }
    ls_tensor *at = ls_from_data(others, LS_SHAPE(count), LS_INT64);
    const outcome got = outcome_of(o, x, ls_from_data(mask, LS_SHAPE(PLACES), LS_FLOAT32));
    const outcome want = outcome_of(o, ls_index_select(x, 0, at), NULL);
    check_near(ls_index_select(got.y, 0, at), want.y);
    check_near(got.loss, want.loss);
    CHECK(memcmp(got.tokens, want.tokens, sizeof got.tokens) == 0);
    CHECK_INT(got.dropped, want.dropped);
    for (int i = 0; i < 3; i++) {
        check_near(ls_grad(ls_module_param(got.net, names[i])),
                   ls_grad(ls_module_param(want.net, names[i])));
    }
    ls_module_free(got.net);
    ls_module_free(want.net);
}

DIST_TEST(padding_counts_on_no_rank_and_a_rank_may_have_nothing_else, 4)
{
    static const struct {
        double capacity;
        ls_moe_tokens tokens;
        bool padded;
    } ways[] = {{0.0, LS_MOE_LOCAL, false},
                {0.75, LS_MOE_LOCAL, false},
                {0.75, LS_MOE_LOCAL, true},
                {0.75, LS_MOE_GLOBAL, false}};
    ls_mesh *mesh = mesh_of("ep=4");
    for (int i = 0; i < 4; i++) {
        check_padding(LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .capacity = ways[i].capacity,
                                 .tokens = ways[i].tokens, .padded = ways[i].padded,
                                 .balance_loss = 0.3, .z_loss = 0.2));
    }
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static ls_redistribute_stats stats_of(const char *axis)
{
    ls_redistribute_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_redistribute_get_stats(axis, &stats));
    return stats;
}

/* T 256, k 2, E 8, factor 1.25, h 128. */
static void check_bytes(bool padded)
{
    enum { T = 256, H = 128, OWN = 2 };
    ls_mesh *mesh = mesh_of("ep=4");
    ls_module *net =
        ls_ddp_new(ls_moe_new(H, H, LS_OPTIONS(ls_moe_options, .capacity = 1.25, .padded = padded)),
                   ls_world(), NULL);
    int64_t tokens[8], dropped, kept = 0, come = 0;
    LS_SCOPE;
    ls_tensor *x = leaf(numbers(LS_SHAPE(T, H), ls_rank()));
    CHECK_OK(ls_place(x, "ep", LS_VARYING));
    const int64_t before = (int64_t)stats_of("ep").bytes;
    ls_tensor *loss = ls_mean(ls_forward(net, x));
    CHECK_OK(ls_tensor_status(loss));
    CHECK_OK(ls_moe_counts(net, tokens, &dropped));
    int64_t all[4][8];
    CHECK_OK(ls_all_gather(ls_world(), tokens, all, 8, LS_INT64, NULL, NULL));
    for (int e = 0; e < 8; e++) {
        kept += tokens[e];
        CHECK(tokens[e] <= 80);
    }
    CHECK_INT(kept, T * 2 - dropped);
    for (int q = 0; q < 4; q++) {
        come += q != ls_rank() ? all[q][OWN * ls_rank()] + all[q][OWN * ls_rank() + 1] : 0;
    }
    const int64_t own = tokens[OWN * ls_rank()] + tokens[OWN * ls_rank() + 1];
    const int64_t want = padded ? 491520 : (kept - own + come) * H * (int64_t)sizeof(float);
    CHECK_INT((int64_t)stats_of("ep").bytes - before, want);
    CHECK_INT(stats_of("ep").all_to_alls, 2);
    CHECK_OK(ls_backward(loss));
    CHECK_INT((int64_t)stats_of("ep").bytes - before, 2 * want);
    CHECK_INT(stats_of("ep").all_to_alls, 4);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(padded_experts_send_491520_bytes_and_others_their_kept_tokens_alone, 4)
{
    check_bytes(true);
    check_bytes(false);
}

/* ---- what is named -------------------------------------------------------------------------- */

DIST_TEST(a_score_that_is_not_finite_is_named_by_all_ranks, 4)
{
    ls_mesh *mesh = mesh_of("ep=4");
    ls_module *net = ls_ddp_new(ls_moe_new(DIM, HIDDEN, NULL), ls_world(), NULL);
    {
        LS_SCOPE;
        ls_tensor *x = numbers(LS_SHAPE(9, DIM), 3);
        put_float(x, 5 * DIM, ls_rank() == 2 ? NAN : 0.0f);
        CHECK_STATUS(ls_tensor_status(ls_forward(net, x)), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "token 5 on rank 2 of axis ep");
        put_float(x, 5 * DIM, 0.0f);
        CHECK_OK(ls_tensor_status(ls_forward(net, x))); /* nothing hangs, nothing is lost */
    }
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(a_rank_that_joins_is_refused_and_the_others_are_told, 2)
{
    ls_mesh *mesh = mesh_of("ep=2");
    ls_module *net = ls_ddp_new(ls_moe_new(DIM, HIDDEN, NULL), ls_world(), NULL);
    {
        LS_SCOPE;
        bool more = true;
        if (ls_rank() == 0) {
            CHECK_STATUS(ls_ddp_join(net, NULL, &more), LS_ERR_UNSUPPORTED);
        } else {
            CHECK_STATUS(ls_tensor_status(ls_forward(net, numbers(LS_SHAPE(4, DIM), 1))),
                         LS_ERR_ABORTED);
        }
        CHECK_SAYS(
            ls_error_message(),
            "ls_ddp_join: %s is of experts that tokens of other ranks visit, and a rank that "
            "has joined runs no forward pass; give all ranks equally many batches, which may "
            "be empty");
    }
    ls_module_free(net);
    (void)ls_mesh_free(mesh); /* its group has failed */
}

static void check_differs(const ls_moe_options *o, const char *name)
{
    ls_mesh *mesh = mesh_of("ep=2");
    ls_module *net = ls_moe_new(DIM, HIDDEN, o);
    {
        LS_SCOPE;
        LS_NO_GRAD;
        CHECK_STATUS(ls_tensor_status(ls_forward(net, numbers(LS_SHAPE(4, DIM), 1))),
                     LS_ERR_MISMATCH);
        CHECK_SAYS(ls_error_message(), "moe along axis %s");
        CHECK_CONTAINS(ls_error_message(), name);
        CHECK_SAYS(ls_error_message(), "give ls_moe_new the same on every rank of the axis");
    }
    ls_module_free(net);
    (void)ls_mesh_free(mesh); /* its group has failed */
}

DIST_TEST(layers_whose_settings_differ_are_a_mismatch, 2)
{
    const bool other = ls_rank() == 1;
    check_differs(LS_OPTIONS(ls_moe_options, .top_k = other ? 1 : 2), "top_k");
    check_differs(LS_OPTIONS(ls_moe_options, .capacity = other ? 1.0 : 2.0), "capacity");
    check_differs(LS_OPTIONS(ls_moe_options, .gate = other ? LS_MOE_SIGMOID : LS_MOE_SOFTMAX_LAST),
                  "gate");
}

DIST_TEST(experts_that_the_ranks_do_not_share_evenly_and_other_meshes_are_refused, 4)
{
    ls_module *early = ls_moe_new(DIM, HIDDEN, NULL);
    CHECK_STATUS(ls_expert_parallel(early), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "expert_parallel: %s; give the model, after ls_mesh_new");
    ls_mesh *mesh = mesh_of("ep=4");
    CHECK_OK(ls_expert_parallel(early));
    CHECK_OK(ls_expert_parallel(early));
    CHECK_INT(ls_size(ls_module_param(early, "w1"), 0), 2);
    ls_module_free(early);
    CHECK(ls_moe_new(DIM, HIDDEN, LS_OPTIONS(ls_moe_options, .experts = 6)) == NULL);
    CHECK_CONTAINS(ls_error_message(), "tensor_shard");
    ls_module *net = ls_moe_new(DIM, HIDDEN, NULL);
    CHECK_OK(ls_mesh_use(NULL));
    {
        LS_SCOPE;
        CHECK_STATUS(ls_tensor_status(ls_forward(net, numbers(LS_SHAPE(4, DIM), 1))), LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(),
                   "moe: its experts are divided along axis %s of a mesh that is not in force; put "
                   "it in force with ls_mesh_use");
    }
    CHECK_OK(ls_mesh_use(mesh));
    {
        LS_SCOPE; /* without ls_ddp_new nothing adds the gradients of the gate */
        ls_tensor *x = numbers(LS_SHAPE(4, DIM), 1);
        CHECK_OK(ls_place(x, "ep", LS_VARYING));
        CHECK_STATUS(ls_tensor_status(ls_forward(net, x)), LS_ERR_PLACEMENT);
    }
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

TEST_MAIN
