/* The table of this instruction set. Random initial values come from the plain loops: they are
 * drawn once and must be equal to ls_random_uniform and ls_random_normal to the bit. */
#include "kernel/cpu/isa.h"
#include "kernel/cpu/tables.h"
#include "kernel/ref/ref.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static const ls__kernels kernels = {
    .name = "cpu " TEXT(LS__ISA),
    .gemm = LS__K(gemm),
    .gemm_batch = LS__K(gemm_batch),
    .add_rows = LS__K(add_rows),
    .sum_rows = LS__K(sum_rows),
    .sum_cols = LS__K(sum_cols),
    .sum = LS__K(sum),
    .sum_squares = LS__K(sum_squares),
    .unary = LS__K(unary),
    .unary_backward = LS__K(unary_backward),
    .map = LS__K(map),
    .map_backward = LS__K(map_backward),
    .where = LS__K(where),
    .binary = LS__K(binary),
    .axpby = LS__K(axpby),
    .add_scalar = LS__K(add_scalar),
    .fill = LS__K(fill),
    .gather = LS__K(gather),
    .scatter = LS__K(scatter),
    .pick = LS__K(pick),
    .put_add = LS__K(put_add),
    .sum_dims = LS__K(sum_dims),
    .cumsum = LS__K(cumsum),
    .extreme = LS__K(extreme),
    .variance = LS__K(variance),
    .variance_backward = LS__K(variance_backward),
    .softmax = LS__K(softmax),
    .softmax_backward = LS__K(softmax_backward),
    .layer_norm = LS__K(layer_norm),
    .layer_norm_backward = LS__K(layer_norm_backward),
    .layer_norm_workspace = LS__K(layer_norm_workspace),
    .rms_norm = LS__K(rms_norm),
    .rms_norm_backward = LS__K(rms_norm_backward),
    .embedding = LS__K(embedding),
    .embedding_backward = LS__K(embedding_backward),
    .attention = LS__K(attention),
    .attention_backward = LS__K(attention_backward),
    .attention_workspace = LS__K(attention_workspace),
    .lstm_step = LS__K(lstm_step),
    .lstm_step_backward = LS__K(lstm_step_backward),
    .rotary = LS__K(rotary),
    .rotary_workspace = LS__K(rotary_workspace),
    .cross_entropy = LS__K(cross_entropy),
    .cross_entropy_with = LS__K(cross_entropy_with),
    .nll = LS__K(nll),
    .bce = LS__K(bce),
    .dropout = LS__K(dropout),
    .random_uniform = ls__ref_random_uniform,
    .random_normal = ls__ref_random_normal,
    .adamw = LS__K(adamw),
    .sgd = LS__K(sgd),
};

const ls__variant LS__K(variant) = {.kernels = &kernels, .gemm_builtin = LS__K(gemm_builtin)};
