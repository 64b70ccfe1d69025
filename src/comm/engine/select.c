/* Which program runs an operation. Every rank decides from what all have announced (equal
 * operation, count and dtype, and whether each one's buffers are registered), so all decide alike
 * without a further message. Programs are generated once and kept: of those chosen here one per
 * (operation, way, root), of those asked for by name one per (algorithm, memory, root). */
#include "comm/engine/select.h"
#include "base/assert.h"
#include "base/error.h"
#include "comm/engine/exec.h"
#include "comm/engine/post.h"
#include "comm/engine/v_layout.h"
#include "comm/group/group.h"
#include "comm/memory/control.h"
#include "comm/remote/remote.h"

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
    for (int r = 0; r < group->size && group->has_remote; r++) {
        host[r] = ls__comm_host_of(group->comm, group->member[r].world_rank);
    }
    return group->has_remote ? host : NULL;
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
 * Time of operations in private buffers of two ranks, reading over staging (below 1: reading is
 * faster), on 2 cores with 2 MiB of second-level cache each, 4 KiB pages, medians of 15 to 41; the
 * bytes are those of the larger buffer, and the memory that is read was written just before (left)
 * or long ago (right):
 *
 *                   256 KiB    512 KiB    1 MiB      2 MiB      4 MiB      10 MiB     30 MiB
 *   broadcast       0.65 0.45  1.05 0.48  0.79 0.63  1.55 1.03  1.0  0.93  0.94 0.89  1.03 1.13
 *   all_gather      1.2  0.67  1.15 0.50  1.16 0.62  0.93 0.71  0.85 0.82  0.86 0.81  1.1  0.95
 *   reduce_scatter  1.1  0.76  1.06 0.71  1.16 0.73  0.91 0.80  0.81 0.83  0.77 0.85  0.95 1.05
 *   all_reduce      1.6  2.4   1.6  2.6   1.2  2.7   1.27 1.7   1.0  1.0   1.0  1.0   1.1  1.4
 *
 * An all_reduce reads twice, and what it reads second was written by the peer just then, which the
 * kernel's copy is slow at; with huge pages it comes to 0.95 at 10 MB. What memory a user brings
 * cannot be seen at little cost, so there reading has to be asked for. Four ranks: 0.9 to 1.1, and
 * broadcast 1.3 to 2.0: all read from one. */
#define READ_TO_BYTES ((int64_t)10 << 20)  /* of a block, or of the whole */
#define READ_FROM_BYTES ((int64_t)3 << 20) /* where it is asked for */
#define READ_RANKS_MAX 2

static bool reading_pays(ls__operation operation, int64_t bytes)
{
    switch (operation) {
    case LS__OP_BROADCAST:
        return (bytes >= 128 << 10 && bytes <= 5 << 18) || bytes >= 4 << 20;
    case LS__OP_ALL_GATHER:
    case LS__OP_REDUCE_SCATTER:
        return bytes >= 128 << 10; /* of a block */
    default:
        return false;
    }
}

bool ls__choose_reading(const ls_group *group, ls__operation operation,
                        const ls__algorithm *algorithm, int64_t bytes)
{
    const ls__algorithm *found =
        algorithm != NULL ? algorithm : default_of(operation, LS__WAY_READABLE);
    const int forced = group->comm->forced;
    if (!group->comm->has_cma || group->has_remote || group->size == 1 || found == NULL ||
        (found->memories & LS__IN_READABLE) == 0) {
        return false;
    }
    return forced != 0 ? forced == LS__WAY_READABLE
                       : group->size <= READ_RANKS_MAX && bytes <= READ_TO_BYTES &&
                             (reading_pays(operation, bytes) ||
                              (group->comm->cma_always && bytes >= READ_FROM_BYTES));
}

ls__way ls__choose_way(const ls_group *group, const ls_work *work)
{
    if (work->way != LS__WAY_UNDECIDED) {
        return (ls__way)work->way;
    }
    if (work->shown) {
        return ls__v_layout_way(group, work);
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
    const size_t most = group->has_remote ? LS__REMOTE_SMALL : LS__SMALL_BYTES;
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
