/* SPDX-License-Identifier: Apache-2.0 */
/* See memory_check.h. */
#include "memory_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double gibibytes(int64_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0 * 1024.0);
}

/* The number of tensors that the optimizer keeps for each parameter, each of its size. */
static int64_t states_of(const trainer_options *train)
{
    return strcmp(train->optim, "adamw") == 0 ? 2 : train->momentum > 0.0 ? 1 : 0;
}

/* Of a pipeline only this is known before the cut: every rank makes the whole model, and frees the
 * stages of others. Else the optimizer allocates its state after the first backward pass. With
 * several ranks that pass ends with the gradients twice in memory, while they are moved to their
 * final order. */
static int64_t total_of(const ls_gpt2_memory *m, int64_t state)
{
    int64_t again = ls_world_size() > 1 ? m->gradient_bytes : 0;
    int64_t passing = m->activation_bytes + state;
    return m->parameter_bytes + m->gradient_bytes + (passing > again ? passing : again);
}

int64_t memory_check(const decoder_shape *shape, const trainer_options *train)
{
    const ls_gpt2_options o = decoder_gpt2_options(shape);
    const ls_gpt2_memory m = ls_gpt2_memory_of(&o, train->batch, shape->context);
    const bool pipeline = parallel_has_pipeline(train);
    const int64_t divided = train->zero > 0 && train->mesh == NULL ? ls_world_size() : 1;
    const int64_t state = states_of(train) * m.parameter_bytes / divided;
    const int64_t total = pipeline ? m.parameter_bytes : total_of(&m, state);
    const int64_t left = ls_memory_available();
    const int ranks = ls_local_world_size();
    int64_t fits = left < 0 || total <= left / ranks;
    if (ls_rank() == 0) {
        ls_gpt2_describe(&o, stdout);
        if (pipeline) {
            (void)printf("memory of a rank: %.2f GiB until the model is cut into stages\n",
                         gibibytes(total));
        } else {
            (void)printf("memory of a rank: parameters %.2f + gradients %.2f + optimizer %.2f + "
                         "activations %.2f GiB; %.2f GiB at most\n",
                         gibibytes(m.parameter_bytes), gibibytes(m.gradient_bytes),
                         gibibytes(state), gibibytes(m.activation_bytes), gibibytes(total));
        }
        cli_flush(stdout);
    }
    LS_CHECK(ls_all_reduce(ls_world(), &fits, &fits, 1, LS_INT64, LS_MIN,
                           LS_OPTIONS(ls_collective_options, .tag = "memory"), NULL));
    if (!fits) {
        give_up(EXIT_FAILURE,
                "--model %s needs %.2f GiB per rank; this host runs %d rank%s and has %.2f GiB "
                "left; use fewer ranks, a smaller --batch or --context, --recompute, or --optim "
                "sgd --momentum 0",
                shape->model, gibibytes(total), ranks, ranks == 1 ? "" : "s", gibibytes(left));
    }
    return total;
}
