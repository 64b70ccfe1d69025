/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that move data between buffers of this host: COPY, REDUCE, PEER_COPY, PEER_REDUCE.
 * Long ones are done in pieces, so that one operation does not keep the engine from the others. */
#include <string.h>

#include "base/copy.h"
#include "base/memory.h"
#include "comm/core/group.h"
#include "comm/core/post.h"
#include "comm/operation/exec.h"

/* The lane stands behind the piece now. */
static ls__result piece_done(ls__lane *lane, int64_t count, int64_t piece)
{
    lane->moved += piece;
    return lane->moved < count ? LS__MOVED : LS__COMPLETE;
}

/* Elements of a piece, for each of which so many bytes are read or written; whole cache lines. */
static int64_t piece_of(int64_t left, size_t bytes_per_element)
{
    const int64_t most = (int64_t)(LS__PIECE_BYTES / bytes_per_element) & -LS__CACHE_LINE;
    return left < most ? left : most > 0 ? most : LS__CACHE_LINE;
}

/* COPY of a wide program into SCRATCH: float32 of 16-bit floats, for example. */
static void widen(const ls__exec *exec, const ls__reduce_kernels *table, unsigned char *to,
                  const unsigned char *from, int64_t count)
{
    ls__reduce(&(ls__reduce_args){.dst = (void *const[]){to},
                                  .dst_count = 1,
                                  .dst_wide = true,
                                  .src = (const void *const[]){from},
                                  .src_count = 1,
                                  .count = count,
                                  .dtype = exec->work->dtype,
                                  .averages = exec->work->divisor != 0,
                                  .op = exec->work->op,
                                  .table = table});
}

/* Note [Past the caches]
 * A large result that is only copied to its place is in no cache before, and need not be there
 * after. Time of stores past the caches over ordinary ones, private buffers, 2 cores (2 MiB of
 * second-level cache each), in turns at real-time priority on a busy machine, lowest tenth of 8 to
 * 60 runs:
 *
 *     MB                    1      10     20     30     40     60     100
 *     broadcast, 2 ranks    1.10   1.37   1.10   1.28   0.82   0.69   0.71
 *     all_gather, 2 ranks   1.07   1.05   1.05   1.01   0.77   0.89   0.89
 *     broadcast, 4 ranks                                              0.71
 *     all_gather, 4 ranks                                             0.80
 *
 * Registered results of all ranks share the last cache (32 MiB on Zen 4, 2 cores, where ordinary
 * stores took 1.1 to 1.5 times as long when they were 40 to 60 MB together), so the sum of them
 * counts. Staged results lost by it: 0.95 and 0.88 (broadcast of 10 MB, 4 and 6 ranks).
 *
 * The limit is nine eighths of the last cache, of which at most 32 MiB count: ranks share a larger
 * one with other programs.
 *
 * What did not win there, for 10 MB of all_reduce, broadcast, all_gather: stores past the caches
 * into STAGE (2.0, 1.9, 1.2), cldemote of what was staged (1.4, 2.2, 1.4), prefetching the peer's
 * STAGE 1 KiB ahead of the copy (1.0, 1.1, 1.07), prefetchw of the own STAGE (1.0, 1.15, 0.99);
 * all_reduce with slices of 128 KiB (1.03) and 512 KiB (1.03) instead of 256. */
#define LAST_CACHE_MAX ((int64_t)32 << 20)

int64_t ls__past_caches(const ls__env *env)
{
    const int64_t last = ls__memory_last_cache(env);
    const int64_t counted = last > 0 && last < LAST_CACHE_MAX ? last : LAST_CACHE_MAX;
    return counted + counted / 8;
}

/* Note [Past the caches] */
static bool passes_caches(const ls_work *work, const ls__step *step)
{
    const bool blocks = ls__operation_has_blocks(work->operation, false);
    const int64_t result = work->count * (int64_t)work->element * (blocks ? work->group->size : 1);
    const int64_t results = ls__is_in_heaps(work) ? work->group->size : 1;
    return step->kind == LS__STEP_PEER_COPY &&
           result * results >= work->group->comm->machine.past_caches;
}

/* Whether a staged operation claims what it has read of its peers, who write it again: Note
 * [Claimed lines] in base/copy.h. Where several ranks of a core read a line, claims take it from
 * each other (broadcast of 10 MB, 4 and 6 ranks on 2 cores: 1.16 and 1.28 times as long). */
static bool claims_reads(const ls_work *work)
{
    return work->path == LS__PATH_STAGED &&
           (work->group->size == 2 || work->group->comm->machine.may_spin ||
            ls__operation_has_blocks(work->operation, true));
}

/* Each ref of a peer is one message: read if a source, written if a destination. */
static void count_peers(ls_group *group, const ls__run *run, const ls__step *step, uint64_t bytes)
{
    const ls__ref *refs = run->program->refs;
    for (int i = 0; i < step->src_count; i++) {
        if (refs[step->first_src + i].rank != group->rank) {
            ls__count(&group->counts.messages, 1);
            ls__count(&group->counts.bytes_received, bytes);
        }
    }
    for (int i = 0; i < step->dst_count; i++) {
        if (refs[step->first_dst + i].rank != group->rank) {
            ls__count(&group->counts.messages, 1);
            ls__count(&group->counts.bytes_sent, bytes);
        }
    }
}

/* COPY and PEER_COPY, which widens where a wide program copies into SCRATCH. */
static ls__result run_copy(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    const ls__exec *exec = group->exec;
    const ls__ref *refs = run->program->refs;
    const size_t element = exec->work->element;
    int64_t count = 0, same = 0;
    unsigned char *to = ls__ref_at(exec, run, refs[step->first_dst], &count);
    const unsigned char *from = ls__ref_at(exec, run, refs[step->first_src], &same);
    if (step->kind == LS__STEP_PEER_COPY && lane->moved == 0) {
        count_peers(group, run, step, (uint64_t)count * element);
    }
    if (count == 0 || to == from) {
        return LS__COMPLETE;
    }
    const int64_t piece = piece_of(count - lane->moved, 2 * element);
    const size_t moved = (size_t)lane->moved;
    const size_t wide = ls__ref_element(exec, refs[step->first_dst]);
    if (wide != ls__ref_element(exec, refs[step->first_src])) {
        widen(exec, group->comm->kernels, to + moved * wide, from + moved * element, piece);
    } else {
        unsigned char *at = to + moved * wide;
        const size_t bytes = (size_t)piece * wide;
        const bool claims = step->kind == LS__STEP_PEER_COPY && claims_reads(exec->work);
        const bool past_caches = passes_caches(exec->work, step);
        ls__copy(at, from + moved * wide, bytes,
                 (claims ? LS__COPY_CLAIM : 0) | (past_caches ? LS__COPY_PAST_CACHES : 0));
    }
    return piece_done(lane, count, piece);
}

/* Binds the refs of a REDUCE, as far as it has come; returns its elements. */
static int64_t bind_reduce(ls__exec *exec, const ls__run *run, const ls__step *step,
                           const ls__lane *lane, bool *src_wide)
{
    const ls__ref *dst = run->program->refs + step->first_dst;
    const ls__ref *src = run->program->refs + step->first_src;
    const size_t moved = (size_t)lane->moved;
    int64_t count = 0, same = 0;
    for (int i = 0; i < step->dst_count; i++) {
        unsigned char *to = ls__ref_at(exec, run, dst[i], i == 0 ? &count : &same);
        exec->dst[i] = moved == 0 ? to : to + moved * ls__ref_element(exec, dst[i]);
    }
    for (int i = 0; i < step->src_count; i++) {
        const unsigned char *from = ls__ref_at(exec, run, src[i], &same);
        exec->src[i] = moved == 0 ? from : from + moved * ls__ref_element(exec, src[i]);
        if (run->program->wide) {
            src_wide[i] = src[i].buffer == LS__BUFFER_SCRATCH;
        }
    }
    return count;
}

/* Claims what a staged REDUCE has read of peers and not written: Note [Claimed lines]. */
static void claim_sources(const ls__exec *exec, const ls__run *run, const ls__step *step,
                          int64_t count)
{
    const ls__ref *dst = run->program->refs + step->first_dst;
    const ls__ref *src = run->program->refs + step->first_src;
    const bool into_stage = step->dst_count > 1;
    for (int i = 0; i < step->src_count && !into_stage && dst->buffer != LS__BUFFER_STAGE; i++) {
        if (src[i].buffer == LS__BUFFER_STAGE && src[i].rank != run->program->rank) {
            ls__claim_lines(exec->src[i], (size_t)count * exec->work->element);
        }
    }
}

/* In a wide program what goes to SCRATCH is a partial sum, and what does not is final. */
static ls__result run_reduce(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    ls__exec *exec = group->exec;
    const ls_work *work = exec->work;
    const bool wide = run->program->wide;
    bool src_wide[LS__PROGRAM_RANKS_MAX]; /* set in wide programs only */
    const int64_t count = bind_reduce(exec, run, step, lane, src_wide);
    const bool partial = wide && run->program->refs[step->first_dst].buffer == LS__BUFFER_SCRATCH;
    if (lane->moved == 0) {
        count_peers(group, run, step, (uint64_t)count * work->element);
    }
    if (count == 0) {
        return LS__COMPLETE;
    }
    const size_t streams = (size_t)(step->src_count + step->dst_count);
    const int64_t piece = piece_of(count - lane->moved, streams * work->element);
    const ls__reduce_args args = {.dst = exec->dst,
                                  .dst_count = step->dst_count,
                                  .src = exec->src,
                                  .src_count = step->src_count,
                                  .count = piece,
                                  .dtype = work->dtype,
                                  .op = work->op,
                                  .divisor = exec->divide_last || partial ? 0 : work->divisor,
                                  .averages = work->divisor != 0,
                                  .user = work->user,
                                  .src_wide = wide ? src_wide : NULL,
                                  .dst_wide = partial,
                                  .table = group->comm->kernels};
    if (!ls__exec_reduce(group, work, &args)) {
        return LS__BLOCKED;
    }
    if (claims_reads(work)) {
        claim_sources(exec, run, step, piece);
    }
    return piece_done(lane, count, piece);
}

ls__result ls__step_run(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    return step->kind == LS__STEP_COPY || step->kind == LS__STEP_PEER_COPY
               ? run_copy(group, run, step, lane)
               : run_reduce(group, run, step, lane);
}
