/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of batch norm over the ranks' batches (torch.nn.SyncBatchNorm; Ioffe & Szegedy 2015).
 *
 *   forward    n, mean, M2 = n variance of each rank's elements, a channel  ──▶ all ranks
 *              joined in rank order by the formula of Chan, Golub & LeVeque 1979:
 *                 d = mean_b - mean_a,  mean = mean_a + d n_b / n,
 *                 M2 = M2_a + M2_b + d^2 n_a n_b / n
 *   backward   sum g, sum g h of each rank, a channel                       ──▶ all ranks
 *              dx = w rstd (g - (sum g + h sum g h) / n),  h = (x - mean) rstd
 *
 * Blocks travel whole and every rank adds them in the same order in float64, so all ranks have the
 * same bits. A rank's weight is its number of elements: batches and images may differ in size, and
 * a rank with an empty batch takes part with zeros. dw and db stay sums over this rank's elements:
 * a data-parallel wrapper averages them like any gradient. */
#include "tensor/batch_norm.h"

#include "base/assert.h"

/* Room for this rank's block and those of all ranks, in memory of the host, which exchanges and
 * adds them. */
static ls__storage *blocks_new(const ls__norm_sync *sync, int64_t block)
{
    LS_ASSERT(sync->self->pool->device->host);
    return ls__storage_new(sync->self->pool, (size_t)(block * (sync->ranks + 1)) * sizeof(double));
}

/* ---- forward ------------------------------------------------------------------------------- */

typedef struct moments {
    double count, mean, m2;
} moments;

/* The moments of two sets of elements as one. */
static moments joined(moments a, moments b)
{
    const double count = a.count + b.count, d = b.mean - a.mean;
    if (b.count == 0.0) {
        return a;
    }
    return (moments){.count = count,
                     .mean = a.mean + d * (b.count / count),
                     .m2 = a.m2 + b.m2 + d * d * (a.count * b.count / count)};
}

/* Of one channel over all ranks; blocks are the count, then means, then M2. */
static moments moments_of(const double *all, int ranks, int64_t channels, int64_t channel)
{
    moments m = {0};
    for (int i = 0; i < ranks; i++) {
        const double *block = all + i * (1 + 2 * channels);
        m = joined(m, (moments){block[0], block[1 + channel], block[1 + channels + channel]});
    }
    return m;
}

/* A rank without elements has no mean, whatever `mean` holds. */
static void fill_block(double *block, int64_t channels, const float *mean, const float *variance,
                       int64_t count)
{
    block[0] = (double)count;
    for (int64_t c = 0; c < channels; c++) {
        block[1 + c] = count > 0 ? (double)mean[c] : 0.0;
        block[1 + channels + c] = count > 0 ? (double)variance[c] * (double)count : 0.0;
    }
}

static _Thread_local uint64_t begun;

uint64_t ls__norm_sync_begun(void)
{
    return begun;
}

/* Of elements that the program may read and write. */
static ls_status join_stats(ls__norm_sync *sync, int64_t channels, float *mean, float *variance,
                            int64_t *count)
{
    const int64_t block = 1 + 2 * channels;
    ls__storage *memory = blocks_new(sync, block);
    if (memory == NULL) {
        return ls__self.status;
    }
    double *own = memory->data, *all = own + block, total = 0.0;
    fill_block(own, channels, mean, variance, *count);
    begun++;
    const ls_status status = sync->gather(sync, own, all, block, "statistics of batch norm");
    for (int i = 0; status == LS_OK && i < sync->ranks; i++) {
        total += all[i * block];
    }
    for (int64_t c = 0; status == LS_OK && c < channels; c++) {
        const moments m = moments_of(all, sync->ranks, channels, c);
        mean[c] = (float)m.mean;
        variance[c] = (float)(total > 0.0 ? m.m2 / total : 0.0);
    }
    *count = (int64_t)total;
    ls__storage_unref(memory);
    return status;
}

ls_status ls__norm_sync_stats(ls__norm_sync *sync, ls__pool *on, int64_t channels, float *mean,
                              float *variance, int64_t *count)
{
    ls__host_view means, variances;
    const size_t bytes = (size_t)channels * sizeof *mean;
    LS_TRY(ls__host_view_open(on, mean, bytes, &means));
    ls_status status = ls__host_view_open(on, variance, bytes, &variances);
    if (status == LS_OK) {
        status = join_stats(sync, channels, means.data, variances.data, count);
        ls__host_view_close(&variances, status == LS_OK);
    }
    ls__host_view_close(&means, status == LS_OK);
    return status;
}

/* ---- backward ------------------------------------------------------------------------------ */

/* dw and db of this rank, and the residual's gradient; the sums go to `own` [2,C] as well. */
static ls_status sum_here(ls__pool *on, const ls__batch_norm *n, float *sums, double *own)
{
    ls__host_view view;
    const int64_t channels = n->channels;
    on->k->zero(sums, (size_t)(2 * channels) * sizeof *sums, on->stream);
    if (n->batch * n->pixels > 0) {
        ls__batch_norm own_part = *n;
        own_part.dx = NULL;
        own_part.db = sums;
        own_part.dw = sums + channels;
        own_part.beta_w = own_part.beta_b = 0.0f;
        on->k->batch_norm_backward(&own_part, on->stream);
    }
    LS_TRY(ls__host_view_open(on, sums, (size_t)(2 * channels) * sizeof *sums, &view));
    const float *here = view.data;
    for (int64_t i = 0; i < 2 * channels; i++) {
        own[i] = (double)here[i];
    }
    ls__host_view_close(&view, false);
    if (n->dw != NULL && channels > 0) {
        on->k->axpby(n->dw, sums + channels, channels, 1.0f, n->beta_w, on->stream);
    }
    if (n->db != NULL && channels > 0) {
        on->k->axpby(n->db, sums, channels, 1.0f, n->beta_b, on->stream);
    }
    return LS_OK;
}

/* dx from the blocks of all ranks, whose sum replaces `own`. */
static ls_status finish_x(const ls__norm_sync *sync, ls__pool *on, const ls__batch_norm *n,
                          double *own, int64_t count)
{
    const int64_t block = 2 * n->channels;
    const double *all = own + block;
    for (int64_t i = 0; i < block; i++) {
        own[i] = 0.0;
        for (int rank = 0; rank < sync->ranks; rank++) {
            own[i] += all[rank * block + i];
        }
    }
    if (n->dx == NULL || n->batch * n->pixels == 0) {
        return LS_OK;
    }
    LS_ASSERT(count >= n->batch * n->pixels);
    ls__storage *there = ls__storage_new(on, (size_t)block * sizeof *own);
    if (there == NULL) {
        return ls__self.status;
    }
    ls__device_write(on->device, there->data, own, (size_t)block * sizeof *own);
    ls__batch_norm x = *n;
    x.dw = x.db = x.dresidual = NULL;
    x.sums = there->data;
    x.count = count;
    on->k->batch_norm_backward(&x, on->stream);
    ls__storage_unref(there);
    return LS_OK;
}

ls_status ls__norm_sync_backward(ls__norm_sync *sync, ls__pool *on, ls__batch_norm *n,
                                 int64_t count, bool wants_dx)
{
    const int64_t block = 2 * n->channels;
    ls__storage *memory = blocks_new(sync, block), *work = NULL, *sums = NULL;
    ls_status status = LS_ERR_MEMORY; /* its text is ls__storage_new's */
    if (memory != NULL && (work = ls__storage_new(on, on->k->batch_norm_workspace(n))) != NULL &&
        (sums = ls__storage_new(on, (size_t)block * sizeof(float))) != NULL) {
        double *own = memory->data;
        n->workspace = work->data;
        status = sum_here(on, n, sums->data, own);
        if (status == LS_OK && wants_dx) {
            status = sync->gather(sync, own, own + block, block, "gradients of batch norm");
        }
        if (status == LS_OK && wants_dx) {
            status = finish_x(sync, on, n, own, count);
        }
    }
    ls__storage_unref(sums);
    ls__storage_unref(work);
    ls__storage_unref(memory);
    return status;
}
