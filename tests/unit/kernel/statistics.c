/* SPDX-License-Identifier: Apache-2.0 */
/* Norms and variances of numbers whose mean is large beside their deviation, as a float32 sum would
 * lose it: every variant against float64 loops of this file's own, over rows and planes, forward
 * and backward. Equal numbers give exactly 0. */
#include "base/half.h"
#include "kernel_test.h"

#define ROWS 3
#define EPS 1e-5

static const int64_t lengths[] = {64, 768, 1000, 4096, 32768};
static const float deviations[] = {0.0f, 1e-2f, 1.0f, 1e2f};

#define LENGTHS (int)(sizeof lengths / sizeof *lengths)
#define DEVIATIONS (int)(sizeof deviations / sizeof *deviations)

typedef struct exact { /* of one row, in float64 */
    double mean, variance, rstd;
} exact;

static exact exact_of(const float *x, int64_t n)
{
    exact e = {0.0, 0.0, 0.0};
    for (int64_t i = 0; i < n; i++) {
        e.mean += ((double)x[i] - (double)x[0]) / (double)n;
    }
    e.mean += (double)x[0];
    for (int64_t i = 0; i < n; i++) {
        e.variance += ((double)x[i] - e.mean) * ((double)x[i] - e.mean) / (double)n;
    }
    e.rstd = 1.0 / sqrt(e.variance + EPS);
    return e;
}

/* [rows,n] about 1000, each row about another mean. */
static float *rows_about(int64_t rows, int64_t n, float deviation)
{
    float *x = random_floats(rows * n, 1);
    for (int64_t i = 0; i < rows * n; i++) {
        x[i] = 1000.0f + 2.517f * (float)(i / n) + deviation * x[i];
    }
    return x;
}

static void check_one(const char *what, const ls__kernels *k, int64_t n, float deviation,
                      double got, double want, double bound)
{
    if (!(fabs(got - want) <= bound)) {
        test_fail(__FILE__, __LINE__, "%s of %s, n %lld, deviation %g: got %.9g, want %.9g", what,
                  k->name, (long long)n, (double)deviation, got, want);
    }
}

/* `check` for each variant, the plain twin, length and deviation. */
static void for_all(void (*check)(const ls__kernels *k, int64_t n, float deviation))
{
    for (int i = 0; i <= LS__ISA_COUNT; i++) {
        const ls__kernels *k = i == LS__ISA_COUNT ? ls__kernels_ref() : variant(i);
        for (int j = 0; k != NULL && j < LENGTHS * DEVIATIONS; j++) {
            check(k, lengths[j / DEVIATIONS], deviations[j % DEVIATIONS]);
        }
    }
}

static void check_layer_norm(const ls__kernels *k, int64_t n, float deviation)
{
    float *x = rows_about(ROWS, n, deviation), *y = allocate((size_t)(ROWS * n) * 4);
    float mean[ROWS], rstd[ROWS];
    k->layer_norm(y, mean, rstd, x, NULL, NULL, ROWS, n, (float)EPS, NULL);
    for (int64_t i = 0; i < ROWS; i++) {
        const exact e = exact_of(x + i * n, n);
        check_one("mean", k, n, deviation, (double)mean[i], e.mean, 3.1e-5); /* half an ulp */
        check_one("rstd", k, n, deviation, (double)rstd[i], e.rstd, 4e-6 * e.rstd);
        for (int64_t j = i * n; j < (i + 1) * n; j++) {
            const double want = ((double)x[j] - e.mean) * e.rstd;
            check_one("y", k, n, deviation, (double)y[j], want, 4e-6 * fabs(want) + 1e-6);
            CHECK(deviation != 0.0f || y[j] == 0.0f);
        }
    }
    free(x), free(y);
}

TEST(layer_norm_of_rows_with_a_large_mean_is_exact_and_of_equal_numbers_zero)
{
    for_all(check_layer_norm);
}

/* dx and the terms of dw of one row. */
static void exact_backward(double *dx, double *dw, const float *dy, const float *x, int64_t n)
{
    const exact e = exact_of(x, n);
    double mean_g = 0.0, mean_gh = 0.0;
    for (int64_t j = 0; j < n; j++) {
        const double h = ((double)x[j] - e.mean) * e.rstd;
        mean_g += (double)dy[j] / (double)n;
        mean_gh += (double)dy[j] * h / (double)n;
        dw[j] += (double)dy[j] * h;
    }
    for (int64_t j = 0; j < n; j++) {
        const double h = ((double)x[j] - e.mean) * e.rstd;
        dx[j] = e.rstd * ((double)dy[j] - mean_g - h * mean_gh);
    }
}

/* The plain twin takes the mean as forward rounded it, so it is not held to this. */
static void check_backward(const ls__kernels *k, int64_t n, float deviation)
{
    if (k == ls__kernels_ref()) {
        return;
    }
    float *x = rows_about(ROWS, n, deviation), *dy = random_floats(ROWS * n, 2);
    float *dx = allocate((size_t)(ROWS * n) * 4), *dw = allocate((size_t)n * 4);
    double *want = allocate((size_t)n * 8), *want_dw = allocate((size_t)n * 8);
    void *workspace = allocate(k->layer_norm_workspace(ROWS, n));
    float mean[ROWS], rstd[ROWS];
    memset(want_dw, 0, (size_t)n * 8);
    k->layer_norm(dx, mean, rstd, x, NULL, NULL, ROWS, n, (float)EPS, NULL);
    k->layer_norm_backward(dx, 0.0f, dw, NULL, 0.0f, dy, x, mean, rstd, NULL, ROWS, n, workspace,
                           NULL);
    for (int64_t i = 0; i < ROWS; i++) {
        exact_backward(want, want_dw, dy + i * n, x + i * n, n);
        for (int64_t j = 0; j < n; j++) {
            check_one("dx", k, n, deviation, (double)dx[i * n + j], want[j],
                      (double)rstd[i] * 8e-6);
        }
    }
    for (int64_t j = 0; j < n; j++) {
        check_one("dw", k, n, deviation, (double)dw[j], want_dw[j], 8e-6);
    }
    free(x), free(dy), free(dx), free(dw), free(want), free(want_dw), free(workspace);
}

TEST(layer_norms_gradients_of_rows_with_a_large_mean_are_exact)
{
    for_all(check_backward);
}

static void check_bfloat16(const ls__kernels *k, int64_t n, float deviation)
{
    if (n > LS__HALF_ROW_MAX) {
        return;
    }
    float *x = rows_about(ROWS, n, deviation), mean[ROWS], rstd[ROWS];
    ls__bfloat16 *half = allocate((size_t)(ROWS * n) * 2), *y = allocate((size_t)(ROWS * n) * 2);
    for (int64_t i = 0; i < ROWS * n; i++) {
        half[i] = ls__bfloat16_round(x[i]);
        x[i] = ls__bfloat16_widen(half[i]);
    }
    k->layer_norm_bf16(y, mean, rstd, half, NULL, NULL, ROWS, n, (float)EPS, NULL);
    for (int64_t i = 0; i < ROWS; i++) {
        const exact e = exact_of(x + i * n, n);
        for (int64_t j = i * n; j < (i + 1) * n; j++) {
            const double want = ((double)x[j] - e.mean) * e.rstd;
            const double got = (double)ls__bfloat16_widen(y[j]);
            check_one("bfloat16", k, n, deviation, got, want, 0x1.01p-8 * fabs(want) + 1e-6);
        }
    }
    free(x), free(half), free(y);
}

TEST(layer_norm_of_bfloat16_rows_with_a_large_mean_is_exact)
{
    for_all(check_bfloat16);
}

static void check_rms_norm(const ls__kernels *k, int64_t n, float deviation)
{
    float *x = rows_about(ROWS, n, deviation), *y = allocate((size_t)(ROWS * n) * 4), rstd[ROWS];
    k->rms_norm(y, rstd, x, NULL, ROWS, n, (float)EPS, NULL);
    for (int64_t i = 0; i < ROWS; i++) {
        double squares = 0.0;
        for (int64_t j = i * n; j < (i + 1) * n; j++) {
            squares += (double)x[j] * (double)x[j];
        }
        const double want = 1.0 / sqrt(squares / (double)n + EPS);
        /* 512 equal squares a lane of four, rounded the same way each time */
        check_one("rms rstd", k, n, deviation, (double)rstd[i], want, 1e-5 * want);
    }
    free(x), free(y);
}

TEST(rms_norm_of_rows_with_a_large_mean_is_exact)
{
    for_all(check_rms_norm);
}

static void check_variance(const ls__kernels *k, int64_t n, float deviation)
{
    float *x = rows_about(ROWS, n, deviation), *dx = allocate((size_t)(ROWS * n) * 4);
    float variance[ROWS], mean[ROWS];
    const float dy[ROWS] = {1.0f, -0.5f, 2.0f};
    const double divisor = (double)(n - 1);
    k->variance(variance, mean, x, ROWS, n, divisor, NULL);
    k->variance_backward(dx, dy, x, mean, ROWS, n, divisor, 0.0f, NULL);
    for (int64_t i = 0; i < ROWS; i++) {
        const exact e = exact_of(x + i * n, n);
        const double want = e.variance * (double)n / divisor;
        check_one("variance", k, n, deviation, (double)variance[i], want, 1e-6 * want);
        for (int64_t j = i * n; k != ls__kernels_ref() && j < (i + 1) * n; j++) {
            const double d = 2.0 * (double)dy[i] * ((double)x[j] - e.mean) / divisor;
            check_one("variance dx", k, n, deviation, (double)dx[j], d,
                      4e-6 * (double)deviation / divisor + 1e-6 * fabs(d));
        }
    }
    free(x), free(dx);
}

TEST(variances_of_rows_with_a_large_mean_and_their_gradients_are_exact)
{
    for_all(check_variance);
}

/* The mean is a float32 between statistics and norm, whose rounding y is allowed to show. */
static void check_batch_norm(const ls__kernels *k, int64_t n, float deviation)
{
    float *planes = rows_about(ROWS, n, deviation), *x = allocate((size_t)(ROWS * n) * 4);
    float *y = allocate((size_t)(ROWS * n) * 4), mean[ROWS], variance[ROWS], rstd[ROWS];
    const ls__image s = ls__image_strides(ROWS, 1, n / 2);
    for (int64_t i = 0; i < ROWS * n; i++) {
        x[i % n / (n / 2) * s.n + i / n * s.c + i % (n / 2) * s.w] = planes[i];
    }
    ls__batch_norm b = {.batch = 2, .channels = ROWS, .pixels = n / 2, .x = x};
    b.workspace = allocate(k->batch_norm_workspace(&b));
    b.mean = mean, b.rstd = rstd, b.y = y;
    k->batch_norm_stats(&b, mean, variance, NULL);
    k->batch_norm_rstd(rstd, variance, ROWS, EPS, NULL);
    k->batch_norm(&b, NULL);
    for (int64_t c = 0; c < ROWS; c++) {
        const exact e = exact_of(planes + c * n, n);
        check_one("plane's mean", k, n, deviation, (double)mean[c], e.mean,
                  3.1e-5 + 1e-7 * (double)deviation);
        check_one("plane's variance", k, n, deviation, (double)variance[c], e.variance,
                  4e-6 * e.variance + 1e-12);
        for (int64_t i = 0; i < n; i++) {
            const double want = ((double)planes[c * n + i] - e.mean) * e.rstd;
            const float got = y[i / (n / 2) * s.n + c * s.c + i % (n / 2) * s.w];
            check_one("plane", k, n, deviation, (double)got, want,
                      4e-6 * fabs(want) + 1e-6 + 3.1e-5 * e.rstd);
            CHECK(deviation != 0.0f || got == 0.0f);
        }
    }
    free(planes), free(x), free(y), free(b.workspace);
}

TEST(batch_norm_of_planes_with_a_large_mean_is_exact_and_of_equal_numbers_zero)
{
    for_all(check_batch_norm);
}

TEST_MAIN
