/* SPDX-License-Identifier: Apache-2.0 */
/* An empty table, and adding actions to it. Everything is in one arena, so a table that cannot be
 * completed is freed like any other. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "schedule/schedule.h"

#define CHUNK_BYTES ((size_t)16 << 10)
#define ROOM_FIRST 64

static ls_status check_sizes(const char *what, int ranks, int64_t stages, int micro_batches,
                             const int *replicas)
{
    if (ranks < 1 || stages < 1 || (stages < ranks && replicas == NULL) || micro_batches < 1) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s: %d ranks, %lld stages, %d micro-batches; there must be one of each, and a "
            "stage for every rank",
            what, ranks, (long long)stages, micro_batches);
    }
    if (ranks > LS__SCHEDULE_RANKS_MAX || stages > LS__SCHEDULE_STAGES_MAX ||
        micro_batches > LS__SCHEDULE_MICRO_BATCHES_MAX ||
        stages * micro_batches > LS__SCHEDULE_CELLS_MAX) {
        return ls__fail(LS_ERR_LIMIT,
                        "%s: %d ranks, %lld stages, %d micro-batches; at most %d, %d and %d are "
                        "possible, and %d forwards in all",
                        what, ranks, (long long)stages, micro_batches, LS__SCHEDULE_RANKS_MAX,
                        LS__SCHEDULE_STAGES_MAX, LS__SCHEDULE_MICRO_BATCHES_MAX,
                        LS__SCHEDULE_CELLS_MAX);
    }
    return LS_OK;
}

/* There is a rank for each replica, and a micro-batch. */
static ls_status check_replicas(const char *what, int ranks, int stages, int micro_batches,
                                const int *replicas)
{
    int sum = 0;
    for (int i = 0; i < stages; i++) {
        sum += replicas[i];
        if (replicas[i] > micro_batches) {
            return ls__fail(LS_ERR_INVALID,
                            "%s: stage %d has %d replicas, and there are %d micro-batches; give at "
                            "least one micro-batch for each replica",
                            what, i, replicas[i], micro_batches);
        }
    }
    if (sum != ranks) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: the replicas of %d stages are %d ranks, and there are %d; give as "
                        "many replicas as ranks",
                        what, stages, sum, ranks);
    }
    return LS_OK;
}

/* One stage after the other. */
static void place(ls__schedule *s, const int *replicas)
{
    for (int i = 0; i < s->stages; i++) {
        s->replicas[i] = replicas != NULL ? replicas[i] : 1;
        s->first_replica[i] = s->replica_count;
        s->rank_of[i] = s->replica_count % s->ranks;
        s->replica_count += s->replicas[i];
    }
}

ls_status ls__schedule_empty(const ls__env *env, const char *what, const char *name, int ranks,
                             int64_t stages, int micro_batches, const int *replicas,
                             ls__schedule **out)
{
    ls__arena arena;
    *out = NULL;
    LS_TRY(check_sizes(what, ranks, stages, micro_batches, replicas));
    if (replicas != NULL) {
        LS_TRY(check_replicas(what, ranks, (int)stages, micro_batches, replicas));
    }
    ls__arena_init(&arena, env, CHUNK_BYTES);
    ls__schedule *s = ls__arena_alloc(&arena, sizeof *s);
    int *of_stages = ls__arena_alloc(&arena, 3 * (size_t)stages * sizeof *of_stages);
    ls__actions *rank = ls__arena_alloc(&arena, (size_t)ranks * sizeof *rank);
    if (s == NULL || of_stages == NULL || rank == NULL) {
        ls__arena_fini(&arena);
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for a schedule", what);
    }
    *s = (ls__schedule){.arena = arena,
                        .ranks = ranks,
                        .stages = (int)stages,
                        .rank_of = of_stages,
                        .replicas = of_stages + stages,
                        .first_replica = of_stages + 2 * stages,
                        .micro_batches = micro_batches,
                        .per_step = micro_batches,
                        .rank = rank};
    place(s, replicas);
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    *out = s;
    return LS_OK;
}

/* The arena is copied out first, because the schedule itself is in it. */
void ls__schedule_free(ls__schedule *schedule)
{
    if (schedule != NULL) {
        ls__arena arena = schedule->arena;
        ls__arena_fini(&arena);
    }
}

void ls__schedule_push(ls__schedule *schedule, int rank, ls__action action)
{
    LS_ASSERT(rank >= 0 && rank < schedule->ranks);
    ls__actions *a = &schedule->rank[rank];
    if (a->count == a->room) {
        const int room = a->room > 0 ? 2 * a->room : ROOM_FIRST;
        ls__action *list = ls__arena_alloc(&schedule->arena, (size_t)room * sizeof *list);
        if (list == NULL) {
            schedule->no_memory = true;
            return;
        }
        if (a->count > 0) {
            memcpy(list, a->list, (size_t)a->count * sizeof *list);
        }
        a->list = list;
        a->room = room;
    }
    a->list[a->count++] = action;
}

void ls__generate(ls__schedule *s, ls__action_kind kind, int stage, int micro_batch)
{
    ls__action action = {
        .kind = (uint8_t)kind, .stage = (uint16_t)stage, .micro_batch = (uint16_t)micro_batch};
    const int rank = ls__schedule_rank(s, stage, micro_batch);
    if (s->recompute && ls__action_form_of((int)kind)->backward) {
        action.kind = LS__RECOMPUTE;
        ls__schedule_push(s, rank, action);
        action.kind = (uint8_t)kind;
    }
    ls__schedule_push(s, rank, action);
}

int ls__schedule_steps(const ls__schedule *schedule)
{
    return schedule->micro_batches / schedule->per_step;
}

bool ls__schedule_steps_itself(const ls__schedule *schedule)
{
    return schedule->per_step != schedule->micro_batches || schedule->delay != 0;
}

int ls__schedule_version(const ls__schedule *schedule, int stage, int micro_batch)
{
    const int delay =
        schedule->delay == LS__DELAY_BY_STAGE ? schedule->stages - 1 - stage : schedule->delay;
    const int version = micro_batch / schedule->per_step - delay;
    return version > 0 ? version : 0;
}

/* ---- replicas -------------------------------------------------------------------------------- */

int ls__schedule_rank(const ls__schedule *schedule, int stage, int micro_batch)
{
    const int replicas = schedule->replicas[stage];
    return schedule->rank_of[stage] + (replicas > 1 ? micro_batch % replicas : 0);
}

int ls__schedule_replica(const ls__schedule *schedule, int stage, int rank)
{
    return rank - schedule->rank_of[stage];
}

int ls__schedule_share(const ls__schedule *schedule, int stage, int replica, int count)
{
    const int replicas = schedule->replicas[stage];
    return (count - replica + replicas - 1) / replicas;
}

bool ls__schedule_has_replicas(const ls__schedule *schedule)
{
    return schedule->replica_count > schedule->stages;
}

int ls__schedule_parse_replicas(const char *what, const char *text, size_t length, int *counts)
{
    int stages = 0, number = 0;
    bool good = true;
    for (size_t i = 0; i <= length && good; i++) {
        const char c = i < length ? text[i] : ',';
        if (c == ',') {
            good = number > 0 && stages < LS__SCHEDULE_RANKS_MAX;
            counts[good ? stages++ : 0] = number;
            number = 0;
        } else {
            number = 10 * number + (c - '0');
            good = c >= '0' && c <= '9' && number <= LS__SCHEDULE_RANKS_MAX;
        }
    }
    return good ? stages
                : ls__fail(LS_ERR_INVALID,
                           "%s: found replicas \"%.*s\"; give the number of ranks of each stage, 1 "
                           "to %d, with commas between them, as in 2,1,1",
                           what, (int)(length < 100 ? length : 100), text, LS__SCHEDULE_RANKS_MAX);
}
