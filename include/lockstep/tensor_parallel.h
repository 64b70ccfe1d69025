/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism: the ranks of an axis of the mesh share each matrix of a model (Megatron-LM,
 * Shoeybi et al. 2019), and with `sequence` the activations between the matrices as well
 * (Korthikanti et al. 2022).
 *
 *     ls_mesh_new(ls_world(), "dp=2,tp=4", &mesh);
 *     net = ls_gpt_new(NULL);
 *     LS_CHECK(ls_tensor_parallel(net, NULL));               before ls_ddp_new and the optimizer
 *     net = ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .batch_axes = "dp"));
 *     ...
 *     loss = ls_tensor_parallel_cross_entropy(ls_forward(net, x), y, NULL);
 *
 *              column                        row
 *     x ──f── x W_1^T | gelu ─────────── h W_2^T ──g── + bias      one rank's part of the width
 *     x ──f── x W_1^T | gelu ─────────── h W_2^T ──g── + bias      the other's
 *
 *             forward                        backward
 *     f       nothing                        all-reduce            with `sequence`: all-gather,
 *     g       all-reduce                     nothing               reduce-scatter, and back
 *
 * The parameters that a rank keeps have the values that the whole ones would have (random.h), so a
 * model begins alike on any number of ranks. The results are those of one process but for the order
 * in which products are added.
 */
#ifndef LOCKSTEP_TENSOR_PARALLEL_H
#define LOCKSTEP_TENSOR_PARALLEL_H

#include <lockstep/nn.h>
#include <lockstep/ops.h>
#include <lockstep/placement.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_tensor_parallel_options {
    size_t size;
    const char *axis; /* of the mesh in force; default "tp" */
    /* Words PATH=ROLE with spaces between them (torch's parallelize_module). PATH is the dotted
     * name of modules or parameters, in which * stands for any letters but a dot. ROLE:
     *
     *     column           each parameter is cut along dimension 0; the layer's result along its
     *                      last
     *     column(N)        the same of each of N parts one after the other: a fused query, key and
     *                      value is column(3)
     *     column(heads=N)  a layer whose N heads are fewer than the ranks: its parameters stay
     *                      whole, and each rank computes the head that its query heads share
     *     row              matrices are cut along dimension 1; the result is added up
     *     shard(D), shard(D,N)   along dimension D
     *     vocab            rows of a table
     *     sequence         with `sequence`, its gradients are this rank's share: norms, tables of
     *                      positions
     *
     * NULL: the plans that the classes of modules carry (ls_module_class). */
    const char *plan;
    bool sequence; /* activations between the layers are sharded along dimension 1 of [B,T,C] */
    bool keep_gathered; /* with `sequence`: the gathered input of a column layer is kept until
                           backward; false: gathered again. Default true */
} ls_tensor_parallel_options;
#define LS_DEFAULTS_ls_tensor_parallel_options .axis = "tp", .keep_gathered = true,
LS_DEFAULTS_FUNCTION(tensor_parallel)

/* Cuts the parameters of `net` by the plan, and has its layers convert what crosses them. Local
 * call; all ranks make the same. An axis of one rank changes nothing. LS_ERR_INVALID: a word that
 * is wrong or whose path names nothing, a dimension that the size of the axis does not divide, a
 * parameter that two words cut; LS_ERR_STATE: the model is cut already, wrapped, or has gradients
 * or an optimizer. Nothing is cut then.
 *
 * From then on the ranks of the axis call forward together, without gradients too, on the same
 * inputs, which the first call compares (LS_ERR_MISMATCH), and with this mesh in force
 * (LS_ERR_STATE). With `sequence` the model needs ls_ddp_new over the axis, which adds the shares
 * of norms' gradients: .batch_axes = "" where no axis has batches. */
LS_API ls_status ls_tensor_parallel(ls_module *net, const ls_tensor_parallel_options *options);

/* ---- in the loop -------------------------------------------------------------------------- */

/* ls_cross_entropy of the whole logits, also where each rank has a part of the classes. */
LS_API ls_tensor *ls_tensor_parallel_cross_entropy(ls_tensor *logits, ls_tensor *target,
                                                   const ls_cross_entropy_options *options);

/* ---- in the forward of a module ----------------------------------------------------------- */

/* For modules with matrices of their own; ls_linear_new and ls_embedding_new call these. `m` is the
 * module, or one above it, that ls_tensor_parallel has seen; of any other they are the plain
 * operation. */

/* activation(x weight^T + bias) with the conversions that follow from how `weight` is cut. */
LS_API ls_tensor *ls_tensor_parallel_linear(ls_module *m, ls_tensor *x, ls_tensor *weight,
                                            ls_tensor *bias, ls_activation activation);
/* x, converted once for several column layers of `m` that read it; if none of them is cut, x. */
LS_API ls_tensor *ls_tensor_parallel_input(ls_module *m, ls_tensor *x);
/* x as the activations between the layers of `m` are along `dim`: with `sequence` this rank's part
 * of it. */
LS_API ls_tensor *ls_tensor_parallel_between(ls_module *m, ls_tensor *x, int dim);
/* The opposite: the whole of x, in equal copies, where the ranks have parts along `dim`. */
LS_API ls_tensor *ls_tensor_parallel_whole(ls_module *m, ls_tensor *x, int dim);
/* Whether `m` was cut with `sequence`. */
LS_API bool ls_tensor_parallel_sequence(const ls_module *m);
/* Part i of x [B,T,parts C], the result of a column(parts) layer, as heads [B,H,T,head_dim]: a
 * view. H follows from x. (ls_reshape to [B,T,1,head_dim] takes the only head of a rank for a part
 * of its numbers.) */
LS_API ls_tensor *ls_tensor_parallel_heads(ls_tensor *x, int i, int parts, int64_t head_dim);

#if !defined(LS_NO_SITES)
#define ls_tensor_parallel_cross_entropy(...) LS_AT(ls_tensor_parallel_cross_entropy(__VA_ARGS__))
#define ls_tensor_parallel_linear(...) LS_AT(ls_tensor_parallel_linear(__VA_ARGS__))
#define ls_tensor_parallel_input(...) LS_AT(ls_tensor_parallel_input(__VA_ARGS__))
#define ls_tensor_parallel_between(...) LS_AT(ls_tensor_parallel_between(__VA_ARGS__))
#define ls_tensor_parallel_whole(...) LS_AT(ls_tensor_parallel_whole(__VA_ARGS__))
#define ls_tensor_parallel_heads(...) LS_AT(ls_tensor_parallel_heads(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
