/* SPDX-License-Identifier: Apache-2.0 */
/* The nets of models/, small: sizes as in make.py. */
#include "nets.h"

#include <lockstep/models/gpt.h>
#include <lockstep/models/lstm.h>
#include <lockstep/models/mlp.h>

#define CONTEXT 8 /* tokens of a sequence */
#define VOCAB 16

/* ---- a perceptron ------------------------------------------------------------------------- */

static ls_module *mlp_make(void)
{
    return ls_mlp_new(20, 48, 10);
}

static ls_tensor *mlp_loss(ls_module *net, int64_t first, int64_t count)
{
    ls_tensor *x = formula_floats("x", first, count, LS_SHAPE(20));
    return ls_cross_entropy(ls_forward(net, x), formula_classes(first, count, 10), NULL);
}

const reference_net mlp_net = {.name = "mlp", .make = mlp_make, .loss = mlp_loss};

/* ---- language models ---------------------------------------------------------------------- */

/* Mean over all tokens of the loss of predicting the next. */
static ls_tensor *next_token_loss(ls_module *net, int64_t first, int64_t count, int64_t context)
{
    int32_t text[CONTEXT + 1], x[BATCH * CONTEXT], y[BATCH * CONTEXT];
    CHECK(count <= BATCH && context <= CONTEXT);
    for (int64_t i = 0; i < count; i++) {
        formula_tokens(text, first + i, context + 1, VOCAB);
        memcpy(x + i * context, text, (size_t)context * sizeof *x);
        memcpy(y + i * context, text + 1, (size_t)context * sizeof *y);
    }
    ls_tensor *logits = ls_forward(net, ls_from_data(x, LS_SHAPE(count, context), LS_INT32));
    return ls_cross_entropy(logits, ls_from_data(y, LS_SHAPE(count, context), LS_INT32), NULL);
}

static ls_module *gpt_make(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 2, .dim = 12,
                                 .context = CONTEXT, .vocab = VOCAB));
}

static ls_tensor *gpt_loss(ls_module *net, int64_t first, int64_t count)
{
    return next_token_loss(net, first, count, CONTEXT);
}

const reference_net gpt_net = {.name = "gpt", .groups = true, .make = gpt_make, .loss = gpt_loss};

static ls_module *lstm_make(void)
{
    return ls_lstm_model_new(
        LS_OPTIONS(ls_lstm_model_options, .layers = 2, .dim = 8, .hidden = 10, .vocab = VOCAB));
}

static ls_tensor *lstm_loss(ls_module *net, int64_t first, int64_t count)
{
    return next_token_loss(net, first, count, 7);
}

const reference_net lstm_net = {.name = "lstm", .make = lstm_make, .loss = lstm_loss};
