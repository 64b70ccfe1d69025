/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small bfloat16 matrices on the processor's matrix tiles (AMX): for kernels whose
 * operands lie packed in the cache and are too small for a library's call. tiles_x86.c, or
 * tiles_absent.c. */
#ifndef LS_KERNEL_CPU_TILES_H
#define LS_KERNEL_CPU_TILES_H

#include "kernel/kernels.h"

#define LS__TILE_SIDE 32 /* sizes are multiples of this */

typedef struct ls__tiles_product { /* C[m,n] = A[m,k] B[k,n], + C where it accumulates; float32 */
    int64_t m, n, k;
    const ls__bfloat16 *a;
    int64_t a_row;
    const uint32_t *b; /* [k/2,n]: rows 2i and 2i + 1 of B, the first in the lower halves */
    int64_t b_row;
    float *c;
    int64_t c_row;
    bool accumulate;
} ls__tiles_product;

/* Whether this processor has them, the system lets us, and LOCKSTEP_CPU does. */
bool ls__tiles_usable(void);
/* Around products, on the thread that runs them; oneDNN must not be called between the two. */
void ls__tiles_begin(void);
void ls__tiles_end(void);
void ls__tiles_run(const ls__tiles_product *p);

#endif
