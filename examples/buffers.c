/* See buffers.h. The state visitor shows parameters and buffers alike; what has no parameter's name
 * is a buffer. */
#include "buffers.h"

#include <stdlib.h>
#include <string.h>

typedef struct names {
    ls_param *params;
    int count;
    int at; /* the next parameter the visitor may show: both go in order of addition */
} names;

static bool is_parameter(names *n, const char *name)
{
    for (int i = 0; i < n->count; i++) {
        int j = (n->at + i) % n->count;
        if (strcmp(n->params[j].name, name) == 0) {
            n->at = j + 1;
            return true;
        }
    }
    return false;
}

static ls_status share_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++) {
        count *= tensor->local[i];
    }
    if (is_parameter(self, name)) {
        return LS_OK;
    }
    return ls_broadcast(ls_world(), tensor->data, count, tensor->dtype, 0,
                        LS_OPTIONS(ls_collective_options, .tag = "buffers"), NULL);
}

static ls_status leave_int64(void *self, const char *name, int64_t *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static ls_status leave_float64(void *self, const char *name, double *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

ls_status buffers_share(ls_module *module)
{
    names n = {.count = ls_module_param_count(module)};
    n.params = calloc((size_t)n.count + 1, sizeof *n.params);
    if (!n.params) {
        return LS_ERR_MEMORY;
    }
    (void)ls_module_params(module, n.params, n.count);
    const ls_state_visitor visitor = {&n, share_tensor, leave_int64, leave_float64};
    ls_status status = ls_module_state(module, "", &visitor);
    free(n.params);
    return status;
}
