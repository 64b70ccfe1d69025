/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on a device beside the same on the processor: results and gradients of each, in
 * float32 and bfloat16. scripts/gpu-check runs it on a GPU, also under compute-sanitizer, and a
 * test over the fake driver:
 *
 *     check_device NAME     of the device: cuda, cuda:0, …; loop, which has the processor's bits
 *
 * It prints a line for each operation that differs, and "ok" if none does. Shapes are small, and
 * not multiples of a kernel's tiles. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

enum { INPUTS_MAX = 3, NUMEL_MAX = 1 << 14 };
#define CLOSE 2e-5 /* to the largest element: sums have another order */
#define CLOSE_BF16 3e-2

typedef struct operation {
    const char *name;
    ls_tensor *(*make)(ls_tensor **in);
    ls_shape in[INPUTS_MAX]; /* a shape of no dimension ends them */
    bool only_float32;       /* or it has no gradient in bfloat16 to compare */
} operation;

typedef struct outcome {
    int64_t count[1 + INPUTS_MAX]; /* of the result, and of the gradients */
    float value[1 + INPUTS_MAX][NUMEL_MAX];
} outcome;

static void must(ls_status status, const char *what)
{
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, ls_error_message());
        exit(1);
    }
}

/* ---- operations ---------------------------------------------------------------------------- */

#define S LS_SHAPE
#define OP(name, expression)                                                                       \
    static ls_tensor *name(ls_tensor **in)                                                         \
    {                                                                                              \
        ls_tensor *x = in[0], *y = in[1], *z = in[2];                                              \
        (void)x, (void)y, (void)z;                                                                 \
        return expression;                                                                         \
    }

static ls_tensor *indices(int64_t count, int64_t below)
{
    int64_t index[NUMEL_MAX];
    for (int64_t i = 0; i < count; i++) {
        index[i] = (i * 7 + 3) % below;
    }
    return ls_from_data(index, S(count), LS_INT64);
}

/* `t`, with the sum of x, so that there is a gradient. */
static ls_tensor *with_gradient(ls_tensor *x, ls_tensor *t)
{
    return ls_add(t, ls_scale(ls_sum(x), 1e-3));
}

OP(product, ls_matmul(x, y))
OP(product_transposed, ls_matmul(ls_transpose(x, 0, 1), y))
OP(products, ls_matmul(x, y))
OP(linear, ls_linear(x, y, z))
OP(linear_gelu, ls_linear_activation(x, y, z, LS_ACTIVATION_GELU_TANH))
OP(added, ls_add(x, y))
OP(subtracted, ls_sub(ls_transpose(x, 0, 1), y))
OP(multiplied, ls_mul(x, y))
OP(divided, ls_div(x, ls_add_scalar(ls_mul(y, y), 1.0)))
OP(exponential, ls_exp(x))
OP(logarithm, ls_log(ls_add_scalar(ls_mul(x, x), 0.5)))
OP(root, ls_sqrt(ls_add_scalar(ls_mul(x, x), 0.5)))
OP(tanh_, ls_tanh(x))
OP(sigmoid, ls_sigmoid(x))
OP(relu, ls_relu(x))
OP(gelu, ls_gelu(x, LS_GELU_ERF))
OP(silu, ls_silu(x))
OP(sine, ls_add(ls_sin(x), ls_cos(ls_scale(x, 2.0))))
OP(larger, ls_add(ls_maximum(x, y), ls_minimum(x, ls_scale(y, 0.5))))
OP(clamped, ls_clamp(x, -0.5, 1.0))
OP(chosen, ls_where(ls_gt(x, y), x, ls_scale(y, 3.0)))
OP(dropped, ls_dropout(x, 0.3))
OP(sum, ls_sum(x))
OP(sums, ls_sum_dim(x, 1, false))
OP(mean, ls_mean_dim(x, 1, true))
OP(means, ls_mean_dims(x, S(0, 2), true))
OP(variance, ls_var_dims(x, S(1), true, false))
OP(largest, ls_max_dim(x, -1, false))
OP(running_sum, ls_cumsum(x, 1))
OP(sorted, ls_sort(x, -1, true, NULL))
OP(softmax, ls_softmax(x, -1))
OP(softmax_first, ls_softmax(x, 0))
OP(log_softmax, ls_log_softmax(x, -1))
OP(log_sum, ls_logsumexp(x, -1, false))
OP(layer_norm, ls_layer_norm(x, y, z, 1e-5))
OP(rms_norm, ls_rms_norm(x, y, 1e-6))
OP(group_norm, ls_group_norm(x, 2, y, z, 1e-5))
OP(batch_norm, ls_batch_norm(x, y, z, LS_OPTIONS(ls_batch_norm_options, .training = true)))
OP(embedding, ls_embedding(x, indices(50, 13)))
OP(selected, ls_index_select(x, 1, indices(5, 33)))
OP(gathered, ls_scatter_add(x, 0, ls_reshape(indices(40, 5), S(8, 5)), y))
OP(joined, ls_concat((ls_tensor *[]){x, y, x}, 3, 1))
OP(padded, ls_pad(x, S(1, 2), S(0, 1), 0.5))
OP(permuted, ls_contiguous(ls_permute(x, S(2, 0, 1))))
OP(cut, ls_mul(ls_slice(x, 1, 3, 20), ls_slice(x, 1, 10, 27)))
OP(rotary, ls_rotary(x, 3, 10000.0))
OP(attention, ls_attention(x, y, z, LS_OPTIONS(ls_attention_options, .causal = true)))
OP(attention_to_all, ls_attention(x, y, z, LS_OPTIONS(ls_attention_options, .dropout = 0.2)))
OP(cross_entropy, ls_cross_entropy(x, indices(37, 101), NULL))
OP(smoothed, ls_cross_entropy(x, indices(37, 101),
                              LS_OPTIONS(ls_cross_entropy_options, .label_smoothing = 0.1)))
OP(weighted,
   ls_cross_entropy(x, indices(37, 101),
                    LS_OPTIONS(ls_cross_entropy_options, .label_smoothing = 0.1, .z_loss = 0.05,
                               .weight = ls_detach(ls_add_scalar(ls_mul(y, y), 0.5)))))
OP(mse, ls_mse_loss(x, y))
OP(bce, ls_bce_with_logits(x, ls_sigmoid(y)))
OP(nll, ls_nll_loss(ls_log_softmax(x, -1), indices(37, 101)))
OP(distances,
   ls_add(ls_l1_loss(x, y), ls_add(ls_huber_loss(x, y, 0.7), ls_smooth_l1_loss(x, y, 0.3))))
OP(kl, ls_kl_div(ls_log_softmax(x, -1), ls_softmax(y, -1), NULL))
OP(leaky, ls_add(ls_leaky_relu(x, 0.1), ls_abs(x)))
OP(power, ls_pow_scalar(ls_add_scalar(ls_mul(x, x), 1.0), 1.7))
OP(top, ls_topk(x, 4, -1, true, NULL))
OP(stacked, ls_stack((ls_tensor *[]){x, y}, 2, 1))
OP(expanded, ls_expand(x, S(4, 6, 33)))
OP(index_added, ls_index_add(x, 0, indices(8, 5), y))
OP(convolution_1d, ls_conv1d(x, y, z, LS_OPTIONS(ls_conv1d_options, .padding = 1)))
OP(adaptive, ls_adaptive_avg_pool2d(x, 3, 2))
OP(nearest, ls_upsample(x, LS_OPTIONS(ls_upsample_options, .scale = {2, 2})))
OP(evaluated, ls_batch_norm(x, y, z,
                            LS_OPTIONS(ls_batch_norm_options, .running_mean = ls_detach(y),
                                       .running_var = ls_exp(ls_detach(z)), .relu = true)))
/* Without gradients: integers, comparisons, indices. */
OP(compared,
   with_gradient(x, ls_add(ls_cast(ls_lt(x, y), LS_FLOAT32),
                           ls_cast(ls_logical_and(ls_ne(x, y), ls_ge(x, ls_scale(y, 2.0))),
                                   LS_FLOAT32))))
OP(arg, with_gradient(x, ls_cast(ls_argmax(x, -1), LS_FLOAT32)))
OP(order, with_gradient(x, ls_cast(ls_argsort(x, -1, false), LS_FLOAT32)))
OP(counted, with_gradient(x, ls_cast(ls_bincount(indices(40, 7), 9), LS_FLOAT32)))
OP(hot, with_gradient(x, ls_cast(ls_one_hot(indices(9, 7), 8), LS_FLOAT32)))
OP(divided_whole,
   with_gradient(x, ls_cast(ls_add(ls_remainder(indices(9, 7), ls_arange(1, 10, 1, LS_INT64)),
                                   ls_floor_div(indices(9, 7), ls_arange(1, 10, 1, LS_INT64))),
                            LS_FLOAT32)))
OP(found,
   with_gradient(x, ls_cast(ls_nonzero(ls_gt(x, ls_zeros(LS_SCALAR, LS_FLOAT32))), LS_FLOAT32)))
OP(spaced, with_gradient(x, ls_linspace(0, 1, 12, LS_FLOAT32)))
OP(drawn, with_gradient(x, ls_add(ls_rand(S(9, 40)), ls_randn(S(9, 40)))))
OP(convolution, ls_conv2d(x, y, z, LS_OPTIONS(ls_conv2d_options, .padding = {1, 1})))
OP(strided, ls_conv2d(x, y, NULL, LS_OPTIONS(ls_conv2d_options, .stride = {2, 2}, .groups = 2)))
OP(transposed,
   ls_conv_transpose2d(x, y, z, LS_OPTIONS(ls_conv_transpose2d_options, .stride = {2, 2})))
OP(max_pool, ls_max_pool2d(x, LS_OPTIONS(ls_pool2d_options, .kernel = {3, 3}, .stride = {2, 2})))
OP(mean_pool, ls_avg_pool2d(x, LS_OPTIONS(ls_pool2d_options, .kernel = {2, 2}, .padding = {1, 1})))
OP(upsampled,
   ls_upsample(x, LS_OPTIONS(ls_upsample_options, .scale = {2, 1.5}, .mode = LS_UPSAMPLE_BILINEAR)))
OP(lstm, ls_lstm(x, y, z))
OP(gru, ls_gru(x, y, NULL, NULL))

/* Functions of one and two arguments, on as many elements as fill more than one block. */
/* A constant, which LS_SHAPE is not. */
#define DIMS(...)                                                                                  \
    {                                                                                              \
        (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                                 \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define ONE                                                                                        \
    {                                                                                              \
        DIMS(9, 311)                                                                               \
    }
#define TWO                                                                                        \
    {                                                                                              \
        DIMS(9, 311), DIMS(9, 311)                                                                 \
    }

static const operation operations[] = {
    {"matmul", product, {DIMS(33, 70), DIMS(70, 45)}, false},
    {"matmul of a transposed one", product_transposed, {DIMS(70, 33), DIMS(70, 45)}, false},
    {"matmul of a batch", products, {DIMS(3, 17, 20), DIMS(3, 20, 9)}, false},
    {"linear", linear, {DIMS(5, 7, 40), DIMS(24, 40), DIMS(24)}, false},
    {"linear with gelu", linear_gelu, {DIMS(31, 40), DIMS(24, 40), DIMS(24)}, false},
    {"add to each row", added, {DIMS(9, 311), DIMS(311)}, false},
    {"sub of a transposed one", subtracted, {DIMS(31, 9), DIMS(9, 31)}, false},
    {"mul by each column", multiplied, {DIMS(9, 311), DIMS(9, 1)}, false},
    {"div", divided, TWO, false},
    {"exp", exponential, ONE, false},
    {"log", logarithm, ONE, false},
    {"sqrt", root, ONE, false},
    {"tanh", tanh_, ONE, false},
    {"sigmoid", sigmoid, ONE, false},
    {"relu", relu, ONE, false},
    {"gelu", gelu, ONE, false},
    {"silu", silu, ONE, false},
    {"sin and cos", sine, ONE, false},
    {"maximum and minimum", larger, TWO, true},
    {"clamp", clamped, ONE, true},
    {"where", chosen, TWO, true},
    {"dropout", dropped, ONE, false},
    {"sum", sum, ONE, false},
    {"sum_dim", sums, {DIMS(5, 33, 6)}, false},
    {"mean_dim", mean, {DIMS(5, 33, 6)}, false},
    {"mean_dims", means, {DIMS(5, 33, 6)}, false},
    {"var_dims", variance, {DIMS(12, 33)}, false},
    {"max_dim", largest, {DIMS(12, 33)}, true},
    {"cumsum", running_sum, {DIMS(5, 33, 2)}, true},
    {"sort", sorted, {DIMS(12, 33)}, true},
    {"softmax", softmax, {DIMS(9, 311)}, false},
    {"softmax of columns", softmax_first, {DIMS(17, 40)}, false},
    {"log_softmax", log_softmax, {DIMS(9, 311)}, false},
    {"logsumexp", log_sum, {DIMS(9, 311)}, false},
    {"layer_norm", layer_norm, {DIMS(19, 130), DIMS(130), DIMS(130)}, false},
    {"rms_norm", rms_norm, {DIMS(19, 130), DIMS(130)}, false},
    {"group_norm", group_norm, {DIMS(3, 4, 5, 7), DIMS(4), DIMS(4)}, true},
    {"batch_norm", batch_norm, {DIMS(3, 4, 5, 7), DIMS(4), DIMS(4)}, true},
    {"embedding", embedding, {DIMS(13, 40)}, false},
    {"index_select", selected, {DIMS(6, 33)}, true},
    {"scatter_add", gathered, {DIMS(5, 5), DIMS(8, 5)}, true},
    {"concat", joined, {DIMS(5, 33, 2), DIMS(5, 7, 2)}, false},
    {"pad", padded, {DIMS(6, 33)}, true},
    {"permute", permuted, {DIMS(5, 33, 6)}, false},
    {"slice", cut, {DIMS(6, 33)}, false},
    {"rotary", rotary, {DIMS(2, 3, 9, 16)}, false},
    {"attention, causal",
     attention,
     {DIMS(2, 4, 37, 16), DIMS(2, 2, 37, 16), DIMS(2, 2, 37, 16)},
     false},
    {"attention, wide heads",
     attention,
     {DIMS(1, 1, 20, 192), DIMS(1, 1, 20, 192), DIMS(1, 1, 20, 192)},
     false},
    {"attention with dropout",
     attention_to_all,
     {DIMS(1, 2, 9, 64), DIMS(1, 2, 33, 64), DIMS(1, 2, 33, 64)},
     false},
    {"cross_entropy", cross_entropy, {DIMS(37, 101)}, false},
    {"cross_entropy, smoothed", smoothed, {DIMS(37, 101)}, false},
    {"cross_entropy, weighted", weighted, {DIMS(37, 101), DIMS(101)}, true},
    {"mse_loss", mse, TWO, false},
    {"bce_with_logits", bce, TWO, true},
    {"nll_loss", nll, {DIMS(37, 101)}, false},
    {"losses of differences", distances, TWO, true},
    {"kl_div", kl, TWO, true},
    {"leaky_relu and abs", leaky, ONE, false},
    {"pow_scalar", power, ONE, false},
    {"topk", top, {DIMS(12, 33)}, true},
    {"stack", stacked, TWO, false},
    {"expand", expanded, {DIMS(6, 33)}, false},
    {"index_add", index_added, {DIMS(5, 7), DIMS(8, 7)}, true},
    {"comparisons", compared, TWO, true},
    {"argmax", arg, ONE, true},
    {"argsort", order, {DIMS(12, 33)}, true},
    {"bincount", counted, {DIMS(1)}, true},
    {"one_hot", hot, {DIMS(1)}, true},
    {"remainder and floor_div", divided_whole, {DIMS(1)}, true},
    {"nonzero", found, ONE, true},
    {"linspace", spaced, {DIMS(1)}, true},
    {"rand and randn", drawn, {DIMS(1)}, true},
    {"conv1d", convolution_1d, {DIMS(2, 3, 19), DIMS(5, 3, 3), DIMS(5)}, true},
    {"adaptive_avg_pool2d", adaptive, {DIMS(2, 3, 9, 8)}, true},
    {"upsample, nearest", nearest, {DIMS(2, 3, 5, 4)}, true},
    {"batch_norm in evaluation", evaluated, {DIMS(3, 4, 5, 7), DIMS(4), DIMS(4)}, true},
    {"conv2d", convolution, {DIMS(2, 3, 9, 8), DIMS(5, 3, 3, 3), DIMS(5)}, true},
    {"conv2d, in groups and steps", strided, {DIMS(2, 4, 9, 8), DIMS(6, 2, 3, 3)}, true},
    {"conv_transpose2d", transposed, {DIMS(2, 3, 5, 4), DIMS(3, 4, 3, 3), DIMS(4)}, true},
    {"max_pool2d", max_pool, {DIMS(2, 3, 9, 8)}, true},
    {"avg_pool2d", mean_pool, {DIMS(2, 3, 9, 8)}, true},
    {"upsample", upsampled, {DIMS(2, 3, 5, 4)}, true},
    {"lstm", lstm, {DIMS(4, 3, 24), DIMS(24, 6), DIMS(2, 3, 6)}, true},
    {"gru", gru, {DIMS(4, 3, 18), DIMS(18, 6)}, true},
};

/* ---- running them ------------------------------------------------------------------------- */

static ls_tensor *numbers(ls_shape shape, uint64_t stream)
{
    float x[NUMEL_MAX];
    int64_t count = 1;
    for (int i = 0; i < shape.ndim; i++) {
        count *= shape.dim[i];
    }
    for (int64_t i = 0; i < count; i++) {
        x[i] = ls_random_normal(11, stream, (uint64_t)i);
    }
    return ls_from_data(x, shape, LS_FLOAT32);
}

static void read_out(ls_tensor *t, int slot, outcome *out)
{
    out->count[slot] = t != NULL ? ls_numel(t) : 0;
    if (t == NULL || out->count[slot] > NUMEL_MAX) {
        return;
    }
    must(ls_copy_out(ls_cast(t, LS_FLOAT32), out->value[slot],
                     (size_t)out->count[slot] * sizeof(float)),
         "copy_out");
}

/* Gradients of the sum of the result, each element times a number of its own. */
static void run_on(const char *device, const operation *o, bool half, outcome *out)
{
    ls_tensor *leaf[INPUTS_MAX] = {0}, *in[INPUTS_MAX] = {0};
    must(ls_device_use(device), device);
    LS_SCOPE;
    ls_step_begin((ls_step_context){.step = 3});
    for (int i = 0; i < INPUTS_MAX && o->in[i].ndim > 0; i++) {
        leaf[i] = ls_set_requires_grad(numbers(o->in[i], (uint64_t)i), true);
        in[i] = half ? ls_cast(leaf[i], LS_BFLOAT16) : leaf[i];
    }
    ls_tensor *y = o->make(in);
    must(ls_tensor_status(y), o->name);
    read_out(y, 0, out);
    ls_tensor *factors = ls_cast(numbers(ls_shape_of(y), 9), ls_dtype_of(y));
    must(ls_backward(ls_cast(ls_sum(ls_mul(y, factors)), LS_FLOAT32)), o->name);
    for (int i = 0; i < INPUTS_MAX; i++) {
        read_out(leaf[i] != NULL ? ls_grad(leaf[i]) : NULL, 1 + i, out);
    }
}

/* The largest difference, of the largest element. */
static double distance(const outcome *a, const outcome *b, int slot)
{
    double far = 0.0, large = 0.0;
    if (a->count[slot] != b->count[slot] || a->count[slot] > NUMEL_MAX) {
        return INFINITY;
    }
    for (int64_t i = 0; i < a->count[slot]; i++) {
        const double x = (double)a->value[slot][i], y = (double)b->value[slot][i];
        const bool same = x == y || (isnan(x) && isnan(y));
        far = fmax(far, same ? 0.0 : isfinite(x - y) ? fabs(x - y) : INFINITY);
        large = fmax(large, fabs(x));
    }
    return far > 0.0 ? far / fmax(large, 1e-6) : 0.0;
}

static int differences(const char *device, const operation *o, bool half)
{
    static outcome cpu, there;
    static const char *const slots[] = {"result", "first gradient", "second gradient",
                                        "third gradient"};
    const double close = strcmp(device, "loop") == 0 ? 0.0 : half ? CLOSE_BF16 : CLOSE;
    int wrong = 0;
    run_on("cpu", o, half, &cpu);
    run_on(device, o, half, &there);
    for (int slot = 0; slot < 1 + INPUTS_MAX; slot++) {
        const double far = distance(&cpu, &there, slot);
        if (!(far <= close)) {
            printf("%s, %s: the %s differs by %.3g of its largest element\n", o->name,
                   half ? "bfloat16" : "float32", slots[slot], far);
            wrong++;
        }
    }
    return wrong;
}

int main(int argc, char **argv)
{
    const char *device = argc == 2 ? argv[1] : "cuda";
    int wrong = 0;
    must(ls_init(NULL), "ls_init");
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        wrong += differences(device, &operations[i], false);
        wrong += operations[i].only_float32 ? 0 : differences(device, &operations[i], true);
    }
    must(ls_finalize(), "ls_finalize");
    if (wrong == 0) {
        printf("ok: %zu operations\n", sizeof operations / sizeof *operations);
    }
    return wrong == 0 ? 0 : 1;
}
