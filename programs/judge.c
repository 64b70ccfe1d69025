/* See judge.h. Evaluation runs the module without its wrapper; only the sums are exchanged, in one
 * all_reduce at the end. They are float64, so that a million samples lose no accuracy. */
#include "judge.h"

#include <stdlib.h>

typedef struct sums {
    double loss, right, answers;
} sums;

typedef struct room { /* for one batch */
    char *x, *y;
} room;

static int64_t elements(const ls_shape *shape)
{
    int64_t product = 1;
    for (int i = 0; i < shape->ndim; i++) {
        product *= shape->dim[i];
    }
    return product;
}

/* [n, shape of one sample] */
static ls_shape batched(const ls_shape *one, int64_t n)
{
    ls_shape shape = {.ndim = one->ndim + 1, .dim = {n}};
    for (int i = 0; i < one->ndim; i++) {
        shape.dim[i + 1] = one->dim[i];
    }
    return shape;
}

/* Counts the targets that are not ignored, and those that logits [n,..,classes] predict correctly;
 * y [n,..] is int32 or int64. */
static ls_status count_right(ls_tensor *logits, ls_tensor *y, double *asked, double *right)
{
    ls_tensor *best = ls_argmax(logits, -1), *target = ls_cast(y, LS_INT64);
    LS_TRY(ls_tensor_status(best));
    LS_TRY(ls_tensor_status(target));
    const int64_t *guess = ls_data(best), *truth = ls_data(target);
    for (int64_t i = 0; i < ls_numel(best); i++) {
        *asked += truth[i] != JUDGE_NOTHING ? 1.0 : 0.0;
        *right += guess[i] == truth[i] ? 1.0 : 0.0;
    }
    return LS_OK;
}

/* The mean loss of a batch counts with its number of targets, so unequal batches add up exactly. */
static ls_status judge_batch(ls_module *net, const ls_dataset *data, const room *b, int64_t n,
                             sums *out)
{
    ls_status status = LS_OK;
    {
        LS_NO_GRAD;
        LS_SCOPE;
        double mean = 0.0, asked = 0.0;
        ls_tensor *x = ls_from_memory(b->x, batched(&data->x_shape, n), data->x_dtype);
        ls_tensor *y = ls_from_memory(b->y, batched(&data->y_shape, n), data->y_dtype);
        ls_tensor *logits = ls_forward(net, x);
        status = ls_item(ls_cross_entropy(logits, y, NULL), &mean);
        if (status == LS_OK) {
            status = count_right(logits, y, &asked, &out->right);
        }
        out->loss += asked > 0.0 ? mean * asked : 0.0; /* without targets the mean is NaN */
        out->answers += asked;
    }
    return status;
}

/* Evaluates samples [from, to) in batches of at most `batch`. */
static ls_status judge_stretch(ls_module *net, ls_dataset *data, int64_t from, int64_t to,
                               int64_t batch, sums *out)
{
    size_t x_bytes = (size_t)elements(&data->x_shape) * ls_dtype_size(data->x_dtype);
    size_t y_bytes = (size_t)elements(&data->y_shape) * ls_dtype_size(data->y_dtype);
    room b = {.x = calloc((size_t)batch, x_bytes), .y = calloc((size_t)batch, y_bytes)};
    ls_status status = b.x && b.y ? LS_OK : LS_ERR_MEMORY;
    for (; status == LS_OK && from < to; from += batch) {
        int64_t n = to - from < batch ? to - from : batch;
        for (int64_t i = 0; status == LS_OK && i < n; i++) {
            status =
                data->get(data, from + i, b.x + (size_t)i * x_bytes, b.y + (size_t)i * y_bytes);
        }
        if (status == LS_OK) {
            status = judge_batch(net, data, &b, n, out);
        }
    }
    free(b.x);
    free(b.y);
    return status;
}

/* Each rank evaluates a contiguous part of the samples. The module is in training mode again after
 * it. */
ls_status judge(ls_module *net, ls_dataset *data, int64_t samples, int64_t batch, verdict *out)
{
    int64_t count = samples < data->count ? samples : data->count;
    int64_t ranks = ls_world_size(), rank = ls_rank();
    sums total = {0};
    ls_module_train(net, false);
    ls_status status =
        judge_stretch(net, data, count * rank / ranks, count * (rank + 1) / ranks, batch, &total);
    ls_module_train(net, true);
    LS_TRY(status);
    double values[3] = {total.loss, total.right, total.answers};
    LS_TRY(ls_all_reduce(ls_world(), values, values, 3, LS_FLOAT64, LS_SUM,
                         LS_OPTIONS(ls_collective_options, .tag = "evaluation"), NULL));
    *out = (verdict){values[0] / values[2], values[1] / values[2]};
    return LS_OK;
}
