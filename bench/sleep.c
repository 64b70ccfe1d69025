/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that sleep instead of computing need no cores of their own (pipeline.c, mesh.c). */
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>

#include "bench.h"

double ls__bench_sleep(double ms)
{
    const double begin = ls__bench_now_ms(), end = begin + ms, whole = (double)(time_t)(end / 1e3);
    const struct timespec until = {.tv_sec = (time_t)whole,
                                   .tv_nsec = (long)((end - whole * 1e3) * 1e6)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {
    }
    return ls__bench_now_ms() - begin;
}

void ls__bench_sleep_exactly(void)
{
    (void)prctl(PR_SET_TIMERSLACK, 1UL);
}

void ls__bench_add_sleeper(ls_module *net, int i, ls__bench_sleeper *one)
{
    char name[16];
    if (one != NULL) {
        one->weight = ls_module_add_param(&one->base, "weight", ls_zeros(LS_SHAPE(1), LS_FLOAT32));
    }
    (void)snprintf(name, sizeof name, "%d", i);
    (void)ls_module_add(net, name, one != NULL ? &one->base : NULL);
}

void ls__bench_same_inputs(ls_micro_batch *micro, int count, ls_shape shape)
{
    ls_tensor *x = ls_set_requires_grad(ls_ones(shape, LS_FLOAT32), true);
    for (int m = 0; m < count; m++) {
        micro[m] = (ls_micro_batch){.size = sizeof *micro, .inputs = {x}};
    }
}

ls_tensor *ls__bench_sum_of(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg, (void)target;
    return ls_sum(output);
}
