/* SPDX-License-Identifier: Apache-2.0 */
/* MNIST's IDX files (LeCun & Cortes): a big-endian header and raw bytes.
 *
 *     byte 0,1: 0    2: type (0x08 = uint8)    3: number of dimensions n
 *     n big-endian uint32 dimensions, then the product of them in bytes, and nothing after
 *
 * Everything the header claims is compared with the file's size before memory is taken, so a
 * damaged or hostile file costs one small read.
 */
#include <lockstep/data.h>

#include <stdlib.h>

#include "base/file.h"
#include "base/foreign.h"
#include "base/runtime.h"
#include "base/size.h"
#include "data/dataset.h"
#include "data/unpack.h"

#define IDX_UINT8 0x08
#define HEAD_BYTES LS__FOREIGN_BYTES /* the header has at most 4 + 4 * LS_DIMS_MAX */

/* One file; the data of sample i begin at header_bytes + i * each. */
typedef struct idx_file {
    int ndim;
    int64_t dim[LS_DIMS_MAX];
    int64_t each; /* bytes of one sample */
    int64_t header_bytes;
    ls__file file;
} idx_file;

/* Both files are read whole: MNIST and its kin are small. */
typedef struct idx {
    ls_dataset base;
    const ls__env *env;
    idx_file images, labels;
} idx;

/* An IDX dimension is an unsigned 32-bit number; the result is never negative. */
static int64_t big_endian(const uint8_t *at)
{
    return (int64_t)(((uint32_t)at[0] << 24) | ((uint32_t)at[1] << 16) | ((uint32_t)at[2] << 8) |
                     (uint32_t)at[3]);
}

/* Reads the first bytes and reports what they claim. Nothing is allocated from the claims;
 * check_size compares them with the file first. */
static ls_status parse_header(const char *path, const ls__file *head, idx_file *out)
{
    const uint8_t *at = head->data;
    if (head->bytes < 4) {
        return ls__fail(LS_ERR_FORMAT,
                        "IDX: \"%s\" has %zu bytes, an IDX header has at least 8; is the file "
                        "complete?",
                        path, head->bytes);
    }
    if (at[0] != 0 || at[1] != 0) {
        return ls__fail(
            LS_ERR_FORMAT,
            "IDX: \"%s\" starts with %02x %02x %02x %02x, an IDX file with 00 00; %s", path, at[0],
            at[1], at[2], at[3],
            ls__foreign_words(ls__foreign_kind_of(at, head->bytes), "is it another format?"));
    }
    if (at[2] != IDX_UINT8) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "IDX: \"%s\" has element type 0x%02x at offset 2; only 0x08, unsigned "
                        "bytes, is supported",
                        path, at[2]);
    }
    if (at[3] < 1 || at[3] > LS_DIMS_MAX) {
        return ls__fail(LS_ERR_FORMAT,
                        "IDX: \"%s\" claims %d dimensions at offset 3; there can be 1 to %d", path,
                        at[3], LS_DIMS_MAX);
    }
    out->ndim = at[3];
    out->header_bytes = 4 + 4 * (int64_t)out->ndim;
    if ((int64_t)head->bytes < out->header_bytes) {
        return ls__fail(LS_ERR_FORMAT,
                        "IDX: \"%s\" ends at offset %zu, within its header of %lld bytes; the "
                        "file is truncated",
                        path, head->bytes, (long long)out->header_bytes);
    }
    for (int i = 0; i < out->ndim; i++) {
        out->dim[i] = big_endian(at + 4 + 4 * i);
    }
    return LS_OK;
}

/* The header's claim must equal the file's size exactly: a longer file is another format or two
 * files in one. Also sets out->each, which idx_get needs. */
static ls_status check_size(const char *path, int64_t file_bytes, idx_file *out)
{
    int64_t claimed = 0;
    out->each = 1;
    for (int i = 1; i < out->ndim; i++) {
        if (!ls__mul_int64(out->each, out->dim[i], &out->each)) {
            return ls__fail(LS_ERR_FORMAT,
                            "IDX: the dimensions that \"%s\" claims at offset 4 overflow; it "
                            "is damaged",
                            path);
        }
    }
    if (!ls__mul_int64(out->each, out->dim[0], &claimed) ||
        claimed > INT64_MAX - out->header_bytes) {
        return ls__fail(LS_ERR_FORMAT,
                        "IDX: the dimensions that \"%s\" claims at offset 4 overflow; it is "
                        "damaged",
                        path);
    }
    if (claimed + out->header_bytes != file_bytes) {
        return ls__fail(LS_ERR_FORMAT,
                        "IDX: the header of \"%s\" claims %lld bytes of data, but %lld follow from "
                        "offset %lld; the file is truncated or damaged",
                        path, (long long)claimed, (long long)(file_bytes - out->header_bytes),
                        (long long)out->header_bytes);
    }
    if (claimed == 0) {
        return ls__fail(LS_ERR_INVALID,
                        "IDX: \"%s\" holds no data (offset 4: %lld samples of %lld bytes); give "
                        "another file",
                        path, (long long)out->dim[0], (long long)out->each);
    }
    return LS_OK;
}

/* Its size is known only when it is unpacked. */
static ls_status open_packed(const ls__env *env, const char *path, idx_file *out)
{
    LS_TRY(ls__file_read(env, "IDX", path, SIZE_MAX, &out->file));
    LS_TRY(ls__unpack(env, "IDX", path, &out->file));
    LS_TRY(parse_header(path, &out->file, out));
    return check_size(path, (int64_t)out->file.bytes, out);
}

/* Two reads: a small one for the header, and the whole file only once its size is consistent.
 * The second read detects a file that changed in between. On failure the buffer stays in `out`
 * for idx_free. */
static ls_status idx_open(const ls__env *env, const char *path, idx_file *out)
{
    ls__file head;
    ls__env_stat stat;
    LS_TRY(ls__file_stat(env, "IDX", path, &stat));
    LS_TRY(ls__file_read(env, "IDX", path, HEAD_BYTES, &head));
    const bool packed = ls__is_packed(head.data, head.bytes);
    ls_status status = packed ? LS_OK : parse_header(path, &head, out);
    ls__file_release(env, &head);
    if (packed) {
        return open_packed(env, path, out);
    }
    LS_TRY(status);
    LS_TRY(check_size(path, stat.bytes, out));
    LS_TRY(ls__file_read(env, "IDX", path, (size_t)stat.bytes, &out->file));
    if ((int64_t)out->file.bytes != stat.bytes) {
        return ls__fail(LS_ERR_FORMAT,
                        "IDX: \"%s\" shrank while it was read; is it still being written?", path);
    }
    return LS_OK;
}

/* Correct also when only one of the two files was loaded. */
static void idx_free(ls_dataset *self)
{
    idx *d = (idx *)self;
    ls__file_release(d->env, &d->images.file);
    ls__file_release(d->env, &d->labels.file);
    free(d);
}

/* Runs on the loader's thread; reads memory only. */
static ls_status idx_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const idx *d = (const idx *)self;
    LS_TRY(ls__dataset_check(self, "IDX", index));
    const uint8_t *image = d->images.file.data + d->images.header_bytes + index * d->images.each;
    float *pixels = x;
    for (int64_t i = 0; i < d->images.each; i++) {
        pixels[i] = (float)image[i] / 255.0f;
    }
    *(int32_t *)y = d->labels.file.data[d->labels.header_bytes + index];
    return LS_OK;
}

/* The labels' dimension is checked first: it tells swapped files apart from files of different
 * sets. */
static ls_status load_pair(idx *d, const char *images, const char *labels)
{
    LS_TRY(idx_open(d->env, images, &d->images));
    LS_TRY(idx_open(d->env, labels, &d->labels));
    if (d->labels.ndim != 1) {
        return ls__fail(LS_ERR_FORMAT,
                        "IDX: \"%s\" has %d dimensions at offset 3, labels have 1; were the "
                        "two files swapped?",
                        labels, d->labels.ndim);
    }
    if (d->images.dim[0] != d->labels.dim[0]) {
        return ls__fail(LS_ERR_INVALID,
                        "IDX: \"%s\" has %lld images and \"%s\" %lld labels (offset 4); they "
                        "belong to different sets",
                        images, (long long)d->images.dim[0], labels, (long long)d->labels.dim[0]);
    }
    return LS_OK;
}

/* Shapes of one sample: [N,H,W] gives [1,H,W] and [N,C,H,W] gives [C,H,W]. */
static ls_status image_shape(const char *path, const idx_file *images, ls_shape *out)
{
    if (images->ndim != 3 && images->ndim != 4) {
        return ls__fail(LS_ERR_FORMAT,
                        "IDX: \"%s\" has %d dimensions at offset 3; images have 3, [N,H,W], or 4, "
                        "[N,C,H,W] (ls_idx_dataset_new takes any as rows)",
                        path, images->ndim);
    }
    const int64_t channels = images->ndim == 4 ? images->dim[1] : 1;
    *out = LS_SHAPE(channels, images->dim[images->ndim - 2], images->dim[images->ndim - 1]);
    return LS_OK;
}

/* `shaped` keeps images as [C,H,W] rather than rows of pixels. */
static ls_status load(idx *d, const char *images, const char *labels, bool shaped)
{
    d->env = ls__self.runtime->env;
    if (images == NULL || !*images || labels == NULL || !*labels) {
        return ls__fail(LS_ERR_INVALID,
                        "IDX: a path is missing; give a file of images and one of labels");
    }
    LS_TRY(load_pair(d, images, labels));
    d->base.count = d->images.dim[0];
    d->base.x_shape = LS_SHAPE(d->images.each);
    d->base.y_shape = LS_SCALAR;
    d->base.x_dtype = LS_FLOAT32;
    d->base.y_dtype = LS_INT32;
    return shaped ? image_shape(images, &d->images, &d->base.x_shape) : LS_OK;
}

static ls_dataset *open_pair(const char *caller, const char *images, const char *labels,
                             bool shaped)
{
    idx *d = ls__dataset_new(caller, "IDX", sizeof *d, idx_get, idx_free);
    return d != NULL ? ls__dataset_loaded(&d->base, load(d, images, labels, shaped)) : NULL;
}

/* Samples are rows of pixels, [H*W]. */
ls_dataset *ls_idx_dataset_new(const char *images, const char *labels)
{
    return open_pair(__func__, images, labels, false);
}

/* Samples are images, [C,H,W]. */
ls_dataset *ls_idx_images_dataset_new(const char *images, const char *labels)
{
    return open_pair(__func__, images, labels, true);
}
