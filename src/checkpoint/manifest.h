/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest: what a checkpoint consists of, written last and read first.
 *
 *     {"hash":"<of this file, with 64 zeros here>","format":"lockstep checkpoint","version":3,
 *      "library":"0.2.0","step":120,"world_size":4,"hash_name":"sha256",
 *      "files":{"state-00001-of-00004.safetensors":{"bytes":..,"hash":".."}, ..,
 * "scalars.json":..}, "tensors":{"model.fc1.weight":{"dtype":"F32","shape":[..],
 *                 "pieces":[{"file":"state-..","start":[0,0],"shape":[..]},
 *                           {"file":"state-..","key":1,"start":[9,0],"shape":[..]}]}}}
 *
 * The pieces of a tensor do not overlap and make up the whole; a small replicated one has one. In
 * its file a piece has the name of the tensor or, as a further piece in the same file, that name
 * with "#" and its "key", which only version 3 has. "nonfinite" is the name of a tensor that holds
 * NaN or infinity; without such a tensor it is left out, and older libraries ignore it.
 */
#ifndef LS_CHECKPOINT_MANIFEST_H
#define LS_CHECKPOINT_MANIFEST_H

#include <jansson.h>

#include <lockstep/state.h>

#include "base/arena.h"
#include "base/digest.h"
#include "base/json.h"

#define LS__MANIFEST_NAME "manifest.json"
#define LS__MANIFEST_BYTES_MAX ((size_t)64 << 20)
#define LS__MANIFEST_FORMAT "lockstep checkpoint"
/* 1 was hashed with BLAKE2b, which not every libcrypto can make 32 bytes long. 3 is written only
 * where a file holds several pieces of a tensor, so that older libraries read all others. */
#define LS__MANIFEST_VERSION 2
#define LS__MANIFEST_VERSION_KEYS 3
#define LS__MANIFEST_FILE_NAME_MAX 64

typedef struct ls__manifest_file {
    const char *name; /* no folder in it */
    size_t bytes;
    char hash[LS__DIGEST_HEX + 1];
} ls__manifest_file;

typedef struct ls__manifest_piece {
    int file; /* of the manifest's list */
    int key;  /* ls__piece_key */
    int64_t start[LS_DIMS_MAX], dim[LS_DIMS_MAX];
} ls__manifest_piece;

typedef struct ls__manifest_tensor {
    const char *name;
    ls_dtype dtype;
    int ndim;
    int64_t dim[LS_DIMS_MAX];
    ls__manifest_piece *pieces;
    int piece_count;
} ls__manifest_tensor;

typedef struct ls__manifest { /* everything in the arena it was parsed into */
    int64_t step;
    int version, world_size;
    const char *library;
    const char *nonfinite; /* a tensor that holds NaN or infinity; NULL: none, or nobody has
                              looked */
    char hash[LS__DIGEST_HEX + 1];
    ls__manifest_file *files; /* sorted by name */
    int file_count;
    ls__manifest_tensor *tensors; /* sorted by name */
    int tensor_count;
} ls__manifest;

/* Checks the hash and everything else that can be known without the files. LS_ERR_FORMAT,
 * LS_ERR_LIMIT, LS_ERR_MEMORY; LS_ERR_UNSUPPORTED: of a later version. */
ls_status ls__manifest_parse(const char *text, size_t bytes, const char *what, ls__arena *arena,
                             ls__manifest *out);
const ls__manifest_tensor *ls__manifest_find(const ls__manifest *manifest, const char *name);

/* A manifest without files and tensors; add them with the functions below, in any order. */
json_t *ls__manifest_new(int64_t step, int world_size);
bool ls__manifest_set_nonfinite(json_t *manifest, const char *tensor);
bool ls__manifest_add_file(json_t *manifest, const char *name, size_t bytes,
                           const uint8_t hash[LS__DIGEST_BYTES]);
/* Adds a piece of a tensor of which dtype and global shape are used. */
bool ls__manifest_add_piece(json_t *manifest, const char *file, const char *name, int key,
                            const ls_state_tensor *tensor, const int64_t *start,
                            const int64_t *dim);
/* The text, hash filled in; free with free(). NULL without memory. */
char *ls__manifest_text(json_t *manifest, size_t *bytes);

#endif
