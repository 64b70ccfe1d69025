/* An MLP on images of digits, on all ranks.
 *
 *     scripts/make_digits_idx.py build/digits
 *     build/lockstep run -n 4 build/examples/02_mlp_ddp \
 *         --images build/digits/train-images.idx --labels build/digits/train-labels.idx \
 *         --test-images build/digits/test-images.idx --test-labels build/digits/test-labels.idx
 *
 * MNIST's own files work too (gunzip them first). An epoch's last batch is smaller and uneven over
 * the ranks; ls_backward_weighted keeps the averaged gradient the exact mean over its samples.
 */
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/lockstep.h>

#include "common.h"
#include <lockstep/models/mlp.h>

#define TEST_BATCH 256

typedef struct settings {
    const char *images, *labels, *test_images, *test_labels;
    int64_t epochs, batch, hidden, classes, seed;
    double lr, momentum;
} settings;

static settings read_flags(int argc, char **argv)
{
    settings s = {
        .epochs = 20, .batch = 16, .hidden = 64, .classes = 10, .lr = 0.1, .momentum = 0.9};
    const flag flags[] = {
        {"images", FLAG_TEXT, &s.images, 0, 0, "IDX file of training images"},
        {"labels", FLAG_TEXT, &s.labels, 0, 0, "IDX file of training labels"},
        {"test-images", FLAG_TEXT, &s.test_images, 0, 0, "IDX file of test images"},
        {"test-labels", FLAG_TEXT, &s.test_labels, 0, 0, "IDX file of test labels"},
        {"epochs", FLAG_COUNT, &s.epochs, 1, 1e6, "passes over the training images"},
        {"batch", FLAG_COUNT, &s.batch, 1, 1e6, "images a rank takes per step"},
        {"hidden", FLAG_COUNT, &s.hidden, 1, 1e6, "units of the hidden layer"},
        {"classes", FLAG_COUNT, &s.classes, 2, 256, "labels are 0 to this minus one"},
        {"lr", FLAG_NUMBER, &s.lr, 0, 1e3, "learning rate"},
        {"momentum", FLAG_NUMBER, &s.momentum, 0, 1, "of SGD"},
        {"seed", FLAG_COUNT, &s.seed, 0, 9e15, "of weights and order"},
    };
    flags_parse("Trains a perceptron with one hidden layer on images, on all ranks.", flags,
                (int)(sizeof flags / sizeof flags[0]), argc, argv);
    if (!s.images || !s.labels) {
        give_up(EXIT_USAGE, "--images and --labels are needed; scripts/make_digits_idx.py writes "
                            "such files");
    }
    if (!s.test_images != !s.test_labels) {
        give_up(EXIT_USAGE, "--test-images and --test-labels go together");
    }
    return s;
}

/* One pass over the training images; returns the global mean loss. */
static double train_epoch(ls_module *net, ls_optim *optim, ls_loader *loader)
{
    double sums[2] = {0.0, 0.0}; /* loss times samples, samples */
    ls_batch batch;
    while (ls_loader_next(loader, &batch)) {
        {
            LS_SCOPE;
            double mean = 0.0;
            ls_tensor *loss = ls_cross_entropy(ls_forward(net, batch.x), batch.y);
            LS_CHECK(ls_backward_weighted(loss, (double)batch.count));
            if (batch.count > 0) {
                LS_CHECK(ls_item(loss, &mean));
            }
            sums[0] += mean * (double)batch.count;
            sums[1] += (double)batch.count;
        }
        LS_CHECK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    LS_CHECK(ls_loader_status(loader));
    LS_CHECK(ls_all_reduce(ls_world(), sums, 2, LS_FLOAT64, LS_SUM, NULL, NULL));
    return sums[0] / sums[1];
}

/* Samples [start, start+count) of a data set: how many does the net get right? */
static int64_t count_right(ls_module *net, ls_dataset *data, int64_t start, int64_t count, float *x,
                           int32_t *y)
{
    int64_t pixels = data->x_shape.dim[0], right = 0;
    for (int64_t i = 0; i < count; i++) {
        LS_CHECK(data->get(data, start + i, x + i * pixels, y + i));
    }
    {
        LS_NO_GRAD;
        LS_SCOPE;
        ls_tensor *logits = ls_forward(net, ls_from_memory(x, LS_SHAPE(count, pixels), LS_FLOAT32));
        ls_tensor *best = ls_argmax(logits, 1);
        LS_CHECK(ls_tensor_status(best));
        const int64_t *guess = ls_data(best);
        for (int64_t i = 0; i < count; i++) {
            right += guess[i] == y[i];
        }
    }
    return right;
}

/* Share of right answers. Each rank judges its own stretch of the data; no wrapper is needed. */
static double accuracy(ls_module *net, ls_dataset *data)
{
    int64_t ranks = ls_world_size(), rank = ls_rank();
    int64_t start = data->count * rank / ranks, end = data->count * (rank + 1) / ranks;
    int64_t right = 0;
    float *x = malloc(TEST_BATCH * (size_t)data->x_shape.dim[0] * sizeof *x);
    int32_t *y = malloc(TEST_BATCH * sizeof *y);
    if (!x || !y) {
        give_up(EXIT_FAILURE, "no memory for a batch of images");
    }
    ls_module_train(net, false);
    for (; start < end; start += TEST_BATCH) {
        int64_t count = end - start < TEST_BATCH ? end - start : TEST_BATCH;
        right += count_right(net, data, start, count, x, y);
    }
    ls_module_train(net, true);
    free(x);
    free(y);
    LS_CHECK(ls_all_reduce(ls_world(), &right, 1, LS_INT64, LS_SUM, NULL, NULL));
    return (double)right / (double)data->count;
}

static void run(const settings *s)
{
    ls_dataset *train = NULL, *test = NULL;
    ls_sampler *sampler = NULL;
    ls_loader *loader = NULL;
    must(ls_idx_new(s->images, s->labels, &train));
    if (s->test_images) {
        must(ls_idx_new(s->test_images, s->test_labels, &test));
    }
    must(ls_sampler_new(
        train->count, LS_OPTIONS(ls_sampler_options, .batch = s->batch, .seed = (uint64_t)s->seed),
        &sampler));
    must(ls_loader_new(train, sampler, NULL, &loader));

    ls_module *net = ls_mlp_new(train->x_shape.dim[0], s->hidden, s->classes);
    LS_CHECK(ls_module_status(net));
    net = ls_ddp_new(net, ls_world(), NULL); /* the one line that makes it parallel */
    LS_CHECK(ls_module_status(net));
    ls_optim *optim =
        ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = s->lr, .momentum = s->momentum));
    if (!optim) {
        give_up(EXIT_FAILURE, "%s", ls_error_message());
    }
    for (int64_t epoch = 1; epoch <= s->epochs; epoch++) {
        double loss = train_epoch(net, optim, loader);
        double share = test ? accuracy(net, test) : accuracy(net, train);
        if (ls_rank() == 0) {
            (void)printf("epoch %lld/%lld  loss %.4f  %s accuracy %.2f %%\n", (long long)epoch,
                         (long long)s->epochs, loss, test ? "test" : "training", 100.0 * share);
            (void)fflush(stdout);
        }
    }
    ls_optim_free(optim);
    ls_module_free(net);
    ls_loader_free(loader);
    ls_sampler_free(sampler);
    ls_dataset_free(train);
    ls_dataset_free(test);
}

int main(int argc, char **argv)
{
    settings s = read_flags(argc, argv);
    must(ls_init(LS_OPTIONS(ls_init_options, .seed = (uint64_t)s.seed)));
    run(&s);
    LS_CHECK(ls_finalize());
    return 0;
}
