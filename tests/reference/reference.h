/* SPDX-License-Identifier: Apache-2.0 */
/* Training beside PyTorch: the nets, the formula behind weights and batches, the stored numbers.
 *
 * make.py trains the same nets from the same weights on the same batches in float64 and writes
 * NET.safetensors; training.c trains them here, on 1 to 4 ranks, and compares. A net is its
 * constructor and the loss of some samples. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <lockstep/lockstep.h>

#include "test.h"

enum { BATCH = 12, BATCHES = 4 }; /* step s trains on batch s % BATCHES */

typedef struct reference_net {
    const char *name;
    bool by_ranks; /* what a rank sees enters its statistics: numbers for every count of ranks */
    bool groups;   /* also with groups of parameters */
    ls_module *(*make)(void);
    ls_tensor *(*loss)(ls_module *net, int64_t first, int64_t count); /* of consecutive samples */
} reference_net;

/* ---- formula.c: as in make.py ------------------------------------------------------------- */

void formula_params(ls_module *net); /* overwrites all parameters, by their names */
/* [count, shape] for samples first…first+count-1 */
ls_tensor *formula_floats(const char *name, int64_t first, int64_t count, ls_shape shape);
ls_tensor *formula_classes(int64_t first, int64_t count, int64_t below);          /* [count] */
void formula_tokens(int32_t *out, int64_t sample, int64_t length, int64_t vocab); /* one sequence */

/* ---- numbers.c ---------------------------------------------------------------------------- */

typedef struct numbers numbers;

numbers *numbers_open(const char *net);
/* The named float32 or float64 tensor of `count` elements; the caller frees it. The name is
 * printed from `format`. */
double *numbers_get(const numbers *n, int64_t count, const char *format, ...) LS_PRINTF(3, 4);
int numbers_count(const numbers *n, const char *prefix); /* of tensors whose names begin so */
void numbers_close(numbers *n);

#endif
