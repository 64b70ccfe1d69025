/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on images: gradients against central differences for whole, transposed and sliced
 * inputs, on both kernel tables; values and gradients beside PyTorch's; running statistics. */
#include <math.h>
#include <string.h>

#include <lockstep/ops.h>
#include <lockstep/random.h>
#include <lockstep/vision.h>

#include "../unit/tensor/local.h"

typedef enum layout { WHOLE, TRANSPOSED, SLICED, CHANNELS_LAST, LAYOUTS } layout;

typedef ls_tensor *(*op_fn)(ls_tensor **in);

typedef struct op_case {
    const char *name;
    op_fn fn;
    int count;
    ls_shape shape[4];
} op_case;

#define OP(name, expression)                                                                       \
    static ls_tensor *name(ls_tensor **in)                                                         \
    {                                                                                              \
        return expression;                                                                         \
    }
#define CONV(...) LS_OPTIONS(ls_conv2d_options, __VA_ARGS__)
#define POOL(...) LS_OPTIONS(ls_pool2d_options, __VA_ARGS__)

OP(conv, ls_conv2d(in[0], in[1], in[2], NULL))
OP(conv_plain, ls_conv2d(in[0], in[1], NULL, CONV(.stride = {2, 1}, .padding = {1, 2})))
OP(conv_dilated, ls_conv2d(in[0], in[1], in[2], CONV(.dilation = {2, 1}, .padding = {1, 1})))
OP(conv_groups, ls_conv2d(in[0], in[1], in[2], CONV(.groups = 2, .padding = {1, 0})))
OP(conv_twice, ls_conv2d(ls_conv2d(in[0], in[1], NULL, CONV(.padding = {1, 1})), in[1], NULL,
                         CONV(.padding = {1, 1})))
OP(max_pool, ls_max_pool2d(in[0], POOL(.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1})))
OP(avg_pool, ls_avg_pool2d(in[0], POOL(.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1})))
OP(avg_pool_within,
   ls_avg_pool2d(in[0], POOL(.kernel = {2, 3}, .padding = {1, 1}, .count_include_pad = false)))
OP(adaptive, ls_adaptive_avg_pool2d(in[0], 2, 3))
OP(pooled_twice, ls_add(ls_max_pool2d(in[0], POOL(.kernel = {2, 2})),
                        ls_avg_pool2d(in[0], POOL(.kernel = {2, 2}))))

#define NORM(...) LS_OPTIONS(ls_batch_norm_options, .eps = 1e-3, .training = true, __VA_ARGS__)
OP(norm, ls_batch_norm(in[0], in[1], in[2], NORM()))
OP(norm_plain, ls_batch_norm(in[0], NULL, NULL, NORM()))
OP(norm_twice, ls_batch_norm(ls_batch_norm(in[0], in[1], NULL, NORM()), in[1], in[2], NORM()))
OP(norm_relu, ls_batch_norm(in[0], in[1], in[2], NORM(.relu = true)))
OP(norm_residual, ls_batch_norm(in[0], in[1], in[2], NORM(.residual = in[3])))
OP(norm_all, ls_batch_norm(in[0], in[1], in[2], NORM(.residual = in[3], .relu = true)))
OP(norm_itself, ls_batch_norm(in[0], in[1], in[2], NORM(.residual = in[0])))
/* What a residual block does: two users of one gradient, in the layout of convolutions. */
OP(block, ls_batch_norm(ls_conv2d(in[0], in[1], NULL, CONV(.padding = {1, 1})), in[2], in[3],
                        NORM(.residual = ls_conv2d(in[0], in[1], NULL, CONV(.padding = {1, 1})))))
OP(mixed, ls_mul(ls_sigmoid(ls_add(ls_scale(ls_conv2d(in[0], in[1], NULL, NULL), 2.0), in[2])),
                 ls_conv2d(in[0], in[1], NULL, NULL)))

static ls_tensor *norm_evaluation(ls_tensor **in)
{
    static const float mean[] = {0.1f, -0.2f, 0.3f}, var[] = {0.5f, 1.0f, 2.0f};
    return ls_batch_norm(in[0], in[1], in[2],
                         LS_OPTIONS(ls_batch_norm_options,
                                    .running_mean = ls_from_data(mean, LS_SHAPE(3), LS_FLOAT32),
                                    .running_var = ls_from_data(var, LS_SHAPE(3), LS_FLOAT32),
                                    .eps = 1e-3));
}

#define S(...) LS_SHAPE(__VA_ARGS__)
static const op_case *cases(int *count)
{
    static op_case all[32];
    const op_case rows[] = {
        {"conv", conv, 3, {S(2, 3, 4, 5), S(2, 3, 2, 3), S(2)}},
        {"conv", conv, 3, {S(1, 1, 1, 1), S(1, 1, 1, 1), S(1)}},
        {"conv", conv, 3, {S(2, 3, 3, 3), S(4, 3, 1, 1), S(4)}},
        {"conv_plain", conv_plain, 2, {S(2, 2, 5, 3), S(3, 2, 3, 3)}},
        {"conv_dilated", conv_dilated, 3, {S(1, 2, 5, 4), S(2, 2, 2, 3), S(2)}},
        {"conv_groups", conv_groups, 3, {S(2, 4, 3, 4), S(6, 2, 3, 2), S(6)}},
        {"conv_twice", conv_twice, 2, {S(1, 2, 3, 4), S(2, 2, 3, 3)}},
        {"max_pool", max_pool, 1, {S(2, 2, 5, 4)}},
        {"avg_pool", avg_pool, 1, {S(2, 2, 5, 4)}},
        {"avg_pool_within", avg_pool_within, 1, {S(1, 2, 4, 5)}},
        {"adaptive", adaptive, 1, {S(2, 2, 5, 4)}},
        {"adaptive", adaptive, 1, {S(1, 2, 1, 2)}},
        {"pooled_twice", pooled_twice, 1, {S(2, 1, 4, 4)}},
        {"norm", norm, 3, {S(3, 2, 2, 3), S(2), S(2)}},
        {"norm", norm, 3, {S(5, 3), S(3), S(3)}},
        {"norm_plain", norm_plain, 1, {S(4, 3, 2)}},
        {"norm_twice", norm_twice, 3, {S(3, 2, 2, 2), S(2), S(2)}},
        {"norm_relu", norm_relu, 3, {S(3, 2, 2, 3), S(2), S(2)}},
        {"norm_residual", norm_residual, 4, {S(3, 2, 2, 3), S(2), S(2), S(3, 2, 2, 3)}},
        {"norm_all", norm_all, 4, {S(3, 2, 2, 3), S(2), S(2), S(3, 2, 2, 3)}},
        {"norm_itself", norm_itself, 3, {S(3, 2, 2, 3), S(2), S(2)}},
        {"block", block, 4, {S(2, 2, 2, 3), S(2, 2, 3, 3), S(2), S(2)}},
        {"mixed", mixed, 3, {S(1, 2, 2, 3), S(2, 2, 1, 1), S(1, 2, 2, 3)}},
        {"norm_evaluation", norm_evaluation, 3, {S(2, 3, 2, 2), S(3), S(3)}},
    };
    memcpy(all, rows, sizeof rows);
    *count = (int)(sizeof rows / sizeof rows[0]);
    return all;
}

typedef struct sweep {
    const op_case *c;
    layout of[4];
} sweep;

static ls_tensor *as_view(ls_tensor *leaf, layout of)
{
    if (of == TRANSPOSED && ls_ndim(leaf) > 1) {
        return ls_transpose(leaf, -1, -2);
    }
    if (of == CHANNELS_LAST && ls_ndim(leaf) == 4) {
        return ls_permute(leaf, LS_SHAPE(0, 3, 1, 2));
    }
    return of == SLICED ? ls_slice(leaf, -1, 1, ls_size(leaf, -1) - 1) : leaf;
}

/* All different, further apart than the steps of the differences: which is larger stays. */
static void set_apart(ls_tensor *leaf)
{
    float *x = ls_data(leaf);
    int64_t numel = ls_numel(leaf);
    for (int64_t i = 0; i < numel; i++) {
        x[i] = 0.06f * (float)((37 * i + 11) % numel - numel / 2);
    }
}

static ls_tensor *leaf_new(ls_shape shape, layout of, uint64_t stream)
{
    int n = shape.ndim;
    if (of == TRANSPOSED && n > 1) {
        int64_t last = shape.dim[n - 1];
        shape.dim[n - 1] = shape.dim[n - 2];
        shape.dim[n - 2] = last;
    }
    if (of == CHANNELS_LAST && n == 4) {
        shape = LS_SHAPE(shape.dim[0], shape.dim[2], shape.dim[3], shape.dim[1]);
    }
    shape.dim[n - 1] += of == SLICED ? 2 : 0;
    ls_tensor *leaf = ls_empty(shape, LS_FLOAT32);
    float *x = ls_data(leaf);
    for (int64_t i = 0; i < ls_numel(leaf); i++) {
        float u = ls_random_uniform(1, stream, (uint64_t)i);
        x[i] = ls_random_uniform(1, stream + 1000, (uint64_t)i) < 0.5f ? 0.2f + u : -0.2f - u;
    }
    return ls_set_requires_grad(leaf, true);
}

static ls_tensor *run_case(ls_tensor **leaves, void *arg)
{
    const sweep *s = arg;
    ls_tensor *in[4] = {NULL};
    for (int i = 0; i < s->c->count; i++) {
        in[i] = as_view(leaves[i], s->of[i]);
    }
    return s->c->fn(in);
}

static void check_case(const op_case *c, int variant)
{
    sweep s = {.c = c};
    LS_SCOPE;
    ls_tensor *leaves[4];
    for (int i = 0; i < c->count; i++) {
        s.of[i] = variant < LAYOUTS ? (layout)variant : (layout)((i + 1) % LAYOUTS);
        leaves[i] = leaf_new(c->shape[i], s.of[i], (uint64_t)i);
        if (c->fn == max_pool || c->fn == pooled_twice) {
            set_apart(leaves[i]);
        }
    }
    if (ls_gradcheck(run_case, leaves, c->count, &s, NULL) != LS_OK) {
        test_fail(__FILE__, __LINE__, "%s, case %s, layout %d: %s",
                  ls__tensors_get("")->host.k->name, c->name, variant, ls_error_message());
    }
}

static void check_all(const ls__kernels *kernels)
{
    int count;
    const op_case *all = cases(&count);
    CHECK_OK(ls__tensor_use_kernels(kernels));
    for (int i = 0; i < count; i++) {
        for (int variant = 0; variant <= LAYOUTS; variant++) {
            check_case(&all[i], variant);
        }
    }
}

LOCAL_TEST(plain_kernels_gradients_match_differences)
{
    check_all(ls__kernels_ref());
}

LOCAL_TEST(fast_kernels_gradients_match_differences)
{
    check_all(ls__kernels_cpu());
}

/* ---- beside PyTorch ----------------------------------------------------------------------- */

/* Printed by PyTorch 2.13 for the lines above each block, run after
 *     import math, torch; from torch.nn.functional import *
 *     def p(name, t): print(name, ["%.8g" % v for v in t.detach().flatten().tolist()])
 *     def f(shape, b): return torch.tensor([math.sin(b * i + 1) for i in range(
 *         math.prod(shape))]).reshape(shape).requires_grad_()
 *     def back(y): (y * f(y.shape, 0.9).detach()).sum().backward() */
static void check_near(const char *what, ls_tensor *t, const float *want, int64_t count)
{
    float got[64];
    CHECK_OK(ls_tensor_status(t));
    CHECK_INT(ls_numel(t), count);
    CHECK_OK(ls_copy_out(t, got, (size_t)count * sizeof(float)));
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - (double)want[i]) <= 3e-6 * (1.0 + fabs((double)want[i])))) {
            test_fail(__FILE__, __LINE__, "%s: element %lld is %.9g, PyTorch has %.9g", what,
                      (long long)i, (double)got[i], (double)want[i]);
        }
    }
}

#define CHECK_VALUES(t, ...)                                                                       \
    check_near(#t, t, (const float[]){__VA_ARGS__},                                                \
               (int64_t)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)))

static ls_tensor *sines(ls_shape shape, double b)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        ((float *)ls_data(t))[i] = (float)sin(b * (double)i + 1.0);
    }
    return ls_set_requires_grad(t, true);
}

static void back(ls_tensor *y)
{
    CHECK_OK(ls_backward(ls_sum(ls_mul(y, ls_detach(sines(ls_shape_of(y), 0.9))))));
}

/* x as it is, in the other order in memory. */
static ls_tensor *stored_channels_last(ls_tensor *x)
{
    return ls_permute(ls_contiguous(ls_permute(x, LS_SHAPE(0, 2, 3, 1))), LS_SHAPE(0, 3, 1, 2));
}

/* x = f((1, 2, 4, 3), 0.7); w = f((4, 1, 2, 2), 1.3); b = f((4,), 0.4)
 * y = conv2d(x, w, b, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)
 * back(y); p("y", y); p("dx", x.grad); p("dw", w.grad); p("db", b.grad) */
LOCAL_TEST(convolution_agrees_with_torch)
{
    ls_tensor *x = sines(LS_SHAPE(1, 2, 4, 3), 0.7), *w = sines(LS_SHAPE(4, 1, 2, 2), 1.3);
    ls_tensor *b = sines(LS_SHAPE(4), 0.4);
    ls_tensor *y = ls_conv2d(
        x, w, b, CONV(.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2));
    CHECK_INT(ls_size(y, 2), 3);
    back(y);
    CHECK_VALUES(y, -0.19450772f, 0.23238271f, 2.0514684f, 1.0554284f, -0.64641148f, 1.5366526f,
                 0.60921311f, 2.9313934f, 0.83541787f, -0.1608243f, 2.1668077f, 1.6024978f);
    CHECK_VALUES(ls_grad(x), -0.68227834f, 0, -0.49552035f, 0.87884921f, 0, -0.22642127f,
                 -0.99998409f, 0, -0.30856794f, 0.34050572f, 0, -0.41199437f, 0.22500573f, 0,
                 0.36432654f, -0.35839063f, 0, 0.5556801f, 0.65567821f, 0, -0.20489375f,
                 -0.090040572f, 0, 0.93478155f);
    CHECK_VALUES(ls_grad(w), 0.32423395f, -0.70295f, -0.12793988f, 0.86319429f, -0.64133567f,
                 0.50361139f, 0.43203929f, -0.66746068f, -0.73702538f, -0.64724374f, 0.73355019f,
                 0.4387013f, 0.46833763f, 0.80142093f, -0.45949635f, -0.66678548f);
    CHECK_VALUES(ls_grad(b), 2.1227591f, -2.2290673f, 1.9077164f, -1.2203591f);
}

/* for groups, bias in ((2, True), (1, False)):
 *     x = f((1, 2, 4, 3), 0.7); w = f((4, 2 // groups, 2, 2), 1.3)
 *     b = f((4,), 0.4) if bias else None
 *     y = relu(conv2d(x, w, b, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=groups))
 *     back(y); p("y", y); p("dx", x.grad); p("dw", w.grad); bias and p("db", b.grad) */
LOCAL_TEST(convolution_with_relu_agrees_with_torch)
{
    ls_conv2d_options o =
        *CONV(.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2, .relu = true);
    ls_tensor *x = sines(LS_SHAPE(1, 2, 4, 3), 0.7), *w = sines(LS_SHAPE(4, 1, 2, 2), 1.3);
    ls_tensor *b = sines(LS_SHAPE(4), 0.4), *y = ls_conv2d(x, w, b, &o);
    back(y);
    CHECK_VALUES(y, 0, 0.23238271f, 2.0514684f, 1.0554284f, 0, 1.5366526f, 0.60921311f, 2.9313934f,
                 0.83541787f, 0, 2.1668077f, 1.6024978f);
    CHECK_VALUES(ls_grad(x), -0.30991024f, 0, 0.33118498f, 0.79628402f, 0, 0.70566088f,
                 -0.41875714f, 0, -0.92969501f, 0.34050572f, 0, -0.41199437f, 0.1154545f, 0,
                 0.046239797f, -0.35839063f, 0, 0.5556801f, 0.65567821f, 0, -0.20489375f,
                 -0.090040572f, 0, 0.93478155f);
    CHECK_VALUES(ls_grad(w), 0.32423395f, -0.70295f, -0.83601326f, 0.29481161f, -0.60001731f,
                 -0.4677515f, -0.4458417f, -0.35788479f, -0.73702538f, -0.64724374f, 0.73355019f,
                 0.4387013f, 0.46833763f, 0.80142093f, -0.46740216f, -0.35377035f);
    CHECK_VALUES(ls_grad(b), 1.2812883f, -1.2353764f, 1.9077164f, -1.5394573f);
    o.groups = 1;
    x = sines(LS_SHAPE(1, 2, 4, 3), 0.7), w = sines(LS_SHAPE(4, 2, 2, 2), 1.3);
    y = ls_conv2d(x, w, NULL, &o);
    back(y);
    CHECK_VALUES(y, 0, 0, 0.28628275f, 0.13223028f, 0.43829101f, 0.10049942f, 0.25997439f, 0, 0, 0,
                 0, 0.34721085f);
    CHECK_VALUES(ls_grad(x), -0.60282046f, 0, -0.14758302f, 0.9135285f, 0, -0.13239148f,
                 -0.98435766f, 0, -0.39423755f, 0.2275594f, 0, -0.71136254f, -0.29496568f, 0,
                 -0.58565497f, 0.77344149f, 0, 0.80802697f, -0.34114894f, 0, -0.99054086f,
                 0.81465161f, 0, 0.049825944f);
    CHECK_VALUES(ls_grad(w), 0.28488618f, 0.22208683f, 0, 0, 0.0026675721f, -0.3296501f, 0, 0,
                 -0.64133567f, 0.50361139f, 0.43203929f, -0.66746068f, 0.86431062f, 0.36888906f,
                 -0.86686826f, -0.12644976f, 0, 0, 0.098072767f, 0.078724697f, 0, 0, 0.0028875561f,
                 -0.11432733f, -0.84655547f, -0.65994358f, 0, 0, -0.0079268413f, 0.97957397f, 0, 0);
}

/* def h(t): return t.detach().bfloat16().requires_grad_()
 * x = h(f((1, 2, 4, 3), 0.7)); w = h(f((4, 1, 2, 2), 1.3)); b = h(f((4,), 0.4))
 * y = relu(conv2d(x, w, b, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2))
 * (y.float() * f(y.shape, 0.9).detach()).sum().backward()
 * p("y", y); p("dx", x.grad); p("dw", w.grad); p("db", b.grad) */
LOCAL_TEST(convolution_of_bfloat16_agrees_with_torch)
{
    const float want[4][24] = {
        {0, 0.22949219f, 2.046875f, 1.0546875f, 0, 1.5390625f, 0.609375f, 2.921875f, 0.8359375f, 0,
         2.15625f, 1.6015625f},
        {-0.31054688f, 0, 0.33203125f,  0.79296875f,  0, 0.70703125f,  -0.41992188f, 0, -0.9296875f,
         0.34179688f,  0, -0.41210938f, 0.11572266f,  0, 0.046386719f, -0.359375f,   0, 0.5546875f,
         0.66015625f,  0, -0.203125f,   -0.08984375f, 0, 0.93359375f},
        {0.32617188f, -0.69921875f, -0.8359375f, 0.29492188f, -0.6015625f, -0.46875f, -0.4453125f,
         -0.359375f, -0.73828125f, -0.6484375f, 0.734375f, 0.4375f, 0.46679688f, 0.80078125f,
         -0.46679688f, -0.3515625f},
        {1.28125f, -1.234375f, 1.90625f, -1.5390625f}};
    ls_tensor *in[] = {sines(LS_SHAPE(1, 2, 4, 3), 0.7), sines(LS_SHAPE(4, 1, 2, 2), 1.3),
                       sines(LS_SHAPE(4), 0.4)};
    for (int i = 0; i < 3; i++) {
        in[i] = ls_set_requires_grad(ls_detach(ls_cast(in[i], LS_BFLOAT16)), true);
    }
    ls_tensor *y = ls_conv2d(
        in[0], in[1], in[2],
        CONV(.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2, .relu = true));
    back(ls_cast(y, LS_FLOAT32));
    ls_tensor *got[] = {y, ls_grad(in[0]), ls_grad(in[1]), ls_grad(in[2])};
    for (int i = 0; i < 4; i++) {
        float values[24];
        CHECK(ls_dtype_of(got[i]) == LS_BFLOAT16);
        CHECK_OK(ls_copy_out(ls_cast(got[i], LS_FLOAT32), values,
                             (size_t)ls_numel(got[i]) * sizeof(float)));
        for (int64_t k = 0; k < ls_numel(got[i]); k++) { /* one place apart: a rounding's side */
            CHECK_NEAR(values[k], want[i][k], 0x1p-7 * (fabs((double)want[i][k]) + 0.1));
        }
    }
}

/* x = f((2, 2, 1, 3), 0.7); w = f((2,), 0.4); b = f((2,), 2); r = f((2, 2, 1, 3), 1.9)
 * m = torch.tensor([0.5, -0.5]); v = torch.tensor([2.0, 0.25])
 * for training in (True, False):
 *     x.grad = w.grad = b.grad = r.grad = None
 *     y = relu(batch_norm(x, m, v, w, b, training, 0.3, 1e-3) + r); back(y); p("y", y)
 *     p("dx", x.grad); p("dw", w.grad); p("db", b.grad); p("dr", r.grad) */
LOCAL_TEST(batch_norm_with_residual_and_relu_agrees_with_torch)
{
    const float m0[] = {0.5f, -0.5f}, v0[] = {2.0f, 0.25f};
    const float want[2][5][12] = {
        {{2.40326f, 1.9872464f, 0.35981065f, 0.39037523f, 0, 0, 0, 1.0417922f, 0.43236873f,
          0.3745892f, 2.1526864f, 0.89884543f},
         {0.018611787f, 0.092767179f, -0.54763126f, -0.34647629f, 0.18047366f, 0.082992375f,
          -0.38367012f, 0.4813351f, 0.33858743f, 0.99256366f, -0.11258815f, -0.79696518f},
         {1.2205598f, -0.9000845f},
         {3.9139264f, -1.7501953f},
         {0.84147096f, 0.94630009f, 0.33498815f, -0.52983612f, 0, 0, 0, 0.85043663f, 0.94073057f,
          0.31909835f, -0.54402113f, -0.99543625f}},
        {{1.9608327f, 1.4595896f, 0.011586607f, 1.0990732f, 0.37747297f, 0, 0, 1.2890298f,
          0.29065695f, 1.3140675f, 3.1318014f, 1.7848361f},
         {0.56573874f, 0.63621753f, 0.22521961f, -0.85231549f, -1.598491f, 0, 0, 0.5717665f,
          0.63247299f, 0.51331431f, -0.87513405f, -1.6012983f},
         {0.13755763f, -1.9101939f},
         {3.9139264f, -2.7438862f},
         {0.84147096f, 0.94630009f, 0.33498815f, -0.52983612f, -0.99369103f, 0, 0, 0.85043663f,
          0.94073057f, 0.31909835f, -0.54402113f, -0.99543625f}},
    };
    ls_tensor *m = ls_from_data(m0, LS_SHAPE(2), LS_FLOAT32);
    ls_tensor *v = ls_from_data(v0, LS_SHAPE(2), LS_FLOAT32);
    for (int last = 0; last < 2; last++) { /* and with the channels last in memory */
        for (int pass = 0; pass < 2; pass++) {
            ls_tensor *x = sines(LS_SHAPE(2, 2, 1, 3), 0.7), *w = sines(LS_SHAPE(2), 0.4);
            ls_tensor *b = sines(LS_SHAPE(2), 2.0), *r = sines(LS_SHAPE(2, 2, 1, 3), 1.9);
            ls_tensor *seen = last ? stored_channels_last(x) : x;
            ls_tensor *y =
                ls_batch_norm(seen, w, b,
                              LS_OPTIONS(ls_batch_norm_options, .running_mean = m, .running_var = v,
                                         .training = pass == 0, .momentum = last ? 0.0 : 0.3,
                                         .eps = 1e-3, .residual = r, .relu = true));
            back(y);
            ls_tensor *got[] = {y, ls_grad(x), ls_grad(w), ls_grad(b), ls_grad(r)};
            for (int i = 0; i < 5; i++) {
                check_near("batch norm, residual, relu", got[i], want[pass][i], ls_numel(got[i]));
            }
        }
    }
}

/* x = f((1, 1, 5, 4), 0.7); y = max_pool2d(x, 3, 2, 1) and so on; back(y); p("y", y);
 * p("dx", x.grad) */
LOCAL_TEST(pooling_agrees_with_torch)
{
    ls_shape shape = LS_SHAPE(1, 1, 5, 4);
    ls_tensor *x = sines(shape, 0.7);
    ls_tensor *y = ls_max_pool2d(x, POOL(.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}));
    back(y);
    CHECK_VALUES(y, 0.99166483f, 0.99166483f, 0.85043663f, 0.98935825f, 0.32747445f, 0.98677194f);
    CHECK_VALUES(ls_grad(x), 0, 1.787771f, 0, 0, 0, 0, 0, 0, 0, 0.33498815f, -0.52983612f, 0, 0, 0,
                 0, 0, 0, -0.99369103f, 0, -0.7055403f);
    x = sines(shape, 0.7);
    y = ls_avg_pool2d(x, POOL(.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}));
    back(y);
    CHECK_VALUES(y, 0.027083091f, -0.058461413f, -0.11418948f, -0.2459507f, -0.070116669f,
                 -0.034227889f);
    CHECK_VALUES(ls_grad(x), 0.09349677f, 0.19864123f, 0.10514446f, 0.10514446f, 0.13071768f,
                 0.17699146f, 0.046273775f, 0.046273775f, 0.037220906f, -0.021649774f,
                 -0.058870681f, -0.058870681f, -0.073189214f, -0.21045326f, -0.13726404f,
                 -0.13726404f, -0.11041012f, -0.18880349f, -0.07839337f, -0.07839337f);
    x = sines(shape, 0.7);
    y = ls_avg_pool2d(
        x, POOL(.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .count_include_pad = false));
    back(y);
    CHECK_VALUES(y, 0.060936958f, -0.087692119f, -0.17128421f, -0.2459507f, -0.1577625f,
                 -0.051341832f);
    CHECK_VALUES(ls_grad(x), 0.21036774f, 0.36808443f, 0.15771668f, 0.15771668f, 0.26619911f,
                 0.36504513f, 0.098845996f, 0.098845996f, 0.055831358f, -0.0030393228f,
                 -0.058870681f, -0.058870681f, -0.1925914f, -0.36905211f, -0.17646073f,
                 -0.17646073f, -0.24842276f, -0.36601281f, -0.11759005f, -0.11759005f);
    x = sines(shape, 0.7);
    y = ls_adaptive_avg_pool2d(x, 3, 2);
    back(y);
    CHECK_VALUES(y, 0.060936958f, -0.13507187f, -0.17128421f, -0.24356538f, -0.1577625f,
                 -0.0026136488f);
    CHECK_VALUES(ls_grad(x), 0.21036774f, 0.21036774f, 0.23657502f, 0.23657502f, 0.26619911f,
                 0.26619911f, 0.148269f, 0.148269f, 0.055831358f, 0.055831358f, -0.088306017f,
                 -0.088306017f, -0.1925914f, -0.1925914f, -0.26469108f, -0.26469108f, -0.24842276f,
                 -0.24842276f, -0.17638507f, -0.17638507f);
}

/* x = f((2, 2, 1, 3), 0.7); w = f((2,), 0.4); b = f((2,), 2)
 * m = torch.tensor([0.5, -0.5]); v = torch.tensor([2.0, 0.25])
 * for training in (True, False):
 *     x.grad = w.grad = b.grad = None; y = batch_norm(x, m, v, w, b, training, 0.3, 1e-3)
 *     back(y); p("y", y); p("dx", x.grad); p("dw", w.grad); p("db", b.grad); p("m", m); p("v", v)
 */
LOCAL_TEST(batch_norm_agrees_with_torch)
{
    const float m0[] = {0.5f, -0.5f}, v0[] = {2.0f, 0.25f};
    ls_tensor *m = ls_from_data(m0, LS_SHAPE(2), LS_FLOAT32);
    ls_tensor *v = ls_from_data(v0, LS_SHAPE(2), LS_FLOAT32);
    ls_tensor *x = sines(LS_SHAPE(2, 2, 1, 3), 0.7), *w = sines(LS_SHAPE(2), 0.4);
    ls_tensor *b = sines(LS_SHAPE(2), 2.0);
    ls_tensor *y =
        ls_batch_norm(x, w, b,
                      LS_OPTIONS(ls_batch_norm_options, .running_mean = m, .running_var = v,
                                 .training = true, .momentum = 0.3, .eps = 1e-3));
    back(y);
    CHECK_VALUES(y, 1.561789f, 1.747997f, 1.3559753f, -0.014474701f, -0.8791849f, -1.3630873f,
                 -0.57674652f, 0.055020247f, 0.9047907f, 1.055903f, 1.2397411f, 0.807823f);
    CHECK_VALUES(ls_grad(x), 0.029274218f, 0.11241148f, -0.54689634f, 0.10162687f, -0.27886221f,
                 0.23303458f, -0.33166561f, 0.41931748f, 0.31755909f, 0.93620151f, -0.2555927f,
                 -0.73640823f);
    CHECK_VALUES(ls_grad(w), 1.0241275f, 1.2057018f);
    CHECK_VALUES(ls_grad(b), 4.0304756f, -3.4494264f);
    CHECK_VALUES(m, 0.42814046f, -0.30225214f);
    CHECK_VALUES(v, 1.5654796f, 0.37427643f);
    x = sines(LS_SHAPE(2, 2, 1, 3), 0.7), w = sines(LS_SHAPE(2), 0.4);
    b = sines(LS_SHAPE(2), 2.0);
    y = ls_batch_norm(x, w, b,
                      LS_OPTIONS(ls_batch_norm_options, .running_mean = m, .running_var = v,
                                 .momentum = 0.3, .eps = 1e-3));
    back(y);
    CHECK_VALUES(y, 1.1193618f, 1.2203403f, 1.0077512f, 0.69422323f, -0.35692415f, -0.94515914f,
                 -0.040342178f, 0.3022579f, 0.76307893f, 1.9953812f, 2.2188561f, 1.6938137f);
    CHECK_VALUES(ls_grad(x), 0.56573874f, 0.63621753f, 0.22521961f, -0.85231549f, -1.598491f,
                 -1.1349602f, 0.078358494f, 0.5717665f, 0.63247299f, 0.51331431f, -0.87513405f,
                 -1.6012983f);
    CHECK_VALUES(ls_grad(w), 0.015420791f, -1.1324641f);
    CHECK_VALUES(ls_grad(b), 4.0304756f, -3.4494264f);
    CHECK_VALUES(m, 0.42814046f, -0.30225214f);
    CHECK_VALUES(v, 1.5654796f, 0.37427643f);
}

/* ---- nothing, and poison ------------------------------------------------------------------ */

static void check_zero_gradient(ls_tensor *y, ls_tensor *leaf)
{
    CHECK_OK(ls_backward(ls_sum(y)));
    const float *g = ls_data(ls_grad(leaf));
    for (int64_t i = 0; i < ls_numel(leaf); i++) {
        CHECK_NEAR(g[i], 0.0, 0.0);
    }
}

LOCAL_TEST(no_images_give_zero_gradients)
{
    ls_tensor *none = ls_ones(LS_SHAPE(0, 3, 4, 4), LS_FLOAT32);
    ls_tensor *w = leaf_new(LS_SHAPE(2, 3, 3, 3), WHOLE, 1), *b = leaf_new(LS_SHAPE(2), WHOLE, 2);
    ls_tensor *scale = leaf_new(LS_SHAPE(3), WHOLE, 3);
    ls_tensor *mean = ls_zeros(LS_SHAPE(3), LS_FLOAT32), *var = ls_ones(LS_SHAPE(3), LS_FLOAT32);
    check_zero_gradient(ls_conv2d(none, w, b, NULL), w);
    check_zero_gradient(ls_conv2d(none, w, b, NULL), b);
    check_zero_gradient(ls_batch_norm(none, scale, scale,
                                      LS_OPTIONS(ls_batch_norm_options, .running_mean = mean,
                                                 .running_var = var, .training = true)),
                        scale);
    CHECK_NEAR(((float *)ls_data(mean))[0], 0.0, 0.0); /* nothing was seen */
    CHECK_NEAR(((float *)ls_data(var))[2], 1.0, 0.0);
    ls_tensor *x = leaf_new(LS_SHAPE(2, 3, 4, 4), WHOLE, 4), *part = ls_slice(x, 0, 1, 1);
    check_zero_gradient(ls_max_pool2d(part, POOL(.kernel = {2, 2})), x);
    check_zero_gradient(ls_adaptive_avg_pool2d(part, 1, 1), x);
    check_zero_gradient(ls_conv2d(part, w, NULL, NULL), x);
}

LOCAL_TEST(poison_is_passed_on)
{
    ls_tensor *x = ls_ones(LS_SHAPE(2, 3, 4, 4), LS_FLOAT32);
    ls_tensor *bad = ls_reshape(x, LS_SHAPE(5, -1)), *c = ls_ones(LS_SHAPE(3), LS_FLOAT32);
    ls_tensor *all[] = {ls_conv2d(bad, x, NULL, NULL),
                        ls_conv2d(x, x, bad, NULL),
                        ls_max_pool2d(bad, NULL),
                        ls_avg_pool2d(bad, NULL),
                        ls_adaptive_avg_pool2d(bad, 1, 1),
                        ls_batch_norm(bad, c, c,
                                      LS_OPTIONS(ls_batch_norm_options, .running_mean = c,
                                                 .running_var = c, .training = true)),
                        ls_batch_norm(x, c, c,
                                      LS_OPTIONS(ls_batch_norm_options, .running_mean = c,
                                                 .running_var = bad, .training = true))};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK_STATUS(ls_tensor_status(all[i]), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "reshape");
    }
}

/* ---- a steady loop ------------------------------------------------------------------------ */

static void conv_step(ls_tensor **w, ls_tensor *x, ls_tensor *mean, ls_tensor *var)
{
    LS_SCOPE;
    ls_tensor *h = ls_conv2d(x, w[0], w[1], CONV(.padding = {1, 1}));
    h = ls_relu(ls_batch_norm(h, w[1], w[2],
                              LS_OPTIONS(ls_batch_norm_options, .running_mean = mean,
                                         .running_var = var, .training = true)));
    h = ls_max_pool2d(h, POOL(.kernel = {2, 2}));
    h = ls_add(ls_avg_pool2d(h, POOL(.kernel = {2, 2})), ls_adaptive_avg_pool2d(h, 2, 2));
    CHECK_OK(ls_backward(ls_mean(h)));
}

LOCAL_TEST(steady_convolutional_loop_allocates_nothing)
{
    ls_tensor *w[3] = {leaf_new(LS_SHAPE(16, 3, 3, 3), WHOLE, 1), leaf_new(LS_SHAPE(16), WHOLE, 2),
                       leaf_new(LS_SHAPE(16), WHOLE, 3)};
    ls_tensor *x = ls_rand(LS_SHAPE(4, 3, 8, 8));
    ls_tensor *mean = ls_zeros(LS_SHAPE(16), LS_FLOAT32), *var = ls_ones(LS_SHAPE(16), LS_FLOAT32);
    conv_step(w, x, mean, var);
    conv_step(w, x, mean, var);
    uint64_t before = ls__tensor_allocations(ls_runtime_current());
    int64_t alive = ls__tensor_alive();
    for (int i = 0; i < 20; i++) {
        conv_step(w, x, mean, var);
    }
    CHECK_INT(ls__tensor_allocations(ls_runtime_current()) - before, 0);
    CHECK_INT(ls__tensor_alive(), alive);
}

/* Those of the two one after the other, which are tested by differences: at a kink none are. */
LOCAL_TEST(relu_within_a_convolution_changes_no_bit)
{
    LS_SCOPE;
    float got[2][4][120] = {{{0}}};
    for (int fused = 0; fused < 2; fused++) {
        ls_tensor *x = leaf_new(LS_SHAPE(2, 3, 4, 5), CHANNELS_LAST, 1);
        ls_tensor *w = leaf_new(LS_SHAPE(2, 3, 3, 2), WHOLE, 2);
        ls_tensor *b = leaf_new(LS_SHAPE(2), WHOLE, 3);
        ls_tensor *seen = as_view(x, CHANNELS_LAST);
        ls_tensor *y = fused ? ls_conv2d(seen, w, b, CONV(.relu = true))
                             : ls_relu(ls_conv2d(seen, w, b, NULL));
        CHECK_OK(ls_backward(ls_sum(ls_mul(y, y))));
        ls_tensor *all[] = {y, ls_grad(x), ls_grad(w), ls_grad(b)};
        for (int i = 0; i < 4; i++) {
            CHECK_OK(ls_copy_out(all[i], got[fused][i], (size_t)ls_numel(all[i]) * sizeof(float)));
        }
    }
    CHECK(memcmp(got[0], got[1], sizeof got[0]) == 0);
    int cut = 0;
    for (int i = 0; i < 32; i++) {
        cut += got[0][0][i] == 0.0f;
    }
    CHECK(cut > 2 && cut < 30);
}

TEST_MAIN
