/* SPDX-License-Identifier: Apache-2.0 */
/* Items whose numbers differ between ranks (ls_checkpoint_item.replicas): the walks see in their
 * place an item of another prefix, or one whose tensors are means. The rest of the library knows
 * only items whose copies are equal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "checkpoint/internal.h"
#include "comm/api/control.h"

#define PREFIX_MAX 4096

/* What stands for one item. */
typedef struct stand_in {
    ls_checkpoint_item of;
    const ls_checkpoint *checkpoint;
    const ls_state_visitor *to; /* of the walk under way */
    char prefix[PREFIX_MAX];
} stand_in;

/* ---- means ----------------------------------------------------------------------------------- */

static int64_t elements_of(const ls_state_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++) {
        count *= tensor->local[i]; /* of memory that exists */
    }
    return count;
}

/* float32 is added in float64, where n equal numbers have the sum n x and the mean x, exactly. */
static ls_status mean_of_floats(const stand_in *s, const char *name, const float *data,
                                int64_t count, void *out)
{
    const ls_collective_options options = ls__checkpoint_options_of(s->checkpoint, name);
    double *wide = malloc((size_t)count * sizeof *wide + 1);
    if (wide == NULL) {
        return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for the mean of \"%.200s\"", name);
    }
    for (int64_t i = 0; i < count; i++) {
        wide[i] = data[i];
    }
    const ls_status status =
        ls__control_all_reduce(s->checkpoint->group, wide, count, LS_FLOAT64, LS_AVG, &options);
    for (int64_t i = 0; i < count; i++) {
        ((float *)out)[i] = (float)wide[i];
    }
    free(wide);
    return status;
}

static ls_status mean(const stand_in *s, const char *name, const ls_state_tensor *tensor, void *out)
{
    const ls_collective_options options = ls__checkpoint_options_of(s->checkpoint, name);
    const int64_t count = elements_of(tensor);
    if (tensor->dtype == LS_FLOAT32) {
        return mean_of_floats(s, name, tensor->data, count, out);
    }
    memcpy(out, tensor->data, (size_t)count * ls_dtype_size(tensor->dtype));
    return ls__control_all_reduce(s->checkpoint->group, out, count, tensor->dtype, LS_AVG,
                                  &options);
}

static bool has_mean(ls_dtype dtype)
{
    return dtype == LS_FLOAT32 || dtype == LS_FLOAT64 || dtype == LS_BFLOAT16 ||
           dtype == LS_FLOAT16;
}

static ls_status show_mean_in(const stand_in *s, const char *name, const ls_state_tensor *tensor,
                              void *data)
{
    ls_state_tensor shown = *tensor;
    shown.data = data;
    LS_TRY(mean(s, name, tensor, data));
    return s->to->tensor(s->to->self, name, &shown);
}

static ls_status show_mean(void *self, const char *name, const ls_state_tensor *tensor)
{
    const stand_in *s = self;
    if (!has_mean(tensor->dtype)) {
        return s->to->tensor(s->to->self, name, tensor);
    }
    void *data = malloc((size_t)elements_of(tensor) * ls_dtype_size(tensor->dtype) + 1);
    if (data == NULL) {
        return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for the mean of \"%.200s\"", name);
    }
    const ls_status status = show_mean_in(s, name, tensor, data);
    free(data);
    return status;
}

static ls_status show_int64(void *self, const char *name, int64_t *value)
{
    const stand_in *s = self;
    return s->to->int64(s->to->self, name, value);
}

static ls_status show_float64(void *self, const char *name, double *value)
{
    const stand_in *s = self;
    return s->to->float64(s->to->self, name, value);
}

static ls_status show_optional(void *self, const char *name, double *value)
{
    const stand_in *s = self;
    return ls__visit_optional(s->to, name, value);
}

static ls_status mean_state(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    stand_in *s = object;
    const ls_state_visitor through = {.size = sizeof through,
                                      .self = s,
                                      .tensor = show_mean,
                                      .int64 = show_int64,
                                      .float64 = show_float64,
                                      .optional_float64 = show_optional};
    s->to = visitor;
    return s->of.state(s->of.object, prefix, &through);
}

/* ---- standing in ----------------------------------------------------------------------------- */

static ls_status set_prefix(stand_in *s)
{
    const ls_checkpoint *c = s->checkpoint;
    const char *prefix = s->of.prefix != NULL ? s->of.prefix : "";
    const int length = snprintf(s->prefix, sizeof s->prefix, "ranks.%d-of-%d%s%s", c->rank, c->size,
                                prefix[0] != '\0' ? "." : "", prefix);
    return length >= 0 && (size_t)length < sizeof s->prefix
               ? LS_OK
               : ls__fail(LS_ERR_LIMIT, "checkpoint: the prefix \"%.80s\" is longer than %d bytes",
                          prefix, PREFIX_MAX - 32);
}

/* What the walks see of an item. */
static ls_status stand_in_for(stand_in *s, bool saves, ls_checkpoint_item *out)
{
    *out = s->of;
    switch (s->of.replicas) {
    case LS_REPLICAS_EQUAL:
        return LS_OK;
    case LS_REPLICAS_EACH:
        out->prefix = s->prefix;
        return set_prefix(s);
    case LS_REPLICAS_MEAN:
        out->object = saves ? (void *)s : s->of.object;
        out->state = saves ? mean_state : s->of.state;
        return LS_OK;
    }
    return ls__fail(LS_ERR_INVALID,
                    "checkpoint: the item \"%.80s\" has replicas %d; give LS_REPLICAS_EQUAL, _EACH "
                    "or _MEAN",
                    s->of.prefix != NULL ? s->of.prefix : "", (int)s->of.replicas);
}

/* An item of an older header has no such field. Impossible sizes and missing functions are left to
 * the walk, which has words for them. */
static ls_status fill(const ls_checkpoint *c, const ls_checkpoint_item *items, int count,
                      bool saves, ls__stand_ins *out)
{
    const unsigned char *at = (const unsigned char *)items;
    for (int i = 0; i < count; i++) {
        stand_in *s = (stand_in *)out->memory + i;
        const size_t size = ls__struct_size(at);
        if (!ls__struct_size_fits(size)) {
            return LS_OK;
        }
        memcpy(&s->of, at, size < sizeof s->of ? size : sizeof s->of);
        s->of.size = sizeof s->of;
        s->checkpoint = c;
        LS_TRY(stand_in_for(s, saves && s->of.state != NULL, &out->made[i]));
        at += size;
    }
    out->items = out->made;
    return LS_OK;
}

ls_status ls__items_stand_in(const ls_checkpoint *c, const ls_checkpoint_item *items, int count,
                             bool saves, ls__stand_ins *out)
{
    *out = (ls__stand_ins){.items = items};
    out->made = calloc((size_t)count + 1, sizeof *out->made);
    out->memory = calloc((size_t)count + 1, sizeof(stand_in));
    const ls_status status =
        out->made != NULL && out->memory != NULL
            ? fill(c, items, count, saves, out)
            : ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for %d items", count);
    if (status < 0) {
        ls__stand_ins_free(out);
    }
    return status;
}

void ls__stand_ins_free(ls__stand_ins *s)
{
    free(s->made);
    free(s->memory);
    *s = (ls__stand_ins){0};
}
