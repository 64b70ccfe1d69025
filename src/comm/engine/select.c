/* Which execution path an operation takes, and which program runs it. Every rank decides from what all have announced (equal
 * operation, count and dtype, and whether each one's buffers are registered), so all decide alike
 * without a further message. Programs are generated once and kept: of those chosen here one per
 * (operation, way, root), of those asked for by name one per (algorithm, memory, root).
 *
 *     submitted   by messages only (asked for, or unequal blocks that cannot be shown)  MESSAGES
 *                 small enough for the small stage                                      SMALL
 *                 else with members on other hosts                                      MESSAGES
 *     announced   unequal blocks, packed by all                                         SMALL
 *                 buffers of all members are registered                                 REGISTERED
 *                 else                                                                  STAGED
 */
#include "comm/engine/select.h"
#include "base/assert.h"
#include "base/error.h"
#include "comm/engine/exec.h"
#include "comm/engine/lock.h"
#include "comm/engine/post.h"
#include "comm/engine/v_layout.h"
#include "comm/group/group.h"
#include "comm/memory/control.h"
#include "comm/remote/remote.h"
#include "comm/tune/choice.h"

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

size_t ls__select_room(int size)
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

const ls__program *ls__select_program(ls_group *group, const ls_work *work, ls__way way)
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

/* lock; takes the one-shot path if the operation fits. */
static ls_status try_one_shot(ls_group *group, ls_work *work)
{
    const int64_t count = work->count;
    const bool other =
        work->algorithm != NULL && work->algorithm != default_of(work->operation, LS__WAY_SMALL);
    const size_t most = most_of(group, work), bytes = (size_t)count * work->element;
    if (other || work->shown || bytes > most || !ls__tuning_one_shot(group, bytes)) {
        return LS_OK;
    }
    const ls__program *program = ls__select_program(group, work, LS__WAY_SMALL);
    if (program == NULL) {
        return ls__self.status == LS_ERR_MEMORY ? LS_ERR_MEMORY : LS_OK;
    }
    if (single_fence(program) && count <= ls__slice_max(work, program, most)) {
        work->way = LS__WAY_SMALL;
        work->program = program;
    }
    return LS_OK;
}

/* Whether it has no program in shared memory, or none is wanted. */
static bool needs_messages(const ls_group *group, const ls_work *work)
{
    const bool staged = work->algorithm == NULL || (work->algorithm->memories & LS__IN_STAGED) != 0;
    return !staged || group->comm->forced == LS__WAY_MESSAGES ||
           (ls__operation_is_v(work->operation) && !work->shown);
}

ls_status ls__select_submitted(ls_group *group, ls_work *work)
{
    LS_ASSERT(work->way == LS__WAY_UNDECIDED && !ls__operation_is_p2p(work->operation));
    LS_TRY(ls__tuning_decide(group));
    const bool alone = group->size == 1;
    if (needs_messages(group, work) && (!alone || ls__operation_is_v(work->operation))) {
        work->way = LS__WAY_MESSAGES;
        work->by_message = !alone;
    } else if (group->comm->forced == 0) {
        LS_TRY(try_one_shot(group, work));
    }
    if (work->way == LS__WAY_UNDECIDED && group->has_remote) {
        work->way = LS__WAY_MESSAGES;
    }
    return LS_OK;
}

/* By what all members have announced: where their buffers lie, and whether blocks are packed. */
static ls__way announced_way(const ls_group *group, const ls_work *work)
{
    const bool fits = work->algorithm == NULL || (work->algorithm->memories & LS__IN_REGISTERED);
    if (work->shown && ls__v_layout_packed(group, work)) {
        return LS__WAY_SMALL;
    }
    return fits && group->comm->forced != LS__WAY_STAGED &&
                   all_registered(group, work->descriptor.sequence)
               ? LS__WAY_REGISTERED
               : LS__WAY_STAGED;
}

const ls__program *ls__select_announced(ls_group *group, ls_work *work)
{
    ls__comm *comm = group->comm;
    if (work->program != NULL) {
        return work->program;
    }
    if (work->way == LS__WAY_UNDECIDED) {
        work->way = (uint8_t)announced_way(group, work);
    } else if (work->way == LS__WAY_MESSAGES) {
        work->algorithm = ls__tuning_find(group, work);
    }
    ls__lock_take(&comm->lock, comm->env);
    work->program = ls__select_program(group, work, (ls__way)work->way);
    ls__unlock(&comm->lock, comm->env);
    return work->program;
}
