/* SPDX-License-Identifier: Apache-2.0 */
/* Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019, algorithm 2):
 *
 *     Adam:  g <- grad + weight_decay * p        AdamW:  p <- p - lr * weight_decay * p
 *     m <- beta1 m + (1 - beta1) g;   v <- beta2 v + (1 - beta2) g^2      exp_avg and exp_avg_sq
 *     p <- p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 */
#include <math.h>

#include "base/error.h"
#include "base/options.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

enum { HYPER_LR, HYPER_BETA1, HYPER_BETA2, HYPER_EPS, HYPER_DECAY, HYPER_COUNT };

/* One kernel serves both forms; `decoupled` selects AdamW's decay. */
static void update(const ls_optim *o, const ls__step_part *parts, int64_t count, bool decoupled)
{
    const ls__adamw_args args = {.parts = parts,
                                 .part_count = count,
                                 .beta1 = o->hyper[HYPER_BETA1],
                                 .beta2 = o->hyper[HYPER_BETA2],
                                 .eps = o->hyper[HYPER_EPS],
                                 .decoupled = decoupled};
    o->on->k->adamw(&args, o->on->stream);
}

/* The two entries of the classes below. */
static void adam_update(const ls_optim *o, const ls__step_part *parts, int64_t count)
{
    update(o, parts, count, false);
}

static void adamw_update(const ls_optim *o, const ls__step_part *parts, int64_t count)
{
    update(o, parts, count, true);
}

static const ls__optim_class adam_class = {
    .name = "Adam",
    .hyper_count = HYPER_COUNT,
    .decay = HYPER_DECAY,
    .betas = HYPER_BETA1,
    .hyper_name = {"lr", "beta1", "beta2", "eps", "weight_decay"},
    .state_name = {"exp_avg", "exp_avg_sq"},
    .update = adam_update};

static const ls__optim_class adamw_class = {
    .name = "AdamW",
    .hyper_count = HYPER_COUNT,
    .decay = HYPER_DECAY,
    .betas = HYPER_BETA1,
    .hyper_name = {"lr", "beta1", "beta2", "eps", "weight_decay"},
    .state_name = {"exp_avg", "exp_avg_sq"},
    .update = adamw_update};

/* Serves both constructors, whose options and state are the same. */
static ls_optim *make_adam(ls_module *module, const ls__optim_class *cls,
                           const ls_adam_options *options)
{
    if (ls__optim_check(cls->name, "lr", options->lr, 0.0, INFINITY) < 0 ||
        ls__optim_check(cls->name, "beta1", options->beta1, 0.0, 1.0) < 0 ||
        ls__optim_check(cls->name, "beta2", options->beta2, 0.0, 1.0) < 0 ||
        ls__optim_check(cls->name, "eps", options->eps, 0.0, INFINITY) < 0 ||
        ls__optim_check(cls->name, "weight_decay", options->weight_decay, 0.0, INFINITY) < 0) {
        return NULL;
    }
    const double hyper[HYPER_COUNT] = {options->lr, options->beta1, options->beta2, options->eps,
                                       options->weight_decay};
    return ls__optim_new(module, cls, hyper, 2);
}

/* Weight decay is added to the gradient, and so is scaled by the second moment. */
ls_optim *ls_adam_new(ls_module *module, const ls_adam_options *options)
{
    LS__OPTIONS_OR(NULL, ls_adam_options, given, options);
    return make_adam(module, &adam_class, &given);
}

/* Weight decay acts on the parameter alone. */
ls_optim *ls_adamw_new(ls_module *module, const ls_adamw_options *options)
{
    LS__OPTIONS_OR(NULL, ls_adamw_options, given, options);
    return make_adam(module, &adamw_class, &given);
}
