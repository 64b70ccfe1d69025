/* SPDX-License-Identifier: Apache-2.0 */
/* Opens image data sets by their folder. */
#ifndef PROGRAMS_IMAGE_DATA_H
#define PROGRAMS_IMAGE_DATA_H

#include <lockstep/lockstep.h>

#define IMAGE_NORMALISATIONS "none|mnist|cifar10|imagenet"

/* Names of published means and deviations. */
#define IMAGE_NORMALISATIONS "none|mnist|cifar10|imagenet"

typedef struct image_options {
    const char *folder;
    const char *normalise; /* one of IMAGE_NORMALISATIONS */
    int64_t crop_padding; /* training images are shifted by up to this many pixels; 0: not at all */
    int64_t classes;      /* all labels must be below it */
    bool flip;            /* training images are mirrored with probability 1/2 */
    uint64_t seed;
} image_options;

typedef struct image_data {
    const char *format; /* "IDX" */
    ls_dataset *train;  /* x float32 [C,H,W], y int32 or int64 scalar */
    ls_dataset *test;   /* the same; NULL: there are no test images */
    int64_t channels, height, width;
} image_data;

/* Recognises the format of the folder by the names of its files, and opens it:
 *     IDX        train-images-idx3-ubyte … as MNIST is published, or train-images.idx …
 *     CIFAR-10   data_batch_1.bin …
 *     .npy       x_train.npy and y_train.npy, x_test.npy and y_test.npy: float32 [N,C,H,W], int64
 * All labels are checked. On a failure it ends the program with an error text. */
image_data image_data_open(const image_options *options);
/* The input of a model that takes no images [C,H,W]: rows [CHW] of a perceptron, or grey images as
 * three equal colours [3,H,W] (others stay). */
void image_data_flatten(image_data *data);
void image_data_colour(image_data *data);
void image_data_close(image_data *data);

#endif
