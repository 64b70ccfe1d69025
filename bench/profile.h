/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of training steps goes, by operation: a meter (tensor/meter.h) that adds up. */
#ifndef LS_BENCH_PROFILE_H
#define LS_BENCH_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/meter.h"

#define LS__PROFILE_ROWS_MAX 128

typedef struct ls__bench_profile_row {
    char operation[32];
    const char *pass; /* "forward", "backward", "update", "" */
    int64_t calls;
    uint64_t ns;
    double flops; /* of products; a multiply-add is two; causal attention counts whole */
    double bytes; /* of operands and results: the least that must be moved */
} ls__bench_profile_row;

typedef struct ls__bench_profile {
    ls__meter meter;
    ls__bench_profile_row row[LS__PROFILE_ROWS_MAX]; /* the last takes what finds no place */
    int rows;
    uint64_t ns; /* of all rows */
    /* flops of the forward pass, by number of the node since `first_node`, for the backward one */
    double *flops_of_node;
    int64_t nodes;
    uint64_t first_node;
} ls__bench_profile;

/* Meters this thread until ls__bench_profile_stop. Returns false when out of memory. */
bool ls__bench_profile_start(ls__bench_profile *profile, const ls__env *env);
void ls__bench_profile_stop(ls__bench_profile *profile);
/* A step begins: the nodes of the one before are gone. */
void ls__bench_profile_step(ls__bench_profile *profile);
void ls__bench_profile_add(ls__bench_profile *profile, const char *operation, const char *pass,
                           uint64_t ns, double flops, double bytes);
/* Longest first. */
void ls__bench_profile_sort(ls__bench_profile *profile);

#endif
