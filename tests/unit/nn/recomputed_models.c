/* SPDX-License-Identifier: Apache-2.0 */
/* The models' .recompute: gradients of every parameter equal to the last bit to those without, with
 * dropout, and with two forward passes (whose masks differ) before the backward pass. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include <lockstep/models/bert.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/mixtral.h>
#include <lockstep/models/vit.h>

enum { BATCH = 3, TOKENS = 6, VOCAB = 11, PARAMS_MAX = 64 };

typedef struct model {
    ls_module *(*make)(bool recompute);
    ls_tensor *(*input)(int pass);
} model;

typedef struct outcome {
    double loss;
    float *grads; /* [count] of all parameters */
    size_t count;
    int64_t peak; /* bytes in use at most, above those before the first forward pass */
} outcome;

static ls_module *make_gpt(bool recompute)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 5, .heads = 2, .dim = 16,
                                 .context = TOKENS, .vocab = VOCAB, .dropout = 0.2,
                                 .recompute = recompute));
}

static ls_module *make_gpt2(bool recompute)
{
    return ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = 5, .heads = 2, .dim = 16,
                                  .context = TOKENS, .vocab = VOCAB, .dropout = 0.2,
                                  .recompute = recompute));
}

static ls_module *make_mixtral(bool recompute)
{
    return ls_mixtral_new(LS_OPTIONS(ls_mixtral_options, .layers = 5, .heads = 2, .kv_heads = 1,
                                     .dim = 16, .hidden = 32, .experts = 4, .context = TOKENS,
                                     .vocab = VOCAB, .recompute = recompute));
}

static ls_module *make_llama(bool recompute)
{
    return ls_llama_new(LS_OPTIONS(ls_llama_options, .layers = 5, .heads = 2, .kv_heads = 1,
                                   .dim = 16, .hidden = 32, .context = TOKENS, .vocab = VOCAB,
                                   .recompute = recompute));
}

static ls_module *make_bert(bool recompute)
{
    return ls_bert_new(LS_OPTIONS(ls_bert_options, .layers = 5, .heads = 2, .dim = 16, .wide = 64,
                                  .context = TOKENS, .vocab = VOCAB, .dropout = 0.2,
                                  .recompute = recompute));
}

static ls_module *make_vit(bool recompute)
{
    return ls_vit_new(LS_OPTIONS(ls_vit_options, .layers = 5, .heads = 2, .dim = 16, .wide = 64,
                                 .image = 8, .patch = 4, .classes = VOCAB, .dropout = 0.2,
                                 .recompute = recompute));
}

static ls_tensor *tokens(int pass)
{
    int32_t x[BATCH * TOKENS];
    for (int i = 0; i < BATCH * TOKENS; i++) {
        x[i] = (i * 5 + pass) % VOCAB;
    }
    return ls_from_data(x, LS_SHAPE(BATCH, TOKENS), LS_INT32);
}

/* Tokens, types, and which tokens are there: other ones in each pass. */
static ls_tensor *planes(int pass)
{
    int32_t x[BATCH][3][TOKENS];
    for (int b = 0; b < BATCH; b++) {
        for (int t = 0; t < TOKENS; t++) {
            x[b][0][t] = (b * 7 + t * 5 + pass) % VOCAB;
            x[b][1][t] = t > 2;
            x[b][2][t] = t < TOKENS - b - pass;
        }
    }
    return ls_from_data(x, LS_SHAPE(BATCH, 3, TOKENS), LS_INT32);
}

static ls_tensor *images(int pass)
{
    (void)pass;
    return ls_randn(LS_SHAPE(BATCH, 3, 8, 8));
}

static const model gpt_model = {make_gpt, tokens}, gpt2_model = {make_gpt2, tokens},
                   bert_model = {make_bert, planes}, vit_model = {make_vit, images},
                   mixtral_model = {make_mixtral, tokens}, llama_model = {make_llama, tokens};

/* BERT takes its planes one by one. */
static ls_tensor *output_of(const model *m, ls_module *net, int pass)
{
    ls_tensor *x = m->input(pass), *inputs[3], *y = NULL;
    if (m != &bert_model) {
        return ls_forward(net, x);
    }
    for (int i = 0; i < 3; i++) {
        inputs[i] = ls_reshape(ls_slice(x, 1, i, i + 1), LS_SHAPE(BATCH, TOKENS));
    }
    CHECK_OK(ls_forward_many(net, inputs, 3, &y, 1));
    return y;
}

static void take_gradients(ls_module *net, outcome *out)
{
    static ls_param params[2 * PARAMS_MAX];
    int count = ls_module_params(net, params, 2 * PARAMS_MAX);
    CHECK(count <= 2 * PARAMS_MAX);
    out->grads = malloc((size_t)ls_module_numel(net) * sizeof *out->grads);
    CHECK(out->grads != NULL);
    for (int i = 0; i < count; i++) {
        ls_tensor *grad = ls_grad(params[i].value);
        CHECK(grad != NULL);
        size_t numel = (size_t)ls_numel(grad);
        CHECK_OK(ls_copy_out(grad, out->grads + out->count, numel * sizeof(float)));
        out->count += numel;
    }
}

static outcome learn(const model *m, bool recompute)
{
    outcome out = {0};
    ls_memory_stats before = {.size = sizeof before}, after = before;
    CHECK_OK(ls_manual_seed(5));
    ls_module *net = m->make(recompute);
    CHECK(net != NULL);
    for (int round = 0; round < 2; round++) { /* gradients have their memory in the second */
        CHECK_OK(ls_memory_reset_peaks());
        CHECK_OK(ls_memory_get_stats(&before));
        ls_step_begin((ls_step_context){.step = (uint64_t)round});
        LS_SCOPE;
        ls_tensor *a = output_of(m, net, 0), *b = output_of(m, net, 1);
        ls_tensor *target = ls_ones(ls_shape_of(a), LS_FLOAT32);
        ls_tensor *loss = ls_add(ls_mse_loss(a, target), ls_mse_loss(b, target));
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_item(loss, &out.loss));
    }
    CHECK_OK(ls_memory_get_stats(&after));
    out.peak = (int64_t)(after.allocated_peak - before.allocated);
    take_gradients(net, &out);
    ls_module_free(net);
    return out;
}

static void check(const model *m)
{
    CHECK_OK(ls_init(NULL));
    outcome kept = learn(m, false), again = learn(m, true);
    CHECK(kept.loss == again.loss && kept.count == again.count);
    CHECK(memcmp(kept.grads, again.grads, kept.count * sizeof *kept.grads) == 0);
    if (!(again.peak < kept.peak * 3 / 4)) {
        test_fail(__FILE__, __LINE__, "recomputed it takes %lld bytes, kept %lld",
                  (long long)again.peak, (long long)kept.peak);
    }
    free(kept.grads);
    free(again.grads);
    CHECK_OK(ls_finalize());
}

TEST(gpt_recomputed_has_the_gradients_of_gpt_kept)
{
    check(&gpt_model);
}

TEST(gpt2_recomputed_has_the_gradients_of_gpt2_kept)
{
    check(&gpt2_model);
}

TEST(mixtral_recomputed_has_the_gradients_of_mixtral_kept)
{
    check(&mixtral_model);
}

TEST(llama_recomputed_has_the_gradients_of_llama_kept)
{
    check(&llama_model);
}

TEST(bert_recomputed_has_the_gradients_of_bert_kept_and_the_mask_of_each_pass)
{
    check(&bert_model);
}

TEST(vit_recomputed_has_the_gradients_of_vit_kept)
{
    check(&vit_model);
}

/* ---- ls_gpt2_memory_of, beside what a step really takes -------------------------------------- */

static void check_sum(bool recompute)
{
    const ls_gpt2_options o = *LS_OPTIONS(ls_gpt2_options, .layers = 6, .heads = 4, .dim = 128,
                                          .context = 64, .vocab = 300, .recompute = recompute);
    const ls_gpt2_memory sum = ls_gpt2_memory_of(&o, 4, 64);
    ls_memory_stats before = {.size = sizeof before}, after = before;
    ls_module *net = ls_gpt2_new(&o);
    CHECK(net != NULL);
    CHECK_INT(sum.parameters, ls_module_numel(net));
    CHECK_OK(ls_memory_reset_peaks());
    CHECK_OK(ls_memory_get_stats(&before));
    {
        LS_SCOPE;
        ls_tensor *x = ls_zeros(LS_SHAPE(4, 64), LS_INT32);
        CHECK_OK(ls_backward(ls_cross_entropy(ls_forward(net, x), x, NULL)));
    }
    CHECK_OK(ls_memory_get_stats(&after));
    double taken = (double)(after.allocated_peak - before.allocated);
    double told = (double)(sum.gradient_bytes + sum.activation_bytes);
    if (!(taken <= told * 1.1 && taken >= told * 0.5)) {
        test_fail(__FILE__, __LINE__, "recompute %d: a step takes %.0f bytes, told were %.0f",
                  recompute, taken, told);
    }
    ls_module_free(net);
}

TEST(the_memory_that_gpt2_asks_for_is_what_a_step_takes)
{
    CHECK_OK(ls_init(NULL));
    check_sum(false);
    check_sum(true);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
