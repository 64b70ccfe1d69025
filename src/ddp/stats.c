/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a data-parallel step goes. Everything is measured always: a step reads the
 * clock a few times, and once for each gradient (reduce/stats.c). */
#include "ddp/wrapper.h"

#include <math.h>

#include <jansson.h>

#include "base/error.h"
#include "reduce/reducer.h"

/* One more step in mean and deviation, without keeping the steps (Welford 1962). */
static void add(ls_ddp_time *time, double *squares, double seconds, uint64_t steps)
{
    time->last = seconds;
    if (steps == 0) {
        return; /* the first step */
    }
    const double before = seconds - time->mean;
    time->mean += before / (double)steps;
    *squares += before * (seconds - time->mean);
    time->deviation = steps > 1 ? sqrt(*squares / (double)(steps - 1)) : 0.0;
}

void ls__step_ended(ls__step_stats *s, const ls__env *env, const ls__backward_waits *waits)
{
    ls_ddp_stats *shown = &s->shown;
    const uint64_t now = env->now_ns(env);
    const uint64_t steps = s->passed_ns == 0 ? 0 : ++s->steps;
    const double seconds[6] = {s->passed_ns == 0 ? 0.0 : (double)(now - s->passed_ns) * 1e-9,
                               (double)s->forward_ns * 1e-9,
                               (double)s->backward_ns * 1e-9 + waits->backward,
                               waits->wire,
                               waits->exposed,
                               (double)s->optimizer_ns * 1e-9};
    ls_ddp_time *const times[6] = {&shown->step, &shown->forward, &shown->backward,
                                   &shown->wire, &shown->exposed, &shown->optimizer};
    for (int i = 0; i < 6; i++) {
        add(times[i], &s->squares[i], seconds[i], steps);
    }
    const double wire = steps > 0 ? shown->wire.mean : shown->wire.last;
    const double exposed = steps > 0 ? shown->exposed.mean : shown->exposed.last;
    shown->hidden_share = wire > exposed ? 1.0 - exposed / wire : 0.0;
    s->forward_ns = s->backward_ns = s->optimizer_ns = 0;
    s->passed_ns = now;
}

/* ---- the timeline -------------------------------------------------------------------------- */

static json_t *moment(double seconds)
{
    return seconds < 0.0 ? json_null() : json_real(seconds);
}

/* NULL without memory. */
static json_t *json_of(const ls_reducer_event *event)
{
    return json_pack("{s:s, s:I, s:s, s:i, s:o, s:o, s:o}", "name", event->name, "elements",
                     (json_int_t)event->count, "dtype", ls_dtype_name(event->dtype), "bucket",
                     event->bucket, "ready", moment(event->ready), "launched",
                     moment(event->launched), "reduced", moment(event->reduced));
}

static json_t *json_of_bucket(const ls_reducer_bucket *bucket)
{
    return json_pack("{s:I, s:i, s:s, s:s, s:o, s:o}", "bytes", (json_int_t)bucket->bytes,
                     "parameters", bucket->params, "first", bucket->first_param, "last",
                     bucket->last_param, "launched", moment(bucket->launched), "reduced",
                     moment(bucket->reduced));
}

/* NULL without memory. */
static json_t *list_buckets(ls_reducer *reducer)
{
    ls_reducer_stats stats = {.size = sizeof stats};
    (void)ls_reducer_get_stats(reducer, &stats);
    json_t *list = json_array();
    for (int b = 0; list != NULL && b < stats.buckets; b++) {
        ls_reducer_bucket bucket = {.size = sizeof bucket};
        if (ls_reducer_get_bucket(reducer, b, &bucket) < 0 ||
            json_array_append_new(list, json_of_bucket(&bucket)) < 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/* Takes `root`. */
static ls_status print(json_t *root, char *out, size_t bytes, size_t *needed)
{
    const size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(9);
    const size_t length = root != NULL ? json_dumpb(root, NULL, 0, flags) : 0;
    if (length == 0) {
        json_decref(root);
        return ls__fail(LS_ERR_MEMORY, "ls_ddp_timeline: no memory for the text");
    }
    if (needed != NULL) {
        *needed = length + 1;
    }
    if (out == NULL || bytes <= length) {
        json_decref(root);
        return ls__fail(LS_ERR_LIMIT, "ls_ddp_timeline: the text takes %zu bytes; give as many",
                        length + 1);
    }
    (void)json_dumpb(root, out, bytes, flags);
    out[length] = '\0';
    json_decref(root);
    return LS_OK;
}

ls_status ls__timeline_print(ls_reducer *reducer, int params, char *out, size_t bytes,
                             size_t *needed)
{
    json_t *list = json_array();
    for (int i = 0; list != NULL && i < params; i++) {
        ls_reducer_event event = {.size = sizeof event};
        const ls_status status = ls_reducer_get_event(reducer, i, &event);
        if (status < 0) {
            json_decref(list);
            return status;
        }
        if (json_array_append_new(list, json_of(&event)) < 0) {
            json_decref(list);
            list = NULL;
        }
    }
    json_t *buckets = list_buckets(reducer);
    if (list == NULL || buckets == NULL) {
        json_decref(list);
        json_decref(buckets);
        return print(NULL, out, bytes, needed);
    }
    return print(json_pack("{s:o, s:o}", "parameters", list, "buckets", buckets), out, bytes,
                 needed);
}
