/* Uneven batches of a regression for tests of data-parallel training. */
#ifndef LS_TEST_ROWS_H
#define LS_TEST_ROWS_H

#include <lockstep/lockstep.h>

enum { IN = 6, OUT = 3, ROWS_MAX = 4 };

/* Rows of batch `b` of a rank: 1 to 4. */
static inline int batch_of(int rank, int b, float x[ROWS_MAX * IN], float t[ROWS_MAX * OUT])
{
    const int rows = 1 + (3 * rank + b) % ROWS_MAX;
    for (int i = 0; i < rows * IN; i++) {
        x[i] = ls_random_normal(7, (uint64_t)(100 * rank + b), (uint64_t)i);
    }
    for (int i = 0; i < rows * OUT; i++) {
        t[i] = x[i / OUT * IN + i % OUT] * 0.5f + 0.1f * (float)rank;
    }
    return rows;
}

#endif
