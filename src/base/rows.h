/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a table's gradient, [count, columns], that a backward reaches. Autograd or the
 * program marks them, and the reducer reads them. */
#ifndef LS_BASE_ROWS_H
#define LS_BASE_ROWS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct ls__rows {
    int64_t count;
    uint8_t *reached; /* [count] 1: this row */
    bool some;        /* only those that are marked; false: any */
} ls__rows;

/* None is marked yet. */
static inline void ls__rows_clear(ls__rows *rows)
{
    memset(rows->reached, 0, (size_t)rows->count);
    rows->some = true;
}

#endif
