/* SPDX-License-Identifier: Apache-2.0 */
/* The messages and bytes of a rank in a collective of n ranks, in closed form. Tests compare it
 * with the counts of the programs (comm/program/program.h), which exist for small n only. */
#ifndef LS_COST_COLLECTIVE_H
#define LS_COST_COLLECTIVE_H

#include "base/env.h"

typedef struct ls__collective_cost {
    int messages; /* one after the other */
    double sent;  /* by a rank, in full buffers */
} ls__collective_cost;

typedef enum ls__collective_kind {
    LS__COLLECTIVE_HALF,       /* a reduce-scatter or an all-gather, around a ring */
    LS__COLLECTIVE_ALL_REDUCE, /* around a ring */
    LS__COLLECTIVE_DOUBLING,   /* an all-reduce by halving and doubling, of 2^k ranks */
    LS__COLLECTIVE_EXCHANGE,   /* an all-to-all, pair by pair */
} ls__collective_kind;

/* Where counts come from; false: there is none, and the closed form is taken. That of the programs
 * is in comm/tune/collective.h: this layer knows no programs. */
typedef bool ls__collective_count(const ls__env *env, ls__collective_kind kind, int n,
                                  ls__collective_cost *out);

/* Half of an all-reduce: a reduce-scatter or an all-gather, around a ring. */
static inline ls__collective_cost ls__collective_half(int n)
{
    return (ls__collective_cost){n - 1, (double)(n - 1) / n};
}

/* Around a ring; by halving and doubling (Thakur et al. 2005), which sends the same in fewer
 * messages, where that is possible and `alike`: all pairs of ranks have equal links. */
static inline ls__collective_cost ls__collective_all_reduce(int n, bool alike)
{
    const ls__collective_cost half = ls__collective_half(n);
    int log = 0;
    for (int k = n; k > 1; k /= 2) {
        log++;
    }
    return (ls__collective_cost){2 * (alike && 1 << log == n ? log : half.messages),
                                 2.0 * half.sent};
}

/* Each rank sends the others their parts. */
static inline ls__collective_cost ls__collective_exchange(int n)
{
    return ls__collective_half(n);
}

/* By `count`, if it is not NULL and knows, or by the closed form. */
static inline ls__collective_cost ls__collective_of(ls__collective_kind kind, int n,
                                                    ls__collective_count *count, const ls__env *env)
{
    ls__collective_cost cost;
    if (count != NULL && n > 1 && count(env, kind, n, &cost)) {
        return cost;
    }
    return kind == LS__COLLECTIVE_HALF ? ls__collective_half(n)
           : kind == LS__COLLECTIVE_EXCHANGE
               ? ls__collective_exchange(n)
               : ls__collective_all_reduce(n, kind == LS__COLLECTIVE_DOUBLING);
}

/* Seconds of one that sends `bytes` buffers: a link takes `latency` for each message and `byte` for
 * each byte (Hockney). */
static inline double ls__collective_seconds(ls__collective_cost c, double latency, double byte,
                                            double bytes)
{
    return c.messages * latency + c.sent * bytes * byte;
}

#endif
