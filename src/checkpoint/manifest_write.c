/* SPDX-License-Identifier: Apache-2.0 */
/* Making a manifest: rank 0 adds the files and every rank's pieces, then its hash. */
#include "checkpoint/manifest.h"

#include <stdlib.h>
#include <string.h>

#include <lockstep/version.h>

#include "checkpoint/manifest_text.h"
#include "checkpoint/shape.h"

/* The hash must be the first key: ls__manifest_text replaces its zeros in place. jansson keeps
 * the order of insertion. */
json_t *ls__manifest_new(int64_t step, int world_size)
{
    char zeros[LS__DIGEST_HEX + 1];
    memset(zeros, '0', LS__DIGEST_HEX);
    zeros[LS__DIGEST_HEX] = '\0';
    return json_pack("{s:s, s:s, s:i, s:s, s:I, s:i, s:s, s:{}, s:{}}", "hash", zeros, "format",
                     LS__MANIFEST_FORMAT, "version", LS__MANIFEST_VERSION, "library", LS_VERSION,
                     "step", (json_int_t)step, "world_size", world_size, "hash_name",
                     LS__DIGEST_NAME, "files", "tensors");
}

/* Returns false only without memory. */
bool ls__manifest_set_nonfinite(json_t *manifest, const char *tensor)
{
    return json_object_set_new(manifest, "nonfinite", json_string(tensor)) == 0;
}

/* Returns false only without memory. */
bool ls__manifest_add_file(json_t *manifest, const char *name, size_t bytes,
                           const uint8_t hash[LS__DIGEST_BYTES])
{
    char hex[LS__DIGEST_HEX + 1];
    ls__digest_hex(hash, hex);
    json_t *entry = json_pack("{s:I, s:s}", "bytes", (json_int_t)bytes, "hash", hex);
    return entry != NULL &&
           json_object_set_new(json_object_get(manifest, "files"), name, entry) == 0;
}

/* Returns a new reference, or NULL without memory. */
static json_t *tensor_json(const ls_state_tensor *t)
{
    return json_pack("{s:s, s:o, s:[]}", "dtype", ls__shape_dtype_name(t->dtype), "shape",
                     ls__shape_json(t->global, t->ndim), "pieces");
}

/* Returns false only without memory. The first piece with a key makes the manifest one of the later
 * version. */
bool ls__manifest_add_piece(json_t *manifest, const char *file, const char *name, int key,
                            const ls_state_tensor *t, const int64_t *start, const int64_t *dim)
{
    json_t *tensors = json_object_get(manifest, "tensors");
    if (json_object_get(tensors, name) == NULL &&
        json_object_set_new(tensors, name, tensor_json(t)) != 0) {
        return false;
    }
    json_t *piece =
        json_pack("{s:s, s:o, s:o}", "file", file, "start", ls__shape_json(start, t->ndim), "shape",
                  ls__shape_json(dim, t->ndim));
    json_t *pieces = json_object_get(json_object_get(tensors, name), "pieces");
    const bool keyed =
        key == 0 ||
        (json_object_set_new(piece, "key", json_integer(key)) == 0 &&
         json_object_set_new(manifest, "version", json_integer(LS__MANIFEST_VERSION_KEYS)) == 0);
    return json_array_append_new(pieces, piece) == 0 && keyed;
}

/* Dumps with zeros in place of the hash, hashes that text, then fills the hash in; check_hash
 * does the reverse. */
char *ls__manifest_text(json_t *manifest, size_t *bytes)
{
    uint8_t hash[LS__DIGEST_BYTES];
    char *text = json_dumps(manifest, JSON_COMPACT);
    if (text == NULL) {
        return NULL;
    }
    *bytes = strlen(text);
    if (ls__manifest_hash(text, *bytes, hash) < 0) {
        free(text);
        return NULL;
    }
    char hex[LS__DIGEST_HEX + 1];
    ls__digest_hex(hash, hex);
    memcpy(text + LS__MANIFEST_HASH_AT, hex, LS__DIGEST_HEX);
    return text;
}
