/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors files of a model that another program wrote: one, or several with an index.
 *
 *   weights_open.c   path -> mapped files whose headers are read and checked
 *   weights_load.c   pairs their names with what the items show, then copies
 *   weights_save.c   the reverse: one file
 *
 * Files are mapped, not hashed: nothing says what their bytes should be.
 */
#ifndef LS_CHECKPOINT_WEIGHTS_H
#define LS_CHECKPOINT_WEIGHTS_H

#include "checkpoint/internal.h"

#define LS__WEIGHTS_NAME "model.safetensors"
#define LS__WEIGHTS_INDEX_NAME "model.safetensors.index.json"
#define LS__WEIGHTS_FILES_MAX 4096 /* a file of an index holds some gigabytes; bounds its lists */

/* Of all files of an index together, since they may be links to one; bounds the time of parsing
 * them. */
#define LS__WEIGHTS_HEADERS_MAX (2 * LS__SAFETENSORS_HEADER_MAX)

typedef struct ls__weights_file {
    const char *name; /* as the index says it; "" without one */
    void *mapped;
    size_t bytes;
    ls__safetensors header;
    bool *used; /* [header.count]: something took it */
} ls__weights_file;

typedef struct ls__weights {
    ls__arena arena;
    size_t header_bytes;     /* of all files so far */
    ls__weights_file *files; /* in the arena */
    int count;
} ls__weights;

/* LS_ERR_NOT_FOUND, LS_ERR_FORMAT and LS_ERR_SYSTEM name the file. Close it, whatever it returns.
 */
ls_status ls__weights_open(const ls__env *env, const char *path, ls__weights *out);
void ls__weights_close(ls__weights *weights);

/* The tensor of this name, where its bytes are, and its mark; NULL: no file has it. */
const ls__safetensor *ls__weights_find(const ls__weights *weights, const char *name,
                                       const uint8_t **bytes, bool **used);

#endif
