/* SPDX-License-Identifier: Apache-2.0 */
/* Values and gradients beside those of PyTorch 2.13. Each block was printed by the Python lines
 * above it, run after
 *     import torch; from torch.nn.functional import *
 *     def p(name, t): print(name, ["%.8g" % v for v in t.detach().flatten().tolist()]) */
#include <math.h>

#include <lockstep/ops.h>

#include "../unit/tensor/local.h"

#define TOLERANCE 2e-6 /* float32 on both sides, sums of at most six terms near 1 */

static void check_near(ls_tensor *t, const float *want, int64_t count)
{
    float got[64];
    CHECK_OK(ls_tensor_status(t));
    CHECK_INT(ls_numel(t), count);
    CHECK_OK(ls_copy_out(t, got, (size_t)count * sizeof(float)));
    for (int64_t i = 0; i < count; i++) {
        CHECK_NEAR(got[i], want[i], TOLERANCE * (1.0 + fabs((double)want[i])));
    }
}

#define CHECK_VALUES(t, ...)                                                                       \
    check_near(t, (const float[]){__VA_ARGS__},                                                    \
               (int64_t)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)))

static ls_tensor *leaf(const float *data, ls_shape shape)
{
    return ls_set_requires_grad(ls_from_data(data, shape, LS_FLOAT32), true);
}

/* x = torch.tensor([-2., -.5, 0., .25, 1., 3.], requires_grad=True)
 * for a in ("none", "tanh"):
 *     x.grad = None; y = gelu(x, approximate=a); y.sum().backward(); p(a, y); p("dx", x.grad) */
LOCAL_TEST(gelu_agrees_with_torch)
{
    const float values[] = {-2.0f, -0.5f, 0.0f, 0.25f, 1.0f, 3.0f};
    ls_tensor *x = leaf(values, LS_SHAPE(6));
    ls_tensor *y = ls_gelu(x, LS_GELU_ERF);
    CHECK_VALUES(y, -0.045500278f, -0.15426877f, 0.0f, 0.14967658f, 0.84134471f, 2.9959497f);
    CHECK_OK(ls_backward(ls_sum(y)));
    CHECK_VALUES(ls_grad(x), -0.08523187f, 0.13250491f, 0.5f, 0.6953733f, 1.0833154f, 1.0119456f);
    ls_tensor *z = leaf(values, LS_SHAPE(6));
    y = ls_gelu(z, LS_GELU_TANH);
    CHECK_VALUES(y, -0.045402288f, -0.154286f, 0.0f, 0.14967535f, 0.84119201f, 2.9963627f);
    CHECK_OK(ls_backward(ls_sum(y)));
    CHECK_VALUES(ls_grad(z), -0.086099222f, 0.13263011f, 0.5f, 0.6953541f, 1.0829641f, 1.0115843f);
}

/* x = torch.tensor([[1., 2., 4.], [-1., .5, 0.]], requires_grad=True)
 * w = torch.tensor([1., .5, -2.], requires_grad=True)
 * b = torch.tensor([0., 1., -1.], requires_grad=True)
 * y = layer_norm(x, (3,), w, b); (y * torch.arange(1., 7.).reshape(2, 3)).sum().backward()
 * p("y", y); p("dx", x.grad); p("dw", w.grad); p("db", b.grad) */
LOCAL_TEST(layer_norm_agrees_with_torch)
{
    const float x0[] = {1, 2, 4, -1, 0.5f, 0}, w0[] = {1, 0.5f, -2}, b0[] = {0, 1, -1};
    const float r0[] = {1, 2, 3, 4, 5, 6};
    ls_tensor *x = leaf(x0, LS_SHAPE(2, 3)), *w = leaf(w0, LS_SHAPE(3)), *b = leaf(b0, LS_SHAPE(3));
    ls_tensor *y = ls_layer_norm(x, w, b, 1e-5);
    CHECK_VALUES(y, -1.0690414f, 0.86636984f, -3.6726036f, -1.3362892f, 1.5345156f, -1.5345156f);
    CHECK_OK(ls_backward(ls_sum(ls_mul(y, ls_from_data(r0, LS_SHAPE(2, 3), LS_FLOAT32)))));
    CHECK_VALUES(ls_grad(x), -0.80176306f, 1.2026763f, -0.40091228f, 5.154366f, 10.30843f,
                 -15.462793f);
    CHECK_VALUES(ls_grad(w), -6.4141974f, 4.8106356f, 5.612452f);
    CHECK_VALUES(ls_grad(b), 5, 7, 9);
}

/* x = torch.tensor([[1., 2., 3.], [0., -1., 5.]], requires_grad=True)
 * l = cross_entropy(x, torch.tensor([2, 0])); l.backward(); p("l", l); p("dx", x.grad) */
LOCAL_TEST(cross_entropy_agrees_with_torch)
{
    const float x0[] = {1, 2, 3, 0, -1, 5};
    const int64_t target[] = {2, 0};
    ls_tensor *x = leaf(x0, LS_SHAPE(2, 3));
    ls_tensor *loss = ls_cross_entropy(x, ls_from_data(target, LS_SHAPE(2), LS_INT64), NULL);
    CHECK_VALUES(loss, 2.7083902f);
    CHECK_OK(ls_backward(loss));
    CHECK_VALUES(ls_grad(x), 0.04501529f, 0.12236425f, -0.1673795f, -0.49666178f, 0.0012280577f,
                 0.49543375f);
}

/* n = torch.arange(12.); s = (1, 2, 3, 2)
 * q = (n / 10 - .5).reshape(s).requires_grad_(); k = (n.flip(0) / 7 -
 * 1).reshape(s).requires_grad_() v = torch.sin(n).reshape(s).requires_grad_() o =
 * scaled_dot_product_attention(q, k, v, is_causal=True) (o *
 * torch.cos(n).reshape(s)).sum().backward() p("o", o); p("dq", q.grad); p("dk", k.grad); p("dv",
 * v.grad) */
LOCAL_TEST(causal_attention_agrees_with_torch)
{
    float q0[12], k0[12], v0[12], r0[12];
    for (int i = 0; i < 12; i++) {
        q0[i] = (float)i / 10 - 0.5f;
        k0[i] = (float)(11 - i) / 7 - 1;
        v0[i] = sinf((float)i);
        r0[i] = cosf((float)i);
    }
    ls_shape shape = LS_SHAPE(1, 2, 3, 2);
    ls_tensor *q = leaf(q0, shape), *k = leaf(k0, shape), *v = leaf(v0, shape);
    ls_tensor *o = ls_attention(q, k, v, LS_OPTIONS(ls_attention_options, .causal = true));
    CHECK_VALUES(o, 0, 0.84147096f, 0.47759244f, 0.47362402f, 0.045677014f, -0.0042438428f,
                 -0.27941549f, 0.65698659f, 0.31018806f, 0.54319555f, 0.067154415f, 0.14162041f);
    CHECK_OK(ls_backward(ls_sum(ls_mul(o, ls_from_data(r0, shape, LS_FLOAT32)))));
    CHECK_VALUES(ls_grad(q), 0, 0, -0.015866395f, -0.015866399f, 0.00036707442f, 0.00036707247f, 0,
                 0, -0.0019348525f, -0.0019348505f, -0.0026876947f, -0.0026876833f);
    CHECK_VALUES(ls_grad(k), 0.010429583f, 0.011106484f, -0.0043279263f, -0.011106493f,
                 -0.0061016683f, 0, 0.040402114f, 0.048211657f, -0.087539285f, -0.10477626f,
                 0.047137167f, 0.056564599f);
    CHECK_VALUES(ls_grad(v), 0.58893245f, 0.16293627f, -0.43642539f, -0.42543492f, -0.22229759f,
                 0.096470654f, 0.53866953f, 0.26798975f, -0.34275663f, -0.42195413f, -0.2203142f,
                 0.0011620512f);
}

TEST_MAIN
