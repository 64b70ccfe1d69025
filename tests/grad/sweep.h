/* Backward against central differences, for a table of operations.
 *
 * An operation is given its inputs as views of leaves: whole ones, transposed ones (the leaf has
 * its last two dims swapped), slices of larger ones, and a different layout for each input. The
 * leaf's gradient is what is checked, so the path through the view is too. */
#ifndef TEST_GRAD_SWEEP_H
#define TEST_GRAD_SWEEP_H

#include <stdio.h>
#include <string.h>

#include <lockstep/ops.h>
#include <lockstep/random.h>

#include "../unit/tensor/local.h"

typedef ls_tensor *(*op_fn)(ls_tensor **in);

typedef enum layout { WHOLE, TRANSPOSED, SLICED, LAYOUTS } layout;

typedef struct op_case {
    const char *name;
    op_fn fn;
    bool positive; /* inputs in [0.5, 2], not in ±[0.2, 1.2] */
    int count;
    ls_shape shape[3];
} op_case;

typedef struct sweep {
    const op_case *c;
    layout of[3];
} sweep;

#define UNARY(name, expression)                                                                    \
    static ls_tensor *name(ls_tensor **in)                                                         \
    {                                                                                              \
        ls_tensor *x = in[0];                                                                      \
        return expression;                                                                         \
    }
#define BINARY(name, expression)                                                                   \
    static ls_tensor *name(ls_tensor **in)                                                         \
    {                                                                                              \
        ls_tensor *x = in[0], *y = in[1];                                                          \
        return expression;                                                                         \
    }

/* ---- the sweep ---------------------------------------------------------------------------- */

static inline ls_tensor *as_view(ls_tensor *leaf, layout of)
{
    int ndim = ls_ndim(leaf);
    if (of == TRANSPOSED && ndim > 1) {
        return ls_transpose(leaf, -1, -2);
    }
    if (of == SLICED) {
        return ls_slice(leaf, -1, 1, ls_size(leaf, -1) - 1);
    }
    return leaf;
}

static inline ls_shape leaf_shape(ls_shape shape, layout of)
{
    int n = shape.ndim;
    if (of == TRANSPOSED && n > 1) {
        int64_t last = shape.dim[n - 1];
        shape.dim[n - 1] = shape.dim[n - 2];
        shape.dim[n - 2] = last;
    }
    if (of == SLICED) {
        shape.dim[n - 1] += 2;
    }
    return shape;
}

/* The same points in every run: a difference is only as good as the function is smooth there, and
 * layer norm of a row that happens to be nearly constant is not. */
#define POINT 1

static inline ls_tensor *leaf_new(ls_shape shape, bool positive, uint64_t stream)
{
    ls_tensor *leaf = ls_empty(shape, LS_FLOAT32);
    float *x = ls_data(leaf);
    for (int64_t i = 0; i < ls_numel(leaf); i++) {
        float u = ls_random_uniform(POINT, stream, (uint64_t)i);
        bool up = ls_random_uniform(POINT, stream + 1000, (uint64_t)i) < 0.5f;
        x[i] = positive ? 0.5f + 1.5f * u : (up ? 0.2f + u : -0.2f - u);
    }
    return ls_set_requires_grad(leaf, true);
}

static inline ls_tensor *run_case(ls_tensor **leaves, void *arg)
{
    const sweep *s = arg;
    ls_tensor *in[3] = {NULL, NULL, NULL};
    for (int i = 0; i < s->c->count; i++) {
        in[i] = as_view(leaves[i], s->of[i]);
    }
    return s->c->fn(in);
}

static inline void check_case(const op_case *c, int variant)
{
    sweep s = {.c = c};
    LS_SCOPE
    {
        ls_tensor *leaves[3];
        for (int i = 0; i < c->count; i++) {
            s.of[i] = variant < LAYOUTS ? (layout)variant : (layout)((i + 1) % LAYOUTS);
            leaves[i] = leaf_new(leaf_shape(c->shape[i], s.of[i]), c->positive, (uint64_t)i);
        }
        ls_status status = ls_gradcheck(run_case, leaves, c->count, &s, NULL);
        if (status != LS_OK) {
            test_fail(__FILE__, __LINE__, "%s, case %s of %d dims, layout %d: %s",
                      ls__tensors_get("")->kernels->name, c->name, c->shape[0].ndim, variant,
                      ls_error_message());
        }
    }
}

static inline void check_cases(const ls__kernels *kernels, const op_case *all, int count)
{
    ls_runtime runtime;
    (void)local_begin(&runtime);
    CHECK_OK(ls__tensor_use_kernels(kernels));
    for (int i = 0; i < count; i++) {
        for (int variant = 0; variant <= LAYOUTS; variant++) {
            check_case(&all[i], variant);
        }
    }
    local_end(&runtime);
}

#endif
