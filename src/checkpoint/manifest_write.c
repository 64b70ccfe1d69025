/* Making a manifest: rank 0 adds the files and every rank's pieces, then its hash. */
#include "checkpoint/manifest.h"

#include <stdlib.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/error.h"
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

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for the manifest");
}

/* Whether the list already holds a piece of this start and shape: replicas show the same piece
 * on several ranks. */
static bool has_piece(const json_t *pieces, const json_t *start, const json_t *shape)
{
    size_t i;
    json_t *at;
    json_array_foreach(pieces, i, at)
    {
        if (json_equal(json_object_get(at, "start"), start) &&
            json_equal(json_object_get(at, "shape"), shape)) {
            return true;
        }
    }
    return false;
}

/* The comparison uses the packed form, so that both sides went through the same conversion. */
static ls_status append_piece(json_t *pieces, const char *file, const ls_state_tensor *t)
{
    json_t *piece =
        json_pack("{s:s, s:o, s:o}", "file", file, "start", ls__shape_json(t->start, t->ndim),
                  "shape", ls__shape_json(t->local, t->ndim));
    if (piece == NULL) {
        return no_memory();
    }
    if (has_piece(pieces, json_object_get(piece, "start"), json_object_get(piece, "shape"))) {
        json_decref(piece);
        return LS_OK;
    }
    return json_array_append_new(pieces, piece) == 0 ? LS_OK : no_memory();
}

/* The first rank that has a name decides dtype and shape; every later one must agree with it. */
ls_status ls__manifest_add_piece(json_t *manifest, const char *file, const char *name,
                                 const ls_state_tensor *t)
{
    json_t *tensors = json_object_get(manifest, "tensors");
    json_t *fresh = tensor_json(t);
    json_t *entry = json_object_get(tensors, name);
    if (fresh == NULL) {
        return no_memory();
    }
    if (entry == NULL) {
        if (json_object_set_new(tensors, name, fresh) != 0) {
            return no_memory();
        }
        entry = fresh;
    } else {
        bool same = json_equal(json_object_get(entry, "dtype"), json_object_get(fresh, "dtype")) &&
                    json_equal(json_object_get(entry, "shape"), json_object_get(fresh, "shape"));
        json_decref(fresh);
        if (!same) {
            return ls__fail(LS_ERR_MISMATCH,
                            "checkpoint: ranks have \"%.200s\" with different dtypes or shapes; "
                            "build the same model on every rank",
                            name);
        }
    }
    return append_piece(json_object_get(entry, "pieces"), file, t);
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
