/* SPDX-License-Identifier: Apache-2.0 */
/* LOCKSTEP_DETERMINISTIC=strict: training gives the same bits with 1, 2 and 3 threads; without it,
 * with the same number of threads. The networks are as large as it takes for kernels to be cut
 * among threads: a convolutional one (strides, groups, batch norm, pools; weight gradients are sums
 * over all images), a GPT with dropout, and an LSTM. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>

#include <lockstep/lockstep.h>

#include <lockstep/models/gpt.h>

enum { THREADS_MAX = 3, STEPS = 3, CLASSES = 10, VOCAB = 512, BATCH = 16, CONTEXT = 64 };

typedef struct network {
    const char *name;
    ls_module *(*make)(void);
    ls_tensor *(*input)(void);
    int64_t outputs; /* classes of the last dimension */
    int64_t targets;
    bool autocast;
} network;

static ls_module *conv(int64_t in, int64_t out, int64_t stride, int64_t groups)
{
    return ls_conv2d_new(
        in, out, 3,
        LS_OPTIONS(ls_conv2d_layer_options, .stride = stride, .padding = 1, .groups = groups));
}

static ls_module *make_images(void)
{
    ls_module *layers[] = {conv(3, 32, 1, 1),
                           ls_batch_norm2d_new(32, 1e-5, 0.1),
                           ls_relu_new(),
                           ls_max_pool2d_new(3, 2, 1),
                           conv(32, 64, 1, 1),
                           ls_batch_norm2d_new(64, 1e-5, 0.1),
                           ls_relu_new(),
                           conv(64, 64, 2, 4),
                           ls_adaptive_avg_pool2d_new(2, 2),
                           ls_flatten_new(),
                           ls_linear_new(256, CLASSES, NULL)};
    return ls_sequential_new(layers, sizeof layers / sizeof *layers);
}

static ls_tensor *images(void)
{
    return ls_randn(LS_SHAPE(BATCH, 3, 32, 32));
}

static ls_module *make_gpt(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 4, .dim = 128,
                                 .vocab = VOCAB, .context = CONTEXT, .dropout = 0.1));
}

static ls_tensor *tokens(void)
{
    ls_tensor *x = ls_empty(LS_SHAPE(BATCH, CONTEXT), LS_INT32);
    int32_t *data = ls_data(x);
    for (int64_t i = 0; i < BATCH * CONTEXT; i++) {
        data[i] = (int32_t)(i * i % 509); /* many come several times */
    }
    return x;
}

static ls_module *make_lstm(void)
{
    ls_module *layers[] = {ls_embedding_new(VOCAB, 128), ls_lstm_new(128, 128, 2),
                           ls_linear_new(128, VOCAB, NULL)};
    return ls_sequential_new(layers, 3);
}

static const network networks[] = {
    {"images", make_images, images, CLASSES, BATCH, false},
    {"images in bfloat16", make_images, images, CLASSES, BATCH, true},
    {"gpt", make_gpt, tokens, VOCAB, BATCH *CONTEXT, false},
    {"lstm", make_lstm, tokens, VOCAB, BATCH *CONTEXT, false},
};

static void step(const network *n, ls_module *net, ls_optim *optim)
{
    LS_SCOPE;
    ls_tensor *y = ls_empty(LS_SHAPE(n->targets), LS_INT64);
    int64_t *target = ls_data(y);
    for (int64_t i = 0; i < n->targets; i++) {
        target[i] = i % n->outputs;
    }
    ls_tensor *logits = NULL;
    {
        LS_AUTOCAST(n->autocast);
        logits = ls_forward(net, n->input());
    }
    logits = ls_reshape(logits, LS_SHAPE(n->targets, n->outputs));
    CHECK_OK(ls_backward(ls_cross_entropy(logits, y, NULL)));
    CHECK_OK(ls_clip_grad_norm(net, 1.0, NULL, NULL));
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
}

/* All parameters and running statistics after some steps on `threads` threads. */
static uint64_t hash_after(const network *n, int threads)
{
    CHECK_OK(ls_init(LS_OPTIONS(ls_init_options, .threads = threads, .seed = 7)));
    ls_module *net = n->make();
    CHECK(net != NULL && ls_module_status(net) == LS_OK);
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-3));
    for (int i = 0; i < STEPS; i++) {
        step(n, net, optim);
    }
    const uint64_t hash = ls_module_hash(net);
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    return hash;
}

TEST(strict_training_has_the_same_bits_with_any_number_of_threads)
{
    CHECK(setenv("LOCKSTEP_DETERMINISTIC", "strict", 1) == 0);
    for (size_t k = 0; k < sizeof networks / sizeof *networks; k++) {
        const uint64_t one = hash_after(&networks[k], 1);
        for (int threads = 2; threads <= THREADS_MAX; threads++) {
            if (hash_after(&networks[k], threads) != one) {
                test_fail(__FILE__, __LINE__, "%s: %d threads give other bits than one",
                          networks[k].name, threads);
            }
        }
    }
}

TEST(training_repeats_itself_with_the_same_number_of_threads)
{
    CHECK(unsetenv("LOCKSTEP_DETERMINISTIC") == 0);
    for (size_t k = 0; k < sizeof networks / sizeof *networks; k++) {
        if (hash_after(&networks[k], 2) != hash_after(&networks[k], 2)) {
            test_fail(__FILE__, __LINE__, "%s: a second run gives other bits", networks[k].name);
        }
    }
}

TEST_MAIN
