/* SPDX-License-Identifier: Apache-2.0 */
/* See image_data.h. The images of the files are cropped and flipped at random, only for training,
 * and then normalised in the same way for training and evaluation. */
#include "image_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "trainer.h"

#define PATH_BYTES 1024

/* ---- formats of folders ------------------------------------------------------------------- */

typedef ls_dataset *(*opener)(const char *x, const char *y);

typedef struct layout {
    const char *format;
    opener open, open_labels;       /* the second as x and as y */
    const char *train[2], *test[2]; /* names of images and labels */
} layout;

static const layout layouts[] = {
    {"IDX",
     ls_idx_images_dataset_new,
     ls_idx_dataset_new,
     {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
     {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}},
    {"IDX",
     ls_idx_images_dataset_new,
     ls_idx_dataset_new,
     {"train-images.idx", "train-labels.idx"},
     {"test-images.idx", "test-labels.idx"}},
    {".npy",
     ls_npy_dataset_new,
     ls_npy_dataset_new,
     {"x_train.npy", "y_train.npy"},
     {"x_test.npy", "y_test.npy"}},
};
#define LAYOUTS (sizeof layouts / sizeof *layouts)
static const char *const cifar_names[] = {"data_batch_1.bin", "test_batch.bin"};

/* A file may be compressed, and is then called so; `path` is the plain name where there is none. */
static bool holds(const char *folder, const char *name, char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%.900s/%s.gz", folder, name);
    const bool packed = access(path, F_OK) == 0;
    (void)snprintf(path, PATH_BYTES, "%.900s/%s", folder, name);
    const bool plain = access(path, F_OK) == 0;
    if (packed && !plain) {
        (void)snprintf(path, PATH_BYTES, "%.900s/%s.gz", folder, name);
    }
    return packed || plain;
}

/* Checks all labels before the first step, so that the error names the position of a wrong one. */
static void check_labels(const char *path, opener open, int64_t classes)
{
    ls_dataset *labels = NULL;
    must(LS_STATUS_OF(labels = open(path, path))); /* no image is read for it */
    if (labels->y_shape.ndim > 0 || (labels->y_dtype != LS_INT32 && labels->y_dtype != LS_INT64)) {
        give_up(EXIT_FAILURE,
                "--data: \"%s\" holds %s of %d dimensions; labels are [N], int32 or int64", path,
                ls_dtype_name(labels->y_dtype), labels->y_shape.ndim + 1);
    }
    for (int64_t i = 0; i < labels->count; i++) {
        int64_t same, wide = 0;
        int32_t narrow = 0;
        bool is_wide = labels->y_dtype == LS_INT64;
        must(labels->get(labels, i, &same, is_wide ? (void *)&wide : &narrow));
        int64_t label = is_wide ? wide : narrow;
        if (label < 0 || label >= classes) {
            give_up(EXIT_FAILURE,
                    "--data: \"%s\": label %lld, counted from 0, is %lld; with --classes %lld "
                    "labels are 0 to %lld",
                    path, (long long)i, (long long)label, (long long)classes,
                    (long long)classes - 1);
        }
    }
    ls_dataset_free(labels);
}

static ls_dataset *open_pair(const image_options *o, const layout *l, const char *const names[2])
{
    char x[PATH_BYTES], y[PATH_BYTES];
    ls_dataset *data = NULL;
    if (holds(o->folder, names[0], x)) {
        (void)holds(o->folder, names[1], y);
        must(LS_STATUS_OF(data = l->open(x, y)));
        check_labels(y, l->open_labels, o->classes);
    }
    return data;
}

static ls_dataset *open_cifar(const char *folder, bool train)
{
    char path[PATH_BYTES];
    ls_dataset *data = NULL;
    if (holds(folder, cifar_names[train ? 0 : 1], path)) {
        must(LS_STATUS_OF(data = ls_cifar10_dataset_new(folder, train)));
    }
    return data;
}

static image_data open_folder(const image_options *o)
{
    image_data found = {.format = "CIFAR-10",
                        .train = open_cifar(o->folder, true),
                        .test = open_cifar(o->folder, false)};
    for (size_t i = 0; i < LAYOUTS && !found.train; i++) {
        const layout *l = &layouts[i];
        found = (image_data){.format = l->format,
                             .train = open_pair(o, l, l->train),
                             .test = open_pair(o, l, l->test)};
    }
    if (!found.train) {
        give_up(EXIT_FAILURE,
                "--data: \"%s\" holds none of %s, %s, %s and %s; name a folder with "
                "images",
                o->folder, layouts[0].train[0], layouts[1].train[0], layouts[2].train[0],
                cifar_names[0]);
    }
    return found;
}

/* ---- shapes, augmentation and normalisation ----------------------------------------------- */

typedef struct normalisation {
    int channels;
    double mean[3], std[3];
} normalisation;

static const normalisation numbers[] = {
    {0, {0.0}, {0.0}},
    {1, {0.1307}, {0.3081}},
    {3, {0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}},
    {3, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}},
};

static ls_dataset *change(ls_dataset *images, const image_options *o, bool train)
{
    const normalisation *n = &numbers[cli_choice(IMAGE_NORMALISATIONS, o->normalise)];
    bool augment = train && (o->crop_padding > 0 || o->flip);
    if (images == NULL || (n->channels == 0 && !augment && images->x_dtype == LS_FLOAT32)) {
        return images;
    }
    ls_dataset *changed = NULL;
    must(LS_STATUS_OF(
        changed = ls_transform_dataset_new(
            images, LS_OPTIONS(ls_transform_options, .crop_padding = train ? o->crop_padding : 0,
                               .flip = train && o->flip, .mean = n->channels ? n->mean : NULL,
                               .std = n->channels ? n->std : NULL, .channels = n->channels,
                               .seed = o->seed))));
    return changed;
}

/* The types that ls_transform_dataset_new takes. */
static bool are_numbers(ls_dtype dtype)
{
    return dtype == LS_FLOAT32 || dtype == LS_FLOAT64 || dtype == LS_FLOAT16 || dtype == LS_UINT8 ||
           dtype == LS_BOOL;
}

/* [H,W,C], as most tools save images: 28 channels of 28 rows of one pixel would be trained on
 * too. */
static bool channels_are_last(const int64_t dim[3])
{
    return dim[0] > 4 && (dim[2] == 3 || dim[2] == 4 || (dim[2] == 1 && dim[0] == dim[1]));
}

static void check_images(const char *folder, const ls_dataset *data)
{
    const int64_t *dim = data->x_shape.dim;
    if (data->x_shape.ndim != 3 || !are_numbers(data->x_dtype)) {
        give_up(
            EXIT_FAILURE,
            "--data: samples of \"%s\" are %s of %d dimensions; images have 3 (channels, height, "
            "width), float16, float32, float64, uint8 or bool",
            folder, ls_dtype_name(data->x_dtype), data->x_shape.ndim);
    }
    if (channels_are_last(dim)) {
        give_up(EXIT_FAILURE,
                "--data: samples of \"%s\" are [%lld,%lld,%lld], which looks like height, width, "
                "channels; save x.transpose(0, 3, 1, 2) as a C-ordered array",
                folder, (long long)dim[0], (long long)dim[1], (long long)dim[2]);
    }
}

/* A perceptron has inputs of one size, so training and test images must have the same shape. */
static void check_alike(const char *folder, const ls_shape *learn, const ls_shape *judge)
{
    if (memcmp(learn->dim, judge->dim, 3 * sizeof learn->dim[0]) != 0) {
        give_up(
            EXIT_FAILURE,
            "--data: images of \"%s\" to learn from are [%lld,%lld,%lld], those to be judged by "
            "[%lld,%lld,%lld]; they belong to different sets",
            folder, (long long)learn->dim[0], (long long)learn->dim[1], (long long)learn->dim[2],
            (long long)judge->dim[0], (long long)judge->dim[1], (long long)judge->dim[2]);
    }
}

image_data image_data_open(const image_options *options)
{
    image_data data = open_folder(options);
    check_images(options->folder, data.train);
    if (data.test) {
        check_images(options->folder, data.test);
        check_alike(options->folder, &data.train->x_shape, &data.test->x_shape);
    }
    const int64_t *dim = data.train->x_shape.dim;
    data.channels = dim[0];
    data.height = dim[1];
    data.width = dim[2];
    data.train = change(data.train, options, true);
    data.test = change(data.test, options, false);
    return data;
}

/* ---- other views of images ---------------------------------------------------------------- */

/* Repeats every image; a row of numbers is one image in another shape. */
typedef struct view {
    ls_dataset base;
    ls_dataset *images;
    int64_t times;
    size_t bytes; /* of an image */
} view;

static void repeat(const view *v, void *x)
{
    for (int64_t i = 1; i < v->times; i++) {
        memcpy((char *)x + (size_t)i * v->bytes, x, v->bytes);
    }
}

static ls_status view_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const view *v = (const view *)self;
    LS_TRY(v->images->get(v->images, index, x, y));
    repeat(v, x);
    return LS_OK;
}

static ls_status view_get_in_epoch(ls_dataset *self, int64_t epoch, int64_t index, void *x, void *y)
{
    const view *v = (const view *)self;
    LS_TRY(v->images->get_in_epoch(v->images, epoch, index, x, y));
    repeat(v, x);
    return LS_OK;
}

static void view_free(ls_dataset *self)
{
    ls_dataset_free(((view *)self)->images);
    free(self);
}

static ls_dataset *view_new(ls_dataset *images, ls_shape shape, int64_t times)
{
    view *v = images != NULL ? calloc(1, sizeof *v) : NULL;
    if (images != NULL && v == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    if (v == NULL) {
        return NULL;
    }
    const int64_t *dim = images->x_shape.dim;
    v->images = images;
    v->times = times;
    v->bytes = (size_t)(dim[0] * dim[1] * dim[2]) * ls_dtype_size(images->x_dtype);
    v->base = (ls_dataset)LS_DATASET(.count = images->count, .x_shape = shape,
                                     .y_shape = images->y_shape, .x_dtype = images->x_dtype,
                                     .y_dtype = images->y_dtype, .get = view_get, .free = view_free,
                                     .get_in_epoch =
                                         images->get_in_epoch != NULL ? view_get_in_epoch : NULL);
    return &v->base;
}

void image_data_flatten(image_data *data)
{
    const ls_shape row = LS_SHAPE(data->channels * data->height * data->width);
    data->train = view_new(data->train, row, 1);
    data->test = view_new(data->test, row, 1);
}

void image_data_colour(image_data *data)
{
    const ls_shape coloured = LS_SHAPE(3, data->height, data->width);
    if (data->channels == 1) {
        data->train = view_new(data->train, coloured, 3);
        data->test = view_new(data->test, coloured, 3);
    }
}

void image_data_close(image_data *data)
{
    ls_dataset_free(data->train);
    ls_dataset_free(data->test);
}
