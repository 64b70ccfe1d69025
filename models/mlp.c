/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest module of one's own: a struct whose first member is ls_module, a forward function, a
 * constructor with one check at its end. */
#include <lockstep/models/mlp.h>

typedef struct mlp {
    ls_module base;
    ls_module *fc1, *fc2;
} mlp;

static ls_tensor *mlp_forward(ls_module *m, ls_tensor *x) /* [B,in] -> [B,out] */
{
    mlp *self = (mlp *)m;
    return ls_forward(self->fc2, ls_forward(self->fc1, x));
}

static void mlp_parts(ls_module *m, ls_parts *parts)
{
    ls_parts_add_children(parts, m);
}

static const ls_module_class mlp_class =
    LS_MODULE_CLASS(.name = "mlp", .forward = mlp_forward, .parts = mlp_parts,
                    .plan = "fc1=column fc2=row");

ls_module *ls_mlp_new(int64_t in, int64_t hidden, int64_t out)
{
    mlp *self = ls_module_new(sizeof *self, &mlp_class);
    if (self == NULL) {
        return NULL;
    }
    self->fc1 = ls_module_add(
        &self->base, "fc1",
        ls_linear_new(in, hidden, LS_OPTIONS(ls_linear_options, .activation = LS_ACTIVATION_RELU)));
    self->fc2 = ls_module_add(&self->base, "fc2", ls_linear_new(hidden, out, NULL));
    if (ls_module_status(&self->base) < 0) {
        ls_module_free(&self->base);
        return NULL;
    }
    return &self->base;
}
