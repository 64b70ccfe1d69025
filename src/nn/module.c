/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: a tree of named entries.
 *
 *     gpt ── tokens ── weight
 *      ├──── blocks ┬─ 0 ── norm1 …       an entry is a parameter, a buffer or a child
 *      │            └─ 1 …
 *      └──── head ──── weight
 *
 * The depth is bounded when a child is added, which bounds every recursion over the tree.
 */
#include "nn/module.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/runtime.h"
#include "nn/hooks.h"
#include "nn/parts.h"
#include "tensor/fill.h"

#define WITHHELD_PATH_MAX 512

/* ---- building ----------------------------------------------------------------------------- */

/* Classes come from programs that may have been built against another header. All members of this
 * version were in the first one, so a class must have all of them. */
static ls_status check_class(size_t bytes, const ls_module_class *cls)
{
    if (cls == NULL) {
        return ls__fail(LS_ERR_INVALID, "module: the class is NULL; give an ls_module_class");
    }
    if (bytes < sizeof(ls_module)) {
        return ls__fail(LS_ERR_INVALID,
                        "module: %zu bytes are too few for a module; give the size of your struct, "
                        "whose first member is an ls_module",
                        bytes);
    }
    if (cls->size < offsetof(ls_module_class, parts) || cls->size > LS__CLASS_BYTES_MAX) {
        return ls__fail(LS_ERR_INVALID,
                        "module: the class' size is %zu; fill the class with LS_MODULE_CLASS, "
                        "which sets it",
                        cls->size);
    }
    if (cls->name == NULL || (cls->forward == NULL) == (cls->forward_many == NULL)) {
        return ls__fail(LS_ERR_INVALID,
                        "module \"%s\": its class must have a name, and one of forward and "
                        "forward_many, not both",
                        cls->name != NULL ? cls->name : "");
    }
    return LS_OK;
}

/* The hash of a module's dotted path, from the root down. A root's path is empty. */
static uint64_t path_of(const ls__draw_place *place)
{
    const struct ls__module_entries *up[LS__MODULE_DEPTH_MAX + 1];
    int depth = 0;
    const struct ls__module_entries *at = LS__LIST_ITEM(place, struct ls__module_entries, draws);
    for (; at->parent != NULL; at = at->parent->entries) {
        LS_ASSERT(depth <= LS__MODULE_DEPTH_MAX);
        up[depth++] = at;
    }
    uint64_t path = LS__PATH_NONE;
    while (depth > 0) {
        path = ls__path_add(path, up[--depth]->name);
    }
    return path;
}

/* The memory is zeroed, which is the initial state of a class' own members. */
void *ls_module_new(size_t bytes, const ls_module_class *cls)
{
    if (check_class(bytes, cls) < 0) {
        return NULL;
    }
    ls_module *module = calloc(1, bytes);
    struct ls__module_entries *entries = calloc(1, sizeof *entries);
    if (module == NULL || entries == NULL) {
        free(module);
        free(entries);
        (void)ls__fail(LS_ERR_MEMORY, "module: no memory for %s", cls->name);
        return NULL;
    }
    module->cls = cls;
    module->entries = entries;
    module->training = true;
    entries->draws.path = path_of;
    entries->has_tensors = ls__self.runtime != NULL;
    if (entries->has_tensors) {
        ls__runtime_enter(ls__self.runtime, &entries->guest);
    }
    return module;
}

bool ls__module_path_below(const ls_module *root, const ls_module *module, char *out, size_t bytes)
{
    if (module == root) {
        out[0] = '\0';
        return true;
    }
    const ls_module *parent = module->entries->parent;
    if (parent == NULL || !ls__module_path_below(root, parent, out, bytes)) {
        return false;
    }
    const size_t length = strlen(out);
    const int more = snprintf(out + length, bytes - length, "%s%s", length > 0 ? "." : "",
                              module->entries->name);
    return more >= 0 && (size_t)more < bytes - length;
}

/* A path that does not fit is the last name. */
static ls_status fail_withheld(const ls_module *module)
{
    char path[WITHHELD_PATH_MAX];
    const ls_module *root = module;
    while (root->entries->parent != NULL) {
        root = root->entries->parent;
    }
    if (!ls__module_path_below(root, module, path, sizeof path)) {
        (void)snprintf(path, sizeof path, "%s", module->entries->name);
    }
    return ls__fail(LS_ERR_STATE,
                    "module \"%s\": no part that runs here declares it, and ls_module_keep_parts "
                    "frees such modules; add \"%s\" to the uses of the part that calls it",
                    path, path);
}

/* The root has no parent that could have given it a name. */
const char *ls__module_name(const ls_module *module)
{
    return module->entries->name[0] ? module->entries->name : module->cls->name;
}

/* Parents fail together with the module, so that checking the root at the end is enough. The first
 * failure stays. */
void ls__module_fail(ls_module *module, ls_status status)
{
    for (ls_module *at = module; at != NULL; at = at->entries->parent) {
        if (at->status == LS_OK) {
            at->status = status;
            at->entries->message = strdup(ls_error_message());
        }
    }
}

/* Quotes the last error, which most likely is the constructor's, although it may be older. */
ls_status ls__module_missing(const char *call)
{
    const bool failed = ls__self.status < 0;
    return ls__fail(LS_ERR_INVALID,
                    "%s: the module is NULL; check what its constructor returned%s%s%s", call,
                    failed ? " (the last error was: " : "", failed ? ls_error_message() : "",
                    failed ? ")" : "");
}

/* Restores the message of the first failure, which the thread may have overwritten since. */
ls_status ls_module_status(const ls_module *module)
{
    if (module == NULL) {
        return ls__self.status < 0
                   ? ls__self.status /* its constructor's, most likely */
                   : ls__fail(LS_ERR_INVALID, "module: the module is NULL; check what its "
                                              "constructor returned");
    }
    if (module->entries->withheld) {
        return fail_withheld(module);
    }
    if (module->status < 0) {
        const char *message = module->entries->message;
        return ls__fail_again(module->status,
                              message != NULL ? message : "module: its construction failed");
    }
    return LS_OK;
}

/* ---- names -------------------------------------------------------------------------------- */

typedef struct name_key {
    const struct ls__module_entries *entries;
    const char *name;
    size_t length;
} name_key;

static bool is_named(const void *key, int number)
{
    const name_key *k = key;
    const char *name = k->entries->list[number].name;
    return strncmp(name, k->name, k->length) == 0 && name[k->length] == '\0';
}

/* Its slot, or the empty one where it would be. Parameters, buffers and children share one set of
 * names, because dotted names must be unique. */
static int *slot_of(const struct ls__module_entries *e, const char *name, size_t length)
{
    const name_key key = {e, name, length};
    return ls__slots_find(&e->names, ls__hash_bytes(0, name, length), is_named, &key);
}

const ls__entry *ls__module_entry(const ls_module *module, const char *name, size_t length)
{
    const struct ls__module_entries *e = module->entries;
    const int number =
        e->count > 0 && length <= LS__MODULE_NAME_MAX ? *slot_of(e, name, length) : 0;
    return number > 0 ? &e->list[number - 1] : NULL;
}

void ls__module_index(ls_module *module)
{
    struct ls__module_entries *e = module->entries;
    ls__slots_clear(&e->names);
    for (int i = 0; i < e->count; i++) {
        *slot_of(e, e->list[i].name, strlen(e->list[i].name)) = i + 1;
    }
}

/* A child may have an empty name: that of a wrapper, whose tensors are then named as without it. */
static ls_status check_name(const ls_module *module, ls__entry_kind kind, const char *name)
{
    if (name == NULL || (!*name && kind != LS__ENTRY_CHILD) || strchr(name, '.') ||
        strlen(name) > LS__MODULE_NAME_MAX) {
        return ls__fail(LS_ERR_INVALID,
                        "module %s: the name \"%s\" must have 1…%d characters and "
                        "no dot",
                        ls__module_name(module), name ? name : "", LS__MODULE_NAME_MAX);
    }
    if (ls__module_entry(module, name, strlen(name)) != NULL) {
        return ls__fail(LS_ERR_INVALID, "module %s: it has a \"%s\" already; names must differ",
                        ls__module_name(module), name);
    }
    return LS_OK;
}

/* The pointer in `out` is valid until the next entry is added. */
static ls_status add_entry(ls_module *module, ls__entry_kind kind, const char *name,
                           ls__entry **out)
{
    struct ls__module_entries *e = module->entries;
    LS_TRY(check_name(module, kind, name));
    if (e->count == e->capacity) {
        int capacity = e->capacity ? 2 * e->capacity : 4;
        ls__entry *grown = realloc(e->list, (size_t)capacity * sizeof *grown);
        e->list = grown != NULL ? grown : e->list;
        if (grown == NULL || !ls__slots_renew(&e->names, capacity)) {
            return ls__fail(LS_ERR_MEMORY, "module %s: no memory for \"%s\"",
                            ls__module_name(module), name);
        }
        e->capacity = capacity;
        ls__module_index(module);
    }
    int *slot = slot_of(e, name, strlen(name));
    *out = &e->list[e->count++];
    **out = (ls__entry){.kind = kind};
    (void)snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    *slot = e->count;
    return LS_OK;
}

/* Recursion is bounded: check_child keeps every tree within LS__MODULE_DEPTH_MAX. */
static int depth_below(const ls_module *module)
{
    int deepest = 0;
    for (int i = 0; i < module->entries->count; i++) {
        const ls__entry *at = &module->entries->list[i];
        int depth = at->kind == LS__ENTRY_CHILD ? depth_below(at->child) + 1 : 0;
        deepest = depth > deepest ? depth : deepest;
    }
    return deepest;
}

/* Whether `child` is `module` or lies below it. It walks upwards, since a module has one parent at
 * most. */
static bool contains(const ls_module *module, const ls_module *child)
{
    for (const ls_module *at = child; at != NULL; at = at->entries->parent) {
        if (at == module) {
            return true;
        }
    }
    return false;
}

/* Keeps the modules a tree of bounded depth. */
static ls_status check_child(const ls_module *parent, const char *name, const ls_module *child)
{
    if (child->entries->parent) {
        return ls__fail(LS_ERR_INVALID,
                        "module %s: \"%s\" belongs to module %s already; a module has one parent",
                        ls__module_name(parent), name, ls__module_name(child->entries->parent));
    }
    if (contains(child, parent)) {
        return ls__fail(LS_ERR_INVALID, "module %s: \"%s\" would contain itself; add another one",
                        ls__module_name(parent), name);
    }
    int depth = 1 + depth_below(child);
    for (const ls_module *at = parent; at != NULL; at = at->entries->parent) {
        depth++;
    }
    if (depth > LS__MODULE_DEPTH_MAX) {
        return ls__fail(LS_ERR_LIMIT,
                        "module %s: \"%s\" nests deeper than %d modules; add it higher up",
                        ls__module_name(parent), name, LS__MODULE_DEPTH_MAX);
    }
    return LS_OK;
}

/* Links the two; nothing has changed when it fails. */
static ls_status add_child(ls_module *parent, const char *name, ls_module *child)
{
    ls__entry *made = NULL;
    LS_TRY(check_child(parent, name, child));
    LS_TRY(add_entry(parent, LS__ENTRY_CHILD, name, &made));
    LS_ASSERT(child->entries->parent == NULL);
    made->child = child;
    child->entries->parent = parent;
    memcpy(child->entries->name, made->name, sizeof made->name);
    return LS_OK;
}

/* A missing child is most likely one whose constructor failed, so its error is quoted. */
static ls_status fail_no_child(const ls_module *parent, const char *name)
{
    const char *part = name != NULL ? name : "";
    return ls__self.status < 0
               ? ls__fail_within(ls__self.status, "module %s: %s", parent->cls->name, part)
               : ls__fail(LS_ERR_INVALID, "module %s: \"%s\" is NULL; check the call that made it",
                          parent->cls->name, part);
}

/* Takes `child`, also on failure: it is then freed, unless it belongs elsewhere. The failure is
 * noted on `parent`, so that constructors may check once at their end. */
ls_module *ls_module_add(ls_module *parent, const char *name, ls_module *child)
{
    if (parent == NULL) {
        ls_module_free(child);
        return NULL;
    }
    if (child == NULL) {
        ls__module_fail(parent, fail_no_child(parent, name));
        return NULL;
    }
    const ls_status status = add_child(parent, name, child);
    if (status < 0) {
        ls__module_fail(parent, status);
        if (child->entries->parent == NULL && !contains(child, parent)) {
            ls_module_free(child);
        }
        return NULL;
    }
    if (child->status < 0) {
        ls__module_fail(parent, ls_module_status(child));
    }
    return child;
}

/* Whether `value` can become a parameter or buffer. Parameters must be contiguous and of a type
 * that carries gradients, because optimizers and the reducer read their memory directly. */
static ls_status check_tensor(const ls_module *module, ls__entry_kind kind, const char *name,
                              const ls_tensor *value)
{
    const char *what = kind == LS__ENTRY_PARAM ? "parameter" : "buffer";
    LS_TRY(ls_tensor_status(value));
    if (!ls_is_contiguous(value)) {
        return ls__fail(LS_ERR_INVALID,
                        "module %s: %s \"%s\": the tensor is a view that is not contiguous; give "
                        "ls_contiguous of it",
                        ls__module_name(module), what, name);
    }
    const ls_dtype dtype = ls_dtype_of(value);
    if (kind == LS__ENTRY_PARAM && dtype != LS_FLOAT32 && dtype != LS_BFLOAT16) {
        return ls__fail(LS_ERR_INVALID,
                        "module %s: parameter \"%s\": the tensor is %s; parameters are float32 or "
                        "bfloat16 (ls_cast), others can be buffers",
                        ls__module_name(module), name, ls_dtype_name(dtype));
    }
    return LS_OK;
}

/* Checks everything before the entry is made. */
static ls_status enter_tensor(ls_module *module, ls__entry_kind kind, const char *name,
                              const ls_tensor *value, ls__entry **out)
{
    if (value == NULL) {
        return ls__fail(LS_ERR_INVALID, "module %s: \"%s\" is NULL; check the call that made it",
                        module->cls->name, name != NULL ? name : "");
    }
    LS_TRY(check_name(module, kind, name));
    LS_TRY(check_tensor(module, kind, name, value));
    return add_entry(module, kind, name, out);
}

/* The tensor is kept beyond its scope. On failure `value` is returned as it came, so that
 * construction can go on until the status is checked. */
static ls_tensor *add_tensor(ls_module *module, ls__entry_kind kind, const char *name,
                             ls_tensor *value)
{
    if (module == NULL) {
        return value;
    }
    ls__entry *made = NULL;
    const ls_status status = enter_tensor(module, kind, name, value, &made);
    if (status < 0) {
        ls__module_fail(module, status);
        return value;
    }
    made->tensor = ls_keep(value);
    if (kind == LS__ENTRY_PARAM && ls__fill_own(value, &module->entries->draws, name) < 0) {
        ls__module_fail(module, ls__self.status);
        return value;
    }
    return kind == LS__ENTRY_PARAM ? ls_set_requires_grad(made->tensor, true) : made->tensor;
}

/* A parameter requires gradients from here on. */
ls_tensor *ls_module_add_param(ls_module *module, const char *name, ls_tensor *value)
{
    return add_tensor(module, LS__ENTRY_PARAM, name, value);
}

/* A buffer is saved with the module and broadcast by ddp, but has no gradient. */
ls_tensor *ls_module_add_buffer(ls_module *module, const char *name, ls_tensor *value)
{
    return add_tensor(module, LS__ENTRY_BUFFER, name, value);
}

/* ---- freeing ------------------------------------------------------------------------------ */

/* From the root downwards: a class may still use its children here. */
static void free_resources(ls_module *module)
{
    if (module->cls->free != NULL) {
        module->cls->free(module);
    }
    for (int i = 0; i < module->entries->count; i++) {
        const ls__entry *at = &module->entries->list[i];
        if (at->kind == LS__ENTRY_CHILD) {
            free_resources(at->child);
        }
    }
}

void ls__parts_free(ls_parts *parts)
{
    for (int i = 0; parts != NULL && i < parts->count; i++) {
        free(parts->list[i].name);
        free(parts->list[i].uses);
    }
    if (parts != NULL) {
        free(parts->list);
        free(parts->message);
        free(parts);
    }
}

/* From the leaves upwards, because a parent's entries lead to its children. */
static void free_memory(ls_module *module)
{
    struct ls__module_entries *e = module->entries;
    for (int i = 0; i < e->count; i++) {
        if (e->list[i].kind == LS__ENTRY_CHILD) {
            free_memory(e->list[i].child);
        }
    }
    ls__runtime_leave(&e->guest);
    ls__items_free(e->cache);
    ls__module_hooks_free(module);
    ls__parts_free(e->parts);
    while (e->retired != NULL) {
        ls_module *first = e->retired;
        e->retired = first->entries->next;
        free_memory(first);
    }
    free(e->message);
    free(e->names.slot);
    free(e->list);
    free(e);
    free(module);
}

/* The names that the wrapper's lists gave out are promised to live as long as the root, which the
 * wrapped module is from here on. */
static void keep_names(ls_module *module, ls__item_list *lists)
{
    ls__item_list **end = &module->entries->cache;
    while (*end != NULL) {
        end = &(*end)->older;
    }
    *end = lists;
    for (; lists != NULL; lists = lists->older) {
        lists->entries = -1; /* never taken for a list of this tree */
    }
}

ls_module *ls__module_unwrap(ls_module *wrapper)
{
    struct ls__module_entries *e = wrapper->entries;
    LS_ASSERT(e->parent == NULL && e->count == 1 && e->list[0].kind == LS__ENTRY_CHILD);
    ls_module *module = e->list[0].child;
    if (wrapper->cls->free != NULL) {
        wrapper->cls->free(wrapper);
    }
    module->entries->parent = NULL;
    keep_names(module, e->cache);
    e->cache = NULL;
    e->count = 0;
    free_memory(wrapper);
    return module;
}

/* Classes release their own resources first, while their tensors still exist; then each tensor is
 * freed once, however many modules share it; then the tree. Without memory for the list, the
 * tensors stay with the runtime, which frees them at its end; after its end, a handle may be that
 * of another runtime's tensor. */
void ls_module_free(ls_module *module)
{
    if (module == NULL) {
        return;
    }
    if (module->entries->parent) {
        LS__WARN("module: \"%s\" was freed while it belongs to module %s; only the root is freed",
                 ls__module_name(module), module->entries->parent->cls->name);
        return;
    }
    int count = 0;
    const ls__module_item *items = ls__module_items(module, &count);
    const bool ended = module->entries->has_tensors && module->entries->guest.runtime == NULL;
    free_resources(module);
    for (int i = 0; i < count && !ended; i++) {
        ls__fill_disown(items[i].value);
        ls_free(items[i].value);
    }
    free_memory(module);
}

/* The recursion is bounded by LS__MODULE_DEPTH_MAX. */
void ls__module_withhold(ls_module *module, bool withheld)
{
    module->entries->withheld = withheld;
    for (int i = 0; i < module->entries->count; i++) {
        const ls__entry *at = &module->entries->list[i];
        if (at->kind == LS__ENTRY_CHILD) {
            ls__module_withhold(at->child, withheld);
        }
    }
}

void ls__module_retire(ls__entry *entry, ls_module *root,
                       bool (*keeps)(void *root, const ls_tensor *tensor))
{
    ls_module *child = entry->child;
    int count = 1;
    const ls__module_item own = {.value = entry->tensor};
    const ls__module_item *items = child != NULL ? ls__module_items(child, &count) : &own;
    if (child != NULL) {
        free_resources(child);
    }
    for (int i = 0; i < count; i++) {
        if (!keeps(root, items[i].value)) {
            ls__fill_disown(items[i].value);
            ls_free(items[i].value);
        }
    }
    if (child != NULL) {
        ls__module_withhold(child, true);
        child->entries->next = root->entries->retired;
        root->entries->retired = child;
    }
}

/* ---- using -------------------------------------------------------------------------------- */

/* The recursion is bounded by LS__MODULE_DEPTH_MAX. */
void ls_module_train(ls_module *module, bool training)
{
    if (module == NULL) {
        return;
    }
    module->training = training;
    for (int i = 0; i < module->entries->count; i++) {
        const ls__entry *at = &module->entries->list[i];
        if (at->kind == LS__ENTRY_CHILD) {
            ls_module_train(at->child, training);
        }
    }
}
