/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with tensors and autograd. */
#include "golden.h"

#include "base/runtime.h"

#define f32(shape) ls_zeros(shape, LS_FLOAT32)

GOLDEN(shapes_that_do_not_fit)
{
    ls_tensor *a = f32(LS_SHAPE(4, 3)), *b = f32(LS_SHAPE(5, 2)), *v = f32(LS_SHAPE(3));
    ls_tensor *c = f32(LS_SHAPE(2, 4, 3)), *d = f32(LS_SHAPE(3, 3, 2));
    SHOW_TENSOR(ls_matmul(a, b));
    SHOW_TENSOR(ls_matmul(a, v));
    SHOW_TENSOR(ls_matmul(c, d));
    SHOW_TENSOR(ls_add(a, b));
    SHOW_TENSOR(ls_linear(a, b, NULL));
    SHOW_TENSOR(ls_linear(a, f32(LS_SHAPE(7, 3)), v));
    SHOW_TENSOR(ls_reshape(a, LS_SHAPE(5, -1)));
    SHOW_TENSOR(ls_permute(a, LS_SHAPE(0, 0)));
    SHOW_TENSOR(ls_slice(a, 0, 2, 5));
    SHOW_TENSOR(ls_transpose(a, 0, 2));
    SHOW_TENSOR(ls_layer_norm(a, f32(LS_SHAPE(4)), NULL, 1e-5));
    SHOW_TENSOR(ls_layer_norm(f32(LS_SHAPE(4, 0)), NULL, NULL, 1e-5));
    SHOW_TENSOR(ls_mse_loss(a, v));
    SHOW_TENSOR(ls_attention(c, c, c, LS_OPTIONS(ls_attention_options, .causal = true)));
    SHOW_TENSOR(ls_lstm(c, a, NULL));
    SHOW_TENSOR(ls_lstm(c, f32(LS_SHAPE(16, 4)), NULL));
    SHOW_TENSOR(ls_lstm(f32(LS_SHAPE(5, 2, 16)), f32(LS_SHAPE(16, 4)), f32(LS_SHAPE(2, 4))));
    SHOW_TENSOR(ls_gru(c, a, NULL, NULL));
    SHOW_TENSOR(ls_gru(c, f32(LS_SHAPE(12, 4)), NULL, NULL));
    SHOW_TENSOR(ls_gru(f32(LS_SHAPE(5, 2, 12)), f32(LS_SHAPE(12, 4)), f32(LS_SHAPE(4)), NULL));
    SHOW_TENSOR(ls_gru(f32(LS_SHAPE(5, 2, 12)), f32(LS_SHAPE(12, 4)), NULL, f32(LS_SHAPE(2, 4))));
    SHOW_TENSOR(ls_softmax(ls_full(LS_SCALAR, LS_FLOAT32, 1), 0));
    SHOW_TENSOR(ls_mean_dim(f32(LS_SHAPE(2, 0)), 1, false));
    SHOW_TENSOR(ls_argmax(f32(LS_SHAPE(2, 0)), 1));
}

GOLDEN(shapes_and_types_that_cannot_be)
{
    SHOW_TENSOR(ls_zeros(LS_SHAPE(2, -8), LS_FLOAT32));
    SHOW_TENSOR(ls_zeros(((ls_shape){9, {1, 1, 1, 1, 1, 1, 1, 1}}), LS_FLOAT32));
    SHOW_TENSOR(ls_zeros(LS_SHAPE(2), (ls_dtype)77));
    SHOW_TENSOR(ls_ones(LS_SHAPE((int64_t)1 << 46), LS_FLOAT32));
}

GOLDEN(types_and_indices)
{
    const int64_t index[] = {0, 3, 9, -1};
    ls_tensor *i = ls_from_data(index, LS_SHAPE(2, 2), LS_INT64), *w = f32(LS_SHAPE(5, 3));
    ls_tensor *x = f32(LS_SHAPE(2, 2, 4));
    SHOW_TENSOR(ls_embedding(w, i));
    SHOW_TENSOR(ls_embedding(w, w));
    SHOW_TENSOR(ls_embedding(f32(LS_SHAPE(5)), i));
    SHOW_TENSOR(ls_embedding(w, ls_reshape(i, LS_SHAPE(1, 1, 1, 1, 1, 1, 2, 2))));
    SHOW_TENSOR(ls_cross_entropy(x, i, NULL));
    SHOW_TENSOR(ls_cross_entropy(w, i, NULL));
    SHOW_TENSOR(ls_relu(i));
    SHOW_TENSOR(ls_add(x, i));
    SHOW_TENSOR(ls_dropout(x, 1.5));
    SHOW_TENSOR(ls_gelu(x, (ls_gelu_kind)9));
    SHOW_TENSOR(ls_linear_activation(x, x, NULL, (ls_activation)9));
}

GOLDEN(memory_that_is_given)
{
    static float aligned[64] __attribute__((aligned(64)));
    SHOW_TENSOR(ls_from_data(NULL, LS_SHAPE(2, 3), LS_FLOAT32));
    SHOW_TENSOR(ls_from_memory(NULL, LS_SHAPE(2, 3), LS_FLOAT32));
    SHOW_TENSOR(ls_from_memory((char *)aligned + 2, LS_SHAPE(2, 3), LS_FLOAT32));
}

GOLDEN(tensors_that_are_gone)
{
    ls_tensor *dead = NULL, *freed = ls_keep(f32(LS_SHAPE(2)));
    {
        LS_SCOPE;
        dead = ls_relu(f32(LS_SHAPE(2)));
    }
    SHOW_TENSOR(ls_add(f32(LS_SHAPE(2)), dead));
    SHOW_TENSOR(ls_relu(dead));
    SHOW_TENSOR(ls_add(NULL, dead));
    SHOW_TENSOR(ls_relu((ls_tensor *)(uintptr_t)4096));
    ls_free(freed);
    SHOW_TENSOR(ls_linear(f32(LS_SHAPE(2)), freed, NULL));
    SHOW_TENSOR(ls_linear(f32(LS_SHAPE(2)), f32(LS_SHAPE(2, 2)), freed));
    SHOW_NULL(ls_data(dead));
}

GOLDEN(looking_at_tensors)
{
    double value;
    ls_tensor *t = f32(LS_SHAPE(2, 3));
    SHOW_NULL(ls_data(ls_transpose(t, 0, 1)));
    SHOW(ls_item(t, &value));
    SHOW(ls_item(t, NULL));
    SHOW(ls_copy_in(t, &value, sizeof value));
    SHOW(ls_copy_out(t, NULL, 24));
    printf("ls_size(t, 2) is %lld\n    %s\n", (long long)ls_size(t, 2), ls_error_message());
}

GOLDEN(an_error_travels_with_the_tensor)
{
    double value;
    ls_tensor *bad = ls_matmul(f32(LS_SHAPE(4, 3)), f32(LS_SHAPE(5, 2)));
    SHOW(ls_item(ls_mean(ls_relu(bad)), &value));
    SHOW(ls_backward(ls_mean(ls_relu(bad))));
}

GOLDEN(many_tensors_outside_scopes)
{
    for (int i = 0; i < 100002; i++) {
        (void)f32(LS_SHAPE(1));
    }
}

/* ---- autograd -------------------------------------------------------------------------------- */

static ls_tensor *leaf(void)
{
    return ls_set_requires_grad(ls_keep(ls_ones(LS_SHAPE(2, 2), LS_FLOAT32)), true);
}

GOLDEN(losses_that_have_no_gradient)
{
    ls_tensor *p = leaf();
    SHOW(ls_backward(ls_relu(p)));
    SHOW(ls_backward(ls_mean(f32(LS_SHAPE(2)))));
    SHOW(ls_backward_weighted(ls_mean(p), -1.0));
    SHOW(ls_backward_weighted(ls_cast(ls_mean(p), LS_BFLOAT16), 257.0));
    LS_NO_GRAD;
    SHOW(ls_backward(ls_mean(p)));
}

GOLDEN(backward_twice)
{
    ls_tensor *loss = ls_mean(ls_relu(leaf()));
    MUST(ls_backward(loss));
    SHOW(ls_backward(loss));
    LS_RETAIN_GRAPH;
    loss = ls_mean(ls_relu(leaf()));
    SHOW(ls_backward_input_part(&loss, NULL, 1, NULL));
}

GOLDEN(changed_in_place_after_the_forward_pass)
{
    const float numbers[4] = {1, 2, 3, 4};
    ls_tensor *p = leaf();
    ls_tensor *loss = ls_mean(ls_mul(p, p));
    MUST(ls_copy_in(p, numbers, sizeof numbers));
    SHOW(ls_backward(loss));
    ls_tensor *middle = ls_exp(p), *other = ls_mul(middle, middle);
    MUST(ls_copy_in(middle, numbers, sizeof numbers));
    SHOW(ls_backward(ls_mean(other)));
    ls_module *net = ls_linear_new(2, 2, NULL);
    ls_tensor *x = leaf();
    loss = ls_mean(ls_forward(net, x));
    ls_param params[2];
    (void)ls_module_params(net, params, 2);
    MUST(ls_copy_in(params[0].value, numbers, sizeof numbers));
    SHOW(ls_backward(loss));
}

enum { OTHER_SHAPE, OTHER_DRAWS, OTHER_TENSORS };

/* Does something else from the second time on. */
static ls_tensor *recomputed(ls_tensor *x, void *change)
{
    ls_tensor *y = ls_relu(x);
    if (!ls_recomputing()) {
        return y;
    }
    int how = *(const int *)change;
    return how == OTHER_SHAPE   ? ls_slice(y, 0, 0, 1)
           : how == OTHER_DRAWS ? ls_dropout(y, 0.5)
                                : ls_relu(ls_detach(x));
}

GOLDEN(a_recomputation_that_does_something_else)
{
    ls_tensor *x = leaf();
    SHOW_TENSOR(ls_recompute_call(NULL, x, NULL));
    for (int change = OTHER_SHAPE; change <= OTHER_TENSORS; change++) {
        ls_tensor *loss = ls_sum(ls_recompute_call(recomputed, x, &change));
        SHOW(ls_backward(loss));
    }
}

enum { NO_MISTAKE, NO_OUTPUT, TOO_MANY_SAVED, DATA_TWICE, WRONG_SHAPE, SAVED_NUMBER };

static ls_status own_forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                             int m, void *arg)
{
    const int mistake = *(const int *)arg;
    (void)n;
    (void)m;
    out[0] = mistake == NO_OUTPUT ? NULL : ls_relu(in[0]);
    LS_TRY(ls_function_save_data(call, arg, sizeof(int)));
    for (int i = 0; mistake == TOO_MANY_SAVED && i <= LS_FUNCTION_SAVED_MAX; i++) {
        LS_TRY(ls_function_save(call, in[0]));
    }
    return mistake == DATA_TWICE ? ls_function_save_data(call, arg, sizeof(int)) : LS_OK;
}

static ls_status own_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                              ls_tensor **din, int n)
{
    (void)n;
    (void)m;
    const int mistake = *(const int *)ls_function_data(call);
    din[0] = mistake == WRONG_SHAPE ? ls_sum(dout[0]) : ls_function_saved(call, 1);
    return LS_OK;
}

GOLDEN(functions_of_ones_own)
{
    static const ls_function half = LS_FUNCTION(.name = "half", .forward = own_forward);
    static const ls_function own =
        LS_FUNCTION(.name = "own", .forward = own_forward, .backward = own_backward);
    static const ls_function sizeless = {.name = "sizeless"};
    ls_tensor *x = leaf();
    SHOW_TENSOR(ls_function_apply(NULL, x, NULL));
    SHOW_TENSOR(ls_function_apply(&sizeless, x, NULL));
    SHOW_TENSOR(ls_function_apply(&half, x, NULL));
    SHOW(ls_function_save(NULL, x));
    for (int mistake = NO_OUTPUT; mistake <= SAVED_NUMBER; mistake++) {
        SHOW(ls_backward(ls_sum(ls_function_apply(&own, x, &mistake))));
    }
}

GOLDEN(what_can_require_gradients)
{
    SHOW_NULL(ls_grad(ls_relu(ls_set_requires_grad(ls_ones(LS_SHAPE(2), LS_FLOAT32), true))));
    ls_tensor *p = leaf();
    SHOW_TENSOR(ls_set_requires_grad(ls_relu(p), false));
    SHOW_TENSOR(ls_set_requires_grad(ls_zeros(LS_SHAPE(2), LS_INT32), true));
    SHOW_TENSOR(ls_set_requires_grad(ls_transpose(f32(LS_SHAPE(2, 3)), 0, 1), true));
}

/* 2x, of which backward sees one x only. */
static ls_tensor *wrong_gradient(ls_tensor **inputs, void *arg)
{
    (void)arg;
    return ls_add(inputs[0], ls_detach(inputs[0]));
}

GOLDEN(a_gradient_check_that_fails)
{
    const float numbers[2] = {1.5f, -2.0f};
    ls_tensor *x =
        ls_set_requires_grad(ls_keep(ls_from_data(numbers, LS_SHAPE(2), LS_FLOAT32)), true);
    SHOW(ls_gradcheck(wrong_gradient, &x, 1, NULL, NULL));
}

/* ---- without a runtime ----------------------------------------------------------------------- */

GOLDEN_BARE(before_ls_init)
{
    SHOW_TENSOR(f32(LS_SHAPE(2)));
    SHOW(ls_backward(NULL));
    SHOW(ls_all_reduce(ls_world(), NULL, NULL, 0, LS_FLOAT32, LS_SUM, NULL, NULL));
    SHOW(ls_finalize());
    SHOW_NULL(ls_runtime_store());
    SHOW(ls_memory_get_stats(&(ls_memory_stats){0}));
}

/* ---- warnings and what LOCKSTEP_DEBUG=debug tells -------------------------------------------- */

GOLDEN_BARE(what_was_not_freed)
{
    (void)setenv("LOCKSTEP_DEBUG", "debug", 1);
    MUST(ls_init(NULL));
    ls_group *g = NULL;
    (void)ls_keep(f32(LS_SHAPE(2)));
    MUST(ls_group_new(ls_world(), NULL, 0, "part", &g));
    (void)ls_finalize();
}

GOLDEN(a_thread_of_another_runtime)
{
    char other[sizeof(ls_runtime)];
    memcpy(other, ls_runtime_current(), sizeof other);
    SHOW(ls_runtime_attach((ls_runtime *)(void *)other));
}
