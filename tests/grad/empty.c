/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on tensors without elements, and on empty views of others: values and gradients are
 * those of sums over nothing. */
#include <math.h>

#include <lockstep/ops.h>

#include "../unit/tensor/local.h"

static ls_tensor *leaf(ls_shape shape)
{
    return ls_set_requires_grad(ls_ones(shape, LS_FLOAT32), true);
}

/* What an earlier tensor left behind must not show. */
static void soil_memory(void)
{
    LS_SCOPE;
    for (int i = 0; i < 32; i++) {
        (void)ls_full(LS_SHAPE(64), LS_FLOAT32, 7e33);
    }
}

static void check_zero(ls_tensor *param)
{
    ls_tensor *grad = ls_grad(param);
    CHECK(grad != NULL);
    const float *g = ls_data(grad);
    for (int64_t i = 0; i < ls_numel(param); i++) {
        CHECK_NEAR(g[i], 0.0, 0.0);
    }
}

static void check_backward(ls_tensor *y, ls_tensor *param)
{
    soil_memory();
    CHECK_OK(ls_backward(ls_sum(y)));
    check_zero(param);
}

/* [2,2,3,4] seen as [2,2,0,4] and alike. */
LOCAL_TEST(empty_views_give_zero_gradients_to_what_they_show)
{
    ls_tensor *x = leaf(LS_SHAPE(2, 2, 3, 4)), *none = ls_slice(x, 2, 1, 1);
    ls_tensor *empty = ls_ones(LS_SHAPE(2, 2, 0, 4), LS_FLOAT32);
    check_backward(
        ls_attention(none, empty, empty, LS_OPTIONS(ls_attention_options, .causal = true)), x);
    check_backward(ls_attention(none, none, none, NULL), x);
    check_backward(ls_softmax(none, 3), x);
    check_backward(ls_layer_norm(none, NULL, NULL, 1e-5), x);
    check_backward(ls_matmul(ls_transpose(none, 2, 3), none), x);
    check_backward(ls_gelu(none, LS_GELU_ERF), x);
    check_backward(ls_mul(none, none), x);
    check_backward(ls_dropout(none, 0.5), x);
}

LOCAL_TEST(parameters_that_meet_no_rows_get_zero_gradients)
{
    ls_tensor *w = leaf(LS_SHAPE(5, 3)), *b = leaf(LS_SHAPE(3));
    ls_tensor *none = ls_ones(LS_SHAPE(0, 3), LS_FLOAT32);
    ls_tensor *ids = ls_zeros(LS_SHAPE(2, 0), LS_INT32);
    check_backward(ls_linear(none, w, NULL), w);
    check_backward(ls_matmul(none, ls_transpose(w, 0, 1)), w);
    check_backward(ls_embedding(w, ids), w);
    check_backward(ls_add(none, b), b);
    check_backward(ls_div(none, b), b);
    check_backward(ls_layer_norm(none, b, NULL, 1e-5), b);
}

/* torch.nn.functional.cross_entropy, mse_loss and mean over nothing are NaN; their gradients do not
 * reach any element. */
LOCAL_TEST(means_over_nothing_are_nan_with_zero_gradients)
{
    ls_tensor *w = leaf(LS_SHAPE(4, 3)), *none = ls_ones(LS_SHAPE(0, 3), LS_FLOAT32);
    ls_tensor *y = ls_linear(none, w, NULL), *target = ls_zeros(LS_SHAPE(0), LS_INT64);
    ls_tensor *losses[] = {ls_cross_entropy(y, target, NULL), ls_mse_loss(y, ls_detach(y)),
                           ls_mean(y)};
    for (int i = 0; i < 3; i++) {
        double value = 0.0;
        CHECK_OK(ls_item(losses[i], &value));
        CHECK(isnan(value));
    }
    check_backward(ls_add(ls_add(losses[0], losses[1]), losses[2]), w);
    CHECK_STATUS(ls_tensor_status(ls_cross_entropy(ls_ones(LS_SHAPE(2, 0), LS_FLOAT32),
                                                   ls_zeros(LS_SHAPE(2), LS_INT32), NULL)),
                 LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "give values in [0,0)");
    CHECK_OK(ls_tensor_status(ls_cross_entropy(ls_ones(LS_SHAPE(0, 0), LS_FLOAT32),
                                               ls_zeros(LS_SHAPE(0), LS_INT32), NULL)));
}

LOCAL_TEST(dropping_everything_leaves_zeros)
{
    ls_tensor *x = leaf(LS_SHAPE(3, 300)), *y = ls_dropout(x, 1.0);
    double sum = 1.0;
    CHECK_OK(ls_item(ls_sum(y), &sum));
    CHECK_NEAR(sum, 0.0, 0.0);
    check_backward(y, x);
}

TEST_MAIN
