/* SPDX-License-Identifier: Apache-2.0 */
/* Images changed on their way: shifted, mirrored, normalised.
 *
 *     padded      0 0 0 0 0 0        the sample is a window of the image's own size, at a place
 *     by one      0 a b c d 0        drawn in 0 … 2 * padding down and to the right
 *                 0 e f g h 0
 *                 0 0 0 0 0 0        (He et al. 2016, section 4.2; RandomCrop of torchvision)
 *
 * The random choice is one block of Philox at (seed; epoch, index), so a sample looks the same
 * whichever rank reads it, in whatever order, before or after a restart, and different in the next
 * epoch. The image is changed in the caller's memory: nothing is stored, so any thread may read.
 */
#include <lockstep/data.h>
#include <lockstep/random.h>

#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/options.h"
#include "base/runtime.h"
#include "data/dataset.h"
#include "tensor/shape.h"

#define STREAM 0x7472616eu /* keeps these numbers apart from the sampler's of the same seed */
#define PADDING_MAX (1 << 20)

/* The data set around `images`, which it owns. */
typedef struct transform {
    ls_dataset base;
    ls_dataset *images;
    int64_t channels, height, width, padding;
    size_t bytes; /* of an image of `images` */
    bool flip, normalise;
    uint64_t seed;
    float scale[]; /* [2*channels] mean, then deviation, of each channel */
} transform;

/* The random choice for one sample, the same for all its channels. */
typedef struct draw {
    int64_t down, right; /* the window's place from the image's own */
    bool flip;
} draw;

/* The wrapped data set belongs to the transform since construction. */
static void transform_free(ls_dataset *self)
{
    transform *t = (transform *)self;
    ls_dataset_free(t->images);
    free(t);
}

/* Uniform in -padding … padding. The multiplication instead of a remainder keeps the bias below
 * 2^-11 even at PADDING_MAX. */
static int64_t place(uint32_t random, int64_t padding)
{
    return (int64_t)(((uint64_t)random * (uint64_t)(2 * padding + 1)) >> 32) - padding;
}

/* The draw depends on (seed, epoch, index) only, so it is the same on whichever rank and thread
 * the sample is read. */
static draw draw_for(const transform *t, int64_t epoch, int64_t index)
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)((uint64_t)index >> 32),
                                 (uint32_t)epoch, (uint32_t)((uint64_t)epoch >> 32)};
    const uint32_t key[2] = {(uint32_t)t->seed, (uint32_t)(t->seed >> 32) ^ STREAM};
    uint32_t out[4];
    ls_philox4x32(counter, key, out);
    return (draw){.down = place(out[0], t->padding),
                  .right = place(out[1], t->padding),
                  .flip = t->flip && out[2] >> 31 != 0};
}

/* row[i] becomes from[i + right], or 0 where that lies outside. Both may be the same row, hence
 * memmove before memset. */
static void shift_row(float *row, const float *from, int64_t width, int64_t right)
{
    const int64_t out = right < 0 ? -right : right;
    const int64_t kept = out < width ? width - out : 0;
    float *to = right < 0 ? row + width - kept : row;
    if (kept > 0) {
        memmove(to, right < 0 ? from : from + right, (size_t)kept * sizeof *row);
    }
    memset(right < 0 ? row : row + kept, 0, (size_t)(width - kept) * sizeof *row);
}

/* Shifts in place: rows are visited in the order in which none is overwritten before it is read. */
static void shift_plane(float *plane, int64_t height, int64_t width, const draw *d)
{
    for (int64_t k = 0; k < height; k++) {
        const int64_t i = d->down < 0 ? height - 1 - k : k, from = i + d->down;
        if (from >= 0 && from < height) {
            shift_row(plane + i * width, plane + from * width, width, d->right);
        } else {
            memset(plane + i * width, 0, (size_t)width * sizeof *plane);
        }
    }
}

/* Mirrors left and right; the middle column of an odd width stays. */
static void flip_plane(float *plane, int64_t height, int64_t width)
{
    for (int64_t i = 0; i < height; i++) {
        float *row = plane + i * width;
        for (int64_t k = 0; k < width / 2; k++) {
            const float left = row[k];
            row[k] = row[width - 1 - k];
            row[width - 1 - k] = left;
        }
    }
}

/* (x - mean) / deviation, in float32. */
static void normalise_plane(float *plane, int64_t pixels, float mean, float deviation)
{
    for (int64_t i = 0; i < pixels; i++) {
        plane[i] = (plane[i] - mean) / deviation;
    }
}

static bool widens(ls_dtype dtype)
{
    return dtype == LS_FLOAT32 || dtype == LS_FLOAT64 || dtype == LS_FLOAT16 || dtype == LS_UINT8 ||
           dtype == LS_BOOL;
}

/* Pixels of 0 … 255 become 0 … 1, as those of IDX and CIFAR files do; the others keep their
 * values. */
static void widen(const void *from, ls_dtype dtype, int64_t count, float *x)
{
    for (int64_t i = 0; i < count; i++) {
        switch (dtype) {
        case LS_FLOAT64:
            x[i] = (float)((const double *)from)[i];
            break;
        case LS_FLOAT16:
            x[i] = ls__float16_widen(((const uint16_t *)from)[i]);
            break;
        case LS_UINT8:
            x[i] = (float)((const uint8_t *)from)[i] / 255.0f;
            break;
        default:
            x[i] = (float)((const uint8_t *)from)[i]; /* a bool */
        }
    }
}

/* Images of another type pass through memory of this call's own: any thread may read. */
static ls_status read_image(const transform *t, int64_t epoch, int64_t index, void *x, void *y)
{
    const ls_dtype dtype = t->images->x_dtype;
    if (dtype == LS_FLOAT32) {
        return ls__dataset_get(t->images, epoch, index, x, y);
    }
    void *image = malloc(t->bytes);
    if (image == NULL) {
        return ls__fail(LS_ERR_MEMORY, "transform: no memory for an image of %zu bytes", t->bytes);
    }
    const ls_status status = ls__dataset_get(t->images, epoch, index, image, y);
    if (status == LS_OK) {
        widen(image, dtype, t->channels * t->height * t->width, x);
    }
    free(image);
    return status;
}

/* Writes only into x, so several threads may read at once. The order is fixed: shift, mirror,
 * normalise. The padding is therefore 0 before normalisation. */
static ls_status transform_get_in_epoch(ls_dataset *self, int64_t epoch, int64_t index, void *x,
                                        void *y)
{
    const transform *t = (const transform *)self;
    LS_TRY(read_image(t, epoch, index, x, y));
    const draw d = draw_for(t, epoch, index);
    const int64_t pixels = t->height * t->width;
    for (int64_t c = 0; c < t->channels; c++) {
        float *plane = (float *)x + c * pixels;
        if (d.down != 0 || d.right != 0) {
            shift_plane(plane, t->height, t->width, &d);
        }
        if (d.flip) {
            flip_plane(plane, t->height, t->width);
        }
        if (t->normalise) {
            normalise_plane(plane, pixels, t->scale[c], t->scale[t->channels + c]);
        }
    }
    return LS_OK;
}

/* Without an epoch the draw is that of epoch 0. */
static ls_status transform_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    return transform_get_in_epoch(self, 0, index, x, y);
}

/* The deviation is compared as float, the type it divides in: a tiny double may become 0. */
static ls_status check(const ls_dataset *images, const ls_transform_options *o)
{
    const ls_shape shape = images->x_shape;
    int64_t numel = 0;
    if (!widens(images->x_dtype) || shape.ndim != 3 || !ls__shape_numel(shape, &numel)) {
        return ls__fail(LS_ERR_INVALID,
                        "transform: the samples are %s %s; give a data set of images [C,H,W], "
                        "float16, float32, float64, uint8 or bool (ls_idx_images_dataset_new keeps "
                        "the shape)",
                        ls_dtype_name(images->x_dtype), ls__shape_print(shape).text);
    }
    if (o->crop_padding < 0 || o->crop_padding > PADDING_MAX) {
        return ls__fail(LS_ERR_INVALID, "transform: crop_padding is %lld; give 0…%d",
                        (long long)o->crop_padding, PADDING_MAX);
    }
    if ((o->mean || o->std) && o->channels != shape.dim[0]) {
        return ls__fail(LS_ERR_INVALID,
                        "transform: mean and std are given for %d channels, the images have %lld; "
                        "give one number each",
                        o->channels, (long long)shape.dim[0]);
    }
    for (int c = 0; o->std && c < o->channels; c++) {
        if (!((float)o->std[c] > 0.0f)) {
            return ls__fail(LS_ERR_INVALID,
                            "transform: std[%d] is %g; it divides, so it must be above 0", c,
                            o->std[c]);
        }
    }
    return LS_OK;
}

/* Takes `images` only on success; NULL without memory. Mean and deviation share one flexible
 * array. */
static transform *make_transform(ls_dataset *images, const ls_transform_options *o)
{
    const int64_t channels = images->x_shape.dim[0];
    transform *t = calloc(1, sizeof *t + 2 * (size_t)channels * sizeof t->scale[0]);
    if (t == NULL) {
        return NULL;
    }
    t->base =
        (ls_dataset)LS_DATASET(.count = images->count, .x_shape = images->x_shape,
                               .y_shape = images->y_shape, .x_dtype = LS_FLOAT32,
                               .y_dtype = images->y_dtype, .get = transform_get,
                               .free = transform_free, .get_in_epoch = transform_get_in_epoch);
    t->images = images;
    t->channels = channels;
    t->height = images->x_shape.dim[1];
    t->width = images->x_shape.dim[2];
    t->bytes = (size_t)(channels * t->height * t->width) * ls_dtype_size(images->x_dtype);
    t->padding = o->crop_padding;
    t->flip = o->flip;
    t->normalise = o->mean || o->std;
    t->seed = o->seed;
    for (int64_t c = 0; c < channels; c++) {
        t->scale[c] = o->mean ? (float)o->mean[c] : 0.0f;
        t->scale[channels + c] = o->std ? (float)o->std[c] : 1.0f;
    }
    return t;
}

static ls_status build(ls_dataset *images, const ls_transform_options *options, const char *caller,
                       transform **out)
{
    ls_transform_options given = ls_transform_defaults();
    LS_TRY(ls_options_read(&given, sizeof given, options, "ls_transform_options", caller));
    LS_TRY(ls__dataset_check_size(images, caller));
    LS_TRY(check(images, &given));
    *out = make_transform(images, &given);
    return *out != NULL ? LS_OK : ls__fail(LS_ERR_MEMORY, "transform: no memory");
}

/* Takes `images` in every case, also on failure, so constructor calls can be nested without
 * leaks. */
ls_dataset *ls_transform_dataset_new(ls_dataset *images, const ls_transform_options *options)
{
    if (images == NULL) {
        (void)ls__fail(LS_ERR_INVALID,
                       "transform: the data set is NULL; check what its constructor returned");
        return NULL;
    }
    transform *t = NULL;
    if (build(images, options, __func__, &t) < 0) {
        ls_dataset_free(images);
        return NULL;
    }
    return &t->base;
}
