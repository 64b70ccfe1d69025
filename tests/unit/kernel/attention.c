/* Attention, forward and gradients: fast against plain over lengths around the tile, dims around
 * the vector, separate and interleaved layouts; threads change nothing. */
#include "kernel_test.h"

typedef struct problem {
    ls__attention a;
    int64_t count; /* floats of a q/k/v buffer (interleaved: one buffer of three) */
    float *q, *k, *v, *o, *d_o, *lse, *dq, *dk, *dv;
    bool interleaved;
} problem;

/* q, k and v each [B,H,T,D], or one [B,T,3,H,D] as a fused projection leaves them; o [B,T,H,D]. */
static problem problem_new(int64_t batch, int64_t heads, int64_t time, int64_t dim, bool causal,
                           bool interleaved)
{
    problem p = {.interleaved = interleaved, .count = batch * heads * time * dim};
    ls__attention *a = &p.a;
    *a = (ls__attention){.batch = batch, .heads = heads, .time = time, .dim = dim};
    a->causal = causal;
    a->scale = 1.0f / sqrtf((float)dim);
    p.q = random_floats(3 * p.count, 1);
    p.dq = allocate((size_t)p.count * 12);
    int64_t next = interleaved ? heads * dim : p.count;
    p.k = p.q + next, p.v = p.k + next;
    p.dk = p.dq + next, p.dv = p.dk + next;
    a->q_t = interleaved ? 3 * heads * dim : dim;
    a->q_h = interleaved ? dim : time * dim;
    a->q_b = interleaved ? time * a->q_t : heads * time * dim;
    a->k_b = a->v_b = a->q_b, a->k_h = a->v_h = a->q_h, a->k_t = a->v_t = a->q_t;
    a->o_t = heads * dim, a->o_h = dim, a->o_b = time * heads * dim;
    p.o = allocate((size_t)p.count * 4);
    p.lse = allocate((size_t)(batch * heads * time) * 4);
    p.d_o = random_floats(p.count, 2);
    a->q = p.q, a->k = p.k, a->v = p.v;
    return p;
}

static void problem_free(problem *p)
{
    free(p->q), free(p->dq), free(p->o), free(p->lse), free(p->d_o);
}

static void run(problem *p, const ls__kernels *k, bool backward)
{
    void *workspace = allocate(k->attention_workspace(&p->a, backward));
    p->a.workspace = workspace;
    p->a.o = p->o, p->a.lse = p->lse;
    if (backward) {
        p->a.d_o = p->d_o, p->a.dq = p->dq, p->a.dk = p->dk, p->a.dv = p->dv;
        memset(p->dq, 0xff, (size_t)p->count * 12); /* NaN: must be overwritten */
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
    snprintf(what, sizeof what, "attention of %s B%lld H%lld T%lld D%lld", k->name,
             (long long)p->a.batch, (long long)p->a.heads, (long long)p->a.time,
             (long long)p->a.dim);
    int64_t rows = p->a.batch * p->a.heads * p->a.time;
    ls__kernels_set_threads(threads);
    run(p, k, false);
    run(p, k, true);
    if (bits) {
        check_same_bits(what, p->o, o, p->count);
        check_same_bits(what, p->lse, lse, rows);
        check_same_bits(what, p->dq, dq, 3 * p->count);
    } else { /* sums of T and D terms within [-1,1] */
        check_close(what, p->o, o, p->count, 1e-5, 2e-6);
        check_close(what, p->lse, lse, rows, 1e-6, 2e-6);
        check_close(what, p->dq, dq, 3 * p->count, 2e-5, 5e-6);
    }
}

static void check_problem(problem *p)
{
    int64_t rows = p->a.batch * p->a.heads * p->a.time;
    run(p, ls__kernels_ref(), false);
    run(p, ls__kernels_ref(), true);
    float *o = copy_of(p->o, p->count), *lse = copy_of(p->lse, rows);
    float *dq = copy_of(p->dq, 3 * p->count);
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        const ls__kernels *k = variant(isa);
        if (k == NULL) {
            continue;
        }
        compare(p, k, 1, o, lse, dq, false);
        float *o1 = copy_of(p->o, p->count), *lse1 = copy_of(p->lse, rows);
        float *dq1 = copy_of(p->dq, 3 * p->count);
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
                problem p = problem_new(2, 3, times[t], dims[d], (kind & 1) != 0, (kind & 2) != 0);
                check_problem(&p);
                problem_free(&p);
            }
        }
    }
}

TEST(attention_keeps_large_scores_finite)
{
    problem p = problem_new(1, 1, 40, 8, true, false);
    for (int64_t i = 0; i < p.count; i++) {
        p.q[i] *= 60.0f;
        p.k[i] *= 60.0f;
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

TEST_MAIN
