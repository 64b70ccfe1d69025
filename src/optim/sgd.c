/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic gradient descent with momentum (Sutskever et al. 2013), in PyTorch's formulation:
 *
 *     g <- grad + weight_decay * p
 *     v <- g at the first step, momentum * v + (1 - dampening) * g afterwards
 *     p <- p - lr * (nesterov ? g + momentum * v : v)
 */
#include <math.h>

#include "base/error.h"
#include "base/options.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

enum { HYPER_LR, HYPER_MOMENTUM, HYPER_DAMPENING, HYPER_DECAY, HYPER_NESTEROV, HYPER_COUNT };

/* Without momentum no state exists, and each part's momentum buffer is NULL. */
static void sgd_update(const ls_optim *o, const ls__step_part *parts, int64_t count)
{
    const ls__sgd_args args = {.parts = parts,
                               .part_count = count,
                               .momentum = o->hyper[HYPER_MOMENTUM],
                               .dampening = o->hyper[HYPER_DAMPENING],
                               .nesterov = o->hyper[HYPER_NESTEROV] != 0.0};
    o->on->k->sgd(&args, o->on->stream);
}

static const ls__optim_class sgd_class = {
    .name = "SGD",
    .hyper_count = HYPER_COUNT,
    .decay = HYPER_DECAY,
    .hyper_name = {"lr", "momentum", "dampening", "weight_decay", "nesterov"},
    .state_name = {"momentum_buffer"},
    .update = sgd_update};

/* A momentum of 0 allocates no state. Nesterov's form is defined only with a momentum and without
 * dampening, as in PyTorch. */
ls_optim *ls_sgd_new(ls_module *module, const ls_sgd_options *options)
{
    LS__OPTIONS_OR(NULL, ls_sgd_options, given, options);
    if (ls__optim_check("SGD", "lr", given.lr, 0.0, INFINITY) < 0 ||
        ls__optim_check("SGD", "momentum", given.momentum, 0.0, INFINITY) < 0 ||
        ls__optim_check("SGD", "weight_decay", given.weight_decay, 0.0, INFINITY) < 0) {
        return NULL;
    }
    if (given.nesterov && (given.momentum == 0.0 || given.dampening != 0.0)) {
        (void)ls__fail(LS_ERR_INVALID,
                       "SGD: nesterov with momentum %g and dampening %g; it needs a momentum and "
                       "no dampening",
                       given.momentum, given.dampening);
        return NULL;
    }
    const double hyper[HYPER_COUNT] = {given.lr, given.momentum, given.dampening,
                                       given.weight_decay, given.nesterov ? 1.0 : 0.0};
    return ls__optim_new(module, &sgd_class, hyper, given.momentum != 0.0 ? 1 : 0);
}
