/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters that the tests of optimizers train, and their gradients; the script stands in
 * optim.c. */
#ifndef OPTIM_NET_H
#define OPTIM_NET_H

#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "optim/optim.h"
#include "test.h"

#define TOLERANCE 2e-6 /* 20 roundings of values below 1 in float32, on both sides */

typedef struct net {
    ls_module base;
    ls_tensor *w, *b;
} net;

static inline ls_tensor *net_forward(ls_module *m, ls_tensor *x)
{
    (void)m;
    return x;
}

static const ls_module_class net_class = LS_MODULE_CLASS(.name = "net", .forward = net_forward);

static inline net *make_net(void)
{
    float w[6], b[2] = {0.5f, -0.25f};
    for (int i = 0; i < 6; i++) {
        w[i] = (float)(0.1 * i - 0.3);
    }
    net *n = ls_module_new(sizeof *n, &net_class);
    n->w = ls_module_add_param(&n->base, "w", ls_from_data(w, LS_SHAPE(2, 3), LS_FLOAT32));
    n->b = ls_module_add_param(&n->base, "b", ls_from_data(b, LS_SHAPE(2), LS_FLOAT32));
    LS_CHECK(ls_module_status(&n->base));
    return n;
}

/* Gives the parameters the gradients of the script: those of a sum of products. */
static inline void give_gradients(net *n, int step)
{
    float gw[6], gb[2];
    for (int i = 0; i < 6; i++) {
        gw[i] = (float)(sin(0.7 * i + 1.3 * step) * (i + 1) / 6);
    }
    for (int i = 0; i < 2; i++) {
        gb[i] = (float)cos(step + i);
    }
    LS_SCOPE;
    ls_tensor *loss = ls_sum(ls_mul(n->w, ls_from_data(gw, LS_SHAPE(2, 3), LS_FLOAT32)));
    if (step % 3 != 1) {
        ls_tensor *of_b = ls_mul(n->b, ls_from_data(gb, LS_SHAPE(2), LS_FLOAT32));
        loss = ls_add(loss, ls_sum(of_b));
    }
    CHECK(ls_backward(loss) == LS_OK);
}

static inline void run_steps(net *n, ls_optim *o, int from, int to)
{
    for (int step = from; step < to; step++) {
        give_gradients(n, step);
        if (step == 10) {
            ls_optim_set_lr(o, 0.5 * ls_optim_lr(o));
        }
        CHECK(ls_optim_step(o) == LS_OK);
        ls_optim_zero_grad(o);
        CHECK(ls_grad(n->w) == NULL && ls_grad(n->b) == NULL);
    }
}

static inline void values_of(net *n, float out[8])
{
    CHECK(ls_copy_out(n->w, out, 6 * sizeof *out) == LS_OK);
    CHECK(ls_copy_out(n->b, out + 6, 2 * sizeof *out) == LS_OK);
}

static inline void check_values(net *n, const float expected[8])
{
    float got[8];
    values_of(n, got);
    for (int i = 0; i < 8; i++) {
        if (!(fabs((double)got[i] - (double)expected[i]) <= TOLERANCE)) {
            test_fail(__FILE__, __LINE__, "value %d is %.9g, PyTorch has %.9g", i, (double)got[i],
                      (double)expected[i]);
        }
    }
}

static inline net *start(void)
{
    CHECK(ls_init(NULL) == LS_OK);
    return make_net();
}

#endif
