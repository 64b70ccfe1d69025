/* SPDX-License-Identifier: Apache-2.0 */
/* Backwards in a captured step (device/captured.h).
 *
 * Note [Replays of several ranks]
 * A replay sends what was recorded and asks nobody. So all ranks replay the same recording, or
 * none does:
 *
 *     each run           vote      one all_gather of what each rank would do; all do the least of
 *                                  it: one whose batch has another shape has all run as without a
 *                                  capture
 *     to record          control   of the backward, as ever: weights, parameters that are reached
 *                        record    buckets go into the capture when the backward waits for them,
 *                                  each after the marks of its gradients
 *                        vote      whether all ranks have recorded the same operations
 *     to replay          start     the graph, in the program's stream
 *                        barrier   behind it, which the backend tests for as for an operation: so
 *                                  deadlines, reports and aborts are those of operations
 *
 * The vote carries what else the control exchange of a backward would: stop requests and the hash
 * of the settings that may change. A rank that makes its step itself begins another operation where
 * these ranks vote, and both are named as they are in any mismatch. */
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "comm/api/collective.h"
#include "comm/api/control.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/round_robin.h"
#include "reduce/compare.h"
#include "reduce/domain.h"
#include "reduce/internal.h"
#include "reduce/reducer.h"

static ls_group *group_of(const ls_reducer *r)
{
    return ls__round_robin_at(r->domains[0].group, 0);
}

/* ---- votes ---------------------------------------------------------------------------------- */

/* One rank's part of a vote. */
typedef struct vote_part {
    ls__reducer_vote vote;
    ls__reducer_recorded recorded;
    uint64_t settings, agreement;
    uint64_t stop;
} vote_part;

/* The parts of all ranks; NULL with the error set. */
static const vote_part *exchange_parts(ls_reducer *r, vote_part *own, const char *tag)
{
    ls__reduce_captured *c = &r->captured;
    if (c->parts == NULL) {
        c->parts = ls__arena_alloc(&r->arena, (size_t)r->size * sizeof *own);
    }
    if (c->parts == NULL) {
        const ls_status status = ls__fail(LS_ERR_MEMORY,
                                          "reducer \"%s\": no memory for a vote of "
                                          "%d ranks",
                                          r->name, r->size);
        ls__reducer_abort(r, status, ls_error_message());
        return NULL;
    }
    own->settings = ls__config_change_hash();
    own->agreement = atomic_load_explicit(&r->runtime->agreement, memory_order_relaxed);
    own->stop = ls__stop_wanted(r->runtime);
    const ls_status status =
        ls__control_all_gather(r->domains[0].group, own, c->parts, (int64_t)sizeof *own, LS_UINT8,
                               LS_OPTIONS(ls_collective_options, .tag = tag));
    return status == LS_OK ? c->parts : NULL;
}

static void list_step(ls__facts *to, int rank, const void *arg)
{
    const vote_part *part = (const vote_part *)arg + rank;
    ls__facts_number(to, "which of the captured steps over these gradients it is",
                     (double)part->vote.step, "run the same ls_captured_run on every rank");
}

static void list_recorded(ls__facts *to, int rank, const void *arg)
{
    const ls__reducer_recorded *of = &((const vote_part *)arg + rank)->recorded;
    char text[64];
    (void)snprintf(text, sizeof text, "%u (sizes and types %016llx)", of->operations,
                   (unsigned long long)of->digest);
    ls__facts_text(to, "the operations of the recorded step", text,
                   "run the same step on every rank");
}

static ls_status fail_vote(ls_reducer *r, ls__facts_of_fn list, const vote_part *parts)
{
    const ls__agree_peers peers = ls__domain_peers(r, &r->domains[0]);
    const ls_status status = ls__agree_here(&peers, list, parts);
    ls__reducer_fail(r, status, ls_error_message());
    return status;
}

/* What the control exchange of a backward does with them. */
static ls_status take_settings(ls_reducer *r, const vote_part *parts)
{
    uint64_t stop = 0;
    bool agree = true;
    for (int rank = 0; rank < r->size; rank++) {
        agree = agree && parts[rank].agreement == r->agreement;
        stop = parts[rank].stop > stop ? parts[rank].stop : stop;
    }
    r->pass.settings_differ = false;
    for (int rank = 0; agree && rank < r->size; rank++) {
        r->pass.settings_differ =
            r->pass.settings_differ || parts[rank].settings != parts[0].settings;
    }
    if (agree && stop != 0) {
        atomic_store_explicit(&r->runtime->stop_agreed, (uint32_t)stop, memory_order_relaxed);
    }
    return ls__changes_check(r);
}

ls_status ls__reducer_vote_run(ls_reducer *r, ls__reducer_vote *vote)
{
    vote_part own = {.vote = *vote};
    LS_TRY(ls__reducer_status(r));
    const vote_part *parts = exchange_parts(r, &own, "a run of a captured step begins");
    if (parts == NULL) {
        return ls__self.status;
    }
    for (int rank = r->size - 1; rank >= 0; rank--) {
        const ls__reducer_vote *of = &parts[rank].vote;
        if (of->step != parts[0].vote.step) {
            return fail_vote(r, list_step, parts);
        }
        vote->act = of->act < vote->act ? of->act : vote->act;
        vote->refuses = of->refuses != 0 ? ls__reducer_rank(r, rank) + 1 : vote->refuses;
        vote->recorded = of->recorded == own.vote.recorded ? vote->recorded : UINT64_MAX;
    }
    return take_settings(r, parts);
}

ls_status ls__reducer_vote_recorded(ls_reducer *r, ls__reducer_recorded *recorded)
{
    vote_part own = {.recorded = *recorded};
    LS_TRY(ls__reducer_status(r));
    const vote_part *parts = exchange_parts(r, &own, "a captured step was recorded");
    if (parts == NULL) {
        return ls__self.status;
    }
    bool differ = false;
    recorded->failed = 0;
    for (int rank = r->size - 1; rank >= 0; rank--) {
        const ls__reducer_recorded *of = &parts[rank].recorded, *first = &parts[0].recorded;
        recorded->failed = of->failed != 0 ? ls__reducer_rank(r, rank) + 1 : recorded->failed;
        differ = differ || of->operations != first->operations || of->digest != first->digest;
    }
    return differ && recorded->failed == 0 ? fail_vote(r, list_recorded, parts) : LS_OK;
}

/* ---- replays -------------------------------------------------------------------------------- */

/* A failure is the group's, which the next call reports. */
static void replay_ended(void *arg, ls_status status)
{
    (void)arg, (void)status;
}

ls_status ls__reducer_replayed(ls_reducer *r, ls_stream *stream, uint64_t step, uint64_t recorded)
{
    char tag[96];
    (void)snprintf(tag, sizeof tag, "replay of captured step %llu, recording %llu: %u operations",
                   (unsigned long long)step, (unsigned long long)recorded,
                   r->captured.recorded.operations);
    const ls_collective_options options = {.size = sizeof options, .tag = tag};
    ls__collective args = {.operation = LS__OP_BARRIER,
                           .replay = true,
                           .anywhere = true,
                           .options = &options,
                           .done = replay_ended,
                           .arg = r};
    LS_TRY(ls__group_mark(group_of(r), stream, &args.place));
    return ls__collective_start(group_of(r), &args, NULL);
}

void ls__reducer_count_replay(ls_reducer *r)
{
    r->stats.reductions++;
}

ls_status ls__reducer_status(const ls_reducer *r)
{
    return ls_group_status(group_of(r));
}
