/* SPDX-License-Identifier: Apache-2.0 */
/* A build without oneDNN, or with a version that onednn_api.h does not know: the built-in kernels
 * do all products and convolutions. */
#include "kernel/cpu/onednn.h"

bool ls__onednn_gemm(const ls__gemm *g)
{
    (void)g;
    return false;
}

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

bool ls__onednn_conv2d(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                       void (*relu)(void *y, int64_t count, bool half))
{
    (void)c, (void)pass, (void)d, (void)relu;
    return false;
}

size_t ls__onednn_conv2d_workspace(const ls__conv2d *c, ls__conv2d_pass pass,
                                   const ls__conv2d_data *d)
{
    (void)c, (void)pass, (void)d;
    return 0;
}

void ls__onednn_allow(bool allowed)
{
    (void)allowed;
}

void ls__onednn_limit(ls__cpu level)
{
    (void)level;
}

bool ls__onednn_has_tiles(void)
{
    return false;
}

bool ls__onednn_has_bf16(void)
{
    return false;
}

bool ls__onednn_present(void)
{
    return false;
}

bool ls__onednn_path(bool half, char *text, size_t room)
{
    (void)half, (void)text, (void)room;
    return false;
}

void ls__onednn_refused(const char *what, double work, bool half)
{
    (void)what, (void)work, (void)half;
}
