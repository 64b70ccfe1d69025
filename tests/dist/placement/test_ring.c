/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism: ring attention against the attention of whole sequences, computed in float64
 * from the same numbers; its bytes, its balance, and what it refuses. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "placement/ring.h"
#include "says.h"
#include "test.h"

enum { Q, K, V, DO, GIVEN };

typedef struct sizes { /* of the whole */
    int64_t batch, heads, kv_heads, time, dim;
    bool causal;
    ls_dtype dtype;
} sizes;

typedef struct truth { /* float64, row-major [B,H,T,D] or [B,G,T,D] */
    double *given[GIVEN], *o, *dq, *dk, *dv;
} truth;

static int64_t heads_of(const sizes *s, int which)
{
    return which == K || which == V ? s->kv_heads : s->heads;
}

static int64_t numel_of(const sizes *s, int which)
{
    return s->batch * heads_of(s, which) * s->time * s->dim;
}

/* One of the inputs, whole, of the type of the test. */
static ls_tensor *input(const sizes *s, int which)
{
    ls_tensor *t = ls_empty(LS_SHAPE(s->batch, heads_of(s, which), s->time, s->dim), LS_FLOAT32);
    float *at = edit_elements(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        at[i] = ls_random_normal(11, (uint64_t)which, (uint64_t)i);
    }
    put_elements(t, at);
    return ls_cast(t, s->dtype);
}

static double *zeros(int64_t count)
{
    double *x = calloc((size_t)count, sizeof *x);
    CHECK(x != NULL);
    return x;
}

static double *doubles(ls_tensor *t)
{
    double *x = zeros(ls_numel(t));
    const float *at = elements_of(ls_cast(t, LS_FLOAT32));
    for (int64_t i = 0; i < ls_numel(t); i++) {
        x[i] = (double)at[i];
    }
    return x;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* Query t of head h (of all): weights, output and gradients, by the definition. */
static void reference_row(const sizes *s, truth *w, int64_t b, int64_t h, int64_t t, double *p)
{
    const int64_t g = h / (s->heads / s->kv_heads), D = s->dim;
    const int64_t row = ((b * s->heads + h) * s->time + t) * D;
    const int64_t first = (b * s->kv_heads + g) * s->time * D;
    const int64_t keys = s->causal ? t + 1 : s->time;
    const double *q = w->given[Q] + row, *k = w->given[K] + first, *v = w->given[V] + first;
    const double *d_o = w->given[DO] + row, scale = 1.0 / sqrt((double)D);
    double most = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < keys; j++) {
        p[j] = scale * dot(q, k + j * D, D);
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < keys; j++) {
        p[j] = exp(p[j] - most);
        sum += p[j];
    }
    for (int64_t j = 0; j < keys; j++) {
        p[j] /= sum;
        for (int64_t d = 0; d < D; d++) {
            w->o[row + d] += p[j] * v[j * D + d];
            w->dv[first + j * D + d] += p[j] * d_o[d];
        }
    }
    const double delta = dot(d_o, w->o + row, D);
    for (int64_t j = 0; j < keys; j++) {
        const double ds = scale * p[j] * (dot(d_o, v + j * D, D) - delta);
        for (int64_t d = 0; d < D; d++) {
            w->dq[row + d] += ds * k[j * D + d];
            w->dk[first + j * D + d] += ds * q[d];
        }
    }
}

static truth reference(const sizes *s)
{
    truth w = {.o = zeros(numel_of(s, Q)),
               .dq = zeros(numel_of(s, Q)),
               .dk = zeros(numel_of(s, K)),
               .dv = zeros(numel_of(s, V))};
    double *p = zeros(s->time);
    for (int i = 0; i < GIVEN; i++) {
        w.given[i] = doubles(input(s, i));
    }
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t h = 0; h < s->heads; h++) {
            for (int64_t t = 0; t < s->time; t++) {
                reference_row(s, &w, b, h, t, p);
            }
        }
    }
    free(p);
    return w;
}

static void truth_free(truth *w)
{
    for (int i = 0; i < GIVEN; i++) {
        free(w->given[i]);
    }
    free(w->o);
    free(w->dq);
    free(w->dk);
    free(w->dv);
}

/* The largest difference of this rank's part x [B,heads,T/n,D] from the whole, as a share of the
 * whole's largest element. */
static double error_of(const sizes *s, ls_tensor *x, int which, const double *want)
{
    double most = 0.0, error = 0.0;
    const int64_t part = ls_size(x, 2), heads = heads_of(s, which);
    const float *got = elements_of(ls_cast(x, LS_FLOAT32));
    const int64_t *position = elements_of(ls_context_positions("cp", s->time));
    CHECK_OK(ls_tensor_status(x));
    CHECK_INT(ls_numel(x), s->batch * heads * part * s->dim);
    for (int64_t i = 0; i < numel_of(s, which); i++) {
        most = fmax(most, fabs(want[i]));
    }
    for (int64_t i = 0; i < ls_numel(x); i++) {
        const int64_t d = i % s->dim, t = i / s->dim % part, h = i / s->dim / part;
        const double at = want[(h * s->time + position[t]) * s->dim + d];
        error = fmax(error, fabs((double)got[i] - at));
    }
    return error / most;
}

/* This rank's part of an input, as a leaf. */
static ls_tensor *part(const sizes *s, int which)
{
    ls_tensor *t = ls_context_shard(input(s, which), 2, "cp");
    CHECK_OK(ls_tensor_status(t));
    CHECK(ls_placement_of(t, "cp") == LS_ZIGZAG(2));
    CHECK_OK(ls_set_requires_grad(t, which != DO));
    return t;
}

typedef struct results {
    ls_tensor *o, *dq, *dk, *dv;
} results;

static results ring(const sizes *s)
{
    ls_tensor *q = part(s, Q), *k = part(s, K), *v = part(s, V), *d_o = part(s, DO);
    ls_tensor *o =
        ls_ring_attention(q, k, v, "cp", LS_OPTIONS(ls_attention_options, .causal = s->causal));
    CHECK_OK(ls_tensor_status(o));
    CHECK(ls_placement_of(o, "cp") == LS_ZIGZAG(2));
    CHECK(ls_dtype_of(o) == s->dtype);
    CHECK_OK(ls_backward_from(&o, &d_o, 1));
    return (results){o, ls_grad(q), ls_grad(k), ls_grad(v)};
}

static void check_attention(const sizes *s, double tolerance)
{
    LS_SCOPE;
    truth w = reference(s);
    const results r = ring(s);
    const double error[] = {error_of(s, r.o, Q, w.o), error_of(s, r.dq, Q, w.dq),
                            error_of(s, r.dk, K, w.dk), error_of(s, r.dv, V, w.dv)};
    for (int i = 0; i < 4; i++) {
        if (!(error[i] <= tolerance)) {
            test_fail(__FILE__, __LINE__, "%s: error %g, causal %d, heads %d:%d",
                      (const char *[]){"o", "dq", "dk", "dv"}[i], error[i], s->causal,
                      (int)s->heads, (int)s->kv_heads);
        }
    }
    truth_free(&w);
}

static ls_mesh *mesh_of(const char *axes)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    return mesh;
}

static void check_shapes(ls_dtype dtype, double tolerance)
{
    ls_mesh *mesh = mesh_of("cp=*");
    const int64_t time = 24 * (int64_t)ls_world_size();
    for (int causal = 0; causal < 2; causal++) {
        check_attention(&(sizes){2, 4, 4, time, 16, causal, dtype}, tolerance);
        check_attention(&(sizes){1, 6, 2, time, 8, causal, dtype}, tolerance);
        check_attention(&(sizes){2, 3, 1, time, 12, causal, dtype}, tolerance);
        check_attention(&(sizes){1, 5, 5, time / 12, 4, causal, dtype}, tolerance);
    }
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TESTS(ring_attention_is_that_of_the_whole_on_, _ranks, 2, 3, 4)
{
    check_shapes(LS_FLOAT32, 2e-6);
}

DIST_TESTS(ring_attention_of_bfloat16_on_, _ranks, 2, 3)
{
    check_shapes(LS_BFLOAT16, 0.02);
}

/* o of this rank from the parts of q and k alone, against that of the whole. */
static void check_part(ls_tensor *q, ls_tensor *k, ls_tensor *o)
{
    CHECK_OK(ls_tensor_status(o));
    ls_tensor *all_q = ls_context_gather(q, 2, "cp"), *all_k = ls_context_gather(k, 2, "cp");
    ls_tensor *want = ls_context_shard(ls_attention(all_q, all_k, all_k, NULL), 2, "cp");
    CHECK_INT(ls_numel(o), ls_numel(want));
    const float *x = elements_of(o), *y = elements_of(want);
    for (int64_t i = 0; i < ls_numel(o); i++) {
        CHECK_NEAR(x[i], y[i], 2e-6);
    }
}

DIST_TEST(lengths_of_queries_and_keys_may_differ_without_a_mask, 3)
{
    ls_mesh *mesh = mesh_of("cp=3");
    const int64_t keys[] = {18, 0};
    for (int i = 0; i < 2; i++) {
        LS_SCOPE;
        LS_NO_GRAD;
        ls_tensor *q = part(&(sizes){2, 4, 2, 12, 8, false, LS_FLOAT32}, Q);
        ls_tensor *k = part(&(sizes){2, 4, 2, keys[i], 8, false, LS_FLOAT32}, K);
        check_part(q, k, ls_ring_attention(q, k, k, "cp", NULL));
    }
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(parts_in_order_give_parts_in_order, 2)
{
    ls_mesh *mesh = mesh_of("cp=2");
    LS_SCOPE;
    ls_tensor *q = part(&(sizes){1, 2, 2, 8, 4, false, LS_FLOAT32}, Q);
    CHECK_OK(ls_place(q, "cp", LS_SHARDED(2)));
    ls_tensor *o = ls_ring_attention(q, q, q, "cp", NULL);
    CHECK(ls_placement_of(o, "cp") == LS_SHARDED(2));
    CHECK_OK(ls_place(q, "cp", LS_VARYING));
    CHECK(ls_placement_of(ls_ring_attention(q, q, q, "cp", NULL), "cp") == LS_VARYING);
    CHECK_OK(ls_mesh_free(mesh));
}

/* A model whose attention knows nothing of the axis would attend to this rank's part alone. */
DIST_TEST(attention_of_parts_of_a_sequence_is_refused, 2)
{
    ls_mesh *mesh = mesh_of("cp=2");
    LS_SCOPE;
    const sizes s = {1, 2, 2, 8, 4, false, LS_FLOAT32};
    ls_tensor *q = part(&s, Q), *k = part(&s, K), *v = part(&s, V);
    ls_tensor *o = ls_attention(q, k, v, NULL);
    CHECK_STATUS(ls_tensor_status(o), LS_ERR_PLACEMENT);
    CHECK_CONTAINS(ls_error_message(),
                   "is zigzag(2); the operation needs the whole of this dimension");
    CHECK_STATUS(ls_tensor_status(ls_redistribute(q, "cp", LS_ZIGZAG(2), LS_REPLICATED)),
                 LS_ERR_PLACEMENT);
    ls_tensor *tokens = ls_context_shard(ls_ones(LS_SHAPE(2, 8), LS_INT64), 1, "cp");
    ls_tensor *rows = ls_embedding(ls_ones(LS_SHAPE(4, 6), LS_FLOAT32), tokens);
    CHECK(ls_placement_of(rows, "cp") == LS_ZIGZAG(1));
    CHECK(ls_placement_of(ls_add(rows, ls_embedding(ls_ones(LS_SHAPE(8, 6), LS_FLOAT32),
                                                    ls_context_positions("cp", 8))),
                          "cp") == LS_ZIGZAG(1));
    CHECK_STATUS(ls_place(rows, "cp", LS_ZIGZAG(3)), LS_ERR_INVALID);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(types_are_chosen_as_by_attention, 2)
{
    ls_mesh *mesh = mesh_of("cp=2");
    LS_SCOPE;
    const sizes s = {1, 2, 2, 8, 4, false, LS_FLOAT32};
    ls_tensor *q = part(&s, Q), *half = part(&(sizes){1, 2, 2, 8, 4, false, LS_BFLOAT16}, K);
    CHECK(ls_dtype_of(ls_ring_attention(q, half, half, "cp", NULL)) == LS_FLOAT32);
    {
        LS_AUTOCAST(true);
        CHECK(ls_dtype_of(ls_ring_attention(q, q, half, "cp", NULL)) == LS_BFLOAT16);
    }
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- bytes, bits and balance ---------------------------------------------------------------- */

static ls_redistribute_stats sent(void)
{
    ls_redistribute_stats s = {.size = sizeof s};
    CHECK_OK(ls_redistribute_get_stats("cp", &s));
    return s;
}

static void check_bytes(const sizes *s)
{
    LS_SCOPE;
    const int n = ls_world_size();
    const uint64_t block = 2 * (uint64_t)(s->batch * s->kv_heads * s->time / n * s->dim);
    const uint64_t keys = block * ls_dtype_size(s->dtype), sums = block * sizeof(float);
    ls_tensor *q = part(s, Q), *k = part(s, K), *v = part(s, V), *d_o = part(s, DO);
    const ls_redistribute_stats before = sent();
    ls_tensor *o =
        ls_ring_attention(q, k, v, "cp", LS_OPTIONS(ls_attention_options, .causal = s->causal));
    const ls_redistribute_stats forward = sent();
    CHECK_INT(forward.messages - before.messages, n - 1);
    CHECK_INT(forward.bytes - before.bytes, (uint64_t)(n - 1) * keys);
    CHECK_OK(ls_backward_from(&o, &d_o, 1));
    CHECK_INT(sent().messages - forward.messages, 2 * (n - 1));
    CHECK_INT(sent().bytes - forward.bytes, (uint64_t)(n - 1) * (keys + sums));
}

DIST_TESTS(bytes_of_ring_attention_are_counted_on_, _ranks, 2, 4)
{
    ls_mesh *mesh = mesh_of("cp=*");
    check_bytes(&(sizes){2, 6, 3, 16, 8, true, LS_FLOAT32});
    check_bytes(&(sizes){2, 6, 3, 16, 8, false, LS_BFLOAT16});
    CHECK_OK(ls_mesh_free(mesh));
}

/* Messages arrive in another order where other ranks are late. */
DIST_TEST(ring_attention_has_the_same_bits_in_every_run, 4)
{
    ls_mesh *mesh = mesh_of("cp=4");
    const sizes s = {1, 2, 2, 64, 8, true, LS_FLOAT32};
    float *first[4] = {NULL};
    for (int run = 0; run < 5; run++) {
        LS_SCOPE;
        if (run > 0 && ls_rank() == run - 1) {
            (void)usleep(20000);
        }
        const results r = ring(&s);
        ls_tensor *const all[] = {r.o, r.dq, r.dk, r.dv};
        for (int i = 0; i < 4; i++) {
            const size_t bytes = (size_t)ls_numel(all[i]) * sizeof(float);
            const float *now = elements_of(all[i]);
            if (run == 0) {
                first[i] = malloc(bytes);
                CHECK(first[i] != NULL);
                memcpy(first[i], now, bytes);
            }
            CHECK(memcmp(first[i], now, bytes) == 0);
        }
    }
    for (int i = 0; i < 4; i++) {
        free(first[i]);
    }
    CHECK_OK(ls_mesh_free(mesh));
}

/* Scores that a rank computes: those of its diagonal block below the diagonal. */
static int64_t scores_of(int rank, int n, int64_t part)
{
    int64_t scores = 0;
    for (int step = 0; step < n; step++) {
        const ls__ring_block b = ls__ring_block_of(true, rank, step, part, part);
        scores += b.causal ? b.rows * (b.rows + 1) / 2 : b.rows * b.keys;
    }
    return scores;
}

TEST(all_ranks_compute_as_many_scores_under_a_causal_mask)
{
    for (int n = 2; n <= 16; n++) {
        const int64_t part = 10, whole = n * part;
        for (int rank = 0; rank < n; rank++) {
            CHECK_INT(n * scores_of(rank, n, part), whole * (whole + 1) / 2);
        }
    }
}

/* Of T x T scores of float32 alone there were 64 MiB. */
DIST_TEST(memory_grows_with_the_length_and_not_its_square, 2)
{
    ls_mesh *mesh = mesh_of("cp=2");
    LS_SCOPE;
    const sizes s = {1, 1, 1, 4096, 8, true, LS_FLOAT32};
    ls_memory_stats now = {.size = sizeof now};
    CHECK_OK(ls_memory_reset_peaks());
    CHECK_OK(ls_memory_get_stats(&now));
    const size_t before = now.allocated;
    (void)ring(&s);
    CHECK_OK(ls_memory_get_stats(&now));
    CHECK(now.allocated_peak - before < (size_t)6 << 20);
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- the zigzag order ----------------------------------------------------------------------- */

DIST_TESTS(chunks_are_in_zigzag_order_on_, _ranks, 2, 3, 4)
{
    ls_mesh *mesh = mesh_of("cp=*");
    const int64_t whole = 4 * (int64_t)ls_world_size(), c = 2;
    LS_SCOPE;
    ls_tensor *positions = ls_context_positions("cp", whole);
    const int64_t *at = elements_of(positions);
    CHECK_INT(ls_numel(positions), 2 * c);
    CHECK_INT(at[0], c * ls_rank());
    CHECK_INT(at[2], c * (2 * ls_world_size() - 1 - ls_rank()));
    CHECK_INT(at[1] - at[0], 1);
    ls_tensor *all =
        ls_reshape(ls_arange(0, 3.0 * (double)whole, 1.0, LS_INT64), LS_SHAPE(whole, 3));
    ls_tensor *own = ls_context_shard(all, 0, "cp");
    const int64_t *rows = elements_of(own);
    for (int64_t i = 0; i < ls_numel(own); i++) {
        CHECK_INT(rows[i], 3 * at[i / 3] + i % 3);
    }
    ls_tensor *again = ls_context_gather(own, -2, "cp");
    CHECK_OK(ls_tensor_status(again));
    CHECK(memcmp(elements_of(again), elements_of(all), (size_t)ls_numel(all) * sizeof(int64_t)) ==
          0);
    CHECK_OK(ls_mesh_free(mesh));
}

/* <y, dy> = <x, dx> over all ranks. The numbers are small integers, so sums are exact. */
static double all_dot(ls_tensor *a, ls_tensor *b, double copies)
{
    double own = 0.0;
    const float *x = elements_of(a), *y = elements_of(b);
    for (int64_t i = 0; i < ls_numel(a); i++) {
        own += (double)x[i] * (double)y[i] / copies;
    }
    CHECK_OK(ls_all_reduce(ls_world(), &own, &own, 1, LS_FLOAT64, LS_SUM, NULL, NULL));
    return own;
}

static ls_tensor *integers(int64_t rows, int64_t columns, int add)
{
    return ls_reshape(ls_arange(1.0 + add, 1.0 + add + (double)(rows * columns), 1.0, LS_FLOAT32),
                      LS_SHAPE(rows, columns));
}

static void check_adjoint(ls_placement from)
{
    LS_SCOPE;
    const int n = ls_world_size();
    ls_tensor *x = integers(2, 4 * n, 0), *dy = integers(2, 4, ls_rank());
    CHECK_OK(ls_place(x, "cp", from));
    CHECK_OK(ls_set_requires_grad(x, true));
    ls_tensor *y = ls_context_shard(x, 1, "cp");
    CHECK_OK(ls_backward_from(&y, &dy, 1));
    CHECK(all_dot(y, dy, 1.0) == all_dot(x, ls_grad(x), from == LS_INVARIANT ? n : 1.0));
    ls_tensor *part = integers(2, 4, 2 * ls_rank());
    CHECK_OK(ls_place(part, "cp", LS_VARYING));
    CHECK_OK(ls_set_requires_grad(part, true));
    ls_tensor *whole = ls_context_gather(part, 1, "cp"), *dwhole = integers(2, 4 * n, ls_rank());
    CHECK(ls_placement_of(whole, "cp") == LS_REPLICATED);
    CHECK_OK(ls_backward_from(&whole, &dwhole, 1));
    CHECK(all_dot(whole, dwhole, 1.0) == all_dot(part, ls_grad(part), 1.0));
}

DIST_TESTS(gradients_of_shard_and_gather_are_adjoint_on_, _ranks, 2, 3)
{
    ls_mesh *mesh = mesh_of("cp=*");
    check_adjoint(LS_INVARIANT);
    check_adjoint(LS_REPLICATED);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(rotary_turns_by_the_position_in_the_whole, 3)
{
    ls_mesh *mesh = mesh_of("cp=3");
    LS_SCOPE;
    const sizes s = {2, 2, 2, 24, 8, true, LS_FLOAT32};
    ls_tensor *whole = ls_context_shard(ls_rotary(input(&s, Q), 0, 10000.0), 2, "cp");
    ls_tensor *own = ls_context_rotary(ls_context_shard(input(&s, Q), 2, "cp"), "cp", 10000.0);
    CHECK_OK(ls_tensor_status(own));
    CHECK(memcmp(elements_of(whole), elements_of(own), (size_t)ls_numel(own) * sizeof(float)) == 0);
    CHECK(ls_placement_of(own, "cp") == LS_ZIGZAG(2));
    const ls_rotary_scaling_options *slower =
        LS_OPTIONS(ls_rotary_scaling_options, .original_positions = 16);
    whole = ls_context_shard(ls_rotary_scaled(input(&s, Q), 0, 10000.0, slower), 2, "cp");
    ls_tensor *scaled =
        ls_context_rotary_scaled(ls_context_shard(input(&s, Q), 2, "cp"), "cp", 10000.0, slower);
    CHECK_OK(ls_tensor_status(scaled));
    CHECK(memcmp(elements_of(whole), elements_of(scaled), (size_t)ls_numel(own) * sizeof(float)) ==
          0);
    CHECK(memcmp(elements_of(own), elements_of(scaled), (size_t)ls_numel(own) * sizeof(float)) !=
          0);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(an_axis_of_one_rank_changes_nothing, 1)
{
    ls_mesh *mesh = mesh_of("cp=1");
    LS_SCOPE;
    const sizes s = {1, 2, 1, 6, 4, true, LS_FLOAT32};
    const ls_attention_options o = *LS_OPTIONS(ls_attention_options, .causal = true);
    ls_tensor *q = input(&s, Q), *k = input(&s, K), *v = input(&s, V);
    CHECK(ls_context_shard(q, 2, "cp") == q && ls_context_gather(q, 2, "cp") == q);
    ls_tensor *a = ls_contiguous(ls_ring_attention(q, k, v, "cp", &o));
    ls_tensor *b = ls_contiguous(ls_attention(q, k, v, &o));
    CHECK(memcmp(elements_of(a), elements_of(b), (size_t)ls_numel(a) * sizeof(float)) == 0);
    a = ls_context_rotary(q, "cp", 10000.0);
    b = ls_rotary(q, 0, 10000.0);
    CHECK(memcmp(elements_of(a), elements_of(b), (size_t)ls_numel(a) * sizeof(float)) == 0);
    CHECK_INT(((const int64_t *)elements_of(ls_context_positions("cp", 7)))[6], 6);
    CHECK_OK(ls_mesh_free(mesh));
}

/* Heads along one axis and the sequence along another. */
DIST_TEST(heads_may_be_sharded_along_another_axis, 4)
{
    ls_mesh *mesh = mesh_of("tp=2,cp=2");
    LS_SCOPE;
    const sizes s = {1, 4, 2, 16, 8, true, LS_FLOAT32};
    truth w = reference(&s);
    ls_tensor *in[3];
    for (int i = 0; i < 3; i++) {
        const int64_t heads = heads_of(&s, i) / 2, first = heads * ls_mesh_coordinate(mesh, "tp");
        in[i] = ls_contiguous(ls_slice(part(&s, i), 1, first, first + heads));
        CHECK_OK(ls_place(in[i], "tp", LS_SHARDED(1)));
        CHECK_OK(ls_place(in[i], "cp", LS_VARYING));
    }
    ls_tensor *o = ls_ring_attention(in[0], in[1], in[2], "cp",
                                     LS_OPTIONS(ls_attention_options, .causal = true));
    CHECK_OK(ls_tensor_status(o));
    CHECK(ls_placement_of(o, "tp") == LS_SHARDED(1) && ls_placement_of(o, "cp") == LS_VARYING);
    o = ls_redistribute(o, "tp", LS_SHARDED(1), LS_REPLICATED);
    CHECK(error_of(&s, o, Q, w.o) <= 2e-6);
    truth_free(&w);
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- training ------------------------------------------------------------------------------- */

enum { VOCAB = 11, WIDTH = 8, TOKENS = 24 };

/* Embedding, positions, one head of attention and a readout. */
typedef struct net {
    ls_module base;
    ls_tensor *table, *position, *qkv, *out;
    bool parts, recompute;
} net;

static ls_tensor *split(ls_tensor *qkv, int i)
{
    const int64_t batch = ls_size(qkv, 0), time = ls_size(qkv, 1);
    return ls_transpose(ls_reshape(ls_slice(qkv, 2, i * WIDTH, (i + 1) * WIDTH),
                                   LS_SHAPE(batch, time, 2, WIDTH / 2)),
                        1, 2);
}

static ls_tensor *block(ls_tensor *h, void *arg)
{
    const net *self = arg;
    const ls_attention_options o = *LS_OPTIONS(ls_attention_options, .causal = true);
    ls_tensor *x = ls_linear(h, self->qkv, NULL), *q = split(x, 0), *k = split(x, 1), *a;
    if (self->parts) {
        q = ls_context_rotary(q, "cp", 100.0);
        k = ls_context_rotary(k, "cp", 100.0);
        a = ls_ring_attention(q, k, split(x, 2), "cp", &o);
    } else {
        a = ls_attention(ls_rotary(q, 0, 100.0), ls_rotary(k, 0, 100.0), split(x, 2), &o);
    }
    return ls_add(h, ls_reshape(ls_transpose(a, 1, 2), ls_shape_of(h)));
}

static ls_tensor *net_forward(ls_module *m, ls_tensor *x)
{
    net *self = (net *)m;
    ls_tensor *positions =
        self->parts ? ls_context_positions("cp", TOKENS) : ls_arange(0, TOKENS, 1, LS_INT64);
    ls_tensor *h = ls_add(ls_embedding(self->table, x), ls_embedding(self->position, positions));
    h = self->recompute ? ls_recompute_call(block, h, self) : block(h, self);
    return ls_linear(h, self->out, NULL);
}

static const ls_module_class net_class = LS_MODULE_CLASS(.name = "net", .forward = net_forward);

static ls_tensor *param(net *n, const char *name, ls_shape shape, uint64_t stream)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *at = edit_elements(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        at[i] = 0.4f * ls_random_normal(3, stream, (uint64_t)i);
    }
    put_elements(t, at);
    return ls_module_add_param(&n->base, name, t);
}

static net *net_new(bool parts, bool recompute)
{
    net *n = ls_module_new(sizeof *n, &net_class);
    n->table = param(n, "table", LS_SHAPE(VOCAB, WIDTH), 1);
    n->position = param(n, "position", LS_SHAPE(TOKENS, WIDTH), 2);
    n->qkv = param(n, "qkv", LS_SHAPE(3 * WIDTH, WIDTH), 3);
    n->out = param(n, "out", LS_SHAPE(VOCAB, WIDTH), 4);
    n->parts = parts;
    n->recompute = recompute;
    return n;
}

/* Tokens [1,TOKENS] of a replica, and its targets, of which those at `ignored` positions (a bit
 * each) do not count. */
static ls_tensor *tokens_of(int replica, bool targets, uint32_t ignored)
{
    ls_tensor *t = ls_empty(LS_SHAPE(1, TOKENS), LS_INT64);
    int64_t *at = edit_elements(t);
    for (int64_t i = 0; i < TOKENS; i++) {
        const int64_t token = (i * i + (targets ? 3 : 5) * i + 7 * replica) % VOCAB;
        at[i] = targets && ignored >> i & 1 ? -100 : token;
    }
    put_elements(t, at);
    return t;
}

static int64_t counted(ls_tensor *targets)
{
    const int64_t *at = elements_of(targets);
    int64_t count = 0;
    for (int64_t i = 0; i < ls_numel(targets); i++) {
        count += at[i] >= 0;
    }
    return count;
}

static ls_tensor *loss_of(ls_module *m, ls_tensor *x, ls_tensor *y)
{
    return ls_cross_entropy(ls_forward(m, x), y, NULL);
}

/* The mean over all replicas' targets, without a mesh. */
static ls_module *twin(const uint32_t *ignored, int replicas)
{
    LS_SCOPE;
    ls_module *m = &net_new(false, false)->base;
    int64_t total = 0;
    for (int r = 0; r < replicas; r++) {
        total += counted(tokens_of(r, true, ignored[r]));
    }
    for (int r = 0; r < replicas; r++) {
        ls_tensor *y = tokens_of(r, true, ignored[r]);
        CHECK_OK(ls_backward(
            ls_scale(loss_of(m, tokens_of(r, false, 0), y), (double)counted(y) / (double)total)));
    }
    return m;
}

static void check_same_gradients(ls_module *a, ls_module *b)
{
    static const char *const names[] = {"table", "position", "qkv", "out"};
    for (int i = 0; i < 4; i++) {
        ls_tensor *x = ls_grad(ls_module_param(a, names[i]));
        ls_tensor *y = ls_grad(ls_module_param(b, names[i]));
        CHECK(x != NULL && y != NULL);
        const float *x_at = elements_of(x), *y_at = elements_of(y);
        for (int64_t e = 0; e < ls_numel(x); e++) {
            const double got = (double)x_at[e], want = (double)y_at[e];
            if (!(fabs(got - want) <= 2e-6)) {
                test_fail(__FILE__, __LINE__, "%s[%d]: %g, not %g", names[i], (int)e, got, want);
            }
        }
    }
}

static void check_training(const char *axes, const uint32_t *ignored, bool recompute)
{
    ls_module *alone = twin(ignored, 2);
    ls_mesh *mesh = mesh_of(axes);
    const int replica = ls_mesh_coordinate(mesh, "dp");
    ls_module *m = ls_ddp_new(&net_new(true, recompute)->base, ls_world(), NULL);
    CHECK_OK(ls_module_status(m));
    {
        LS_SCOPE;
        ls_tensor *x = ls_context_shard(tokens_of(replica, false, 0), 1, "cp");
        ls_tensor *y = ls_context_shard(tokens_of(replica, true, ignored[replica]), 1, "cp");
        CHECK_OK(ls_backward_weighted(loss_of(m, x, y), (double)counted(y)));
    }
    check_same_gradients(m, alone);
    ls_module_free(m);
    ls_module_free(alone);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(gradients_are_those_of_whole_sequences, 4)
{
    check_training("dp=2,cp=2", (uint32_t[]){0, 0x00f00f}, false);
    check_training("dp=2,cp=2", (uint32_t[]){0, 0x00f00f}, true);
}

/* Of TOKENS positions rank 0 of cp=2 has 0-5 and 18-23, rank 1 the others. Other ranks' losses
 * depend on the keys and values of a rank of weight 0. */
DIST_TEST(a_rank_whose_targets_are_all_ignored_gives_the_gradients_of_its_keys, 4)
{
    check_training("dp=2,cp=2", (uint32_t[]){0xfc003f, 0}, false);
    check_training("dp=2,cp=2", (uint32_t[]){0xfc003f, 0x03ffc0}, true);
    check_training("dp=2,cp=2", (uint32_t[]){0x000001, 0xffffff}, false);
}

/* ---- wrong uses ----------------------------------------------------------------------------- */

static void check_refused(ls_tensor *t, ls_status status, const char *text)
{
    CHECK_STATUS(ls_tensor_status(t), status);
    CHECK_SAYS(ls_error_message(), text);
}

static ls_tensor *attend(ls_tensor *q, ls_tensor *k, bool causal)
{
    return ls_ring_attention(q, k, k, "cp", LS_OPTIONS(ls_attention_options, .causal = causal));
}

static ls_tensor *varying(int64_t batch, int64_t heads, int64_t time, ls_dtype dtype)
{
    ls_tensor *t = ls_zeros(LS_SHAPE(batch, heads, time, 4), dtype);
    CHECK_OK(ls_place(t, "cp", LS_VARYING));
    return t;
}

DIST_TEST(wrong_uses_of_ring_attention_are_refused, 2)
{
    LS_SCOPE;
    ls_tensor *plain = ls_zeros(LS_SHAPE(1, 2, 4, 4), LS_FLOAT32);
    check_refused(attend(plain, plain, true), LS_ERR_STATE, SAYS("no mesh is in force"));
    ls_mesh *mesh = mesh_of("cp=2");
    ls_tensor *q = varying(1, 2, 4, LS_FLOAT32), *odd = varying(1, 2, 3, LS_FLOAT32);
    check_refused(attend(q, plain, true), LS_ERR_PLACEMENT,
                  SAYS("ring_attention: on axis %s %s is %s, and each rank must give its part of "
                       "the sequence%s; shard what q, k and v are computed from: "
                       "ls_context_shard"));
    CHECK_OK(ls_place(plain, "cp", LS_SHARDED(2)));
    check_refused(attend(plain, plain, true), LS_ERR_PLACEMENT,
                  "is sharded(2), and each rank must give its part of the sequence, in zigzag "
                  "order under a causal mask");
    CHECK_SAYS(ls_error_message(), ", in zigzag order under a causal mask");
    check_refused(attend(q, varying(1, 3, 4, LS_FLOAT32), true), LS_ERR_INVALID,
                  SAYS("ring_attention: q %s, k %s, v %s; q must be [B,H,T,D], k and v [B,G,S,D] "
                       "with H a multiple of G"));
    check_refused(attend(odd, odd, true), LS_ERR_INVALID,
                  SAYS("ring_attention: causal with %lld queries and %lld keys on this rank; it "
                       "holds two chunks of one sequence, so give as many of both, an even "
                       "number"));
    check_refused(attend(q, varying(1, 2, 4, LS_INT64), true), LS_ERR_INVALID,
                  SAYS("ring_attention: argument %d is %s; give float32 or bfloat16"));
    check_refused(
        ls_ring_attention(q, q, q, "cp", LS_OPTIONS(ls_attention_options, .dropout = 0.1)),
        LS_ERR_UNSUPPORTED,
        SAYS("ring_attention: %s; give none, or gather q, k and v (ls_context_gather) "
             "for ls_attention"));
    CHECK_SAYS(ls_error_message(), "dropout of the weights");
    check_refused(ls_ring_attention(q, q, q, "cp", LS_OPTIONS(ls_attention_options, .mask = plain)),
                  LS_ERR_UNSUPPORTED, "a mask");
    check_refused(
        ls_ring_attention(q, q, q, "cp", LS_OPTIONS(ls_attention_options, .scale = INFINITY)),
        LS_ERR_INVALID, SAYS("ring_attention: scale is %g; give a finite number"));
    check_refused(ls_ring_attention(q, q, q, "dp", NULL), LS_ERR_NOT_FOUND,
                  SAYS("the mesh in force has no axis"));
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(wrong_uses_of_the_zigzag_order_are_refused, 2)
{
    LS_SCOPE;
    ls_mesh *mesh = mesh_of("cp=2");
    ls_tensor *x = ls_zeros(LS_SHAPE(2, 6), LS_INT64), *part = varying(1, 2, 3, LS_FLOAT32);
    check_refused(ls_context_shard(x, 1, "cp"), LS_ERR_INVALID,
                  SAYS("%s: %lld positions cannot be cut into the %d chunks of %s on axis %s; give "
                       "a length that %d divides (pad it, and ignore the targets there)"));
    check_refused(ls_context_positions("cp", 6), LS_ERR_INVALID,
                  "context_positions: 6 positions cannot be cut into the 4 chunks of all ranks");
    check_refused(ls_context_rotary(part, "cp", 100.0), LS_ERR_INVALID,
                  "context_rotary: 3 positions cannot be cut into the 2 chunks of a rank");
    check_refused(ls_context_shard(x, 2, "cp"), LS_ERR_INVALID,
                  SAYS("%s: dimension %d of %s; give one that it has"));
    check_refused(ls_context_shard(part, 1, "cp"), LS_ERR_INVALID, "context_shard: 2 positions");
    check_refused(ls_context_shard(varying(4, 1, 1, LS_FLOAT32), 0, "cp"), LS_ERR_PLACEMENT,
                  SAYS("%s: on axis %s %s is %s; %s"));
    CHECK_SAYS(ls_error_message(), "give what is equal on all of its ranks");
    check_refused(ls_context_gather(x, 1, "cp"), LS_ERR_PLACEMENT,
                  SAYS("give this rank's part, of ls_context_shard"));
    check_refused(ls_context_rotary(ls_zeros(LS_SHAPE(1, 1, 4, 4), LS_FLOAT32), "cp", 100.0),
                  LS_ERR_PLACEMENT,
                  SAYS("give this rank's part of the sequence, from ls_context_shard; a whole one "
                       "takes ls_rotary"));
    CHECK_OK(ls_mesh_free(mesh));
}

/* Sequences of different lengths on the ranks. */
DIST_TEST(parts_of_different_lengths_are_told, 2)
{
    LS_SCOPE;
    ls_mesh *mesh = mesh_of("cp=2");
    ls_tensor *x = varying(1, 2, 4 + 2 * ls_rank(), LS_FLOAT32);
    CHECK_STATUS(ls_tensor_status(attend(x, x, true)), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "ring_attention");
    (void)ls_mesh_free(mesh);
}

/* ---- failures ------------------------------------------------------------------------------- */

enum { KILLED, KILLED_LATER, LATE };

/* Rank 1 ends before its part, or between forward and backward, or never comes. */
static int lose_a_rank(void *arg)
{
    const int how = *(int *)arg;
    CHECK_OK(ls_init(NULL));
    LS_SCOPE;
    const ls_mesh *mesh = mesh_of("cp=3");
    const sizes s = {1, 2, 2, 24, 8, true, LS_FLOAT32};
    ls_tensor *q = part(&s, Q), *d_o = part(&s, DO), *o = NULL;
    CHECK(mesh != NULL);
    if (ls_rank() == 1 && how == LATE) {
        (void)sleep(6);
        _exit(4);
    }
    if (ls_rank() != 1 || how != KILLED) {
        o = attend(q, q, true);
    }
    if (ls_rank() == 1) {
        _exit(3);
    }
    ls_status status = ls_tensor_status(o);
    if (status == LS_OK) {
        status = ls_backward_from(&o, &d_o, 1);
    }
    CHECK_STATUS(status, how == LATE ? LS_ERR_TIMEOUT : LS_ERR_PEER);
    CHECK_CONTAINS(ls_error_message(), "rank 1");
    if (how != LATE) {
        CHECK_CONTAINS(ls_error_message(), "exited with code 3");
    }
    (void)sleep(how == LATE ? 5 : 0); /* so that rank 1 ends first, or is ended */
    _exit(0);
}

TEST(a_rank_that_ends_in_a_ring_is_named)
{
    for (int how = KILLED; how <= KILLED_LATER; how++) {
        CHECK(ls_spawn(lose_a_rank, &how, 3) < 0);
        CHECK_CONTAINS(ls_error_message(), "rank 1");
        CHECK_CONTAINS(ls_error_message(), "exited with code 3");
    }
}

TEST(a_rank_that_never_enters_a_ring_is_named)
{
    int how = LATE;
    CHECK(setenv("LOCKSTEP_TIMEOUT", "2", 1) == 0);
    CHECK(ls_spawn(lose_a_rank, &how, 3) < 0);
    CHECK_CONTAINS(ls_error_message(), "rank 1");
}

TEST_MAIN
