/* SPDX-License-Identifier: Apache-2.0 */
/* RMSprop (Tieleman & Hinton 2012), in PyTorch's formulation; centered: Graves 2013, section 4.2.
 *
 *     g <- grad + weight_decay * p
 *     v <- alpha v + (1 - alpha) g^2                    square_avg
 *     m <- alpha m + (1 - alpha) g                      grad_avg, if centered
 *     d <- g / (sqrt(v - m^2) + eps)                    or sqrt(v)
 *     b <- momentum b + d;   p <- p - lr b              momentum_buffer; without momentum d
 */
#include <math.h>

#include "base/error.h"
#include "base/options.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

enum { HYPER_LR, HYPER_ALPHA, HYPER_EPS, HYPER_DECAY, HYPER_MOMENTUM, HYPER_CENTERED, HYPER_COUNT };

/* Which of the averages stands where: as the names of the class. */
static void rmsprop_update(const ls_optim *o, const ls__step_part *parts, int64_t count)
{
    const ls__rmsprop_args args = {.parts = parts,
                                   .part_count = count,
                                   .alpha = o->hyper[HYPER_ALPHA],
                                   .eps = o->hyper[HYPER_EPS],
                                   .momentum = o->hyper[HYPER_MOMENTUM],
                                   .centered = o->hyper[HYPER_CENTERED] != 0.0};
    o->on->k->rmsprop(&args, o->on->stream);
}

#define HYPER                                                                                      \
    .name = "RMSprop", .hyper_count = HYPER_COUNT, .decay = HYPER_DECAY,                           \
    .hyper_name = {"lr", "alpha", "eps", "weight_decay", "momentum", "centered"},                  \
    .update = rmsprop_update

static const ls__optim_class plain_class = {HYPER, .state_name = {"square_avg", "momentum_buffer"}};
static const ls__optim_class centered_class = {
    HYPER, .state_name = {"square_avg", "grad_avg", "momentum_buffer"}};

/* The last state, the momentum, exists only where there is one. */
ls_optim *ls_rmsprop_new(ls_module *module, const ls_rmsprop_options *options)
{
    LS__OPTIONS_OR(NULL, ls_rmsprop_options, given, options);
    if (ls__optim_check("RMSprop", "lr", given.lr, 0.0, INFINITY) < 0 ||
        ls__optim_check("RMSprop", "alpha", given.alpha, 0.0, INFINITY) < 0 ||
        ls__optim_check("RMSprop", "eps", given.eps, 0.0, INFINITY) < 0 ||
        ls__optim_check("RMSprop", "momentum", given.momentum, 0.0, INFINITY) < 0 ||
        ls__optim_check("RMSprop", "weight_decay", given.weight_decay, 0.0, INFINITY) < 0) {
        return NULL;
    }
    const double hyper[HYPER_COUNT] = {given.lr,       given.alpha,
                                       given.eps,      given.weight_decay,
                                       given.momentum, given.centered ? 1.0 : 0.0};
    return ls__optim_new(module, given.centered ? &centered_class : &plain_class, hyper,
                         1 + (given.centered ? 1 : 0) + (given.momentum != 0.0 ? 1 : 0));
}
