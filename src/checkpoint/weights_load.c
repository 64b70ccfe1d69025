/* SPDX-License-Identifier: Apache-2.0 */
/* Loading by name. First every name is searched in the files, under its own name and then under the
 * alternatives that the caller knows, and every misfit is collected. Bytes are copied only after
 * that has succeeded, so an error changes nothing.
 *
 *     walk 1: table of the items' tensors     -> pair: a tensor of the files, or NULL
 *     tensors of the files without a pair     -> unexpected
 *     walk 2: pair by pair into the live memory, widened where the file is narrower
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/options.h"
#include "base/patient.h"
#include "checkpoint/shape.h"
#include "checkpoint/weights.h"

#define NAME_MAX_BYTES 4096
#define OTHER_NAMES_MAX                                                                            \
    64 /* of one tensor: a callback that never ends is a mistake, not a hang                       \
        */

/* ---- lists of names for a message --------------------------------------------------------- */

#define LIST_TEXT 480  /* three of them and the sentence around them fit a message */
#define LISTED_MAX 4   /* they show the pattern; the rest is counted */
#define PREFIXES_MAX 4 /* dots of a common prefix that are tried */

/* A list for a message: every name is counted, but only as many as fit are spelled out. */
typedef struct names {
    int count, listed;
    size_t used;
    char text[LIST_TEXT];
} names;

/* Once a name did not fit, later ones are only counted, so the list shows the first names
 * without gaps. */
static void names_add(names *list, const char *name, const char *more)
{
    char one[LIST_TEXT];
    int length = snprintf(one, sizeof one, "%s%.120s%s", list->listed ? ", " : "", name, more);
    list->count++;
    if (list->listed == list->count - 1 && list->listed < LISTED_MAX && length > 0 &&
        (size_t)length < sizeof one && list->used + (size_t)length < sizeof list->text) {
        memcpy(list->text + list->used, one, (size_t)length + 1);
        list->used += (size_t)length;
        list->listed++;
    }
}

/* Writes "; 2 are not in the file: a, b" into `out`, or the empty string. */
static void names_say(const names *list, const char *what, char *out, size_t bytes)
{
    char rest[32] = "";
    if (list->count > list->listed) {
        (void)snprintf(rest, sizeof rest, " and %d more", list->count - list->listed);
    }
    out[0] = '\0';
    if (list->count > 0) {
        (void)snprintf(out, bytes, "; %d %s: %s%s", list->count, what, list->text, rest);
    }
}

/* ---- pairing ------------------------------------------------------------------------------ */

typedef struct pair {             /* of one entry of the table */
    const ls__safetensor *tensor; /* NULL: the files have none */
    const uint8_t *bytes;
} pair;

typedef struct loading {
    ls_safetensors_options set;
    ls__weights files;
    ls__table table;
    pair *pairs; /* [table.count], in the order of the walk */
    names missing, unexpected, misshapen;
    int at; /* in walk 2 */
} loading;

/* Conversions to float32 only. float64 is narrowed as PyTorch's copy would; integers are
 * refused. */
static bool widens(ls_dtype there, ls_dtype here)
{
    return here == LS_FLOAT32 &&
           (there == LS_FLOAT16 || there == LS_BFLOAT16 || there == LS_FLOAT64);
}

/* The prefix applies to names in the file. A name too long for the buffer counts as absent. */
static const ls__safetensor *find(const loading *l, const char *name, pair *out, bool **used)
{
    char full[NAME_MAX_BYTES];
    int length = snprintf(full, sizeof full, "%s%s", l->set.prefix ? l->set.prefix : "", name);
    bool fits = length >= 0 && (size_t)length < sizeof full;
    return fits ? ls__weights_find(&l->files, full, &out->bytes, used) : NULL;
}

/* Does not fail: all misfits are collected, so that one message lists them together. */
static void check_fit(loading *l, const ls__saved_entry *e, const ls__safetensor *there)
{
    char text[2 * LS__SHAPE_TEXT + 64], a[LS__SHAPE_TEXT], b[LS__SHAPE_TEXT];
    const ls_state_tensor *here = &e->tensor;
    bool same = there->ndim == here->ndim &&
                memcmp(there->dim, here->global, (size_t)here->ndim * sizeof here->global[0]) == 0;
    if (!same || (there->dtype != here->dtype && !widens(there->dtype, here->dtype))) {
        (void)snprintf(text, sizeof text, " is %s %s in the file and %s %s here",
                       there->foreign != NULL ? there->foreign : ls_dtype_name(there->dtype),
                       ls__shape_text(there->dim, there->ndim, a), ls_dtype_name(here->dtype),
                       ls__shape_text(here->global, here->ndim, b));
        names_add(&l->misshapen, e->name, text);
    }
}

/* Whether the caller accepts that this name is on one side only; `in_file` names the side. */
static bool may_be(const loading *l, const char *name, bool in_file)
{
    return !l->set.strict || (l->set.allow && l->set.allow(l->set.arg, name, in_file));
}

/* The own name is tried first, then the caller's alternatives in order until the callback has no
 * more. A tensor of the file may serve several entries: tied weights. */
static ls_status pair_entry(loading *l, const ls__saved_entry *e, pair *out)
{
    char other[NAME_MAX_BYTES];
    bool *used = NULL;
    if (!ls__tensor_is_whole(&e->tensor)) {
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "ls_safetensors_load: this rank has only a slice of \"%.200s\"; load "
            "before the model is sharded or between ls_ddp_gather and ls_ddp_release, or use a "
            "checkpoint",
            e->name);
    }
    out->tensor = find(l, e->name, out, &used);
    for (int i = 0; !out->tensor && l->set.other_name && i < OTHER_NAMES_MAX; i++) {
        if (!l->set.other_name(l->set.arg, e->name, i, other, sizeof other)) {
            break;
        }
        out->tensor = find(l, other, out, &used);
    }
    if (out->tensor) {
        *used = true;
        check_fit(l, e, out->tensor);
    } else if (!may_be(l, e->name, false)) {
        names_add(&l->missing, e->name, "");
    }
    return LS_OK;
}

/* Names outside the prefix belong to another part of the model and are not reported. */
static void collect_unused(loading *l)
{
    const char *prefix = l->set.prefix ? l->set.prefix : "";
    for (int i = 0; i < l->files.count; i++) {
        const ls__weights_file *file = &l->files.files[i];
        for (int k = 0; k < file->header.count; k++) {
            const char *name = file->header.list[k].name;
            if (!file->used[k] && strncmp(name, prefix, strlen(prefix)) == 0 &&
                !may_be(l, name, true)) {
                names_add(&l->unexpected, name, "");
            }
        }
    }
}

/* Even without `strict`, a file that shares no name with the model is a mistake. One name of
 * each side shows the pattern that differs. */
static ls_status check_any(const loading *l, const char *path)
{
    const char *here = NULL, *there = NULL;
    for (int i = 0; i < l->table.count; i++) {
        if (l->pairs[i].tensor) {
            return LS_OK;
        }
        here = here != NULL || l->table.list[i].type != LS__ENTRY_TENSOR ? here
                                                                         : l->table.list[i].name;
    }
    for (int i = 0; !there && i < l->files.count; i++) {
        there = l->files.files[i].header.count ? l->files.files[i].header.list[0].name : NULL;
    }
    return here != NULL
               ? ls__fail(LS_ERR_MISMATCH,
                          "ls_safetensors_load: \"%.200s\" shares no name with this model: one in "
                          "the file is \"%.120s\", one here \"%.120s\"; see other_name and prefix",
                          path, there ? there : "", here)
               : LS_OK;
}

/* LS_OK if nothing was collected; nothing has been copied at this point. */
static ls_status report_misfits(const loading *l, const char *path)
{
    char missing[LIST_TEXT + 64], unexpected[LIST_TEXT + 64], misshapen[LIST_TEXT + 64];
    names_say(&l->missing, "not in the file", missing, sizeof missing);
    names_say(&l->unexpected, "only in the file", unexpected, sizeof unexpected);
    names_say(&l->misshapen, "of another shape or dtype", misshapen, sizeof misshapen);
    if (!missing[0] && !unexpected[0] && !misshapen[0]) {
        return check_any(l, path);
    }
    return ls__fail(LS_ERR_MISMATCH,
                    "ls_safetensors_load: \"%.200s\" does not fit this model%s%s%s; build the "
                    "model that it was saved from%s",
                    path, missing, unexpected, misshapen,
                    misshapen[0] ? "" : ", or set strict = false to load only the common tensors");
}

static ls_status pair_entries(loading *l)
{
    for (int i = 0; i < l->table.count; i++) {
        if (l->table.list[i].type == LS__ENTRY_TENSOR) {
            LS_TRY(pair_entry(l, &l->table.list[i], &l->pairs[i]));
        }
    }
    return LS_OK;
}

static bool is_paired(const loading *l)
{
    for (int i = 0; i < l->table.count; i++) {
        if (l->pairs[i].tensor != NULL) {
            return true;
        }
    }
    return false;
}

/* The text with which all names in the files begin, up to a dot; NULL: none. */
static const char *common_prefix(const ls__weights *w, size_t *length)
{
    const char *first = NULL;
    for (int i = 0; i < w->count; i++) {
        for (int k = 0; k < w->files[i].header.count; k++) {
            const char *name = w->files[i].header.list[k].name;
            size_t same = 0;
            *length = first == NULL ? strlen(name) : *length;
            first = first == NULL ? name : first;
            while (same < *length && name[same] == first[same]) {
                same++;
            }
            *length = same;
        }
    }
    while (first != NULL && *length > 0 && first[*length - 1] != '.') {
        --*length;
    }
    return first;
}

/* Weights saved through a wrapper ("module.", "_orig_mod."): if no name fits and all in the files
 * begin alike, they are read as names behind that prefix. */
static ls_status pair_behind_prefix(loading *l)
{
    size_t all = 0;
    const char *first = common_prefix(&l->files, &all);
    for (size_t at = 0, tried = 0; at < all && tried < PREFIXES_MAX; at++) {
        if (first[at] != '.') {
            continue;
        }
        char *prefix = ls__arena_alloc(&l->files.arena, at + 2);
        if (prefix == NULL) {
            return ls__fail(LS_ERR_MEMORY, "ls_safetensors_load: no memory");
        }
        memcpy(prefix, first, at + 1);
        prefix[at + 1] = '\0';
        l->set.prefix = prefix;
        l->missing = l->misshapen = (names){0};
        LS_TRY(pair_entries(l));
        if (is_paired(l)) {
            return LS_OK;
        }
        l->set.prefix = NULL;
        tried++;
    }
    return LS_OK;
}

/* Fails at once only for a slice or lack of memory; everything else is collected for one
 * message. */
static ls_status pair_all(loading *l, const char *path)
{
    l->pairs = calloc((size_t)l->table.count + 1, sizeof *l->pairs);
    if (l->pairs == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_safetensors_load: no memory for %d names",
                        l->table.count);
    }
    LS_TRY(pair_entries(l));
    if (l->set.prefix == NULL && !is_paired(l)) {
        LS_TRY(pair_behind_prefix(l));
    }
    collect_unused(l);
    return report_misfits(l, path);
}

/* ---- copying ------------------------------------------------------------------------------ */

/* The file's bytes may be unaligned, because the length of its header is arbitrary. */
static void widen(float *to, const uint8_t *from, ls_dtype dtype, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        double wide;
        switch (dtype) {
        case LS_FLOAT16:
            memcpy(&half, from + i * sizeof half, sizeof half);
            to[i] = ls__float16_widen(half);
            break;
        case LS_BFLOAT16:
            memcpy(&half, from + i * sizeof half, sizeof half);
            to[i] = ls__bfloat16_widen(half);
            break;
        default:
            memcpy(&wide, from + i * sizeof wide, sizeof wide);
            to[i] = (float)wide;
        }
    }
}

/* pair_all has seen the entry in walk 1, so only a state function that changed its answer leads
 * here. */
static ls_status changed(const char *name)
{
    return ls__fail(LS_ERR_INVALID,
                    "ls_safetensors_load: a state function passed \"%.200s\" only in its second "
                    "call; it must visit the same state each time",
                    name);
}

/* Entries without a pair keep their values: the caller has allowed that. */
static ls_status apply_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    loading *l = self;
    const ls__saved_entry *e = ls__table_next(&l->table, &l->at, name, LS__ENTRY_TENSOR);
    size_t bytes;
    if (e == NULL || e->tensor.dtype != tensor->dtype ||
        !ls__shape_bytes(tensor->local, tensor->ndim, tensor->dtype, &bytes) || bytes != e->bytes) {
        return changed(name);
    }
    const pair *from = &l->pairs[e - l->table.list];
    if (!from->tensor || bytes == 0) {
        return LS_OK;
    }
    if (from->tensor->dtype == tensor->dtype) {
        memcpy(tensor->data, from->bytes, bytes);
    } else {
        widen(tensor->data, from->bytes, from->tensor->dtype, bytes / sizeof(float));
    }
    return LS_OK;
}

static ls_status skip_int64(void *self, const char *name, int64_t *value)
{
    loading *l = self;
    (void)value;
    return ls__table_next(&l->table, &l->at, name, LS__ENTRY_INT64) ? LS_OK : changed(name);
}

static ls_status skip_float64(void *self, const char *name, double *value)
{
    loading *l = self;
    (void)value;
    return ls__table_next(&l->table, &l->at, name, LS__ENTRY_FLOAT64) ? LS_OK : changed(name);
}

/* ---- the call ----------------------------------------------------------------------------- */

/* The caller cleans up: `l` stays valid for closing at whatever point this fails. Nothing is
 * written before pair_all succeeded. */
static ls_status load(loading *l, const ls__env *env, const char *path,
                      const ls_checkpoint_item *items, int count)
{
    const ls_state_visitor visitor = {.size = sizeof(ls_state_visitor),
                                      .self = l,
                                      .tensor = apply_tensor,
                                      .int64 = skip_int64,
                                      .float64 = skip_float64};
    LS_TRY(ls__weights_open(env, path, &l->files));
    LS_TRY(ls__table_collect(&l->table, items, count));
    LS_TRY(pair_all(l, path));
    return ls__items_visit(items, count, &visitor);
}

/* Local, not collective: each rank reads the file itself. `loading` is on the heap because its
 * message lists are too large for a small thread's stack. */
ls_status ls_safetensors_load(const char *path, const ls_checkpoint_item *items, int count,
                              const ls_safetensors_options *options)
{
    LS__OPTIONS(ls_safetensors_options, given, options);
    ls_runtime *runtime = ls__runtime_get("ls_safetensors_load");
    if (runtime == NULL) {
        return ls__self.status;
    }
    loading *l = calloc(1, sizeof *l);
    if (l == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_safetensors_load: no memory");
    }
    l->set = given;
    ls__table_init(&l->table, runtime->env);
    ls__patient *patient = ls__patient_new(runtime->env, runtime->timeout_ms, SIZE_MAX);
    ls_status status = load(l, ls__patient_env(patient, runtime->env), path, items, count);
    ls__table_fini(&l->table);
    ls__weights_close(&l->files);
    ls__patient_free(patient);
    free(l->pairs);
    free(l);
    return status;
}
