/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on tensors that the ranks along an axis of the mesh share (placement.h), for tensor
 * parallelism: the first and the last of a language model, whose tables have a row for each word of
 * the vocabulary (Megatron-LM: Shoeybi et al. 2019, section 3). Rank i of n has words
 * [i V/n, (i+1) V/n); pad a vocabulary of V words that n does not divide.
 *
 *     ls_tensor *x = ls_sharded_embedding(table, ids, "tp");          table [V/n,C]
 *     x = ls_redistribute(x, "tp", LS_PARTIAL, LS_INVARIANT);
 *     …
 *     h = ls_redistribute(h, "tp", LS_INVARIANT, LS_REPLICATED);
 *     ls_tensor *logits = ls_linear(h, head, NULL);                   head [V/n,C], LS_SHARDED(0)
 *     ls_tensor *loss = ls_sharded_cross_entropy(logits, targets, "tp", NULL);
 */
#ifndef LOCKSTEP_SHARDED_H
#define LOCKSTEP_SHARDED_H

#include <lockstep/ops.h>
#include <lockstep/placement.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ls_embedding of a table of which this rank has its part: weight [V/n,C], LS_SHARDED(0) along the
 * axis; index [..] of the whole vocabulary, the same on all its ranks. The result [..,C] is
 * LS_PARTIAL, with zeros for the rows of the others, so that ls_redistribute gives the bits of
 * ls_embedding of the whole table. Exchanges nothing, forward or backward. LS_ERR_PLACEMENT where
 * an argument is not so placed; LS_ERR_INVALID for indices outside the whole vocabulary, and for a
 * part (ls_tensor_set_part) of a table that the ranks do not share evenly. */
LS_API ls_tensor *ls_sharded_embedding(ls_tensor *weight, ls_tensor *index, const char *axis);

/* ls_cross_entropy of logits of which this rank has the classes of its part: logits [..,V/n],
 * LS_SHARDED of the last dimension along the axis; target [..] of the whole vocabulary, the same on
 * all its ranks. The result is LS_INVARIANT: the loss of the whole rows, which label smoothing,
 * too, spreads over all V classes. Collective over the axis in forward alone, the same call on all
 * ranks: two all-reduces of together 3 float32 numbers a row, 4 with smoothing, counted by
 * ls_redistribute_get_stats. Keeps the logits for backward, and makes no other tensor of their size
 * but their gradient. Errors as ls_sharded_embedding's; LS_ERR_MISMATCH for parts of different
 * sizes; LS_ERR_UNSUPPORTED with weights of classes. */
LS_API ls_tensor *ls_sharded_cross_entropy(ls_tensor *logits, ls_tensor *target, const char *axis,
                                           const ls_cross_entropy_options *options);

#if !defined(LS_NO_SITES)
#define ls_sharded_embedding(...) LS_AT(ls_sharded_embedding(__VA_ARGS__))
#define ls_sharded_cross_entropy(...) LS_AT(ls_sharded_cross_entropy(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
