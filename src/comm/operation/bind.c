/* SPDX-License-Identifier: Apache-2.0 */
/* Binding a program to the buffers of all members. */
#include "comm/core/group.h"
#include "comm/core/post.h"
#include "comm/memory/control.h"
#include "comm/operation/exec.h"

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

/* A peer's buffers are used where the peer has announced them; its own rank's are the user's. */
void ls__exec_bind(const ls_group *group, ls__exec *exec)
{
    const ls_work *work = exec->work;
    const uint64_t sequence = work->descriptor.sequence;
    for (int r = 0; r < group->size && ls__is_in_heaps(work); r++) {
        const ls__line *line = &ls__post_slot(group, r, sequence)->line;
        exec->input[r] = group->member[r].base + line->input;
        exec->output[r] = group->member[r].base + line->output;
    }
    for (int r = 0; r < group->size; r++) {
        exec->stage[r] = group->member[r].control->stage[0];
    }
    exec->input[group->rank] = (unsigned char *)work->input;
    exec->output[group->rank] = work->output;
}
