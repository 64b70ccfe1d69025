/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of ls_tensor_parallel: words PATH=ROLE, which parameters each names, and cutting them.
 * All words are checked before the first parameter is cut. */
#include <stdio.h>
#include <string.h>

#include "autograd/observers.h"
#include "autograd/param.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/options.h"
#include "base/runtime.h"
#include "nn/parallel.h"
#include "placement/inputs.h"
#include "tensor/placement.h"

#define GROUPS_MAX 8 /* of a fused projection */

typedef enum role_kind { COLUMN, ROW, SHARD, SEQUENCE } role_kind;

typedef struct role {
    role_kind kind;
    int dim, groups, heads;
} role;

typedef struct planning {
    ls_module *net; /* to which the paths of the plan belong */
    ls__parallel how;
    int parts;        /* ranks of the axis */
    const char *word; /* the present one */
    int word_bytes, path_bytes;
    role role;
    int matches; /* parameters that it names */
    bool cutting;
    ls_tensor **cut; /* [params]: those that some word cuts */
    int cut_count, params;
} planning;

static ls_status refuse(const planning *p, const char *why)
{
    return ls__fail(LS_ERR_INVALID, "tensor_parallel: \"%.*s\" in the plan of %s: %s",
                    p->word_bytes, p->word, p->net->cls->name, why);
}

/* ---- words -------------------------------------------------------------------------------- */

/* Whether `name` fits the path up to `end`, in which * is any run of letters without a dot. */
static bool fits(const char *path, const char *end, const char *name)
{
    const char *star = NULL, *retry = NULL;
    while (*name != '\0') {
        if (path < end && *path == '*') {
            star = path++, retry = name;
        } else if (path < end && *path == *name) {
            path++, name++;
        } else if (star != NULL && *retry != '.') {
            path = star + 1, name = ++retry;
        } else {
            return false;
        }
    }
    while (path < end && *path == '*') {
        path++;
    }
    return path == end;
}

static ls_status read_role(planning *p)
{
    char text[40];
    const char *at = p->word + p->path_bytes + 1;
    const int bytes = p->word_bytes - p->path_bytes - 1;
    role *r = &p->role;
    int end = 0;
    *r = (role){.groups = 1};
    (void)snprintf(text, sizeof text, "%.*s", bytes > 0 ? bytes : 0, at);
    const bool short_enough = bytes > 0 && bytes < (int)sizeof text;
    if (strcmp(text, "column") == 0 || strcmp(text, "vocab") == 0) {
        r->kind = COLUMN;
    } else if (sscanf(text, "column(%d)%n", &r->groups, &end) == 1 && end == bytes) {
        r->kind = COLUMN;
    } else if (sscanf(text, "column(heads=%d)%n", &r->heads, &end) == 1 && end == bytes) {
        r->kind = COLUMN;
    } else if (strcmp(text, "row") == 0) {
        r->kind = ROW;
    } else if (strcmp(text, "sequence") == 0) {
        r->kind = SEQUENCE;
    } else if ((sscanf(text, "shard(%d)%n", &r->dim, &end) == 1 && end == bytes) ||
               (sscanf(text, "shard(%d,%d)%n", &r->dim, &r->groups, &end) == 2 && end == bytes)) {
        r->kind = SHARD;
    } else {
        end = -1;
    }
    return end >= 0 && short_enough && r->groups > 0 && r->groups <= GROUPS_MAX && r->dim >= 0 &&
                   r->heads >= 0
               ? LS_OK
               : refuse(p,
                        "give PATH=ROLE, with a role of column, column(N), column(heads=N), row, "
                        "shard(D), shard(D,N), vocab or sequence");
}

/* ---- parameters --------------------------------------------------------------------------- */

/* The dimension along which the role cuts a parameter; -1: it stays whole. */
static int dim_of(const planning *p, const ls_tensor *param)
{
    const bool shared = p->role.heads > 0 && p->role.heads % p->parts != 0;
    switch (p->role.kind) {
    case COLUMN:
        return shared ? -1 : 0;
    case ROW:
        return ls_ndim(param) > 1 ? 1 : -1;
    case SHARD:
        return p->role.dim;
    case SEQUENCE:
        break;
    }
    return -1;
}

/* This rank's share of the dimension, of each part alike. */
static void groups_of(const planning *p, const ls_tensor *param, int dim, int64_t *groups)
{
    for (int i = 0; i < p->role.groups; i++) {
        groups[i] = ls_size(param, dim) / p->role.groups;
    }
}

/* Of a parameter that the role cuts: once, and as ls_tensor_shard will take it. */
static ls_status check_cut(planning *p, const char *name, ls_tensor *param, int dim)
{
    char why[240];
    int64_t groups[GROUPS_MAX];
    for (int i = 0; i < p->cut_count; i++) {
        if (p->cut[i] == param) {
            (void)snprintf(why, sizeof why,
                           "parameter %.100s is cut by a word before it; name it once", name);
            return refuse(p, why);
        }
    }
    LS_ASSERT(p->cut_count < p->params);
    p->cut[p->cut_count++] = param;
    groups_of(p, param, dim, groups);
    return ls__tensor_shard_check(param, p->how.axis, dim, groups, p->role.groups);
}

static ls_status check_param(planning *p, const char *name, ls_tensor *param)
{
    char why[240];
    const int dim = dim_of(p, param), heads = p->role.heads;
    const int64_t parts = (int64_t)p->parts * p->role.groups;
    if (ls__param_observer(param) != NULL || ls_grad(param) != NULL) {
        return ls__fail(LS_ERR_STATE,
                        "tensor_parallel: parameter %.100s %s; cut the model before ls_ddp_new and "
                        "the first step",
                        name, ls_grad(param) != NULL ? "has a gradient" : "is wrapped");
    }
    if (dim >= ls_ndim(param)) {
        (void)snprintf(why, sizeof why, "parameter %.100s has %d dimensions", name, ls_ndim(param));
        return refuse(p, why);
    }
    if (dim >= 0 && ls_size(param, dim) % parts != 0) {
        (void)snprintf(why, sizeof why,
                       "dimension %d of parameter %.100s is %lld, and axis %s has %d ranks; give "
                       "sizes that %lld divides",
                       dim, name, (long long)ls_size(param, dim), p->how.axis, p->parts,
                       (long long)parts);
        return refuse(p, why);
    }
    if (heads > 0 &&
        (ls_size(param, 0) % heads != 0 || (heads % p->parts != 0 && p->parts % heads != 0))) {
        (void)snprintf(why, sizeof why,
                       "parameter %.100s has %lld rows for %d heads and axis %s %d ranks; one must "
                       "divide the other",
                       name, (long long)ls_size(param, 0), heads, p->how.axis, p->parts);
        return refuse(p, why);
    }
    return dim >= 0 ? check_cut(p, name, param, dim) : LS_OK;
}

static ls_status cut_param(const planning *p, ls_tensor *param)
{
    int64_t groups[GROUPS_MAX];
    const int dim = dim_of(p, param);
    if (dim >= 0) {
        groups_of(p, param, dim, groups);
        return ls_tensor_shard(param, p->how.axis, dim, groups, p->role.groups);
    }
    const bool shares = p->how.sequence && p->role.kind != COLUMN;
    return shares ? ls_place(param, p->how.axis, LS_REPLICATED) : LS_OK;
}

/* Parameters of a module whose path fits, or which fit themselves. */
static ls_status visit(planning *p, ls_module *m, const char *path, bool whole)
{
    char name[LS__MODULE_DEPTH_MAX * (LS__MODULE_NAME_MAX + 1)];
    for (int i = 0; i < m->entries->count; i++) {
        const ls__entry *at = &m->entries->list[i];
        (void)snprintf(name, sizeof name, "%s%s%s", path, *path != '\0' ? "." : "", at->name);
        const bool named = fits(p->word, p->word + p->path_bytes, name);
        if (at->kind == LS__ENTRY_CHILD) {
            LS_TRY(visit(p, at->child, name, named));
            if (named && p->cutting) {
                at->child->entries->parallel.heads = p->role.heads % p->parts ? p->role.heads : 0;
            }
        } else if (at->kind == LS__ENTRY_PARAM && (whole || named)) {
            p->matches++;
            LS_TRY(p->cutting ? cut_param(p, at->tensor) : check_param(p, name, at->tensor));
        }
    }
    return LS_OK;
}

static ls_status refuse_path(const planning *p)
{
    ls_param first = {.name = "none"};
    char why[240];
    (void)ls_module_params(p->net, &first, 1);
    (void)snprintf(why, sizeof why,
                   "its path names no parameter of the model; the first of them is %.100s",
                   first.name);
    return refuse(p, why);
}

static ls_status run_word(planning *p)
{
    p->path_bytes = (int)strcspn(p->word, "= \n");
    p->matches = 0;
    LS_TRY(read_role(p));
    LS_TRY(visit(p, p->net, "", false));
    return p->matches > 0 ? LS_OK : refuse_path(p);
}

static ls_status run_plan(planning *p, ls_module *net, const char *plan)
{
    p->net = net;
    for (const char *at = plan + strspn(plan, " \n"); *at != '\0'; at += strspn(at, " \n")) {
        p->word = at;
        p->word_bytes = (int)strcspn(at, " \n");
        LS_TRY(run_word(p));
        at += p->word_bytes;
    }
    return LS_OK;
}

/* The plans of the uppermost classes that carry one; *found counts them. */
static ls_status run_classes(planning *p, ls_module *m, int *found)
{
    if (LS__CLASS_HAS(m->cls, plan)) {
        ++*found;
        return run_plan(p, m, m->cls->plan);
    }
    for (int i = 0; i < ls_module_child_count(m); i++) {
        LS_TRY(run_classes(p, ls_module_child_at(m, i), found));
    }
    return LS_OK;
}

static ls_status run(planning *p, ls_module *net, const char *plan)
{
    int found = 0;
    if (plan != NULL && plan[strspn(plan, " \n")] == '\0') {
        return ls__fail(LS_ERR_INVALID, "tensor_parallel: the plan is empty; give words PATH=ROLE, "
                                        "or NULL for the plans of the classes");
    }
    if (plan != NULL) {
        return run_plan(p, net, plan);
    }
    LS_TRY(run_classes(p, net, &found));
    return found > 0 ? LS_OK
                     : ls__fail(LS_ERR_INVALID,
                                "tensor_parallel: the class %s carries no plan; give one in the "
                                "options",
                                net->cls->name);
}

/* ---- the call ----------------------------------------------------------------------------- */

static ls_status check_plan(planning *p, ls_module *net, const char *plan)
{
    const ls__env *env = ls__self.runtime->env;
    p->params = ls_module_param_count(net);
    const size_t bytes = (size_t)(p->params + 1) * sizeof(ls_tensor *);
    p->cut = env->allocate(env, bytes);
    if (p->cut == NULL) {
        return ls__fail(LS_ERR_MEMORY, "tensor_parallel: no memory");
    }
    const ls_status status = run(p, net, plan);
    env->release(env, p->cut, bytes);
    return status;
}

static bool is_cut(const ls_tensor *param, const char *axis)
{
    const ls_placement place = ls_placement_of(param, axis);
    return place != LS_INVARIANT && place != LS_REPLICATED && place != LS_UNPLACED;
}

/* A layer's own `heads` stay. Returns whether the module cuts. */
static bool mark(ls_module *m, const ls__parallel *how)
{
    const int heads = m->entries->parallel.heads;
    bool cuts = heads > 0;
    for (int i = 0; i < m->entries->count; i++) {
        const ls__entry *at = &m->entries->list[i];
        cuts |= at->kind == LS__ENTRY_PARAM && is_cut(at->tensor, how->axis);
        cuts |= at->kind == LS__ENTRY_CHILD && mark(at->child, how);
    }
    m->entries->parallel = *how;
    m->entries->parallel.heads = heads;
    m->entries->parallel.cuts = cuts;
    return cuts;
}

/* Before the first forward pass of the model. */
static ls_status compare_inputs(void *arg, ls_module *net, ls_tensor **inputs, int count,
                                ls_tensor **outputs, int output_count)
{
    (void)arg, (void)outputs, (void)output_count;
    ls__parallel *p = &net->entries->parallel;
    ls__axes_in_force *axes;
    if (ls__axis_find(p->axis, "tensor_parallel", &axes) != p->number) {
        return LS_OK; /* its layers refuse to run */
    }
    ls_hook_free(p->compares);
    p->compares = NULL;
    return ls__inputs_compare(axes, p->number, inputs, count, "tensor_parallel");
}

ls_status ls_tensor_parallel(ls_module *net, const ls_tensor_parallel_options *options)
{
    LS__OPTIONS(ls_tensor_parallel_options, given, options);
    ls__axes_in_force *axes;
    LS_TRY(ls_module_status(net));
    const int a = ls__axis_find(given.axis, "tensor_parallel", &axes);
    if (a < 0) {
        return ls__self.status;
    }
    if (ls__is_parallel(net)) {
        return ls__fail(LS_ERR_STATE, "tensor_parallel: the model is cut already, along axis %s",
                        net->entries->parallel.axis);
    }
    planning p = {.parts = axes->axis[a].size,
                  .how = {.number = a,
                          .ranks = axes->axis[a].size,
                          .rank = axes->axis[a].coordinate,
                          .sequence = given.sequence,
                          .keep_gathered = given.keep_gathered}};
    memcpy(p.how.axis, axes->axis[a].name, sizeof p.how.axis);
    LS_TRY(check_plan(&p, net, given.plan));
    if (p.parts > 1) {
        p.cutting = true;
        LS_TRY(run(&p, net, given.plan));
        (void)mark(net, &p.how);
        net->entries->parallel.compares = ls_forward_pre_hook_new(net, compare_inputs, NULL);
        LS_TRY(net->entries->parallel.compares != NULL ? LS_OK : ls__self.status);
    }
    return LS_OK;
}
