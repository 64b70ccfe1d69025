/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's noise: how long it keeps a process waiting that could run. */
#ifndef NOISE_H
#define NOISE_H

#include <stdatomic.h>
#include <sys/types.h>

enum { NOISE_STEPS = 96 };

/* In memory that the sampler shares with those who ask. */
typedef struct noise {
    _Atomic unsigned woken[NOISE_STEPS]; /* wake-ups by their delay, see noise.c */
    _Atomic unsigned samples;
    _Atomic unsigned long long runnable;        /* processes that could run, summed over samples */
    _Atomic unsigned long long loop, best_loop; /* ns of a fixed loop: summed, the quickest */
} noise;

/* Starts a process that measures until it is killed; noise is set to zero before. */
pid_t noise_start(noise *n);

double noise_wake_up(const noise *n);   /* s: 99 of 100 wake-ups were no later than this */
double noise_slow_down(const noise *n); /* 1: a process that computes has a core to itself */
/* What `promised` seconds may take on a machine with this noise. */
double noise_allows(const noise *n, double promised);

#endif
