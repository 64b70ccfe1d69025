/* SPDX-License-Identifier: Apache-2.0 */
/* Trains experts on the mesh dp=2,ep=2, for test_experts_train. Its bomb stands where the rows have
 * come to the experts, and before their gradients go back. A place of its own (victim.h):
 *
 *     weight0: the victim's samples have weight 0 in every other step
 */
#include "../victim.h"

enum { DIM = 8, TOKENS = 24 };

/* Two layers of experts, the bomb between them. */
typedef struct net {
    ls_module base;
    ls_module *first, *second;
} net;

static ls_tensor *net_forward(ls_module *m, ls_tensor *x)
{
    net *self = (net *)m;
    ls_tensor *h = ls_add(x, ls_forward(self->first, x));
    h = ls_function_apply(&bomb, h, NULL);
    return ls_add(h, ls_forward(self->second, h));
}

static const ls_module_class net_class = LS_MODULE_CLASS(.name = "net", .forward = net_forward);

static ls_module *net_new(void)
{
    const ls_moe_options *o =
        LS_OPTIONS(ls_moe_options, .experts = 4, .capacity = 1.25, .balance_loss = 0.01);
    net *n = ls_module_new(sizeof *n, &net_class);
    n->first = ls_module_add(&n->base, "first", ls_moe_new(DIM, 2 * DIM, o));
    n->second = ls_module_add(&n->base, "second", ls_moe_new(DIM, 2 * DIM, o));
    return ls_ddp_new(&n->base, ls_world(), NULL);
}

static ls_status backward(ls_module *m, const ls_mesh *mesh, bool *more)
{
    (void)mesh, (void)more;
    ls_step_begin((ls_step_context){.step = (uint64_t)step});
    ls_tensor *x = ls_add_scalar(ls_randn(LS_SHAPE(TOKENS, DIM)), 0.1 * ls_rank());
    ls_tensor *y = ls_forward(m, x);
    const bool light = is_at("weight0") && ls_rank() == victim && step % 2 == 1;
    return ls_backward_weighted(ls_add(ls_mean(ls_mul(y, y)), ls_moe_loss(m)),
                                light ? 0.0 : TOKENS);
}

int main(int argc, char **argv)
{
    return victim_main(&(victim_program){"dp=2,ep=2", NULL, net_new, backward}, argc, argv);
}
