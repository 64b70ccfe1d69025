/* Replicas: rank 0's state becomes that of all ranks when a module is wrapped, and hashes tell
 * whether the replicas are still equal later. */
#include "ddp/replicas.h"

#include <lockstep/ddp.h>

#include "base/runtime.h"
#include "base/size.h"

/* Behind the visitor's functions, which receive and send in place. */
typedef struct broadcaster {
    ls_group *group;
} broadcaster;

/* The whole tensor: each rank shows its replica. */
static ls_status broadcast_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    const broadcaster *b = self;
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++) {
        if (!ls__mul_int64(count, tensor->local[i], &count)) {
            return ls__fail(LS_ERR_LIMIT, "ddp: %s has too many elements", name);
        }
    }
    return ls_broadcast(b->group, tensor->data, count, tensor->dtype, 0,
                        LS_OPTIONS(ls_collective_options, .tag = name), NULL);
}

static ls_status broadcast_int64(void *self, const char *name, int64_t *value)
{
    const broadcaster *b = self;
    return ls_broadcast(b->group, value, 1, LS_INT64, 0,
                        LS_OPTIONS(ls_collective_options, .tag = name), NULL);
}

static ls_status broadcast_float64(void *self, const char *name, double *value)
{
    const broadcaster *b = self;
    return ls_broadcast(b->group, value, 1, LS_FLOAT64, 0,
                        LS_OPTIONS(ls_collective_options, .tag = name), NULL);
}

/* One broadcast for each tensor and number, in the order of the visitor, which is the same on all
 * ranks: make_reducer has compared their models before. */
ls_status ls__replicas_broadcast(ls_module *module, ls_group *group)
{
    broadcaster b = {group};
    const ls_state_visitor visitor = {.size = sizeof(ls_state_visitor),
                                      .self = &b,
                                      .tensor = broadcast_tensor,
                                      .int64 = broadcast_int64,
                                      .float64 = broadcast_float64};
    return ls_module_state(module, "", &visitor);
}

/* Collective; counts the ranks whose hash is that of rank 0. A wrapper has the hash of its module,
 * because the names of both are the same. */
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
    const size_t bytes = (size_t)size * sizeof(uint64_t);
    uint64_t *all = runtime->env->allocate(runtime->env, bytes);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_replicas_identical: no memory for %d hashes", size);
    }
    const uint64_t own = ls_module_hash(module);
    ls_status status = ls_all_gather(group, &own, all, 1, LS_INT64, NULL, NULL);
    if (status == LS_OK) {
        *hash = all[0];
        *identical = 0;
        for (int i = 0; i < size; i++) {
            *identical += all[i] == all[0];
        }
    }
    runtime->env->release(runtime->env, all, bytes);
    return status;
}
