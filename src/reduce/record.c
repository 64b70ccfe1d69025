/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a backward that is recorded (Note [Replays of several ranks] in captured.c). */
#include "base/assert.h"
#include "base/hash.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/round_robin.h"
#include "reduce/exchange.h"
#include "reduce/internal.h"
#include "reduce/reducer.h"

static ls_group *group_of(const ls_reducer *r)
{
    return ls__round_robin_at(r->domains[0].group, 0);
}

const char *ls__reducer_obstacle(const ls_reducer *r)
{
    return !r->on_device                     ? "gradients are averaged by ls_ddp_new on the host"
           : !ls__group_records(group_of(r)) ? "the backend of ls_ddp_new captures no operations"
           : r->domain_count > 1 ? "gradients of ls_ddp_new are added over several groups"
           : r->scattered || r->keeps_parts ? "averages of ls_ddp_new are divided (zero)"
                                            : NULL;
}

void ls__reducer_record(ls_reducer *r, bool records)
{
    r->captured.records = records;
}

void ls__reducer_record_anew(ls_reducer *r)
{
    r->captured.recorded = (ls__reducer_recorded){0};
}

void ls__captured_notice(ls_reducer *r)
{
    r->captured.noticed += ls__self.captured != NULL;
}

uint64_t ls__reducer_noticed(const ls_reducer *r)
{
    return r->captured.noticed;
}

static void count_recorded(ls_reducer *r, const ls__collective *args, double divisor)
{
    ls__reducer_recorded *recorded = &r->captured.recorded;
    const uint64_t facts[] = {recorded->digest, (uint64_t)args->count, (uint64_t)args->dtype,
                              (uint64_t)args->op, (uint64_t)(divisor * 1024.0)};
    recorded->digest = ls__hash_bytes(0, facts, sizeof facts);
    recorded->operations++;
}

ls_status ls__captured_exchange(ls_reducer *r, ls_group *group, const ls__collective *args,
                                double divisor)
{
    LS_ASSERT(r->pass.stream != NULL && ls__self.captured != NULL);
    count_recorded(r, args, divisor);
    return ls__group_record(ls__round_robin_at(group, 0), args, divisor, r->pass.stream);
}

ls_status ls__reducer_record_max(ls_reducer *r, int64_t *most, ls_stream *stream)
{
    ls__collective args = {.operation = LS__OP_ALL_REDUCE,
                           .input = most,
                           .output = most,
                           .count = 1,
                           .dtype = LS_INT64,
                           .op = LS_MAX};
    LS_TRY(ls__group_mark(group_of(r), stream, &args.place));
    count_recorded(r, &args, 0.0);
    return ls__group_record(group_of(r), &args, 0.0, stream);
}

void ls__reducer_get_recorded(const ls_reducer *r, ls__reducer_recorded *out)
{
    *out = r->captured.recorded;
}
