/* SPDX-License-Identifier: Apache-2.0 */
/* Samples that a seed draws, with which plans are checked: numbers, chains of parts, and an
 * environment without memory. */
#ifndef UNIT_PLAN_DRAWN_H
#define UNIT_PLAN_DRAWN_H

#include "base/env_posix.h"
#include "base/splitmix64.h"
#include "plan/partition.h"
#include "test.h"

enum { PARTS_MAX = 8 };

static uint64_t state;

static inline void draw_sample(int i)
{
    state = test_seed() * 1000003 + (uint64_t)i;
}

/* 0 … below - 1. */
static inline int draw(int below)
{
    const uint64_t z = ls__splitmix64(state);
    state += LS__SPLITMIX64_GAMMA;
    return (int)(z % (uint64_t)below);
}

/* The numbers of the parts of a chain. */
typedef struct drawn_parts {
    double compute[PARTS_MAX], forward[PARTS_MAX], backward[PARTS_MAX], weights[PARTS_MAX],
        kept[PARTS_MAX];
} drawn_parts;

static inline ls__chain chain_of(const drawn_parts *of, int parts)
{
    return (ls__chain){.parts = parts,
                       .compute = of->compute,
                       .forward = of->forward,
                       .backward = of->backward,
                       .weights = of->weights,
                       .kept = of->kept};
}

static inline double sum_of(const double *of, int first, int end)
{
    double all = 0.0;
    for (int i = first; i < end; i++) {
        all += of[i];
    }
    return all;
}

static inline void *no_memory(const ls__env *env, size_t bytes)
{
    (void)env;
    (void)bytes;
    return NULL;
}

/* An environment in which nothing can be allocated. */
static inline ls__env env_without_memory(void)
{
    ls__env env = *ls__env_posix();
    env.allocate = no_memory;
    return env;
}

#endif
