/* A build without oneDNN 2: products of bfloat16 matrices are the built-in ones. */
#include "kernel/cpu/onednn.h"

bool ls__onednn_gemm_bf16(const ls__gemm_bf16 *g)
{
    (void)g;
    return false;
}

size_t ls__onednn_gemm_bf16_workspace(const ls__gemm_bf16 *g)
{
    (void)g;
    return 0;
}
