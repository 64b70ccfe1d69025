/* Which program runs an operation. Every rank decides from what all have announced (equal
 * operation, count and dtype, and whether each one's buffers are registered), so all decide alike
 * without a further message. Programs are generated once and kept: of those chosen here one per
 * (operation, way, root), of those asked for by name one per (algorithm, memory, root). */
#include "base/assert.h"
#include "base/error.h"
#include "comm/exec.h"
#include "comm/far.h"

/* Where one_shot would be the same program, only direct exists. */
static const ls__algorithm *default_of(ls__operation operation, ls__way way)
{
    const ls__algorithm *one_shot =
        way == LS__WAY_SMALL ? ls__algorithm_find(operation, "one_shot") : NULL;
    return one_shot != NULL ? one_shot : ls__algorithm_find(operation, "direct");
}

/* The one asked for by name; NULL: chosen here. A rank alone needs no choice. */
static const ls__algorithm *named(const ls_group *group, const ls_work *work)
{
    return group->size > 1 ? work->algorithm : NULL;
}

size_t ls__choose_room(int size)
{
    int algorithms = 0;
    (void)ls__algorithms(&algorithms);
    return (size_t)(LS__OP_COUNT * LS__WAYS + algorithms * LS__MEMORY_KINDS) * (size_t)size;
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

/* Whether the program may be another one because of it. */
static bool in_place(const ls_work *work)
{
    return ls__operation_reads_ahead(work->operation) && work->input == work->output;
}

static size_t index_of(const ls_group *group, const ls_work *work, ls__way way)
{
    const ls__algorithm *algorithm = named(group, work);
    const int kind = algorithm == NULL ? (int)work->operation * LS__WAYS + (int)way
                                       : LS__OP_COUNT * LS__WAYS +
                                             ls__algorithm_index(algorithm) * LS__MEMORY_KINDS +
                                             (int)memory_of(way);
    /* Without a root the second place is free for those that differ in place. */
    const int second = in_place(work) && group->size > 1 ? 1 : 0;
    const int root = ls__operation_has_root(work->operation) ? work->descriptor.root : second;
    return (size_t)kind * (size_t)group->size + (size_t)root;
}

/* Which members share a host; NULL: all do. */
static const int *hosts_of(const ls_group *group, int *host)
{
    for (int r = 0; r < group->size && group->has_far; r++) {
        host[r] = ls__far_host(group->comm, group->member[r].world_rank);
    }
    return group->has_far ? host : NULL;
}

static const ls__program *generate(ls_group *group, const ls_work *work, ls__way way)
{
    int host[LS__PROGRAM_RANKS_MAX];
    const ls__program_spec spec = {.operation = work->operation,
                                   .memory = memory_of(way),
                                   .rank = group->rank,
                                   .size = group->size,
                                   .root = work->descriptor.root,
                                   .in_place = in_place(work),
                                   .host = hosts_of(group, host)};
    const ls__algorithm *algorithm = named(group, work);
    algorithm = algorithm != NULL ? algorithm : default_of(work->operation, way);
    if (algorithm == NULL) {
        (void)ls__fail(LS_ERR_UNSUPPORTED, "no program for it exists");
        return NULL;
    }
    ls__program *program = NULL;
    return algorithm->generate(&spec, group->comm->env, &program) == LS_OK ? program : NULL;
}

const ls__program *ls__choose_program(ls_group *group, const ls_work *work, ls__way way)
{
    const size_t index = index_of(group, work, way);
    if (group->programs[index] == NULL) {
        group->programs[index] = generate(group, work, way);
    }
    return group->programs[index];
}

static bool all_registered(const ls_group *group, uint64_t sequence)
{
    for (int r = 0; r < group->size; r++) {
        if (ls__post_slot(group, r, sequence)->descriptor.memory != LS__MEMORY_REGISTERED) {
            return false;
        }
    }
    return true;
}

ls__way ls__choose_way(const ls_group *group, const ls_work *work)
{
    if (work->way != LS__WAY_UNDECIDED) {
        return (ls__way)work->way;
    }
    const bool fits = work->algorithm == NULL || (work->algorithm->memories & LS__IN_REGISTERED);
    if (group->comm->forced == LS__WAY_STAGED || !fits) {
        return LS__WAY_STAGED;
    }
    return all_registered(group, work->descriptor.sequence) ? LS__WAY_REGISTERED : LS__WAY_STAGED;
}

ls_status ls__choose_small(ls_group *group, ls_work *work)
{
    const int64_t count = work->count;
    const bool other =
        work->algorithm != NULL && work->algorithm != default_of(work->operation, LS__WAY_SMALL);
    const size_t most = group->has_far ? LS__FAR_SMALL : LS__SMALL_BYTES;
    if (other || (uint64_t)count * work->element > most) {
        return LS_OK;
    }
    const ls__program *program = ls__choose_program(group, work, LS__WAY_SMALL);
    if (program == NULL) {
        return ls__self.status == LS_ERR_MEMORY ? LS_ERR_MEMORY : LS_OK;
    }
    if (single_fence(program) && count <= ls__slice_max(work, program, most)) {
        work->way = LS__WAY_SMALL;
        work->program = program;
    }
    return LS_OK;
}
