/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzz targets; see targets.h. */
#include "targets.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/assert.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_text.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shape.h"

#define CHUNK 4096

static uint64_t sum_bytes(const uint8_t *data, size_t begin, size_t end)
{
    uint64_t sum = 0;
    for (size_t i = begin; i < end; i++) {
        sum += data[i];
    }
    return sum;
}

bool fuzz_safetensors(const uint8_t *data, size_t bytes)
{
    ls__arena arena;
    ls__safetensors file;
    volatile uint64_t sum = 0;
    ls__arena_init(&arena, ls__env_posix(), CHUNK);
    bool accepted = ls__safetensors_parse(data, bytes, "fuzz", &arena, &file) == LS_OK;
    for (int i = 0; accepted && i < file.count; i++) {
        const ls__safetensor *t = &file.list[i];
        size_t expected = 0;
        LS_ASSERT(t->begin <= t->end && t->end <= bytes);
        if (t->foreign == NULL) {
            LS_ASSERT(ls__shape_bytes(t->dim, t->ndim, t->dtype, &expected));
            LS_ASSERT(t->end - t->begin == expected);
        }
        LS_ASSERT(ls__safetensors_find(&file, t->name) == t);
        sum = sum + sum_bytes(data, t->begin, t->end);
    }
    ls__arena_fini(&arena);
    return accepted;
}

static void put_hash_right(char *text, size_t bytes)
{
    uint8_t hash[LS__DIGEST_BYTES];
    char hex[LS__DIGEST_HEX + 1];
    if (bytes >= LS__MANIFEST_HASH_AT + LS__DIGEST_HEX) {
        LS_ASSERT(ls__manifest_hash(text, bytes, hash) == LS_OK);
        ls__digest_hex(hash, hex);
        memcpy(text + LS__MANIFEST_HASH_AT, hex, LS__DIGEST_HEX);
    }
}

static void check_manifest(const ls__manifest *m)
{
    LS_ASSERT(m->step >= 0 && m->world_size >= 1 && m->library != NULL);
    for (int i = 0; i < m->tensor_count; i++) {
        const ls__manifest_tensor *t = &m->tensors[i];
        LS_ASSERT(ls__manifest_find(m, t->name) == t);
        for (int k = 0; k < t->piece_count; k++) {
            const ls__manifest_piece *p = &t->pieces[k];
            LS_ASSERT(p->file >= 0 && p->file < m->file_count);
            for (int d = 0; d < t->ndim; d++) {
                LS_ASSERT(p->start[d] >= 0 && p->dim[d] >= 0 &&
                          p->start[d] <= t->dim[d] - p->dim[d]);
            }
        }
    }
    for (int i = 0; i < m->file_count; i++) {
        LS_ASSERT(strchr(m->files[i].name, '/') == NULL && m->files[i].name[0] != '.');
    }
}

bool fuzz_manifest(const uint8_t *data, size_t bytes)
{
    ls__arena arena;
    ls__manifest manifest;
    char *text = malloc(bytes + 1);
    if (!text) {
        return false;
    }
    memcpy(text, data, bytes);
    put_hash_right(text, bytes);
    ls__arena_init(&arena, ls__env_posix(), CHUNK);
    bool accepted = ls__manifest_parse(text, bytes, "fuzz", &arena, &manifest) == LS_OK;
    if (accepted) {
        check_manifest(&manifest);
    }
    ls__arena_fini(&arena);
    free(text);
    return accepted;
}
