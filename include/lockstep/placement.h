/* SPDX-License-Identifier: Apache-2.0 */
/* Placements: how the copies of a tensor on the ranks of a mesh are related. An operation whose
 * inputs do not compose is refused at the call, LS_ERR_PLACEMENT, instead of training with wrong
 * gradients.
 *
 * Per axis of the mesh in force a tensor is one of
 *
 *                       values on the ranks of the axis     its gradient
 *     LS_REPLICATED     equal                               partial: this rank's share of a sum
 *     LS_INVARIANT      equal                               equal, and complete
 *     LS_SHARDED(d)     parts of a whole, along dim d       sharded alike
 *     LS_ZIGZAG(d)      the same, in the order of context.h   sharded alike
 *     LS_VARYING        whatever they are                   varying
 *     LS_PARTIAL        terms, whose sum is the whole       replicated
 *     LS_UNPLACED       equal; no gradient flows to it
 *
 * Parameters are invariant, constants and data unplaced, unless ls_place says otherwise. Operations
 * propagate placements:
 *
 *     - equal placements give the same; replicated with sharded gives sharded, unless it has the
 *       part's size along the sharded dimension; unplaced goes with any but partial;
 *     - invariant goes with invariant only: it is converted first, and that conversion is where the
 *       sum over the ranks happens in backward;
 *     - partial passes linear operations, and partial + partial is partial; a bias added to a
 *       partial sum would be added once for each rank, and is refused;
 *     - a product or a sum over a dimension that is sharded is partial, and a mean, whose divisor
 *       is of the part, varying;
 *     - what needs a whole dimension (softmax, a norm) refuses one that is sharded.
 *
 * Data parallelism is one axis of the same system. ls_ddp_new over the axis dp reads parameters,
 * which are invariant, as replicated: its reducer sums their gradients, so they go with batches
 * that vary along dp. Without it they do not, and the first product says so.
 *
 * Where gradients are off (LS_NO_GRAD) replicated and invariant are one. Nothing of this costs
 * anything without a mesh. The placements follow JAX's sharding types and meta-pytorch/spmd_types;
 * the conversions are those of Megatron-LM (Shoeybi et al. 2019; Korthikanti et al. 2022).
 */
#ifndef LOCKSTEP_PLACEMENT_H
#define LOCKSTEP_PLACEMENT_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int ls_placement;
#define LS_UNPLACED ((ls_placement)0)
#define LS_REPLICATED ((ls_placement)1)
#define LS_INVARIANT ((ls_placement)2)
#define LS_PARTIAL ((ls_placement)3)
#define LS_VARYING ((ls_placement)4)
/* Rank i of n has part i of n equal ones along dimension `dim`, which may be negative. */
#define LS_SHARDED(dim) ((ls_placement)(16 + (dim)))
/* Rank i of n has parts i and 2n-1-i of 2n equal ones: of ls_context_shard. `dim` is 0, 1 or 2. */
#define LS_ZIGZAG(dim) ((ls_placement)(32 + (dim)))

/* Says how the values of `t` on the ranks of `axis` are related, which nothing checks: of data that
 * the program has read (a batch is LS_SHARDED(0) or LS_VARYING), of a parameter (LS_SHARDED, of
 * which this rank has its part; LS_REPLICATED, with a gradient that ls_ddp_new sums over this axis
 * as well), or of a varying result of an operation that knows more than its type says. Moves
 * nothing. LS_ERR_NOT_FOUND: no such axis; LS_ERR_STATE: no mesh in force; LS_ERR_PLACEMENT: a
 * result of operations that is not varying: ls_redistribute. */
LS_API ls_status ls_place(ls_tensor *t, const char *axis, ls_placement placement);
/* The same on every axis: as `like` is placed. For elements that a module keeps beside the graph.
 * Without a mesh in force it does nothing. */
LS_API ls_status ls_place_like(ls_tensor *t, const ls_tensor *like);
/* Makes a parameter this rank's part of it along `dim`, in place: rank i of the n ranks of `axis`
 * keeps the i-th of n equal parts, and the tensor is LS_SHARDED(dim) on that axis. All that belongs
 * to the whole stays so: first values are those that the whole would have there, states show the
 * part as slices of the whole, and ls_clip_grad_norm counts each element once. Values that exist
 * already are kept. A fused projection [q; k; v] is cut within each of its `count` groups, whose
 * sizes are groups[] and may differ; NULL: one group. Parameters may be sharded along several axes,
 * one after the other, each in the sizes that the last one left. Moves nothing between ranks.
 * LS_ERR_INVALID: the ranks do not divide a group; LS_ERR_STATE: the parameter has a gradient, an
 * optimizer or a wrapper already, or shares its elements; LS_ERR_PLACEMENT: it is sharded on this
 * axis. */
LS_API ls_status ls_tensor_shard(ls_tensor *t, const char *axis, int dim, const int64_t *groups,
                                 int count);
/* The inverse: the whole of a parameter (torch's DTensor.full_tensor), for a file of weights or for
 * printing. Collective over the axes along which t is sharded, whose ranks all call it for the same
 * parameter; each gets all elements, in a new tensor of the whole's shape, outside of the graph,
 * which belongs to the scope. Exact: elements are copied. It takes the memory of two wholes while
 * it runs and of one afterwards, so gather one parameter at a time. The whole of what is not
 * sharded is a view of t, and nothing is sent. LS_ERR_PLACEMENT for results of operations, which
 * are converted by ls_redistribute, and for what varies; LS_ERR_MISMATCH where the parts are not
 * those of one tensor. */
LS_API ls_tensor *ls_tensor_whole(ls_tensor *t);
/* LS_UNPLACED without such an axis, and where no mesh is in force. */
LS_API ls_placement ls_placement_of(const ls_tensor *t, const char *axis);
/* "sharded(1)": in a buffer of this thread, valid until the fourth call after it. */
LS_API const char *ls_placement_name(ls_placement placement);

/* Converts x along one axis, whose ranks all call it (collective). Backward is the adjoint
 * conversion of the gradient:
 *
 *     from -> to                 forward            backward
 *     INVARIANT  -> REPLICATED   nothing            all-reduce          Megatron's f
 *     PARTIAL    -> INVARIANT    all-reduce         nothing             Megatron's g
 *     PARTIAL    -> REPLICATED   all-reduce         all-reduce
 *     PARTIAL    -> SHARDED(d)   reduce-scatter     all-gather
 *     SHARDED(d) -> REPLICATED   all-gather         reduce-scatter
 *     SHARDED(d) -> INVARIANT    all-gather         slice
 *     INVARIANT  -> SHARDED(d)   slice              all-gather
 *     REPLICATED -> SHARDED(d)   slice              zeros around it
 *     SHARDED(d) -> PARTIAL      zeros around it    slice
 *     REPLICATED -> PARTIAL      kept on rank 0     kept on rank 0
 *     REPLICATED -> INVARIANT    nothing            kept on rank 0
 *     INVARIANT  -> PARTIAL      kept on rank 0     nothing
 *     SHARDED(i) -> SHARDED(j)   all-to-all         all-to-all          Ulysses (Jacobs 2023)
 *
 * An unplaced x may be taken for replicated or invariant. The result is a new tensor of this rank's
 * shape, row-major; x itself where nothing is to be done, along an axis of one rank. Sums are those
 * of ls_all_reduce and ls_reduce_scatter: the same bits on all ranks. LS_ERR_PLACEMENT where x is
 * not `from`, or for a conversion that the table lacks; LS_ERR_INVALID for a dimension that the
 * size of the axis does not divide. */
LS_API ls_tensor *ls_redistribute(ls_tensor *x, const char *axis, ls_placement from,
                                  ls_placement to);

/* Rows to ranks (MPI_Alltoallv; the dispatch and the combination of experts, moe.h): x [N,..] has
 * counts[r] rows for each of the n ranks of `axis`, in the order of the ranks, and the result
 * [M,..] the received[r] rows from each of them, in that order. What a rank has for another one is
 * what that one receives: received[a] here is counts[b] there. Counts may be 0. Backward is the
 * same exchange the other way. x varies along the axis, or is sharded(0); the result is varying.
 * Collective. The rows themselves along an axis of one rank. LS_ERR_INVALID: counts that are
 * negative or not those of x's rows; LS_ERR_MISMATCH: the two ends of a block differ in its size;
 * LS_ERR_PLACEMENT: x is the same on all ranks, or a term of a sum. */
LS_API ls_tensor *ls_redistribute_rows(ls_tensor *x, const char *axis, const int64_t *counts,
                                       const int64_t *received);

/* What the conversions of this process, and ls_ring_attention (context.h), have sent along an axis
 * since the mesh was made; nothing where no mesh is in force. */
typedef struct ls_redistribute_stats {
    size_t size; /* set to sizeof before the call */
    uint64_t all_reduces, all_gathers, reduce_scatters, all_to_alls;
    uint64_t bytes;    /* sent by this rank: 2(n-1)/n of an all-reduce's, (n-1)/n of the whole's for
                       the others; a message's own; of rows those that leave this rank */
    uint64_t messages; /* of ls_ring_attention, to the next rank */
} ls_redistribute_stats;
LS_API ls_status ls_redistribute_get_stats(const char *axis, ls_redistribute_stats *out);

#if !defined(LS_NO_SITES)
#define ls_redistribute(...) LS_AT(ls_redistribute(__VA_ARGS__))
#define ls_redistribute_rows(...) LS_AT(ls_redistribute_rows(__VA_ARGS__))
#define ls_tensor_whole(...) LS_AT(ls_tensor_whole(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
