/* SPDX-License-Identifier: Apache-2.0 */
/* Trains on the mesh dp=2,tp=2, for test_tensor_failures. Places of its own (victim.h):
 *
 *     weight0: the victim's samples, and those of its tensor group, have weight 0 in every other
 *              step
 *     join: its data group ends its data after 5 steps
 */
#include "../victim.h"

enum { DIM = 32, BATCH = 8 };

typedef struct net {
    ls_module base;
    ls_tensor *norm, *up, *down;
} net;

static ls_tensor *net_forward(ls_module *m, ls_tensor *x)
{
    const net *self = (net *)m;
    ls_tensor *h = ls_mul(x, self->norm);
    h = ls_redistribute(h, "tp", LS_INVARIANT, LS_REPLICATED);
    h = ls_gelu(ls_linear(h, self->up, NULL), LS_GELU_ERF);
    h = ls_linear(ls_function_apply(&bomb, h, NULL), self->down, NULL);
    return ls_redistribute(h, "tp", LS_PARTIAL, LS_INVARIANT);
}

static const ls_module_class net_class = LS_MODULE_CLASS(.name = "net", .forward = net_forward);

static ls_tensor *filled(ls_shape shape, double value)
{
    return ls_full(shape, LS_FLOAT32, value);
}

static ls_module *net_new(void)
{
    net *n = ls_module_new(sizeof *n, &net_class);
    n->norm = ls_module_add_param(&n->base, "norm", filled(LS_SHAPE(DIM), 0.5));
    n->up = ls_module_add_param(&n->base, "up", filled(LS_SHAPE(DIM / 2, DIM), 0.1));
    n->down = ls_module_add_param(&n->base, "down", filled(LS_SHAPE(DIM, DIM / 2), 0.1));
    LS_CHECK(ls_place(n->up, "tp", LS_SHARDED(0)));
    LS_CHECK(ls_place(n->down, "tp", LS_SHARDED(1)));
    return ls_ddp_new(&n->base, ls_world(), LS_OPTIONS(ls_ddp_options, .batch_axes = "dp"));
}

/* Of this rank, or of its data group without data. */
static ls_status backward(ls_module *m, const ls_mesh *mesh, bool *more)
{
    const bool mine = ls_mesh_coordinate(mesh, "dp") == victim / 2;
    if (is_at("join") && ((mine && step >= FATAL_STEP) || step >= STEPS - 1)) {
        return ls_ddp_join(m, NULL, more);
    }
    ls_tensor *y = ls_forward(m, filled(LS_SHAPE(BATCH, DIM), 0.01 * (step + 1)));
    const bool light = is_at("weight0") && mine && step % 2 == 1;
    return ls_backward_weighted(ls_mean(ls_mul(y, y)), light ? 0.0 : BATCH);
}

int main(int argc, char **argv)
{
    return victim_main(&(victim_program){"dp=2,tp=2", "dp", net_new, backward}, argc, argv);
}
