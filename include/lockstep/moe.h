/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture of experts: a layer of E feed-forward networks, of which each token visits k. A gate, a
 * linear layer, chooses; parameters grow with E, the work of a token does not (Shazeer et al.
 * 2017; Lepikhin et al. 2020, "GShard"; Fedus et al. 2021, "Switch"; Jiang et al. 2024, "Mixtral";
 * DeepSeek-AI 2024, "DeepSeek-V3").
 *
 *     y_t = sum over the chosen e of g_te expert_e(x_t)  [ + shared(x_t) ]
 *
 * Expert parallelism: where the mesh in force has an axis "ep" of n ranks, each has E/n experts,
 * and rows of tokens travel to the ranks of their experts and back.
 *
 *     ls_mesh_new(ls_world(), "dp=2,ep=4", &mesh);
 *     net = … ls_moe_new(dim, 4 * dim, LS_OPTIONS(ls_moe_options, .balance_loss = 0.01)) …
 *     net = ls_ddp_new(net, ls_world(), NULL);
 *     ...
 *     loss = ls_cross_entropy(ls_forward(net, x), y, NULL);
 *     loss = ls_add(loss, ls_moe_loss(net));
 *
 * The axis is one of batches: its ranks have different samples. ls_ddp_new adds the gradients of
 * the gate and of everything else over both axes, and those of an expert over dp alone, since the
 * rows of all ranks of ep have come to it; all are divided by the whole batch.
 *
 * Every forward of the layer is collective along the axis, also without gradients, with a weight
 * of 0, and where no token has chosen an expert; so ls_ddp_join is refused. One all-gather of
 * k E + 2 numbers of 8 bytes says how many rows go where; two exchanges of rows follow
 * (ls_redistribute_rows), and two in backward.
 */
#ifndef LOCKSTEP_MOE_H
#define LOCKSTEP_MOE_H

#include <lockstep/nn.h>
#include <lockstep/placement.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What g_te is, of the logits h_te of the gate. */
typedef enum ls_moe_gate {
    LS_MOE_SOFTMAX_FIRST = 0, /* softmax over all experts; of it the k largest (GShard, Switch) */
    LS_MOE_SOFTMAX_LAST = 1,  /* the k largest logits; softmax over these (Mixtral) */
    LS_MOE_SIGMOID = 2,       /* 1/(1+exp(-h)); of it the k largest (DeepSeek-V3) */
} ls_moe_gate;

/* Whose tokens share the places of an expert, and are counted for the balance loss. */
typedef enum ls_moe_tokens {
    LS_MOE_LOCAL = 0,  /* those of a rank: C = ceil(k T factor / E) places for its T tokens */
    LS_MOE_GLOBAL = 1, /* those of all ranks of the axis, in the order of the ranks; T is the sum.
                          The same tokens are dropped on any number of ranks */
} ls_moe_tokens;

typedef struct ls_moe_options {
    size_t size;
    int64_t experts;  /* E; a multiple of the ranks of the axis. Default 8 */
    int top_k;        /* k; default 2 */
    double capacity;  /* the factor; what exceeds it is dropped: first choices come before second
                            ones, and earlier tokens before later ones. There are at most T places.
                            0, the default: dropless */
    ls_moe_gate gate; /* default LS_MOE_SOFTMAX_FIRST */
    bool renormalise; /* the k weights of a token are divided by their sum; default true */
    ls_moe_tokens tokens; /* default LS_MOE_LOCAL */
    bool padded;          /* with `capacity` of local tokens: C rows are sent for each expert, zeros
                            where fewer have come, as fixed shapes need (GShard). Default false */
    int shared;           /* experts that every token visits, of weight 1 (DeepSeek); default 0 */
    bool gated;           /* w2(silu(w1 x) * (w3 x)), without biases (Mixtral), in place of
                            w2 act(w1 x + b1) + b2 */
    ls_activation activation; /* act; default LS_ACTIVATION_GELU */
    double balance_loss; /* coefficient of E sum_e f_e P_e: f_e is the share of the choices, P_e the
                            mean probability (Switch, equation 4); 1.0 where both are even */
    double z_loss;     /* coefficient of the mean of (log sum_e exp(h_te))^2 (ST-MoE, Zoph 2022) */
    bool balance_bias; /* adds a number for each expert to what is compared, not to the weights;
                            see ls_moe_balance */
    const char *axis;  /* of the mesh in force; a mesh without it has all experts on each rank.
                            Default "ep" */
} ls_moe_options;
#define LS_DEFAULTS_ls_moe_options                                                                 \
    .experts = 8, .top_k = 2, .renormalise = true, .activation = LS_ACTIVATION_GELU, .axis = "ep",
LS_DEFAULTS_FUNCTION(moe)

/* x [..,dim] -> the same shape: gate.weight [E,dim], w1 [E,hidden,dim], b1 [E,hidden], w2
 * [E,dim,hidden], b2 [E,dim], with `gated` w3 [E,hidden,dim] in place of biases; shared.up,
 * shared.gate, shared.down. Initial values as of ls_linear_new. Where a mesh with the axis is in
 * force, a rank has of w1 … b2 its experts (ls_tensor_shard along dimension 0). Local call.
 *
 * ls_forward_many takes a second input, a mask [..] of x's shape without its last dimension, of any
 * type: tokens of 0 (padding) visit no expert, give zeros whatever they hold, and count nowhere. A
 * second output is ls_moe_loss of this layer.
 *
 * Expert e computes on its rows in the order (rank, token), so the results have the bits of one
 * process that has all experts and the tokens of all ranks one after the other. A token that is
 * dropped by all its experts gives zeros: put the layer beside a residual.
 *
 * Forward: LS_ERR_MISMATCH where ranks have other settings; LS_ERR_INVALID on all ranks where the
 * gate of one gives a number that is not finite, which names the rank and the token. */
LS_API ls_module *ls_moe_new(int64_t dim, int64_t hidden, const ls_moe_options *options);

/* Divides the experts of all layers in `net` along the axis of the mesh in force: for a model that
 * was made before its mesh. Before ls_ddp_new and the optimizer. Layers that are divided already,
 * and those whose axis the mesh lacks, stay as they are. Local call; all ranks make the same.
 * LS_ERR_STATE: no mesh is in force; and the errors of ls_tensor_shard. */
LS_API ls_status ls_expert_parallel(ls_module *net);

/* The losses of the last forward of all such layers in `module`, in the graph: add them to the loss
 * before ls_backward, in a statement after that of the forward, since C leaves open which argument
 * of a call comes first. Of this rank's tokens, so that the mean over the ranks is the whole
 * batch's: with LS_MOE_GLOBAL also where ranks have unequal numbers of tokens, with LS_MOE_LOCAL
 * the mean of the ranks' own.
 * A tensor of 0 without layers or coefficients. LS_ERR_STATE: a layer has not run; LS_ERR_STALE:
 * its scope has ended. */
LS_API ls_tensor *ls_moe_loss(ls_module *module);
/* For a layer inside a recomputed function, whose tensors end with it: makes `loss`, an output of
 * that function that was the layer's second output, the loss of its last forward. */
LS_API ls_status ls_moe_set_loss(ls_module *layer, ls_tensor *loss);

/* Of the last forward, this rank's tokens: tokens[e] (NULL: not wanted) becomes the number of rows
 * that expert e has computed, *dropped the choices that found no place; sums over all layers in
 * `module`, which have equally many experts. sum of tokens = k T - dropped. LS_ERR_NOT_FOUND: there
 * is no such layer. Local call. */
LS_API ls_status ls_moe_counts(ls_module *module, int64_t *tokens, int64_t *dropped);

/* For layers with balance_bias, after the optimizer's step: where an expert of the choices since
 * the last call has had more than the mean, its bias decreases by `rate`, where fewer, it increases
 * (DeepSeek-V3, section 2.1.2; rate 0.001). The choices are added over `group` (NULL: this rank's
 * alone): give the group of all ranks with batches. The biases are buffers "bias" [E], part of
 * states. Collective. */
LS_API ls_status ls_moe_balance(ls_module *module, ls_group *group, double rate);

#if !defined(LS_NO_SITES)
#define ls_moe_loss(...) LS_AT(ls_moe_loss(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
