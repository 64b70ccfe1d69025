/* SPDX-License-Identifier: Apache-2.0 */
/* Values and gradients of the operations of ops.h beside those of PyTorch 2.13. Each block was
 * printed by the Python lines above it, run after
 *     import torch; from torch.nn.functional import *
 *     def p(name, t): print(name, ["%.8g" % v for v in t.detach().flatten().tolist()])
 *     def f(n, *s): return torch.sin(torch.arange(1., n + 1).double() * 1.7).float().reshape(s)
 */
#include <math.h>
#include <string.h>

#include <lockstep/ops.h>

#include "../unit/tensor/local.h"

#define TOLERANCE 2e-6 /* float32 on both sides, sums of at most a dozen terms near 1 */

static void check_near(int line, ls_tensor *t, const float *want, int64_t count)
{
    float got[64];
    CHECK_OK(ls_tensor_status(t));
    CHECK_INT(ls_numel(t), count);
    CHECK_OK(ls_copy_out(t, got, (size_t)count * sizeof(float)));
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - (double)want[i]) <=
              TOLERANCE * (1.0 + fabs((double)want[i])))) {
            test_fail(__FILE__, line, "element %lld is %.9g, PyTorch has %.9g", (long long)i,
                      (double)got[i], (double)want[i]);
        }
    }
}

#define CHECK_VALUES(t, ...)                                                                       \
    check_near(__LINE__, t, (const float[]){__VA_ARGS__},                                          \
               (int64_t)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)))

static ls_tensor *leaf(const float *data, ls_shape shape)
{
    return ls_set_requires_grad(ls_from_data(data, shape, LS_FLOAT32), true);
}

/* f of the Python lines: sin(1.7), sin(3.4), … */
static ls_tensor *waves(ls_shape shape)
{
    float x[64];
    for (int i = 0; i < 64; i++) {
        x[i] = (float)sin(1.7 * (double)(i + 1));
    }
    return leaf(x, shape);
}

/* The gradient of sum(y * f): with weights that differ. */
static void weigh(ls_tensor *y)
{
    CHECK_OK(ls_backward(ls_sum(ls_mul(y, ls_detach(waves(ls_shape_of(y)))))));
}

/* x = torch.tensor([-2., -.5, 0., .25, 1., 3.])
 * for name, g in (("abs", torch.abs), ("silu", silu), ("pow", lambda t: t ** 3),
 *                 ("clamp", lambda t: t.clamp(-.5, 1.))):
 *     z = x.clone().requires_grad_(); y = g(z); y.sum().backward()
 *     p(name, y); p("d" + name, z.grad)
 */
LOCAL_TEST(functions_of_elements_agree_with_torch)
{
    const float values[] = {-2.0f, -0.5f, 0.0f, 0.25f, 1.0f, 3.0f};
    ls_tensor *x[4], *y[4];
    for (int i = 0; i < 4; i++) {
        x[i] = leaf(values, LS_SHAPE(6));
    }
    y[0] = ls_abs(x[0]), y[1] = ls_silu(x[1]);
    y[2] = ls_pow_scalar(x[2], 3.0), y[3] = ls_clamp(x[3], -0.5, 1.0);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(ls_backward(ls_sum(y[i])));
    }
    CHECK_VALUES(y[0], 2, 0.5f, 0, 0.25f, 1, 3);
    CHECK_VALUES(ls_grad(x[0]), -1, -1, 0, 1, 1, 1);
    CHECK_VALUES(y[1], -0.23840584f, -0.18877034f, 0, 0.14054413f, 0.7310586f, 2.8577225f);
    CHECK_VALUES(ls_grad(x[1]), -0.090784252f, 0.26003882f, 0.5f, 0.62371004f, 0.92767054f,
                 1.0881041f);
    CHECK_VALUES(y[2], -8, -0.125f, 0, 0.015625f, 1, 27);
    CHECK_VALUES(ls_grad(x[2]), 12, 0.75f, 0, 0.1875f, 3, 27);
    CHECK_VALUES(y[3], -0.5f, -0.5f, 0, 0.25f, 1, 1);
    CHECK_VALUES(ls_grad(x[3]), 0, 1, 1, 1, 1, 0);
}

/* a = f(12, 3, 4).requires_grad_(); b = f(3, 3, 1).requires_grad_(); c = a.detach() > .2
 * y = torch.where(c, a, b); (y * f(12, 3, 4)).sum().backward()
 * p("y", y); p("da", a.grad); p("db", b.grad)
 */
LOCAL_TEST(choosing_agrees_with_torch)
{
    ls_tensor *a = waves(LS_SHAPE(3, 4)), *b = waves(LS_SHAPE(3, 1));
    ls_tensor *c = ls_cast(ls_relu(ls_add_scalar(ls_detach(a), -0.2)), LS_BOOL);
    ls_tensor *y = ls_where(c, a, b);
    CHECK_VALUES(y, 0.99166483f, 0.99166483f, 0.99166483f, 0.49411336f, 0.79848713f, -0.25554112f,
                 -0.25554112f, 0.85916179f, 0.39674059f, -0.92581469f, -0.92581469f, 0.99979287f);
    weigh(y);
    CHECK_VALUES(ls_grad(a), 0.99166483f, 0, 0, 0.49411336f, 0.79848713f, 0, 0, 0.85916179f,
                 0.39674059f, 0, 0, 0.99979287f);
    CHECK_VALUES(ls_grad(b), -1.1813558f, -1.3180118f, -1.1103965f);
}

/* a = f(6, 2, 3).requires_grad_(); b = f(2, 2, 1).requires_grad_()
 * i = torch.tensor([[1, 0, 1], [1, 1, 0]]); j = torch.tensor([2, 0, 2])
 * y = torch.cat((a, b, a), 1); (y * f(14, 2, 7)).sum().backward()
 * p("cat", y); p("da", a.grad); p("db", b.grad)
 * a.grad = None; y = a.gather(0, i); (y * f(6, 2, 3)).sum().backward()
 * p("gather", y); p("dgather", a.grad)
 * a.grad = None; s = f(6, 2, 3).exp().requires_grad_(); y = a.scatter_add(0, i, s)
 * (y * f(6, 2, 3)).sum().backward(); p("scatter", y); p("dself", a.grad); p("dsrc", s.grad)
 * a.grad = None; y = a.index_select(1, j); (y * f(6, 2, 3)).sum().backward()
 * p("select", y); p("dselect", a.grad)
 */
LOCAL_TEST(joining_and_picking_agree_with_torch)
{
    const int64_t at[] = {1, 0, 1, 1, 1, 0}, columns[] = {2, 0, 2};
    ls_tensor *a[4], *b = waves(LS_SHAPE(2, 1));
    for (int k = 0; k < 4; k++) {
        a[k] = waves(LS_SHAPE(2, 3));
    }
    ls_tensor *i = ls_from_data(at, LS_SHAPE(2, 3), LS_INT64);
    ls_tensor *j = ls_from_data(columns, LS_SHAPE(3), LS_INT64);
    ls_tensor *y = ls_concat((ls_tensor *[]){a[0], b, a[0]}, 3, 1);
    CHECK_VALUES(y, 0.99166483f, -0.25554112f, -0.92581469f, 0.99166483f, 0.99166483f, -0.25554112f,
                 -0.92581469f, 0.49411336f, 0.79848713f, -0.6998747f, -0.25554112f, 0.49411336f,
                 0.79848713f, -0.6998747f);
    weigh(y);
    CHECK_VALUES(ls_grad(a[0]), 1.790152f, -0.95541584f, -1.5439517f, 1.8589547f, 0.288104f,
                 -1.9331958f);
    CHECK_VALUES(ls_grad(b), 0.49411336f, -0.14899902f);
    y = ls_gather_dim(a[1], 0, i);
    CHECK_VALUES(y, 0.49411336f, -0.25554112f, -0.6998747f, 0.49411336f, 0.79848713f, -0.92581469f);
    weigh(y);
    CHECK_VALUES(ls_grad(a[1]), 0, -0.25554112f, -0.6998747f, 1.4857782f, 0.79848713f,
                 -0.92581469f);
    ls_tensor *s = ls_set_requires_grad(ls_detach(ls_exp(waves(LS_SHAPE(2, 3)))), true);
    y = ls_scatter_add(a[2], 0, i, s);
    CHECK_VALUES(y, 0.99166483f, 0.51895618f, -0.42916715f, 4.8288765f, 3.0206637f, -0.3036662f);
    weigh(y);
    CHECK_VALUES(ls_grad(a[2]), 0.99166483f, -0.25554112f, -0.92581469f, 0.49411336f, 0.79848713f,
                 -0.6998747f);
    CHECK_VALUES(ls_grad(s), 0.49411336f, -0.25554112f, -0.6998747f, 0.49411336f, 0.79848713f,
                 -0.92581469f);
    y = ls_index_select(a[3], 1, j);
    CHECK_VALUES(y, -0.92581469f, 0.99166483f, -0.92581469f, -0.6998747f, 0.49411336f, -0.6998747f);
    weigh(y);
    CHECK_VALUES(ls_grad(a[3]), -0.25554112f, 0, 0.065850139f, 0.79848713f, 0, -0.20576134f);
}

/* def g(name, h):
 *     a = f(24, 2, 3, 4).requires_grad_(); y = h(a)
 *     (y * f(y.numel(), *y.shape)).sum().backward()
 *     p(name, y); p("d" + name, a.grad)
 * g("sum", lambda a: a.sum((0, 2))); g("mean", lambda a: a.mean((0, 1), keepdim=True))
 * g("var", lambda a: a.var((0, 2))); g("biased", lambda a: a.var(1, unbiased=False))
 * g("max", lambda a: a.max(1)[0]); g("min", lambda a: a.min(2, keepdim=True)[0])
 * g("cumsum", lambda a: a.cumsum(1))
 */
LOCAL_TEST(reductions_agree_with_torch)
{
    ls_tensor *a[7], *y[7];
    for (int i = 0; i < 7; i++) {
        a[i] = waves(LS_SHAPE(2, 3, 4));
    }
    y[0] = ls_sum_dims(a[0], LS_SHAPE(0, 2), false);
    y[1] = ls_mean_dims(a[1], LS_SHAPE(0, 1), true);
    y[2] = ls_var_dims(a[2], LS_SHAPE(0, 2), true, false);
    y[3] = ls_var_dims(a[3], LS_SHAPE(1), false, false);
    y[4] = ls_max_dim(a[4], 1, false);
    y[5] = ls_min_dim(a[5], 2, true);
    y[6] = ls_cumsum(a[6], 1);
    for (int i = 0; i < 7; i++) {
        weigh(y[i]);
    }
    CHECK_VALUES(y[0], 0.46231875f, 0.3280496f, 0.10809222f);
    CHECK_VALUES(ls_grad(a[0]), 0.99166483f, 0.99166483f, 0.99166483f, 0.99166483f, -0.25554112f,
                 -0.25554112f, -0.25554112f, -0.25554112f, -0.92581469f, -0.92581469f, -0.92581469f,
                 -0.92581469f, 0.99166483f, 0.99166483f, 0.99166483f, 0.99166483f, -0.25554112f,
                 -0.25554112f, -0.25554112f, -0.25554112f, -0.92581469f, -0.92581469f, -0.92581469f,
                 -0.92581469f);
    CHECK_VALUES(y[1], 0.097158648f, -0.65194064f, 0.070839308f, 0.63368624f);
    CHECK_VALUES(ls_grad(a[1]), 0.16527747f, -0.042590186f, -0.15430245f, 0.082352228f, 0.16527747f,
                 -0.042590186f, -0.15430245f, 0.082352228f, 0.16527747f, -0.042590186f,
                 -0.15430245f, 0.082352228f, 0.16527747f, -0.042590186f, -0.15430245f, 0.082352228f,
                 0.16527747f, -0.042590186f, -0.15430245f, 0.082352228f, 0.16527747f, -0.042590186f,
                 -0.15430245f, 0.082352228f);
    CHECK_VALUES(y[2], 0.56878603f, 0.56937879f, 0.5699147f);
    CHECK_VALUES(ls_grad(a[2]), 0.26459745f, -0.088776946f, -0.27868745f, 0.12362478f,
                 -0.055305008f, 0.054093011f, 0.048125207f, -0.05973497f, -0.10137117f, 0.25788146f,
                 0.042987045f, -0.26088965f, -0.047154073f, -0.29171613f, 0.08535926f, 0.23275316f,
                 0.045752339f, 0.056172829f, -0.053468086f, -0.035635319f, 0.24419771f, 0.08152014f,
                 -0.25713545f, -0.0071900701f);
    CHECK_VALUES(y[3], 0.061405864f, 0.084895521f, 0.10202207f, 0.045416582f, 0.10824154f,
                 0.078427657f, 0.067692623f, 0.11826374f);
    CHECK_VALUES(ls_grad(a[3]), 0.17367402f, -0.065315738f, 0.22311996f, -0.095608532f, 0.04596233f,
                 0.01038126f, 0.03321835f, 0.024641676f, -0.21963629f, 0.054934476f, -0.25633827f,
                 0.07096681f, 0.22677584f, 0.14317326f, 0.14296983f, 0.22696576f, -0.027143488f,
                 0.029589366f, -0.0277471f, 0.026385646f, -0.19963233f, -0.17276269f, -0.11522274f,
                 -0.25335139f);
    CHECK_VALUES(y[4], 0.99166483f, -0.25554112f, -0.14899902f, 0.99979287f, -0.1086366f,
                 -0.2946716f, 0.98560029f, 0.87927306f);
    CHECK_VALUES(ls_grad(a[4]), 0.99166483f, -0.25554112f, 0, 0, 0, 0, 0, 0, 0, 0, -0.92581469f,
                 0.49411336f, 0.79848713f, 0, 0, 0.85916179f, 0, 0, 0, 0, 0, -0.6998747f,
                 -0.61813712f, 0);
    CHECK_VALUES(y[5], -0.92581469f, -0.6998747f, -0.96139747f, -0.97179842f, -0.72836077f,
                 -0.90966666f);
    CHECK_VALUES(ls_grad(a[5]), 0, 0, 0.99166483f, 0, 0, -0.25554112f, 0, 0, 0, -0.92581469f, 0, 0,
                 0, 0.49411336f, 0, 0, 0, 0.79848713f, 0, 0, -0.6998747f, 0, 0, 0);
    CHECK_VALUES(y[6], 0.99166483f, -0.25554112f, -0.92581469f, 0.49411336f, 1.790152f,
                 -0.95541584f, -1.5439517f, 1.3532752f, 2.1868925f, -1.9168133f, -1.6929508f,
                 2.3530681f, -0.1086366f, -0.97179842f, 0.35905835f, 0.87927306f, -0.69427395f,
                 -1.7001592f, 1.1323862f, 1.4083557f, -1.6039406f, -1.9948308f, 2.1179864f,
                 1.449049f);
    CHECK_VALUES(ls_grad(a[6]), 2.1868925f, -1.9168133f, -1.6929508f, 2.3530681f, 1.1952277f,
                 -1.6612722f, -0.76713616f, 1.8589547f, 0.39674059f, -0.96139747f, -0.14899902f,
                 0.99979287f, -1.6039406f, -1.9948308f, 2.1179864f, 1.449049f, -1.495304f,
                 -1.0230324f, 1.7589282f, 0.569776f, -0.90966666f, -0.2946716f, 0.98560029f,
                 0.040693257f);
}

/* x = f(8, 2, 4).requires_grad_(); w = f(4, 4).requires_grad_()
 * y = rms_norm(x, (4,), w, 1e-5); (y * f(8, 2, 4)).sum().backward()
 * p("y", y); p("dx", x.grad); p("dw", w.grad)
 */
LOCAL_TEST(rms_norm_agrees_with_torch)
{
    ls_tensor *x = waves(LS_SHAPE(2, 4)), *w = waves(LS_SHAPE(4)), *y = ls_rms_norm(x, w, 1e-5);
    CHECK_VALUES(y, 1.3413386f, 0.089069739f, 1.1691136f, 0.33301345f, 1.0563157f, 0.23858437f,
                 0.76343101f, 0.56632072f);
    weigh(y);
    CHECK_VALUES(ls_grad(x), 1.1616595f, 0.13537107f, 1.3368614f, 0.24348535f, 0.81079376f,
                 0.45378461f, 0.95349824f, 0.30214223f);
    CHECK_VALUES(ls_grad(w), 2.1918826f, 0.74250335f, 1.6788323f, 1.317729f);
}

/* x = f(16, 1, 2, 2, 4).requires_grad_()
 * a = torch.outer(torch.arange(5., 7.), 10000. ** (-torch.arange(0., 4., 2.) / 4))
 * a = torch.cat((a, a), -1)
 * y = x * a.cos() + torch.cat((-x[..., 2:], x[..., :2]), -1) * a.sin()
 * (y * f(16, 1, 2, 2, 4)).sum().backward(); p("y", y); p("dx", x.grad)
 */
LOCAL_TEST(rotary_agrees_with_its_formula_in_torch)
{
    ls_tensor *x = waves(LS_SHAPE(1, 2, 2, 4)), *y = ls_rotary(x, 5, 10000.0);
    CHECK_VALUES(y, -0.60648835f, -0.27991712f, -1.2135501f, 0.48072413f, 0.59396648f, -0.75013411f,
                 -0.81662655f, 0.8156485f, -0.030338481f, -1.0101647f, -0.42270958f, 0.95049351f,
                 -0.0039831623f, -1.0227745f, 0.37511188f, 0.81941795f);
    weigh(y);
    CHECK_VALUES(ls_grad(x), 1.1690841f, -0.23052639f, 0.68831289f, 0.50626761f, 0.93940067f,
                 -0.64709651f, -0.37040722f, 0.89958304f, 0.25541908f, -0.91022712f, 0.33817881f,
                 1.0465932f, -0.2046361f, -0.91732496f, 0.3144024f, 0.93596375f);
}

/* def g(name, causal, mask, s, hkv, scale):
 *     q = f(16, 1, 2, 4, 2).requires_grad_()
 *     k = f(2 * s * hkv, 1, hkv, s, 2).cos().requires_grad_()
 *     v = f(2 * s * hkv, 1, hkv, s, 2).requires_grad_()
 *     o = scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale,
 *                                      enable_gqa=True)
 *     (o * f(16, 1, 2, 4, 2)).sum().backward(); p(name, o)
 *     p("dq" + name, q.grad); p("dk" + name, k.grad); p("dv" + name, v.grad)
 * m = f(10, 2, 1, 5); m[0, 0, 1] = m[1, 0, 4] = -torch.inf
 * g("grouped", True, None, 4, 1, None); g("masked", False, m, 5, 2, .3)
 */
/* for rope in (dict(rope_type="llama3", factor=8., low_freq_factor=1., high_freq_factor=4.,
 *                   original_max_position_embeddings=64), dict(rope_type="linear", factor=4.)):
 *     config = transformers.LlamaConfig(hidden_size=16, num_attention_heads=1,
 *                                       rope_parameters=dict(rope, rope_theta=1e4))
 *     frequencies = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[rope["rope_type"]]
 *     p("f", frequencies(config, "cpu")[0])
 * A row (1, 0) at position 1 turns to (cos f, sin f). */
static void check_frequencies(ls_tensor *x, const double want[8])
{
    float got[16];
    CHECK_OK(ls_tensor_status(x));
    CHECK_OK(ls_copy_out(x, got, sizeof got));
    for (int d = 0; d < 8; d++) {
        CHECK(fabs(atan2((double)got[8 + d], (double)got[d]) - want[d]) <= 1e-7);
    }
}

LOCAL_TEST(scaled_rotary_positions_have_transformers_frequencies)
{
    static const double llama3[] = {1.0,     0.24438459,    0.013042256, 0.0039528473,
                                    0.00125, 0.00039528473, 0.000125001, 3.9528473e-05};
    static const double linear[] = {0.25,   0.079056941,   0.025,   0.0079056947,
                                    0.0025, 0.00079056947, 0.00025, 7.9056947e-05};
    ls_tensor *x = ls_concat((ls_tensor *[]){ls_ones(LS_SHAPE(1, 1, 1, 8), LS_FLOAT32),
                                             ls_zeros(LS_SHAPE(1, 1, 1, 8), LS_FLOAT32)},
                             2, 3);
    check_frequencies(ls_rotary_scaled(x, 1, 1e4,
                                       LS_OPTIONS(ls_rotary_scaling_options, .factor = 8.0,
                                                  .low_freq_factor = 1.0, .high_freq_factor = 4.0,
                                                  .original_positions = 64)),
                      llama3);
    check_frequencies(ls_rotary_scaled(x, 1, 1e4,
                                       LS_OPTIONS(ls_rotary_scaling_options, .factor = 4.0,
                                                  .original_positions = 0)),
                      linear);
    ls_tensor *plain = ls_rotary_scaled(x, 1, 1e4, NULL), *same = ls_rotary(x, 1, 1e4);
    CHECK(memcmp(ls_data(plain), ls_data(same), 16 * sizeof(float)) == 0);
}

LOCAL_TEST(attention_with_options_agrees_with_torch)
{
    float mask[10];
    for (int i = 0; i < 10; i++) {
        mask[i] = i == 1 || i == 9 ? -INFINITY : (float)sin(1.7 * (double)(i + 1));
    }
    ls_tensor *m = ls_from_data(mask, LS_SHAPE(2, 1, 5), LS_FLOAT32);
    for (int kind = 0; kind < 2; kind++) {
        ls_shape shape = kind == 0 ? LS_SHAPE(1, 1, 4, 2) : LS_SHAPE(1, 2, 5, 2);
        float data[64];
        ls_tensor *q = waves(LS_SHAPE(1, 2, 4, 2)), *v = waves(shape);
        for (int i = 0; i < 64; i++) {
            data[i] = (float)cos(sin(1.7 * (double)(i + 1)));
        }
        ls_tensor *k = leaf(data, shape), *o;
        if (kind == 0) {
            o = ls_attention(q, k, v, LS_OPTIONS(ls_attention_options, .causal = true));
            weigh(o);
            CHECK_VALUES(o, 0.99166483f, -0.25554112f, 0.064418748f, 0.10697341f, 0.29153207f,
                         -0.17257592f, 0.097681753f, 0.072841197f, 0.99166483f, -0.25554112f,
                         0.065164864f, 0.1066817f, 0.28808543f, -0.1654242f, 0.077166304f,
                         0.088955462f);
            CHECK_VALUES(ls_grad(q), 0, 0, 0.020417137f, -0.0330154f, 0.012228092f, -0.01159087f,
                         0.026930029f, -0.031338375f, 0, 0, 0.0098500624f, -0.015928024f,
                         0.011142289f, -0.013261355f, 0.0076475609f, -0.0070344131f);
            CHECK_VALUES(ls_grad(k), 0.59027368f, -0.60661095f, -0.74730277f, 0.87923384f,
                         0.23452033f, -0.47797713f, -0.077491246f, 0.20535418f);
            CHECK_VALUES(ls_grad(v), 0.96114588f, -0.48245165f, -0.36595401f, 0.62348485f,
                         0.19522916f, -0.18429738f, -0.046057552f, 0.38699335f);
        } else {
            o = ls_attention(q, k, v, LS_OPTIONS(ls_attention_options, .mask = m, .scale = 0.3));
            weigh(o);
            CHECK_VALUES(o, 0.38707668f, -0.25125161f, 0.4401378f, -0.2364805f, 0.38119006f,
                         -0.25211769f, 0.44241324f, -0.23682506f, -0.025286391f, 0.20901577f,
                         -0.037628874f, 0.18777838f, -0.027625829f, 0.20530474f, -0.034488976f,
                         0.19287488f);
            CHECK_VALUES(ls_grad(q), -0.016274655f, 0.019782383f, 0.01568903f, -0.019459877f,
                         -0.009497039f, 0.013276529f, 0.0077025089f, -0.011154701f, -0.0053145131f,
                         0.0061946181f, 0.0072380099f, -0.0081789847f, -0.0078696767f, 0.008797409f,
                         0.0086879851f, -0.0095595941f);
            CHECK_VALUES(ls_grad(k), 0.19439349f, -0.12410422f, 0, 0, 0.03296956f, -0.023799211f,
                         -0.34738451f, 0.24878381f, 0.12002143f, -0.10088034f, -0.0040750178f,
                         0.089799166f, 0.0039368044f, -0.14127785f, 0.007665928f, 0.35359091f,
                         -0.0075277179f, -0.30211225f, 0, 0);
            CHECK_VALUES(ls_grad(v), -0.012498528f, 0.23234835f, 0, 0, 0.011739332f, 0.024107561f,
                         0.086405098f, 0.07279548f, 0.1605542f, 0.068608016f, 0.051755548f,
                         -0.018233217f, 0.056125127f, -0.016983062f, 0.24194565f, -0.034325927f,
                         0.14833701f, 0.015412241f, 0, 0);
        }
    }
}

/* x = f(12, 4, 3).requires_grad_(); t = torch.tensor([2, -100, 0, 1])
 * l = cross_entropy(x, t, label_smoothing=.1); l.backward(); p("l", l); p("dl", x.grad)
 * x.grad = None; l = nll_loss(log_softmax(x, 1), t); l.backward(); p("nll", l); p("dnll", x.grad)
 * x.grad = None; y = f(12, 4, 3).cos().requires_grad_()
 * l = binary_cross_entropy_with_logits(x, y); l.backward()
 * p("bce", l); p("dbce", x.grad); p("dy", y.grad)
 */
LOCAL_TEST(losses_agree_with_torch)
{
    const int64_t target[] = {2, -100, 0, 1};
    float shares[12];
    for (int i = 0; i < 12; i++) {
        shares[i] = (float)cos(sin(1.7 * (double)(i + 1)));
    }
    ls_tensor *t = ls_from_data(target, LS_SHAPE(4), LS_INT64), *x = waves(LS_SHAPE(4, 3));
    ls_tensor *l =
        ls_cross_entropy(x, t, LS_OPTIONS(ls_cross_entropy_options, .label_smoothing = 0.1));
    CHECK_VALUES(l, 1.9066883f);
    CHECK_OK(ls_backward(l));
    CHECK_VALUES(ls_grad(x), 0.22129297f, 0.055660073f, -0.27695304f, 0, 0, 0, -0.27016166f,
                 0.16829224f, 0.10186942f, 0.021060538f, -0.23861852f, 0.21755798f);
    x = waves(LS_SHAPE(4, 3));
    l = ls_nll_loss(ls_log_softmax(x, 1), t);
    CHECK_VALUES(l, 1.9668697f);
    CHECK_OK(ls_backward(l));
    CHECK_VALUES(ls_grad(x), 0.2324041f, 0.066771194f, -0.29917529f, 0, 0, 0, -0.29238391f,
                 0.17940336f, 0.11298054f, 0.032171652f, -0.26084077f, 0.22866911f);
    x = waves(LS_SHAPE(4, 3));
    ls_tensor *y = leaf(shares, LS_SHAPE(4, 3));
    l = ls_bce_with_logits(x, y);
    CHECK_VALUES(l, 0.75909877f);
    CHECK_OK(ls_backward(l));
    CHECK_VALUES(ls_grad(x), 0.015176619f, -0.044255544f, -0.026450766f, -0.02160955f,
                 -0.00067836541f, -0.036090244f, -0.038729519f, 0.0041177473f, -0.027035093f,
                 -0.024648013f, -0.043841761f, 0.015878439f);
    CHECK_VALUES(ls_grad(y), -0.082638733f, 0.021295093f, 0.077151224f, -0.041176114f,
                 -0.066540591f, 0.058322892f, 0.051511426f, -0.071596816f, -0.033061717f,
                 0.080116458f, 0.012416585f, -0.083316073f);
}

/* for name, g in (("relu", relu), ("gelu", gelu), ("gelu_tanh", lambda t: gelu(t,
 *                 approximate="tanh")), ("silu", silu), ("tanh", torch.tanh)):
 *     x, w, b = (f(12, 4, 3).requires_grad_(), f(6, 2, 3).requires_grad_(),
 *                f(2, 2).requires_grad_())
 *     y = g(linear(x, w, b)); (y * f(8, 4, 2)).sum().backward()
 *     p(name, y); p("dx", x.grad); p("dw", w.grad); p("db", b.grad)
 */
static void check_layer(ls_activation activation, const float *want)
{
    ls_tensor *x = waves(LS_SHAPE(4, 3)), *w = waves(LS_SHAPE(2, 3)), *b = waves(LS_SHAPE(2));
    ls_tensor *y = ls_linear_activation(x, w, b, activation);
    weigh(y);
    check_near(__LINE__, y, want, 8);
    check_near(__LINE__, ls_grad(x), want + 8, 12);
    check_near(__LINE__, ls_grad(w), want + 20, 6);
    check_near(__LINE__, ls_grad(b), want + 26, 2);
}

#define CHECK_LAYER(activation, ...) check_layer(activation, (const float[]){__VA_ARGS__})

LOCAL_TEST(linear_layers_with_an_activation_agree_with_torch)
{
    CHECK_LAYER(LS_ACTIVATION_RELU, 2.8974981f, 0.67836165f, 1.9255676f, 1.1160133f, 0, 0, 0, 0,
                0.85713285f, -0.45745742f, -0.73925108f, -0.67394984f, 0.63112688f, 0.51131541f, 0,
                0, 0, 0, 0, 0, 0.52594173f, -0.99266225f, -0.27014357f, -0.0092631355f, 0.45984441f,
                -0.10923371f, 0.065850139f, 0.23857224f);
    CHECK_LAYER(LS_ACTIVATION_GELU, 2.8920486f, 0.50960481f, 1.8734248f, 0.96846718f, -0.086924151f,
                -0.06704966f, -0.16804138f, -0.093974538f, 0.87663156f, -0.45449317f, -0.75951368f,
                -0.73351508f, 0.69526035f, 0.55435413f, 0.13514647f, -0.28051388f, -0.06286113f,
                -0.029751634f, -0.09214136f, 0.053495448f, 0.30974951f, -0.83835441f, -0.093714818f,
                0.29301259f, 0.28777704f, -0.36716959f, 0.28711611f, -0.07328622f);
    CHECK_LAYER(LS_ACTIVATION_GELU_TANH, 2.8924935f, 0.50955492f, 1.873459f, 0.96827596f,
                -0.086924754f, -0.067049839f, -0.16814138f, -0.094177932f, 0.87639832f,
                -0.45437562f, -0.75931072f, -0.7343632f, 0.69534099f, 0.5551815f, 0.13515376f,
                -0.28051877f, -0.062867157f, -0.030098509f, -0.092317179f, 0.053887632f,
                0.30929324f, -0.8388716f, -0.093125291f, 0.29327795f, 0.28768212f, -0.36741045f,
                0.28587091f, -0.073662825f);
    CHECK_LAYER(LS_ACTIVATION_SILU, 2.7460246f, 0.45000675f, 1.6805546f, 0.8406353f, -0.093294002f,
                -0.070493832f, -0.25442904f, -0.2714186f, 0.97027224f, -0.44281051f, -0.85616487f,
                -0.7630533f, 0.63609904f, 0.5991376f, 0.16746265f, -0.31787947f, -0.085548595f,
                -0.095070265f, -0.014222028f, 0.098735124f, 0.45244426f, -0.79651034f, -0.24719231f,
                0.25168803f, 0.18352354f, -0.29898003f, 0.31789136f, -0.072109692f);
    CHECK_LAYER(LS_ACTIVATION_TANH, 0.99393296f, 0.59045327f, 0.95837361f, 0.80617774f,
                -0.20522325f, -0.15143621f, -0.69068623f, -0.91366726f, -0.070348978f, -0.13597417f,
                0.10538803f, 0.010627348f, 0.15740697f, -0.051189393f, 0.42059556f, -0.74147767f,
                -0.22952493f, -0.25042558f, 0.19594572f, 0.1999325f, -0.1874045f, 0.64197195f,
                0.021975417f, 0.20664036f, -0.42800981f, -0.096346945f, 0.37812519f, -0.53535318f);
}

TEST_MAIN
