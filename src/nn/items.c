/* SPDX-License-Identifier: Apache-2.0 */
/* The items of a tree: all parameters and buffers below a root, depth first in order of addition,
 * under dotted names ("blocks.0.norm1.weight"), each tensor once under its first name.
 *
 * Entries are only ever added, so their number tells whether the cached list is current; a buffer
 * whose `unsaved` changes voids it.
 */
#include "nn/module.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

int ls__module_entry_count(const ls_module *module)
{
    int count = module->entries->count;
    for (int i = 0; i < module->entries->count; i++) {
        const ls__entry *at = &module->entries->list[i];
        count += at->kind == LS__ENTRY_CHILD ? ls__module_entry_count(at->child) : 0;
    }
    return count;
}

typedef struct collecting {
    ls__item_list *list;
    ls__slots tensors; /* of the list: modules may share a parameter */
} collecting;

typedef struct tensor_key {
    const ls__item_list *list;
    const ls_tensor *tensor;
} tensor_key;

static bool is_tensor(const void *key, int number)
{
    const tensor_key *k = key;
    return k->list->items[number].value == k->tensor;
}

/* Where the tensor's number is, or would be. */
static int *slot_of(const collecting *c, const ls_tensor *tensor)
{
    const tensor_key key = {c->list, tensor};
    const uint64_t hash = (uint64_t)(uintptr_t)tensor * UINT64_C(0x9e3779b97f4a7c15);
    return ls__slots_find(&c->tensors, hash, is_tensor, &key);
}

/* Joins the names on the way down and `last` with dots. `path` has at most LS__MODULE_DEPTH_MAX
 * parts. The caller frees the result; NULL without memory. */
static char *dotted(const char *const *path, int depth, const char *last)
{
    size_t bytes = strlen(last) + 1;
    for (int i = 0; i < depth; i++) {
        bytes += strlen(path[i]) + 1;
    }
    char *name = malloc(bytes);
    char *at = name;
    for (int i = 0; name != NULL && i < depth; i++) {
        at = stpcpy(at, path[i]);
        *at++ = '.';
    }
    if (name != NULL) {
        memcpy(at, last, strlen(last) + 1);
    }
    return name;
}

/* Appends what lies below `module` to `out`, which has room for every entry of the tree. A child
 * without a name adds no part. False without memory. */
static bool collect(const ls_module *module, const char **path, int depth, collecting *out)
{
    for (int i = 0; i < module->entries->count; i++) {
        const ls__entry *at = &module->entries->list[i];
        if (at->kind == LS__ENTRY_CHILD) {
            path[depth] = at->name;
            if (!collect(at->child, path, depth + (at->name[0] != '\0'), out)) {
                return false;
            }
            continue;
        }
        int *slot = slot_of(out, at->tensor);
        if (*slot == 0) {
            char *name = dotted(path, depth, at->name);
            if (name == NULL) {
                return false;
            }
            out->list->items[out->list->count++] =
                (ls__module_item){.name = name,
                                  .value = at->tensor,
                                  .buffer = at->kind == LS__ENTRY_BUFFER,
                                  .unsaved = at->unsaved};
            *slot = out->list->count;
        }
    }
    return true;
}

/* Frees the list and the older ones behind it. */
void ls__items_free(ls__item_list *list)
{
    while (list != NULL) {
        ls__item_list *older = list->older;
        for (int i = 0; i < list->count; i++) {
            free((char *)list->items[i].name); /* made by dotted */
        }
        free(list->items);
        free(list);
        list = older;
    }
}

/* NULL without memory. */
static ls__item_list *list_of(const ls_module *module, int entries)
{
    const char *path[LS__MODULE_DEPTH_MAX + 1];
    collecting c = {.list = calloc(1, sizeof *c.list)};
    if (c.list == NULL) {
        return NULL;
    }
    c.list->entries = entries;
    c.list->items = calloc((size_t)entries + 1, sizeof *c.list->items);
    const bool done = c.list->items != NULL && ls__slots_renew(&c.tensors, entries) &&
                      collect(module, path, 0, &c);
    free(c.tensors.slot);
    if (!done) {
        ls__items_free(c.list);
    }
    return done ? c.list : NULL;
}

/* An outdated list is kept behind the new one, because callers may still hold names from it. */
const ls__module_item *ls__module_items(ls_module *module, int *count)
{
    *count = 0;
    if (module == NULL) {
        (void)ls_module_status(module); /* sets the error */
        return NULL;
    }
    ls__item_list *cache = module->entries->cache;
    int entries = ls__module_entry_count(module);
    if (cache == NULL || cache->entries != entries) {
        cache = list_of(module, entries);
        if (cache == NULL) {
            (void)ls__fail(LS_ERR_MEMORY, "module %s: no memory to list it", module->cls->name);
            return NULL;
        }
        cache->older = module->entries->cache;
        module->entries->cache = cache;
    }
    *count = cache->count;
    return cache->items;
}

/* Returns the number of parameters, which may be more than the `count` that fit into `out`. */
int ls_module_params(ls_module *module, ls_param *out, int count)
{
    int items = 0, params = 0;
    const ls__module_item *item = ls__module_items(module, &items);
    for (int i = 0; i < items; i++) {
        if (item[i].buffer) {
            continue;
        }
        if (params < count) {
            out[params] = (ls_param){.name = item[i].name, .value = item[i].value};
        }
        params++;
    }
    return params;
}

int ls_module_param_count(ls_module *module)
{
    return ls_module_params(module, NULL, 0);
}

/* Elements of parameters; buffers are not counted, as in the sizes that papers state. */
int64_t ls_module_numel(ls_module *module)
{
    int items = 0;
    int64_t elements = 0;
    const ls__module_item *item = ls__module_items(module, &items);
    for (int i = 0; i < items; i++) {
        elements += item[i].buffer ? 0 : ls_numel(item[i].value);
    }
    return elements;
}
