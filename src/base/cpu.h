/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels this processor can run, which the user wants (LOCKSTEP_CPU), and how strict.
 *
 * Kernels are built once per variant (`ls__isa`). The user chooses among levels, which also say
 * what lies beside the variants: the plain loops below them, matrix tiles (AMX) above.
 */
#ifndef LS_BASE_CPU_H
#define LS_BASE_CPU_H

#include <stdbool.h>

#include <lockstep/status.h>

typedef enum ls__isa {
    LS__ISA_BASE = 0, /* what the compiler's plain target has */
    LS__ISA_V3 = 1,   /* AVX2, FMA, F16C, BMI2 */
    LS__ISA_V4 = 2,   /* AVX-512 F, BW, CD, DQ, VL */
    LS__ISA_COUNT = 3
} ls__isa;

typedef enum ls__cpu {
    LS__CPU_REF = 0,  /* the plain twins of all kernels: slow, for comparison */
    LS__CPU_BASE = 1, /* the variants; products by no wider instructions either */
    LS__CPU_AVX2 = 2,
    LS__CPU_AVX512 = 3,
    LS__CPU_AMX = 4, /* the variant for AVX-512, and products may use tiles of bfloat16 */
    LS__CPU_COUNT = 5
} ls__cpu;

/* The best variant and level the processor and the system offer. */
ls__isa ls__cpu_best(void);
ls__cpu ls__cpu_best_level(void);
/* The level to use: LOCKSTEP_CPU where the processor has it, else the best; and its variant. Read
 * the environment: call them once and keep the answer. */
ls__cpu ls__cpu_level(void);
ls__isa ls__cpu_isa(void);
/* LOCKSTEP_DETERMINISTIC=strict: results must not depend on the number of threads. A kernel that is
 * faster where they may asks this. */
bool ls__cpu_strict(void);
bool ls__cpu_onednn(void); /* false: LOCKSTEP_ONEDNN=0 */
/* Refuses a value of the three that is unknown or not to be had. */
ls_status ls__cpu_check(void);
const char *ls__isa_name(ls__isa isa);   /* "base", "avx2", "avx512" */
const char *ls__cpu_name(ls__cpu level); /* "ref", "base", "avx2", "avx512", "amx" */

#endif
