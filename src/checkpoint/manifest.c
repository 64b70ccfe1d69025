/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a manifest: the hash first, then every field, so that the result is consistent in itself.
 * load.c compares it with the files. */
#include "checkpoint/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "checkpoint/boxes.h"
#include "checkpoint/manifest_text.h"
#include "checkpoint/shape.h"

#define FILES_MAX 65536 /* far more than ranks */
/* A piece is an object, a start and a shape: three containers, so 349,525 pieces. */
#define PIECES_MAX (LS__JSON_CONTAINERS_MAX / 3)

static const ls__json_limit limit = {LS__MANIFEST_BYTES_MAX, LS__JSON_VALUES_MAX,
                                     LS__JSON_CONTAINERS_MAX, 6};

typedef struct reader {
    const char *what;
    ls__arena *arena;
    ls__manifest *out;
    ls__boxes boxes;
} reader;

/* `part` names the field as it stands in the file; the hash matched, so the writer, not the
 * disk, is at fault. */
static ls_status malformed(const reader *r, const char *part)
{
    return ls__fail(LS_ERR_FORMAT, "%s: %s is missing or malformed", r->what, part);
}

static ls_status no_memory(const reader *r)
{
    return ls__fail(LS_ERR_MEMORY, "%s: no memory to read it", r->what);
}

/* Into the arena, because the JSON is freed after parsing. */
static const char *copy_text(const reader *r, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = ls__arena_alloc(r->arena, bytes);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

/* Arena memory for `count` elements. One extra element avoids a request of zero bytes, whose
 * NULL would look like a lack of memory. */
static void *take_array(const reader *r, size_t count, size_t element)
{
    size_t bytes;
    return ls__mul_size(count + 1, element, &bytes) ? ls__arena_alloc(r->arena, bytes) : NULL;
}

/* ---- head --------------------------------------------------------------------------------- */

/* Version 1 was hashed with BLAKE2b, so its hash cannot be checked; its version field follows
 * the hash directly. */
static bool is_version_1(const char *text, size_t bytes)
{
    static const char behind[] = "\",\"format\":\"" LS__MANIFEST_FORMAT "\",\"version\":1,";
    const size_t at = LS__MANIFEST_HASH_AT + LS__DIGEST_HEX, length = sizeof behind - 1;
    return bytes >= at + length && memcmp(text + at, behind, length) == 0;
}

/* Runs on the raw bytes, before the JSON parser sees them. An old version gets its own message,
 * since its bytes are not damaged. */
static ls_status check_hash(const reader *r, const char *text, size_t bytes)
{
    uint8_t hash[LS__DIGEST_BYTES];
    if (bytes < LS__MANIFEST_HASH_AT + LS__DIGEST_HEX ||
        memcmp(text, LS__MANIFEST_HEAD, LS__MANIFEST_HASH_AT) != 0) {
        return malformed(r, "its hash");
    }
    LS_TRY(ls__manifest_hash(text, bytes, hash));
    ls__digest_hex(hash, r->out->hash);
    if (memcmp(text + LS__MANIFEST_HASH_AT, r->out->hash, LS__DIGEST_HEX) != 0) {
        if (is_version_1(text, bytes)) {
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "%s: it has format version 1, whose hash this library cannot check; "
                            "load and save it with the version that wrote it",
                            r->what);
        }
        return ls__fail(LS_ERR_FORMAT, "%s: its bytes do not match its hash; it is damaged",
                        r->what);
    }
    return LS_OK;
}

static bool is_text(const json_t *value, const char *expected)
{
    return json_is_string(value) && strcmp(json_string_value(value), expected) == 0;
}

/* The version is compared before the remaining fields: a later format may have changed them. */
static ls_status read_head(const reader *r, const json_t *root)
{
    const json_t *step = json_object_get(root, "step"), *size = json_object_get(root, "world_size");
    const json_t *version = json_object_get(root, "version");
    const json_t *library = json_object_get(root, "library");
    const json_t *nonfinite = json_object_get(root, "nonfinite");
    if (!is_text(json_object_get(root, "format"), LS__MANIFEST_FORMAT)) {
        return malformed(r, "\"format\"");
    }
    if (!json_is_integer(version) || json_integer_value(version) < 1) {
        return malformed(r, "\"version\"");
    }
    if (json_integer_value(version) > LS__MANIFEST_VERSION_KEYS) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "%s: it has format version %lld, but this library reads versions up to "
                        "%d; use a newer library",
                        r->what, (long long)json_integer_value(version), LS__MANIFEST_VERSION_KEYS);
    }
    if (!is_text(json_object_get(root, "hash_name"), LS__DIGEST_NAME)) {
        return malformed(r, "\"hash_name\"");
    }
    if (!json_is_integer(step) || json_integer_value(step) < 0) {
        return malformed(r, "\"step\"");
    }
    if (!json_is_integer(size) || json_integer_value(size) < 1 ||
        json_integer_value(size) > INT32_MAX) {
        return malformed(r, "\"world_size\"");
    }
    if (!json_is_string(library)) {
        return malformed(r, "\"library\"");
    }
    if (nonfinite != NULL && !json_is_string(nonfinite)) {
        return malformed(r, "\"nonfinite\"");
    }
    r->out->version = (int)json_integer_value(version);
    r->out->step = json_integer_value(step);
    r->out->world_size = (int)json_integer_value(size);
    r->out->library = copy_text(r, json_string_value(library));
    r->out->nonfinite = nonfinite != NULL ? copy_text(r, json_string_value(nonfinite)) : NULL;
    return r->out->library && (nonfinite == NULL || r->out->nonfinite) ? LS_OK : no_memory(r);
}

/* ---- files -------------------------------------------------------------------------------- */

/* Letters, digits, "-", "_" and ".", without a leading ".": such a name cannot lead out of the
 * folder. The manifest must not list itself. */
static bool file_name_is_good(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && length < LS__MANIFEST_FILE_NAME_MAX && name[0] != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
               length &&
           strcmp(name, LS__MANIFEST_NAME) != 0;
}

/* Sizes are not compared with the disk here; load.c does so when it maps the file. */
static ls_status read_file(const reader *r, const char *name, const json_t *entry,
                           ls__manifest_file *file)
{
    const json_t *bytes = json_object_get(entry, "bytes"), *hash = json_object_get(entry, "hash");
    if (!file_name_is_good(name) || !json_is_integer(bytes) || json_integer_value(bytes) < 0 ||
        json_string_length(hash) != LS__DIGEST_HEX) {
        return malformed(r, "an entry of \"files\"");
    }
    file->bytes = (size_t)json_integer_value(bytes);
    memcpy(file->hash, json_string_value(hash), LS__DIGEST_HEX + 1);
    file->name = copy_text(r, name);
    return file->name ? LS_OK : no_memory(r);
}

static int by_file_name(const void *a, const void *b)
{
    const ls__manifest_file *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* file_count grows with each complete entry, so a partial result is always consistent. */
static ls_status read_files(const reader *r, const json_t *files)
{
    const char *name;
    json_t *entry;
    if (!json_is_object(files) || json_object_size(files) > FILES_MAX) {
        return malformed(r, "\"files\"");
    }
    r->out->files = take_array(r, json_object_size(files), sizeof *r->out->files);
    if (!r->out->files) {
        return no_memory(r);
    }
    json_object_foreach((json_t *)(uintptr_t)files, name, entry)
    {
        LS_TRY(read_file(r, name, entry, &r->out->files[r->out->file_count]));
        r->out->file_count++;
    }
    qsort(r->out->files, (size_t)r->out->file_count, sizeof *r->out->files, by_file_name);
    return LS_OK;
}

/* Binary search in the sorted list; -1 also for a NULL name, which is a field missing in the
 * JSON. */
static int find_file(const ls__manifest *m, const char *name)
{
    const ls__manifest_file key = {.name = name};
    const ls__manifest_file *found =
        name == NULL || m->file_count == 0
            ? NULL
            : bsearch(&key, m->files, (size_t)m->file_count, sizeof key, by_file_name);
    return found != NULL ? (int)(found - m->files) : -1;
}

/* ---- tensors ------------------------------------------------------------------------------ */

/* All values are >= 0 as ls__shape_read guarantees; the subtraction avoids the overflow of start
 * + dim. */
static bool piece_is_inside(const ls__manifest_tensor *t, const ls__manifest_piece *p)
{
    for (int i = 0; i < t->ndim; i++) {
        if (p->start[i] > t->dim[i] || p->dim[i] > t->dim[i] - p->start[i]) {
            return false;
        }
    }
    return true;
}

/* Pieces that are inside the tensor cover it exactly if and only if each element is in one of them:
 * the sum of the functions "is in this piece" is the function "is in the tensor". */
static ls_status check_pieces(const reader *r, const ls__manifest_tensor *t)
{
    static const int64_t origin[LS_DIMS_MAX];
    const uint64_t whole = ls__box_print(&r->boxes, origin, t->dim, t->ndim);
    uint64_t sum = 0;
    size_t bytes;
    bool good = ls__shape_bytes(t->dim, t->ndim, t->dtype, &bytes);
    for (int i = 0; good && i < t->piece_count; i++) {
        const ls__manifest_piece *p = &t->pieces[i];
        good = piece_is_inside(t, p);
        sum = !good ? sum : ls__box_add(sum, ls__box_print(&r->boxes, p->start, p->dim, t->ndim));
    }
    if (!good || sum != whole) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: the pieces of \"%.200s\" do not cover the tensor exactly", r->what,
                        t->name);
    }
    return LS_OK;
}

/* A key is for a further piece of a tensor in one file. */
static bool read_key(const reader *r, const json_t *key, int *out)
{
    *out = (int)json_integer_value(key);
    return key == NULL || (r->out->version >= LS__MANIFEST_VERSION_KEYS && json_is_integer(key) &&
                           json_integer_value(key) >= 1 && json_integer_value(key) <= INT32_MAX);
}

/* The file must be listed already, hence files are read before tensors. */
static ls_status read_piece(const reader *r, const json_t *entry, const ls__manifest_tensor *t,
                            ls__manifest_piece *piece)
{
    int starts = 0, dims = 0;
    piece->file = find_file(r->out, json_string_value(json_object_get(entry, "file")));
    if (piece->file < 0 || !read_key(r, json_object_get(entry, "key"), &piece->key) ||
        !ls__shape_read(json_object_get(entry, "start"), piece->start, &starts) ||
        !ls__shape_read(json_object_get(entry, "shape"), piece->dim, &dims) || starts != t->ndim ||
        dims != t->ndim) {
        return malformed(r, "a piece of a tensor");
    }
    return LS_OK;
}

/* Without keys a tensor has at most one piece a file. Both limits bound the allocation by a number
 * already checked; the first piece that is not an object ends the reading. */
static ls_status read_tensor(const reader *r, const char *name, const json_t *entry,
                             ls__manifest_tensor *t)
{
    const json_t *pieces = json_object_get(entry, "pieces");
    const size_t most =
        r->out->version >= LS__MANIFEST_VERSION_KEYS ? PIECES_MAX : (size_t)r->out->file_count;
    if (!ls__shape_dtype_find(json_string_value(json_object_get(entry, "dtype")), &t->dtype) ||
        !ls__shape_read(json_object_get(entry, "shape"), t->dim, &t->ndim) ||
        !json_is_array(pieces) || json_array_size(pieces) > most) {
        return malformed(r, "an entry of \"tensors\"");
    }
    t->name = copy_text(r, name);
    t->pieces = take_array(r, json_array_size(pieces), sizeof *t->pieces);
    if (!t->name || !t->pieces) {
        return no_memory(r);
    }
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        LS_TRY(read_piece(r, json_array_get(pieces, i), t, &t->pieces[t->piece_count]));
        t->piece_count++;
    }
    return check_pieces(r, t);
}

static int by_name(const void *a, const void *b)
{
    const ls__manifest_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Sorted once at the end, for ls__manifest_find. */
static ls_status read_tensors(const reader *r, const json_t *tensors)
{
    const char *name;
    json_t *entry;
    ls__manifest *m = r->out;
    if (!json_is_object(tensors)) {
        return malformed(r, "\"tensors\"");
    }
    m->tensors = take_array(r, json_object_size(tensors), sizeof *m->tensors);
    if (!m->tensors) {
        return no_memory(r);
    }
    json_object_foreach((json_t *)(uintptr_t)tensors, name, entry)
    {
        LS_TRY(read_tensor(r, name, entry, &m->tensors[m->tensor_count]));
        m->tensor_count++;
    }
    qsort(m->tensors, (size_t)m->tensor_count, sizeof *m->tensors, by_name);
    return LS_OK;
}

/* Binary search in the sorted list; NULL when no tensor has the name. */
const ls__manifest_tensor *ls__manifest_find(const ls__manifest *m, const char *name)
{
    const ls__manifest_tensor key = {.name = name};
    return m->tensor_count == 0
               ? NULL
               : bsearch(&key, m->tensors, (size_t)m->tensor_count, sizeof *m->tensors, by_name);
}

static ls_status read_root(const reader *r, const json_t *root)
{
    LS_TRY(read_head(r, root));
    LS_TRY(read_files(r, json_object_get(root, "files")));
    return read_tensors(r, json_object_get(root, "tensors"));
}

/* On failure `out` may be filled partly and must not be used; its memory belongs to the arena
 * either way. */
ls_status ls__manifest_parse(const char *text, size_t bytes, const char *what, ls__arena *arena,
                             ls__manifest *out)
{
    *out = (ls__manifest){0};
    reader r = {what, arena, out, {{0}}};
    json_t *root = NULL;
    if (bytes > LS__MANIFEST_BYTES_MAX) { /* known before the hash, which takes time */
        return ls__fail(LS_ERR_LIMIT, "%s: it has %zu bytes, but at most %zu are allowed", what,
                        bytes, LS__MANIFEST_BYTES_MAX);
    }
    LS_TRY(check_hash(&r, text, bytes));
    r.boxes = ls__boxes_of(out->hash);
    LS_TRY(ls__json_read(what, text, bytes, 0, &limit, &root));
    ls_status status = read_root(&r, root);
    json_decref(root);
    return status;
}
