/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: a file of named tensors.
 *
 *     u64 N (little-endian) | N bytes of JSON, padded with spaces | the tensors' bytes, no holes
 *
 * Reference: the format's README (Hugging Face). Reading treats the file as hostile: its header is
 * at most 64 MiB, every offset is checked against the file's size, regions neither overlap nor
 * leave holes, no key stands twice, and a shape's bytes are those of its region. The header's JSON
 * values are counted before it is parsed (base/json.h).
 */
#ifndef LS_CHECKPOINT_SAFETENSORS_H
#define LS_CHECKPOINT_SAFETENSORS_H

#include <jansson.h>

#include <lockstep/state.h>

#include "base/arena.h"
#include "base/json.h"

#define LS__SAFETENSORS_HEADER_MAX ((size_t)64 << 20) /* 100 MB in the reference */
#define LS__SAFETENSORS_TEXT 8                        /* where the JSON begins */
#define LS__SAFETENSORS_ALIGN 64                      /* where the tensors begin */

extern const ls__json_limit ls__safetensors_limit; /* of a header */

typedef struct ls__safetensor {
    const char *name;
    const char *foreign; /* the file's name of a dtype that we do not have; NULL: dtype is it */
    ls_dtype dtype;      /* LS_DTYPE_COUNT if it is foreign */
    int ndim;
    int64_t dim[LS_DIMS_MAX];
    size_t begin, end; /* in the file */
} ls__safetensor;

typedef struct ls__safetensors {
    ls__safetensor *list; /* sorted by name; in the arena */
    int count;
} ls__safetensors;

/* Reads the header of a whole file in memory; names and list are put into `arena`. `what` names the
 * file in messages. LS_ERR_FORMAT, LS_ERR_LIMIT or LS_ERR_MEMORY. */
ls_status ls__safetensors_parse(const void *file, size_t bytes, const char *what, ls__arena *arena,
                                ls__safetensors *out);
/* "it is a git-lfs pointer: …", as base/foreign.h has it; NULL: no kind that is known. */
const char *ls__safetensors_other_kind(const void *file, size_t bytes);
/* How a pickle of PyTorch becomes a file that can be read, as a command. */
#define LS__SAFETENSORS_CONVERT                                                                    \
    "python3 -c 'import torch, safetensors.torch as s; s.save_file({k: v.contiguous().clone() "    \
    "for "                                                                                         \
    "k, v in torch.load(\"pytorch_model.bin\", weights_only=True).items()}, "                      \
    "\"model.safetensors\")'"
const ls__safetensor *ls__safetensors_find(const ls__safetensors *file, const char *name);

/* Adds a tensor of `bytes` at `begin` (from the end of the header) to the JSON of a header. */
bool ls__safetensors_add(json_t *header, const ls__safetensor *tensor, size_t begin, size_t bytes);
/* Bytes of the file before the tensors, and those bytes. */
size_t ls__safetensors_header_bytes(const void *file,
                                    size_t bytes); /* as it claims; 0: too short */
size_t ls__safetensors_prefix(const json_t *header);
void ls__safetensors_write(const json_t *header, uint8_t *out, size_t prefix);

#endif
