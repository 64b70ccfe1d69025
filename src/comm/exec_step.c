/* The steps that move data between buffers of this host: COPY, REDUCE, PEER_READ, PEER_REDUCE.
 * Long ones are done in pieces, so that one operation does not keep the engine from the others. */
#include <string.h>

#include "comm/exec.h"

static ls__result piece_done(ls__lane *lane, int64_t count, int64_t piece)
{
    lane->moved += piece;
    return lane->moved < count ? LS__MOVED : LS__COMPLETE;
}

static int64_t piece_of(int64_t left, size_t bytes_per_element)
{
    const int64_t most = (int64_t)(LS__PIECE_BYTES / bytes_per_element);
    return left < most ? left : most;
}

static ls__result run_copy(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    const ls__exec *exec = group->exec;
    const ls__ref *refs = run->program->refs;
    const size_t element = exec->work->element;
    int64_t count = 0, same = 0;
    unsigned char *to = ls__ref_at(exec, run, refs[step->first_dst], &count);
    const unsigned char *from = ls__ref_at(exec, run, refs[step->first_src], &same);
    if (step->kind == LS__STEP_PEER_READ && lane->moved == 0) {
        ls__count(&group->messages, 1);
        ls__count(&group->bytes_received, (uint64_t)count * element);
    }
    if (count == 0 || to == from) {
        return LS__COMPLETE;
    }
    const int64_t piece = piece_of(count - lane->moved, element);
    const size_t skip = (size_t)lane->moved * element;
    memcpy(to + skip, from + skip, (size_t)piece * element);
    return piece_done(lane, count, piece);
}

/* Each ref of a peer is one message: read if a source, written if a destination. */
static void count_reduce(ls_group *group, const ls__run *run, const ls__step *step, uint64_t bytes)
{
    const ls__ref *refs = run->program->refs;
    for (int i = 0; i < step->src_count; i++) {
        if (refs[step->first_src + i].rank != group->rank) {
            ls__count(&group->messages, 1);
            ls__count(&group->bytes_received, bytes);
        }
    }
    for (int i = 0; i < step->dst_count; i++) {
        if (refs[step->first_dst + i].rank != group->rank) {
            ls__count(&group->messages, 1);
            ls__count(&group->bytes_sent, bytes);
        }
    }
}

static ls__result run_reduce(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    ls__exec *exec = group->exec;
    const ls_work *work = exec->work;
    const ls__ref *refs = run->program->refs;
    const size_t skip = (size_t)lane->moved * work->element;
    int64_t count = 0, same = 0;
    for (int i = 0; i < step->dst_count; i++) {
        exec->dst[i] = ls__ref_at(exec, run, refs[step->first_dst + i], i == 0 ? &count : &same);
    }
    for (int i = 0; i < step->src_count; i++) {
        exec->src[i] = ls__ref_at(exec, run, refs[step->first_src + i], &same);
    }
    if (lane->moved == 0) {
        count_reduce(group, run, step, (uint64_t)count * work->element);
    }
    if (count == 0) {
        return LS__COMPLETE;
    }
    for (int i = 0; i < step->dst_count; i++) {
        exec->dst[i] = (unsigned char *)exec->dst[i] + skip;
    }
    for (int i = 0; i < step->src_count; i++) {
        exec->src[i] = (const unsigned char *)exec->src[i] + skip;
    }
    const int64_t piece = piece_of(count - lane->moved, work->element);
    ls__reduce(&(ls__reduce_args){.dst = exec->dst,
                                  .dst_count = step->dst_count,
                                  .src = exec->src,
                                  .src_count = step->src_count,
                                  .count = piece,
                                  .dtype = work->dtype,
                                  .op = work->op,
                                  .divisor = exec->divide_last ? 0 : work->divisor,
                                  .table = group->comm->kernels});
    return piece_done(lane, count, piece);
}

ls__result ls__step_run(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    return step->kind == LS__STEP_COPY || step->kind == LS__STEP_PEER_READ
               ? run_copy(group, run, step, lane)
               : run_reduce(group, run, step, lane);
}
