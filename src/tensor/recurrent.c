/* SPDX-License-Identifier: Apache-2.0 */
/* See recurrent.h. */
#include "tensor/recurrent.h"

/* g's product with bfloat16 operands, added to C in float32. The left side is rounded into a
 * buffer that all steps share, so steps must run in order; the right side, W, is bfloat16
 * already. */
static ls_status add_half_product(const ls__recurrent_tools *with, const ls__gemm *g)
{
    with->on->k->bfloat16_narrow(with->rounded, g->a, g->m * g->k, 0.0f, with->on->stream);
    ls__gemm_bf16 half = {.trans_b = g->trans_b,
                          .m = g->m,
                          .n = g->n,
                          .k = g->k,
                          .a = with->rounded,
                          .lda = g->lda,
                          .b = (const ls__bfloat16 *)(const void *)g->b,
                          .ldb = g->ldb,
                          .c = g->c,
                          .ldc = g->ldc,
                          .beta = g->beta,
                          .batch = 1};
    return ls__gemm_half(with->on, &half);
}

ls_status ls__recurrent_product(const ls__recurrent_tools *with, float *out, const float *a,
                                const void *w, const ls__recurrent *c, bool to_gates)
{
    int64_t m = to_gates ? c->wide : c->n, inner = to_gates ? c->n : c->wide;
    ls__gemm g = {.trans_b = to_gates,
                  .m = c->batch,
                  .n = m,
                  .k = inner,
                  .a = a,
                  .lda = inner,
                  .b = w,
                  .ldb = c->n,
                  .c = out,
                  .ldc = m,
                  .beta = 1.0f};
    if (c->half) {
        return add_half_product(with, &g);
    }
    with->on->k->gemm(&g, with->on->stream);
    return LS_OK;
}

/* The gradient of W over some steps at once. */
typedef struct weight {
    ls__tensor_rule *r;
    const ls__recurrent *c;
    float *to; /* [wide,H] */
} weight;

/* to = da^T h + beta to over `rows` rows of da [rows,wide] and h [rows,H], which are rounded to
 * bfloat16 in memory of this call's own. */
static ls_status add_half_weight(const weight *to, const float *da, const float *h, int64_t rows,
                                 float beta)
{
    ls__tensor_rule *r = to->r;
    const int64_t wide = to->c->wide, n = to->c->n;
    ls__storage *memory =
        ls__storage_new(r->on, (size_t)(rows * (wide + n)) * sizeof(ls__bfloat16));
    if (memory == NULL) {
        return ls__self.status;
    }
    ls__bfloat16 *a = memory->data, *b = a + rows * wide;
    r->k->bfloat16_narrow(a, da, rows * wide, 0.0f, r->stream);
    r->k->bfloat16_narrow(b, h, rows * n, 0.0f, r->stream);
    ls__gemm_bf16 g = {.trans_a = true,
                       .m = wide,
                       .n = n,
                       .k = rows,
                       .a = a,
                       .lda = wide,
                       .b = b,
                       .ldb = n,
                       .c = to->to,
                       .ldc = n,
                       .beta = beta,
                       .batch = 1};
    ls_status status = ls__gemm_half(r->on, &g);
    ls__storage_unref(memory);
    return status;
}

/* The same over the rows of some steps at once: one large product instead of one a step. */
static ls_status add_weight(const weight *to, const float *da, const float *h, int64_t rows,
                            float beta)
{
    if (to->c->half) {
        return add_half_weight(to, da, h, rows, beta);
    }
    ls__gemm g = {.trans_a = true,
                  .m = to->c->wide,
                  .n = to->c->n,
                  .k = rows,
                  .a = da,
                  .lda = to->c->wide,
                  .b = h,
                  .ldb = to->c->n,
                  .c = to->to,
                  .ldc = to->c->n,
                  .beta = beta};
    to->r->k->gemm(&g, to->r->stream);
    return LS_OK;
}

/* From the second step on h_{t-1} is the result itself, so those steps are one product; the first
 * one reads the given state, which lies elsewhere and takes a second product. */
ls_status ls__recurrent_weight(ls__tensor_rule *r, const ls__recurrent *c, int edge,
                               const float *da, const float *out, const float *state)
{
    const weight to = {r, c, r->in[edge].data};
    int64_t later = (c->time - 1) * c->batch; /* rows behind a step of this sequence */
    float beta = r->in[edge].beta;
    if (later > 0) {
        LS_TRY(add_weight(&to, da + c->batch * c->wide, out, later, beta));
        beta = 1.0f;
    }
    if (state != NULL && c->time > 0 && c->batch > 0) {
        return add_weight(&to, da, state, c->batch, beta);
    }
    if (beta == 0.0f) { /* nothing came before any step */
        r->k->fill(to.to, c->wide * c->n, 0.0f, r->stream);
    }
    return LS_OK;
}
