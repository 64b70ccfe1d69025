/* SPDX-License-Identifier: Apache-2.0 */
/* A transformer block and a small loss, forward and backward, on the fast kernels against the plain
 * ones, over odd sizes. Plain kernels sum in float64, fast ones in float32: a result of n terms
 * near 1 may differ by about n * 6e-8, so the tolerance is relative to the largest gradient. */
#include <math.h>
#include <string.h>

#include <lockstep/ops.h>
#include <lockstep/random.h>

#include "../unit/tensor/local.h"

enum { PARAMS = 10, VALUES_MAX = 1 << 18 };

typedef struct sizes {
    int64_t batch, time, heads, dim, vocab;
} sizes;

typedef struct outcome {
    int64_t count;
    float values[VALUES_MAX]; /* the loss, then all gradients */
} outcome;

static ls_tensor *block(const sizes *s, ls_tensor **p, ls_tensor *ids)
{
    int64_t width = s->heads * s->dim;
    ls_tensor *x = ls_add(ls_embedding(p[0], ids), ls_slice(p[1], 0, 0, s->time));
    ls_tensor *h = ls_linear(ls_layer_norm(x, p[2], p[3], 1e-5), p[4], p[5]);
    ls_tensor *all = ls_reshape(h, LS_SHAPE(s->batch, s->time, 3, s->heads, s->dim));
    ls_tensor *part[3];
    for (int i = 0; i < 3; i++) {
        ls_tensor *one = ls_slice(all, 2, i, i + 1);
        one = ls_reshape(one, LS_SHAPE(s->batch, s->time, s->heads, s->dim));
        part[i] = ls_transpose(one, 1, 2);
    }
    ls_tensor *o = ls_transpose(
        ls_attention(part[0], part[1], part[2], LS_OPTIONS(ls_attention_options, .causal = true)),
        1, 2);
    o = ls_reshape(o, LS_SHAPE(s->batch, s->time, width));
    x = ls_add(x, ls_dropout(ls_matmul(o, p[6]), 0.1));
    h = ls_gelu(ls_linear(ls_layer_norm(x, NULL, NULL, 1e-5), p[7], NULL), LS_GELU_ERF);
    x = ls_add(x, ls_matmul(ls_tanh(h), ls_softmax(p[8], 1)));
    return ls_linear(ls_mul(x, p[9]), p[0], NULL); /* tied to the embedding */
}

static void run(const sizes *s, const ls__kernels *kernels, outcome *out)
{
    int64_t width = s->heads * s->dim;
    const ls_shape shapes[PARAMS] = {LS_SHAPE(s->vocab, width),
                                     LS_SHAPE(s->time + 2, width),
                                     LS_SHAPE(width),
                                     LS_SHAPE(width),
                                     LS_SHAPE(3 * width, width),
                                     LS_SHAPE(3 * width),
                                     LS_SHAPE(width, width),
                                     LS_SHAPE(2 * width, width),
                                     LS_SHAPE(2 * width, width),
                                     LS_SHAPE(1)};
    out->count = 1;
    CHECK_OK(ls__tensor_use_kernels(kernels));
    LS_SCOPE;
    ls_tensor *p[PARAMS];
    int32_t tokens[256];
    for (int64_t i = 0; i < s->batch * s->time; i++) {
        tokens[i] = (int32_t)(i * 31 % s->vocab);
    }
    ls_step_begin((ls_step_context){1, 0});
    for (int i = 0; i < PARAMS; i++) {
        p[i] = ls_set_requires_grad(ls_scale(ls_rand(shapes[i]), 0.5), true);
    }
    ls_tensor *ids = ls_from_data(tokens, LS_SHAPE(s->batch, s->time), LS_INT32);
    ls_tensor *loss = ls_cross_entropy(block(s, p, ids), ids, NULL);
    CHECK_OK(ls_copy_out(loss, out->values, sizeof(float)));
    CHECK_OK(ls_backward(loss));
    for (int i = 0; i < PARAMS; i++) {
        int64_t numel = ls_numel(p[i]);
        CHECK(out->count + numel <= VALUES_MAX);
        CHECK_OK(
            ls_copy_out(ls_grad(p[i]), out->values + out->count, (size_t)numel * sizeof(float)));
        out->count += numel;
    }
}

LOCAL_TEST(fast_kernels_train_a_block_as_the_plain_ones_do)
{
    static outcome plain, fast, again;
    const sizes cases[] = {{1, 1, 1, 1, 2},
                           {2, 3, 1, 5, 7},
                           {1, 17, 3, 8, 31},
                           {3, 16, 2, 16, 64},
                           {2, 33, 4, 12, 257}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        run(&cases[c], ls__kernels_ref(), &plain);
        run(&cases[c], ls__kernels_cpu(), &fast);
        run(&cases[c], ls__kernels_cpu(), &again);
        CHECK(memcmp(&fast, &again, sizeof fast) == 0); /* to the bit */
        double largest = 0.0;
        for (int64_t i = 0; i < plain.count; i++) {
            largest = fmax(largest, fabs((double)plain.values[i]));
        }
        for (int64_t i = 0; i < plain.count; i++) {
            CHECK_NEAR(fast.values[i], plain.values[i], 2e-6 * largest + 1e-7);
        }
    }
}

TEST_MAIN
