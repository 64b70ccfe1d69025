/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that chooses how an operation runs: where its data goes, and by which plan. Every
 * rank decides from what all have announced (equal operation, count and dtype, and whether each
 * one's buffers are registered), so all decide alike without a further message.
 *
 *     submitted   a plug-in carries it                                                   BACKEND
 *                 by messages only (asked for, or unequal blocks without a layout)      MESSAGES
 *                 small enough for the small stage                                      ONE_SHOT
 *                 inline, its own buffers private: Note [Offers]                           OFFER
 *                 else with members on other hosts                                      MESSAGES
 *     announced   unequal blocks, packed by all                                           PACKED
 *                 buffers of all members are registered                               REGISTERED
 *                 else                                                                    STAGED
 *
 * Plans are made once and kept, in one table: of the operations chosen for here one per (operation,
 * memory or one shot, root), of algorithms asked for by name one per (algorithm, memory or one
 * shot, root). Operations without a root use that place for those that differ in place.
 */
#include "base/assert.h"
#include "base/error.h"
#include "base/lock.h"
#include "comm/algorithm/registry.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/group.h"
#include "comm/core/plan.h"
#include "comm/core/post.h"
#include "comm/engine/engine.h"
#include "comm/engine/one_shot.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"
#include "comm/operation/exec.h"
#include "comm/operation/v_counts.h"
#include "comm/remote/remote.h"
#include "comm/tune/choice.h"

/* The column of a plan in the table: where the data travels, or that it goes with the
 * announcement. */
typedef enum plan_form {
    FORM_ONE_SHOT = LS__MEMORY_UNDECIDED, /* also the packed blocks of the v-variants */
    FORM_MESSAGES = LS__MEMORY_MESSAGES,
    FORM_REGISTERED = LS__MEMORY_REGISTERED,
    FORM_STAGED = LS__MEMORY_STAGED,
    FORMS
} plan_form;

/* Where one_shot would be the same program, only direct exists. */
static const ls__algorithm *default_of(ls__operation operation, plan_form form)
{
    const ls__algorithm *one_shot =
        form == FORM_ONE_SHOT ? ls__algorithm_find(operation, "one_shot") : NULL;
    return one_shot != NULL ? one_shot : ls__algorithm_find(operation, "direct");
}

/* The one asked for by name; NULL: chosen here. A rank alone needs no choice. */
static const ls__algorithm *named(const ls_group *group, const ls_work *work)
{
    return group->size > 1 ? work->algorithm : NULL;
}

size_t ls__select_plans(int size)
{
    int algorithms = 0;
    (void)ls__algorithms(&algorithms);
    return (size_t)((LS__OP_COUNT + algorithms) * FORMS) * (size_t)size;
}

/* Whether the program may be another one because of it. */
static bool in_place(const ls_work *work)
{
    return ls__operation_reads_ahead(work->operation) && work->input == work->output;
}

/* The plan's place in the table, filled or not. */
static ls__plan *plan_of(ls_group *group, const ls_work *work, plan_form form)
{
    const ls__algorithm *algorithm = named(group, work);
    const int kind =
        algorithm == NULL ? (int)work->operation : LS__OP_COUNT + ls__algorithm_index(algorithm);
    const int second = in_place(work) && group->size > 1 ? 1 : 0;
    const int root = ls__operation_has_root(work->operation) ? work->descriptor.root : second;
    return &group->plans[(size_t)(kind * FORMS + (int)form) * (size_t)group->size + (size_t)root];
}

/* Which members share a host; NULL: all do. */
static const int *hosts_of(const ls_group *group, int *host)
{
    for (int r = 0; r < group->size && group->has_remote; r++) {
        host[r] = ls__comm_host_of(group->comm, group->member[r].world_rank);
    }
    return group->has_remote ? host : NULL;
}

static ls__program *generate(ls_group *group, const ls_work *work, plan_form form)
{
    int host[LS__PROGRAM_RANKS_MAX];
    const ls__program_spec spec = {.operation = work->operation,
                                   .memory =
                                       form == FORM_ONE_SHOT ? LS__MEMORY_STAGED : (ls__memory)form,
                                   .rank = group->rank,
                                   .size = group->size,
                                   .root = work->descriptor.root,
                                   .in_place = in_place(work),
                                   .host = hosts_of(group, host)};
    const ls__algorithm *algorithm = named(group, work);
    algorithm = algorithm != NULL ? algorithm : default_of(work->operation, form);
    LS_ASSERT(algorithm != NULL); /* each operation has a direct one */
    ls__program *program = NULL;
    return algorithm->generate(&spec, group->comm->env, &program) == LS_OK ? program : NULL;
}

/* lock; the plan, made when it is asked for first; NULL: there is not one, with the error set. */
static const ls__plan *plan_for(ls_group *group, const ls_work *work, plan_form form)
{
    ls__plan *plan = plan_of(group, work, form);
    if (plan->program == NULL) {
        ls__program *program = generate(group, work, form);
        if (program != NULL) {
            ls__plan_init(plan, program, form == FORM_ONE_SHOT);
        }
    }
    return plan->program != NULL ? plan : NULL;
}

/* Their buffers lie in their heaps, as their descriptors say. */
static bool all_registered(const ls_group *group, uint64_t sequence)
{
    for (int r = 0; r < group->size; r++) {
        if (ls__post_slot(group, r, sequence)->line.memory != LS__MEMORY_REGISTERED) {
            return false;
        }
    }
    return true;
}

/* Bytes up to which a contribution goes in one shot. Of a sum everybody then reads all of it, where
 * direct would read a part twice: with registered memory, 2 and 8 ranks on 2 cores, one shot of 8
 * and 16 KB takes 2.4 and 3.0, 15.6 and 20.1 us, direct 1.3 and 1.7, 20.7 and 16.2; in private
 * memory they are equal there. Whose memory is registered is not known yet.
 *
 * Where ranks outnumber the cores, each of direct's two fences costs switches between the ranks of
 * a core, and one shot has one fence: direct takes 1.2, 1.3 and 1.4 times as long for 16 KB of
 * registered memory (4, 6 and 8 ranks on 2 cores, Zen 5, medians of 7 rounds), 2.0 times as long in
 * private memory. What everybody reads grows with the ranks, so not beyond those measured. */
#define SWITCHING_RANKS 8

static size_t most_of(const ls_group *group, ls__operation operation, bool is_named)
{
    const size_t most = group->has_remote ? LS__REMOTE_SMALL : LS__SMALL_BYTES;
    const bool switches =
        !group->has_remote && group->size <= SWITCHING_RANKS && ls__is_crowded(group->comm);
    const size_t sum = group->size == 2 ? LS__SMALL_BYTES / 4
                       : switches       ? LS__SMALL_BYTES
                                        : LS__SMALL_BYTES / 2;
    return operation == LS__OP_ALL_REDUCE && !is_named && sum < most ? sum : most;
}

/* Note [Offers]
 * An operation that is too large for that may still run in one shot if no rank's memory turns out
 * to be registered: then nothing is copied after the ranks have met but by the readers, and a sum
 * of two ranks saves two fences. So a blocking call that runs inline and whose own buffers are
 * private publishes them with its announcement, as an offer. It counts if all ranks have made it,
 * which all see; else the operation is staged as ever. Sums staged and offered (Zen 5, two cores
 * that are far apart and two that are near): 16 KB 3.05 and 1.62, 1.05 and 0.60 us; 64 KB 4.91 and
 * 4.22, 2.13 and 2.08 us.
 *
 * The root of a broadcast copies the next one in while its peers still copy this one out, which two
 * slots allow. Time staged over offered: 68, 128, 200, 256 KiB 1.8, 1.6, 1.7, 1.3 near, 2.2, 2.0,
 * 1.7, 1.6 far; 4 ranks 1.9 (32 KiB) and 1.35 (256 KiB), 6 ranks 1.5 and 1.3. A broadcast between
 * two barriers gains as long as staging it takes no more than two slices of 128 KiB: 64, 128, 200,
 * 256 KiB 1.28, 1.14, 1.02, 0.92 (far), so no larger ones. An all_gather saves a fence as well: 32
 * KiB a block 7.6 and 5.6 us (2 ranks, Zen 4, beside other work). So do all_to_all and
 * reduce_scatter, whose blocks all lie in the stage. Time staged over offered, 64 and 256 KiB a
 * rank (Sapphire Rapids, 2 cores): 2 ranks 1.11 and 1.05, 1.11 and 1.05; 4 ranks 1.36 and 1.15,
 * 1.40 and 1.10; 6 ranks 1.30 and 1.01, 1.43 and 0.97. */
#define OFFERED_SUM ((size_t)64 << 10)

static size_t offer_most(const ls_group *group, ls__operation operation)
{
    switch (operation) {
    case LS__OP_BROADCAST:
    case LS__OP_ALL_GATHER:
    case LS__OP_ALL_TO_ALL:
    case LS__OP_REDUCE_SCATTER:
        return LS__WIDE_BYTES;
    case LS__OP_ALL_REDUCE:
        return group->size == 2 ? OFFERED_SUM : 0;
    default:
        return 0;
    }
}

/* `bytes`: of a block, where there are blocks. */
static bool may_offer(const ls_group *group, ls__operation operation, const void *input,
                      const void *output, size_t bytes)
{
    const ls__heap *heap = &group->comm->heap;
    uint64_t at = 0;
    return ls__one_shot_bytes(group, operation, bytes) <= offer_most(group, operation) &&
           !(ls__heap_offset(heap, input, bytes, &at) && ls__heap_offset(heap, output, bytes, &at));
}

bool ls__select_may_announce(const ls_group *group, const ls__collective *args)
{
    const ls__operation operation = args->operation;
    const size_t bytes = (size_t)args->count * ls_dtype_size(args->dtype);
    return ls__one_shot_bytes(group, operation, bytes) <= most_of(group, operation, false) ||
           may_offer(group, operation, args->input, args->output, bytes);
}

/* Whether an operation of this size is announced together with its data, by a plan for that. */
static bool fits_one_shot(const ls_group *group, const ls_work *work)
{
    const bool other =
        work->algorithm != NULL && work->algorithm != default_of(work->operation, FORM_ONE_SHOT);
    const size_t bytes = (size_t)work->count * work->element;
    return !other && !work->has_layout &&
           ls__one_shot_bytes(group, work->operation, bytes) <=
               most_of(group, work->operation, work->algorithm != NULL) &&
           (group->tuning == NULL || ls__tuning_one_shot(group, bytes));
}

/* lock; takes the one-shot plan if the operation fits. */
static ls_status try_one_shot(ls_group *group, ls_work *work)
{
    if (!fits_one_shot(group, work)) {
        return LS_OK;
    }
    const ls__plan *plan = plan_for(group, work, FORM_ONE_SHOT);
    if (plan == NULL) {
        return ls__self.status == LS_ERR_MEMORY ? LS_ERR_MEMORY : LS_OK;
    }
    if (plan->one_shot) {
        work->path = LS__PATH_ONE_SHOT;
        work->plan = plan;
    }
    return LS_OK;
}

bool ls__select_prepared(ls_group *group, ls_work *work)
{
    LS_ASSERT(work->path == LS__PATH_OPEN && !group->has_remote);
    const bool offer = !fits_one_shot(group, work);
    const size_t bytes = (size_t)work->count * work->element;
    if (offer && !(ls__one_shot_has_wide(group) &&
                   may_offer(group, work->operation, work->input, work->output, bytes))) {
        return false;
    }
    const ls__plan *plan =
        offer ? plan_for(group, work, FORM_ONE_SHOT) : plan_of(group, work, FORM_ONE_SHOT);
    if (plan == NULL || plan->program == NULL || !plan->one_shot) {
        return false;
    }
    work->path = offer ? LS__PATH_OFFER : LS__PATH_ONE_SHOT;
    work->plan = plan;
    return true;
}

void ls__select_met(const ls_group *group, ls_work *work)
{
    for (int r = 0; r < group->size && work->path == LS__PATH_OFFER; r++) {
        if (ls__post_slot(group, r, work->descriptor.sequence)->line.one_shot == 0) {
            work->plan = NULL;
            work->path = LS__PATH_OPEN;
        }
    }
}

/* Whether it has no program in shared memory, or none is wanted. */
static bool needs_messages(const ls_group *group, const ls_work *work)
{
    const bool staged = work->algorithm == NULL || (work->algorithm->memories & LS__IN_STAGED) != 0;
    return !staged || group->comm->forced == LS__MEMORY_MESSAGES ||
           (ls__operation_is_v(work->operation) && !work->has_layout);
}

ls_status ls__select_submitted(ls_group *group, ls_work *work)
{
    LS_ASSERT(work->path == LS__PATH_OPEN && !ls__operation_is_p2p(work->operation));
    if (ls__plugin_carries_work(group, work)) {
        work->path = LS__PATH_BACKEND;
        return LS_OK;
    }
    LS_TRY(ls__tuning_decide(group));
    const bool alone = group->size == 1;
    if (needs_messages(group, work) && (!alone || ls__operation_is_v(work->operation))) {
        work->path = LS__PATH_MESSAGES;
        work->by_message = !alone;
    } else if (group->comm->forced == LS__MEMORY_UNDECIDED) {
        LS_TRY(try_one_shot(group, work));
    }
    if (work->path == LS__PATH_OPEN && group->has_remote) {
        work->path = LS__PATH_MESSAGES;
    }
    return LS_OK;
}

/* By what all members have announced: where their buffers lie, and whether blocks are packed. */
static plan_form announced_form(const ls_group *group, const ls_work *work)
{
    const bool fits = work->algorithm == NULL || (work->algorithm->memories & LS__IN_REGISTERED);
    if (work->path == LS__PATH_MESSAGES) {
        return FORM_MESSAGES;
    }
    if (work->has_layout && ls__v_layout_packed(group, work)) {
        return FORM_ONE_SHOT;
    }
    return fits && group->comm->forced != LS__MEMORY_STAGED &&
                   all_registered(group, work->descriptor.sequence)
               ? FORM_REGISTERED
               : FORM_STAGED;
}

/* Of an operation that was still open when all had announced it. */
static ls__work_path path_of(plan_form form)
{
    switch (form) {
    case FORM_MESSAGES:
        return LS__PATH_MESSAGES;
    case FORM_REGISTERED:
        return LS__PATH_REGISTERED;
    case FORM_ONE_SHOT:
        return LS__PATH_PACKED;
    default:
        return LS__PATH_STAGED;
    }
}

const ls__plan *ls__select_announced(ls_group *group, ls_work *work)
{
    ls__comm *comm = group->comm;
    LS_ASSERT(work->plan == NULL);
    if (work->path == LS__PATH_MESSAGES) {
        work->algorithm = ls__tuning_find(group, work);
    }
    const plan_form form = announced_form(group, work);
    work->path = path_of(form);
    ls__lock_take(&comm->lock, comm->env);
    work->plan = plan_for(group, work, form);
    ls__unlock(&comm->lock, comm->env);
    return work->plan;
}
