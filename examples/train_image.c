/* Trains a classifier of images on all ranks.
 *
 *     scripts/make_digits_idx.py build/digits
 *     build/lockstep run -n 4 build/examples/train_image --data build/digits --steps 500
 *     … --optim adamw --lr 1e-3 --schedule linear --clip 1 --accum 2
 *     … --save run7 --every 100 --resume run7 --eval-every 100 --log run7.jsonl --tensorboard runs
 *
 * The folder of --data holds MNIST's four files under the names they are spread with, or under
 * those of the script (train-images.idx …). Without test images the training images are judged.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "common.h"
#include "judge.h"
#include "mlp.h"
#include "trainer.h"

#define JUDGE_BATCH 256
#define PATH_BYTES 1024

typedef struct settings {
    const char *model, *data;
    int64_t hidden, classes;
    trainer_options train;
} settings;

typedef struct images {
    ls_dataset *train;
    ls_dataset *test; /* NULL: there are none */
} images;

static const char *const models[] = {"mlp", NULL};

static settings read_flags(int argc, char **argv)
{
    settings s = {.model = "mlp",
                  .hidden = 256,
                  .classes = 10,
                  .train = {TRAINER_DEFAULTS.steps = 1000, .batch = 32, .lr = 0.1, .optim = "sgd"}};
    const flag flags[] = {
        {"model", FLAG_TEXT, &s.model, 0, 0, "mlp"},
        {"data", FLAG_TEXT, &s.data, 0, 0, "folder of IDX files: images and labels"},
        {"classes", FLAG_COUNT, &s.classes, 2, 1e6, "labels are 0 to this minus one"},
        {"hidden", FLAG_COUNT, &s.hidden, 1, 1e6, "units of mlp's hidden layer"},
    };
    trainer_read_flags("Trains a classifier of images, on all ranks.", flags,
                       (int)(sizeof flags / sizeof flags[0]), &s.train, argc, argv);
    if (!s.data) {
        give_up(EXIT_USAGE, "--data is missing: name a folder with images; "
                            "scripts/make_digits_idx.py makes one");
    }
    (void)trainer_choice("model", s.model, models);
    return s;
}

/* ---- data --------------------------------------------------------------------------------- */

/* The names of images and labels, one set a row. */
static const char *const train_names[][2] = {{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
                                             {"train-images.idx", "train-labels.idx"}};
static const char *const test_names[][2] = {{"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"},
                                            {"test-images.idx", "test-labels.idx"}};

/* Opens the first pair whose images are there; NULL when none are. */
static ls_dataset *open_idx(const char *folder, const char *const names[2][2])
{
    char x[PATH_BYTES], y[PATH_BYTES];
    ls_dataset *data = NULL;
    for (int i = 0; i < 2 && !data; i++) {
        (void)snprintf(x, sizeof x, "%.900s/%s", folder, names[i][0]);
        (void)snprintf(y, sizeof y, "%.900s/%s", folder, names[i][1]);
        if (access(x, F_OK) == 0) {
            trainer_must(ls_idx_new(x, y, &data));
        }
    }
    return data;
}

static images open_images(const char *folder)
{
    images found = {open_idx(folder, train_names), open_idx(folder, test_names)};
    if (!found.train) {
        give_up(EXIT_FAILURE,
                "--data: \"%s\" holds neither %s nor %s; name a folder with images "
                "and labels as IDX files, unpacked",
                folder, train_names[0][0], train_names[1][0]);
    }
    return found;
}

/* ---- the task ----------------------------------------------------------------------------- */

static int64_t pixels_of(const ls_dataset *data)
{
    int64_t pixels = 1;
    for (int i = 0; i < data->x_shape.ndim; i++) {
        pixels *= data->x_shape.dim[i];
    }
    return pixels;
}

static ls_module *make_model(const settings *s, const images *data)
{
    return mlp_new(pixels_of(data->train), s->hidden, s->classes);
}

static int evaluate(void *arg, ls_module *net, score *out)
{
    const images *data = arg;
    ls_dataset *judged = data->test ? data->test : data->train;
    verdict v;
    LS_CHECK(judge(net, judged, judged->count, JUDGE_BATCH, &v));
    out[0] = (score){data->test ? "test loss" : "training loss", v.loss, false};
    out[1] = (score){data->test ? "test accuracy" : "training accuracy", v.right, true};
    return 2;
}

static void introduce(const settings *s, const images *data, ls_module *net)
{
    (void)printf("%s: %lld images of %lld values to learn from, %lld to be judged by\n", s->data,
                 (long long)data->train->count, (long long)pixels_of(data->train),
                 (long long)(data->test ? data->test->count : 0));
    (void)printf("%s: %lld parameters; %d rank%s x %lld images x %lld\n", s->model,
                 (long long)ls_module_numel(net), ls_world_size(), ls_world_size() == 1 ? "" : "s",
                 (long long)s->train.batch, (long long)s->train.accum);
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    settings s = read_flags(argc, argv);
    trainer_init(&s.train);
    images data = open_images(s.data);
    ls_module *net = make_model(&s, &data);
    trainer *t = trainer_new(&s.train, &(trainer_task){.arg = &data,
                                                       .net = net,
                                                       .data = data.train,
                                                       .unit = "images",
                                                       .units = 1,
                                                       .evaluate = evaluate});
    if (ls_rank() == 0) {
        introduce(&s, &data, trainer_net(t));
    }
    trainer_train(t);
    int status = trainer_end(t, NULL);
    ls_dataset_free(data.train);
    ls_dataset_free(data.test);
    LS_CHECK(ls_finalize());
    return status;
}
