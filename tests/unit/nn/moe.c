/* SPDX-License-Identifier: Apache-2.0 */
/* A mixture of experts in one process: the layer and its gradients against float64, the figures of
 * routing, masks, recomputation, and what is refused. */
#undef LS_NO_SITES
#include "../tensor/local.h"

#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>

#include "nn/moe/moe.h"
#include "says.h"

enum { TOKENS = 13, DIM = 4, HIDDEN = 6, EXPERTS = 5 };
enum { PARAMS = 8, NUMBERS_MAX = 1024 };

/* ---- the layer in float64 ------------------------------------------------------------------- */

typedef struct reference {
    const ls_moe_options *o;
    const bool *masked;          /* [TOKENS]; NULL: none */
    const double *p[PARAMS];     /* x, gate, w1, b1 or w3, w2, b2, out (weights of the sum of y) */
    int chosen[TOKENS][EXPERTS]; /* of each token in order */
    bool kept[TOKENS][EXPERTS];  /* … by slot */
    int64_t count[EXPERTS], dropped, tokens;
    bool routed; /* chosen and kept stay, where a number is changed a little */
} reference;

enum { X, GATE, W1, W3, W2, B1, B2, OUT };

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static double gelu(double x)
{
    return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
}

/* Logits and what the gate makes of them, for token t. */
static void scores(const reference *r, int t, double *h, double *score, double *prob)
{
    double total = 0.0, sigmoids = 0.0;
    for (int e = 0; e < EXPERTS; e++) {
        h[e] = 0.0;
        for (int c = 0; c < DIM; c++) {
            h[e] += r->p[X][t * DIM + c] * r->p[GATE][e * DIM + c];
        }
        total += exp(h[e]);
        sigmoids += 1.0 / (1.0 + exp(-h[e]));
    }
    for (int e = 0; e < EXPERTS; e++) {
        const double sigmoid = 1.0 / (1.0 + exp(-h[e]));
        prob[e] = r->o->gate == LS_MOE_SIGMOID ? sigmoid / sigmoids : exp(h[e]) / total;
        score[e] = r->o->gate == LS_MOE_SIGMOID ? sigmoid : prob[e];
    }
}

static void choose(reference *r)
{
    double h[EXPERTS], score[EXPERTS], prob[EXPERTS];
    for (int t = 0; t < TOKENS; t++) {
        bool used[EXPERTS] = {false};
        scores(r, t, h, score, prob);
        for (int s = 0; s < r->o->top_k; s++) {
            int best = -1;
            for (int e = 0; e < EXPERTS; e++) {
                best = !used[e] && (best < 0 || h[e] > h[best]) ? e : best;
            }
            used[best] = true;
            r->chosen[t][s] = best;
        }
    }
}

static bool is_masked(const reference *r, int t)
{
    return r->masked != NULL && r->masked[t];
}

static void keep(reference *r)
{
    int64_t taken[EXPERTS] = {0};
    for (int t = 0; t < TOKENS; t++) {
        r->tokens += !is_masked(r, t);
    }
    const double places = ceil(r->o->capacity * r->o->top_k * (double)r->tokens / EXPERTS - 1e-9);
    for (int s = 0; s < r->o->top_k; s++) {
        for (int t = 0; t < TOKENS; t++) {
            const int e = r->chosen[t][s];
            r->kept[t][s] =
                !is_masked(r, t) && (r->o->capacity == 0.0 || (double)taken[e] < places);
            taken[e] += r->kept[t][s];
            r->count[e] += r->kept[t][s];
            r->dropped += !is_masked(r, t) && !r->kept[t][s];
        }
    }
}

static double expert(const reference *r, int e, int t, int c)
{
    double y = r->o->gated ? 0.0 : r->p[B2][e * DIM + c];
    for (int j = 0; j < HIDDEN; j++) {
        double a = r->o->gated ? 0.0 : r->p[B1][e * HIDDEN + j], b = 0.0;
        for (int i = 0; i < DIM; i++) {
            a += r->p[W1][(e * HIDDEN + j) * DIM + i] * r->p[X][t * DIM + i];
            b += r->o->gated ? r->p[W3][(e * HIDDEN + j) * DIM + i] * r->p[X][t * DIM + i] : 0.0;
        }
        y += r->p[W2][(e * DIM + c) * HIDDEN + j] * (r->o->gated ? silu(a) * b : gelu(a));
    }
    return y;
}

static void weights(const reference *r, int t, const double *h, const double *score, double *g)
{
    double total = 0.0;
    for (int s = 0; s < r->o->top_k; s++) {
        const int e = r->chosen[t][s];
        g[s] = r->o->gate == LS_MOE_SOFTMAX_LAST ? exp(h[e]) : score[e];
        total += g[s];
    }
    for (int s = 0; s < r->o->top_k; s++) {
        g[s] /= r->o->gate == LS_MOE_SOFTMAX_LAST || r->o->renormalise ? total : 1.0;
    }
}

/* sum of out * y, and the losses of the gate. */
static double loss_of(reference *r)
{
    double sum = 0.0, z = 0.0, mean[EXPERTS] = {0.0}, chosen[EXPERTS] = {0.0}, even = 0.0;
    if (!r->routed) {
        choose(r);
        keep(r);
        r->routed = true;
    }
    for (int t = 0; t < TOKENS; t++) {
        double h[EXPERTS], score[EXPERTS], prob[EXPERTS], g[EXPERTS], total = 0.0;
        scores(r, t, h, score, prob);
        weights(r, t, h, score, g);
        for (int s = 0; s < r->o->top_k; s++) {
            for (int c = 0; c < DIM && r->kept[t][s]; c++) {
                sum += r->p[OUT][t * DIM + c] * g[s] * expert(r, r->chosen[t][s], t, c);
            }
            chosen[r->chosen[t][s]] += !is_masked(r, t);
        }
        for (int e = 0; e < EXPERTS && !is_masked(r, t); e++) {
            mean[e] += prob[e] / (double)r->tokens;
            total += exp(h[e]);
        }
        z += is_masked(r, t) ? 0.0 : log(total) * log(total) / (double)r->tokens;
    }
    for (int e = 0; e < EXPERTS; e++) {
        even += EXPERTS * mean[e] * chosen[e] / (double)(r->o->top_k * r->tokens);
    }
    return sum + r->o->balance_loss * even + r->o->z_loss * z;
}

/* ---- the layer ------------------------------------------------------------------------------ */

typedef struct layer {
    ls_module *m;
    ls_tensor *t[PARAMS];
    double numbers[PARAMS][NUMBERS_MAX];
} layer;

static ls_tensor *filled(ls_shape shape, double scale)
{
    ls_tensor *t = ls_scale(ls_randn(shape), scale);
    return ls_keep(ls_clone(t));
}

static void layer_new(layer *l, const ls_moe_options *o)
{
    CHECK_OK(ls_manual_seed(11));
    l->m = ls_moe_new(DIM, HIDDEN, o);
    CHECK(l->m != NULL);
    l->t[X] = filled(LS_SHAPE(TOKENS, DIM), 1.5);
    CHECK_OK(ls_set_requires_grad(l->t[X], true));
    l->t[GATE] = ls_module_param(l->m, "gate.weight");
    l->t[W1] = ls_module_param(l->m, "w1");
    l->t[W2] = ls_module_param(l->m, "w2");
    l->t[W3] = o->gated ? ls_module_param(l->m, "w3") : NULL;
    l->t[B1] = o->gated ? NULL : ls_module_param(l->m, "b1");
    l->t[B2] = o->gated ? NULL : ls_module_param(l->m, "b2");
    l->t[OUT] = filled(LS_SHAPE(TOKENS, DIM), 1.0);
    for (int i = 0; i < PARAMS; i++) {
        const float *at = l->t[i] != NULL ? ls_data(l->t[i]) : NULL;
        CHECK(at == NULL || ls_numel(l->t[i]) <= NUMBERS_MAX);
        for (int64_t j = 0; at != NULL && j < ls_numel(l->t[i]); j++) {
            l->numbers[i][j] = (double)at[j];
        }
    }
}

static void layer_free(layer *l)
{
    ls_module_free(l->m);
    ls_free(l->t[X]);
    ls_free(l->t[OUT]);
}

static const bool padding[TOKENS] = {[2] = true, [5] = true, [12] = true};

/* Every number's derivative by central differences of the reference. */
static void check_gradients(layer *l, reference *r)
{
    for (int i = 0; i < OUT; i++) {
        const float *grad = l->t[i] != NULL ? ls_data(ls_grad(l->t[i])) : NULL;
        for (int64_t j = 0; grad != NULL && j < ls_numel(l->t[i]); j++) {
            const double step = 1e-5, at = l->numbers[i][j];
            l->numbers[i][j] = at + step;
            const double above = loss_of(r);
            l->numbers[i][j] = at - step;
            const double want = (above - loss_of(r)) / (2.0 * step);
            l->numbers[i][j] = at;
            CHECK_NEAR(grad[j], want, 2e-5 + 1e-5 * fabs(want));
        }
    }
}

static void check_layer(const ls_moe_options *o, bool masked)
{
    static layer l;
    layer_new(&l, o);
    reference r = {.o = o, .masked = masked ? padding : NULL};
    int64_t tokens[EXPERTS], dropped;
    for (int i = 0; i < PARAMS; i++) {
        r.p[i] = l.numbers[i];
    }
    {
        LS_SCOPE;
        float counts[TOKENS];
        for (int t = 0; t < TOKENS; t++) {
            counts[t] = padding[t] ? 0.0f : 1.0f;
        }
        ls_tensor *in[2] = {l.t[X], ls_from_data(counts, LS_SHAPE(TOKENS), LS_FLOAT32)}, *out[2];
        CHECK_OK(ls_forward_many(l.m, in, masked ? 2 : 1, out, 2));
        ls_tensor *loss = ls_add(ls_sum(ls_mul(out[0], l.t[OUT])), ls_moe_loss(l.m));
        double got = 0.0;
        CHECK_OK(ls_item(loss, &got));
        CHECK_NEAR(got, loss_of(&r), 2e-5);
        CHECK_OK(ls_moe_counts(l.m, tokens, &dropped));
        for (int e = 0; e < EXPERTS; e++) {
            CHECK_INT(tokens[e], r.count[e]);
        }
        CHECK_INT(dropped, r.dropped);
        CHECK_OK(ls_backward(loss));
        check_gradients(&l, &r);
    }
    layer_free(&l);
}

LOCAL_TEST(the_layer_and_its_gradients_are_those_of_float64_for_every_gate)
{
    for (int gate = LS_MOE_SOFTMAX_FIRST; gate <= LS_MOE_SIGMOID; gate++) {
        for (int k = 1; k <= 3; k++) {
            for (int way = 0; way < 8; way++) {
                const ls_moe_options *o =
                    LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .top_k = k,
                               .gate = (ls_moe_gate)gate, .renormalise = (way & 1) != 0,
                               .gated = (way & 2) != 0, .capacity = (way & 4) != 0 ? 0.75 : 0.0,
                               .padded = way == 6, .balance_loss = 0.3, .z_loss = 0.2);
                check_layer(o, way % 3 == 1);
            }
        }
    }
}

/* ---- figures -------------------------------------------------------------------------------- */

/* T 256, k 2, E 8, capacity factor 1.25. */
TEST(the_capacity_of_256_tokens_is_80)
{
    const ls__moe_rules r = {.ranks = 1, .experts = 8, .top_k = 2, .capacity = 1.25};
    CHECK_INT(ls__moe_capacity(&r, 256), 80);
    const ls__moe_rules tenth = {.ranks = 1, .experts = 8, .top_k = 2, .capacity = 1.1};
    CHECK_INT(ls__moe_capacity(&tenth, 80), 22); /* 22.000000000000004 in float64 */
    CHECK_INT(ls__moe_capacity(&tenth, 81), 23);
    CHECK_INT(ls__moe_capacity(&r, 0), 0);
    const ls__moe_rules huge = {.ranks = 1, .experts = 8, .top_k = 2, .capacity = 1e300};
    CHECK_INT(ls__moe_capacity(&huge, 256), 256); /* no more can come */
}

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

enum { RANKS_MAX = 4, SEEDS = 300, ROOM = 64 };

typedef struct draw { /* a random case of several ranks */
    ls__moe_rules r;
    int64_t tokens[RANKS_MAX], index[RANKS_MAX][ROOM * 4], facts[RANKS_MAX * 64];
} draw;

static void draw_case(draw *d, uint64_t *state)
{
    static const double factors[] = {0.0, 0.5, 1.0, 1.25};
    const int ranks = 1 << next(state) % 3;
    d->r = (ls__moe_rules){.ranks = ranks,
                           .experts = ranks * (int64_t)(1 + next(state) % 3),
                           .capacity = factors[next(state) % 4],
                           .global = next(state) % 2 != 0};
    d->r.top_k = 1 + (int)(next(state) % (uint64_t)(d->r.experts < 3 ? d->r.experts : 3));
    d->r.padded = !d->r.global && d->r.capacity > 0.0 && next(state) % 2 != 0;
    memset(d->facts, 0, sizeof d->facts);
    for (int q = 0; q < ranks; q++) {
        int64_t *facts = d->facts + q * ls__moe_facts(&d->r);
        d->tokens[q] = (int64_t)(next(state) % ROOM);
        for (int64_t t = 0; t < d->tokens[q]; t++) {
            const bool masked = next(state) % 8 == 0;
            const int64_t first = (int64_t)(next(state) % (uint64_t)d->r.experts);
            facts[LS__MOE_TOKENS] += !masked;
            for (int s = 0; s < d->r.top_k; s++) {
                const int64_t e = (first + s) % d->r.experts;
                d->index[q][t * d->r.top_k + s] = masked ? -1 : e;
                facts[LS__MOE_CHOICES + s * d->r.experts + e] += !masked;
            }
        }
    }
}

/* place and source are inverse, order and back too; counts add up. */
static void check_route(const draw *d, const ls__moe_route *route, int rank)
{
    const int k = d->r.top_k;
    int64_t kept = 0, placed = 0, sent = 0, arrives = 0, computed = 0;
    for (int64_t i = 0; i < route->tokens * k; i++) {
        const bool has = route->place[i] < route->rows;
        placed += has;
        CHECK(!has || route->source[route->place[i]] == i / k);
    }
    for (int64_t i = 0; i < route->rows; i++) {
        CHECK(d->r.padded || route->source[i] < route->tokens);
    }
    for (int64_t i = 0; i < route->arrive; i++) {
        CHECK_INT(route->back[route->order[i]], i);
    }
    for (int64_t e = 0; e < d->r.experts; e++) {
        kept += route->kept[e];
    }
    for (int q = 0; q < d->r.ranks; q++) {
        sent += route->send[q];
        arrives += route->receive[q];
    }
    for (int64_t e = 0; e < d->r.experts / d->r.ranks; e++) {
        computed += route->count[e];
    }
    CHECK_INT(kept, placed);
    CHECK_INT(kept, d->facts[rank * ls__moe_facts(&d->r) + LS__MOE_TOKENS] * k - route->dropped);
    CHECK_INT(sent, route->rows);
    CHECK_INT(arrives, route->arrive);
    CHECK_INT(computed, route->arrive);
}

/* Of all ranks together, by counting one choice after the other. */
static void check_kept(const draw *d, ls__moe_route *const *route)
{
    int64_t taken[RANKS_MAX][16] = {{0}};
    for (int s = 0; s < d->r.top_k; s++) {
        for (int q = 0; q < d->r.ranks; q++) {
            int64_t tokens = 0;
            for (int p = 0; p < d->r.ranks; p++) {
                tokens +=
                    d->r.global || p == q ? d->facts[p * ls__moe_facts(&d->r) + LS__MOE_TOKENS] : 0;
            }
            for (int64_t t = 0; t < d->tokens[q]; t++) {
                const int64_t e = d->index[q][t * d->r.top_k + s];
                int64_t *n = e >= 0 ? &taken[d->r.global ? 0 : q][e] : NULL;
                const bool fits =
                    n != NULL && (d->r.capacity == 0.0 || *n < ls__moe_capacity(&d->r, tokens));
                CHECK((route[q]->place[t * d->r.top_k + s] < route[q]->rows) == fits);
                if (fits) {
                    (*n)++;
                }
            }
        }
    }
}

TEST(routes_of_random_choices_keep_first_choices_first_and_every_row_has_one_place)
{
    uint64_t state = test_seed();
    for (int i = 0; i < SEEDS; i++) {
        static draw d;
        ls__moe_route route[RANKS_MAX], *all[RANKS_MAX];
        draw_case(&d, &state);
        for (int q = 0; q < d.r.ranks; q++) {
            d.r.rank = q;
            CHECK_OK(ls__moe_route_init(&route[q], &d.r, d.index[q], d.tokens[q], d.facts));
            check_route(&d, &route[q], q);
            all[q] = &route[q];
        }
        for (int q = 0; q < d.r.ranks; q++) {
            for (int p = 0; p < d.r.ranks; p++) {
                CHECK_INT(route[q].send[p], route[p].receive[q]);
            }
        }
        check_kept(&d, all);
        for (int q = 0; q < d.r.ranks; q++) {
            ls__moe_route_fini(&route[q]);
        }
    }
}

/* A gate of zeros gives every expert the same probability; its choices are made even by a bias that
 * turns with the tokens' first number. */
static void set_gate(ls_module *m, float scale)
{
    float *gate = ls_data(ls_module_param(m, "gate.weight"));
    memset(gate, 0, EXPERTS * DIM * sizeof *gate);
    gate[0] = scale; /* expert 0 likes the first number */
}

LOCAL_TEST(all_tokens_to_one_expert_drop_what_exceeds_its_capacity)
{
    ls_module *m = ls_moe_new(DIM, HIDDEN,
                              LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .top_k = 1,
                                         .capacity = 1.0, .balance_loss = 0.01));
    int64_t tokens[EXPERTS], dropped;
    double loss = 0.0;
    set_gate(m, 50.0f);
    {
        LS_SCOPE;
        ls_tensor *y = ls_forward(m, ls_ones(LS_SHAPE(10, 2, DIM), LS_FLOAT32));
        CHECK_OK(ls_tensor_status(y));
        CHECK_OK(ls_moe_counts(m, tokens, &dropped));
        CHECK_INT(tokens[0], 4); /* ceil(20 / 5) */
        CHECK_INT(tokens[1] + tokens[2] + tokens[3] + tokens[4], 0);
        CHECK_INT(dropped, 16);
        const float *row = ls_data(y);
        CHECK(row[0] != 0.0f);
        for (int i = 4 * DIM; i < 20 * DIM; i++) {
            CHECK(row[i] == 0.0f);
        }
        CHECK_OK(ls_item(ls_moe_loss(m), &loss));
        CHECK_NEAR(loss, 0.01 * EXPERTS, 1e-7);
        CHECK_OK(ls_backward(ls_add(ls_sum(y), ls_moe_loss(m))));
        const float *grad = ls_data(ls_grad(ls_module_param(m, "w1")));
        for (int i = HIDDEN * DIM; i < EXPERTS * HIDDEN * DIM; i++) {
            CHECK(grad[i] == 0.0f); /* of experts that no token visits */
        }
    }
    ls_module_free(m);
}

LOCAL_TEST(the_balance_loss_is_its_coefficient_where_choices_and_probabilities_are_even)
{
    ls_module *m = ls_moe_new(
        EXPERTS, HIDDEN,
        LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .top_k = 1, .balance_loss = 0.01));
    float *gate = ls_data(ls_module_param(m, "gate.weight"));
    for (int i = 0; i < EXPERTS * EXPERTS; i++) {
        gate[i] = i % (EXPERTS + 1) == 0 ? 1.0f : 0.0f; /* token t to expert t */
    }
    double loss = 0.0;
    {
        LS_SCOPE;
        float one[EXPERTS * EXPERTS];
        memcpy(one, gate, sizeof one);
        (void)ls_forward(m, ls_from_data(one, LS_SHAPE(EXPERTS, EXPERTS), LS_FLOAT32));
        CHECK_OK(ls_item(ls_moe_loss(m), &loss));
        CHECK_NEAR(loss / 0.01, 1.000, 1e-6);
    }
    ls_module_free(m);
}

LOCAL_TEST(a_bias_moves_choices_towards_the_mean_and_leaves_weights_alone)
{
    ls_module *m =
        ls_moe_new(DIM, HIDDEN,
                   LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .top_k = 1,
                              .gate = LS_MOE_SIGMOID, .renormalise = false, .balance_bias = true));
    int64_t tokens[EXPERTS];
    set_gate(m, 0.5f);
    const float *bias = ls_data(ls_module_buffer(m, "bias"));
    {
        LS_SCOPE;
        (void)ls_forward(m, ls_ones(LS_SHAPE(20, DIM), LS_FLOAT32));
        CHECK_OK(ls_moe_counts(m, tokens, NULL));
        CHECK_INT(tokens[0], 20);
        CHECK_OK(ls_moe_balance(m, NULL, 0.25));
        CHECK_NEAR(bias[0], -0.25, 0.0);
        CHECK_NEAR(bias[1], 0.25, 0.0);
        ls_tensor *y = ls_forward(m, ls_ones(LS_SHAPE(20, DIM), LS_FLOAT32));
        CHECK_OK(ls_moe_counts(m, tokens, NULL));
        CHECK_INT(tokens[0], 0); /* 0.62 - 0.25 < 0.5 + 0.25 */
        CHECK_INT(tokens[1], 20);
        CHECK_OK(ls_tensor_status(y));
        ls_module_train(m, false);
        (void)ls_forward(m, ls_ones(LS_SHAPE(20, DIM), LS_FLOAT32));
        CHECK_OK(ls_moe_balance(m, NULL, 0.25)); /* of the second forward alone */
        CHECK_NEAR(bias[1], 0.0, 0.0);
        CHECK_OK(ls_moe_balance(m, NULL, 0.25)); /* no choices: all have the mean */
        CHECK_NEAR(bias[1], 0.0, 0.0);
    }
    ls_module_free(m);
}

LOCAL_TEST(shared_experts_are_added_for_every_token)
{
    for (int gated = 0; gated < 2; gated++) {
        ls_module *m = ls_moe_new(
            DIM, HIDDEN,
            LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .shared = 2, .gated = gated != 0));
        CHECK(m != NULL);
        CHECK_INT(ls_size(ls_module_param(m, "shared.up.weight"), 0), 2 * HIDDEN);
        CHECK_OK(ls_fill_constant(ls_module_param(m, "w2"), 0.0));
        if (!gated) {
            CHECK_OK(ls_fill_constant(ls_module_param(m, "b2"), 0.0));
        }
        LS_SCOPE;
        ls_tensor *x = ls_randn(LS_SHAPE(TOKENS, DIM));
        ls_tensor *wide = ls_forward(ls_module_child(m, "shared.up"), x);
        if (gated) {
            wide = ls_mul(ls_silu(wide), ls_forward(ls_module_child(m, "shared.gate"), x));
        }
        ls_tensor *want = ls_forward(ls_module_child(m, "shared.down"), wide);
        ls_tensor *y = ls_forward(m, x);
        CHECK(memcmp(ls_data(y), ls_data(want), sizeof(float) * TOKENS * DIM) == 0);
        ls_module_free(m);
    }
}

/* Tokens of NaN and infinity among those that are masked. */
static void check_padding(const ls_moe_options *o)
{
    ls_module *m = ls_moe_new(DIM, HIDDEN, o);
    CHECK(m != NULL);
    {
        LS_SCOPE;
        float numbers[2][TOKENS * DIM];
        int64_t counts[TOKENS];
        ls_tensor *y[2], *x[2];
        for (int i = 0; i < TOKENS * DIM; i++) {
            const bool odd = padding[i / DIM];
            numbers[0][i] = sinf((float)i);
            numbers[1][i] = odd ? (i % 2 != 0 ? NAN : INFINITY) : numbers[0][i];
            counts[i / DIM] = odd ? 0 : 7;
        }
        for (int i = 0; i < 2; i++) {
            x[i] = ls_keep(ls_from_data(numbers[i], LS_SHAPE(TOKENS, DIM), LS_FLOAT32));
            CHECK_OK(ls_set_requires_grad(x[i], true));
            ls_tensor *in[2] = {x[i], ls_from_data(counts, LS_SHAPE(TOKENS), LS_INT64)}, *out[2];
            CHECK_OK(ls_forward_many(m, in, 2, out, 2));
            y[i] = out[0];
            CHECK_OK(ls_backward(ls_add(ls_sum(ls_mul(y[i], y[i])), out[1])));
        }
        const float *a = ls_data(y[0]), *b = ls_data(y[1]);
        CHECK(memcmp(a, b, sizeof numbers[0]) == 0);
        a = ls_data(ls_grad(x[0])), b = ls_data(ls_grad(x[1]));
        CHECK(memcmp(a, b, sizeof numbers[0]) == 0);
        for (int i = 0; i < TOKENS * DIM; i++) {
            CHECK(!padding[i / DIM] || (b[i] == 0.0f && ((float *)ls_data(y[1]))[i] == 0.0f));
        }
        ls_free(x[0]);
        ls_free(x[1]);
    }
    ls_module_free(m);
}

LOCAL_TEST(padding_may_hold_anything_and_gives_zeros)
{
    for (int way = 0; way < 6; way++) {
        check_padding(LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .gate = (ls_moe_gate)(way / 2),
                                 .shared = way % 2, .gated = way > 3, .balance_loss = 0.3,
                                 .z_loss = 0.2));
    }
}

/* ---- recomputation -------------------------------------------------------------------------- */

static ls_module *gpt(bool recompute, const ls_moe_options *moe)
{
    CHECK_OK(ls_manual_seed(3));
    ls_module *net =
        ls_gpt_new(LS_OPTIONS(ls_gpt_options, .dim = 16, .heads = 2, .context = 8, .vocab = 19,
                              .dropout = 0.1, .recompute = recompute, .moe = moe));
    CHECK(net != NULL);
    return net;
}

static void run_gpt(ls_module *net, double *loss)
{
    LS_SCOPE;
    int64_t tokens[24];
    for (int i = 0; i < 24; i++) {
        tokens[i] = i * 7 % 19;
    }
    ls_step_begin((ls_step_context){.step = 0});
    ls_tensor *x = ls_from_data(tokens, LS_SHAPE(3, 8), LS_INT64);
    ls_tensor *mean = ls_cross_entropy(ls_forward(net, x), x, NULL);
    ls_tensor *whole = ls_add(mean, ls_moe_loss(net));
    CHECK_OK(ls_item(whole, loss));
    CHECK_OK(ls_backward(whole));
    double again = 0.0;
    CHECK_OK(ls_item(ls_add(mean, ls_moe_loss(net)), &again)); /* after backward as before it */
    CHECK(again == *loss);
}

LOCAL_TEST(recomputed_blocks_have_the_same_bits_and_count_once)
{
    const ls_moe_options *o = LS_OPTIONS(ls_moe_options, .experts = 4, .capacity = 1.0,
                                         .balance_loss = 0.1, .z_loss = 0.01, .balance_bias = true);
    ls_module *kept = gpt(false, o), *again = gpt(true, o);
    double loss[2];
    int64_t tokens[2][4], dropped[2];
    run_gpt(kept, &loss[0]);
    run_gpt(again, &loss[1]);
    CHECK(loss[0] == loss[1]);
    CHECK_OK(ls_moe_counts(kept, tokens[0], &dropped[0]));
    CHECK_OK(ls_moe_counts(again, tokens[1], &dropped[1]));
    CHECK(memcmp(tokens[0], tokens[1], sizeof tokens[0]) == 0 && dropped[0] == dropped[1]);
    CHECK_INT(tokens[0][0] + tokens[0][1] + tokens[0][2] + tokens[0][3], 2 * 24 * 2 - dropped[0]);
    ls_param a[64], b[64];
    const int count = ls_module_params(kept, a, 64);
    CHECK_INT(ls_module_params(again, b, 64), count);
    for (int i = 0; i < count; i++) {
        const size_t bytes = (size_t)ls_numel(a[i].value) * sizeof(float);
        CHECK(memcmp(ls_data(ls_grad(a[i].value)), ls_data(ls_grad(b[i].value)), bytes) == 0);
    }
    CHECK_OK(ls_moe_balance(kept, NULL, 0.5));
    CHECK_OK(ls_moe_balance(again, NULL, 0.5));
    CHECK(ls_module_hash(kept) == ls_module_hash(again));
    ls_module_free(kept);
    ls_module_free(again);
}

LOCAL_TEST(under_autocast_the_gate_stays_float32)
{
    ls_module *m = ls_moe_new(DIM, HIDDEN, LS_OPTIONS(ls_moe_options, .experts = EXPERTS));
    int64_t plain[EXPERTS], half[EXPERTS];
    LS_SCOPE;
    ls_tensor *x = ls_randn(LS_SHAPE(200, DIM));
    CHECK_OK(ls_tensor_status(ls_forward(m, x)));
    CHECK_OK(ls_moe_counts(m, plain, NULL));
    {
        LS_AUTOCAST(true);
        ls_tensor *y = ls_forward(m, x);
        CHECK_OK(ls_backward(ls_sum(y)));
    }
    CHECK_OK(ls_moe_counts(m, half, NULL));
    CHECK(memcmp(plain, half, sizeof plain) == 0);
    ls_module_free(m);
}

/* ---- what is refused ------------------------------------------------------------------------ */

static void check_refused(const ls_moe_options *o, const char *says)
{
    CHECK(ls_moe_new(DIM, HIDDEN, o) == NULL);
    CHECK_SAYS(ls_error_message(), says);
}

LOCAL_TEST(options_that_no_layer_can_have_are_refused)
{
    const char *numbers =
        SAYS("MoE: %lld experts, top_k %d and %d shared experts; give at least one "
             "expert, and a top_k from 1 to their number");
    check_refused(LS_OPTIONS(ls_moe_options, .experts = 0), numbers);
    check_refused(LS_OPTIONS(ls_moe_options, .experts = 2, .top_k = 3), numbers);
    const char *factors = SAYS("MoE: capacity %g, balance_loss %g, z_loss %g; give a factor of at "
                               "least 0 and finite coefficients");
    check_refused(LS_OPTIONS(ls_moe_options, .capacity = -1.0), factors);
    check_refused(LS_OPTIONS(ls_moe_options, .z_loss = (double)NAN), factors);
    const char *kinds = SAYS("MoE: gate %d, tokens %d, activation %d; give values of ls_moe_gate, "
                             "ls_moe_tokens and ls_activation");
    check_refused(LS_OPTIONS(ls_moe_options, .gate = (ls_moe_gate)3), kinds);
    const char *padded = SAYS("MoE: padded needs a capacity of each rank's own tokens; give "
                              ".capacity, and leave .tokens LS_MOE_LOCAL");
    check_refused(LS_OPTIONS(ls_moe_options, .padded = true), padded);
    check_refused(
        LS_OPTIONS(ls_moe_options, .padded = true, .capacity = 1.0, .tokens = LS_MOE_GLOBAL),
        padded);
    check_refused(LS_OPTIONS(ls_moe_options, .axis = ""),
                  SAYS("MoE: the axis is \"%.40s\"; give the name of one, as \"ep\""));
#ifndef __SANITIZE_ADDRESS__ /* which ends the process at such a size */
    check_refused(LS_OPTIONS(ls_moe_options, .experts = INT64_MAX / 16),
                  SAYS("MoE: no memory for the counts of %lld experts; give fewer"));
#endif
    CHECK(ls_moe_new(0, HIDDEN, NULL) == NULL);
}

LOCAL_TEST(calls_without_a_layer_or_of_wrong_shapes_are_refused)
{
    ls_module *m = ls_moe_new(DIM, HIDDEN, LS_OPTIONS(ls_moe_options, .experts = EXPERTS));
    ls_module *other = ls_moe_new(DIM, HIDDEN, NULL), *plain = ls_relu_new();
    int64_t tokens[8];
    {
        LS_SCOPE;
        ls_tensor *x = ls_randn(LS_SHAPE(3, DIM)), *out[3];
        CHECK_STATUS(ls_tensor_status(ls_moe_loss(m)), LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(),
                   "moe_loss: a layer has not run yet; call ls_forward in a statement before");
        CHECK_STATUS(ls_tensor_status(ls_forward(m, ls_ones(LS_SHAPE(3), LS_FLOAT32))),
                     LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "moe: x is %s; give one whose last dimension is %lld");
        CHECK_STATUS(ls_tensor_status(ls_forward(m, ls_cast(x, LS_FLOAT64))), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "moe: x is of %s; cast it to float32 or bfloat16");
        CHECK_STATUS(
            ls_forward_many(m, (ls_tensor *[]){x, ls_ones(LS_SHAPE(4), LS_FLOAT32)}, 2, out, 1),
            LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(),
                   "moe: a mask %s for x %s; give one number for each token, of x's shape without "
                   "its last dimension");
        CHECK_STATUS(ls_forward_many(m, &x, 1, out, 3), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "moe: %d inputs and %d outputs; give x and perhaps a mask, "
                                       "and ask for y and perhaps the loss");
        ((float *)ls_data(x))[DIM + 1] = NAN;
        CHECK_STATUS(ls_tensor_status(ls_forward(m, x)), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(),
                   "moe: the gate's score of token %lld on rank %d of axis %s is not finite; look "
                   "for NaN in the input, or lower the learning rate");
        CHECK_CONTAINS(ls_error_message(), "token 1 on rank 0");
    }
    CHECK_STATUS(ls_tensor_status(ls_moe_loss(NULL)), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "moe_loss: the module is NULL; give the model");
    CHECK_STATUS(ls_moe_set_loss(NULL, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "the layer is NULL");
    CHECK_STATUS(ls_moe_set_loss(m, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "the loss is NULL");
    CHECK_STATUS(ls_moe_set_loss(plain, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "the module is no such layer");
    CHECK_SAYS(ls_error_message(), "moe_set_loss: %s; give a layer of ls_moe_new and the second "
                                   "output of its forward");
    CHECK_STATUS(ls_moe_counts(NULL, tokens, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "moe_counts: the module is NULL; give the model");
    CHECK_STATUS(ls_moe_counts(plain, tokens, NULL), LS_ERR_NOT_FOUND);
    CHECK_SAYS(ls_error_message(),
               "moe_counts: the %s has no layer of ls_moe_new; give the model that has");
    ls_module *both = ls_sequential_new((ls_module *[]){m, other}, 2);
    CHECK_STATUS(ls_moe_counts(both, tokens, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "moe_counts: layers of %lld and of %lld experts; ask each layer by itself");
    CHECK_STATUS(ls_moe_balance(both, NULL, -1.0), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "moe_balance: %s; give the model and a rate of at least 0, as 0.001");
    CHECK_SAYS(ls_error_message(), "the rate is no such number");
    ls_module_free(both);
    ls_module_free(plain);
}

TEST_MAIN
