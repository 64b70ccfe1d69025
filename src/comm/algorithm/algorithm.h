/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the algorithm files: their table entries, short forms of refs, and patterns of
 * traffic. */
#ifndef LS_COMM_ALGORITHM_ALGORITHM_H
#define LS_COMM_ALGORITHM_ALGORITHM_H

#include "base/error.h"
#include "comm/program/program.h"

extern const ls__algorithm ls__all_reduce_direct, ls__all_reduce_one_shot;
extern const ls__algorithm ls__reduce_scatter_direct;
extern const ls__algorithm ls__all_gather_direct, ls__all_gather_one_shot;
extern const ls__algorithm ls__broadcast_direct, ls__broadcast_one_shot;
extern const ls__algorithm ls__barrier_direct;
extern const ls__algorithm ls__reduce_direct, ls__reduce_one_shot;
extern const ls__algorithm ls__gather_direct, ls__scatter_direct;
extern const ls__algorithm ls__all_reduce_ring, ls__all_reduce_doubling;
extern const ls__algorithm ls__reduce_scatter_ring, ls__all_gather_ring;
extern const ls__algorithm ls__broadcast_binomial;
extern const ls__algorithm ls__all_to_all_direct, ls__all_to_all_pairwise, ls__all_to_all_bruck;
extern const ls__algorithm ls__scan_direct, ls__scan_doubling;
extern const ls__algorithm ls__exscan_direct, ls__exscan_doubling;
extern const ls__algorithm ls__all_reduce_root, ls__all_reduce_full_exchange;
extern const ls__algorithm ls__all_reduce_halving, ls__reduce_scatter_halving;
extern const ls__algorithm ls__all_reduce_tree_stages, ls__all_reduce_double_tree;
extern const ls__algorithm ls__all_reduce_hierarchical, ls__reduce_scatter_pairwise;
extern const ls__algorithm ls__all_gather_doubling, ls__all_gather_bruck;
extern const ls__algorithm ls__reduce_binomial, ls__gather_binomial, ls__scatter_binomial;
extern const ls__algorithm ls__broadcast_scatter_gather, ls__broadcast_chain;
extern const ls__algorithm ls__all_to_all_v_direct, ls__all_to_all_v_pairwise;
extern const ls__algorithm ls__all_gather_v_direct, ls__reduce_scatter_v_direct;
extern const ls__algorithm ls__gather_v_direct, ls__scatter_v_direct;

/* For an algorithm that has no program in shared memory. */
static inline ls_status ls__only_messages(const ls__program_spec *spec, const char *name)
{
    return spec->memory == LS__MEMORY_MESSAGES
               ? LS_OK
               : ls__fail(LS_ERR_UNSUPPORTED, "%s %s runs over messages only",
                          ls__operation_name(spec->operation), name);
}

static inline ls__ref ls__ref_of(ls__program_buffer buffer, int rank, int chunk)
{
    return (ls__ref){.buffer = (uint8_t)buffer, .rank = (int16_t)rank, .chunk = chunk};
}

/* Slot s of this program's SCRATCH, holding chunk c of `chunks`. */
static inline ls__ref ls__ref_scratch(const ls__program_spec *spec, int chunks, int slot, int c)
{
    return ls__ref_of(LS__BUFFER_SCRATCH, spec->rank, slot * chunks + c);
}

/* Note [Exchange]
 * Every rank sends one message to every other. Round k pairs rank r with r+k and r-k. Messages to
 * higher ranks travel on lane 0, those to lower ranks on lane 1, so that both directions of a pair
 * flow at once; in each lane even members of the chain r, r+k, r+2k … send first and odd ones
 * receive first. So no step waits for room behind a step that waits for it: the exchange ends even
 * if a message is as large as you like and nothing is buffered (the checker proves it at
 * capacity 0), in about two message times a round. */
typedef struct ls__exchange {
    ls__ref (*send)(const ls__program_spec *spec, int peer); /* the chunk for `peer` */
    ls__ref (*recv)(const ls__program_spec *spec,
                    int peer); /* the place of the chunk from `peer` */
    int after_step;            /* step of lane 0 that lane 1 waits for before it begins; -1: none */
} ls__exchange;
void ls__emit_exchange(ls__builder *b, const ls__program_spec *spec, const ls__exchange *exchange);
/* Only the half from each rank to all higher ones, on lane 0. */
void ls__emit_upward(ls__builder *b, const ls__program_spec *spec, const ls__exchange *exchange);
/* Index of the last step that one exchange puts into either lane, counted from its own first. */
static inline int ls__exchange_last(const ls__program_spec *spec)
{
    return spec->size - 2;
}

/* Note [Ring]
 * Rank r sends to r+1 and receives from r-1 (modulo n), n-1 times each. The two must flow at once,
 * and a stream has one lane at both of its ends, so lanes colour the edges of the ring: edge r
 * (from r to r+1) has lane r mod 2, the last one of an odd ring lane 2. Then no rank sends and
 * receives on one lane, and the ring ends even if nothing is buffered. For 5 ranks:
 *
 *     0 ──0──▶ 1 ──1──▶ 2 ──0──▶ 3 ──1──▶ 4 ──2──▶ 0
 *
 * Reducing, chunk c starts at rank c+1 and travels to rank c, each rank on its way adding its own
 * contribution to the right: ((c+1 + c+2) + … ) + c. That is no canonical association (D5), so
 * programs with it are not exact; partial sums are wide, so rounding happens once. Gathering, chunk
 * c starts at rank c and is passed on. */
/* Reduces every chunk of INPUT; chunk `rank` ends in OUTPUT. Sets chunks, scratch and wide. Returns
 * the index of the last step in the lane of the receives. */
int ls__emit_ring_reduce(ls__builder *b, const ls__program_spec *spec);
/* Hands chunk `rank` of OUTPUT to all. It stands there when step `after` of the lane of the
 * receives is complete; -1: from the start. */
void ls__emit_ring_gather(ls__builder *b, const ls__program_spec *spec, int after);
int ls__ring_lane(const ls__program_spec *spec, int from); /* of the edge to the next rank */
/* The same where every rank sends to the one `distance` further on: of the edge from `from`. There
 * are gcd(n, distance) rings then, each coloured on its own. */
int ls__circle_lane(const ls__program_spec *spec, int from, int distance);

/* Note [One fence]
 * A STAGED program is run once a slice, and slices take at least two STAGE slots in turn. With two,
 * where peers only *read* a rank's slot, after the slice's fence, one fence a slice is enough: a
 * rank writes slot s again two slices later, after it passed the fence of the slice between, which
 * every peer reaches only when its own reads of slot s are done. The checker runs three slices in a
 * row, so slot 0 is used again there.
 *
 * Where peers also *write* into a rank's slot (all_reduce direct) a second fence shows that they
 * are done before the rank copies the result out. Slot s is then free even without a second slot:
 * between a rank's fence 1 and its next fence 0 no peer touches its slot. The second slot lets a
 * rank copy its next slice in while slower peers still wait at fence 1. */

/* Note [Shift]
 * Every rank sends to the rank `distance` below it and receives from the one as far above (modulo
 * n). These edges make rings; as in Note [Ring] lanes colour them, so that no rank sends and
 * receives on one lane. */
typedef struct ls__shift {
    int to, from; /* ranks */
    int out, in;  /* lanes, of 0 … 2 */
} ls__shift;
ls__shift ls__shift_of(const ls__program_spec *spec, int distance);

/* Note [Halving]
 * The ranks of a subtree of the canonical tree (D5) hold its sums, each chunk at one of them. Where
 * two subtrees meet, the left and the right owner of a chunk share it: one of them is to own it
 * from then on, and receives what the other has. In a complete subtree of s ranks chunk c is owned
 * by its rank c mod s, so half of each rank's chunks change hands; elsewhere by the one of the two
 * that owns fewer. What is nearest comes first, so subtrees are added whole: the association is the
 * canonical one for every number of ranks. Messages to the right are on lane 0, those to the left
 * on lane 1, in the order of levels and chunks, which is one order for all: no rank waits in
 * a cycle. */
typedef struct ls__made { /* the step that produced a value */
    int lane, step;
} ls__made;
/* Sums every chunk of INPUT, of which there are `size`; the sum of chunk c ends in SCRATCH of
 * owner[c] (both [size]), by step made[c]. Sets chunks, scratch and wide. */
void ls__emit_halving(ls__builder *b, const ls__program_spec *spec, int16_t *owner, ls__made *made);
/* The same path backwards, on lanes 2 and 3: OUTPUT chunks, each made by made[c] at its owner, go
 * to all. */
void ls__emit_halving_back(ls__builder *b, const ls__program_spec *spec, ls__made *made);
static inline ls__ref ls__halving_sum(const ls__program_spec *spec, int chunk)
{
    return ls__ref_scratch(spec, spec->size, chunk, chunk);
}

/* Some of the ranks, among them this one at `place`. */
typedef struct ls__team {
    int16_t rank[LS__PROGRAM_RANKS_MAX];
    int size, place;
} ls__team;
void ls__team_of_all(const ls__program_spec *spec, ls__team *team);
/* binomial_tree.c: the first of the team ends with the sum of all INPUT in slot 0 of its SCRATCH,
 * on lane 0. Sets chunks (1), scratch (2) and wide. Returns this rank's last step. */
int ls__emit_team_tree(ls__builder *b, const ls__program_spec *spec, const ls__team *team);
void ls__emit_tree(ls__builder *b, const ls__program_spec *spec); /* of all */
/* recursive_doubling.c: slot 0 of SCRATCH of every member, made by step `last` of lane 0, becomes
 * their sum; slot 1 is used. */
void ls__emit_climb(ls__builder *b, const ls__program_spec *spec, const ls__team *team, int last);

#endif
