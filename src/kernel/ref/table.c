/* The table of plain kernels. */
#include "kernel/ref/ref.h"

const ls__kernels *ls__kernels_ref(void)
{
    static const ls__kernels table = {
        .name = "ref",
        .gemm = ls__ref_gemm,
        .gemm_batch = ls__ref_gemm_batch,
        .add_rows = ls__ref_add_rows,
        .sum_rows = ls__ref_sum_rows,
        .sum_cols = ls__ref_sum_cols,
        .sum = ls__ref_sum,
        .sum_squares = ls__ref_sum_squares,
        .unary = ls__ref_unary,
        .unary_backward = ls__ref_unary_backward,
        .binary = ls__ref_binary,
        .axpby = ls__ref_axpby,
        .add_scalar = ls__ref_add_scalar,
        .fill = ls__ref_fill,
        .gather = ls__ref_gather,
        .scatter = ls__ref_scatter,
        .sum_dims = ls__ref_sum_dims,
        .softmax = ls__ref_softmax,
        .softmax_backward = ls__ref_softmax_backward,
        .layer_norm = ls__ref_layer_norm,
        .layer_norm_backward = ls__ref_layer_norm_backward,
        .layer_norm_workspace = ls__ref_layer_norm_workspace,
        .embedding = ls__ref_embedding,
        .embedding_backward = ls__ref_embedding_backward,
        .attention = ls__ref_attention,
        .attention_backward = ls__ref_attention_backward,
        .attention_workspace = ls__ref_attention_workspace,
        .lstm_step = ls__ref_lstm_step,
        .lstm_step_backward = ls__ref_lstm_step_backward,
        .cross_entropy = ls__ref_cross_entropy,
        .dropout = ls__ref_dropout,
        .random_uniform = ls__ref_random_uniform,
        .random_normal = ls__ref_random_normal,
        .adamw = ls__ref_adamw,
        .sgd = ls__ref_sgd,
    };
    return &table;
}
