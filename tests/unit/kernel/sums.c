/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over chosen dimensions: every alternation of kept and summed ones, against float64 sums of
 * this file and the plain twin; one thread against three to the bit; nothing but the results
 * written. Tolerance: where rows are added in float32 an element is rounded at most log2(terms) +
 * 16 times (a tree of leaves of 16 rows), so 1e-6 of the sum of magnitudes is ample. */
#include "kernel_test.h"

#define DIMS 5
#define GUARD 8

typedef struct sum_case {
    int ndim;
    int64_t shape[DIMS];
    uint8_t keep[DIMS];
} sum_case;

static const sum_case cases[] = {
    {3, {5, 7, 33}, {0, 1, 0}},         /* the channels of [N,C,pixels] */
    {3, {64, 3, 1024}, {0, 1, 0}},      /* shared among threads */
    {3, {9, 16, 40}, {1, 0, 1}},        /* many middles */
    {3, {300, 3, 300}, {1, 0, 1}},      /* shared among threads */
    {4, {3, 4, 5, 6}, {1, 0, 1, 0}},    /* groups, then pixels */
    {4, {6, 5, 4, 3}, {0, 1, 0, 1}},    /* few columns */
    {4, {12, 3, 8, 700}, {0, 1, 0, 1}}, /* more columns than a task has */
    {5, {3, 2, 5, 3, 17}, {0, 1, 0, 1, 0}},
    {5, {3, 2, 5, 3, 17}, {1, 0, 1, 0, 1}},
    {5, {4, 1, 3, 1, 5}, {0, 0, 1, 1, 0}}, /* dims of size 1 */
    {4, {2, 3, 0, 5}, {1, 0, 1, 0}},       /* no results */
    {4, {2, 0, 3, 5}, {1, 0, 1, 0}},       /* results without terms */
    {3, {0, 3, 5}, {0, 1, 0}},
};

/* Where element i of x goes: its kept coordinates. */
static int64_t place_of(const sum_case *c, int64_t i)
{
    int64_t at = 0, stride = 1;
    for (int d = c->ndim - 1; d >= 0; d--) {
        at += c->keep[d] != 0 ? i % c->shape[d] * stride : 0;
        stride *= c->keep[d] != 0 ? c->shape[d] : 1;
        i /= c->shape[d];
    }
    return at;
}

static int64_t count_of(const sum_case *c, bool all)
{
    int64_t count = 1;
    for (int d = 0; d < c->ndim; d++) {
        count *= all || c->keep[d] != 0 ? c->shape[d] : 1;
    }
    return count;
}

static void start(float *out, int64_t count, float beta)
{
    for (int64_t i = 0; i < count; i++) {
        out[i] = beta == 0.0f ? NAN : 0.25f * (float)(i % 5);
    }
}

static void check_sums(const char *name, const sum_case *c, const float *got, const float *x,
                       float beta)
{
    const int64_t outputs = count_of(c, false), inputs = count_of(c, true);
    double *want = calloc((size_t)outputs + 1, 8), *magnitude = calloc((size_t)outputs + 1, 8);
    for (int64_t i = 0; i < inputs; i++) {
        want[place_of(c, i)] += (double)x[i];
        magnitude[place_of(c, i)] += fabs((double)x[i]);
    }
    for (int64_t i = 0; i < outputs; i++) {
        want[i] += beta == 0.0f ? 0.0 : (double)beta * 0.25 * (double)(i % 5);
        if (!(fabs((double)got[i] - want[i]) <= 1e-6 * (magnitude[i] + 1.0))) {
            test_fail(__FILE__, __LINE__, "%s: sum %lld of case %d: got %.9g, want %.17g", name,
                      (long long)i, (int)(c - cases), (double)got[i], want[i]);
        }
    }
    free(want), free(magnitude);
}

static void run_sums(const ls__kernels *k, const sum_case *c, const float *x, float beta)
{
    const int64_t outputs = count_of(c, false);
    float *out = allocate((size_t)(outputs + GUARD) * 4);
    float *again = allocate((size_t)(outputs + GUARD) * 4);
    start(out, outputs + GUARD, beta), start(again, outputs + GUARD, beta);
    ls__kernels_set_threads(1);
    k->sum_dims(out, x, c->ndim, c->shape, c->keep, beta, NULL);
    ls__kernels_set_threads(3);
    k->sum_dims(again, x, c->ndim, c->shape, c->keep, beta, NULL);
    check_same_bits(k->name, again, out, outputs + GUARD);
    check_sums(k->name, c, out, x, beta);
    start(again, outputs + GUARD, beta);
    check_same_bits("behind the sums", out + outputs, again + outputs, GUARD);
    free(out), free(again);
}

TEST(sums_over_any_dims_agree_with_float64_whatever_the_threads)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float *x = random_floats(count_of(&cases[i], true) + 1, i);
        for (int beta = 0; beta < 2; beta++) {
            run_sums(ls__kernels_ref(), &cases[i], x, (float)beta);
            for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
                if (variant(isa) != NULL) {
                    run_sums(variant(isa), &cases[i], x, (float)beta);
                }
            }
        }
        free(x);
    }
}

TEST_MAIN
