/* SPDX-License-Identifier: Apache-2.0 */
/* Formats of other tools, known by their first bytes. People hand such files to a reader by
 * mistake: a pointer that git-lfs left in place of the file, a page that a server sent instead of
 * it, an archive that is still packed. Readers ask here before they report a magic number that they
 * do not know, and readers of files without one (raw tokens, text) before they take any bytes for
 * data. */
#ifndef LS_BASE_FOREIGN_H
#define LS_BASE_FOREIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lockstep/status.h>

typedef enum ls__foreign_kind {
    LS__FOREIGN_NONE = 0, /* none of those below */
    LS__FOREIGN_LFS,      /* a pointer of git-lfs */
    LS__FOREIGN_HTML,     /* a page */
    LS__FOREIGN_PICKLE,   /* of Python, from protocol 2 on */
    LS__FOREIGN_ZIP,      /* .npz, torch.save */
    LS__FOREIGN_GZIP,
    LS__FOREIGN_PACKED, /* by another program: xz, bzip2, zstd */
    LS__FOREIGN_TAR,
    LS__FOREIGN_NPY,
    LS__FOREIGN_GGUF,
    LS__FOREIGN_HDF5,
    LS__FOREIGN_PARQUET,
    LS__FOREIGN_INDEX, /* of Megatron's or fairseq's token files */
    LS__FOREIGN_KINDS
} ls__foreign_kind;

/* Enough of a file to know its kind. */
#define LS__FOREIGN_BYTES ((size_t)264)

/* `data` is the file, or its first LS__FOREIGN_BYTES; NULL if `bytes` is 0. */
ls__foreign_kind ls__foreign_kind_of(const uint8_t *data, size_t bytes);
/* The end of a message: "it is a git-lfs pointer: run git lfs pull …"; `otherwise` for
 * KIND_NONE. */
const char *ls__foreign_words(ls__foreign_kind kind, const char *otherwise);

/* For readers of text, which has no magic number. A file of one of these kinds is LS_ERR_FORMAT if
 * the user named it; one that lay in a folder is warned of. A page may be the text that is
 * wanted. */
ls_status ls__foreign_check_text(const char *what, const char *path, const uint8_t *data,
                                 size_t bytes, bool named);

#endif
