/* batch_norm_last.c, as batch_norm.c calls it: images with their channels last. */
#ifndef LS_KERNEL_CPU_BATCH_NORM_LAST_H
#define LS_KERNEL_CPU_BATCH_NORM_LAST_H

#include "kernel/cpu/isa.h"

size_t LS__K(norm_last_workspace)(const ls__batch_norm *n);
void LS__K(norm_last_stats)(const ls__batch_norm *n, float *mean, float *variance);
void LS__K(norm_last)(const ls__batch_norm *n);
void LS__K(norm_last_backward)(const ls__batch_norm *n);

#endif
