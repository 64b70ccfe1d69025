/* SPDX-License-Identifier: Apache-2.0 */
/* This rank's file as bytes in memory: header, then room for the tensors. It is the snapshot that
 * an asynchronous save writes from; the memory is kept for the next one.
 *
 * Tensors lie in order of element size, then name, as the reference implementation puts them, so
 * each begins at a multiple of its element size.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "checkpoint/internal.h"

/* Names are valid UTF-8 (ls__table_add), so jansson fails only without memory. */
static ls_status no_memory(const char *what)
{
    return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for %s", what);
}

/* ---- the file ----------------------------------------------------------------------------- */

/* Adds the pieces that this rank writes, of one element size, in order of names. Offsets count
 * from the end of the header, whose size is not yet known; *at is advanced. */
static ls_status add_tensors(ls__shown *shown, size_t element, json_t *header, size_t *at)
{
    char key[LS__PIECE_KEY_MAX];
    for (int i = 0; i < shown->piece_count; i++) {
        ls__piece *p = &shown->pieces[i];
        const ls_state_tensor *t = &p->entry->tensor;
        if (p->rank != shown->rank || ls_dtype_size(t->dtype) != element) {
            continue;
        }
        ls__safetensor saved = {
            .name = ls__piece_key(p->entry->name, p->key, key), .dtype = t->dtype, .ndim = t->ndim};
        memcpy(saved.dim, p->part.dim, sizeof saved.dim);
        p->offset = *at;
        if (!ls__safetensors_add(header, &saved, *at, p->part.bytes)) {
            return no_memory("the header");
        }
        const bool fits = ls__add_size(*at, p->part.bytes, at);
        LS_ASSERT(fits); /* it lies in memory */
    }
    return LS_OK;
}

/* The buffer only grows, so a training run allocates it once. The offsets become absolute here,
 * which is why the function must run exactly once a plan. */
static ls_status make_image(ls_checkpoint *c, const json_t *header, size_t data)
{
    const size_t prefix = ls__safetensors_prefix(header);
    size_t bytes;
    if (prefix > LS__SAFETENSORS_HEADER_MAX || !ls__add_size(prefix, data, &bytes)) {
        return ls__fail(LS_ERR_LIMIT, "checkpoint: a header of %zu bytes; at most %zu are allowed",
                        prefix, LS__SAFETENSORS_HEADER_MAX);
    }
    if (bytes > c->image_room) {
        if (c->image != NULL) {
            c->env->release(c->env, c->image, c->image_room);
        }
        c->image_room = 0;
        c->image = c->env->allocate(c->env, bytes);
        if (c->image == NULL) {
            return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for a copy of %zu bytes", bytes);
        }
        c->image_room = bytes;
    }
    c->image_bytes = bytes;
    ls__safetensors_write(header, c->image, prefix);
    for (int i = 0; i < c->shown.piece_count; i++) {
        c->shown.pieces[i].offset += prefix;
    }
    return LS_OK;
}

/* Other readers ignore these entries; people who look into a single file learn its step from
 * them. */
static json_t *metadata(int64_t step)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)step);
    return json_pack("{s:{s:s, s:s}}", "__metadata__", "format", "lockstep", "step", text);
}

/* Larger elements come first: each group then begins at a multiple of its element size, and a
 * reader may use the mapped tensors in place. */
static ls_status build_file(ls_checkpoint *c, json_t *header)
{
    size_t at = 0;
    for (size_t element = 8; element > 0; element /= 2) {
        LS_TRY(add_tensors(&c->shown, element, header, &at));
    }
    return make_image(c, header, at);
}

/* ---- scalars ------------------------------------------------------------------------------ */

/* A finite number has 17 digits in JSON and comes back exactly. JSON has no infinities or NaNs,
 * so their bits are written as a string; read_float64 in restore.c is the inverse. */
static json_t *number_json(double value)
{
    uint64_t bits;
    char text[24];
    if (isfinite(value)) {
        return json_real(value);
    }
    memcpy(&bits, &value, sizeof bits);
    (void)snprintf(text, sizeof text, "0x%016llx", (unsigned long long)bits);
    return json_string(text);
}

/* Rank 0 writes the scalars of all ranks. Those of one name are equal, so any of them will do. */
static ls_status build_scalars(ls_checkpoint *c)
{
    json_t *root = json_object();
    bool good = root != NULL;
    for (int i = 0; good && i < c->shown.count; i++) {
        const ls__saved_entry *e = c->shown.sorted[i];
        if (e->type != LS__ENTRY_TENSOR) {
            json_t *value =
                e->type == LS__ENTRY_INT64 ? json_integer(e->int64) : number_json(e->float64);
            good = value != NULL && json_object_set_new(root, e->name, value) == 0;
        }
    }
    free(c->scalars);
    c->scalars = good ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    return c->scalars ? LS_OK : no_memory("the scalars");
}

/* Replaces c->image's contents and c->scalars. The tensors' bytes are still undefined afterwards;
 * ls__table_copy fills them. */
ls_status ls__image_build(ls_checkpoint *c)
{
    json_t *header = metadata(c->step);
    ls_status status = header != NULL ? build_file(c, header) : no_memory("the header");
    json_decref(header);
    if (status == LS_OK && c->rank == 0) {
        status = build_scalars(c);
    }
    return status;
}
