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
    case LS__WAY_READABLE:
        return LS__MEMORY_READABLE;
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

/* Whether all members' buffers are registered, or at least readable. */
static bool all_are(const ls_group *group, uint64_t sequence, bool registered)
{
    for (int r = 0; r < group->size; r++) {
        const uint8_t memory = ls__post_slot(group, r, sequence)->descriptor.memory;
        if (memory != LS__MEMORY_REGISTERED && (registered || memory != LS__MEMORY_READABLE)) {
            return false;
        }
    }
    return true;
}

/* Note [When reading pays]
 * CPU time a rank of an all_reduce in private buffers, reading over staging (below 1: reading is
 * faster), on 2 cores with 2 MiB of second-level cache each:
 *
 *     MB                   1     2     4     10    30    100
 *     2 ranks, huge pages  1.6   1.2   0.8   0.8   0.8   1.2
 *     4 ranks, huge pages  1.3   1.0   0.95  0.9   1.3   1.4
 *     2 ranks, 4 KiB             -     1.3   1.9   1.5
 *
 * The kernel looks up every page, so it pays with huge ones only; with memory kept busy by others
 * it loses there, too (1.1 and 1.2 at 10 and 30 MB). What memory a user brings cannot be seen at
 * little cost, so reading has to be asked for. It then wants buffers so large that its calls do not
 * count, and all of them together so small that the last cache has what is read a second time. */
#define READ_FROM_BYTES ((int64_t)3 << 20)
#define READ_TO_BYTES ((int64_t)96 << 20) /* of all ranks together */
#define READ_RANKS_MAX 2

bool ls__choose_reading(const ls_group *group, ls__operation operation,
                        const ls__algorithm *algorithm, int64_t bytes)
{
    const ls__algorithm *found =
        algorithm != NULL ? algorithm : default_of(operation, LS__WAY_READABLE);
    const int forced = group->comm->forced;
    if (!group->comm->can_peek || group->has_far || group->size == 1 || found == NULL ||
        (found->memories & LS__IN_READABLE) == 0) {
        return false;
    }
    return forced != 0 ? forced == LS__WAY_READABLE
                       : group->size <= READ_RANKS_MAX && bytes >= READ_FROM_BYTES &&
                             bytes <= READ_TO_BYTES / group->size;
}

ls__way ls__choose_way(const ls_group *group, const ls_work *work)
{
    if (work->way != LS__WAY_UNDECIDED) {
        return (ls__way)work->way;
    }
    if (work->shown) {
        return ls__shown_way(group, work);
    }
    const uint64_t sequence = work->descriptor.sequence;
    const bool fits = work->algorithm == NULL || (work->algorithm->memories & LS__IN_REGISTERED);
    if (group->comm->forced == LS__WAY_STAGED || !fits) {
        return LS__WAY_STAGED;
    }
    return all_are(group, sequence, true)    ? LS__WAY_REGISTERED
           : all_are(group, sequence, false) ? LS__WAY_READABLE
                                             : LS__WAY_STAGED;
}

/* Bytes up to which a contribution goes in one shot. Of a sum everybody then reads all of it, where
 * direct would read a part twice: with registered memory, 2 and 8 ranks on 2 cores, one shot of 8
 * and 16 KB takes 2.4 and 3.0, 15.6 and 20.1 us, direct 1.3 and 1.7, 20.7 and 16.2; in private
 * memory they are equal there. Whose memory is registered is not known yet. */
static size_t most_of(const ls_group *group, const ls_work *work)
{
    const size_t most = group->has_far ? LS__FAR_SMALL : LS__SMALL_BYTES;
    const size_t sum = group->size == 2 ? LS__SMALL_BYTES / 4 : LS__SMALL_BYTES / 2;
    return work->operation == LS__OP_ALL_REDUCE && work->algorithm == NULL && sum < most ? sum
                                                                                         : most;
}

ls_status ls__choose_small(ls_group *group, ls_work *work)
{
    const int64_t count = work->count;
    const bool other =
        work->algorithm != NULL && work->algorithm != default_of(work->operation, LS__WAY_SMALL);
    const size_t most = most_of(group, work);
    if (other || work->shown || (uint64_t)count * work->element > most) {
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
