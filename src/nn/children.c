/* SPDX-License-Identifier: Apache-2.0 */
/* Children of a module by number, and its items by dotted name.
 *
 *     "layers.0.fc1.weight"     the entry "layers" of the root, its entry "0", its entry "fc1",
 *                               whose entry "weight" is a parameter
 *
 * A wrapper keeps the wrapped module as a child without a name, which a search enters where it
 * finds nothing else; so names are the same with and without the wrapper. */
#include <string.h>

#include "base/error.h"
#include "nn/module.h"

/* ---- by number ---------------------------------------------------------------------------- */

/* Entry number i among the children only, or NULL. */
static const ls__entry *child_entry(const ls_module *module, int i)
{
    const int entries = module != NULL ? module->entries->count : 0;
    for (int at = 0; at < entries; at++) {
        const ls__entry *entry = &module->entries->list[at];
        if (entry->kind == LS__ENTRY_CHILD && i-- == 0) {
            return entry;
        }
    }
    return NULL;
}

int ls_module_child_count(const ls_module *module)
{
    int count = 0;
    for (int i = 0; module != NULL && i < module->entries->count; i++) {
        count += module->entries->list[i].kind == LS__ENTRY_CHILD;
    }
    return count;
}

/* Children only are counted; NULL beyond the last. */
ls_module *ls_module_child_at(const ls_module *module, int i)
{
    const ls__entry *entry = i >= 0 ? child_entry(module, i) : NULL;
    return entry != NULL ? entry->child : NULL;
}

const char *ls_module_child_name(const ls_module *module, int i)
{
    const ls__entry *entry = i >= 0 ? child_entry(module, i) : NULL;
    return entry != NULL ? entry->name : NULL;
}

ls_module *ls__module_wrapped(ls_module *module)
{
    while (module->entries->count == 1 && module->entries->list[0].name[0] == '\0') {
        module = module->entries->list[0].child;
    }
    return module;
}

/* ---- by name ------------------------------------------------------------------------------ */

/* Finds the entry whose name is name[length], in *module or in the module it wraps, which *module
 * then is. */
static const ls__entry *find_entry(const ls_module **module, const char *name, size_t length)
{
    for (const ls_module *at = *module; at != NULL && length > 0;) {
        const ls__entry *entry = ls__module_entry(at, name, length);
        if (entry != NULL) {
            *module = at;
            return entry;
        }
        const ls__entry *wrapped = ls__module_entry(at, "", 0);
        at = wrapped != NULL ? wrapped->child : NULL;
    }
    return NULL;
}

/* For messages. */
static const char *kind_name(ls__entry_kind kind)
{
    switch (kind) {
    case LS__ENTRY_PARAM:
        return "parameter";
    case LS__ENTRY_BUFFER:
        return "buffer";
    case LS__ENTRY_CHILD:
        break;
    }
    return "module";
}

/* Names the part that is missing, and the kind of the entry that has its name, if any. */
static void fail_missing(const ls_module *module, const char *name, size_t length,
                         ls__entry_kind kind, const ls__entry *other)
{
    (void)ls__fail(LS_ERR_INVALID,
                   "module %s: it has no %s \"%.*s\" (asked for: \"%s\")%s%s; "
                   "ls_module_child_name and ls_module_params list its parts",
                   ls__module_name(module), kind_name(kind), (int)length, name, name,
                   other != NULL ? "; the part of that name is a " : "",
                   other != NULL ? kind_name(other->kind) : "");
}

/* Walks `name` part by part; only the last part may be of `kind`, those before it are modules. NULL
 * with the error set. *owner (may be NULL) becomes the module that has the entry. */
static const ls__entry *find_part(const ls_module *module, const char *name, ls__entry_kind kind,
                                  const ls_module **owner)
{
    if (module == NULL || name == NULL) {
        (void)ls__fail(LS_ERR_INVALID,
                       "module: the %s is NULL; give a module and the dotted name of a %s in it",
                       module == NULL ? "module" : "name", kind_name(kind));
        return NULL;
    }
    const char *at = name;
    for (;;) {
        const size_t length = strcspn(at, ".");
        const bool last = at[length] == '\0';
        const ls__entry *entry = find_entry(&module, at, length);
        if (entry == NULL || entry->kind != (last ? kind : LS__ENTRY_CHILD)) {
            const size_t until = (size_t)(at - name) + length;
            fail_missing(module, name, until, last ? kind : LS__ENTRY_CHILD, entry);
            return NULL;
        }
        if (last) {
            *(owner != NULL ? owner : &module) = module;
            return entry;
        }
        module = entry->child;
        at += length + 1;
    }
}

ls_module *ls_module_child(const ls_module *module, const char *name)
{
    const ls__entry *entry = find_part(module, name, LS__ENTRY_CHILD, NULL);
    return entry != NULL ? entry->child : NULL;
}

ls_tensor *ls_module_param(const ls_module *module, const char *name)
{
    const ls__entry *entry = find_part(module, name, LS__ENTRY_PARAM, NULL);
    return entry != NULL ? entry->tensor : NULL;
}

ls_tensor *ls_module_buffer(const ls_module *module, const char *name)
{
    const ls__entry *entry = find_part(module, name, LS__ENTRY_BUFFER, NULL);
    return entry != NULL ? entry->tensor : NULL;
}

/* The lists of items above the buffer are made anew. */
ls_status ls_module_set_persistent(ls_module *module, const char *name, bool persistent)
{
    const ls_module *owner = NULL;
    const ls__entry *found = find_part(module, name, LS__ENTRY_BUFFER, &owner);
    if (found == NULL) {
        return ls__self.status;
    }
    owner->entries->list[found - owner->entries->list].unsaved = !persistent;
    for (const ls_module *at = owner; at != NULL; at = at->entries->parent) {
        if (at->entries->cache != NULL) {
            at->entries->cache->entries = -1;
        }
    }
    return LS_OK;
}
