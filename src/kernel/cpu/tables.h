/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the instruction sets this build has; variants_x86.c or variants_plain.c. */
#ifndef LS_KERNEL_CPU_TABLES_H
#define LS_KERNEL_CPU_TABLES_H

#include "base/cpu.h"
#include "kernel/kernels.h"

typedef struct ls__variant { /* the kernels of one instruction set */
    const ls__kernels *kernels;
    void (*gemm_builtin)(const ls__gemm *g); /* `gemm` without oneDNN; for tests */
    void (*gemm_bf16_builtin)(const ls__gemm_bf16 *g);
    void (*conv2d_builtin)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d);
    void (*conv2d_widened)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                           ls_stream *stream);
    size_t (*conv2d_widened_workspace)(const ls__conv2d *c, ls__conv2d_pass pass,
                                       const ls__conv2d_data *d);
} ls__variant;

extern const ls__variant ls__base_variant, ls__v3_variant, ls__v4_variant;

/* The variant for `isa`, or NULL where the build has none. */
const ls__variant *ls__variant_of_isa(ls__isa isa);

#endif
