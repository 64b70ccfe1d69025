/* Which program runs an operation. Every rank decides from what all have announced (equal
 * operation, count and dtype, and whether each one's buffers are registered), so all decide alike
 * without a further message. Programs are generated once per (operation, way, root) and kept. */
#include "base/assert.h"
#include "comm/exec.h"

static const char *algorithm_name(ls__way way)
{
    return way == LS__WAY_SMALL ? "one_shot" : "direct";
}

static ls__memory memory_of(ls__way way)
{
    switch (way) {
    case LS__WAY_REGISTERED:
        return LS__MEMORY_REGISTERED;
    case LS__WAY_MESSAGES:
        return LS__MEMORY_MESSAGES;
    default:
        return LS__MEMORY_STAGED;
    }
}

static bool single_fence(const ls__program *program)
{
    return program->lanes <= 1 && program->fences <= 1;
}

static const ls__program *generate(ls_group *group, const ls_work *work, ls__way way)
{
    const ls__program_spec spec = {.operation = work->operation,
                                   .memory = memory_of(way),
                                   .rank = group->rank,
                                   .size = group->size,
                                   .root = work->descriptor.root};
    const ls__algorithm *algorithm = ls__algorithm_find(work->operation, algorithm_name(way));
    if (algorithm == NULL) { /* where one_shot would be the same program, only direct exists */
        algorithm = ls__algorithm_find(work->operation, "direct");
    }
    ls__program *program = NULL;
    if (algorithm == NULL || algorithm->generate(&spec, group->comm->env, &program) != LS_OK) {
        return NULL;
    }
    if (way == LS__WAY_SMALL && !single_fence(program)) {
        ls__program_free(program);
        return NULL;
    }
    return program;
}

const ls__program *ls__choose_program(ls_group *group, const ls_work *work, ls__way way)
{
    const size_t root = work->operation == LS__OP_BROADCAST ? (size_t)work->descriptor.root : 0;
    const size_t index =
        ((size_t)work->operation * LS__WAYS + (size_t)way) * (size_t)group->size + root;
    if (group->programs[index] == NULL) {
        group->programs[index] = generate(group, work, way);
    }
    return group->programs[index];
}

bool ls__choose_small(ls_group *group, ls_work *work)
{
    const int64_t count = work->count;
    if ((uint64_t)count * work->element > LS__SMALL_BYTES) {
        return false;
    }
    const ls__program *program = ls__choose_program(group, work, LS__WAY_SMALL);
    if (program == NULL || count > ls__slice_max(work, program, LS__SMALL_BYTES)) {
        return false;
    }
    work->way = LS__WAY_SMALL;
    work->program = program;
    return true;
}
