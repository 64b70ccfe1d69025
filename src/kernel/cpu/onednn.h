/* The door to oneDNN: onednn.c where the build found the library, onednn_absent.c elsewhere. */
#ifndef LS_KERNEL_CPU_ONEDNN_H
#define LS_KERNEL_CPU_ONEDNN_H

#include "kernel/kernels.h"

/* Computes g on the calling thread alone; false: not available, nothing was done. */
bool ls__onednn_gemm(const ls__gemm *g);
const char *ls__onednn_name(void); /* "oneDNN 2.6.3", or NULL */

#endif
