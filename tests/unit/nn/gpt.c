/* SPDX-License-Identifier: Apache-2.0 */
/* The GPT of models/ against the same network in PyTorch 2.13: losses and gradient norms of twelve
 * AdamW steps with clipping, from weights that are a formula. The numbers are the output of
 *
 *     import math, torch
 *     import torch.nn.functional as F
 *     L, H, C, T, V, B = 2, 2, 8, 5, 11, 3
 *     def linear(o, i): return [(o, i), (o,)]
 *     shapes = [(V, C), (T, C)]
 *     for _ in range(L):
 *         shapes += [(C,), (C,), *linear(3 * C, C), *linear(C, C),
 *                    (C,), (C,), *linear(4 * C, C), *linear(C, 4 * C)]
 *     shapes += [(C,), (C,), (V, C)]
 *     P = []
 *     for k, s in enumerate(shapes):
 *         n = math.prod(s)
 *         P.append(torch.nn.Parameter(torch.tensor(
 *             [0.3 * math.sin(0.37 * i + k) for i in range(n)]).reshape(s)))
 *     def forward(x):
 *         p = iter(P)
 *         h = F.embedding(x, next(p)) + next(p)
 *         for _ in range(L):
 *             g, b, qkv, qb, pw, pb, g2, b2, u, ub, d, db = [next(p) for _ in range(12)]
 *             q, k, v = F.linear(F.layer_norm(h, (C,), g, b), qkv, qb).view(
 *                 B, T, 3, H, C // H).permute(2, 0, 3, 1, 4)
 *             a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
 *             h = h + F.linear(a.transpose(1, 2).reshape(B, T, C), pw, pb)
 *             h = h + F.linear(F.gelu(F.linear(F.layer_norm(h, (C,), g2, b2), u, ub)), d, db)
 *         return F.linear(F.layer_norm(h, (C,), next(p), next(p)), next(p))
 *     optim = torch.optim.AdamW(P, lr=0.02, weight_decay=0.1)
 *     for step in range(12):
 *         x = torch.tensor([[(7 * b + 3 * t + step) % V for t in range(T)] for b in range(B)])
 *         y = torch.tensor([[(5 * b + 2 * t + step) % V for t in range(T)] for b in range(B)])
 *         loss = F.cross_entropy(forward(x).flatten(0, 1), y.flatten())
 *         optim.zero_grad()
 *         loss.backward()
 *         norm = torch.nn.utils.clip_grad_norm_(P, 0.15)
 *         optim.step()
 *         print(f"{loss.item():.9g}, {norm.item():.9g},")
 */
#include "test.h"

#include <math.h>
#include <string.h>

#include <lockstep/models/gpt.h>

enum { STEPS = 12, BATCH = 3, CONTEXT = 5, VOCAB = 11, PARAMS_MAX = 32, NUMEL_MAX = 4096 };

static const double expected[STEPS][2] = {
    {2.52712798, 0.386391431},  {2.41316819, 0.206575722},  {2.43570113, 0.16979678},
    {2.39813566, 0.124285363},  {2.41005206, 0.143418893},  {2.39643764, 0.136007577},
    {2.40605593, 0.192705542},  {2.39114356, 0.150255322},  {2.40640163, 0.150843278},
    {2.39226604, 0.0836959258}, {2.40467715, 0.0897677317}, {2.39571118, 0.0930341184}};

/* The same with
 *         with torch.autocast("cpu", torch.bfloat16):
 * before `loss =`. */
static const double expected_autocast[STEPS][2] = {
    {2.52709961, 0.386945397},  {2.41328979, 0.207162291}, {2.43567371, 0.16967383},
    {2.39819479, 0.124194443},  {2.41014123, 0.143409804}, {2.39644313, 0.135788903},
    {2.40607214, 0.192689508},  {2.39114499, 0.150186077}, {2.40639591, 0.150977865},
    {2.39225888, 0.0838381946}, {2.4047327, 0.0894659087}, {2.39567566, 0.0931390449}};

static ls_module *make(bool recompute)
{
    ls_module *net =
        ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 2, .dim = 8, .context = CONTEXT,
                              .vocab = VOCAB, .recompute = recompute));
    CHECK(net != NULL);
    ls_param params[PARAMS_MAX];
    static float values[NUMEL_MAX];
    int count = ls_module_params(net, params, PARAMS_MAX);
    CHECK_INT(count, 2 + 2 * 12 + 3);
    for (int k = 0; k < count; k++) {
        int64_t n = ls_numel(params[k].value);
        CHECK(n <= NUMEL_MAX);
        for (int64_t i = 0; i < n; i++) {
            values[i] = (float)(0.3 * sin(0.37 * (double)i + k));
        }
        CHECK(ls_copy_in(params[k].value, values, (size_t)n * sizeof *values) == LS_OK);
    }
    return net;
}

static void make_batch(int step, int32_t x[BATCH * CONTEXT], int64_t y[BATCH * CONTEXT])
{
    for (int b = 0; b < BATCH; b++) {
        for (int t = 0; t < CONTEXT; t++) {
            x[b * CONTEXT + t] = (7 * b + 3 * t + step) % VOCAB;
            y[b * CONTEXT + t] = (5 * b + 2 * t + step) % VOCAB;
        }
    }
}

typedef struct precision {
    bool autocast;
    const double (*expected)[2];
    double loss, norm; /* how near */
} precision;

/* Both sides round in float32, in different orders, and Adam's division amplifies it. */
static const precision full = {false, expected, 1e-4, 2e-3};
/* bfloat16 is 65536 times coarser, and PyTorch rounds dW and biases, too: its own losses with and
 * without autocast are 1e-4 apart, its norms 6e-4. */
static const precision half = {true, expected_autocast, 5e-4, 4e-3};

static void learn_as_pytorch(bool recompute, const precision *p)
{
    CHECK(ls_init(NULL) == LS_OK);
    ls_module *net = make(recompute);
    ls_optim *optim =
        ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.02, .weight_decay = 0.1));
    for (int step = 0; step < STEPS; step++) {
        int32_t x[BATCH * CONTEXT];
        int64_t y[BATCH * CONTEXT];
        double loss = 0.0, norm = 0.0;
        make_batch(step, x, y);
        {
            LS_SCOPE;
            ls_tensor *mean = NULL;
            {
                LS_AUTOCAST(p->autocast);
                ls_tensor *logits =
                    ls_forward(net, ls_from_memory(x, LS_SHAPE(BATCH, CONTEXT), LS_INT32));
                mean = ls_cross_entropy(
                    logits, ls_from_memory(y, LS_SHAPE(BATCH, CONTEXT), LS_INT64), NULL);
            }
            CHECK(ls_backward(mean) == LS_OK);
            CHECK(ls_item(mean, &loss) == LS_OK);
        }
        CHECK(ls_clip_grad_norm(net, 0.15, NULL, &norm) == LS_OK);
        CHECK(ls_optim_step(optim) == LS_OK);
        ls_optim_zero_grad(optim);
        const double *want = p->expected[step];
        if (!(fabs(loss - want[0]) < p->loss) || !(fabs(norm - want[1]) < p->norm)) {
            test_fail(__FILE__, __LINE__, "step %d: loss %.9g norm %.9g, PyTorch has %.9g %.9g",
                      step, loss, norm, want[0], want[1]);
        }
    }
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK(ls_finalize() == LS_OK);
}

TEST(a_gpt_learns_as_the_same_network_in_pytorch)
{
    learn_as_pytorch(false, &full);
}

TEST(a_gpt_whose_blocks_are_recomputed_learns_as_the_same_network_in_pytorch)
{
    learn_as_pytorch(true, &full);
}

TEST(a_gpt_under_autocast_learns_as_the_same_network_in_pytorch)
{
    learn_as_pytorch(false, &half);
    learn_as_pytorch(true, &half);
}

TEST(a_gpt_that_cannot_be_built_says_why)
{
    CHECK(ls_init(NULL) == LS_OK);
    CHECK(!ls_gpt_new(LS_OPTIONS(ls_gpt_options, .dim = 0)));
    CHECK(strstr(ls_error_message(), "dim") != NULL);
    CHECK(!ls_gpt_new(LS_OPTIONS(ls_gpt_options, .dropout = 7.0)));
    CHECK(strstr(ls_error_message(), "7") != NULL);
    CHECK(ls_finalize() == LS_OK);
}

TEST_MAIN
