/* SPDX-License-Identifier: Apache-2.0 */
/* ls_tensor_plan_find: a mesh on a cluster, the operators of a module, and the search of
 * plan/intra/search.h, once for what runs and once for any placements. */
#include <stdlib.h>
#include <string.h>

#include <lockstep/ops.h>
#include <lockstep/plan.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/options.h"
#include "base/runtime.h"
#include "cost/cluster.h"
#include "dist/axes.h"
#include "plan/intra/search.h"

#define WORD_BYTES 576 /* at most, of a parameter */
#define MUCH 1e12      /* bytes, whose transfer makes latency negligible */

struct ls_tensor_plan {
    ls__axes axes;
    ls__intra_mesh mesh;
    ls__graph graph; /* owns what the plan consists of */
    ls__intra_plan runs;
    double any;
    char *words[LS__INTRA_AXES_MAX];
};

/* ---- the mesh -------------------------------------------------------------------------------- */

/* The rings of all ranks along the axis use the links at the same time. */
static ls_status measure_axis(const ls__axes *axes, int a, const ls__cluster *cluster,
                              ls__arena *arena, ls__intra_axis *out)
{
    ls__traffic traffic;
    const int size = axes->axis[a].size, stride = axes->axis[a].stride;
    if (!ls__traffic_init(&traffic, cluster, axes->ranks, arena)) {
        return ls__fail(LS_ERR_MEMORY, "plan: no memory to find it");
    }
    for (int r = 0; r < axes->ranks; r++) {
        const int at = ls__axes_coordinate(axes, a, r);
        ls__traffic_add(&traffic, r, r + ((at + 1) % size - at) * stride);
    }
    *out = (ls__intra_axis){size, 0.0, 0.0};
    if (size > 1) {
        out->byte = ls__traffic_seconds(&traffic, MUCH, 0) / MUCH;
        out->latency = ls__traffic_seconds(&traffic, 0.0, 1);
    }
    return LS_OK;
}

static ls_status read_mesh(ls_tensor_plan *p, const ls_tensor_plan_options *o)
{
    ls__cluster cluster;
    if (o->mesh == NULL || o->cluster == NULL || o->device == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_tensor_plan_find: mesh, cluster or device is NULL; give a mesh, such "
                        "as tp=4");
    }
    LS_TRY(ls__axes_parse(o->mesh, 0, &p->axes));
    if (p->axes.count > LS__INTRA_AXES_MAX || p->axes.ranks > LS__CLUSTER_RANKS_MAX) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_tensor_plan_find: the mesh \"%.200s\" has %d axes and %d ranks; give "
                        "one or two axes, and %d ranks at most",
                        o->mesh, p->axes.count, p->axes.ranks, LS__CLUSTER_RANKS_MAX);
    }
    LS_TRY(ls__cluster_parse("cluster", o->cluster, strlen(o->cluster), &cluster));
    LS_TRY(ls__processor_parse("device", o->device, strlen(o->device), sizeof(float),
                               &p->mesh.device));
    (void)ls__cluster_extend(&cluster, p->axes.ranks);
    p->mesh.axes = p->axes.count;
    for (int a = 0; a < p->axes.count; a++) {
        LS_TRY(measure_axis(&p->axes, a, &cluster, &p->graph.arena, &p->mesh.axis[a]));
    }
    return LS_OK;
}

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct pass {
    ls_module *net;
    ls_tensor *const *inputs;
    int input_count;
    ls_tensor *target;
    const ls_tensor_plan_options *set;
} pass;

static ls_tensor *loss_of(void *arg)
{
    const pass *p = arg;
    ls_tensor *out = NULL;
    if (ls_forward_many(p->net, p->inputs, p->input_count, &out, 1) < 0) {
        return NULL;
    }
    return p->set->loss != NULL ? p->set->loss(p->set->arg, out, p->target)
                                : ls_cross_entropy(out, p->target, NULL);
}

/* ---- the call -------------------------------------------------------------------------------- */

static ls_status search_placements(ls_tensor_plan *p)
{
    ls__intra_plan any;
    LS_TRY(ls__intra_search(&p->graph, &p->mesh, &any));
    p->any = any.seconds;
    p->mesh.runnable = true;
    LS_TRY(ls__intra_search(&p->graph, &p->mesh, &p->runs));
    LS_ASSERT(p->runs.possible); /* all ranks may do the same */
    const size_t bytes = ((size_t)p->graph.params + 1) * WORD_BYTES;
    for (int a = 0; a < p->mesh.axes; a++) {
        p->words[a] = ls__arena_alloc(&p->graph.arena, bytes);
        if (p->words[a] == NULL) {
            return ls__fail(LS_ERR_MEMORY, "plan: no memory to find it");
        }
        ls__text text = {p->words[a], bytes};
        LS_TRY(ls__intra_words(&p->graph, &p->runs, a, &text));
    }
    return LS_OK;
}

static ls_status find_plan(ls_tensor_plan *p, const pass *of)
{
    LS_TRY(ls__graph_record(of->net, loss_of, (void *)(uintptr_t)of, &p->graph));
    LS_TRY(read_mesh(p, of->set));
    return search_placements(p);
}

ls_status ls_tensor_plan_find(ls_module *net, ls_tensor *const *inputs, int input_count,
                              ls_tensor *target, const ls_tensor_plan_options *options,
                              ls_tensor_plan **out)
{
    LS__OPTIONS(ls_tensor_plan_options, set, options);
    if (out == NULL || net == NULL || inputs == NULL || input_count < 1 ||
        input_count > LS_CALL_TENSORS_MAX) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_tensor_plan_find: the module, its inputs or the place of the plan is "
                        "NULL, or %d inputs; give all three, and 1 to %d inputs",
                        input_count, LS_CALL_TENSORS_MAX);
    }
    *out = NULL;
    LS_TRY(ls_module_status(net));
    ls_tensor_plan *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return ls__fail(LS_ERR_MEMORY, "plan: no memory to find it");
    }
    const ls_status status = find_plan(p, &(pass){net, inputs, input_count, target, &set});
    if (status < 0) {
        ls_tensor_plan_free(p);
        return status;
    }
    *out = p;
    return LS_OK;
}

void ls_tensor_plan_free(ls_tensor_plan *plan)
{
    if (plan != NULL) {
        ls__graph_free(&plan->graph);
        free(plan);
    }
}

/* ---- what it says ---------------------------------------------------------------------------- */

static int axis_of(const ls_tensor_plan *p, const char *axis)
{
    const int a = axis != NULL ? ls__axes_find(&p->axes, axis, strlen(axis)) : -1;
    if (a < 0) {
        (void)ls__fail(LS_ERR_INVALID,
                       "ls_tensor_plan: the mesh has no axis \"%.40s\"; its first is "
                       "\"%s\"",
                       axis != NULL ? axis : "", p->axes.axis[0].name);
    }
    return a;
}

const char *ls_tensor_plan_words(const ls_tensor_plan *p, const char *axis)
{
    const int a = axis_of(p, axis);
    return a >= 0 ? p->words[a] : NULL;
}

bool ls_tensor_plan_sequence(const ls_tensor_plan *p, const char *axis)
{
    const int a = axis_of(p, axis);
    return a >= 0 && p->runs.sequence[a];
}

bool ls_tensor_plan_data(const ls_tensor_plan *p, const char *axis)
{
    const int a = axis_of(p, axis);
    return a >= 0 && p->runs.data[a];
}

ls_placement ls_tensor_plan_placement(const ls_tensor_plan *p, int i, const char *axis)
{
    const int a = axis_of(p, axis);
    return a >= 0 && i >= 0 && i < p->graph.params
               ? ls__placement_public(p->runs.param[i].way[a].in[0])
               : LS_UNPLACED;
}

double ls_tensor_plan_seconds(const ls_tensor_plan *p)
{
    return p->runs.seconds;
}

double ls_tensor_plan_work_seconds(const ls_tensor_plan *p)
{
    return p->runs.work;
}

double ls_tensor_plan_any_seconds(const ls_tensor_plan *p)
{
    return p->any;
}
