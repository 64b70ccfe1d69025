/* SPDX-License-Identifier: Apache-2.0 */
/* See finite.h. A step whose gradient is not finite ends a run before the weights become so; a step
 * of a finite gradient can overflow, too. */
#include "finite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common.h"

typedef struct odd_value { /* the first one */
    bool found;
    char name[256];
    int64_t element, count; /* of a tensor */
} odd_value;

static bool is_finite(const ls_state_tensor *tensor, int64_t i)
{
    switch (tensor->dtype) {
    case LS_FLOAT32:
        return isfinite(((const float *)tensor->data)[i]);
    case LS_FLOAT64:
        return isfinite(((const double *)tensor->data)[i]);
    case LS_BFLOAT16: /* all bits of the exponent are set */
        return (((const uint16_t *)tensor->data)[i] & 0x7f80u) != 0x7f80u;
    case LS_FLOAT16:
        return (((const uint16_t *)tensor->data)[i] & 0x7c00u) != 0x7c00u;
    default:
        return true;
    }
}

static ls_status look_at_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    odd_value *odd = self;
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++) {
        count *= tensor->local[i];
    }
    for (int64_t i = 0; i < count && !odd->found; i++) {
        if (!is_finite(tensor, i)) {
            *odd = (odd_value){.found = true, .element = i, .count = count};
            (void)snprintf(odd->name, sizeof odd->name, "%s", name);
        }
    }
    return LS_OK;
}

static ls_status pass_int64(void *self, const char *name, int64_t *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static ls_status pass_float64(void *self, const char *name, double *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static odd_value first_odd(const ls_checkpoint_item *items, int count)
{
    odd_value odd = {.found = false};
    const ls_state_visitor visitor = {.size = sizeof visitor,
                                      .self = &odd,
                                      .tensor = look_at_tensor,
                                      .int64 = pass_int64,
                                      .float64 = pass_float64};
    for (int i = 0; i < count && !odd.found; i++) {
        must(items[i].state(items[i].object, items[i].prefix, &visitor));
    }
    return odd;
}

void must_be_finite(const ls_checkpoint_item *items, int count, const char *from)
{
    const odd_value odd = first_odd(items, count);
    if (odd.found) {
        give_up(EXIT_FAILURE,
                "%s: \"%s\" is not finite (element %lld of %lld here): the run that saved it "
                "had diverged, and training cannot go on from it. Give older weights (the folder "
                "of an older checkpoint counts if the newer ones are moved away), or start anew",
                from, odd.name, (long long)odd.element, (long long)odd.count);
    }
}

void must_end_finite(ls_module *net, int64_t step, ls_checkpoint *checkpoint)
{
    const odd_value mine = first_odd(&(ls_checkpoint_item)LS_ITEM("", net), 1);
    ls_bytes *all = NULL;
    must(ls_all_gather_bytes(ls_world(), &mine, sizeof mine,
                             LS_OPTIONS(ls_collective_options, .tag = "finite"), &all));
    for (int r = 0; r < ls_world_size(); r++) {
        const odd_value *odd = all[r].data;
        if (odd->found) {
            if (checkpoint != NULL) {
                (void)ls_checkpoint_wait(checkpoint);
            }
            give_up(EXIT_FAILURE,
                    "step %lld: \"%s\" is not finite on rank %d (element %lld of %lld there): "
                    "training has diverged, and nothing is exported. Give a lower --lr or "
                    "--weight-decay, or --clip, and start anew or from an older checkpoint",
                    (long long)step, odd->name, r, (long long)odd->element, (long long)odd->count);
        }
    }
    ls_bytes_free(all);
}
