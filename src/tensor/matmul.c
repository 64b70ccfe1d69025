/* SPDX-License-Identifier: Apache-2.0 */
/* Batched matrix product with broadcasting: a [..,M,K] times b [..,K,N] is [..,M,N]; the leading
 * (batch) dimensions broadcast as in element by element operations.
 *
 *     C = A B,   dA = dC B^T,   dB = A^T dC
 *
 * The gradient of an operand that was repeated is the sum over its repetitions, in order of the
 * batch.
 *
 * A call takes four steps: `operand` finds how each matrix lies (row stride, transposed or not,
 * steps between the matrices of the batch); `ls_matmul` decides whether the batch is `folded`;
 * `run` breaks the batch into calls of the kernel; `multiply` makes one of them.
 *
 * Matrices whose rows or columns lie dense are read where they are (a transposed view costs
 * nothing); others are copied first. Folding: a batch of A's whose rows continue each other,
 * times one B, is a single product of [batch M,K]; so is the gradient of that B, over the rows
 * of all the batch at once.
 *
 * Among bfloat16 tensors, and under autocast, the products are of bfloat16 matrices; the rule
 * writes gradients in the types of the tensors, see linear.c. Offsets are in elements of either
 * type. */
#include <string.h>

#include "tensor/half.h"

enum { SAVED_A, SAVED_B };

/* A [..,rows,cols] operand in the form that the kernel takes. */
typedef struct matrix {
    int64_t rows, cols;          /* of op(X), as the product sees it */
    bool trans;                  /* stored [cols,rows] */
    int64_t ld;                  /* elements from a stored row to the next */
    int64_t stride[LS_DIMS_MAX]; /* of the output's batch dims, 0 where it repeats */
} matrix;

typedef struct matmul_context { /* saved with the node: backward reads operands by it */
    matrix a, b;
    int batch_dims; /* leading dimensions of the output, and their sizes and product: */
    int64_t batch_dim[LS_DIMS_MAX], batch;
    bool folded; /* b is one matrix and a's rows form one */
    bool half;   /* a, b and dy are bfloat16 to the products */
} matmul_context;

/* Operands of either type travel as addresses of floats; multiply_half casts them back. */
static const float *floats_at(const void *data)
{
    return data;
}

/* Whether the kernel can read the last two dimensions of `t` as they lie: row-major with some
 * row stride, or the transpose of that. Fills m->trans and m->ld if so. */
static bool dense_matrix(const ls__record *t, matrix *m)
{
    int64_t row_stride = t->stride[t->ndim - 2], col_stride = t->stride[t->ndim - 1];
    if ((col_stride == 1 || m->cols == 1) && (row_stride >= m->cols || m->rows == 1)) {
        m->trans = false;
        m->ld = m->rows == 1 && row_stride < m->cols ? m->cols : row_stride;
        return true;
    }
    if ((row_stride == 1 || m->rows == 1) && (col_stride >= m->rows || m->cols == 1)) {
        m->trans = true;
        m->ld = m->cols == 1 && col_stride < m->rows ? m->rows : col_stride;
        return true;
    }
    return false;
}

/* Describes operand i in `m` and returns a reference to its memory: the tensor's own, or a copy
 * when the kernel cannot read it or it must be rounded. The caller drops it. */
static ls__dense operand(ls__call *call, int i, const matmul_context *c, matrix *m)
{
    const ls__record *in = call->in[i];
    ls__dense held;
    m->rows = in->dim[in->ndim - 2];
    m->cols = in->dim[in->ndim - 1];
    const int64_t *stride = in->stride;
    int64_t copied[LS_DIMS_MAX];
    bool rounded = c->half && in->dtype == LS_FLOAT32;
    if (!rounded && dense_matrix(in, m)) {
        held = ls__dense_of_output(in);
        held.leaf = in->node != NULL && ls__node_is_leaf(in->node) ? in->node : NULL;
        held.argument = i + 1;
    } else {
        held = rounded ? ls__call_half(call, i) : ls__call_dense(call, i);
        m->trans = false;
        m->ld = m->cols;
        int64_t next = 1;
        for (int d = in->ndim - 1; d >= 0; d--) {
            copied[d] = next;
            next *= in->dim[d];
        }
        stride = copied;
    }
    int shift = c->batch_dims - (in->ndim - 2);
    for (int d = 0; d < c->batch_dims; d++) {
        bool repeats = d < shift || in->dim[d - shift] == 1;
        m->stride[d] = repeats ? 0 : stride[d - shift];
    }
    return held;
}

/* Whether a [..,M,K] lies as [batch M,K]: its batch dimensions continue its rows. */
static bool rows_continue(const matmul_context *c, const matrix *m)
{
    int64_t expected = m->ld * m->rows;
    for (int d = c->batch_dims - 1; d >= 0; d--) {
        if (c->batch_dim[d] != 1 && m->stride[d] != expected) {
            return false;
        }
        expected *= c->batch_dim[d];
    }
    return !m->trans || c->batch == 1;
}

/* Whether one matrix serves the whole batch; its gradient is then a sum over the batch. */
static bool repeats(const matmul_context *c, const matrix *m)
{
    for (int d = 0; d < c->batch_dims; d++) {
        if (c->batch_dim[d] != 1 && m->stride[d] != 0) {
            return false;
        }
    }
    return true;
}

/* ---- running over the batch --------------------------------------------------------------- */

typedef struct operands { /* C = op(A) op(B) for every matrix of the batch */
    ls__gemm gemm;        /* of the first; pointers to the types that `half` and `half_c` state */
    bool half, half_c;    /* A and B, and C, are bfloat16 */
    const int64_t *stride_a, *stride_b, *stride_c;
} operands;

typedef struct steps { /* between matrices of a batch, in elements */
    int64_t batch, a, b, c;
} steps;

/* The batch of bfloat16 products in one call, so that one plan serves them all. */
static ls_status multiply_half(ls__pool *on, const operands *o, const steps *s)
{
    const ls__gemm *g = &o->gemm;
    return ls__gemm_half(on, &(ls__gemm_bf16){.trans_a = g->trans_a,
                                              .trans_b = g->trans_b,
                                              .m = g->m,
                                              .n = g->n,
                                              .k = g->k,
                                              .a = (const ls__bfloat16 *)(const void *)g->a,
                                              .lda = g->lda,
                                              .b = (const ls__bfloat16 *)(const void *)g->b,
                                              .ldb = g->ldb,
                                              .c = g->c,
                                              .ldc = g->ldc,
                                              .half = o->half_c,
                                              .beta = g->beta,
                                              .batch = s->batch,
                                              .stride_a = s->a,
                                              .stride_b = s->b,
                                              .stride_c = s->c});
}

/* One call of the kernel, for a batch whose matrices follow each other by constant steps `s`;
 * run_products() has split others. */
static ls_status multiply(ls__pool *on, const operands *o, const steps *s)
{
    if (o->half) {
        return multiply_half(on, o, s);
    }
    if (s->batch == 1) {
        on->k->gemm(&o->gemm, on->stream);
    } else {
        on->k->gemm_batch(&o->gemm, s->batch, s->a, s->b, s->c, on->stream);
    }
    return LS_OK;
}

/* The step between matrices when one stride serves the whole batch, into *out; false otherwise.
 * Batch dimensions of 1 do not count. */
static bool single_stride(const matmul_context *c, const int64_t *stride, int64_t *out)
{
    int64_t expected = 0;
    bool first = true;
    *out = 0;
    for (int d = c->batch_dims - 1; d >= 0; d--) {
        if (c->batch_dim[d] == 1) {
            continue;
        }
        if (first) {
            *out = stride[d];
            expected = stride[d];
            first = false;
        } else if (stride[d] != expected) {
            return false;
        }
        expected *= c->batch_dim[d];
    }
    return true;
}

/* Offset of matrix i of the batch, counted row-major; a repeated dimension has stride 0. */
static int64_t batch_offset(const matmul_context *c, const int64_t *stride, int64_t i)
{
    int64_t offset = 0;
    for (int d = c->batch_dims - 1; d >= 0; d--) {
        offset += i % c->batch_dim[d] * stride[d];
        i /= c->batch_dim[d];
    }
    return offset;
}

/* Whether matrix i of the batch is the first that lands on its place in C. */
static bool first_of_sum(const matmul_context *c, const int64_t *stride, int64_t i)
{
    bool first = true;
    for (int d = c->batch_dims - 1; d >= 0; d--) {
        first = first && (stride[d] != 0 || i % c->batch_dim[d] == 0);
        i /= c->batch_dim[d];
    }
    return first;
}

/* The address `elements` further, of bfloat16 or float32. */
static void *moved(const void *data, int64_t elements, bool half)
{
    return (char *)(uintptr_t)data + elements * (half ? 2 : 4);
}

/* Runs the product over the batch. Most batches have one stride for each operand and take one
 * call of the kernel; broadcasting in the middle of the batch, and sums over it, take one call a
 * matrix, in order of the batch. The first matrix that lands on a place of C takes the caller's
 * beta, later ones add. */
static ls_status run_products(ls__pool *on, const matmul_context *c, const operands *o)
{
    steps s = {.batch = c->batch};
    const steps single = {.batch = 1};
    if (c->folded) {
        return multiply(on, o, &single);
    }
    bool plain = single_stride(c, o->stride_a, &s.a) && single_stride(c, o->stride_b, &s.b) &&
                 single_stride(c, o->stride_c, &s.c);
    if (plain && (s.c != 0 || c->batch == 1)) {
        return multiply(on, o, &s);
    }
    for (int64_t i = 0; i < c->batch; i++) { /* in order: sums over the batch are reproducible */
        operands one = *o;
        one.gemm.a = moved(o->gemm.a, batch_offset(c, o->stride_a, i), o->half);
        one.gemm.b = moved(o->gemm.b, batch_offset(c, o->stride_b, i), o->half);
        one.gemm.c = moved(o->gemm.c, batch_offset(c, o->stride_c, i), o->half_c);
        one.gemm.beta = first_of_sum(c, o->stride_c, i) ? o->gemm.beta : 1.0f;
        LS_TRY(multiply(on, &one, &single));
    }
    return LS_OK;
}

/* Steps between the matrices of a gradient: row-major like the operand itself, 0 along batch
 * dimensions in which the operand was repeated and its gradient is a sum. */
static void dense_batch(const matmul_context *c, const matrix *like, int64_t stride[LS_DIMS_MAX])
{
    int64_t next = like->rows * like->cols;
    for (int d = c->batch_dims - 1; d >= 0; d--) {
        bool once = c->batch_dim[d] != 1 && like->stride[d] == 0;
        stride[d] = once ? 0 : next;
        next *= once ? 1 : c->batch_dim[d];
    }
}

/* Steps between the matrices of the output, which is row-major whatever the operands are. */
static void output_batch(const matmul_context *c, int64_t stride[LS_DIMS_MAX])
{
    int64_t next = c->a.rows * c->b.cols;
    for (int d = c->batch_dims - 1; d >= 0; d--) {
        stride[d] = next;
        next *= c->batch_dim[d];
    }
}

/* ---- gradients ---------------------------------------------------------------------------- */

/* Whether there is nothing to multiply for the gradient of input i, which has `numel` elements:
 * it is then filled with zeros unless it accumulates. Kernels need not know empty operands. */
static bool empty_product(ls__tensor_rule *r, int i, int64_t numel)
{
    const matmul_context *c = r->node->context;
    bool empty = numel == 0 || r->node->numel == 0 || c->a.cols == 0;
    if (empty && numel > 0 && r->in[i].beta == 0.0f) {
        ls__fill_zero(r->on, r->in[i].data, r->in[i].dtype, numel);
    }
    return empty;
}

/* Elements of an operand as stored, without repetitions; those of its gradient, too. */
static int64_t operand_numel(const matmul_context *c, const matrix *m)
{
    int64_t numel = m->rows * m->cols;
    for (int d = 0; d < c->batch_dims; d++) {
        numel *= c->batch_dim[d] != 1 && m->stride[d] == 0 ? 1 : c->batch_dim[d];
    }
    return numel;
}

/* Runs `o` into the gradient of input i, which `like` describes. One that is bfloat16 and a sum
 * over the batch is summed in float32 first. */
static ls_status run_into(ls__tensor_rule *r, int i, const matrix *like, operands *o)
{
    const matmul_context *c = r->node->context;
    int64_t numel = operand_numel(c, like);
    o->half = c->half;
    o->half_c = r->in[i].dtype == LS_BFLOAT16;
    o->gemm.c = r->in[i].data;
    o->gemm.beta = r->in[i].beta;
    if (!o->half_c || c->folded || numel == c->batch * like->rows * like->cols) {
        return run_products(r->on, c, o);
    }
    ls__storage *sum = ls__storage_new(r->on, (size_t)numel * sizeof(float));
    if (sum == NULL) {
        return ls__self.status;
    }
    o->half_c = false;
    o->gemm.c = sum->data;
    o->gemm.beta = 0.0f;
    ls_status status = run_products(r->on, c, o);
    ls__cast_gradient(r->on, r->in[i].data, LS_BFLOAT16, sum->data, numel, r->in[i].beta);
    ls__storage_unref(sum);
    return status;
}

/* dA = dC op(B)^T. With b transposed in memory, its stored form is the one to multiply by. */
static ls_status backward_a(ls__tensor_rule *r)
{
    const matmul_context *c = r->node->context;
    int64_t stride_a[LS_DIMS_MAX], stride_c[LS_DIMS_MAX];
    if (empty_product(r, 0, operand_numel(c, &c->a))) {
        return LS_OK;
    }
    dense_batch(c, &c->a, stride_a);
    output_batch(c, stride_c);
    operands o = {.gemm = {.trans_b = !c->b.trans,
                           .m = c->folded ? c->batch * c->a.rows : c->a.rows,
                           .n = c->a.cols,
                           .k = c->b.cols,
                           .a = r->dy,
                           .lda = c->b.cols,
                           .b = floats_at(r->saved[SAVED_B]),
                           .ldb = c->b.ld,
                           .ldc = c->a.cols},
                  .stride_a = stride_c,
                  .stride_b = c->b.stride,
                  .stride_c = stride_a};
    return run_into(r, 0, &c->a, &o);
}

/* dB = op(A)^T dC; over the rows of the whole batch at once where the product was folded. */
static ls_status backward_b(ls__tensor_rule *r)
{
    const matmul_context *c = r->node->context;
    int64_t stride_b[LS_DIMS_MAX], stride_c[LS_DIMS_MAX];
    if (empty_product(r, 1, operand_numel(c, &c->b))) {
        return LS_OK;
    }
    dense_batch(c, &c->b, stride_b);
    output_batch(c, stride_c);
    operands o = {.gemm = {.trans_a = !c->a.trans,
                           .m = c->a.cols,
                           .n = c->b.cols,
                           .k = c->folded ? c->batch * c->a.rows : c->a.rows,
                           .a = floats_at(r->saved[SAVED_A]),
                           .lda = c->a.ld,
                           .b = r->dy,
                           .ldb = c->b.cols,
                           .ldc = c->b.cols},
                  .stride_a = c->a.stride,
                  .stride_b = stride_c,
                  .stride_c = stride_b};
    return run_into(r, 1, &c->b, &o);
}

/* Each gradient only where it is wanted; the memory is the engine's (graph.h, Note [Gradient
 * rules]). */
static ls_status matmul_backward(ls__tensor_rule *r)
{
    if (r->in[0].data != NULL) {
        LS_TRY(backward_a(r));
    }
    if (r->in[1].data != NULL) {
        LS_TRY(backward_b(r));
    }
    return LS_OK;
}

static const ls__op matmul_op = {
    .name = "matmul", .backward = matmul_backward, .accumulates = true};

/* ---- forward ------------------------------------------------------------------------------ */

/* *shape is the output's, [..,M,N]. False with call->failed set. */
static bool matmul_shape(ls__call *call, ls_shape *shape)
{
    const ls__record *a = call->in[0], *b = call->in[1];
    if (a->ndim < 2 || b->ndim < 2) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "%s x %s: both must have at least two dimensions; ls_reshape a vector "
                            "to [1,n] or [n,1]",
                            ls__record_print(a).text, ls__record_print(b).text);
        return false;
    }
    int64_t k_a = a->dim[a->ndim - 1], k_b = b->dim[b->ndim - 2];
    if (k_a != k_b) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "%s x %s: the inner dimensions %lld and %lld differ; the last of the "
                            "first must equal the last but one of the second (ls_transpose one?)",
                            ls__record_print(a).text, ls__record_print(b).text, (long long)k_a,
                            (long long)k_b);
        return false;
    }
    ls_shape of_a = ls__record_shape(a), of_b = ls__record_shape(b);
    int64_t m = a->dim[a->ndim - 2], n = b->dim[b->ndim - 1];
    of_a.ndim -= 2;
    of_b.ndim -= 2;
    if (!ls__shape_broadcast(of_a, of_b, shape)) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "%s x %s: the leading dimensions %s and %s do not broadcast; each pair "
                            "must be equal or contain a 1",
                            ls__record_print(a).text, ls__record_print(b).text,
                            ls__shape_print(of_a).text, ls__shape_print(of_b).text);
        return false;
    }
    shape->dim[shape->ndim] = m;
    shape->dim[shape->ndim + 1] = n;
    shape->ndim += 2;
    return true;
}

/* C of the whole batch. An inner dimension of 0 is a product of zeros, which the kernels need
 * not know. */
static ls_status forward(const ls__call *call, matmul_context *c, const ls__dense *a,
                         const ls__dense *b, ls__record *out)
{
    int64_t stride_c[LS_DIMS_MAX];
    if (out->numel == 0) {
        return LS_OK;
    }
    if (c->a.cols == 0) {
        ls__fill_zero(call->on, ls__record_data(out), (ls_dtype)out->dtype, out->numel);
        return LS_OK;
    }
    output_batch(c, stride_c);
    operands o = {.gemm = {.trans_a = c->a.trans,
                           .trans_b = c->b.trans,
                           .m = c->folded ? c->batch * c->a.rows : c->a.rows,
                           .n = c->b.cols,
                           .k = c->a.cols,
                           .a = floats_at(a->data),
                           .lda = c->a.ld,
                           .b = floats_at(b->data),
                           .ldb = c->b.ld,
                           .c = ls__record_floats(out),
                           .ldc = c->b.cols},
                  .half = c->half,
                  .half_c = c->half,
                  .stride_a = c->a.stride,
                  .stride_b = c->b.stride,
                  .stride_c = stride_c};
    return run_products(call->on, c, &o);
}

/* The batch dimensions of the output; operands are described later. */
static void context_fill(matmul_context *c, ls_shape shape, bool half)
{
    *c = (matmul_context){.batch_dims = shape.ndim - 2, .batch = 1, .half = half};
    for (int d = 0; d < c->batch_dims; d++) {
        c->batch_dim[d] = shape.dim[d];
        c->batch *= shape.dim[d];
    }
}

/* As torch.matmul for tensors of at least two dimensions. Each operand is saved only if the
 * other one's gradient will read it. */
ls_tensor *ls_matmul(ls_tensor *a, ls_tensor *b)
{
    ls__call call;
    ls_shape shape;
    matmul_context c;
    if (!ls__call_begin(&call, "matmul", 2, (ls_tensor *[]){a, b})) {
        return call.failed;
    }
    bool half = ls__call_is_half(&call);
    if ((!half && !ls__call_float32(&call)) || !matmul_shape(&call, &shape)) {
        return call.failed;
    }
    context_fill(&c, shape, half);
    ls__dense x = operand(&call, 0, &c, &c.a), y = operand(&call, 1, &c, &c.b);
    c.folded = repeats(&c, &c.b) && rows_continue(&c, &c.a);
    ls__record *out = ls__call_output(&call, shape, half ? LS_BFLOAT16 : LS_FLOAT32);
    if (out != NULL && forward(&call, &c, &x, &y, out) != LS_OK) {
        call.failed = ls__poison(call.tensors);
    }
    ls__tensor_node *node = ls__call_record(&call, &matmul_op, out, sizeof c);
    if (node != NULL) {
        memcpy(node->context, &c, sizeof c);
        ls__node_save(node->edge[1].to != NULL ? node : NULL, SAVED_A, &x);
        ls__node_save(node->edge[0].to != NULL ? node : NULL, SAVED_B, &y);
    }
    ls__dense_drop(&x);
    ls__dense_drop(&y);
    call.follows = LS__CONTRACTS(MATMUL);
    return ls__call_finish(&call, out);
}
