/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing a plan from a program.
 *
 * A program runs in one shot if it is
 *
 *     COPY own buffer ▸ own STAGE, …  |  fence 0  |  OUTPUT from own buffers and all STAGEs, …
 *        done by the announcement                     done when all members have announced
 *
 * in one lane, with every chunk a whole block, and with no partial sum that later steps go on with.
 * Then nothing has to be cut or remembered between two steps: one_shot.c runs it. Either the
 * programs of all ranks are of this form or none is, so that all choose alike
 * (tests/unit/comm/program/plans.c).
 */
#include "comm/core/plan.h"
#include "base/assert.h"
#include "job/operation.h"

/* Operands of a result that is made in one step. */
static int operands_of(const ls__program *program)
{
    switch (program->operation) {
    case LS__OP_SCAN:
        return program->rank + 1;
    case LS__OP_EXSCAN:
        return program->rank;
    default:
        return program->size;
    }
}

/* Such a result has partial sums: the division must wait for the last one. */
bool ls__reduces_in_steps(const ls__program *program)
{
    for (int i = 0; i < program->step_count && !program->wide; i++) {
        const ls__step *step = &program->steps[i];
        const bool reduce = step->kind == LS__STEP_REDUCE || step->kind == LS__STEP_PEER_REDUCE;
        if (reduce && step->src_count != operands_of(program)) {
            return true;
        }
    }
    return false;
}

static bool is_own(const ls__program *program, ls__ref ref, ls__program_buffer buffer)
{
    return ref.buffer == (uint8_t)buffer && ref.rank == program->rank;
}

static bool is_users(const ls__program *program, ls__ref ref)
{
    return is_own(program, ref, LS__BUFFER_INPUT) || is_own(program, ref, LS__BUFFER_OUTPUT);
}

/* A step before the fence: the announcement copies a block of the user's, mostly to STAGE. */
static bool publishes(const ls__program *program, const ls__step *step)
{
    const ls__ref dst = program->refs[step->first_dst];
    return step->kind == LS__STEP_COPY && step->dst_count == 1 && step->src_count == 1 &&
           (is_own(program, dst, LS__BUFFER_STAGE) || is_own(program, dst, LS__BUFFER_OUTPUT)) &&
           is_users(program, program->refs[step->first_src]);
}

/* A step after the fence: a block of OUTPUT from this rank's buffers and anybody's STAGE. */
static bool combines(const ls__program *program, const ls__step *step)
{
    const bool kind = step->kind == LS__STEP_COPY || step->kind == LS__STEP_REDUCE ||
                      step->kind == LS__STEP_PEER_COPY || step->kind == LS__STEP_PEER_REDUCE;
    bool whole = kind && step->dst_count == 1 &&
                 is_own(program, program->refs[step->first_dst], LS__BUFFER_OUTPUT);
    for (int i = 0; whole && i < step->src_count; i++) {
        const ls__ref src = program->refs[step->first_src + i];
        whole = src.buffer == LS__BUFFER_STAGE || is_users(program, src);
    }
    return whole;
}

/* The first step that the announcement does not do: behind fence 0. A rank alone has no fence. */
static int after_fence(const ls__program *program)
{
    for (int s = 0; s < program->step_count; s++) {
        if (program->steps[s].kind == LS__STEP_FENCE) {
            return s + 1;
        }
    }
    return 0;
}

static bool is_one_shot(const ls__program *program, int first)
{
    const ls__operation operation = program->operation;
    const bool cut = !ls__operation_has_blocks(operation, true) &&
                     !ls__operation_has_blocks(operation, false) && program->chunks != 1;
    if (cut || program->lanes > 1 || program->fences > 1 || program->wide ||
        program->memory != LS__MEMORY_STAGED || ls__reduces_in_steps(program)) {
        return false;
    }
    bool is = true;
    for (int s = 0; is && s < first - 1; s++) {
        is = publishes(program, &program->steps[s]);
    }
    for (int s = first; is && s < program->step_count; s++) {
        is = combines(program, &program->steps[s]);
    }
    return is;
}

void ls__plan_init(ls__plan *plan, const ls__program *program, bool announced)
{
    const ls__operation operation = program->operation;
    LS_ASSERT(program != NULL);
    const int first = announced ? after_fence(program) : 0;
    const bool in = ls__operation_has_blocks(operation, true);
    const bool out = ls__operation_has_blocks(operation, false);
    *plan = (ls__plan){
        .program = program,
        .first_step = first,
        .one_shot = announced && !ls__operation_is_v(operation) && is_one_shot(program, first),
        .blocks = {[LS__BUFFER_INPUT] = in, [LS__BUFFER_OUTPUT] = out, [LS__BUFFER_STAGE] = in}};
}
