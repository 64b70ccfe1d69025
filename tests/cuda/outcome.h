/* SPDX-License-Identifier: Apache-2.0 */
/* What a training with captured steps came to, for comparison with the one without, and the stream
 * of a module's device. */
#ifndef TEST_CUDA_OUTCOME_H
#define TEST_CUDA_OUTCOME_H

#include <string.h>

#include <lockstep/lockstep.h>

#include "tensor/tensor.h"
#include "test.h"

enum { RUNS = 12, PLAIN = 2, ODD = 7 }; /* before the recorded run; the run that is different */

typedef struct outcome {
    double loss[RUNS], norm[RUNS];
    ls_status status[RUNS];
    uint64_t hash[RUNS];
    int64_t replays;
    int calls; /* of the function */
    char why[300], error[2000];
} outcome;

/* A run that failed has no norm, and need not have changed the parameters; the others have, where
 * each one makes a step. */
static inline void compare_outcomes(const outcome *got, const outcome *want, bool each_steps)
{
    for (int run = 0; run < RUNS; run++) {
        const bool failed = want->status[run] < 0;
        CHECK_INT(got->status[run], want->status[run]);
        CHECK(memcmp(&got->loss[run], &want->loss[run], sizeof(double)) == 0);
        CHECK(failed || memcmp(&got->norm[run], &want->norm[run], sizeof(double)) == 0);
        CHECK(got->hash[run] == want->hash[run]);
        CHECK(run == 0 || failed || !each_steps || got->hash[run] != got->hash[run - 1]);
    }
}

/* Where the kernels of a module's parameters run. */
static inline void *stream_of(ls_module *net)
{
    ls_param param;
    ls__pool *on = NULL;
    (void)ls_module_params(net, &param, 1);
    CHECK(ls__tensor_place(param.value, &on) != NULL);
    return on->stream;
}

#endif
