/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a classifier of images on all ranks.
 *
 *     scripts/make_digits_idx.py build/digits
 *     lockstep train image -n 4 --data build/digits --steps 500
 *     … --optim adamw --lr 1e-3 --lr-schedule linear --clip 1 --accum 2
 *     … --save run7 --every 100 --resume run7 --eval-every 100 --log run7.jsonl --tensorboard runs
 *
 * The folder of --data holds MNIST's IDX files, CIFAR-10's binary batches, or .npy arrays, see
 * image_data.h. Without test images the training images are judged.
 */
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/lockstep.h>

#include "common.h"
#include "image_data.h"
#include "judge.h"
#include "trainer.h"
#include <lockstep/models/alexnet.h>
#include <lockstep/models/cnn.h>
#include <lockstep/models/mlp.h>
#include <lockstep/models/resnet.h>
#include <lockstep/models/vit.h>

#define JUDGE_BATCH 64
#define SMALL_IMAGE 64 /* narrower ones get the stem made for CIFAR */

typedef struct settings {
    const char *model;
    int64_t hidden, classes;
    int64_t patch, layers, dim, heads; /* of a vit */
    image_options images;
    trainer_options train;
} settings;

enum { MLP, CNN, VIT, ALEXNET, RESNET18, RESNET50, RESNET152, VIT_B_16 };
#define MODELS "mlp|cnn|vit|alexnet|resnet18|resnet50|resnet152|vit_b_16"

/* In static memory: run_file.h points to the values. */
static settings *read_flags(int argc, char **argv)
{
    static settings s = {.model = "mlp",
                         .hidden = 256,
                         .classes = 10,
                         .patch = 4,
                         .layers = 6,
                         .dim = 192,
                         .heads = 3,
                         .images = {.normalise = "none"},
                         .train = {TRAINER_DEFAULTS.steps = 1000, .batch = 32, .lr = 0.1,
                                   .optim = "sgd", .decay = "all"}};
    const cli_option options[] = {
        {"model", CLI_CHOICE, &s.model, .choices = MODELS, .value_name = "NAME",
         .help = "mlp, cnn, vit, alexnet, resnet18, resnet50, resnet152 or vit_b_16"},
        {"data", CLI_TEXT, &s.images.folder, .value_name = "DIR",
         .help = "folder of images: IDX, CIFAR-10 or .npy"},
        {"crop-padding", CLI_COUNT, &s.images.crop_padding, .low = 0, .high = 1e4,
         .help = "random shift, in pixels"},
        {"flip", CLI_SWITCH, &s.images.flip, .help = "mirror every other training image"},
        {"normalise", CLI_CHOICE, &s.images.normalise, .choices = IMAGE_NORMALISATIONS,
         .value_name = "NAME", .help = "mean and deviation of none, mnist, cifar10 or imagenet"},
        {"classes", CLI_COUNT, &s.classes, .low = 2, .high = 1e6,
         .help = "number of classes: labels are 0 to N-1"},
        {"hidden", CLI_COUNT, &s.hidden, .low = 1, .high = 1e6,
         .help = "units of mlp's hidden layer"},
        {"patch", CLI_COUNT, &s.patch, .low = 1, .high = 1e4,
         .help = "edge of vit's patches, in pixels"},
        {"layers", CLI_COUNT, &s.layers, .low = 1, .high = 1000,
         .help = "transformer layers of vit"},
        {"dim", CLI_COUNT, &s.dim, .low = 1, .high = 1e5,
         .help = "width of vit; a multiple of --heads"},
        {"heads", CLI_COUNT, &s.heads, .low = 1, .high = 1e4, .help = "attention heads of vit"},
    };
    const cli_command command = {.name = "lockstep train image",
                                 .about = "Trains a classifier of images, on all ranks.",
                                 .options = options,
                                 .count = (int)(sizeof options / sizeof options[0])};
    trainer_read_options(&command, &s.train, argc, argv);
    if (!s.images.folder) {
        give_up(EXIT_USAGE, "--data is missing: name a folder with images; "
                            "scripts/make_digits_idx.py makes one");
    }
    (void)parallel_recompute(&s.train, false);
    s.images.classes = s.classes;
    s.images.seed = (uint64_t)s.train.seed;
    return &s;
}

/* ---- the task ----------------------------------------------------------------------------- */

/* Those of the papers, for images of three colours. */
static ls_module *make_published(const settings *s, const image_data *data)
{
    bool small = data->width < SMALL_IMAGE;
    switch (cli_choice(MODELS, s->model)) {
    case ALEXNET:
        return ls_alexnet_new(s->classes, 0.5);
    case RESNET18:
        return ls_resnet_new(18, s->classes, small);
    case RESNET50:
        return ls_resnet_new(50, s->classes, small);
    case RESNET152:
        return ls_resnet_new(152, s->classes, small);
    default:
        return ls_vit_new(LS_OPTIONS(ls_vit_options, .image = data->width, .classes = s->classes));
    }
}

/* Changes the images to what the model takes: rows of numbers, or colours. */
static ls_module *make_model(const settings *s, image_data *data)
{
    int model = cli_choice(MODELS, s->model);
    if (model == MLP) {
        int64_t values = data->channels * data->height * data->width;
        image_data_flatten(data);
        return ls_mlp_new(values, s->hidden, s->classes);
    }
    if (model == CNN) {
        return ls_cnn_new(data->channels, s->classes);
    }
    if (data->height != data->width && (model == VIT || model == VIT_B_16)) {
        give_up(EXIT_FAILURE, "%s: the images are %lld x %lld; --model %s takes square ones",
                s->images.folder, (long long)data->height, (long long)data->width, s->model);
    }
    if (model == VIT) {
        return ls_vit_new(LS_OPTIONS(ls_vit_options, .layers = (int)s->layers,
                                     .heads = (int)s->heads, .dim = s->dim, .wide = 4 * s->dim,
                                     .image = data->width, .patch = s->patch,
                                     .channels = data->channels, .classes = s->classes));
    }
    image_data_colour(data);
    return make_published(s, data);
}

/* Convolutions have no plan of tensor parallelism. */
static const char *divided_by(const settings *s)
{
    const int model = cli_choice(MODELS, s->model);
    return model == MLP || model == VIT || model == VIT_B_16 ? "tp" : NULL;
}

static int evaluate(void *arg, ls_module *net, const parallel *ranks, score *out)
{
    const image_data *data = arg;
    ls_dataset *judged = data->test ? data->test : data->train;
    verdict v;
    must(judge(ranks, net, judged, judged->count, JUDGE_BATCH, &v));
    out[0] = (score){data->test ? "test loss" : "training loss", v.loss, false};
    out[1] = (score){data->test ? "test accuracy" : "training accuracy", v.right, true};
    return 2;
}

static void introduce(const settings *s, const image_data *data, const trainer *t)
{
    (void)printf("%s: %s, %lld images [%lld,%lld,%lld] to learn from, %lld to be judged by\n",
                 s->images.folder, data->format, (long long)data->train->count,
                 (long long)data->channels, (long long)data->height, (long long)data->width,
                 (long long)(data->test ? data->test->count : 0));
    trainer_introduce(t, s->model, "images");
}

int main(int argc, char **argv)
{
    settings *s = read_flags(argc, argv);
    trainer_init(&s->train);
    parallel_check_plan(&s->train, s->model, NULL, 0);
    image_data data = image_data_open(&s->images);
    ls_module *net = NULL;
    {
        LS_SKIP_INIT(s->train.init != NULL);
        net = make_model(s, &data);
    }
    trainer *t = trainer_new(&s->train, &(trainer_task){.arg = &data,
                                                        .net = net,
                                                        .divided_by = divided_by(s),
                                                        .data = data.train,
                                                        .unit = "images",
                                                        .units = 1,
                                                        .evaluate = evaluate});
    if (ls_rank() == 0) {
        introduce(s, &data, t);
    }
    trainer_train(t);
    int status = trainer_end(t, NULL);
    image_data_close(&data);
    LS_CHECK(ls_finalize());
    return cli_end(status);
}
