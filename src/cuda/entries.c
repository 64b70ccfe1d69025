/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of the kernel table that are more than one kernel, or a call of the driver's. Those
 * that use the device's workspace hold its lock, so that the kernels of an entry follow each
 * other on the stream, whichever threads start any. */
#include "cuda/entries.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cuda/blas.h"
#include "cuda/capture.h"
#include "cuda/dnn.h"
#include "cuda/driver.h"

#define PART_BLOCKS 1024 /* some for each multiprocessor */
#define PART_ROWS 256    /* so that a block has more to read than to start */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *begin(void)
{
    pthread_mutex_lock(&lock);
    return ls__cuda_self.workspace;
}

static void end(void)
{
    pthread_mutex_unlock(&lock);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Between any two of the device's and the program's. */
void ls__cuda_copy(void *out, const void *in, size_t bytes, ls_stream *stream)
{
    if (bytes > 0) {
        ls__cuda_enter();
        ls__cuda_check(ls__cu_driver.cuMemcpyAsync((uintptr_t)out, (uintptr_t)in, bytes, stream),
                       "cuMemcpyAsync");
    }
}

void ls__cuda_zero(void *out, size_t bytes, ls_stream *stream)
{
    if (bytes > 0) {
        ls__cuda_enter();
        ls__cuda_check(ls__cu_driver.cuMemsetD8Async((uintptr_t)out, 0, bytes, stream),
                       "cuMemsetD8Async");
    }
}

/* ---- sums over everything -------------------------------------------------------------------- */

/* Blocks of a pass over `count` elements; at least one, which writes that there is nothing. */
static int64_t parts(int64_t count)
{
    const int64_t blocks = (count + 4 * LS__CUDA_THREADS - 1) / (4 * LS__CUDA_THREADS);
    return blocks < 1 ? 1 : blocks < LS__CUDA_PARTS ? blocks : LS__CUDA_PARTS;
}

static void total(struct cuda_sum_part_args part, struct cuda_sum_end_args to, ls_stream *stream)
{
    part.partial = begin();
    to.partial = part.partial;
    to.count = parts(part.count);
    ls__cuda_launch(CUDA_sum_part, per_row(to.count), &part, stream);
    ls__cuda_launch(CUDA_sum_end, per_row(1), &to, stream);
    end();
}

void ls__cuda_sum(float *out, const float *x, int64_t count, double divisor, ls_stream *stream)
{
    total((struct cuda_sum_part_args){.x = x, .count = count},
          (struct cuda_sum_end_args){.out = out, .divisor = divisor}, stream);
}

void ls__cuda_mean_squares(float *out, const float *x, int64_t count, ls_stream *stream)
{
    total((struct cuda_sum_part_args){.x = x, .count = count, .squares = true},
          (struct cuda_sum_end_args){.out = out, .divisor = (double)count}, stream);
}

void ls__cuda_sum_squares(double *out, const float *x, int64_t count, ls_stream *stream)
{
    total((struct cuda_sum_part_args){.x = x, .count = count, .squares = true},
          (struct cuda_sum_end_args){.out_sum = out}, stream);
}

void ls__cuda_sum_squares_bf16(double *out, const ls__bfloat16 *x, int64_t count, ls_stream *stream)
{
    total((struct cuda_sum_part_args){.x = x, .count = count, .half = true, .squares = true},
          (struct cuda_sum_end_args){.out_sum = out}, stream);
}

static void add_dims(struct cuda_sum_dims_args *k, int ndim, const int64_t *shape,
                     const uint8_t *keep, bool keeps)
{
    int64_t stride = numel(ndim, shape);
    for (int d = 0; d < ndim; d++) {
        stride /= shape[d];
        if ((keep[d] != 0) == keeps) {
            k->shape[k->ndim] = shape[d];
            k->strides.stride[k->ndim++] = stride;
        }
    }
}

/* Without elements every sum is 0. */
void ls__cuda_sum_dims(float *out, const float *x, int ndim, const int64_t *shape,
                       const uint8_t *keep, float beta, ls_stream *stream)
{
    struct cuda_sum_dims_args k = {.out = out, .x = x, .beta = beta, .outputs = 1};
    const int64_t count = numel(ndim, shape);
    for (int d = 0; d < ndim; d++) {
        k.outputs *= keep[d] != 0 ? shape[d] : 1;
    }
    k.terms = k.outputs > 0 ? count / k.outputs : 0;
    if (count > 0) {
        add_dims(&k, ndim, shape, keep, true);
        k.kept = k.ndim;
        add_dims(&k, ndim, shape, keep, false);
    }
    if (k.terms < LS__CUDA_THREADS) {
        ls__cuda_launch(CUDA_sum_dims_few, per_element(k.outputs), &k, stream);
    } else {
        ls__cuda_launch(CUDA_sum_dims, per_row(k.outputs), &k, stream);
    }
}

static void first_of(struct cuda_first_part_args part, int64_t *first, ls_stream *stream)
{
    part.partial = begin();
    const struct cuda_first_end_args to = {.first = first,
                                           .partial = part.partial,
                                           .count = parts(part.to - part.from),
                                           .checks_index = part.checks_index,
                                           .check = part.check};
    ls__cuda_launch(CUDA_first_part, per_row(to.count), &part, stream);
    ls__cuda_launch(CUDA_first_end, per_row(1), &to, stream);
    end();
}

void ls__cuda_nonfinite(int64_t *first, const void *x, ls_dtype dtype, int64_t from, int64_t to,
                        ls_stream *stream)
{
    first_of((struct cuda_first_part_args){.x = x, .dtype = dtype, .from = from, .to = to}, first,
             stream);
}

void ls__cuda_outside(const ls__index_check *check, ls_stream *stream)
{
    first_of(
        (struct cuda_first_part_args){.to = check->count, .checks_index = true, .check = *check},
        check->first, stream);
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* workspace: the number of rows that count, or the weights of their classes; the loss of each
 * row. */
static void row_losses(struct cuda_cross_entropy_rows_args k, ls_stream *stream)
{
    const ls__cross_entropy *of = &k.of;
    double *memory = begin();
    k.count = memory;
    k.losses = memory + 1;
    const struct cuda_count_targets_args count = {.count = memory,
                                                  .target = of->target,
                                                  .index_bytes = of->index_bytes,
                                                  .rows = of->rows,
                                                  .ignore = of->ignore,
                                                  .n = of->n,
                                                  .weight = of->weight};
    const struct cuda_sum_end_args mean = {
        .out = of->loss, .partial = k.losses, .count = of->rows, .over = memory};
    if ((size_t)of->rows >= LS__CUDA_WORKSPACE / sizeof *memory) {
        ls__cuda_fail("cross_entropy", "more rows than its workspace has room for");
    } else {
        ls__cuda_launch(CUDA_count_targets, per_row(1), &count, stream);
        ls__cuda_launch(CUDA_cross_entropy_rows, per_row(of->rows), &k, stream);
        ls__cuda_launch(CUDA_sum_end, per_row(1), &mean, stream);
    }
    end();
}

void ls__cuda_cross_entropy(const ls__cross_entropy *args, ls_stream *stream)
{
    row_losses((struct cuda_cross_entropy_rows_args){.dlogits = args->dlogits,
                                                     .logits = args->logits,
                                                     .of = *args},
               stream);
}

void ls__cuda_cross_entropy_bf16(ls__bfloat16 *dlogits, const ls__bfloat16 *logits,
                                 const ls__cross_entropy *args, ls_stream *stream)
{
    row_losses(
        (struct cuda_cross_entropy_rows_args){
            .dlogits = dlogits, .logits = logits, .half = true, .of = *args},
        stream);
}

void ls__cuda_nll(const ls__cross_entropy *args, ls_stream *stream)
{
    row_losses(
        (struct cuda_cross_entropy_rows_args){
            .dlogits = args->dlogits, .logits = args->logits, .nll = true, .of = *args},
        stream);
}

void ls__cuda_bce(float *loss, float *dx, const float *x, const float *y, int64_t count,
                  ls_stream *stream)
{
    const struct cuda_bce_part_args part = {
        .partial = begin(), .dx = dx, .x = x, .y = y, .count = count};
    const struct cuda_sum_end_args to = {
        .out = loss, .partial = part.partial, .count = parts(count), .divisor = (double)count};
    ls__cuda_launch(CUDA_bce_part, per_row(to.count), &part, stream);
    ls__cuda_launch(CUDA_sum_end, per_row(1), &to, stream);
    end();
}

void ls__cuda_vocab_loss_backward(void *dlogits, const ls__vocab_loss *args, const float *dloss,
                                  ls_stream *stream)
{
    double *count = begin();
    const struct cuda_count_targets_args k = {.count = count,
                                              .target = args->target,
                                              .index_bytes = args->index_bytes,
                                              .rows = args->rows,
                                              .ignore = args->ignore};
    const struct cuda_vocab_gradient_args gradient = {
        .dlogits = dlogits, .dloss = dloss, .count = count, .of = *args};
    ls__cuda_launch(CUDA_count_targets, per_row(1), &k, stream);
    ls__cuda_launch(CUDA_vocab_gradient, per_element(args->rows * args->n), &gradient, stream);
    end();
}

/* ---- norms and activations ------------------------------------------------------------------- */

size_t ls__cuda_layer_norm_workspace(int64_t row_count, int64_t n)
{
    (void)n;
    return (size_t)row_count * sizeof(float); /* what the means lost */
}

static void norm_backward(const struct cuda_norm_gradient_args *x, float *dw, float *db,
                          float beta_w, ls_stream *stream)
{
    const struct cuda_norm_weights_args weights = {
        dw, db, beta_w, x->dy, x->x, x->mean, x->rstd, x->rows, x->n, x->half, x->rest};
    if (x->dx != NULL || (dw != NULL && x->rest != NULL)) {
        ls__cuda_launch(CUDA_norm_gradient, per_row(x->rows), x, stream);
    }
    if (dw != NULL || db != NULL) {
        ls__cuda_launch(CUDA_norm_weights, per_row(tiles(x->n)), &weights, stream);
    }
}

void ls__cuda_layer_norm_backward(float *dx, float beta_x, float *dw, float *db, float beta_w,
                                  const float *dy, const float *x, const float *mean,
                                  const float *rstd, const float *w, int64_t row_count, int64_t n,
                                  void *workspace, ls_stream *stream)
{
    norm_backward(&(struct cuda_norm_gradient_args){dx, beta_x, dy, x, mean, rstd, w, row_count, n,
                                                    false, workspace},
                  dw, db, beta_w, stream);
}

void ls__cuda_layer_norm_backward_bf16(ls__bfloat16 *dx, float beta_x, float *dw, float *db,
                                       float beta_w, const ls__bfloat16 *dy, const ls__bfloat16 *x,
                                       const float *mean, const float *rstd, const float *w,
                                       int64_t row_count, int64_t n, void *workspace,
                                       ls_stream *stream)
{
    norm_backward(&(struct cuda_norm_gradient_args){dx, beta_x, dy, x, mean, rstd, w, row_count, n,
                                                    true, workspace},
                  dw, db, beta_w, stream);
}

void ls__cuda_rms_norm_backward(float *dx, float beta_x, float *dw, float beta_w, const float *dy,
                                const float *x, const float *rstd, const float *w,
                                int64_t row_count, int64_t n, void *workspace, ls_stream *stream)
{
    (void)workspace;
    norm_backward(&(struct cuda_norm_gradient_args){dx, beta_x, dy, x, NULL, rstd, w, row_count, n,
                                                    false, NULL},
                  dw, NULL, beta_w, stream);
}

void ls__cuda_rms_norm_backward_bf16(ls__bfloat16 *dx, float beta_x, float *dw, float beta_w,
                                     const ls__bfloat16 *dy, const ls__bfloat16 *x,
                                     const float *rstd, const float *w, int64_t row_count,
                                     int64_t n, void *workspace, ls_stream *stream)
{
    (void)workspace;
    norm_backward(&(struct cuda_norm_gradient_args){dx, beta_x, dy, x, NULL, rstd, w, row_count, n,
                                                    true, NULL},
                  dw, NULL, beta_w, stream);
}

size_t ls__cuda_activation_backward_workspace(const ls__activation_grad *g)
{
    (void)g;
    return 0;
}

/* dz first, then its column sums, which are of the rounded dz. */
void ls__cuda_activation_backward(const ls__activation_grad *g, ls_stream *stream)
{
    const ls__kernels *k = &ls__cuda_self.table;
    const int64_t count = g->rows * g->n;
    if (g->half) {
        k->unary_backward_bf16(g->op, g->dz, g->dy, g->x, g->y, count, 0.0f, stream);
    } else {
        k->unary_backward(g->op, g->dz, g->dy, g->x, g->y, count, 0.0f, stream);
    }
    if (g->db != NULL && g->half) {
        k->sum_rows_bf16(g->db, g->dz, g->rows, g->n, g->beta, stream);
    } else if (g->db != NULL) {
        k->sum_rows(g->db, g->dz, g->rows, g->n, g->beta, stream);
    }
}

size_t ls__cuda_batch_norm_workspace(const ls__batch_norm *n)
{
    (void)n;
    return 0;
}

/* Sums over rows of few columns keep the whole GPU busy: as many parts as give it PART_BLOCKS
 * blocks, with PART_ROWS rows each. Called under the lock of the workspace, which they lie in. */
static struct cuda_batch_norm_sums_args in_parts(const ls__batch_norm *n, void *workspace)
{
    const int64_t by_rows = n->batch * n->pixels / PART_ROWS;
    const int64_t by_blocks = PART_BLOCKS / tiles(n->channels);
    const int64_t parts = by_rows < by_blocks ? by_rows : by_blocks;
    return (struct cuda_batch_norm_sums_args){
        .part = workspace, .parts = parts > 1 ? parts : 1, .of = *n};
}

void ls__cuda_batch_norm_stats(const ls__batch_norm *n, float *mean, float *variance,
                               ls_stream *stream)
{
    struct cuda_batch_norm_sums_args k = in_parts(n, begin());
    k.mean = mean, k.variance = variance;
    ls__cuda_launch(CUDA_batch_norm_part, per_row(tiles(n->channels) * k.parts), &k, stream);
    ls__cuda_launch(CUDA_batch_norm_stats, per_element(n->channels), &k, stream);
    end();
}

/* With sums of other ranks, too, only dx is written. */
void ls__cuda_batch_norm_backward(const ls__batch_norm *n, ls_stream *stream)
{
    struct cuda_batch_norm_sums_args k = in_parts(n, begin());
    k.sums = k.part + 2 * k.parts * n->channels;
    const struct cuda_batch_norm_gradient_args gradient = {n->sums != NULL ? n->sums : k.sums, *n};
    if (n->sums == NULL) {
        ls__cuda_launch(CUDA_batch_norm_sums_part, per_row(tiles(n->channels) * k.parts), &k,
                        stream);
        ls__cuda_launch(CUDA_batch_norm_sums, per_element(n->channels), &k, stream);
    }
    if (n->dx != NULL || n->dresidual != NULL) {
        ls__cuda_launch(CUDA_batch_norm_gradient, per_element(n->batch * n->pixels * n->channels),
                        &gradient, stream);
    }
    end();
}

size_t ls__cuda_rotary_workspace(const ls__rotary *args)
{
    (void)args;
    return 0;
}

/* ---- attention ------------------------------------------------------------------------------- */

#define NARROW 128 /* elements of a head, of tiles of 16; … */
#define WIDE 256   /* … and of tiles of 8 */

static bool fits(const ls__attention *a)
{
    if (a->dim > WIDE) {
        ls__cuda_fail("attention", "heads of more than 256 elements");
    }
    return a->dim <= WIDE;
}

/* A block for each tile of `length` of each head. */
static void walk(ls__cuda_kernel narrow, ls__cuda_kernel wide, const struct cuda_attention_args *k,
                 int64_t heads, int64_t length, ls_stream *stream)
{
    const bool is_wide = k->of.dim > NARROW;
    const int64_t tile = is_wide ? 8 : 16, blocks = heads * ((length + tile - 1) / tile);
    const ls__cuda_grid grid = {per_row(blocks).blocks, (int)(tile * tile)};
    ls__cuda_launch(is_wide ? wide : narrow, grid, k, stream);
}

void ls__cuda_attention(const ls__attention *a, ls_stream *stream)
{
    const struct cuda_attention_args k = {.of = *a};
    if (fits(a)) {
        walk(CUDA_attention_forward, CUDA_attention_forward_wide, &k, a->batch * a->heads, a->time,
             stream);
    }
}

size_t ls__cuda_attention_workspace(const ls__attention *a, bool backward)
{
    return backward ? (size_t)(a->batch * a->heads * a->time) * sizeof(float) : 0;
}

void ls__cuda_attention_backward(const ls__attention *a, ls_stream *stream)
{
    const struct cuda_attention_args k = {.of = *a, .delta = a->workspace};
    if (fits(a)) {
        ls__cuda_launch(CUDA_attention_delta, per_element(a->batch * a->heads * a->time), &k,
                        stream);
        walk(CUDA_attention_queries, CUDA_attention_queries_wide, &k, a->batch * a->heads, a->time,
             stream);
        walk(CUDA_attention_keys, CUDA_attention_keys_wide, &k, a->batch * a->kv_heads, a->keys,
             stream);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Of no terms: beta C. */
static void product(const ls__cuda_product *p, ls_stream *stream)
{
    const size_t element = p->half_out ? sizeof(ls__bfloat16) : sizeof(float);
    if (p->k > 0) {
        ls__cuda_blas_product(p, stream);
        return;
    }
    for (int64_t i = 0; p->beta == 0.0f && i < p->batch * p->m; i++) {
        const int64_t at = i / p->m * p->stride_c + i % p->m * p->ldc;
        ls__cuda_zero((char *)p->c + (size_t)at * element, (size_t)p->n * element, stream);
    }
}

static void finish(struct cuda_finish_product_args k, const ls__activation *then, ls_stream *stream)
{
    k.activates = then->on;
    k.op = then->op;
    k.out = then->out;
    if (k.acc != NULL || k.bias != NULL || then->on) {
        ls__cuda_launch(CUDA_finish_product, per_element(k.m * k.n), &k, stream);
    }
}

/* Of one matrix, in float32. */
static ls__cuda_product product_of(const ls__gemm *g)
{
    return (ls__cuda_product){.trans_a = g->trans_a,
                              .trans_b = g->trans_b,
                              .m = g->m,
                              .n = g->n,
                              .k = g->k,
                              .lda = g->lda,
                              .ldb = g->ldb,
                              .ldc = g->ldc,
                              .batch = 1,
                              .a = g->a,
                              .b = g->b,
                              .c = g->c,
                              .beta = g->beta};
}

void ls__cuda_gemm(const ls__gemm *g, ls_stream *stream)
{
    const ls__cuda_product p = product_of(g);
    if (g->m > 0 && g->n > 0) {
        (void)begin();
        product(&p, stream);
        end();
        finish(
            (struct cuda_finish_product_args){
                .c = g->c, .bias = g->bias, .m = g->m, .n = g->n, .ldc = g->ldc},
            &g->then, stream);
    }
}

void ls__cuda_gemm_batch(const ls__gemm *g, int64_t batch, int64_t stride_a, int64_t stride_b,
                         int64_t stride_c, ls_stream *stream)
{
    ls__cuda_product p = product_of(g);
    p.batch = batch;
    p.stride_a = stride_a, p.stride_b = stride_b, p.stride_c = stride_c;
    if (g->m > 0 && g->n > 0 && batch > 0) {
        (void)begin();
        product(&p, stream);
        end();
    }
}

/* A bias is added before the only rounding, so those sums go through float32 memory. */
static bool through_float32(const ls__gemm_bf16 *g)
{
    return g->half && g->bias != NULL;
}

size_t ls__cuda_gemm_bf16_workspace(const ls__gemm_bf16 *g)
{
    return through_float32(g) ? (size_t)(g->m * g->n) * sizeof(float) : 0;
}

/* One matrix, with all that follows the product. */
static void gemm_bf16_one(const ls__gemm_bf16 *g, ls__cuda_product p, ls_stream *stream)
{
    const bool wide = through_float32(g);
    struct cuda_finish_product_args k = {
        .c = p.c, .half = g->half, .bias = g->bias, .m = g->m, .n = g->n, .ldc = g->ldc};
    if (wide) {
        p.c = g->workspace, p.half_out = false, p.ldc = g->n, p.beta = 0.0f;
        k.acc = g->workspace, k.ld_acc = g->n, k.beta = g->beta;
    }
    product(&p, stream);
    finish(k, &g->then, stream);
}

void ls__cuda_gemm_bf16(const ls__gemm_bf16 *g, ls_stream *stream)
{
    ls__cuda_product p = {.trans_a = g->trans_a,
                          .trans_b = g->trans_b,
                          .half = true,
                          .half_out = g->half,
                          .m = g->m,
                          .n = g->n,
                          .k = g->k,
                          .lda = g->lda,
                          .ldb = g->ldb,
                          .ldc = g->ldc,
                          .batch = g->batch,
                          .stride_a = g->stride_a,
                          .stride_b = g->stride_b,
                          .stride_c = g->stride_c,
                          .a = g->a,
                          .b = g->b,
                          .c = g->c,
                          .beta = g->beta};
    if (g->m == 0 || g->n == 0 || g->batch == 0) {
        return;
    }
    (void)begin();
    if (g->bias == NULL && !g->then.on) {
        product(&p, stream);
    } else {
        const size_t element = g->half ? sizeof(ls__bfloat16) : sizeof(float);
        p.batch = 1;
        for (int64_t i = 0; i < g->batch; i++) {
            p.a = g->a + i * g->stride_a, p.b = g->b + i * g->stride_b;
            p.c = (char *)g->c + (size_t)(i * g->stride_c) * element;
            gemm_bf16_one(g, p, stream);
        }
    }
    end();
}

/* ---- images ---------------------------------------------------------------------------------- */

size_t ls__cuda_conv2d_workspace(const ls__conv2d *c, ls__conv2d_pass pass,
                                 const ls__conv2d_data *d)
{
    return ls__cuda_dnn_workspace(c, pass, d);
}

/* By kernels of our own, which need no workspace. */
static void convolve(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                     ls_stream *stream)
{
    struct cuda_conv_args k = {*c, *d};
    k.data.plans = NULL; /* the program's */
    switch (pass) {
    case LS__CONV2D_FORWARD:
        ls__cuda_launch(CUDA_conv_forward,
                        per_element(c->batch * c->out_height * c->out_width * c->out), &k, stream);
        break;
    case LS__CONV2D_BACKWARD_X:
        ls__cuda_launch(CUDA_conv_backward_x, per_element(c->batch * c->height * c->width * c->in),
                        &k, stream);
        break;
    case LS__CONV2D_BACKWARD_W:
        ls__cuda_launch(CUDA_conv_backward_w,
                        per_row(c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1]), &k,
                        stream);
        break;
    }
}

void ls__cuda_conv2d(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                     ls_stream *stream)
{
    if (!ls__cuda_dnn_conv2d(c, pass, d, stream)) {
        convolve(c, pass, d, stream);
    }
}

/* The taps are the program's; a copy from there has read them when it returns. */
static void upsample(ls__cuda_kernel kernel, int64_t elements, struct cuda_upsample_args k,
                     ls_stream *stream)
{
    ls__tap *taps = begin();
    const size_t row_count = (size_t)k.of.out_height, columns = (size_t)k.of.out_width;
    if ((row_count + columns) * sizeof *taps > LS__CUDA_WORKSPACE) {
        ls__cuda_fail("upsample", "an image larger than its workspace has room for");
    } else {
        ls__cuda_copy(taps, k.of.rows, row_count * sizeof *taps, stream);
        ls__cuda_copy(taps + row_count, k.of.columns, columns * sizeof *taps, stream);
        k.of.rows = taps, k.of.columns = taps + row_count;
        ls__cuda_launch(kernel, per_element(elements), &k, stream);
    }
    end();
}

void ls__cuda_upsample2d(const ls__upsample2d *u, float *y, const float *x, ls_stream *stream)
{
    upsample(CUDA_upsample_forward, u->batch * u->out_height * u->out_width * u->channels,
             (struct cuda_upsample_args){.of = *u, .to = y, .from = x}, stream);
}

void ls__cuda_upsample2d_backward(const ls__upsample2d *u, float *dx, float beta, const float *dy,
                                  ls_stream *stream)
{
    upsample(CUDA_upsample_backward, u->batch * u->height * u->width * u->channels,
             (struct cuda_upsample_args){.of = *u, .to = dx, .from = dy, .beta = beta}, stream);
}

/* ---- optimizers ------------------------------------------------------------------------------ */

static void add_part(struct cuda_step_args *k, const ls__step_part *p)
{
    const int64_t blocks = (p->count + LS__CUDA_STEP_CHUNK - 1) / LS__CUDA_STEP_CHUNK;
    k->part[k->count] = *p;
    k->correction[k->count][0] = (float)(1.0 - pow(k->beta1, (double)p->step));
    k->correction[k->count][1] = (float)(1.0 - pow(k->beta2, (double)p->step));
    k->first_block[k->count + 1] = k->first_block[k->count] + blocks;
    k->count++;
}

/* As many parts in a start as its arguments have room for. */
static void step(ls__cuda_kernel kernel, struct cuda_step_args k, const ls__step_part *list,
                 int64_t count, ls_stream *stream)
{
    k.gate = ls__cuda_capture_gate();
    for (int64_t i = 0; i < count; i++) {
        if (list[i].count > 0) {
            add_part(&k, &list[i]);
        }
        if (k.count == LS__CUDA_STEP_PARTS || i == count - 1) {
            const ls__cuda_grid grid = {k.first_block[k.count], LS__CUDA_THREADS};
            ls__cuda_launch(kernel, grid, &k, stream);
            k.count = 0;
        }
    }
}

void ls__cuda_adamw(const ls__adamw_args *args, ls_stream *stream)
{
    step(CUDA_adamw_parts,
         (struct cuda_step_args){.beta1 = args->beta1,
                                 .beta2 = args->beta2,
                                 .eps = args->eps,
                                 .decoupled = args->decoupled},
         args->parts, args->part_count, stream);
}

void ls__cuda_sgd(const ls__sgd_args *args, ls_stream *stream)
{
    step(CUDA_sgd_parts,
         (struct cuda_step_args){
             .momentum = args->momentum, .dampening = args->dampening, .nesterov = args->nesterov},
         args->parts, args->part_count, stream);
}

void ls__cuda_rmsprop(const ls__rmsprop_args *args, ls_stream *stream)
{
    step(CUDA_rmsprop_parts,
         (struct cuda_step_args){.alpha = args->alpha,
                                 .eps = args->eps,
                                 .momentum = args->momentum,
                                 .centered = args->centered},
         args->parts, args->part_count, stream);
}
