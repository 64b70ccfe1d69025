/* See image_data.h. The order is: the files as they are, then, of training images only, a random
 * crop and flip, then both normalised alike. */
#include "image_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "trainer.h"

#define PATH_BYTES 1024

/* ---- what folders hold -------------------------------------------------------------------- */

typedef ls_status (*opener)(const char *x, const char *y, ls_dataset **out);

typedef struct layout {
    const char *format;
    opener open;
    const char *train[2], *test[2]; /* names of images and labels */
} layout;

static const layout layouts[] = {
    {"IDX",
     ls_idx_images_new,
     {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
     {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}},
    {"IDX",
     ls_idx_images_new,
     {"train-images.idx", "train-labels.idx"},
     {"test-images.idx", "test-labels.idx"}},
    {".npy", ls_npy_new, {"x_train.npy", "y_train.npy"}, {"x_test.npy", "y_test.npy"}},
};
#define LAYOUTS (sizeof layouts / sizeof *layouts)
static const char *const cifar_names[] = {"data_batch_1.bin", "test_batch.bin"};

static bool holds(const char *folder, const char *name, char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%.900s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static ls_dataset *open_pair(const char *folder, opener open, const char *const names[2])
{
    char x[PATH_BYTES], y[PATH_BYTES];
    ls_dataset *data = NULL;
    if (holds(folder, names[0], x)) {
        (void)holds(folder, names[1], y);
        must(open(x, y, &data));
    }
    return data;
}

static ls_dataset *open_cifar(const char *folder, bool train)
{
    char path[PATH_BYTES];
    ls_dataset *data = NULL;
    if (holds(folder, cifar_names[train ? 0 : 1], path)) {
        must(ls_cifar10_new(folder, train, &data));
    }
    return data;
}

static image_data open_folder(const char *folder)
{
    image_data found = {
        .format = "CIFAR-10", .train = open_cifar(folder, true), .test = open_cifar(folder, false)};
    for (size_t i = 0; i < LAYOUTS && !found.train; i++) {
        const layout *l = &layouts[i];
        found = (image_data){.format = l->format,
                             .train = open_pair(folder, l->open, l->train),
                             .test = open_pair(folder, l->open, l->test)};
    }
    if (!found.train) {
        give_up(EXIT_FAILURE,
                "--data: \"%s\" holds none of %s, %s, %s and %s; name a folder with "
                "images, unpacked",
                folder, layouts[0].train[0], layouts[1].train[0], layouts[2].train[0],
                cifar_names[0]);
    }
    return found;
}

/* ---- shapes, augmentation and normalisation ----------------------------------------------- */

typedef struct normalisation {
    int channels;
    double mean[3], std[3];
} normalisation;

const char *const image_normalisations[] = {"none", "mnist", "cifar10", "imagenet", NULL};
static const normalisation numbers[] = {
    {0, {0.0}, {0.0}},
    {1, {0.1307}, {0.3081}},
    {3, {0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}},
    {3, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}},
};

static ls_dataset *change(ls_dataset *images, const image_options *o, bool train)
{
    const normalisation *n = &numbers[flag_choice("normalise", o->normalise, image_normalisations)];
    bool augment = train && (o->crop_padding > 0 || o->flip);
    if (!images || (n->channels == 0 && !augment)) {
        return images;
    }
    ls_dataset *changed = NULL;
    must(ls_transform_new(
        images,
        LS_OPTIONS(ls_transform_options, .crop_padding = train ? o->crop_padding : 0,
                   .flip = train && o->flip, .mean = n->channels ? n->mean : NULL,
                   .std = n->channels ? n->std : NULL, .channels = n->channels, .seed = o->seed),
        &changed));
    return changed;
}

static bool are_images(const ls_dataset *data)
{
    return data->x_shape.ndim == 3 && data->x_dtype == LS_FLOAT32;
}

image_data image_data_open(const image_options *options)
{
    image_data data = open_folder(options->folder);
    if (!are_images(data.train) || (data.test && !are_images(data.test))) {
        give_up(EXIT_FAILURE,
                "--data: samples of \"%s\" are no images; each must be float32 of 3 "
                "dimensions: channels, height, width",
                options->folder);
    }
    const int64_t *dim = data.train->x_shape.dim;
    data.channels = dim[0];
    data.height = dim[1];
    data.width = dim[2];
    data.train = change(data.train, options, true);
    data.test = change(data.test, options, false);
    return data;
}

void image_data_close(image_data *data)
{
    ls_dataset_free(data->train);
    ls_dataset_free(data->test);
}
