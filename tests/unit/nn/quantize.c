/* SPDX-License-Identifier: Apache-2.0 */
/* ls_module_quantize: products read the weights rounded as the header says, whichever way they lie
 * and after they have changed; the values stay; gradients are refused in words. And what it costs a
 * GPT that has learned: held-out loss and logits beside those of float32. */
#include "says.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/models/gpt.h>
#include <lockstep/models/gpt2.h>

enum { IN = 37, OUT = 21, ROWS = 3, NUMEL = IN * OUT };

/* The weight of output j as products read it, float64. */
static void rounded(const float *w, ls_dtype dtype, double out[IN])
{
    float most = 0.0f;
    for (int p = 0; p < IN; p++) {
        most = fmaxf(most, fabsf(w[p]));
    }
    const float scale = most / 127.0f;
    for (int p = 0; p < IN; p++) {
        uint32_t bits;
        memcpy(&bits, &w[p], sizeof bits);
        bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
        float half;
        memcpy(&half, &bits, sizeof half);
        const double whole = nearbyint((double)(w[p] / scale));
        out[p] = dtype == LS_INT8 ? (most > 0.0f ? whole * (double)scale : 0.0) : (double)half;
    }
}

static float *values_of(ls_module *layer)
{
    ls_param param[2];
    CHECK_INT(ls_module_params(layer, param, 2), 2);
    return ls_data(param[0].value);
}

/* y[ROWS,OUT] of the layer, without gradients. */
static ls_status run_on(ls_module *layer, const float *x, ls_shape shape, float *y)
{
    LS_SCOPE;
    LS_NO_GRAD;
    ls_tensor *given = ls_from_memory((float *)(uintptr_t)x, shape, LS_FLOAT32);
    return ls_copy_out(ls_forward(layer, given), y, ROWS * OUT * sizeof *y);
}

static ls_status run_layer(ls_module *layer, const float *x, float *y)
{
    return run_on(layer, x, LS_SHAPE(ROWS, IN), y);
}

static ls_status run_sequence(ls_module *layer, const float *x, float *y)
{
    return run_on(layer, x, LS_SHAPE(1, ROWS, IN), y);
}

static void check_layer(ls_module *layer, const float *x, ls_dtype dtype)
{
    float y[ROWS * OUT], *w = values_of(layer), *bias;
    double of[IN];
    ls_param param[2];
    (void)ls_module_params(layer, param, 2);
    bias = ls_data(param[1].value);
    CHECK_OK(run_layer(layer, x, y));
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < OUT; j++) {
            double want = (double)bias[j];
            rounded(w + (size_t)j * IN, dtype, of);
            for (int p = 0; p < IN; p++) {
                want += (double)x[i * IN + p] * of[p];
            }
            CHECK_NEAR(y[i * OUT + j], want, 1e-5); /* a step of int8 is 8e-3 */
        }
    }
}

static void fill(float *out, int count, double step)
{
    for (int i = 0; i < count; i++) {
        out[i] = (float)sin(step * (double)(i + 1));
    }
}

TEST(products_read_rounded_weights_and_the_values_stay)
{
    CHECK_OK(ls_init(NULL));
    const ls_dtype types[] = {LS_INT8, LS_BFLOAT16, LS_INT8};
    float x[ROWS * IN], w[NUMEL];
    fill(x, ROWS * IN, 0.7);
    ls_module *layer = ls_linear_new(IN, OUT, NULL);
    for (int i = 0; i < 3; i++) {
        fill(w, NUMEL, 0.3 + i);
        memset(w + (size_t)2 * IN, 0, IN * sizeof *w); /* a row of zeros */
        memcpy(values_of(layer), w, sizeof w);
        CHECK_OK(ls_module_quantize(layer, types[i]));
        check_layer(layer, x, types[i]);
        CHECK(memcmp(values_of(layer), w, sizeof w) == 0);
    }
    ls_param param[2];
    (void)ls_module_params(layer, param, 2);
    fill(w, NUMEL, 1.9);
    CHECK_OK(ls_copy_in(param[0].value, w, sizeof w)); /* seen without another call */
    check_layer(layer, x, LS_INT8);
    float before[ROWS * OUT], after[ROWS * OUT];
    CHECK_OK(ls_module_quantize(layer, LS_FLOAT32));
    CHECK_OK(run_layer(layer, x, after));
    ls_module *plain = ls_linear_new(IN, OUT, NULL);
    memcpy(values_of(plain), w, sizeof w);
    ls_param plain_param[2];
    (void)ls_module_params(plain, plain_param, 2);
    memcpy(ls_data(plain_param[1].value), ls_data(param[1].value), OUT * sizeof(float));
    CHECK_OK(run_layer(plain, x, before));
    CHECK(memcmp(before, after, sizeof before) == 0);
    ls_module_free(plain);
    ls_module_free(layer);
    CHECK_OK(ls_finalize());
}

TEST(a_weight_that_is_not_finite_shows_in_its_output_alone)
{
    CHECK_OK(ls_init(NULL));
    float x[ROWS * IN], y[ROWS * OUT];
    fill(x, ROWS * IN, 0.7);
    ls_module *layer = ls_linear_new(IN, OUT, NULL);
    values_of(layer)[4 * IN + 3] = INFINITY;
    CHECK_OK(ls_module_quantize(layer, LS_INT8));
    CHECK_OK(run_layer(layer, x, y));
    for (int i = 0; i < ROWS * OUT; i++) {
        CHECK((i % OUT == 4) == (isnan(y[i]) != 0));
    }
    ls_module_free(layer);
    CHECK_OK(ls_finalize());
}

/* `to` becomes `from` with the weights of its inputs as products read them in int8. */
static void copy_rounded(ls_module *from, ls_module *to)
{
    enum { PARAMS = 4, NUMBERS_MAX = 4 * OUT * IN };
    static float values[NUMBERS_MAX];
    ls_param given[PARAMS], own[PARAMS];
    CHECK_INT(ls_module_params(from, given, PARAMS), PARAMS);
    CHECK_INT(ls_module_params(to, own, PARAMS), PARAMS);
    for (int i = 0; i < PARAMS; i++) {
        const size_t bytes = (size_t)ls_numel(given[i].value) * sizeof(float);
        const bool of_inputs = ls_ndim(given[i].value) == 2 && ls_size(given[i].value, 1) == IN;
        CHECK(bytes <= sizeof values);
        CHECK_OK(ls_copy_out(given[i].value, values, bytes));
        for (int64_t j = 0; of_inputs && j < ls_size(given[i].value, 0); j++) {
            double row[IN];
            rounded(values + j * IN, LS_INT8, row);
            for (int p = 0; p < IN; p++) {
                values[j * IN + p] = (float)row[p];
            }
        }
        CHECK_OK(ls_copy_in(own[i].value, values, bytes));
    }
}

TEST(recurrent_layers_read_rounded_weights_of_their_inputs_alone)
{
    CHECK_OK(ls_init(NULL));
    float x[ROWS * IN], y[ROWS * OUT], want[ROWS * OUT];
    fill(x, ROWS * IN, 0.7);
    for (int kind = 0; kind < 2; kind++) {
        ls_module *layer = kind == 0 ? ls_lstm_new(IN, OUT, 1) : ls_gru_new(IN, OUT, 1);
        ls_module *twin = kind == 0 ? ls_lstm_new(IN, OUT, 1) : ls_gru_new(IN, OUT, 1);
        copy_rounded(layer, twin);
        CHECK_OK(ls_module_quantize(layer, LS_INT8));
        CHECK_OK(run_sequence(layer, x, y));
        CHECK_OK(run_sequence(twin, x, want));
        for (int i = 0; i < ROWS * OUT; i++) {
            CHECK_NEAR(y[i], want[i], 1e-5);
        }
        ls_module_free(layer);
        ls_module_free(twin);
    }
    CHECK_OK(ls_finalize());
}

TEST(gradients_through_rounded_weights_are_refused)
{
    CHECK_OK(ls_init(NULL));
    float x[ROWS * IN];
    fill(x, ROWS * IN, 0.7);
    ls_module *layer = ls_linear_new(IN, OUT, NULL);
    CHECK_OK(ls_module_quantize(layer, LS_INT8));
    {
        LS_SCOPE;
        ls_tensor *y = ls_forward(layer, ls_from_memory(x, LS_SHAPE(ROWS, IN), LS_FLOAT32));
        CHECK_STATUS(ls_tensor_status(y), LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(),
                   "the weight %s is rounded to %s for inference, and gradients are recorded; "
                   "compute under LS_NO_GRAD, or take the weights as they are: "
                   "ls_module_quantize(module, LS_FLOAT32)");
        CHECK_OK(ls_module_quantize(layer, LS_FLOAT32));
        y = ls_forward(layer, ls_from_memory(x, LS_SHAPE(ROWS, IN), LS_FLOAT32));
        CHECK_OK(ls_backward(ls_sum(y)));
    }
    CHECK_STATUS(ls_module_quantize(layer, LS_INT32), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "module_quantize: weights of %s; give int8, bfloat16, or "
                                   "float32 for the weights as they are");
    CHECK_STATUS(ls_module_quantize(NULL, LS_INT8), LS_ERR_INVALID);
    ls_module_free(layer);
    CHECK_OK(ls_finalize());
}

/* ---- a GPT that has learned --------------------------------------------------------------- */

enum { VOCAB = 24, CONTEXT = 32, BATCH = 8, STEPS = 250, HELD_OUT = 16 };

/* A text in which each token is one of three, as likely as 6 : 3 : 1, after the two before it. */
static void write_text(uint64_t seed, int32_t *out, int count)
{
    uint64_t state = seed * 2654435761u + 12345u;
    int32_t a = 1, b = 2;
    for (int i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const int draw = (int)(state >> 40) % 10;
        const int32_t next = (5 * b + a % 2 + (draw < 6 ? 1 : draw < 9 ? 7 : 12)) % VOCAB;
        a = b;
        b = out[i] = next;
    }
}

static ls_tensor *loss_of(ls_module *net, uint64_t seed, int32_t *text)
{
    for (int i = 0; i < BATCH; i++) {
        write_text(seed * BATCH + (uint64_t)i, text + (size_t)i * (CONTEXT + 1), CONTEXT + 1);
    }
    ls_tensor *all = ls_from_memory(text, LS_SHAPE(BATCH, CONTEXT + 1), LS_INT32);
    ls_tensor *logits = ls_forward(net, ls_contiguous(ls_slice(all, 1, 0, CONTEXT)));
    return ls_cross_entropy(logits, ls_contiguous(ls_slice(all, 1, 1, CONTEXT + 1)), NULL);
}

static void train(ls_module *net)
{
    static int32_t text[BATCH * (CONTEXT + 1)];
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 3e-3));
    for (int step = 0; step < STEPS; step++) {
        LS_SCOPE;
        CHECK_OK(ls_backward(loss_of(net, (uint64_t)step, text)));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
    ls_module_train(net, false);
}

/* Nats a token of texts that it has not seen, with weights of the type. */
static double held_out_loss(ls_module *net, ls_dtype dtype)
{
    static int32_t text[BATCH * (CONTEXT + 1)];
    double sum = 0.0;
    CHECK_OK(ls_module_quantize(net, dtype));
    for (int i = 0; i < HELD_OUT; i++) {
        LS_SCOPE;
        LS_NO_GRAD;
        double loss = 0.0;
        CHECK_OK(ls_item(loss_of(net, (uint64_t)(STEPS + i), text), &loss));
        sum += loss;
    }
    return sum / HELD_OUT;
}

/* The entropy of the text is 0.90 nats, an untrained model's loss log 24 = 3.2. */
static void check_quality(ls_module *net)
{
    CHECK(net != NULL);
    train(net);
    const double full = held_out_loss(net, LS_FLOAT32), half = held_out_loss(net, LS_BFLOAT16);
    const double few = held_out_loss(net, LS_INT8);
    printf("held-out loss: float32 %.5f, bfloat16 %+.5f, int8 %+.5f\n", full, half - full,
           few - full);
    CHECK(full < 1.5);
    CHECK(half != full && few != full);
    CHECK_NEAR(half, full, 0.001 * full);
    CHECK_NEAR(few, full, 0.001 * full);
}

TEST(a_gpt_that_has_learned_keeps_its_loss_with_rounded_weights)
{
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 2, .dim = 48,
                                           .context = CONTEXT, .vocab = VOCAB));
    check_quality(net);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

/* Whose weights lie [in,out], and whose head is the table of its tokens. */
TEST(a_gpt2_that_has_learned_keeps_its_loss_with_rounded_weights)
{
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = 2, .heads = 2, .dim = 48,
                                            .context = CONTEXT, .vocab = VOCAB, .dropout = 0.0));
    check_quality(net);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
