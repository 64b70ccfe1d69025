/* Small operations in one shot. The program is cut in two at its only fence: announcing does what
 * comes before it, and what comes after it is done here, in one piece, because 16 KiB a rank take
 * less time than looking after other groups between two steps would.
 *
 *     this rank's post:  stamp · line ── key, bytes, data up to 40 bytes ─┐   in_line
 *     its small stage:   slot of the operation ── blocks, each on a line ─┴─▶ read by its peers
 */
#include "comm/engine/one_shot.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "comm/engine/exec.h"
#include "comm/engine/post.h"

static size_t bytes_of(const ls_work *work)
{
    return (size_t)work->count * work->element;
}

/* From the start of the ref's buffer. A block of STAGE begins on a cache line. */
static size_t offset_of(const ls_work *work, ls__ref ref)
{
    if (!work->plan->blocks[ref.buffer]) {
        return 0;
    }
    const size_t block = bytes_of(work);
    return (size_t)ref.chunk *
           (ref.buffer == LS__BUFFER_STAGE ? ls__round_up(block, LS__CACHE_LINE) : block);
}

/* A block of INPUT or OUTPUT of this rank. */
static const unsigned char *own_block(const ls_work *work, ls__ref ref)
{
    const unsigned char *base = ref.buffer == LS__BUFFER_INPUT ? work->input : work->output;
    return base + offset_of(work, ref);
}

/* Copies a block to where it lies in `base`, unless it is there. */
static void copy_block(const ls_work *work, unsigned char *base, ls__ref dst,
                       const unsigned char *from)
{
    unsigned char *to = base + offset_of(work, dst);
    if (to != from) {
        memcpy(to, from, bytes_of(work));
    }
}

void ls__one_shot_publish(ls_group *group, const ls_work *work, ls__line *line)
{
    const ls__plan *plan = work->plan;
    const ls__program *program = plan->program;
    const size_t bytes = bytes_of(work);
    LS_ASSERT(plan->one_shot);
    line->in_line = !plan->blocks[LS__BUFFER_STAGE] && bytes <= LS__LINE_BYTES;
    unsigned char *stage =
        line->in_line ? line->data : ls__small_stage(group, group->rank, work->descriptor.sequence);
    size_t used = 0; /* of the stage */
    for (int s = 0; s < plan->first_step - 1 && bytes > 0; s++) {
        const ls__step *step = &program->steps[s];
        const ls__ref dst = program->refs[step->first_dst];
        const bool staged = dst.buffer == LS__BUFFER_STAGE;
        const size_t end = staged ? offset_of(work, dst) + bytes : 0;
        copy_block(work, staged ? stage : work->output, dst,
                   own_block(work, program->refs[step->first_src]));
        used = end > used ? end : used;
    }
    LS_ASSERT(used <= LS__SMALL_BYTES);
    line->one_shot = 1 + (uint32_t)used;
}

static const unsigned char *source_of(const ls_group *group, const ls_work *work, ls__ref ref)
{
    return ref.buffer == LS__BUFFER_STAGE
               ? ls__small_place(group, ref.rank, work->descriptor.sequence) + offset_of(work, ref)
               : own_block(work, ref);
}

static bool run_step(ls_group *group, const ls_work *work, const ls__step *step)
{
    const ls__ref *refs = work->plan->program->refs;
    const size_t bytes = bytes_of(work);
    const void **from = group->exec->src;
    int peers = 0;
    for (int i = 0; i < step->src_count; i++) {
        const ls__ref ref = refs[step->first_src + i];
        from[i] = source_of(group, work, ref);
        peers += ref.rank != group->rank;
    }
    ls__count(&group->messages, (uint64_t)peers);
    ls__count(&group->bytes_received, (uint64_t)peers * bytes);
    if (bytes == 0) {
        return true;
    }
    const ls__ref dst = refs[step->first_dst];
    if (step->kind == LS__STEP_REDUCE || step->kind == LS__STEP_PEER_REDUCE) {
        return ls__exec_reduce(
            group, work,
            &(ls__reduce_args){
                .dst = (void *const[]){(unsigned char *)work->output + offset_of(work, dst)},
                .dst_count = 1,
                .src = from,
                .src_count = step->src_count,
                .count = work->count,
                .dtype = work->dtype,
                .op = work->op,
                .divisor = work->divisor,
                .user = work->user,
                .table = group->comm->kernels});
    }
    copy_block(work, work->output, dst, from[0]);
    return true;
}

bool ls__one_shot_run(ls_group *group, const ls_work *work)
{
    const ls__program *program = work->plan->program;
    bool sound = true;
    for (int s = work->plan->first_step; sound && s < program->step_count; s++) {
        sound = run_step(group, work, &program->steps[s]);
    }
    return sound;
}
