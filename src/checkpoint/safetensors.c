/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing safetensors headers. jansson parses the JSON; everything that a header claims
 * is checked here, because the file may be hostile. */
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/foreign.h"
#include "base/size.h"
#include "base/text.h"
#include "checkpoint/shape.h"

#define LENGTH_BYTES LS__SAFETENSORS_TEXT

/* A tensor is an object, a shape and two offsets: three containers, so 349,525 tensors. Models of
 * 10^12 parameters have about 140,000 in all their files. */
const ls__json_limit ls__safetensors_limit = {LS__SAFETENSORS_HEADER_MAX, LS__JSON_VALUES_MAX,
                                              LS__JSON_CONTAINERS_MAX, 3};

/* What messages and checks need to know of a file: where its tensors are. */
typedef struct data {
    const char *what;
    size_t begin, bytes; /* begin: in the file */
} data;

/* ---- reading ------------------------------------------------------------------------------ */

/* The reference allows only strings here; nothing in it is used. */
static ls_status check_metadata(const json_t *metadata, const char *what)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) {
        return ls__fail(LS_ERR_FORMAT, "%s: __metadata__ is not an object", what);
    }
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value)) {
            return ls__fail(LS_ERR_FORMAT, "%s: __metadata__ \"%.80s\" is not a string", what, key);
        }
    }
    return LS_OK;
}

/* Also false beyond the array's end, where jansson returns NULL. */
static bool read_offset(const json_t *array, size_t i, size_t *out)
{
    const json_t *value = json_array_get(array, i);
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        return false;
    }
    *out = (size_t)json_integer_value(value);
    return true;
}

/* Sets begin and end relative to the end of the header; `bytes` is the size that dtype and shape
 * require. The parser makes them absolute after all checks. */
static ls_status read_place(const json_t *offsets, const data *d, size_t bytes, ls__safetensor *t)
{
    if (json_array_size(offsets) != 2 || !read_offset(offsets, 0, &t->begin) ||
        !read_offset(offsets, 1, &t->end)) {
        return ls__fail(LS_ERR_FORMAT, "%s: data_offsets of \"%.80s\" are not two counts of bytes",
                        d->what, t->name);
    }
    if (t->begin > t->end || t->end > d->bytes) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: \"%.80s\" claims bytes %zu to %zu of the data, which has %zu bytes "
                        "from offset %zu; the file is truncated or damaged",
                        d->what, t->name, t->begin, t->end, d->bytes, d->begin);
    }
    if (t->foreign == NULL && t->end - t->begin != bytes) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: \"%.80s\" at offset %zu has %zu bytes, but its shape needs %zu",
                        d->what, t->name, d->begin + t->begin, t->end - t->begin, bytes);
    }
    return LS_OK;
}

static const char *copy_text(ls__arena *arena, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = ls__arena_alloc(arena, bytes);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

/* A dtype that we do not have is the concern of whoever wants the tensor: often nobody does (scales
 * of float8 beside the weights). */
static ls_status read_dtype(const json_t *entry, const data *d, ls__arena *arena, ls__safetensor *t)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (name == NULL) {
        return ls__fail(LS_ERR_FORMAT, "%s: the dtype of \"%.80s\" is not a string", d->what,
                        t->name);
    }
    if (!ls__shape_dtype_find(name, &t->dtype)) {
        t->dtype = LS_DTYPE_COUNT;
        t->foreign = copy_text(arena, name);
        return t->foreign != NULL ? LS_OK
                                  : ls__fail(LS_ERR_MEMORY, "%s: no memory to read it", d->what);
    }
    return LS_OK;
}

/* Exactly three members are allowed, so a misspelled or future one is an error rather than
 * ignored. */
static ls_status read_tensor(const json_t *entry, const data *d, ls__arena *arena,
                             ls__safetensor *t)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    size_t bytes = 0;
    if (!json_is_object(entry) || json_object_size(entry) != 3) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: \"%.80s\" must have dtype, shape and data_offsets, and nothing else",
                        d->what, t->name);
    }
    LS_TRY(read_dtype(entry, d, arena, t));
    if (!ls__shape_read(json_object_get(entry, "shape"), t->dim, &t->ndim) ||
        (t->foreign == NULL && !ls__shape_bytes(t->dim, t->ndim, t->dtype, &bytes))) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: the shape of \"%.80s\" must have at most %d dimensions, none below "
                        "0, and a size below 2^63 bytes",
                        d->what, t->name, LS_DIMS_MAX);
    }
    return read_place(offsets, d, bytes, t);
}

/* Empty tensors share their begin with a neighbour; sorting by end as well puts them before it,
 * so they neither overlap nor leave a hole. */
static int by_place(const void *a, const void *b)
{
    const ls__safetensor *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    const ls__safetensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Sorted by place, each tensor begins where the one before it ended, and the last ends with the
 * file. Bytes that no tensor claims could hide other content. */
static ls_status check_places(ls__safetensors *f, const data *d)
{
    size_t at = 0;
    qsort(f->list, (size_t)f->count, sizeof *f->list, by_place);
    for (int i = 0; i < f->count; i++) {
        if (f->list[i].begin != at) {
            return ls__fail(LS_ERR_FORMAT, "%s: \"%.80s\" at offset %zu %s", d->what,
                            f->list[i].name, d->begin + f->list[i].begin,
                            f->list[i].begin < at ? "overlaps another tensor"
                                                  : "leaves a hole before it");
        }
        at = f->list[i].end;
    }
    if (at != d->bytes) {
        return ls__fail(LS_ERR_FORMAT, "%s: %zu bytes follow the last tensor, from offset %zu",
                        d->what, d->bytes - at, d->begin + at);
    }
    return LS_OK;
}

/* `count` grows before the entry is checked: on failure the caller discards the whole list. */
static ls_status read_entries(const json_t *root, const data *d, ls__arena *arena,
                              ls__safetensors *out)
{
    const char *key;
    json_t *entry;
    size_t room;
    LS_ASSERT(json_is_object(root)); /* it begins with a brace */
    if (!ls__mul_size(json_object_size(root) + 1, sizeof *out->list, &room) ||
        !(out->list = ls__arena_alloc(arena, room))) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to read it", d->what);
    }
    json_object_foreach((json_t *)(uintptr_t)root, key, entry)
    {
        if (strcmp(key, "__metadata__") == 0) {
            LS_TRY(check_metadata(entry, d->what));
            continue;
        }
        ls__safetensor *t = &out->list[out->count++];
        t->name = copy_text(arena, key);
        if (t->name == NULL) {
            return ls__fail(LS_ERR_MEMORY, "%s: no memory to read it", d->what);
        }
        LS_TRY(read_tensor(entry, d, arena, t));
    }
    return check_places(out, d);
}

/* Little-endian whatever the host is. The caller checks the range before it uses the value. */
static size_t load_length(const uint8_t *at)
{
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) {
        length = length << 8 | at[i];
    }
    return (size_t)length;
}

size_t ls__safetensors_header_bytes(const void *file, size_t bytes)
{
    return bytes < LENGTH_BYTES ? 0 : load_length(file);
}

/* Tried only on files that are not safetensors: any eight bytes may be the length of a header. */
const char *ls__safetensors_other_kind(const void *file, size_t bytes)
{
    const ls__foreign_kind kind = ls__foreign_kind_of(file, bytes);
    return kind == LS__FOREIGN_PICKLE || kind == LS__FOREIGN_ZIP
               ? "it is a pickle of PyTorch: convert it once: " LS__SAFETENSORS_CONVERT
               : ls__foreign_words(kind, NULL);
}

static ls_status not_safetensors(const void *file, size_t bytes, const char *what)
{
    const char *kind = ls__safetensors_other_kind(file, bytes);
    const size_t length = load_length(file);
    if (kind != NULL) {
        return ls__fail(LS_ERR_FORMAT, "%s: not safetensors: %s", what, kind);
    }
    return ls__fail(LS_ERR_FORMAT,
                    "%s: offset 0 claims a header of %zu bytes in a file of %zu (at most %zu are "
                    "allowed); it is truncated or not a safetensors file",
                    what, length, bytes, LS__SAFETENSORS_HEADER_MAX);
}

/* `file` is hostile input. It is borrowed: names are copied, but begin and end are offsets into
 * it. On failure `out` is empty. */
ls_status ls__safetensors_parse(const void *file, size_t bytes, const char *what, ls__arena *arena,
                                ls__safetensors *out)
{
    *out = (ls__safetensors){0};
    if (bytes < LENGTH_BYTES) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: it ends at offset %zu, within the %d bytes that hold the length of "
                        "its header; it is truncated or not a safetensors file",
                        what, bytes, LENGTH_BYTES);
    }
    const size_t length = load_length(file);
    if (length > LS__SAFETENSORS_HEADER_MAX || length > bytes - LENGTH_BYTES) {
        return not_safetensors(file, bytes, what);
    }
    const char *text = (const char *)file + LENGTH_BYTES;
    if (length == 0 || text[0] != '{') {
        return ls__fail(LS_ERR_FORMAT, "%s: the header, at offset %d, does not begin with \"{\"",
                        what, LENGTH_BYTES);
    }
    json_t *root = NULL;
    LS_TRY(ls__json_read(what, text, length, LENGTH_BYTES, &ls__safetensors_limit, &root));
    const size_t begin = LENGTH_BYTES + length;
    const data d = {what, begin, bytes - begin};
    ls_status status = read_entries(root, &d, arena, out);
    json_decref(root);
    for (int i = 0; i < out->count; i++) {
        out->list[i].begin += begin;
        out->list[i].end += begin;
    }
    if (status == LS_OK) {
        qsort(out->list, (size_t)out->count, sizeof *out->list, by_name);
    } else {
        *out = (ls__safetensors){0};
    }
    return status;
}

/* Relies on the sort by name at the end of parsing. */
const ls__safetensor *ls__safetensors_find(const ls__safetensors *file, const char *name)
{
    const ls__safetensor key = {.name = name};
    return file->count == 0
               ? NULL
               : bsearch(&key, file->list, (size_t)file->count, sizeof *file->list, by_name);
}

/* ---- writing ------------------------------------------------------------------------------ */

/* Returns false without memory. The name must be valid UTF-8, or jansson refuses it. */
bool ls__safetensors_add(json_t *header, const ls__safetensor *t, size_t begin, size_t bytes)
{
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", ls__shape_dtype_name(t->dtype),
                              "shape", ls__shape_json(t->dim, t->ndim), "data_offsets",
                              (json_int_t)begin, (json_int_t)(begin + bytes));
    LS_ASSERT(ls__utf8_valid(t->name));
    return entry != NULL && json_object_set_new(header, t->name, entry) == 0;
}

/* Serializes the header once without storing it, only to learn its length. */
size_t ls__safetensors_prefix(const json_t *header)
{
    size_t length = json_dumpb(header, NULL, 0, JSON_COMPACT);
    return ls__round_up(LENGTH_BYTES + length, LS__SAFETENSORS_ALIGN);
}

/* `prefix` must come from ls__safetensors_prefix of the same header; the padding of spaces is
 * part of the JSON's length. */
void ls__safetensors_write(const json_t *header, uint8_t *out, size_t prefix)
{
    LS_ASSERT(prefix >= LENGTH_BYTES);
    const uint64_t length = prefix - LENGTH_BYTES;
    for (int i = 0; i < LENGTH_BYTES; i++) {
        out[i] = (uint8_t)(length >> (8 * i));
    }
    memset(out + LENGTH_BYTES, ' ', (size_t)length);
    (void)json_dumpb(header, (char *)out + LENGTH_BYTES, (size_t)length, JSON_COMPACT);
}
