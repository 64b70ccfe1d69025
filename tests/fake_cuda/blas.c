/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt for the fake driver: descriptors as structs, products by the formula, in float64. It
 * checks what a wrong description would show: sizes that do not fit, and rows that overlap. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "fake.h"

enum { SUCCESS, INVALID = 7, FLOAT32 = 0, BFLOAT16 = 14 };

typedef struct desc {
    int trans_a, trans_b;
} desc;

typedef struct layout { /* by columns */
    int type, batch;
    int64_t rows, columns, ld, stride;
} layout;

typedef struct product {
    const void *a, *b, *c;
    void *d;
    desc how;
    layout of_a, of_b, of_d;
    float alpha, beta;
} product;

static int choices; /* tests use one thread */

FAKE_PUBLIC int fake_cublas_choices(void)
{
    return choices;
}

FAKE_PUBLIC int cublasLtCreate(void **handle)
{
    static char one;
    *handle = &one;
    return SUCCESS;
}

FAKE_PUBLIC int cublasLtMatmulDescCreate(void **out, int compute, int scale)
{
    *out = calloc(1, sizeof(desc));
    return compute == 68 && scale == FLOAT32 ? SUCCESS : INVALID;
}

FAKE_PUBLIC int cublasLtMatmulDescDestroy(void *of)
{
    free(of);
    return SUCCESS;
}

FAKE_PUBLIC int cublasLtMatmulDescSetAttribute(void *of, int attribute, const void *at,
                                               size_t bytes)
{
    desc *d = of;
    if (bytes != sizeof(int) || (attribute != 3 && attribute != 4)) {
        return INVALID;
    }
    memcpy(attribute == 3 ? &d->trans_a : &d->trans_b, at, bytes);
    return SUCCESS;
}

FAKE_PUBLIC int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns,
                                           int64_t ld)
{
    layout *l = calloc(1, sizeof *l);
    *out = l;
    *l = (layout){type, 1, (int64_t)rows, (int64_t)columns, ld, 0};
    return (type == FLOAT32 || type == BFLOAT16) && ld >= (int64_t)rows ? SUCCESS : INVALID;
}

FAKE_PUBLIC int cublasLtMatrixLayoutDestroy(void *of)
{
    free(of);
    return SUCCESS;
}

FAKE_PUBLIC int cublasLtMatrixLayoutSetAttribute(void *of, int attribute, const void *at,
                                                 size_t bytes)
{
    layout *l = of;
    if (attribute == 5 && bytes == sizeof(int)) {
        memcpy(&l->batch, at, bytes);
        return SUCCESS;
    }
    if (attribute == 6 && bytes == sizeof(int64_t)) {
        memcpy(&l->stride, at, bytes);
        return SUCCESS;
    }
    return INVALID;
}

FAKE_PUBLIC int cublasLtMatmulPreferenceCreate(void **out)
{
    *out = calloc(1, 16);
    return SUCCESS;
}

FAKE_PUBLIC int cublasLtMatmulPreferenceDestroy(void *of)
{
    free(of);
    return SUCCESS;
}

FAKE_PUBLIC int cublasLtMatmulPreferenceSetAttribute(void *of, int attribute, const void *at,
                                                     size_t bytes)
{
    (void)of, (void)at;
    return attribute == 1 ? (bytes == 8 ? SUCCESS : INVALID)
                          : (attribute >= 5 && attribute <= 8 && bytes == 4 ? SUCCESS : INVALID);
}

FAKE_PUBLIC int cublasLtMatmulAlgoGetHeuristic(void *handle, void *how, void *a, void *b, void *c,
                                               void *d, void *preference, int asked, void *out,
                                               int *found)
{
    (void)handle, (void)how, (void)a, (void)b, (void)c, (void)d, (void)preference;
    choices++;
    memset(out, 0, 96);
    *found = asked > 0;
    return SUCCESS;
}

static double element(const void *x, const layout *l, int64_t batch, int trans, int64_t row,
                      int64_t column)
{
    const int64_t at = batch * l->stride + (trans ? row * l->ld + column : column * l->ld + row);
    return l->type == FLOAT32 ? (double)((const float *)x)[at]
                              : (double)ls__bfloat16_widen(((const uint16_t *)x)[at]);
}

static void run(void *args)
{
    const product *p = args;
    const int64_t inner = p->how.trans_a ? p->of_a.rows : p->of_a.columns;
    for (int64_t i = 0; i < p->of_d.batch * p->of_d.rows * p->of_d.columns; i++) {
        const int64_t row = i % p->of_d.rows, column = i / p->of_d.rows % p->of_d.columns;
        const int64_t batch = i / p->of_d.rows / p->of_d.columns;
        const int64_t at = batch * p->of_d.stride + column * p->of_d.ld + row;
        double sum = 0.0;
        for (int64_t j = 0; j < inner; j++) {
            sum += element(p->a, &p->of_a, batch, p->how.trans_a, row, j) *
                   element(p->b, &p->of_b, batch, p->how.trans_b, j, column);
        }
        sum *= (double)p->alpha;
        sum += p->beta != 0.0f ? (double)p->beta * element(p->c, &p->of_d, batch, 0, row, column)
                               : 0.0;
        if (p->of_d.type == FLOAT32) {
            ((float *)p->d)[at] = (float)sum;
        } else {
            ((uint16_t *)p->d)[at] = ls__bfloat16_round((float)sum);
        }
    }
}

FAKE_PUBLIC int cublasLtMatmul(void *handle, void *how, const void *alpha, const void *a,
                               void *layout_a, const void *b, void *layout_b, const void *beta,
                               const void *c, void *layout_c, void *d, void *layout_d,
                               const void *algorithm, void *workspace, size_t workspace_bytes,
                               void *stream)
{
    const product p = {a,
                       b,
                       c,
                       d,
                       *(desc *)how,
                       *(layout *)layout_a,
                       *(layout *)layout_b,
                       *(layout *)layout_d,
                       *(const float *)alpha,
                       *(const float *)beta};
    const int64_t rows = p.how.trans_a ? p.of_a.columns : p.of_a.rows;
    const int64_t inner = p.how.trans_a ? p.of_a.rows : p.of_a.columns;
    const int64_t inner_b = p.how.trans_b ? p.of_b.columns : p.of_b.rows;
    const int64_t columns = p.how.trans_b ? p.of_b.rows : p.of_b.columns;
    (void)handle, (void)layout_c, (void)workspace, (void)workspace_bytes;
    if (rows != p.of_d.rows || columns != p.of_d.columns || inner != inner_b ||
        p.of_a.type != p.of_b.type || p.of_a.batch != p.of_d.batch || algorithm == NULL) {
        return INVALID;
    }
    fake_cuda_enqueue(stream, run, &p, sizeof p);
    return SUCCESS;
}
