/* pool_last.c, as pool.c calls it: images with their channels last. */
#ifndef LS_KERNEL_CPU_POOL_LAST_H
#define LS_KERNEL_CPU_POOL_LAST_H

#include "kernel/cpu/isa.h"

void LS__K(max_last)(const ls__pool2d *p, float *y, int32_t *index, const float *x);
void LS__K(max_last_backward)(const ls__pool2d *p, float *dx, float beta, const float *dy,
                              const int32_t *index);
void LS__K(avg_last)(const ls__pool2d *p, float *y, const float *x);
void LS__K(avg_last_backward)(const ls__pool2d *p, float *dx, float beta, const float *dy);

#endif
