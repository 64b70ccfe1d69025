/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on integers, for those that take float32 as well; see integers.c. */
#ifndef LS_TENSOR_INTEGERS_H
#define LS_TENSOR_INTEGERS_H

#include "tensor/op.h"

typedef enum ls__integer_op {
    LS__INTEGER_ADD,
    LS__INTEGER_SUB,
    LS__INTEGER_MUL,
    LS__INTEGER_MAX,
    LS__INTEGER_MIN,
    LS__INTEGER_FLOOR_DIV,
    LS__INTEGER_REMAINDER,
} ls__integer_op;

/* Whether all inputs are integers; those of bool are not. */
bool ls__call_integers(const ls__call *call);
/* Whether input 0 is of integers or bool, whose sum is int64. */
bool ls__call_counts(const ls__call *call);

/* The rest of an operation that has begun: of inputs 0 and 1, of one type; of input 0 and a number
 * that its type holds; the sum over the dimensions where keep[d] is 0; running sums. */
ls_tensor *ls__integers_combine(ls__call *call, ls__integer_op op);
ls_tensor *ls__integers_with(ls__call *call, ls__integer_op op, double number);
ls_tensor *ls__integers_sum(ls__call *call, const uint8_t *keep, ls_shape shape);
ls_tensor *ls__integers_cumsum(ls__call *call, int dim);

#endif
