/* The kernels of images over shapes, layouts and beta: the fast tables and the built-in convolution
 * against the plain twin, each variant this processor runs, one thread against two and three to the
 * bit, and nothing written beyond the workspace.
 *
 * Inputs lie within [-1,1]; a sum of n terms in float32, in whatever order, is off by less than
 * some 1e-7 sqrt(n), so atol is 2e-6 sqrt(n). */
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

/* ---- convolution -------------------------------------------------------------------------- */

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

static conv_inputs conv_inputs_new(const ls__conv2d *c)
{
    conv_inputs in = {.x = c->batch * c->in * c->height * c->width,
                      .w = c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1],
                      .y = c->batch * c->out * c->out_height * c->out_width};
    in.data = (ls__conv2d_data){.x = random_floats(in.x, 1),
                                .w = random_floats(in.w, 2),
                                .dy = random_floats(in.y, 3),
                                .b = random_floats(c->out, 4)};
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

/* `builtin`: that of the variant instead of the table's. The result is the caller's to free. */
static float *run_conv(const ls__kernels *k, const ls__variant *builtin, const ls__conv2d *c,
                       ls__conv2d_pass pass, const conv_inputs *in, float beta)
{
    ls__conv2d_data d = in->data;
    d.b = pass == LS__CONV2D_FORWARD && c->batch % 2 == 0 ? d.b : NULL;
    d.relu = d.relu && pass == LS__CONV2D_FORWARD;
    d.beta = beta;
    size_t bytes = k->conv2d_workspace(c, pass, &d);
    unsigned char *work = allocate(bytes + CANARY);
    memset(work, 0xff, bytes + CANARY); /* NaN */
    d.out = output_before(outputs_of(in, pass), beta);
    d.workspace = work;
    if (builtin != NULL) {
        builtin->conv2d_builtin(c, pass, &d);
    } else {
        k->conv2d(c, pass, &d, NULL);
    }
    for (int i = 0; i < CANARY; i++) {
        CHECK_INT(work[bytes + (size_t)i], 0xff);
    }
    free(work);
    return d.out;
}

static double terms_of(const ls__conv2d *c, ls__conv2d_pass pass)
{
    double taps = (double)(c->kernel[0] * c->kernel[1]);
    const double terms[] = {(double)(c->in / c->groups) * taps, (double)(c->out / c->groups) * taps,
                            (double)(c->batch * c->out_height * c->out_width)};
    return terms[pass];
}

static void check_conv(const char *what, const ls__conv2d *c, ls__conv2d_pass pass,
                       const conv_inputs *in, float beta, const float *want)
{
    double atol = 2e-6 * sqrt(terms_of(c, pass));
    int64_t count = outputs_of(in, pass);
    for (int isa = 0; isa <= LS__ISA_COUNT; isa++) { /* the last: the table as it is used */
        const ls__variant *builtin = isa < LS__ISA_COUNT ? ls__variant_of_isa((ls__isa)isa) : NULL;
        const ls__kernels *k = isa < LS__ISA_COUNT ? variant(isa) : ls__kernels_cpu();
        if (k == NULL) {
            continue;
        }
        conv_inputs alone = *in;
        alone.data.plans = NULL;
        ls__kernels_set_threads(1);
        float *got = run_conv(k, builtin, c, pass, &alone, beta);
        check_close(what, got, want, count, 1e-5, atol);
        for (int run = 0; run < 4; run++) { /* 1, 1, 2 and 3 threads: a plan made, and met again */
            ls__kernels_set_threads(run > 1 ? run : 1);
            float *again = run_conv(k, builtin, c, pass, in, beta);
            check_same_bits(what, again, got, count);
            free(again);
        }
        free(got);
    }
    ls__kernels_set_threads(1);
}

static void check_pass(const conv_case *t, ls__conv2d_pass pass, ls__plans *plans)
{
    ls__conv2d c = conv_of(t);
    conv_inputs in = conv_inputs_new(&c);
    in.data.plans = plans;
    for (int variation = 0; variation < 2; variation++) { /* with ReLU; adding to what is there */
        char what[160];
        float beta = pass == LS__CONV2D_FORWARD ? 0.0f : (float)variation;
        in.data.relu = variation == 1;
        snprintf(what, sizeof what,
                 "pass %d of [%lld,%lld,%lld,%lld], %lld outputs, "
                 "variation %d",
                 (int)pass, (long long)t->n, (long long)t->c, (long long)t->h, (long long)t->w,
                 (long long)t->o, variation);
        float *want = run_conv(ls__kernels_ref(), NULL, &c, pass, &in, beta);
        check_conv(what, &c, pass, &in, beta, want);
        free(want);
    }
    conv_inputs_free(&in);
}

TEST(convolutions_agree_with_the_plain_twin_whatever_the_threads_and_plans)
{
    ls__plans *plans = ls__plans_new(ls__env_posix());
    CHECK(plans != NULL);
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) {
        for (int pass = LS__CONV2D_FORWARD; pass <= LS__CONV2D_BACKWARD_W; pass++) {
            check_pass(&conv_cases[i], (ls__conv2d_pass)pass, plans);
        }
    }
    ls__plans_free(plans);
}

/* A post-op of a library may lose it, and a training that has failed would go on. */
TEST(relu_after_a_convolution_keeps_nan)
{
    const conv_case shapes[] = {{2, 16, 8, 8, 32, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                {2, 16, 8, 8, 32, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}}};
    for (int isa = 0; isa <= LS__ISA_COUNT + 1; isa++) {
        const ls__kernels *k = isa < LS__ISA_COUNT    ? variant(isa)
                               : isa == LS__ISA_COUNT ? ls__kernels_cpu()
                                                      : ls__kernels_ref();
        for (int i = 0; k != NULL && i < 2; i++) {
            ls__conv2d c = conv_of(&shapes[i]);
            conv_inputs in = conv_inputs_new(&c);
            ((float *)(uintptr_t)in.data.b)[3] = NAN;
            ((float *)(uintptr_t)in.data.b)[4] = -100.0f;
            in.data.relu = true;
            float *y = run_conv(k, NULL, &c, LS__CONV2D_FORWARD, &in, 0.0f);
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

static ls__pool2d pool_of(const ls__pool2d *t, ls__image_layout layout)
{
    ls__pool2d p = *t;
    p.layout = layout;
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

static pooled run_pool(const ls__kernels *k, const ls__pool2d *p, bool max, const float *x,
                       const float *dy, float beta)
{
    int64_t ins = p->batch * p->channels * p->height * p->width;
    int64_t outs = p->batch * p->channels * p->out_height * p->out_width;
    pooled out = {output_before(outs, 0.0f), output_before(ins, beta), NULL};
    out.index = allocate((size_t)outs * sizeof *out.index);
    memset(out.index, 0xff, (size_t)outs * sizeof *out.index);
    if (max) {
        k->max_pool2d(p, out.y, NULL, x, NULL);
        k->max_pool2d(p, out.y, out.index, x, NULL);
        k->max_pool2d_backward(p, out.dx, beta, dy, out.index, NULL);
    } else {
        k->avg_pool2d(p, out.y, x, NULL);
        k->avg_pool2d_backward(p, out.dx, beta, dy, NULL);
    }
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

static void check_pool(const ls__pool2d *p, bool max, const float *x, float beta)
{
    int64_t ins = p->batch * p->channels * p->height * p->width;
    int64_t outs = p->batch * p->channels * p->out_height * p->out_width;
    float *dy = random_floats(outs, 6);
    pooled want = run_pool(ls__kernels_ref(), p, max, x, dy, beta);
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        for (int threads = 1; variant(isa) != NULL && threads <= 3; threads++) {
            ls__kernels_set_threads(threads);
            pooled got = run_pool(variant(isa), p, max, x, dy, beta);
            check_close("pooled", got.y, want.y, outs, 1e-5, max ? 0.0 : 3e-6);
            check_close("pool gradient", got.dx, want.dx, ins, 1e-5, 3e-6);
            CHECK(!max || memcmp(got.index, want.index, (size_t)outs * 4) == 0);
            pooled_free(&got);
        }
    }
    ls__kernels_set_threads(1);
    pooled_free(&want);
    free(dy);
}

TEST(pooling_agrees_with_the_plain_twin)
{
    for (size_t i = 0; i < sizeof pool_cases / sizeof *pool_cases; i++) {
        for (int variation = 0; variation < 4; variation++) {
            ls__pool2d p = pool_of(&pool_cases[i], variation % 2 == 0 ? LS__NCHW : LS__NHWC);
            int64_t ins = p.batch * p.channels * p.height * p.width;
            float *x = random_floats(ins, 7), *ties = images_with_ties(ins);
            float beta = variation < 2 ? 0.0f : 1.0f;
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
} normed;

static normed run_norm(const ls__kernels *k, ls__batch_norm n, const float *wb)
{
    int64_t c = n.channels, numel = n.batch * c * n.pixels;
    normed out = {filled(3 * c, NAN), filled(numel, NAN), output_before(numel, n.beta_x),
                  output_before(2 * c, n.beta_w), output_before(numel, n.beta_residual)};
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
    for (int i = 0; i < CANARY; i++) {
        CHECK_INT(work[bytes + (size_t)i], 0xff);
    }
    free(work);
    return out;
}

static void normed_free(normed *n)
{
    free(n->stats), free(n->y), free(n->dx), free(n->dwb), free(n->dr);
}

static void check_norm(const ls__batch_norm *n, const float *wb)
{
    int64_t c = n->channels, count = n->batch * n->pixels;
    double atol = 4e-6 * sqrt((double)count);
    normed want = run_norm(ls__kernels_ref(), *n, wb);
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        if (variant(isa) == NULL) {
            continue;
        }
        ls__kernels_set_threads(1);
        normed one = run_norm(variant(isa), *n, wb);
        ls__kernels_set_threads(3);
        normed got = run_norm(variant(isa), *n, wb);
        check_close("statistics", got.stats, want.stats, 3 * c, 1e-5, 1e-6);
        check_close("normalised", got.y, want.y, c * count, 1e-5, 2e-5);
        check_close("gradient of x", got.dx, want.dx, c * count, 1e-4, 1e-4);
        check_close("gradient of weights", got.dwb, want.dwb, 2 * c, 1e-5, atol * 32);
        if (n->residual != NULL) {
            check_close("gradient of the residual", got.dr, want.dr, c * count, 1e-6, 1e-6);
            check_same_bits("gradient of the residual, threads", got.dr, one.dr, c * count);
        }
        check_same_bits("normalised, threads", got.y, one.y, c * count);
        check_same_bits("gradient, threads", got.dx, one.dx, c * count);
        check_same_bits("gradient of weights, threads", got.dwb, one.dwb, 2 * c);
        normed_free(&one);
        normed_free(&got);
    }
    ls__kernels_set_threads(1);
    normed_free(&want);
}

TEST(batch_norm_agrees_with_the_plain_twin)
{
    const int64_t shapes[][3] = {{2, 1, 1},    {3, 5, 7},    {4, 17, 49},  {33, 3, 1},
                                 {2, 3, 5000}, {4, 24, 900}, {3, 64, 700}, {2, 300, 130}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int variation = 0; variation < 64; variation++) {
            ls__batch_norm n = {
                .batch = shapes[i][0], .channels = shapes[i][1], .pixels = shapes[i][2]};
            float *x = random_floats(n.batch * n.channels * n.pixels, 8);
            float *dy = random_floats(n.batch * n.channels * n.pixels, 9);
            float *wb = random_floats(2 * n.channels, 10);
            float *residual = random_floats(n.batch * n.channels * n.pixels, 11);
            float *out = random_floats(n.batch * n.channels * n.pixels, 12);
            out[0] = 0.0f;
            n.x = x;
            n.dy = dy;
            n.residual = variation & 16 ? residual : NULL;
            n.relu = (variation & 32) != 0;
            n.out = out; /* what was cut off is given, so that no rounding decides it */
            n.layout = variation & 1 ? LS__NHWC : LS__NCHW;
            n.training = (variation & 2) != 0;
            n.beta_x = n.beta_w = n.beta_b = n.beta_residual = variation & 4 ? 1.0f : 0.0f;
            check_norm(&n, variation & 8 ? wb : NULL);
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
            k->batch_norm_stats(&n, &mean, &variance, NULL);
            CHECK_NEAR(mean, 4096.5, 0.0);
            CHECK_NEAR(variance, 0.25, 0.0);
            n.layout = LS__NHWC;
            CHECK(k->batch_norm_workspace(&n) <= sizeof work);
            k->batch_norm_stats(&n, &mean, &variance, NULL);
            CHECK_NEAR(mean, 4096.5, 0.0);
            CHECK_NEAR(variance, 0.25, 0.0);
            n.layout = LS__NCHW;
        }
    }
}

TEST_MAIN
