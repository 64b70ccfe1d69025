/* SPDX-License-Identifier: Apache-2.0 */
/* The state visitor of modules: tensors first, then the state that classes keep beside them. The
 * names are those of PyTorch's state_dict, with the caller's prefix and a dot before them. */
#include "nn/module.h"

#include <string.h>

#include "base/options.h"
#include "base/text.h"
#include "tensor/fill.h"

#define STATE_NAME_MAX ((size_t)LS__MODULE_DEPTH_MAX * (LS__MODULE_NAME_MAX + 1))

/* The version changes even if the visitor only read: a graph that still needs the old values must
 * be refused when in doubt. */
static ls_status visit_tensor(const char *prefix, const ls__module_item *item,
                              const ls_state_visitor *visitor)
{
    char name[STATE_NAME_MAX];
    LS_TRY(ls__state_name(name, sizeof name, prefix, "", item->name));
    const ls_status sound = ls_tensor_status(item->value); /* the program may have freed it */
    if (sound < 0) {
        return ls__fail_within(sound, "state of %s", name);
    }
    ls__host_view view;
    ls__pool *on = NULL;
    int64_t from, count;
    char *at = ls__tensor_place(item->value, &on);
    if (at == NULL) {
        return ls__self.status;
    }
    const ls_dtype dtype = ls_dtype_of(item->value);
    ls__fill_here(item->value, &from, &count);
    LS_TRY(ls__host_view_open(on, at + (size_t)from * ls_dtype_size(dtype),
                              (size_t)count * ls_dtype_size(dtype), &view));
    const ls_status status =
        ls__fill_visit_range(item->value, dtype, view.data, from, count, name, visitor);
    ls__host_view_close(&view, true);
    ls__tensor_changed(item->value); /* a loading visitor may have written it */
    return status;
}

/* Visits the classes' own state, parents first. */
static ls_status visit_classes(ls_module *module, const char *prefix,
                               const ls_state_visitor *visitor)
{
    if (module->cls->state != NULL) {
        const ls__user_call user = ls__user_call_begin();
        const ls_status status = module->cls->state(module, prefix, visitor);
        LS_TRY(ls__user_call_check(&user, status, "state of the %s", module->cls->name));
    }
    for (int i = 0; i < module->entries->count; i++) {
        const ls__entry *at = &module->entries->list[i];
        if (at->kind == LS__ENTRY_CHILD) {
            char name[STATE_NAME_MAX];
            LS_TRY(ls__state_name(name, sizeof name, prefix, "", at->name));
            LS_TRY(visit_classes(at->child, name, visitor));
        }
    }
    return LS_OK;
}

/* A tensor that several modules share is visited once, under its first name. */
ls_status ls_module_state(ls_module *module, const char *prefix, const ls_state_visitor *visitor)
{
    int count = 0;
    LS_TRY(ls__visitor_check(visitor, __func__));
    const ls__module_item *items = ls__module_items(module, &count);
    if (items == NULL) {
        return ls__self.status;
    }
    for (int i = 0; i < count; i++) {
        LS_TRY(items[i].unsaved ? LS_OK : visit_tensor(prefix, &items[i], visitor));
    }
    return visit_classes(module, prefix ? prefix : "", visitor);
}
