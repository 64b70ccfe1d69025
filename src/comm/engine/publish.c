/* Binding a program to buffers, and the steps of a one-shot operation that come before its fence:
 * they publish what the peers will read. */
#include <string.h>

#include "base/assert.h"
#include "comm/engine/exec.h"
#include "comm/engine/post.h"
#include "comm/group/group.h"
#include "comm/memory/control.h"

/* The step after the program's fence 0, which the operation has reached by being announced. */
int ls__step_after_fence(const ls__program *program)
{
    for (int s = 0; s < program->step_count; s++) {
        if (program->steps[s].kind == LS__STEP_FENCE) {
            return s + 1;
        }
    }
    return 0;
}

/* Only the lanes there are: clearing all would cost as much as a small operation's data. */
void ls__run_init(ls__run *run, const ls__program *program, uint64_t slice)
{
    run->active = false;
    run->program = program;
    run->start = 0;
    run->count = 0;
    run->quantum = 0;
    run->slice = slice;
    run->slot = 0;
    run->lane[0] = (ls__lane){0};
    for (int l = 1; l < program->lanes; l++) {
        run->lane[l] = (ls__lane){0};
    }
}

/* ---- from announced to running ------------------------------------------------------------ */

/* Where everybody's buffers are, as this process sees them. */
void ls__exec_bind(const ls_group *group, ls__exec *exec)
{
    const ls_work *work = exec->work;
    const uint64_t sequence = work->descriptor.sequence;
    const bool in_place =
        work->way == LS__WAY_REGISTERED || (work->way == LS__WAY_SMALL && work->shown);
    for (int r = 0; r < group->size && in_place; r++) {
        const ls__descriptor *d = &ls__post_slot(group, r, sequence)->descriptor;
        exec->input[r] = group->member[r].base + d->input;
        exec->output[r] = group->member[r].base + d->output;
    }
    for (int r = 0; r < group->size; r++) {
        exec->stage[r] = work->way == LS__WAY_SMALL ? ls__small_place(group, r, sequence)
                                                    : group->member[r].control->stage[0];
    }
    exec->input[group->rank] = (unsigned char *)work->input;
    exec->output[group->rank] = work->output;
}

void ls__exec_publish(ls_group *group, ls_work *work, ls__line *line)
{
    size_t used = 0;
    ls__exec *exec = group->publisher;
    const ls__program *program = work->program;
    const int steps = ls__step_after_fence(program) - 1;
    exec->work = work;
    ls__exec_bind(group, exec);
    line->in_line = ls__small_in_line(work);
    exec->stage[group->rank] =
        line->in_line ? line->data : ls__small_stage(group, group->rank, work->descriptor.sequence);
    ls__run run;
    ls__run_init(&run, program, 0);
    run.count = work->count;
    run.quantum = ls__chunk_quantum(work, program, work->count);
    for (int s = 0; s < steps; s++) {
        const ls__step *step = &program->steps[s];
        LS_ASSERT(step->kind == LS__STEP_COPY && step->dst_count == 1);
        int64_t count = 0, same = 0;
        unsigned char *to = ls__ref_at(exec, &run, program->refs[step->first_dst], &count);
        const unsigned char *from = ls__ref_at(exec, &run, program->refs[step->first_src], &same);
        if (to != from && count > 0) {
            memcpy(to, from, (size_t)count * work->element);
        }
        const bool staged = program->refs[step->first_dst].buffer == LS__BUFFER_STAGE;
        const size_t end =
            staged ? (size_t)(to - exec->stage[group->rank]) + (size_t)count * work->element : 0;
        used = end > used ? end : used;
    }
    exec->work = NULL;
    line->one_shot = 1 + (uint32_t)used;
}
