/* SPDX-License-Identifier: Apache-2.0 */
/* Freeing what a stage does not use. Entries that its parts use are marked from the root down, and
 * the rest of the tree is taken apart. A tensor that a kept entry shares stays. A part may use what
 * it does not declare: of modules enough stays to say so. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "nn/module.h"
#include "nn/parts.h"

static void clear_marks(ls_module *module)
{
    for (int i = 0; i < module->entries->count; i++) {
        ls__entry *at = &module->entries->list[i];
        at->mark = LS__MARK_NONE;
        if (at->kind == LS__ENTRY_CHILD) {
            clear_marks(at->child);
        }
    }
}

static ls__entry *entry_named(ls_module *module, const char *name, size_t length)
{
    for (int i = 0; i < module->entries->count; i++) {
        ls__entry *at = &module->entries->list[i];
        if (strlen(at->name) == length && memcmp(at->name, name, length) == 0) {
            return at;
        }
    }
    return NULL;
}

/* Marks the entry with this dotted name, and those on the way to it. */
static ls_status mark_name(const ls_parts *parts, const ls__module_part *part, const char *name,
                           size_t length)
{
    ls_module *module = parts->self;
    for (size_t at = 0; at < length;) {
        const size_t end = at + strcspn(name + at, ". ");
        ls__entry *entry = module != NULL ? entry_named(module, name + at, end - at) : NULL;
        if (entry == NULL) {
            return ls__fail(LS_ERR_INVALID,
                            "parts of %s: \"%s\" says that it uses \"%.*s\", which the %s does not "
                            "have",
                            parts->self->cls->name, part->name, (int)length, name,
                            parts->self->cls->name);
        }
        const ls__entry_mark mark = end == length ? LS__MARK_WHOLE : LS__MARK_BELOW;
        entry->mark = entry->mark == LS__MARK_WHOLE ? LS__MARK_WHOLE : mark;
        module = entry->child;
        at = end + 1;
    }
    return LS_OK;
}

static void mark_module(const ls_parts *parts, ls_module *module, ls__entry_mark mark)
{
    ls_module *parent = module->entries->parent;
    if (module == parts->self) {
        return;
    }
    ls__entry *entry = entry_named(parent, module->entries->name, strlen(module->entries->name));
    entry->mark = entry->mark == LS__MARK_WHOLE ? LS__MARK_WHOLE : mark;
    mark_module(parts, parent, LS__MARK_BELOW);
}

static ls_status mark_part(const ls_parts *parts, const ls__module_part *part)
{
    if (part->module != NULL) {
        mark_module(parts, part->module, LS__MARK_WHOLE);
    }
    for (int i = 0; strcmp(part->uses, "*") == 0 && i < parts->self->entries->count; i++) {
        parts->self->entries->list[i].mark = LS__MARK_WHOLE;
    }
    for (const char *at = part->uses; *at != '\0' && *at != '*';) {
        const size_t length = strcspn(at, " ");
        LS_TRY(mark_name(parts, part, at, length));
        at += length;
        at += strspn(at, " ");
    }
    return LS_OK;
}

/* Whether a marked entry holds the tensor. */
static bool is_kept(const ls_module *module, bool whole, const ls_tensor *tensor)
{
    for (int i = 0; i < module->entries->count; i++) {
        const ls__entry *at = &module->entries->list[i];
        const bool used = whole || at->mark == LS__MARK_WHOLE;
        if (at->kind == LS__ENTRY_CHILD
                ? (used || at->mark == LS__MARK_BELOW) && is_kept(at->child, used, tensor)
                : used && at->tensor == tensor) {
            return true;
        }
    }
    return false;
}

static bool keeps(void *root, const ls_tensor *tensor)
{
    return is_kept(root, false, tensor);
}

static void set_count(ls_module *module, int count)
{
    struct ls__module_entries *e = module->entries;
    e->count = count;
    ls__module_index(module);
    if (e->cache != NULL) {
        e->cache->entries = -1; /* the list is another one now */
    }
}

static void prune(ls_module *module, ls_module *root, bool aside)
{
    struct ls__module_entries *e = module->entries;
    const size_t bytes = (size_t)e->count * sizeof *e->list;
    int kept = 0;
    e->whole = aside ? malloc(bytes) : NULL;
    e->whole_count = e->whole != NULL ? e->count : 0;
    if (e->whole != NULL) {
        memcpy(e->whole, e->list, bytes);
    }
    for (int i = 0; i < e->count; i++) {
        ls__entry *at = &e->list[i];
        if (at->mark == LS__MARK_NONE) {
            if (e->whole == NULL) {
                ls__module_retire(at, root, keeps);
            }
            continue;
        }
        if (at->mark == LS__MARK_BELOW) {
            prune(at->child, root, aside);
        }
        e->list[kept++] = *at;
    }
    set_count(module, kept);
}

/* The list has room for all that it ever held; a sequence runs its children in their order. The
 * recursion is bounded by LS__MODULE_DEPTH_MAX. */
static void bring_back(ls_module *module)
{
    struct ls__module_entries *e = module->entries;
    int kept = e->count;
    for (int i = e->whole_count - 1; i >= 0; i--) {
        e->list[i] = e->whole[i].mark == LS__MARK_NONE ? e->whole[i] : e->list[--kept];
    }
    if (e->whole != NULL) {
        free(e->whole);
        e->whole = NULL;
        set_count(module, e->whole_count);
        e->whole_count = 0;
    }
    for (int i = 0; i < e->count; i++) {
        if (e->list[i].kind == LS__ENTRY_CHILD) {
            bring_back(e->list[i].child);
        }
    }
}

void ls__parts_bring_back(ls_module *module)
{
    ls_parts *parts = module->entries->parts;
    bring_back(module);
    for (int p = 0; p < parts->count; p++) {
        parts->list[p].freed = false;
    }
    parts->cut = false;
    parts->entries = ls__module_entry_count(module);
}

static void withhold_unmarked(ls_module *module)
{
    for (int i = 0; i < module->entries->count; i++) {
        ls__entry *at = &module->entries->list[i];
        if (at->kind != LS__ENTRY_CHILD || at->mark == LS__MARK_WHOLE) {
            continue;
        }
        if (at->mark == LS__MARK_NONE) {
            ls__module_withhold(at->child, true);
        } else {
            withhold_unmarked(at->child);
        }
    }
}

ls_status ls__part_withhold_others(const ls_parts *parts, int part)
{
    clear_marks(parts->self);
    LS_TRY(mark_part(parts, &parts->list[part]));
    if (parts->list[part].module != parts->self) {
        withhold_unmarked(parts->self);
    }
    return LS_OK;
}

ls_status ls__part_uses(ls_module *module, int part, const ls_param *params, int count, bool *uses)
{
    const ls_parts *parts = ls__parts_of(module);
    if (parts == NULL) {
        return ls__self.status;
    }
    LS_TRY(ls__parts_check(parts, "ls_profile_write", part, 1));
    clear_marks(parts->self);
    LS_TRY(mark_part(parts, &parts->list[part]));
    const bool whole = parts->list[part].module == parts->self;
    for (int i = 0; i < count; i++) {
        uses[i] = is_kept(parts->self, whole, params[i].value);
    }
    return LS_OK;
}

static ls_status check_list(const ls_parts *parts, const int *list, int count)
{
    for (int i = 0; i < count; i++) {
        LS_TRY(ls__parts_check(parts, "ls_module_keep_parts", list[i], 1));
        if (i > 0 && list[i] <= list[i - 1]) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_module_keep_parts: part %d stands behind part %d; give them in "
                            "ascending order",
                            list[i], list[i - 1]);
        }
    }
    return LS_OK;
}

static ls_status keep(ls_module *module, const int *list, int count, bool aside)
{
    ls_parts *parts = module->entries->parts;
    if (count == parts->count) {
        return LS_OK;
    }
    clear_marks(module);
    for (int i = 0; i < count; i++) {
        LS_TRY(mark_part(parts, &parts->list[list[i]]));
    }
    parts->cut = true;
    for (int p = 0, i = 0; p < parts->count; p++) {
        parts->list[p].freed = i == count || list[i] != p;
        i += !parts->list[p].freed;
    }
    prune(module, module, aside);
    return LS_OK;
}

static ls_status check_and_keep(ls_module *module, const int *list, int count, bool aside)
{
    const ls_parts *parts = ls__parts_of(module);
    if (parts == NULL) {
        return ls__self.status;
    }
    LS_TRY(check_list(parts, list, count));
    if (parts->self != module || module->entries->parent != NULL) {
        return ls__fail(LS_ERR_STATE,
                        "ls_module_keep_parts: the %s is wrapped or belongs to a module; call it "
                        "before",
                        parts->self->cls->name);
    }
    return keep(module, list, count, aside);
}

ls_status ls_module_keep_parts(ls_module *module, const int *list, int count)
{
    return check_and_keep(module, list, count, false);
}

ls_status ls__parts_set_aside(ls_module *module, const int *list, int count)
{
    return check_and_keep(module, list, count, true);
}

ls_status ls__parts_keep(ls_module *module, const int *list, int count)
{
    return keep(module, list, count, false);
}
