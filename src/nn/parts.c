/* SPDX-License-Identifier: Apache-2.0 */
/* Declaring a module's parts, and looking at them. The list is made at the first use and kept with
 * the module. */
#include "nn/parts.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "nn/module.h"

/* ---- adding ------------------------------------------------------------------------------- */

static void keep_error(ls_parts *parts, ls_status status)
{
    if (parts->status == LS_OK) {
        parts->status = status;
        parts->message = strdup(ls_error_message());
    }
}

static ls_status check_kind(const ls_parts *parts, const ls_part *part, const char *name)
{
    if ((part->module == NULL) == (part->run == NULL) ||
        (part->run != NULL && part->uses == NULL)) {
        return ls__fail(LS_ERR_INVALID,
                        "parts of %s: \"%s\" needs either a module, or a function and the names "
                        "that it uses",
                        parts->self->cls->name, name);
    }
    for (int i = 0; i < parts->count; i++) {
        if (strcmp(parts->list[i].name, name) == 0) {
            return ls__fail(LS_ERR_INVALID, "parts of %s: two parts are named \"%s\"",
                            parts->self->cls->name, name);
        }
    }
    return parts->count < LS__PARTS_MAX ? LS_OK
                                        : ls__fail(LS_ERR_LIMIT, "parts of %s: more than %d parts",
                                                   parts->self->cls->name, LS__PARTS_MAX);
}

/* Inputs come from parts before it. */
static ls_status check_from(const ls_parts *parts, const ls_part *part, const char *name)
{
    if (part->from_count < 0 || part->from_count > LS_PART_FROM_MAX ||
        (part->from == NULL && part->from_count > 0)) {
        return ls__fail(LS_ERR_INVALID,
                        "parts of %s: \"%s\" takes %d inputs; give from with 1 to %d of them",
                        parts->self->cls->name, name, part->from_count, LS_PART_FROM_MAX);
    }
    for (int i = 0; part->from != NULL && i < part->from_count; i++) {
        if (part->from[i] >= parts->count ||
            part->from[i] < LS_PART_INPUT(LS_CALL_TENSORS_MAX - 1)) {
            return ls__fail(LS_ERR_INVALID,
                            "parts of %s: \"%s\" takes its input %d from part %d; give a part "
                            "before it, or LS_PART_INPUT(k)",
                            parts->self->cls->name, name, i, part->from[i]);
        }
    }
    return LS_OK;
}

static ls_status make_room(ls_parts *parts)
{
    if (parts->count == parts->room) {
        const int room = parts->room > 0 ? 2 * parts->room : 16;
        ls__module_part *list = realloc(parts->list, (size_t)room * sizeof *list);
        if (list == NULL) {
            return ls__fail(LS_ERR_MEMORY, "module: no memory for its parts");
        }
        parts->list = list;
        parts->room = room;
    }
    return LS_OK;
}

static ls_status append(ls_parts *parts, const ls_part *part, const char *name)
{
    LS_TRY(check_kind(parts, part, name));
    LS_TRY(check_from(parts, part, name));
    LS_TRY(make_room(parts));
    ls__module_part made = {.name = strdup(name),
                            .module = part->module,
                            .run = part->run,
                            .file = ls__self.file,
                            .line = ls__self.line};
    made.uses = strdup(part->uses != NULL ? part->uses : "");
    if (made.name == NULL || made.uses == NULL) {
        free(made.name);
        free(made.uses);
        return ls__fail(LS_ERR_MEMORY, "module: no memory for its parts");
    }
    made.from_count = part->from != NULL ? part->from_count : 1;
    made.from[0] = parts->count - 1; /* of the first, -1: LS_PART_INPUT(0) */
    if (part->from != NULL) {
        memcpy(made.from, part->from, (size_t)part->from_count * sizeof made.from[0]);
    }
    parts->list[parts->count++] = made;
    return LS_OK;
}

int ls_parts_add(ls_parts *parts, const ls_part *part)
{
    char path[LS__MODULE_DEPTH_MAX * (LS__MODULE_NAME_MAX + 1)] = "";
    const char *name = part->name;
    if (part->size != sizeof *part) {
        keep_error(parts, ls__fail(LS_ERR_INVALID,
                                   "parts of %s: the part's size is %zu; fill it with LS_PART, "
                                   "which sets it",
                                   parts->self->cls->name, part->size));
        return -1;
    }
    if (part->module != NULL &&
        !ls__module_path_below(parts->self, part->module, path, sizeof path)) {
        keep_error(parts,
                   ls__fail(LS_ERR_INVALID, "parts of %s: the module of part %d is not below it",
                            parts->self->cls->name, parts->count));
        return -1;
    }
    const ls_status status = append(parts, part, name != NULL ? name : path);
    if (status < 0) {
        keep_error(parts, status);
        return -1;
    }
    return parts->count - 1;
}

void ls_parts_add_children(ls_parts *parts, ls_module *sequence)
{
    const int count = ls_module_child_count(sequence);
    for (int i = 0; i < count; i++) {
        ls_module *child = ls_module_child_at(sequence, i);
        if (ls__is_sequential(child)) {
            ls_parts_add_children(parts, child);
        } else {
            (void)ls_parts_add(parts, &LS_PART(.module = child));
        }
    }
}

/* ---- the list ----------------------------------------------------------------------------- */

static ls_tensor *run_whole(ls_module *self, ls_tensor *const *inputs)
{
    return ls_forward(self, inputs[0]);
}

static ls_parts *declare(ls_module *module, int entries)
{
    ls_parts *parts = calloc(1, sizeof *parts);
    if (parts == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "module: no memory for its parts");
        return NULL;
    }
    parts->self = module;
    parts->entries = entries;
    const char *file = ls__self.file; /* of the call that needs the parts */
    const int line = ls__self.line;
    ls_site_set(NULL, 0);
    if (LS__CLASS_HAS(module->cls, parts)) {
        module->cls->parts(module, parts);
    }
    if (parts->count == 0 && parts->status == LS_OK) {
        (void)ls_parts_add(parts,
                           &LS_PART(.name = module->cls->name, .run = run_whole, .uses = "*"));
    }
    ls_site_set(file, line);
    return parts;
}

const ls_parts *ls__parts_of(ls_module *module)
{
    if (ls_module_status(module) < 0) {
        return NULL;
    }
    module = ls__module_wrapped(module);
    const int entries = ls__module_entry_count(module);
    ls_parts *parts = module->entries->parts;
    if (parts == NULL || (!parts->cut && parts->entries != entries)) {
        ls__parts_free(parts);
        parts = declare(module, entries);
        module->entries->parts = parts;
    }
    if (parts != NULL && parts->status < 0) {
        (void)ls__fail_again(parts->status, parts->message != NULL ? parts->message : "");
        return NULL;
    }
    return parts;
}

static void print_part(ls__text *to, const ls__module_part *part, int number)
{
    ls__text_add(to, "part %d \"%s\"%s", number, part->name, part->from_count > 0 ? " from" : "");
    for (int i = 0; i < part->from_count; i++) {
        ls__text_add(to, " %d", part->from[i]);
    }
    ls__text_add(to, "%s%s\n", part->uses[0] != '\0' ? ", using " : "", part->uses);
}

char *ls__parts_print(ls_module *module)
{
    const ls_parts *parts = ls__parts_of(module);
    size_t bytes = 1;
    for (int i = 0; parts != NULL && i < parts->count; i++) {
        bytes += strlen(parts->list[i].name) + strlen(parts->list[i].uses) + 160; /* with numbers */
    }
    char *text = parts != NULL ? malloc(bytes) : NULL;
    if (parts != NULL && text == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "module: no memory for the text of its parts");
    }
    ls__text to = {text, bytes};
    for (int i = 0; text != NULL && i < parts->count; i++) {
        print_part(&to, &parts->list[i], i);
    }
    return text;
}

ls_status ls__parts_check(const ls_parts *parts, const char *call, int first, int count)
{
    if (first < 0 || count < 1 || first > parts->count - count) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: %d parts from part %d on were asked for; the %s has parts 0 to %d",
                        call, count, first, parts->self->cls->name, parts->count - 1);
    }
    for (int p = first; p < first + count; p++) {
        if (parts->list[p].freed) {
            return ls__fail(LS_ERR_STATE,
                            "%s: part %d (\"%s\") was asked for; ls_module_keep_parts has freed it",
                            call, p, parts->list[p].name);
        }
    }
    return LS_OK;
}

int ls_module_part_count(ls_module *module)
{
    const ls_parts *parts = ls__parts_of(module);
    return parts != NULL ? parts->count : (int)ls__self.status;
}

const char *ls_module_part_name(ls_module *module, int i)
{
    const ls_parts *parts = ls__parts_of(module);
    return parts != NULL && i >= 0 && i < parts->count ? parts->list[i].name : NULL;
}

int ls_module_part_from(ls_module *module, int i, int *from)
{
    const ls_parts *parts = ls__parts_of(module);
    if (parts == NULL || ls__parts_check(parts, "ls_module_part_from", i, 1) < 0) {
        return (int)ls__self.status;
    }
    memcpy(from, parts->list[i].from, (size_t)parts->list[i].from_count * sizeof *from);
    return parts->list[i].from_count;
}

ls_tensor *ls__part_elements(ls_tensor *value, bool *channels_last)
{
    ls_tensor *plain = ls_detach(value);
    ls_tensor *seen = ls_ndim(plain) == 4 ? ls_permute(plain, LS_SHAPE(0, 2, 3, 1)) : plain;
    *channels_last = !ls_is_contiguous(plain) && ls_is_contiguous(seen);
    return ls_contiguous(*channels_last ? seen : plain);
}

ls_tensor *ls__part_value(ls_tensor *elements, bool channels_last)
{
    return channels_last ? ls_permute(elements, LS_SHAPE(0, 3, 1, 2)) : elements;
}
