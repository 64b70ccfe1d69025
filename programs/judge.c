/* SPDX-License-Identifier: Apache-2.0 */
/* See judge.h. Evaluation runs the module without its wrapper; besides what a pipeline sends, only
 * the sums are exchanged, at the end. They are float64, so that a million samples lose no
 * accuracy. */
#include "judge.h"

#include <stdlib.h>

typedef struct sums {
    double loss, right, answers;
} sums;

typedef struct room { /* for one batch */
    char *x, *y;
} room;

typedef struct judging {
    const parallel *ranks;
    ls_module *net;
    ls_dataset *data;
    int64_t batch, from, to; /* this rank's samples */
    int count;               /* batches at a time, each with a room */
    room *rooms;
    ls_micro_batch *micro;
    ls_tensor **logits;
} judging;

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
    best = ls_to(best, "cpu"), target = ls_to(target, "cpu");
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
static ls_status judge_logits(ls_tensor *logits, ls_tensor *y, sums *out)
{
    double mean = 0.0, asked = 0.0;
    LS_TRY(ls_item(ls_cross_entropy(logits, y, NULL), &mean));
    LS_TRY(count_right(logits, y, &asked, &out->right));
    out->loss += asked > 0.0 ? mean * asked : 0.0; /* without targets the mean is NaN */
    out->answers += asked;
    return LS_OK;
}

/* Reads samples [from, from+n) as one batch. */
static ls_status read_batch(ls_dataset *data, int64_t from, int64_t n, const room *b,
                            ls_micro_batch *out)
{
    size_t x_bytes = (size_t)elements(&data->x_shape) * ls_dtype_size(data->x_dtype);
    size_t y_bytes = (size_t)elements(&data->y_shape) * ls_dtype_size(data->y_dtype);
    for (int64_t i = 0; i < n; i++) {
        LS_TRY(data->get(data, from + i, b->x + (size_t)i * x_bytes, b->y + (size_t)i * y_bytes));
    }
    *out = (ls_micro_batch){
        .size = sizeof *out,
        .inputs = {ls_to(ls_from_memory(b->x, batched(&data->x_shape, n), data->x_dtype), NULL)},
        .target = ls_to(ls_from_memory(b->y, batched(&data->y_shape, n), data->y_dtype), NULL)};
    return LS_OK;
}

/* Batches `first` … first+count-1 of this rank. After its own, where the ranks of experts wait for
 * each other, the first sample again, of which nothing counts. */
static ls_status judge_batches(const judging *j, int64_t first, int count, sums *out)
{
    ls_status status = LS_OK;
    {
        LS_NO_GRAD;
        LS_SCOPE;
        for (int m = 0; m < count && status == LS_OK; m++) {
            const int64_t from = j->from + (first + m) * j->batch, left = j->to - from;
            const int64_t n = left < j->batch ? left : j->batch;
            status =
                read_batch(j->data, n > 0 ? from : 0, n > 0 ? n : 1, &j->rooms[m], &j->micro[m]);
        }
        if (status == LS_OK) {
            status = parallel_forward(j->ranks, j->net, j->micro, count, j->logits);
        }
        for (int m = 0; m < count && status == LS_OK; m++) {
            const bool own = j->from + (first + m) * j->batch < j->to;
            if (own && j->logits[m] != NULL) { /* on the rank of the last stage */
                status = judge_logits(j->logits[m], j->micro[m].target, out);
            }
        }
    }
    return status;
}

/* Several batches at a time in a pipeline. */
static ls_status judge_all(const judging *j, int64_t batches, sums *out)
{
    for (int64_t first = 0; first < batches; first += j->count) {
        const int64_t left = batches - first;
        LS_TRY(judge_batches(j, first, left < j->count ? (int)left : j->count, out));
    }
    return LS_OK;
}

static ls_status take_room(judging *j)
{
    size_t x_bytes = (size_t)elements(&j->data->x_shape) * ls_dtype_size(j->data->x_dtype);
    size_t y_bytes = (size_t)elements(&j->data->y_shape) * ls_dtype_size(j->data->y_dtype);
    bool have = true;
    j->rooms = calloc((size_t)j->count, sizeof *j->rooms);
    j->micro = calloc((size_t)j->count, sizeof *j->micro);
    j->logits = calloc((size_t)j->count, sizeof *j->logits);
    for (int i = 0; j->rooms != NULL && i < j->count; i++) {
        j->rooms[i] = (room){calloc((size_t)j->batch, x_bytes), calloc((size_t)j->batch, y_bytes)};
        have = have && j->rooms[i].x != NULL && j->rooms[i].y != NULL;
    }
    return have && j->rooms != NULL && j->micro != NULL && j->logits != NULL
               ? LS_OK
               : ls_fail(LS_ERR_MEMORY, "evaluation: no memory for %d batches", j->count);
}

static void free_room(judging *j)
{
    for (int i = 0; j->rooms != NULL && i < j->count; i++) {
        free(j->rooms[i].x);
        free(j->rooms[i].y);
    }
    free(j->rooms);
    free(j->micro);
    free(j->logits);
}

static ls_status add_over(ls_group *group, double *values, int count)
{
    return ls_all_reduce(group, values, values, count, LS_FLOAT64, LS_SUM,
                         LS_OPTIONS(ls_collective_options, .tag = "evaluation"), NULL);
}

/* In a pipeline only the last stage has anything. */
static ls_status add_up(const parallel *ranks, double *values, int count)
{
    LS_TRY(add_over(ranks->replicas, values, count));
    return ranks->stages != NULL ? add_over(ranks->stages, values, count) : LS_OK;
}

/* The module is in training mode again after it. */
ls_status judge(const parallel *ranks, ls_module *net, ls_dataset *data, int64_t samples,
                int64_t batch, verdict *out)
{
    const int64_t all = samples < data->count ? samples : data->count;
    const int64_t parts = ls_group_size(ranks->replicas), part = ls_group_rank(ranks->replicas);
    judging j = {.ranks = ranks,
                 .net = net,
                 .data = data,
                 .batch = batch,
                 .from = all * part / parts,
                 .to = all * (part + 1) / parts,
                 .count = parallel_forward_count(ranks)};
    sums total = {0};
    ls_module_train(net, false);
    ls_status status = take_room(&j);
    if (status == LS_OK) {
        const int64_t most = ranks->experts ? (all + parts - 1) / parts : j.to - j.from;
        status = judge_all(&j, (most + batch - 1) / batch, &total);
    }
    free_room(&j);
    ls_module_train(net, true);
    LS_TRY(status);
    double values[3] = {total.loss, total.right, total.answers};
    LS_TRY(add_up(ranks, values, 3));
    *out = (verdict){values[0] / values[2], values[1] / values[2]};
    return LS_OK;
}
