/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients in memory of a device.
 *
 * The library does not follow pointers there. What it does to gradients elsewhere, the device does
 * here, in the order of the program's stream, or it is refused:
 *
 *     begin   ▸ zero what is not reached ▸ mark
 *     ready   ▸ mark                        the bucket's operation begins after its last mark
 *     wait    ▸ the stream waits for the operations
 *
 * A mark is made when the program calls, not when the bucket is launched: the program is far ahead
 * of the device, and a later mark would wait for the rest of the backward, too. */
#include "reduce/device.h"

#include "comm/backend/plugin_group.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"

static ls_group *group_of(const ls_reducer *r, const ls__reduce_bucket *bucket)
{
    return r->domains[r->plan.regions[bucket->region].key.domain].group;
}

/* Regions lie in memory of their groups' backends, and what is done to gradients there differs. */
static ls_status check_group(const ls_reducer *r, const ls_reducer_param *param)
{
    const ls_group *group = param->reduce_group;
    if (group == NULL || r->options.backend != NULL || ls__group_on_host(group) != r->on_device) {
        return LS_OK;
    }
    return ls__fail(
        LS_ERR_UNSUPPORTED,
        "reducer \"%s\": parameter %s is added over group \"%s\" of backend \"%s\", and "
        "backend \"%s\" keeps gradients in other memory; give groups of one backend",
        r->name, param->name, ls_group_name(group), ls__backend_name(group),
        ls__backend_name(r->group));
}

ls_status ls__device_check_param(const ls_reducer *r, const ls_reducer_param *param)
{
    LS_TRY(check_group(r, param));
    if (!r->on_device || (param->grad == NULL && param->rows == 0)) {
        return LS_OK;
    }
    return ls__fail(
        LS_ERR_UNSUPPORTED,
        "reducer \"%s\": parameter %s has %s, and backend \"%s\" has memory of a device "
        "only; leave `grad` NULL and `rows` 0",
        r->name, param->name, param->grad != NULL ? "a gradient of its own" : "rows",
        ls__backend_name(r->group));
}

ls_status ls__device_check_begin(const ls_reducer *r, const ls_reducer_begin_options *options)
{
    if (options->stream != NULL) {
        LS_TRY(ls__promise_streams("ls_reducer_begin", r->group));
    }
    for (int i = 0; i < r->param_count && r->on_device; i++) {
        if (r->params[i].present && !r->params[i].local) {
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "reducer \"%s\": parameter %s still holds an average, and backend "
                            "\"%s\" cannot set it aside; zero gradients after each step "
                            "(ls_optim_zero_grad, ls_reducer_zero)",
                            r->name, r->params[i].name, ls__backend_name(r->group));
        }
    }
    return LS_OK;
}

ls_status ls__device_begin(ls_reducer *r)
{
    if (!r->on_device) {
        return LS_OK;
    }
    r->stream = r->pass.stream;
    for (int i = 0; i < r->param_count; i++) {
        if (!r->params[i].local) {
            LS_TRY(ls__group_zero(r->group, r->stream, ls__reducer_grad(r, i), r->params[i].bytes));
        }
    }
    for (int b = 0; b < r->plan.count && r->stream != NULL; b++) {
        ls__reduce_bucket *bucket = &r->plan.buckets[b];
        LS_TRY(ls__group_mark(group_of(r, bucket), r->stream, &bucket->place));
    }
    return LS_OK;
}

ls_status ls__device_mark(ls_reducer *r, int param, ls_stream *stream)
{
    ls__reduce_bucket *bucket = &r->plan.buckets[r->params[param].bucket];
    return stream != NULL ? ls__group_mark(group_of(r, bucket), stream, &bucket->place) : LS_OK;
}

void *ls__device_take_place(ls__reduce_bucket *bucket)
{
    void *place = bucket->place;
    bucket->place = NULL;
    return place;
}

void ls__device_drop_place(const ls_reducer *r, ls__reduce_bucket *bucket)
{
    ls__group_unmark(group_of(r, bucket), ls__device_take_place(bucket));
}

/* The gaps between gradients are zero from the start. */
ls_status ls__device_zero_all(ls_reducer *r)
{
    for (int i = 0; i < r->plan.region_count; i++) {
        const ls__reduce_region *region = &r->plan.regions[i];
        LS_TRY(ls__group_zero(r->domains[region->key.domain].group, r->stream, region->memory,
                              region->bytes));
    }
    return LS_OK;
}
