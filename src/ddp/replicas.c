/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas: rank 0's state becomes that of all ranks when a module is wrapped, and hashes tell
 * whether the replicas are still equal later. A parameter that is summed over a smaller group, or
 * frozen and divided, becomes that of the rank 0 of the ranks that share it. */
#include "comm/api/control.h"

#include <stdio.h>
#include <string.h>

#include <lockstep/ddp.h>

#include "autograd/param.h"
#include "base/axes.h"
#include "base/runtime.h"
#include "base/size.h"
#include "comm/backend/plugin_group.h"
#include "comm/diagnose/fail.h"
#include "ddp/wrapper.h"
#include "dist/agree.h"
#include "kernel/reduce/reduce.h"
#include "nn/module.h"
#include "reduce/reducer.h"
#include "tensor/placement.h"
#include "tensor/shape.h"

/* ---- rank 0's state on all ranks ------------------------------------------------------------- */

/* The passes of a walk over the state; see ls__replicas_broadcast. */
typedef enum walk_pass { LIST, MEASURE, PACK, UNPACK } walk_pass;

/* The memory of one group's part of the state. */
typedef struct bundle {
    ls_group *group; /* the reducer's */
    char *memory;    /* registered, [bytes] */
    size_t bytes;    /* grows while the walk measures; afterwards where the walk stands */
} bundle;

/* The argument of the visitor's functions. */
typedef struct broadcaster {
    const ls__ddp *d;
    int next, next_frozen; /* of its parameters, which come in the order of the visitor */
    int *of_frozen;        /* [frozen_count] the bundle of each */
    walk_pass pass;
    ls__facts *facts; /* of LIST: the sizes of what is alike on all ranks */
    int bundle_count; /* those of the reducer's domains come first */
    bundle bundles[LS__DOMAINS_MAX + LS__DDP_GROUPS_MAX];
} broadcaster;

/* Whether the walk is at one of the parameters, which may show several boxes; *next is the one
 * after it. */
static bool is_at(const ls_param *params, int count, int *next, const char *name)
{
    *next += *next < count && strcmp(name, params[*next].name) == 0;
    return *next > 0 && strcmp(name, params[*next - 1].name) == 0;
}

/* 0 for buffers and everything else that all ranks have alike. */
static int bundle_of(broadcaster *b, const char *name)
{
    const ls__ddp *d = b->d;
    if (is_at(d->params, d->param_count, &b->next, name)) {
        return ls__reducer_param_domain(d->reducer, b->next - 1);
    }
    return is_at(d->frozen, d->frozen_count, &b->next_frozen, name)
               ? b->of_frozen[b->next_frozen - 1]
               : 0;
}

/* One box of a tensor, or number, which every rank meets in the same place of its walk. `fact`
 * names it among all that a rank meets. */
static ls_status meet(broadcaster *b, const char *name, const char *fact, void *data, size_t bytes)
{
    const int index = bundle_of(b, name);
    bundle *to = &b->bundles[index];
    const size_t at = to->bytes;
    if (b->pass == LIST && index == 0) {
        char text[48];
        (void)snprintf(text, sizeof text, "%zu bytes", bytes);
        ls__facts_text(b->facts, fact, text, "build the same model on every rank");
    }
    to->bytes += ls__round_up(bytes, LS__CACHE_LINE);
    if (bytes > 0 && b->pass == PACK && ls_group_rank(to->group) == 0) {
        ls__elements_copy(to->memory + at, data, bytes);
    }
    if (bytes > 0 && b->pass == UNPACK && ls_group_rank(to->group) > 0) {
        ls__elements_copy(data, to->memory + at, bytes);
    }
    return LS_OK;
}

/* Each rank shows its replica, of the tensor or of the part of it that is this rank's. */
static ls_status meet_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    int64_t count = 1;
    size_t bytes = 0;
    char fact[1024];
    ls_shape first = {.ndim = tensor->ndim};
    memcpy(first.dim, tensor->start, sizeof first.dim);
    (void)snprintf(fact, sizeof fact, "%.700s from %s on", name, ls__shape_print(first).text);
    for (int i = 0; i < tensor->ndim; i++) {
        if (!ls__mul_int64(count, tensor->local[i], &count)) {
            return ls__fail(LS_ERR_LIMIT, "ddp: %s has too many elements", name);
        }
    }
    if (!ls__bytes_of(count, ls_dtype_size(tensor->dtype), &bytes)) {
        return ls__fail(LS_ERR_LIMIT, "ddp: %s has too many elements", name);
    }
    const bool is_part =
        memcmp(tensor->local, tensor->global, (size_t)tensor->ndim * sizeof tensor->local[0]) != 0;
    return meet(self, name, is_part ? fact : name, tensor->data, bytes);
}

static ls_status meet_int64(void *self, const char *name, int64_t *value)
{
    return meet(self, name, name, value, sizeof *value);
}

static ls_status meet_float64(void *self, const char *name, double *value)
{
    return meet(self, name, name, value, sizeof *value);
}

/* One walk over the module, from the start of every bundle. */
static ls_status walk(broadcaster *b, walk_pass pass)
{
    const ls_state_visitor visitor = {.size = sizeof visitor,
                                      .self = b,
                                      .tensor = meet_tensor,
                                      .int64 = meet_int64,
                                      .float64 = meet_float64};
    b->pass = pass;
    b->next = 0;
    b->next_frozen = 0;
    for (int i = 0; i < b->bundle_count; i++) {
        b->bundles[i].bytes = 0;
    }
    return ls_module_state(b->d->inner, "", &visitor);
}

/* A walk that has succeeded before. */
static void list_state(ls__facts *to, const void *arg)
{
    broadcaster *b = *(broadcaster *const *)arg;
    b->facts = to;
    (void)walk(b, LIST);
}

/* Parameters were compared when the reducer was made, buffers and frozen parameters were not. */
static ls_status check_alike(broadcaster *b)
{
    const ls__agree_peers peers = {.group = b->bundles[0].group, .who = "ddp"};
    const ls_status status = ls__agree(&peers, list_state, &b);
    if (status == LS_ERR_MISMATCH) { /* all ranks have found it */
        ls__group_fail(peers.group, status, ls_error_message());
    }
    return status;
}

/* The pack lies in memory of the program. */
static ls_status send_bundle(const bundle *part)
{
    const ls_collective_options *options = LS_OPTIONS(ls_collective_options, .tag = "the model");
    const int64_t bytes = (int64_t)part->bytes;
    return ls__group_on_host(part->group)
               ? ls_broadcast(part->group, part->memory, bytes, LS_UINT8, 0, options, NULL)
               : ls__control_broadcast(part->group, part->memory, bytes, LS_UINT8, 0, options);
}

/* One operation for each group. */
static ls_status broadcast_bundles(broadcaster *b)
{
    for (int i = 0; i < b->bundle_count; i++) {
        bundle *part = &b->bundles[i];
        void *memory = NULL;
        if (part->bytes > 0) {
            LS_TRY(ls__group_memory(part->group, part->bytes, &memory));
        }
        part->memory = memory;
    }
    LS_TRY(walk(b, PACK));
    for (int i = 0; i < b->bundle_count; i++) {
        LS_TRY(b->bundles[i].bytes > 0 ? send_bundle(&b->bundles[i]) : LS_OK);
    }
    return walk(b, UNPACK);
}

/* A frozen parameter is in no domain of the reducer's. */
static ls_status list_bundles(broadcaster *b, ls__ddp *d)
{
    const int domains = ls__reducer_domains(d->reducer);
    b->bundle_count = domains;
    for (int i = 0; i < domains; i++) {
        b->bundles[i].group = ls__reducer_domain_group(d->reducer, i);
    }
    for (int i = 0; i < d->frozen_count; i++) {
        ls_group *group;
        LS_TRY(ls__ddp_axes_copies(d, &d->frozen[i], &group));
        int at = group == NULL ? 0 : domains;
        while (at > 0 && at < b->bundle_count && b->bundles[at].group != group) {
            at++;
        }
        if (at == b->bundle_count) {
            b->bundles[b->bundle_count++].group = group;
        }
        b->of_frozen[i] = at;
    }
    return LS_OK;
}

static ls_status send_all(broadcaster *b, ls__ddp *d)
{
    LS_TRY(list_bundles(b, d));
    LS_TRY(walk(b, MEASURE));
    LS_TRY(check_alike(b));
    return broadcast_bundles(b);
}

/* Measures, packs, broadcasts, unpacks. The packs are freed before the first gradient is written,
 * so they do not raise the largest amount of memory that training takes. */
ls_status ls__replicas_broadcast(ls__ddp *d)
{
    const size_t bytes = ((size_t)d->frozen_count + 1) * sizeof(int);
    if (ls_group_size(ls__reducer_group(d->reducer)) == 1) {
        return LS_OK;
    }
    broadcaster b = {.d = d, .of_frozen = d->env->allocate(d->env, bytes)};
    if (b.of_frozen == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for %d parameters", d->frozen_count);
    }
    const ls_status status = send_all(&b, d);
    for (int i = 0; i < b.bundle_count; i++) {
        if (b.bundles[i].memory != NULL) {
            (void)ls_group_dealloc(b.bundles[i].group, b.bundles[i].memory);
        }
    }
    d->env->release(d->env, b.of_frozen, bytes);
    return status;
}

/* ---- are they equal? ------------------------------------------------------------------------- */

bool ls__ddp_compares(const ls__ddp *d)
{
    return !d->local && d->check_every > 0 &&
           ls__reducer_figures(d->reducer)->reductions % (uint64_t)d->check_every == 0;
}

/* A rank's description of its module: the hash of all of it and, if parameters are sharded, a hash
 * for each set of axes along which some are, and where the rank stands. */
typedef struct show {
    uint64_t all, of[1 << LS__AXES_MAX], at[LS__AXES_MAX];
} show;

static void make_show(const ls_runtime *runtime, ls_module *module, show *out)
{
    int count = 0; /* 2 KiB a rank, which are few next to the model that is read for them */
    const ls__axes_in_force *axes = runtime->axes;
    const ls__module_item *items = ls__module_items(module, &count);
    *out = (show){.all = ls_module_hash(module)};
    out->of[0] = axes == NULL ? out->all : 0;
    for (int i = 0; axes != NULL && items != NULL && i < count; i++) {
        uint64_t *hash = &out->of[ls__place_parts(axes, ls__param_placed(items[i].value))];
        *hash = ls__module_item_hash(*hash, &items[i]);
    }
    for (int a = 0; axes != NULL && a < axes->count; a++) {
        out->at[a] = (uint64_t)axes->axis[a].coordinate;
    }
}

/* Whether both have the same parts along the axes of the set. */
static bool is_beside(const show *a, const show *b, unsigned set)
{
    bool same = true;
    for (int i = 0; set >> i != 0; i++) {
        same = same && (!(set >> i & 1) || a->at[i] == b->at[i]);
    }
    return same;
}

/* Whether a rank's copies equal those of the first rank that has the same parts. */
static bool is_first_again(const show *all, int rank)
{
    bool same = true;
    for (unsigned s = 0; s < sizeof all->of / sizeof all->of[0]; s++) {
        int first = 0;
        while (!is_beside(&all[first], &all[rank], s)) {
            first++;
        }
        same = same && all[first].of[s] == all[rank].of[s];
    }
    return same;
}

/* LS_OK if all ranks could read their module. */
static ls_status check_shown(const show *all, int size, int rank)
{
    for (int i = 0; i < size; i++) {
        if (all[i].all == 0 && i != rank) {
            return ls__fail(LS_ERR_STATE,
                            "ls_replicas_identical: the parameters of rank %d of the group cannot "
                            "be read; its error says why",
                            i);
        }
    }
    return LS_OK;
}

/* Collective; counts the ranks whose hashes are those of the first ranks. A wrapper has the hash of
 * its module, because the names of both are the same. */
ls_status ls_replicas_identical(ls_module *module, ls_group *group, int *identical, uint64_t *hash)
{
    ls_runtime *runtime = ls__runtime_get("ls_replicas_identical");
    if (runtime == NULL) {
        return ls__self.status;
    }
    if (module == NULL || group == NULL || identical == NULL || hash == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_replicas_identical: an argument is NULL; give a "
                                        "module, its group, and places for both results");
    }
    const int size = ls_group_size(group);
    const size_t bytes = (size_t)size * sizeof(show);
    show own, *all = runtime->env->allocate(runtime->env, bytes);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_replicas_identical: no memory for %d hashes", size);
    }
    make_show(runtime, module, &own);
    char why[LS__MESSAGE_MAX];
    const ls_status unread = own.all == 0 ? ls_error_status() : LS_OK;
    memcpy(why, ls_error_message(), sizeof why);
    ls_status status = ls__control_all_gather(group, &own, all, sizeof own, LS_UINT8, NULL);
    if (status == LS_OK) {
        status =
            unread < 0 ? ls__fail_again(unread, why) : check_shown(all, size, ls_group_rank(group));
    }
    if (status == LS_OK) {
        *hash = all[0].all;
        *identical = 0;
        for (int i = 0; i < size; i++) {
            *identical += is_first_again(all, i);
        }
    }
    runtime->env->release(runtime->env, all, bytes);
    return status;
}
