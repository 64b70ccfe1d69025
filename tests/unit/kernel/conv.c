/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions over shapes, passes, types and what is added: the fast tables, the built-in one and
 * the one that widens bfloat16 against the plain twin, each variant this processor runs, one thread
 * against two and three to the bit, and nothing written beyond the workspace.
 *
 * Inputs lie within [-1,1]; a sum of n terms in float32, in whatever order, is off by less than
 * some 1e-7 sqrt(n), so atol is 2e-6 sqrt(n). Of bfloat16 the products are exact; a result of
 * bfloat16 may land on either side of a rounding. */
#include "base/half.h"
#include "kernel_test.h"

#define CANARY 64
#ifdef TEST_CUDA
#define THREADED_RUNS 1 /* it has no threads */
#else
#define THREADED_RUNS 4 /* 1, 1, 2 and 3 threads: a plan made, and met again */
#endif
#ifdef TEST_CUDNN /* sums of bfloat16 operands are rounded to it, whatever follows */
#define ROUNDS_SUMS true
#else
#define ROUNDS_SUMS false
#endif

/* Elements of either type. */
static void *filled(int64_t count, float value, bool half)
{
    void *out = allocate((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        if (half) {
            ((ls__bfloat16 *)out)[i] = ls__bfloat16_round(value);
        } else {
            ((float *)out)[i] = value;
        }
    }
    return out;
}

static void *random_inputs(int64_t count, uint64_t seed, bool half)
{
    float *wide = random_floats(count, seed);
    if (!half) {
        return wide;
    }
    ls__bfloat16 *out = allocate((size_t)count * sizeof *out);
    for (int64_t i = 0; i < count; i++) {
        out[i] = ls__bfloat16_round(wide[i]);
    }
    free(wide);
    return out;
}

typedef struct conv_case {
    int64_t n, c, h, w, o, groups, kernel[2], stride[2], padding[2], dilation[2];
} conv_case;

static const conv_case conv_cases[] = {
    {1, 1, 1, 1, 1, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {2, 3, 5, 7, 4, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {1, 3, 11, 9, 5, 1, {5, 3}, {2, 3}, {2, 0}, {1, 1}},
    {2, 4, 8, 8, 6, 2, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {3, 6, 7, 7, 6, 6, {3, 3}, {1, 1}, {1, 1}, {1, 1}}, /* a group a channel */
    {2, 32, 6, 5, 64, 32, {3, 2}, {2, 1}, {1, 1}, {1, 1}},
    {2, 5, 9, 10, 7, 1, {3, 3}, {1, 2}, {2, 3}, {2, 3}},
    {2, 16, 6, 6, 32, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {1, 8, 7, 6, 16, 1, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {1, 2, 3, 3, 3, 1, {1, 1}, {1, 1}, {2, 1}, {1, 1}}, /* outputs that see padding only */
    {2, 3, 17, 19, 16, 1, {7, 7}, {2, 2}, {3, 3}, {1, 1}},
    {1, 4, 3, 4, 8, 1, {3, 4}, {1, 1}, {0, 0}, {1, 1}}, /* one output pixel */
    {1, 1, 4, 4, 2, 1, {2, 2}, {3, 3}, {0, 0}, {1, 1}}, /* pixels that no window meets */
    {17, 16, 4, 4, 64, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {16, 16, 16, 16, 64, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}}, /* cut into parts in all passes */
    {3, 128, 4, 3, 256, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}},  /* to w by channels */
    {1, 256, 2, 1, 512, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}},  /* large weights, few pixels */
};

static ls__conv2d conv_of(const conv_case *t)
{
    ls__conv2d c = {
        .batch = t->n, .in = t->c, .height = t->h, .width = t->w, .groups = t->groups, .out = t->o};
    int64_t outs[2];
    for (int i = 0; i < 2; i++) {
        c.kernel[i] = t->kernel[i];
        c.stride[i] = t->stride[i];
        c.padding[i] = t->padding[i];
        c.dilation[i] = t->dilation[i];
        int64_t window = t->dilation[i] * (t->kernel[i] - 1) + 1;
        outs[i] = ((i == 0 ? t->h : t->w) + 2 * t->padding[i] - window) / t->stride[i] + 1;
    }
    c.out_height = outs[0];
    c.out_width = outs[1];
    return c;
}

typedef struct conv_inputs {
    int64_t x, w, y; /* elements */
    ls__conv2d_data data;
} conv_inputs;

static conv_inputs conv_inputs_new(const ls__conv2d *c, bool half)
{
    conv_inputs in = {.x = c->batch * c->in * c->height * c->width,
                      .w = c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1],
                      .y = c->batch * c->out * c->out_height * c->out_width};
    in.data = (ls__conv2d_data){.x = random_inputs(in.x, 1, half),
                                .w = random_inputs(in.w, 2, half),
                                .dy = random_inputs(in.y, 3, half),
                                .b = random_floats(c->out, 4),
                                .half = half};
    return in;
}

static void conv_inputs_free(conv_inputs *in)
{
    free((void *)(uintptr_t)in->data.x), free((void *)(uintptr_t)in->data.w);
    free((void *)(uintptr_t)in->data.dy), free((void *)(uintptr_t)in->data.b);
}

static int64_t outputs_of(const conv_inputs *in, ls__conv2d_pass pass)
{
    const int64_t count[] = {in->y, in->x, in->w};
    return count[pass];
}

typedef struct way { /* of computing it */
    const ls__kernels *table;
    const ls__variant *builtin; /* NULL: the table's, else what it has without a library */
} way;

static size_t workspace_of(const way *by, const ls__conv2d *c, ls__conv2d_pass pass,
                           const ls__conv2d_data *d)
{
    return d->half && by->builtin != NULL ? by->builtin->conv2d_widened_workspace(c, pass, d)
                                          : by->table->conv2d_workspace(c, pass, d);
}

/* The result, widened, is the caller's to free. What is there before: NaN shows what is read or
 * left out, 0.5 is added to. */
static float *run_conv(const way *by, const ls__conv2d *c, ls__conv2d_pass pass,
                       const conv_inputs *in, float beta)
{
    ls__conv2d_data d = in->data;
    int64_t count = outputs_of(in, pass);
    d.b = pass == LS__CONV2D_FORWARD && c->batch % 2 == 0 ? d.b : NULL;
    d.relu = d.relu && pass == LS__CONV2D_FORWARD;
    d.beta = beta;
    size_t bytes = workspace_of(by, c, pass, &d);
    unsigned char *work = allocate(bytes + CANARY);
    memset(work, 0xff, bytes + CANARY); /* NaN */
    d.out = filled(count, beta == 0.0f ? NAN : 0.5f, d.half_out);
    d.workspace = work;
    if (by->builtin == NULL) {
        by->table->conv2d(c, pass, &d, NULL);
    } else if (d.half) {
        by->builtin->conv2d_widened(c, pass, &d, NULL);
    } else {
        by->builtin->conv2d_builtin(c, pass, &d);
    }
    for (int i = 0; i < CANARY; i++) {
        CHECK_INT(work[bytes + (size_t)i], 0xff);
    }
    free(work);
    if (!d.half_out) {
        return d.out;
    }
    float *wide = allocate((size_t)count * sizeof *wide);
    ls__kernels_ref()->bfloat16_widen(wide, d.out, count, 0.0f, NULL);
    free(d.out);
    return wide;
}

static double terms_of(const ls__conv2d *c, ls__conv2d_pass pass)
{
    double taps = (double)(c->kernel[0] * c->kernel[1]);
    const double terms[] = {(double)(c->in / c->groups) * taps, (double)(c->out / c->groups) * taps,
                            (double)(c->batch * c->out_height * c->out_width)};
    return terms[pass];
}

static void check_way(const char *what, const way *by, const ls__conv2d *c, ls__conv2d_pass pass,
                      const conv_inputs *in, float beta, const float *want)
{
    const bool rounds = ROUNDS_SUMS && in->data.half, half_out = in->data.half_out || rounds;
    const bool adds = beta != 0.0f || (pass == LS__CONV2D_FORWARD && c->batch % 2 == 0);
    const double of_one = rounds && adds ? 0x1p-8 : 2e-6;
    int64_t count = outputs_of(in, pass);
    conv_inputs alone = *in;
    alone.data.plans = NULL;
    ls__kernels_set_threads(1);
    float *got = run_conv(by, c, pass, &alone, beta);
    check_close(what, got, want, count, half_out ? 0x1p-7 : 1e-5, of_one * sqrt(terms_of(c, pass)));
    for (int run = 0; run < THREADED_RUNS; run++) {
        ls__kernels_set_threads(run > 1 ? run : 1);
        float *again = run_conv(by, c, pass, in, beta);
        check_same_bits(what, again, got, count);
        free(again);
    }
    ls__kernels_set_threads(1);
    free(got);
}

/* All ways there are here. Tables differ in nothing but what a library does not do. */
static void check_conv(const char *what, const ls__conv2d *c, ls__conv2d_pass pass,
                       const conv_inputs *in, float beta, const float *want)
{
    const way used = {ls__kernels_cpu(), NULL};
    check_way(what, &used, c, pass, in, beta, want);
#ifndef TEST_CUDA
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        const way builtin = {variant(isa), ls__variant_of_isa((ls__isa)isa)};
        if (builtin.table != NULL) {
            check_way(what, &builtin, c, pass, in, beta, want);
        }
    }
#endif
}

static void check_pass(const conv_case *t, ls__conv2d_pass pass, ls__plans *plans, bool half)
{
    const way plain = {ls__kernels_ref(), NULL};
    ls__conv2d c = conv_of(t);
    conv_inputs in = conv_inputs_new(&c, half);
    in.data.plans = plans;
    for (int variation = 0; variation < 2; variation++) { /* with ReLU; adding to what is there */
        char what[160];
        float beta = pass == LS__CONV2D_FORWARD ? 0.0f : (float)variation;
        in.data.relu = variation == 1;
        in.data.half_out = false;
        snprintf(what, sizeof what,
                 "pass %d of [%lld,%lld,%lld,%lld], %lld outputs, half %d, variation %d", (int)pass,
                 (long long)t->n, (long long)t->c, (long long)t->h, (long long)t->w,
                 (long long)t->o, half, variation);
        float *want = run_conv(&plain, &c, pass, &in, beta);
        for (int out = 0; out <= half; out++) {
            in.data.half_out = out == 1;
            check_conv(what, &c, pass, &in, beta, want);
        }
        free(want);
    }
    conv_inputs_free(&in);
}

/* On the CUDA device those that take less than a second. */
static bool is_tested(const conv_case *t)
{
#if defined(OWN_CONVOLUTIONS)
    const double products_max = 5e5; /* on an emulated grid */
#elif defined(TEST_CUDA)
    const double products_max = 3e6;
#else
    const double products_max = INFINITY;
#endif
    const ls__conv2d c = conv_of(t);
    const double outs = terms_of(&c, LS__CONV2D_BACKWARD_W) * (double)c.out;
    return outs * terms_of(&c, LS__CONV2D_FORWARD) < products_max || getenv("TEST_LONG") != NULL;
}

static void check_all(bool half)
{
    ls__plans *plans = ls__plans_new(ls__env_posix());
    CHECK(plans != NULL);
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) {
        for (int pass = LS__CONV2D_FORWARD;
             is_tested(&conv_cases[i]) && pass <= LS__CONV2D_BACKWARD_W; pass++) {
            check_pass(&conv_cases[i], (ls__conv2d_pass)pass, plans, half);
        }
    }
    ls__plans_free(plans);
}

TEST(convolutions_agree_with_the_plain_twin_whatever_the_threads_and_plans)
{
    check_all(false);
}

TEST(convolutions_of_bfloat16_agree_with_the_plain_twin_whatever_the_threads_and_plans)
{
    check_all(true);
}

/* A post-op of a library may lose it, and a training that has failed would go on. */
TEST(relu_after_a_convolution_keeps_nan)
{
    const conv_case shapes[] = {{2, 16, 8, 8, 32, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                {2, 16, 8, 8, 32, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}}};
    for (int isa = 0; isa <= LS__ISA_COUNT; isa++) {
        const ls__kernels *k = isa < LS__ISA_COUNT ? variant(isa) : ls__kernels_ref();
        for (int i = 0; k != NULL && i < 4; i++) {
            const way by = {k, NULL};
            ls__conv2d c = conv_of(&shapes[i / 2]);
            conv_inputs in = conv_inputs_new(&c, i % 2 == 1);
            in.data.half_out = in.data.half;
            ((float *)(uintptr_t)in.data.b)[3] = NAN;
            ((float *)(uintptr_t)in.data.b)[4] = -100.0f;
            in.data.relu = true;
            float *y = run_conv(&by, &c, LS__CONV2D_FORWARD, &in, 0.0f);
            CHECK(isnan(y[3]) && y[4] == 0.0f && y[in.y - 28] == 0.0f && isnan(y[in.y - 29]));
            free(y);
            conv_inputs_free(&in);
        }
    }
}

/* A 2 x 2 image, a 2 x 2 kernel, padding 1: each output by hand. */
TEST(a_convolution_by_hand)
{
    const float x[] = {1, 2, 3, 4}, w[] = {10, 20, 30, 40}, b[] = {0.5f};
    const float want[] = {40.5f, 110.5f, 60.5f, 140.5f, 300.5f, 140.5f, 60.5f, 110.5f, 40.5f};
    ls__conv2d c = conv_of(&(conv_case){1, 1, 2, 2, 1, 1, {2, 2}, {1, 1}, {1, 1}, {1, 1}});
    float y[9], dw[4], dx[4];
    ls__kernels_ref()->conv2d(&c, LS__CONV2D_FORWARD,
                              &(ls__conv2d_data){.x = x, .w = w, .b = b, .out = y}, NULL);
    check_same_bits("y", y, want, 9);
    const float dy[] = {1, 0, 0, 0, 0, 0, 0, 0, 2}; /* meets x[0] by w[3], x[3] by w[0] */
    const float want_dw[] = {8, 0, 0, 1}, want_dx[] = {40, 0, 0, 20};
    ls__kernels_ref()->conv2d(&c, LS__CONV2D_BACKWARD_W,
                              &(ls__conv2d_data){.x = x, .dy = dy, .out = dw}, NULL);
    check_same_bits("dw", dw, want_dw, 4);
    ls__kernels_ref()->conv2d(&c, LS__CONV2D_BACKWARD_X,
                              &(ls__conv2d_data){.w = w, .dy = dy, .out = dx}, NULL);
    check_same_bits("dx", dx, want_dx, 4);
}

TEST_BFLOAT16_PATHS

TEST_MAIN
