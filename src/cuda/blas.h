/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices by cuBLASLt: the only file that knows the library. */
#ifndef LS_CUDA_BLAS_H
#define LS_CUDA_BLAS_H

#include "cuda/launch.h"

/* Row-major, as ls__gemm: C = op(A) op(B) + beta C, without bias and activation. */
typedef struct ls__cuda_product {
    bool trans_a, trans_b;
    bool half, half_out; /* A and B, and C, are bfloat16; sums are float32 */
    int64_t m, n, k, lda, ldb, ldc;
    int64_t batch, stride_a, stride_b, stride_c;
    const void *a, *b;
    void *c;
    float beta;
} ls__cuda_product;

bool ls__cuda_blas_open(char *error, size_t bytes);
/* The workspace is the caller's (ls__cuda_workspace_begin). No size is 0. */
void ls__cuda_blas_product(const ls__cuda_product *p, ls_stream *stream);

#endif
