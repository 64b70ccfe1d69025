/* Which kernels this processor can run. Kernels are built once per variant; the names are those of
 * the x86-64 levels. */
#ifndef LS_BASE_CPU_H
#define LS_BASE_CPU_H

typedef enum ls__isa {
    LS__ISA_BASE = 0, /* what the compiler's plain target has */
    LS__ISA_V3 = 1,   /* AVX2, FMA, F16C, BMI2 */
    LS__ISA_V4 = 2,   /* AVX-512 F, BW, CD, DQ, VL */
    LS__ISA_COUNT = 3
} ls__isa;

/* The best the processor and the system offer. */
ls__isa ls__cpu_best(void);
/* The variant to use: LOCKSTEP_ISA where the processor has it, else the best. Reads the
 * environment: call it once and keep the answer. */
ls__isa ls__cpu_isa(void);
void ls__cpu_check(void); /* warns of a LOCKSTEP_ISA that is unknown or not to be had */
const char *ls__isa_name(ls__isa isa); /* "base", "v3", "v4" */

#endif
