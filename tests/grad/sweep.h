/* SPDX-License-Identifier: Apache-2.0 */
/* Backward against central differences, for a table of operations.
 *
 * An operation is given its inputs as views of leaves: whole ones, transposed ones (the leaf has
 * its last two dims swapped), slices of larger ones, and a different layout for each input. The
 * leaf's gradient is what is checked, so the path through the view is too.
 *
 * Then the same with bfloat16 leaves, against float32 ones that hold the same numbers: results and
 * gradients agree within the roundings of a few operations. */
#ifndef TEST_GRAD_SWEEP_H
#define TEST_GRAD_SWEEP_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/ops.h>
#include <lockstep/random.h>

#include "../unit/tensor/local.h"

typedef ls_tensor *(*op_fn)(ls_tensor **in);

typedef enum layout { WHOLE, TRANSPOSED, SLICED, LAYOUTS } layout;

enum { INPUTS_MAX = 4 };

typedef struct op_case {
    const char *name;
    op_fn fn;
    bool positive; /* inputs in [0.5, 2], not in ±[0.2, 1.2] */
    int count;
    ls_shape shape[INPUTS_MAX];
} op_case;

typedef struct sweep {
    const op_case *c;
    layout of[INPUTS_MAX];
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

/* Rows of a table of cases: an operation of one, two or three inputs and their shapes. */
#define S(...) LS_SHAPE(__VA_ARGS__)
#define ONE(op, ...)                                                                               \
    {                                                                                              \
#op, op, false, 1,                                                                         \
        {                                                                                          \
            S(__VA_ARGS__)                                                                         \
        }                                                                                          \
    }
#define TWO(op, a, b)                                                                              \
    {                                                                                              \
#op, op, false, 2,                                                                         \
        {                                                                                          \
            a, b                                                                                   \
        }                                                                                          \
    }
#define THREE(op, a, b, c)                                                                         \
    {                                                                                              \
#op, op, false, 3,                                                                         \
        {                                                                                          \
            a, b, c                                                                                \
        }                                                                                          \
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
    ls_tensor *in[INPUTS_MAX] = {NULL};
    for (int i = 0; i < s->c->count; i++) {
        in[i] = as_view(leaves[i], s->of[i]);
    }
    return s->c->fn(in);
}

static inline void check_case(const op_case *c, int variant)
{
    sweep s = {.c = c};
    LS_SCOPE;
    ls_tensor *leaves[INPUTS_MAX];
    for (int i = 0; i < c->count; i++) {
        s.of[i] = variant < LAYOUTS ? (layout)variant : (layout)((i + 1) % LAYOUTS);
        leaves[i] = leaf_new(leaf_shape(c->shape[i], s.of[i]), c->positive, (uint64_t)i);
    }
    ls_status status = ls_gradcheck(run_case, leaves, c->count, &s, NULL);
    if (status != LS_OK) {
        test_fail(__FILE__, __LINE__, "%s, case %s of %d dims, layout %d: %s",
                  ls__tensors_get("")->host.k->name, c->name, c->shape[0].ndim, variant,
                  ls_error_message());
    }
}

/* What a case gives, with dtype leaves of numbers that bfloat16 has: the result, then each leaf's
 * gradient of sum(result * r), as float32. */
static inline int run_typed(sweep *s, ls_dtype dtype, ls_tensor *out[1 + INPUTS_MAX])
{
    ls_tensor *leaves[INPUTS_MAX];
    for (int i = 0; i < s->c->count; i++) {
        ls_tensor *x = leaf_new(leaf_shape(s->c->shape[i], s->of[i]), s->c->positive, (uint64_t)i);
        ls_tensor *half = ls_cast(ls_detach(x), LS_BFLOAT16);
        leaves[i] = ls_set_requires_grad(ls_cast(half, dtype), true);
    }
    ls__draws_restart(ls__tensors_get("")->runtime, 0); /* dropout's */
    ls_tensor *y = ls_cast(run_case(leaves, s), LS_FLOAT32);
    ls_tensor *r = ls_detach(leaf_new(ls_shape_of(y), false, 77));
    CHECK_OK(ls_backward(ls_sum(ls_mul(y, r))));
    out[0] = y;
    for (int i = 0; i < s->c->count; i++) {
        ls_tensor *grad = ls_grad(leaves[i]);
        CHECK(grad == NULL || ls_dtype_of(grad) == dtype);
        out[1 + i] = grad != NULL ? ls_cast(grad, LS_FLOAT32) : NULL;
    }
    return 1 + s->c->count;
}

/* Each operation rounds to 8 bits, and a case has up to four of them. */
#define HALF_TOLERANCE (4 * 0x1p-8)

static inline void check_near(const sweep *s, int part, ls_tensor *half, ls_tensor *full)
{
    if (half == NULL || full == NULL) {
        CHECK(half == full);
        return;
    }
    const float *got = ls_data(ls_contiguous(half)), *want = ls_data(ls_contiguous(full));
    double largest = 1.0; /* terms may cancel */
    CHECK(got != NULL && want != NULL);
    for (int64_t i = 0; i < ls_numel(full); i++) {
        largest = fmax(largest, fabs((double)want[i]));
    }
    for (int64_t i = 0; i < ls_numel(full); i++) {
        if (!(fabs((double)got[i] - (double)want[i]) <= HALF_TOLERANCE * largest)) {
            test_fail(__FILE__, __LINE__,
                      "%s, case %s of %d dims in bfloat16, part %d, element %lld: %.6g, in float32 "
                      "%.6g (of %.6g)",
                      ls__tensors_get("")->host.k->name, s->c->name, s->c->shape[0].ndim, part,
                      (long long)i, (double)got[i], (double)want[i], largest);
        }
    }
}

static inline void check_half(const op_case *c, int variant)
{
    sweep s = {.c = c};
    LS_SCOPE;
    ls_tensor *half[1 + INPUTS_MAX], *full[1 + INPUTS_MAX];
    for (int i = 0; i < c->count; i++) {
        s.of[i] = variant < LAYOUTS ? (layout)variant : (layout)((i + 1) % LAYOUTS);
    }
    int parts = run_typed(&s, LS_BFLOAT16, half);
    (void)run_typed(&s, LS_FLOAT32, full);
    for (int i = 0; i < parts; i++) {
        check_near(&s, i, half[i], full[i]);
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
            check_half(&all[i], variant);
        }
    }
    local_end(&runtime);
}

#endif
