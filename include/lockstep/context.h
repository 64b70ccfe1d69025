/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism: the ranks of an axis share each sequence, so that its length is bounded by
 * the memory of all of them (ring attention, Liu et al. 2023; Llama 3, Grattafiori et al. 2024,
 * section 3.3.2).
 *
 *     ls_mesh_new(world, "dp=2,cp=4", &mesh);
 *     ls_tensor *x = ls_context_shard(tokens, 1, "cp");              [B,T] -> [B,T/4]
 *     … q = ls_context_rotary(q, "cp", 10000.0), k alike …
 *     ls_tensor *o = ls_ring_attention(q, k, v, "cp", &causal);
 *     … a loss over this rank's T/4 targets, ls_context_shard(targets, 1, "cp") …
 *     ls_backward_weighted(loss, number of targets that count);
 *
 * All other layers of a transformer work on each position alone and need no change. The parameters
 * are those of one module under ls_ddp_new over dp and cp: every rank sees other positions.
 *
 * The zigzag order. The sequence is cut into 2n chunks, and rank r of n holds chunks r and 2n-1-r.
 * Under a causal mask later queries see more keys; so paired, all ranks have the same work:
 *
 *     chunk      0   1   2   3   4   5   6   7        n = 4
 *     rank       0   1   2   3   3   2   1   0
 *
 * The results of ls_context_shard are LS_ZIGZAG(dim) on the axis, and so is what is computed from
 * them, so that ls_attention, which needs whole sequences, refuses them.
 */
#ifndef LOCKSTEP_CONTEXT_H
#define LOCKSTEP_CONTEXT_H

#include <lockstep/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* This rank's two chunks of dimension `dim` of x, one after the other: [..,T,..] -> [..,T/n,..]. x,
 * of any dtype, is the same on all ranks of the axis. Sends nothing. The gradient of x is zero at
 * the other ranks' chunks, which is this rank's share of it; that of an invariant x is complete
 * (one all-reduce). LS_ERR_INVALID if 2n does not divide the dimension. x itself on an axis of one
 * rank, as for the other functions. */
LS_API ls_tensor *ls_context_shard(ls_tensor *x, int dim, const char *axis);
/* The inverse: the whole on all ranks, replicated (collective; one all-gather, and a reduce-scatter
 * for the gradient). For evaluation: it needs the memory that the axis saves. */
LS_API ls_tensor *ls_context_gather(ls_tensor *x, int dim, const char *axis);

/* Whether x is this rank's part along the axis: a mesh with it is in force, and x varies there. For
 * models that run with and without one. */
LS_API bool ls_context_divides(const ls_tensor *x, const char *axis);
/* The positions of this rank's elements in a sequence of `length`: int64 [length/n]. For tables of
 * positions: ls_embedding(table, ls_context_positions("cp", T)). */
LS_API ls_tensor *ls_context_positions(const char *axis, int64_t length);
/* ls_rotary of this rank's part x [B,H,T/n,D] at its positions in the whole sequence. */
LS_API ls_tensor *ls_context_rotary(ls_tensor *x, const char *axis, double base);
/* The same of ls_rotary_scaled. */
LS_API ls_tensor *ls_context_rotary_scaled(ls_tensor *x, const char *axis, double base,
                                           const ls_rotary_scaling_options *scaling);

/* ls_attention of the whole sequences, of which q [B,H,T/n,D], k and v [B,G,S/n,D] are this rank's
 * parts -> [B,H,T/n,D] (collective, its backward too). Keys and values travel from each rank to the
 * next, n-1 times, while the rank computes with those that it has; their gradients travel after
 * them in backward. No rank has a score of more than its own queries with one rank's keys.
 *
 * With `causal` the parts are those of ls_context_shard, and q, k and v have equal lengths; without
 * it the order is free, and parts that are LS_SHARDED(2) give a result that is. Types and shared
 * key heads are as for ls_attention; float32 agrees with it within 2e-6, and is the same in every
 * run. A `mask` and dropout are LS_ERR_UNSUPPORTED.
 *
 * Sent by each rank, of b bytes an element: (n-1) 2 B S/n G D b in forward, as
 * much in backward, and (n-1) 2 B S/n G D 4 for the gradients, which add up in float32. */
LS_API ls_tensor *ls_ring_attention(ls_tensor *q, ls_tensor *k, ls_tensor *v, const char *axis,
                                    const ls_attention_options *options);

#if !defined(LS_NO_SITES)
#define ls_context_shard(...) LS_AT(ls_context_shard(__VA_ARGS__))
#define ls_context_gather(...) LS_AT(ls_context_gather(__VA_ARGS__))
#define ls_context_positions(...) LS_AT(ls_context_positions(__VA_ARGS__))
#define ls_context_rotary(...) LS_AT(ls_context_rotary(__VA_ARGS__))
#define ls_context_rotary_scaled(...) LS_AT(ls_context_rotary_scaled(__VA_ARGS__))
#define ls_ring_attention(...) LS_AT(ls_ring_attention(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
