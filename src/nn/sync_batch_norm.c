/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm over the ranks of a group (torch.nn.SyncBatchNorm): makes the exchange that
 * tensor/batch_norm_sync.c asks for, one all_gather, and gives it to the layers of a model.
 *
 * All layers share one duplicate of the user's group. Its operations run in the order of the graph,
 * forward and backward, which is the same on all ranks; gradients' buckets, which start as they
 * become full, have another group. */
#include <string.h>

#include "base/assert.h"
#include "nn/batch_norm.h"

typedef struct exchange {
    ls__norm_sync base;
    ls_group *group; /* its own */
} exchange;

static ls_status gather(ls__norm_sync *sync, const double *in, double *all, int64_t count,
                        const char *what)
{
    sync->begun++;
    return ls_all_gather(((exchange *)sync)->group, in, all, count, LS_FLOAT64,
                         LS_OPTIONS(ls_collective_options, .tag = what), NULL);
}

/* Runs when the last layer, or the last graph that is still due for backward, is gone. */
static void exchange_fini(ls__storage *storage)
{
    (void)ls_group_free(((exchange *)storage->data)->group);
}

/* Collective. NULL with the error set. */
static ls__norm_sync *exchange_new(ls_group *group)
{
    ls__tensors *tensors = ls__tensors_get("sync_batch_norm_convert");
    ls__storage *storage =
        tensors != NULL ? ls__storage_new(&tensors->host, sizeof(exchange)) : NULL;
    if (storage == NULL) {
        (void)ls_group_abort(group, ls_error_message()); /* the others would wait */
        return NULL;
    }
    exchange *e = storage->data;
    *e = (exchange){.base = {.self = storage, .ranks = ls_group_size(group), .gather = gather}};
    if (ls_group_new(group, NULL, 0, "batch norm", &e->group) < 0) {
        ls__storage_unref(storage);
        return NULL;
    }
    storage->fini = exchange_fini;
    return &e->base;
}

void ls__norm_sync_abort(ls__norm_sync *sync, const char *why)
{
    if (sync != NULL) {
        (void)ls_group_abort(((exchange *)sync)->group, why);
    }
}

/* After ls_finalize groups and storages are gone, and only the pointer is left. */
void ls__batch_norm_unsync(ls__batch_norm_layer *layer)
{
    if (layer->sync != NULL && layer->base.entries->guest.runtime != NULL) {
        ls__storage_unref(layer->sync->self);
    }
    layer->sync = NULL;
}

/* ---- the tree ------------------------------------------------------------------------------ */

/* The recursions are bounded by LS__MODULE_DEPTH_MAX. */
ls__norm_sync *ls__norm_sync_in(ls_module *module)
{
    ls__norm_sync *found =
        module->cls == &ls__batch_norm_class ? ((ls__batch_norm_layer *)module)->sync : NULL;
    for (int i = 0; found == NULL && i < ls_module_child_count(module); i++) {
        found = ls__norm_sync_in(ls_module_child_at(module, i));
    }
    return found;
}

/* `sync` NULL: back to this rank's statistics. */
static void give(ls_module *module, ls__norm_sync *sync)
{
    if (module->cls == &ls__batch_norm_class) {
        ls__batch_norm_layer *layer = (ls__batch_norm_layer *)module;
        ls__batch_norm_unsync(layer);
        layer->sync = sync;
        if (sync != NULL) {
            ls__storage_ref(sync->self);
        }
    }
    for (int i = 0; i < ls_module_child_count(module); i++) {
        give(ls_module_child_at(module, i), sync);
    }
}

/* Whether the module is in a wrapper or is one: a wrapper's child has no name of its own. */
static bool is_wrapped(const ls_module *module)
{
    for (; module != NULL; module = module->entries->parent) {
        const char *name = ls_module_child_name(module, 0);
        if (name != NULL && name[0] == '\0') {
            return true;
        }
    }
    return false;
}

/* One rank has nobody to ask, so its layers stay as they are. */
ls_status ls_sync_batch_norm_convert(ls_module *net, ls_group *group)
{
    if (net == NULL || group == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "sync_batch_norm_convert: the %s is NULL; give a model and the group of "
                        "its ranks (ls_world())",
                        net == NULL ? "module" : "group");
    }
    if (is_wrapped(net)) {
        return ls__fail(LS_ERR_STATE,
                        "sync_batch_norm_convert: the model is wrapped already; convert it before "
                        "ls_ddp_new");
    }
    ls__norm_sync *sync = NULL;
    if (ls_group_size(group) > 1 && (sync = exchange_new(group)) == NULL) {
        return ls__self.status;
    }
    give(net, sync);
    if (sync != NULL) {
        ls__storage_unref(sync->self); /* the layers hold it now */
    }
    return LS_OK;
}
