/* SPDX-License-Identifier: Apache-2.0 */
/* The interface to oneDNN: onednn.c where the build found the library, onednn_absent.c
 * elsewhere. */
#ifndef LS_KERNEL_CPU_ONEDNN_H
#define LS_KERNEL_CPU_ONEDNN_H

#include "base/cpu.h"
#include "kernel/kernels.h"

/* Computes g on the calling thread alone; false: not available, nothing was done. */
bool ls__onednn_gemm(const ls__gemm *g);
static inline int64_t ls__conv2d_weights(const ls__conv2d *c) /* elements */
{
    return c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1];
}

/* onednn_conv.c, or onednn_absent.c. The same bits for any number of threads;
 * false: not available, nothing was done. `relu` runs on one thread, in place, where d->relu. */
bool ls__onednn_conv2d(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                       void (*relu)(void *y, int64_t count, bool half));
size_t ls__onednn_conv2d_workspace(const ls__conv2d *c, ls__conv2d_pass pass,
                                   const ls__conv2d_data *d);
/* Without it nothing here is available, as in a build without oneDNN. */
void ls__onednn_allow(bool allowed);
/* Instructions above `level` are not used from now on. To be called before all others; if the
 * program has used oneDNN on its own before, the limit may come too late, and a warning says so. */
void ls__onednn_limit(ls__cpu level);
/* onednn_bf16.c, or onednn_absent.c: likewise. */
bool ls__onednn_gemm_bf16(const ls__gemm_bf16 *g);
size_t ls__onednn_gemm_bf16_workspace(const ls__gemm_bf16 *g);
/* Whether it may use matrix tiles of bfloat16; then the process may, too. */
bool ls__onednn_has_tiles(void);
bool ls__onednn_has_bf16(void); /* likewise instructions for bfloat16 */
bool ls__onednn_present(void);  /* in this build, and allowed */
/* "oneDNN 3.7.2, AVX-512": the version that runs and the instructions it uses for float32 or,
 * `half`, bfloat16. False where it does not serve these. */
bool ls__onednn_path(bool half, char *text, size_t room);
/* oneDNN has no fast kernel for `what`, of so many multiply-adds. Where it was to have one and the
 * work is worth a word, that is logged, once a process. */
void ls__onednn_refused(const char *what, double work, bool half);

#endif
