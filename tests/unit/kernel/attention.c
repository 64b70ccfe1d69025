/* SPDX-License-Identifier: Apache-2.0 */
/* Attention, forward and gradients: fast against plain over lengths around the tile, dims around
 * the vector, separate and interleaved layouts; threads change nothing. */
#include "kernel_test.h"

typedef struct spec {
    int64_t batch, heads, kv_heads, time, keys, dim;
    bool causal, interleaved, masked;
    double dropout;
} spec;

typedef struct problem {
    ls__attention a;
    int64_t count, all; /* floats of q and o; of q, k and v together, one after the other */
    float *q, *o, *d_o, *lse, *dq, *mask;
} problem;

/* q, k and v each [B,H,T,D], or one [B,T,3,H,D] as a fused projection leaves them; o [B,T,H,D]. */
static problem problem_new(const spec *s)
{
    problem p = {.count = s->batch * s->heads * s->time * s->dim};
    int64_t kv = s->batch * s->kv_heads * s->keys * s->dim, dim = s->dim;
    ls__attention *a = &p.a;
    *a = (ls__attention){.batch = s->batch, .heads = s->heads, .kv_heads = s->kv_heads};
    a->time = s->time, a->keys = s->keys, a->dim = dim, a->causal = s->causal;
    a->scale = 1.0f / sqrtf((float)dim);
    a->dropout = s->dropout, a->seed = 5, a->stream_id = 77ull << 40, a->first = 1001;
    a->w_t = s->keys, a->w_h = s->time * a->w_t + 3, a->w_b = 2 * s->heads * a->w_h;
    p.all = p.count + 2 * kv;
    p.q = random_floats(p.all, 1);
    p.dq = allocate((size_t)p.all * 4);
    a->q_t = s->interleaved ? 3 * s->heads * dim : dim;
    a->q_h = s->interleaved ? dim : s->time * dim;
    a->q_b = s->interleaved ? s->time * a->q_t : s->heads * s->time * dim;
    a->k_t = a->q_t;
    a->k_h = s->interleaved ? dim : s->keys * dim;
    a->k_b = s->interleaved ? a->q_b : s->kv_heads * s->keys * dim;
    a->v_b = a->k_b, a->v_h = a->k_h, a->v_t = a->k_t;
    a->o_t = s->heads * dim, a->o_h = dim, a->o_b = s->time * s->heads * dim;
    a->q = p.q, a->k = p.q + (s->interleaved ? s->heads * dim : p.count);
    a->v = a->k + (s->interleaved ? s->heads * dim : kv);
    p.o = allocate((size_t)p.count * 4);
    p.lse = allocate((size_t)(s->batch * s->heads * s->time) * 4);
    p.d_o = random_floats(p.count, 2);
    p.mask = random_floats(s->heads * s->keys, 3); /* [1,H,1,S] */
    for (int64_t i = 0; i < s->heads * s->keys; i++) {
        p.mask[i] = i < s->keys || i % 3 == 1 ? -INFINITY : p.mask[i]; /* head 0 sees nothing */
    }
    a->mask = s->masked ? p.mask : NULL;
    a->m_h = s->keys;
    return p;
}

static void problem_free(problem *p)
{
    free(p->q), free(p->dq), free(p->o), free(p->lse), free(p->d_o), free(p->mask);
}

static void run(problem *p, const ls__kernels *k, bool backward)
{
    void *workspace = allocate(k->attention_workspace(&p->a, backward));
    p->a.workspace = workspace;
    p->a.o = p->o, p->a.lse = p->lse;
    if (backward) {
        p->a.d_o = p->d_o, p->a.dq = p->dq;
        p->a.dk = p->dq + (p->a.k - p->q), p->a.dv = p->dq + (p->a.v - p->q);
        memset(p->dq, 0xff, (size_t)p->all * 4); /* NaN: must be overwritten */
        k->attention_backward(&p->a, NULL);
    } else {
        p->a.d_o = NULL, p->a.dq = p->a.dk = p->a.dv = NULL;
        memset(p->o, 0xff, (size_t)p->count * 4);
        k->attention(&p->a, NULL);
    }
    free(workspace);
}

static float *copy_of(const float *x, int64_t count)
{
    float *out = allocate((size_t)count * 4);
    memcpy(out, x, (size_t)count * 4);
    return out;
}

/* Everything a problem computes: o, lse, then dq, dk, dv as they lie. */
static void compare(problem *p, const ls__kernels *k, int threads, const float *o, const float *lse,
                    const float *dq, bool bits)
{
    char what[128];
    snprintf(what, sizeof what, "attention of %s H%lld/%lld T%lld S%lld D%lld", k->name,
             (long long)p->a.heads, (long long)p->a.kv_heads, (long long)p->a.time,
             (long long)p->a.keys, (long long)p->a.dim);
    int64_t rows = p->a.batch * p->a.heads * p->a.time;
    ls__kernels_set_threads(threads);
    run(p, k, false);
    run(p, k, true);
    if (bits) {
        check_same_bits(what, p->o, o, p->count);
        check_same_bits(what, p->lse, lse, rows);
        check_same_bits(what, p->dq, dq, p->all);
    } else { /* sums of T and D terms within [-1,1] */
        check_close(what, p->o, o, p->count, 1e-5, 2e-6);
        check_close(what, p->lse, lse, rows, 1e-6, 2e-6);
        check_close(what, p->dq, dq, p->all, 2e-5, 5e-6);
    }
}

static void check_problem(problem *p)
{
    int64_t rows = p->a.batch * p->a.heads * p->a.time;
    run(p, ls__kernels_ref(), false);
    run(p, ls__kernels_ref(), true);
    float *o = copy_of(p->o, p->count), *lse = copy_of(p->lse, rows);
    float *dq = copy_of(p->dq, p->all);
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        const ls__kernels *k = variant(isa);
        if (k == NULL) {
            continue;
        }
        compare(p, k, 1, o, lse, dq, false);
        float *o1 = copy_of(p->o, p->count), *lse1 = copy_of(p->lse, rows);
        float *dq1 = copy_of(p->dq, p->all);
        compare(p, k, 2, o1, lse1, dq1, true);
        compare(p, k, 5, o1, lse1, dq1, true);
        free(o1), free(lse1), free(dq1);
    }
    free(o), free(lse), free(dq);
}

TEST(attention_agrees_with_the_plain_twin_whatever_the_threads)
{
    const int64_t times[] = {1, 2, 17, 31, 32, 33, 64, 100};
    const int64_t dims[] = {1, 8, 24, 32, 40, 65};
    for (size_t t = 0; t < sizeof times / sizeof *times; t++) {
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
            for (int kind = 0; kind < 4; kind++) {
                spec s = {
                    .batch = 2, .heads = 3, .kv_heads = 3, .time = times[t], .keys = times[t]};
                s.dim = dims[d], s.causal = (kind & 1) != 0, s.interleaved = (kind & 2) != 0;
                problem p = problem_new(&s);
                check_problem(&p);
                problem_free(&p);
            }
        }
    }
}

TEST(attention_with_options_agrees_with_the_plain_twin_whatever_the_threads)
{
    const int64_t times[][2] = {{1, 1}, {1, 40}, {3, 33}, {33, 64}, {40, 71}, {64, 64}};
    for (size_t t = 0; t < sizeof times / sizeof *times; t++) {
        for (int kind = 0; kind < 16; kind++) {
            spec s = {.batch = 2, .heads = 6, .kv_heads = (kind & 1) != 0 ? 2 : 6, .dim = 20};
            s.time = times[t][0], s.keys = times[t][1];
            s.causal = (kind & 2) != 0, s.masked = (kind & 4) != 0;
            s.dropout = (kind & 8) != 0 ? 0.3 : 0.0;
            problem p = problem_new(&s);
            check_problem(&p);
            problem_free(&p);
        }
    }
}

/* A causal triangle over all but the keys that came before is the square of all queries' last. */
TEST(queries_of_a_longer_sequence_see_what_they_see_within_it)
{
    spec whole = {.batch = 1, .heads = 2, .kv_heads = 2, .time = 40, .keys = 40, .dim = 8};
    whole.causal = true;
    spec last = whole;
    last.time = 3;
    problem p = problem_new(&whole), q = problem_new(&last);
    q.a.q = p.a.q + 37 * 8, q.a.q_h = p.a.q_h, q.a.q_b = p.a.q_b;
    q.a.k = p.a.k, q.a.v = p.a.v;
    run(&p, ls__kernels_ref(), false);
    run(&q, ls__kernels_cpu(), false);
    check_close("last queries", q.o, p.o + 37 * 16, 3 * 16, 1e-5, 2e-6);
    problem_free(&p);
    problem_free(&q);
}

TEST(attention_keeps_large_scores_finite)
{
    spec s = {.batch = 1, .heads = 1, .kv_heads = 1, .time = 40, .keys = 40, .dim = 8};
    s.causal = true;
    problem p = problem_new(&s);
    for (int64_t i = 0; i < p.count; i++) {
        p.q[i] *= 60.0f;
        p.q[p.count + i] *= 60.0f; /* k */
    }
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        if (variant(isa) != NULL) {
            run(&p, variant(isa), false);
            run(&p, variant(isa), true);
            for (int64_t i = 0; i < p.count; i++) {
                CHECK(isfinite(p.o[i]) && isfinite(p.dq[i]));
            }
        }
    }
    problem_free(&p);
}

TEST_BFLOAT16_PATHS

TEST_MAIN
