/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of images over shapes, layouts and beta: the fast tables against the plain twin, each
 * variant this processor runs, one thread against two and three to the bit, and nothing written
 * beyond the workspace. Convolutions are conv.c's. */
#include "base/half.h"
#include "kernel_test.h"

#define CANARY 64

static float *filled(int64_t count, float value)
{
    float *out = allocate((size_t)count * sizeof *out);
    for (int64_t i = 0; i < count; i++) {
        out[i] = value;
    }
    return out;
}

/* What an output holds before: NaN shows what is read or left out, 0.5 is added to. */
static float *output_before(int64_t count, float beta)
{
    return filled(count, beta == 0.0f ? NAN : 0.5f);
}

/* Numbers that bfloat16 has, so that either type can be given the same. */
static float *random_rounded(int64_t count, uint64_t seed)
{
    float *x = random_floats(count, seed);
    for (int64_t i = 0; i < count; i++) {
        x[i] = ls__bfloat16_widen(ls__bfloat16_round(x[i]));
    }
    return x;
}

/* In place, in the memory of floats; and back. */
static void make_halves(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        ((ls__bfloat16 *)(void *)x)[i] = ls__bfloat16_round(x[i]);
    }
}

static void make_floats(float *x, int64_t count)
{
    for (int64_t i = count - 1; i >= 0; i--) {
        x[i] = ls__bfloat16_widen(((const ls__bfloat16 *)(const void *)x)[i]);
    }
}

static float *copied(const float *x, int64_t count, bool half)
{
    float *out = allocate((size_t)count * sizeof *out);
    memcpy(out, x, (size_t)count * sizeof *out);
    if (half) {
        make_halves(out, count);
    }
    return out;
}

/* ---- pooling ------------------------------------------------------------------------------ */

static const ls__pool2d pool_cases[] = {
    {.batch = 1, .channels = 1, .height = 1, .width = 1, .kernel = {1, 1}, .stride = {1, 1}},
    {.batch = 2,
     .channels = 3,
     .height = 7,
     .width = 9,
     .kernel = {3, 2},
     .stride = {2, 1},
     .padding = {1, 1}},
    {.batch = 1,
     .channels = 2,
     .height = 9,
     .width = 151,
     .kernel = {3, 3},
     .stride = {2, 2},
     .padding = {1, 1},
     .count_include_pad = true},
    {.batch = 1,
     .channels = 2,
     .height = 8,
     .width = 200,
     .kernel = {2, 5},
     .stride = {2, 3},
     .count_include_pad = true},
    {.batch = 2, .channels = 2, .height = 11, .width = 5, .kernel = {11, 5}, .stride = {1, 1}},
    {.batch = 3, .channels = 17, .height = 40, .width = 40, .kernel = {2, 2}, .stride = {2, 2}},
    {.batch = 2,
     .channels = 5,
     .height = 7,
     .width = 10,
     .out_height = 3,
     .out_width = 4,
     .adaptive = true},
    {.batch = 2,
     .channels = 5,
     .height = 2,
     .width = 3,
     .out_height = 5,
     .out_width = 3,
     .adaptive = true},
    {.batch = 2,
     .channels = 64,
     .height = 30,
     .width = 31,
     .out_height = 1,
     .out_width = 1,
     .adaptive = true},
};

static ls__pool2d pool_of(const ls__pool2d *t)
{
    ls__pool2d p = *t;
    if (!p.adaptive) {
        p.out_height = (p.height + 2 * p.padding[0] - p.kernel[0]) / p.stride[0] + 1;
        p.out_width = (p.width + 2 * p.padding[1] - p.kernel[1]) / p.stride[1] + 1;
    }
    return p;
}

typedef struct pooled {
    float *y, *dx;
    int32_t *index;
} pooled;

static pooled run_pool(const ls__kernels *k, const ls__pool2d *p, bool max, const float *wide_x,
                       const float *wide_dy, float beta)
{
    int64_t ins = p->batch * p->channels * p->height * p->width;
    int64_t outs = p->batch * p->channels * p->out_height * p->out_width;
    float *x = copied(wide_x, ins, p->half), *dy = copied(wide_dy, outs, p->half);
    pooled out = {output_before(outs, 0.0f), output_before(ins, beta), NULL};
    out.index = allocate((size_t)outs * sizeof *out.index);
    memset(out.index, 0xff, (size_t)outs * sizeof *out.index);
    if (p->half) {
        make_halves(out.y, outs), make_halves(out.dx, ins);
    }
    if (max) {
        k->max_pool2d(p, out.y, NULL, x, NULL);
        k->max_pool2d(p, out.y, out.index, x, NULL);
        k->max_pool2d_backward(p, out.dx, beta, dy, out.index, NULL);
    } else {
        k->avg_pool2d(p, out.y, x, NULL);
        k->avg_pool2d_backward(p, out.dx, beta, dy, NULL);
    }
    if (p->half) {
        make_floats(out.y, outs), make_floats(out.dx, ins);
    }
    free(x), free(dy);
    return out;
}

static void pooled_free(pooled *p)
{
    free(p->y), free(p->dx), free(p->index);
}

/* Few values, so that many are equal; some NaN and some infinite. */
static float *images_with_ties(int64_t count)
{
    float *x = random_floats(count, 5);
    for (int64_t i = 0; i < count; i++) {
        x[i] = floorf(4.0f * x[i]);
        x[i] = i % 53 == 7 ? NAN : x[i];
        x[i] = i % 31 < 6 ? -INFINITY : x[i];
    }
    return x;
}

typedef struct pool_check {
    const float *x, *dy;
    float beta;
    bool max;
    const pooled *want;
} pool_check;

static void compare_pool(const ls__kernels *k, const ls__pool2d *p, const pool_check *c)
{
    int64_t ins = p->batch * p->channels * p->height * p->width;
    int64_t outs = p->batch * p->channels * p->out_height * p->out_width;
    double rtol = p->half ? 0x1p-8 : 1e-5;
    pooled got = run_pool(k, p, c->max, c->x, c->dy, c->beta);
    check_close("pooled", got.y, c->want->y, outs, rtol, c->max ? 0.0 : 3e-6);
    check_close("pool gradient", got.dx, c->want->dx, ins, rtol, 3e-6);
    CHECK(!c->max || memcmp(got.index, c->want->index, (size_t)outs * 4) == 0);
    pooled_free(&got);
}

/* Also of bfloat16, which has these numbers. */
static void check_pool(const ls__pool2d *p, bool max, const float *x, float beta)
{
    ls__pool2d half = *p;
    half.half = true;
    float *dy = random_rounded(p->batch * p->channels * p->out_height * p->out_width, 6);
    pooled want = run_pool(ls__kernels_ref(), p, max, x, dy, beta);
    const pool_check check = {x, dy, beta, max, &want};
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        for (int threads = 1; variant(isa) != NULL && threads <= 3; threads++) {
            ls__kernels_set_threads(threads);
            compare_pool(variant(isa), p, &check);
            compare_pool(variant(isa), &half, &check);
        }
    }
    ls__kernels_set_threads(1);
    compare_pool(ls__kernels_ref(), &half, &check);
    pooled_free(&want);
    free(dy);
}

TEST(pooling_agrees_with_the_plain_twin)
{
    for (size_t i = 0; i < sizeof pool_cases / sizeof *pool_cases; i++) {
        for (int variation = 0; variation < 2; variation++) {
            ls__pool2d p = pool_of(&pool_cases[i]);
            int64_t ins = p.batch * p.channels * p.height * p.width;
            float *x = random_rounded(ins, 7), *ties = images_with_ties(ins);
            float beta = variation == 0 ? 0.0f : 1.0f;
            check_pool(&p, false, x, beta);
            if (!p.adaptive) {
                check_pool(&p, true, x, beta);
                check_pool(&p, true, ties, beta);
            }
            free(x), free(ties);
        }
    }
}

/* ---- batch norm --------------------------------------------------------------------------- */

typedef struct normed {
    float *stats, *y, *dx, *dwb, *dr; /* stats: mean, variance, rstd; dwb: dw, db */
    float *over;  /* dx with sums that are given, over three times as many elements */
    float *alone; /* dw, db, each by a pass of its own */
} normed;

/* Backward of x alone, as of a batch of which other elements lie elsewhere. */
static void run_over(const ls__kernels *k, ls__batch_norm n, float *dx)
{
    double *sums = allocate((size_t)(2 * n.channels) * sizeof *sums);
    for (int64_t i = 0; i < 2 * n.channels; i++) {
        sums[i] = (double)(i % 5) - 1.5;
    }
    n.sums = sums;
    n.count = 3 * n.batch * n.pixels;
    n.dx = dx;
    n.dw = n.db = n.dresidual = NULL;
    k->batch_norm_backward(&n, NULL);
    free(sums);
}

/* Only dw is asked for, then only db. */
static void run_alone(const ls__kernels *k, ls__batch_norm n, float *dwb)
{
    n.dx = n.dresidual = n.db = NULL;
    n.dw = dwb;
    k->batch_norm_backward(&n, NULL);
    n.dw = NULL;
    n.db = dwb + n.channels;
    k->batch_norm_backward(&n, NULL);
}

static normed run_norm(const ls__kernels *k, ls__batch_norm n, const float *wb)
{
    int64_t c = n.channels, numel = n.batch * c * n.pixels;
    normed out = {filled(3 * c, NAN),
                  filled(numel, NAN),
                  output_before(numel, n.beta_x),
                  output_before(2 * c, n.beta_w),
                  output_before(numel, n.beta_residual),
                  output_before(numel, n.beta_x),
                  output_before(2 * c, n.beta_w)};
    float *x = copied(n.x, numel, n.half), *dy = copied(n.dy, numel, n.half);
    float *cut = copied(n.out, numel, n.half);
    float *residual = n.residual != NULL ? copied(n.residual, numel, n.half) : NULL;
    float *of_type[] = {out.y, out.dx, out.dr, out.over};
    for (int i = 0; n.half && i < 4; i++) {
        make_halves(of_type[i], numel);
    }
    n.x = x, n.dy = dy, n.out = cut, n.residual = residual;
    size_t bytes = k->batch_norm_workspace(&n);
    unsigned char *work = allocate(bytes + CANARY);
    memset(work, 0xff, bytes + CANARY); /* NaN */
    n.workspace = work;
    k->batch_norm_stats(&n, out.stats, out.stats + c, NULL);
    k->batch_norm_rstd(out.stats + 2 * c, out.stats + c, c, 1e-3, NULL);
    n.mean = out.stats;
    n.rstd = out.stats + 2 * c;
    n.w = wb;
    n.b = wb != NULL ? wb + c : NULL;
    n.y = out.y;
    n.dx = out.dx;
    n.dw = out.dwb;
    n.db = out.dwb + c;
    n.dresidual = n.residual != NULL ? out.dr : NULL;
    k->batch_norm(&n, NULL);
    k->batch_norm_backward(&n, NULL);
    run_over(k, n, out.over);
    run_alone(k, n, out.alone);
    for (int i = 0; i < CANARY; i++) {
        CHECK_INT(work[bytes + (size_t)i], 0xff);
    }
    for (int i = 0; n.half && i < 4; i++) {
        make_floats(of_type[i], numel);
    }
    free(work), free(x), free(dy), free(cut), free(residual);
    return out;
}

static void normed_free(normed *n)
{
    free(n->stats), free(n->y), free(n->dx), free(n->dwb), free(n->dr), free(n->over),
        free(n->alone);
}

static void compare_norm(const ls__batch_norm *n, const normed *got, const normed *want)
{
    int64_t c = n->channels, count = n->batch * n->pixels;
    double atol = 4e-6 * sqrt((double)count), rtol = n->half ? 0x1p-8 : 0.0;
    check_close("statistics", got->stats, want->stats, 3 * c, 1e-5, 1e-6);
    check_close("normalised", got->y, want->y, c * count, 1e-5 + rtol, 2e-5);
    check_close("gradient of x", got->dx, want->dx, c * count, 1e-4 + rtol, 1e-4);
    check_close("gradient of x, sums given", got->over, want->over, c * count, 1e-4 + rtol, 1e-4);
    check_close("gradient of weights", got->dwb, want->dwb, 2 * c, 1e-5, atol * 32);
    check_same_bits("gradient of weights, each alone", got->alone, got->dwb, 2 * c);
    if (n->residual != NULL) {
        check_close("gradient of the residual", got->dr, want->dr, c * count, 1e-6 + rtol, 1e-6);
    }
}

static void check_variant(const ls__kernels *k, const ls__batch_norm *n, const float *wb,
                          const normed *want)
{
    int64_t c = n->channels, count = n->batch * n->pixels;
    ls__kernels_set_threads(1);
    normed one = run_norm(k, *n, wb);
    ls__kernels_set_threads(3);
    normed got = run_norm(k, *n, wb);
    compare_norm(n, &got, want);
    if (n->residual != NULL) {
        check_same_bits("gradient of the residual, threads", got.dr, one.dr, c * count);
    }
    check_same_bits("normalised, threads", got.y, one.y, c * count);
    check_same_bits("gradient, threads", got.dx, one.dx, c * count);
    check_same_bits("gradient of weights, threads", got.dwb, one.dwb, 2 * c);
    normed_free(&one);
    normed_free(&got);
    ls__kernels_set_threads(1);
}

/* Also of bfloat16, which has these numbers. */
static void check_norm(const ls__batch_norm *n, const float *wb)
{
    normed want = run_norm(ls__kernels_ref(), *n, wb);
    ls__batch_norm half = *n;
    half.half = true;
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        if (variant(isa) != NULL) {
            check_variant(variant(isa), n, wb, &want);
            check_variant(variant(isa), &half, wb, &want);
        }
    }
    normed plain = run_norm(ls__kernels_ref(), half, wb);
    compare_norm(&half, &plain, &want);
    normed_free(&plain);
    normed_free(&want);
}

TEST(batch_norm_agrees_with_the_plain_twin)
{
    const int64_t shapes[][3] = {{2, 1, 1},    {3, 5, 7},    {4, 17, 49},  {33, 3, 1},
                                 {2, 3, 5000}, {4, 24, 900}, {3, 64, 700}, {2, 300, 130}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int variation = 0; variation < 32; variation++) {
            ls__batch_norm n = {
                .batch = shapes[i][0], .channels = shapes[i][1], .pixels = shapes[i][2]};
            float *x = random_rounded(n.batch * n.channels * n.pixels, 8);
            float *dy = random_rounded(n.batch * n.channels * n.pixels, 9);
            float *wb = random_rounded(2 * n.channels, 10);
            float *residual = random_rounded(n.batch * n.channels * n.pixels, 11);
            float *out = random_rounded(n.batch * n.channels * n.pixels, 12);
            out[0] = 0.0f;
            n.x = x;
            n.dy = dy;
            n.residual = variation & 8 ? residual : NULL;
            n.relu = (variation & 16) != 0;
            n.out = out; /* what was cut off is given, so that no rounding decides it */
            n.training = (variation & 1) != 0;
            n.beta_x = n.beta_w = n.beta_b = n.beta_residual = variation & 2 ? 1.0f : 0.0f;
            check_norm(&n, variation & 4 ? wb : NULL);
            free(x), free(dy), free(wb), free(residual), free(out);
        }
    }
}

/* Values far from zero: a variance made of the mean of squares would be nothing but rounding. */
TEST(variances_of_large_values_are_exact)
{
    float x[512], mean = 0.0f, variance = 0.0f;
    for (int i = 0; i < 512; i++) {
        x[i] = 4096.0f + (float)(i % 2);
    }
    double work[256];
    ls__batch_norm n = {.batch = 4, .channels = 1, .pixels = 128, .x = x, .workspace = work};
    for (int isa = 0; isa <= LS__ISA_COUNT; isa++) {
        const ls__kernels *k = isa == LS__ISA_COUNT ? ls__kernels_ref() : variant(isa);
        if (k != NULL) {
            CHECK(k->batch_norm_workspace(&n) <= sizeof work);
            k->batch_norm_stats(&n, &mean, &variance, NULL);
            CHECK_NEAR(mean, 4096.5, 0.0);
            CHECK_NEAR(variance, 0.25, 0.0);
        }
    }
}

TEST_MAIN
