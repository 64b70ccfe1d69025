/* SPDX-License-Identifier: Apache-2.0 */
/* What the last synchronised backward took: sums for ls_reducer_get_stats, and the moments of each
 * gradient and its bucket, the timeline. */
#include "reduce/internal.h"

#include <stdio.h>

#include "base/options.h"
#include "base/trace.h"
#include "comm/core/comm.h"
#include "comm/core/round_robin.h"
#include "reduce/bucket_size.h"
#include "reduce/domain.h"
#include "reduce/reducer.h"

/* From its launch until it was reduced. */
static void trace_bucket(ls_reducer *r, const ls__reduce_bucket *bucket, int number)
{
    char name[32];
    if (ls__trace_begin() == 0) {
        return;
    }
    (void)snprintf(name, sizeof name, "bucket %d", number);
    const ls__trace_span span = {.kind = LS__TRACE_BUCKET,
                                 .begin_ns = bucket->launched_ns,
                                 .end_ns = bucket->reduced_ns > bucket->launched_ns
                                               ? bucket->reduced_ns
                                               : bucket->launched_ns,
                                 .flow = bucket->flow,
                                 .bytes = bucket->bytes,
                                 .name = name,
                                 .detail = r->name};
    ls__trace_add(r->runtime->trace, &span);
}

uint64_t ls__stats_sent(const ls_reducer *r)
{
    uint64_t sent = ls__division_sent(r);
    for (int d = 0; d < r->domain_count; d++) {
        for (int k = 0; k < LS__PHASES_MAX; k++) {
            ls_group *group = ls__domain_phase_group(&r->domains[d], k);
            ls_counters counters = {.size = sizeof counters};
            if (group != NULL) {
                (void)ls_group_get_counters(group, &counters);
                sent += counters.bytes_sent;
            }
        }
    }
    return sent;
}

/* comm_seconds spans the first launch to the last end; exposed_seconds is the part that this thread
 * spent waiting. */
void ls__stats_record(ls_reducer *r, uint64_t wait_start_ns)
{
    const ls__env *env = r->runtime->env;
    uint64_t first = UINT64_MAX, last = 0;
    for (int b = 0; b < r->plan.count; b++) {
        const ls__reduce_bucket *bucket = &r->plan.buckets[b];
        if (bucket->launched_ns != 0) {
            first = bucket->launched_ns < first ? bucket->launched_ns : first;
            last = bucket->reduced_ns > last ? bucket->reduced_ns : last;
            trace_bucket(r, bucket, b);
        }
    }
    r->ended_ns = env->now_ns(env);
    r->stats.reductions++;
    r->stats.comm_seconds = last > first ? (double)(last - first) * 1e-9 : 0.0;
    r->stats.exposed_seconds = (double)(r->ended_ns - wait_start_ns) * 1e-9;
    r->stats.backward_seconds = (double)(wait_start_ns - r->begin_ns) * 1e-9;
    r->stats.gradient_bytes = r->pass.gradient_bytes;
    const uint64_t sent = ls__stats_sent(r);
    r->stats.sent_bytes = sent - r->sent_before;
    r->sent_before = sent;
}

/* After ls_finalize its host and process are not known any more. */
static void name_slowest(const ls_reducer *r, ls_reducer_stats *out)
{
    if (r->guest.runtime == NULL) {
        (void)snprintf(out->slowest_name, sizeof out->slowest_name, "rank %d", out->slowest_rank);
        return;
    }
    const ls_group *group = ls__round_robin_at(r->group, 0);
    ls__comm_name(group->comm, group->member[out->slowest_rank].world_rank, out->slowest_name,
                  sizeof out->slowest_name);
}

const ls_reducer_stats *ls__reducer_figures(const ls_reducer *r)
{
    return &r->stats;
}

/* Of the last synchronised backward; the bytes of all buckets are counted here. */
ls_status ls_reducer_get_stats(const ls_reducer *r, ls_reducer_stats *out)
{
    if (r == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_get_stats: the reducer is NULL; give a reducer");
    }
    ls_reducer_stats now = r->stats;
    now.buckets = r->plan.count;
    now.automatic = ls__bucket_sizes_are_chosen(r);
    name_slowest(r, &now);
    if (r->hook.given != NULL) {
        (void)snprintf(now.hook, sizeof now.hook, "%s%s%s%s", r->hook.given->name,
                       r->hook.given->about[0] != '\0' ? " (" : "", r->hook.given->about,
                       r->hook.given->about[0] != '\0' ? ")" : "");
    }
    for (int i = 0; i < r->plan.region_count; i++) {
        now.bucket_bytes += r->plan.regions[i].bytes;
    }
    return ls__struct_fill(out, &now, sizeof now, "ls_reducer_stats", "ls_reducer_get_stats");
}

/* -1 for a moment that did not come. */
static double since_begin(const ls_reducer *r, uint64_t ns)
{
    return ns == 0 ? -1.0 : (double)(ns - r->begin_ns) * 1e-9;
}

/* The engine writes the times while a backward runs. */
static ls_status check_idle(ls_reducer *r, const char *caller)
{
    return ls__reducer_is_idle(r)
               ? LS_OK
               : ls__fail(LS_ERR_STATE,
                          "%s: a synchronising backward of reducer \"%s\" is under way; call "
                          "ls_reducer_wait first",
                          caller, r->name);
}

ls_status ls_reducer_get_bucket(ls_reducer *r, int bucket, ls_reducer_bucket *out)
{
    if (r == NULL || bucket < 0 || bucket >= r->plan.count) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_get_bucket: bucket %d of a reducer with %d; give 0 to %d",
                        bucket, r != NULL ? r->plan.count : 0, r != NULL ? r->plan.count - 1 : 0);
    }
    LS_TRY(check_idle(r, "ls_reducer_get_bucket"));
    const ls__reduce_bucket *b = &r->plan.buckets[bucket];
    const int *params = &r->plan.order[b->first];
    const ls_reducer_bucket shown = {.size = sizeof shown,
                                     .bytes = b->bytes,
                                     .params = b->count,
                                     .first_param = r->params[params[0]].name,
                                     .last_param = r->params[params[b->count - 1]].name,
                                     .launched = since_begin(r, b->launched_ns),
                                     .reduced = since_begin(r, b->reduced_ns)};
    return ls__struct_fill(out, &shown, sizeof shown, "ls_reducer_bucket", "ls_reducer_get_bucket");
}

ls_status ls_reducer_get_event(ls_reducer *r, int param, ls_reducer_event *out)
{
    if (r == NULL || param < 0 || param >= r->param_count) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_get_event: parameter %d of a reducer with %d; give 0 to %d",
                        param, r != NULL ? r->param_count : 0, r != NULL ? r->param_count - 1 : 0);
    }
    LS_TRY(check_idle(r, "ls_reducer_get_event"));
    const ls__reduce_param *p = &r->params[param];
    const ls__reduce_bucket *bucket = &r->plan.buckets[p->bucket];
    const ls_reducer_event event = {.size = sizeof event,
                                    .name = p->name,
                                    .count = p->count,
                                    .dtype = p->key.dtype,
                                    .bucket = p->bucket,
                                    .ready = since_begin(r, p->ready_ns),
                                    .launched = since_begin(r, bucket->launched_ns),
                                    .reduced = since_begin(r, bucket->reduced_ns)};
    return ls__struct_fill(out, &event, sizeof event, "ls_reducer_event", "ls_reducer_get_event");
}
