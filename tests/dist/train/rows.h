/* SPDX-License-Identifier: Apache-2.0 */
/* Uneven batches of a regression for tests of data-parallel training. */
#ifndef LS_TEST_ROWS_H
#define LS_TEST_ROWS_H

#include <lockstep/lockstep.h>

#include "test.h"

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

/* Forward and backward of this rank's batch `b`, weighted by its rows or not. Returns the rows. */
static inline int backward_of(ls_module *ddp, int b, bool weighted)
{
    LS_SCOPE;
    float x[ROWS_MAX * IN], t[ROWS_MAX * OUT];
    const int rows = batch_of(ls_rank(), b, x, t);
    ls_tensor *y = ls_forward(ddp, ls_from_data(x, LS_SHAPE(rows, IN), LS_FLOAT32));
    ls_tensor *e = ls_sub(y, ls_from_data(t, LS_SHAPE(rows, OUT), LS_FLOAT32));
    ls_tensor *loss = ls_mean(ls_mul(e, e));
    CHECK_OK(weighted ? ls_backward_weighted(loss, rows) : ls_backward(loss));
    return rows;
}

#endif
