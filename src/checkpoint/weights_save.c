/* SPDX-License-Identifier: Apache-2.0 */
/* Saving as one safetensors file, for other programs. The bytes go from the live tensors straight
 * to the disk, in walks over the items: one for the header, then one for each element size, since
 * tensors lie in the order of their element sizes (each then begins at a multiple of its own).
 *
 * __metadata__ is {"format": "pt"}: the tensors are laid out as PyTorch's, row by row. Hugging
 * Face's libraries refuse a file without a format.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/options.h"
#include "base/size.h"
#include "base/text.h"
#include "checkpoint/shape.h"
#include "checkpoint/weights.h"

#define NAME_MAX_BYTES 4096

typedef struct saving {
    const ls__env *env;
    ls__table table;
    const char *path;
    char temporary[LS__CHECKPOINT_PATH_MAX];
    int fd;
    size_t bytes;   /* of the whole file */
    size_t element; /* bytes of those this walk writes */
    int at;         /* in this walk */
} saving;

/* ---- the header --------------------------------------------------------------------------- */

/* Appends one entry to the header and advances *at past its bytes. A slice is refused: the file
 * would look complete to every reader. */
static ls_status add_tensor(json_t *header, const ls__saved_entry *e, const char *prefix,
                            size_t *at)
{
    char name[NAME_MAX_BYTES];
    const ls_state_tensor *t = &e->tensor;
    ls__safetensor saved = {.name = name, .dtype = t->dtype, .ndim = t->ndim};
    int length = snprintf(name, sizeof name, "%s%s", prefix, e->name);
    memcpy(saved.dim, t->global, sizeof saved.dim);
    if (!ls__tensor_is_whole(t)) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "ls_safetensors_save: this rank has only a slice of \"%.200s\"; show its "
                        "whole (ls_tensor_whole, ls_ddp_gather), or save a checkpoint instead",
                        e->name);
    }
    if (length < 0 || (size_t)length >= sizeof name) {
        return ls__fail(LS_ERR_LIMIT, "ls_safetensors_save: \"%.80s…\" has more than %d bytes",
                        e->name, NAME_MAX_BYTES - 1);
    }
    if (!ls__safetensors_add(header, &saved, *at, e->bytes)) {
        return ls__fail(LS_ERR_MEMORY, "ls_safetensors_save: no memory for the header");
    }
    if (!ls__add_size(*at, e->bytes, at)) {
        return ls__fail(LS_ERR_LIMIT, "ls_safetensors_save: the tensors are too large");
    }
    return LS_OK;
}

/* The order must equal that of write_tensors: larger elements first, and the order of the walk
 * within a size. */
static ls_status add_all(saving *s, json_t *header, const char *prefix)
{
    size_t at = 0;
    for (size_t element = 8; element > 0; element /= 2) {
        for (int i = 0; i < s->table.count; i++) {
            const ls__saved_entry *e = &s->table.list[i];
            if (e->type == LS__ENTRY_TENSOR && ls_dtype_size(e->tensor.dtype) == element) {
                LS_TRY(add_tensor(header, e, prefix, &at));
            }
        }
    }
    s->bytes = at + ls__safetensors_prefix(header);
    return LS_OK;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* The folder of a path, "." without one. */
static void folder_of(const char *path, char out[LS__CHECKPOINT_PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    int length = slash != NULL ? (int)(slash - path) + (slash == path) : 1;
    (void)snprintf(out, LS__CHECKPOINT_PATH_MAX, "%.*s", length, slash ? path : ".");
}

/* Continues short writes. A write of zero bytes is an I/O error, since repeating it might never
 * end. */
static ls_status write_all(const saving *s, const void *from, size_t bytes)
{
    const uint8_t *at = from;
    while (bytes > 0) {
        ssize_t put = s->env->write(s->env, s->fd, at, bytes);
        if (put <= 0) {
            char folder[LS__CHECKPOINT_PATH_MAX];
            folder_of(s->path, folder);
            return ls__file_write_failed(s->env, folder, s->temporary, s->bytes,
                                         put < 0 ? (int)put : -EIO);
        }
        at += put;
        bytes -= (size_t)put;
    }
    return LS_OK;
}

/* The header is small, so it is built in memory and written at once. */
static ls_status write_header(const saving *s, const json_t *header)
{
    const size_t prefix = ls__safetensors_prefix(header);
    uint8_t *bytes = s->env->allocate(s->env, prefix);
    if (bytes == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_safetensors_save: no memory for the header");
    }
    ls__safetensors_write(header, bytes, prefix);
    ls_status status = ls__json_check("ls_safetensors_save: the header",
                                      (const char *)bytes + LS__SAFETENSORS_TEXT,
                                      prefix - LS__SAFETENSORS_TEXT, &ls__safetensors_limit);
    if (status == LS_OK) {
        status = write_all(s, bytes, prefix);
    }
    s->env->release(s->env, bytes, prefix);
    return status;
}

/* A tensor of another size would shift every later one away from its offset in the header. */
static ls_status changed(const char *name)
{
    return ls__fail(LS_ERR_INVALID,
                    "ls_safetensors_save: a state function passed \"%.200s\" only in its second "
                    "call; it must visit the same state each time",
                    name);
}

/* Every walk sees all tensors but writes those of one element size; the others only advance the
 * position. */
static ls_status write_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    saving *s = self;
    const ls__saved_entry *e = ls__table_next(&s->table, &s->at, name, LS__ENTRY_TENSOR);
    size_t bytes;
    if (e == NULL || e->tensor.dtype != tensor->dtype ||
        !ls__shape_bytes(tensor->local, tensor->ndim, tensor->dtype, &bytes) || bytes != e->bytes) {
        return changed(name);
    }
    return ls_dtype_size(tensor->dtype) == s->element ? write_all(s, tensor->data, bytes) : LS_OK;
}

static ls_status skip_int64(void *self, const char *name, int64_t *value)
{
    saving *s = self;
    (void)value;
    return ls__table_next(&s->table, &s->at, name, LS__ENTRY_INT64) ? LS_OK : changed(name);
}

static ls_status skip_float64(void *self, const char *name, double *value)
{
    saving *s = self;
    (void)value;
    return ls__table_next(&s->table, &s->at, name, LS__ENTRY_FLOAT64) ? LS_OK : changed(name);
}

static bool has_element(const ls__table *table, size_t bytes)
{
    for (int i = 0; i < table->count; i++) {
        const ls__saved_entry *e = &table->list[i];
        if (e->type == LS__ENTRY_TENSOR && ls_dtype_size(e->tensor.dtype) == bytes) {
            return true;
        }
    }
    return false;
}

/* One walk for each element size that occurs: a state function may gather what it shows. The live
 * tensors are written directly: a copy of the model would double its memory. */
static ls_status write_tensors(saving *s, const ls_checkpoint_item *items, int count)
{
    const ls_state_visitor visitor = {.size = sizeof(ls_state_visitor),
                                      .self = s,
                                      .tensor = write_tensor,
                                      .int64 = skip_int64,
                                      .float64 = skip_float64};
    for (s->element = 8; s->element > 0; s->element /= 2) {
        s->at = 0;
        LS_TRY(has_element(&s->table, s->element) ? ls__items_visit(items, count, &visitor)
                                                  : LS_OK);
    }
    return LS_OK;
}

/* ---- the file ----------------------------------------------------------------------------- */

/* Writes the whole file and syncs it; the descriptor stays open. */
static ls_status write_file(saving *s, const ls_checkpoint_item *items, int count,
                            const json_t *header)
{
    LS_TRY(write_header(s, header));
    LS_TRY(write_tensors(s, items, count));
    const int synced = s->env->fsync(s->env, s->fd);
    return synced < 0 ? ls__file_fail(synced, "checkpoint", "cannot sync to disk", s->temporary)
                      : LS_OK;
}

/* Closes the file and gives it its name. A failed close counts, since network file systems report
 * lost writes there. */
static ls_status publish(const saving *s)
{
    const ls__env *env = s->env;
    char folder[LS__CHECKPOINT_PATH_MAX];
    const int closed = env->close(env, s->fd);
    if (closed < 0) {
        return ls__file_fail(closed, "checkpoint", "cannot sync to disk", s->temporary);
    }
    const int renamed = env->rename(env, s->temporary, s->path);
    if (renamed < 0) {
        return ls__file_fail(renamed, "checkpoint", "cannot make", s->path);
    }
    folder_of(s->path, folder);
    return ls__file_sync_folder(env, folder);
}

/* The temporary name carries the process id, so two processes that save to one path do not write
 * into one file; the later rename wins. It is a new file: nobody's link in a shared folder is
 * followed. The bytes are durable before the name exists; on failure an older file of the name
 * stays. */
static ls_status save(saving *s, const ls_checkpoint_item *items, int count, json_t *header,
                      const char *prefix)
{
    LS_TRY(ls__table_collect(&s->table, items, count));
    LS_TRY(add_all(s, header, prefix));
    (void)snprintf(s->temporary, sizeof s->temporary, "%s.%d.part", s->path,
                   (int)s->env->pid(s->env));
    s->fd = ls__file_create(s->env, s->temporary, 0666);
    if (s->fd < 0) {
        return ls__file_fail(s->fd, "checkpoint", "cannot make", s->temporary);
    }
    ls_status status = write_file(s, items, count, header);
    if (status < 0) {
        (void)s->env->close(s->env, s->fd);
    } else {
        status = publish(s);
    }
    if (status < 0) {
        (void)s->env->remove_file(s->env, s->temporary); /* fails after the rename, which is fine */
    }
    return status;
}

/* Local, not collective: rank 0 alone calls it. */
ls_status ls_safetensors_save(const char *path, const ls_checkpoint_item *items, int count,
                              const ls_safetensors_options *options)
{
    LS__OPTIONS(ls_safetensors_options, given, options);
    ls_runtime *runtime = ls__runtime_get("ls_safetensors_save");
    if (runtime == NULL) {
        return ls__self.status;
    }
    if (path == NULL || path[0] == '\0' || strlen(path) >= LS__CHECKPOINT_FOLDER_MAX) {
        return ls__fail(LS_ERR_INVALID, "ls_safetensors_save: give a path of 1 to %d bytes",
                        LS__CHECKPOINT_FOLDER_MAX - 1);
    }
    if (given.prefix != NULL && !ls__utf8_valid(given.prefix)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_safetensors_save: the prefix \"%.80s\" is not valid UTF-8; give "
                        "another one",
                        given.prefix);
    }
    saving s = {.env = runtime->env, .path = path};
    ls__table_init(&s.table, runtime->env);
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    ls_status status =
        header ? save(&s, items, count, header, given.prefix ? given.prefix : "")
               : ls__fail(LS_ERR_MEMORY, "ls_safetensors_save: no memory for the header");
    json_decref(header);
    ls__table_fini(&s.table);
    return status;
}
