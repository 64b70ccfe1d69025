/* SPDX-License-Identifier: Apache-2.0 */
/* A perceptron on images of digits, on all ranks.
 *
 *     scripts/make_digits_idx.py digits
 *     lockstep run -n 4 ./02_mlp_ddp digits/train-images.idx digits/train-labels.idx \
 *                                    digits/test-images.idx digits/test-labels.idx
 *
 * MNIST's own files work too (gunzip them first). An epoch's last batch is smaller and uneven over
 * the ranks; ls_backward_weighted keeps the averaged gradient the exact mean over its samples.
 */
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/lockstep.h>

enum { EPOCHS = 20, BATCH = 48, HIDDEN = 64, CLASSES = 10, TEST_BATCH = 256 };

static ls_module *make_net(int64_t pixels)
{
    ls_module *layers[] = {ls_linear_new(pixels, HIDDEN, NULL), ls_relu_new(),
                           ls_linear_new(HIDDEN, CLASSES, NULL)};
    ls_module *net = ls_sequential_new(layers, 3);
    LS_CHECK(ls_module_status(net));
    net = ls_ddp_new(net, ls_world(), NULL); /* the one line that makes it parallel */
    LS_CHECK(ls_module_status(net));
    return net;
}

/* One pass over the training images; returns the mean loss of all ranks. */
static double train_epoch(ls_module *net, ls_optim *optim, ls_loader *loader)
{
    double sums[2] = {0.0, 0.0}; /* loss times samples, samples */
    ls_batch batch = {.size = sizeof batch};
    while (ls_loader_next(loader, &batch)) {
        LS_SCOPE;
        double mean = 0.0;
        ls_tensor *loss = ls_cross_entropy(ls_forward(net, batch.x), batch.y, NULL);
        LS_CHECK(ls_backward_weighted(loss, (double)batch.count));
        LS_CHECK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        if (batch.count > 0) {
            LS_CHECK(ls_item(loss, &mean));
        }
        sums[0] += mean * (double)batch.count;
        sums[1] += (double)batch.count;
    }
    LS_CHECK(ls_loader_status(loader));
    LS_CHECK(ls_all_reduce(ls_world(), sums, sums, 2, LS_FLOAT64, LS_SUM, NULL, NULL));
    return sums[0] / sums[1];
}

/* How many of the samples [start, start+count) the net gets right. x and y have room for them. */
static int64_t count_right(ls_module *net, ls_dataset *data, int64_t start, int64_t count, float *x,
                           int32_t *y)
{
    const int64_t pixels = data->x_shape.dim[0];
    int64_t right = 0;
    for (int64_t i = 0; i < count; i++) {
        LS_CHECK(data->get(data, start + i, x + i * pixels, y + i));
    }
    LS_NO_GRAD;
    LS_SCOPE;
    ls_tensor *logits = ls_forward(net, ls_from_memory(x, LS_SHAPE(count, pixels), LS_FLOAT32));
    ls_tensor *best = ls_argmax(logits, 1);
    LS_CHECK(ls_tensor_status(best));
    const int64_t *guess = ls_data(best);
    for (int64_t i = 0; i < count; i++) {
        right += guess[i] == y[i];
    }
    return right;
}

/* Share of right answers. Each rank judges its own part of the data; that needs no wrapper. */
static double accuracy(ls_module *net, ls_dataset *data)
{
    const int64_t ranks = ls_world_size(), rank = ls_rank();
    const int64_t end = data->count * (rank + 1) / ranks;
    int64_t right = 0;
    float *x = malloc(TEST_BATCH * (size_t)data->x_shape.dim[0] * sizeof *x);
    int32_t *y = malloc(TEST_BATCH * sizeof *y);
    if (x == NULL || y == NULL) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    ls_module_train(net, false);
    for (int64_t start = data->count * rank / ranks; start < end; start += TEST_BATCH) {
        const int64_t count = end - start < TEST_BATCH ? end - start : TEST_BATCH;
        right += count_right(net, data, start, count, x, y);
    }
    ls_module_train(net, true);
    free(x);
    free(y);
    LS_CHECK(ls_all_reduce(ls_world(), &right, &right, 1, LS_INT64, LS_SUM, NULL, NULL));
    return (double)right / (double)data->count;
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 5) {
        fprintf(stderr, "usage: 02_mlp_ddp IMAGES LABELS [TEST-IMAGES TEST-LABELS]\n"
                        "IDX files, as of MNIST; scripts/make_digits_idx.py writes some\n");
        return 2;
    }
    LS_CHECK(ls_init(NULL));
    ls_dataset *train = NULL, *test = NULL;
    ls_sampler *sampler = NULL;
    ls_loader *loader = NULL;
    LS_CHECK(train = ls_idx_dataset_new(argv[1], argv[2]));
    LS_CHECK(test =
                 ls_idx_dataset_new(argv[argc - 2], argv[argc - 1])); /* else the training images */
    /* The batch of all ranks is the same for any number of them, and so are the losses. */
    LS_CHECK(sampler = ls_sampler_new(
                 train->count, LS_OPTIONS(ls_sampler_options, .batch = BATCH / ls_world_size())));
    LS_CHECK(loader = ls_loader_new(train, sampler, NULL));

    ls_module *net = make_net(train->x_shape.dim[0]);
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1, .momentum = 0.9));
    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        const double loss = train_epoch(net, optim, loader), right = accuracy(net, test);
        if (ls_rank() == 0) {
            printf("epoch %d/%d  loss %.4f  accuracy %.2f %%\n", epoch, EPOCHS, loss,
                   100.0 * right);
            fflush(stdout);
        }
    }
    ls_optim_free(optim);
    ls_module_free(net);
    ls_loader_free(loader);
    ls_sampler_free(sampler);
    ls_dataset_free(train);
    ls_dataset_free(test);
    LS_CHECK(ls_finalize());
    return 0;
}
