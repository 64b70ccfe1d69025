/* SPDX-License-Identifier: Apache-2.0 */
/* The measured limits of a machine, with which a profile is compared. */
#ifndef LS_BENCH_PEAK_H
#define LS_BENCH_PEAK_H

#include <stdbool.h>
#include <stdint.h>

/* float32 operations a second (a multiply-add is two), of all threads together. */
double ls__bench_peak_flops(int threads);
/* The same of bfloat16, in tiles (AMX). 0: there are none here. */
double ls__bench_peak_tiles(int threads);
/* Bytes a second, read and written, of copies larger than the caches. 0: there is no memory. */
double ls__bench_peak_copy(int threads);

/* peak_amx.c: whether this process may use tiles; operations done. */
bool ls__bench_amx_allowed(void);
double ls__bench_peak_amx(int64_t rounds);

#endif
