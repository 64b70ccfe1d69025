/* SPDX-License-Identifier: Apache-2.0 */
/* The polynomials behind exp, tanh, sigmoid and GELU against libm in float64, in units of the last
 * place over dense ranges, for every variant; NaN and infinities as libm has them. */
#include <float.h>

#include "kernel_test.h"

#define CHUNK 65536

typedef struct range {
    ls__unary op;
    double (*want)(double x);
    double low, high;
    double ulp_max;
} range;

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double gelu_erf(double x)
{
    return 0.5 * x * erfc(-x * 0.70710678118654752440);
}

static double gelu_tanh(double x)
{
    return x * sigmoid(2.0 * 0.79788456080286535588 * (x + 0.044715 * x * x * x));
}

/* The lower tails of GELU inherit the rounding of x^2 (x^3), times its size, through exp. */
static const range ranges[] = {
    {LS__UNARY_EXP, exp, -110.0, 89.5, 2.0},
    {LS__UNARY_EXP, exp, -1e-3, 1e-3, 1.5},
    {LS__UNARY_TANH, tanh, -20.0, 20.0, 4.0},
    {LS__UNARY_TANH, tanh, -1e-3, 1e-3, 2.0},
    {LS__UNARY_SIGMOID, sigmoid, -80.0, 80.0, 4.0},
    {LS__UNARY_GELU_ERF, gelu_erf, 0.0, 12.0, 6.0},
    {LS__UNARY_GELU_ERF, gelu_erf, -2.0, 0.0, 8.0},
    {LS__UNARY_GELU_ERF, gelu_erf, -9.0, -2.0, 64.0},
    {LS__UNARY_GELU_TANH, gelu_tanh, 0.0, 12.0, 4.0},
    {LS__UNARY_GELU_TANH, gelu_tanh, -2.0, 0.0, 8.0},
    {LS__UNARY_GELU_TANH, gelu_tanh, -6.0, -2.0, 128.0},
};

static double ulps(float got, double want)
{
    if (fabs(want) > (double)FLT_MAX) {
        return isinf(got) ? 0.0 : INFINITY;
    }
    int exponent;
    frexp(want, &exponent);
    double unit = ldexp(1.0, exponent - 24);
    return fabs((double)got - want) / fmax(unit, 0x1p-149);
}

static double worst_of(const ls__kernels *k, const range *r, float *x, float *y, float *worst_x)
{
    const int64_t steps = 8;
    double worst = 0.0;
    for (int64_t s = 0; s < steps; s++) {
        for (int64_t i = 0; i < CHUNK; i++) {
            double u = ((double)(s * CHUNK + i) + 0.37) / (double)(steps * CHUNK);
            x[i] = (float)(r->low + (r->high - r->low) * u);
        }
        k->unary(r->op, y, x, CHUNK, NULL);
        for (int64_t i = 0; i < CHUNK; i++) {
            double error = ulps(y[i], r->want((double)x[i]));
            if (!(error <= worst)) {
                worst = error;
                *worst_x = x[i];
            }
        }
    }
    return worst;
}

TEST(polynomials_keep_their_promised_accuracy)
{
    float *x = allocate(CHUNK * 4), *y = allocate(CHUNK * 4);
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
        for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
            if (variant(isa) == NULL) {
                continue;
            }
            float at = 0.0f;
            double worst = worst_of(variant(isa), &ranges[r], x, y, &at);
            printf("# op %d in [%g,%g], %s: %.2f ulp at %g\n", ranges[r].op, ranges[r].low,
                   ranges[r].high, variant(isa)->name, worst, (double)at);
            CHECK(worst <= ranges[r].ulp_max);
        }
    }
    free(x), free(y);
}

TEST(special_values_come_out_as_from_libm)
{
    /* More than a vector of each, so that the vector code sees them. */
    enum { COPIES = 40 };
    const float values[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-40f, -1e-40f, 1e30f, -1e30f};
    for (int op = 0; op < LS__UNARY_COUNT; op++) {
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            float x[COPIES], got[COPIES], want[COPIES];
            for (int i = 0; i < COPIES; i++) {
                x[i] = values[v];
            }
            ls__kernels_ref()->unary((ls__unary)op, want, x, COPIES, NULL);
            for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
                if (variant(isa) != NULL) {
                    variant(isa)->unary((ls__unary)op, got, x, COPIES, NULL);
                    check_close(variant(isa)->name, got, want, COPIES, 1e-6, 1e-44);
                }
            }
        }
    }
}

TEST(a_nan_in_a_row_reaches_its_softmax_and_its_loss)
{
    float x[40], y[40];
    const int64_t target = 3;
    for (int i = 0; i < 40; i++) {
        x[i] = i == 17 ? NAN : 0.1f * (float)i;
    }
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        const ls__kernels *k = variant(isa);
        if (k != NULL) {
            k->softmax(y, x, 1, 40, false, NULL);
            CHECK(isnan(y[0]) && isnan(y[39]));
            CHECK(isnan(cross_entropy_of(k, y, x, &target, 8, 1, 40)));
            CHECK(isnan(y[0]));
            k->layer_norm(y, y + 38, y + 39, x, NULL, NULL, 1, 38, 1e-5f, NULL);
            CHECK(isnan(y[0]));
        }
    }
}

TEST_MAIN
