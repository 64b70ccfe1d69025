/* SPDX-License-Identifier: Apache-2.0 */
/* The costs of the algorithms by messages, in closed form, and their orders of summation. The
 * figures of docs/algorithms.md are counted from the programs; this stands beside them, and a test
 * holds the two to each other (tests/unit/comm/program/costs.c). */
#include "forms.h"

#include <string.h>

static int log2_up(int n)
{
    int log = 0;
    while (1 << log < n) {
        log++;
    }
    return log;
}

static double zero(int n)
{
    (void)n;
    return 0;
}

static double one(int n)
{
    (void)n;
    return 1;
}

static double two(int n)
{
    (void)n;
    return 2;
}

static double half(int n)
{
    (void)n;
    return 0.5;
}

static double block(int n)
{
    return 1.0 / n;
}

static double two_blocks(int n)
{
    return 2.0 / n;
}

static double others(int n)
{
    return n - 1;
}

static double twice_others(int n)
{
    return 2 * (n - 1);
}

static double pairs(int n)
{
    return n * (n - 1);
}

static double half_pairs(int n)
{
    return n * (n - 1) / 2.0;
}

static double share(int n)
{
    return (n - 1.0) / n;
}

static double twice_share(int n)
{
    return 2 * share(n);
}

static double share_and_result(int n)
{
    return (n - 1.0) * (n + 1) / n;
}

static double rounds(int n)
{
    return log2_up(n);
}

static double twice_rounds(int n)
{
    return 2 * log2_up(n);
}

static double half_rounds(int n)
{
    return log2_up(n) / 2.0;
}

static double all_rounds(int n)
{
    return n * log2_up(n);
}

static double half_all_rounds(int n)
{
    return n * log2_up(n) / 2.0;
}

static double scan_rounds(int n)
{
    return n * log2_up(n) - n + 1;
}

/* Most ones in a number below n: the way to it in a binomial tree. */
static double way(int n)
{
    int most = 0;
    for (int i = 0; i < n; i++) {
        const int ones = __builtin_popcount((unsigned)i);
        most = ones > most ? ones : most;
    }
    return most;
}

static double way_and_one(int n)
{
    return way(n) + 1;
}

#define ZERO                                                                                       \
    {                                                                                              \
        "0", zero                                                                                  \
    }
#define ONE                                                                                        \
    {                                                                                              \
        "1", one                                                                                   \
    }
#define TWO                                                                                        \
    {                                                                                              \
        "2", two                                                                                   \
    }
#define HALF                                                                                       \
    {                                                                                              \
        "1/2", half                                                                                \
    }
#define BLOCK                                                                                      \
    {                                                                                              \
        "1/n", block                                                                               \
    }
#define TWO_BLOCKS                                                                                 \
    {                                                                                              \
        "2/n", two_blocks                                                                          \
    }
#define OTHERS                                                                                     \
    {                                                                                              \
        "n-1", others                                                                              \
    }
#define TWICE_OTHERS                                                                               \
    {                                                                                              \
        "2(n-1)", twice_others                                                                     \
    }
#define PAIRS                                                                                      \
    {                                                                                              \
        "n(n-1)", pairs                                                                            \
    }
#define HALF_PAIRS                                                                                 \
    {                                                                                              \
        "n(n-1)/2", half_pairs                                                                     \
    }
#define SHARE                                                                                      \
    {                                                                                              \
        "(n-1)/n", share                                                                           \
    }
#define TWICE_SHARE                                                                                \
    {                                                                                              \
        "2(n-1)/n", twice_share                                                                    \
    }
#define SHARE_AND_RESULT                                                                           \
    {                                                                                              \
        "(n-1)(n+1)/n", share_and_result                                                           \
    }
#define ROUNDS                                                                                     \
    {                                                                                              \
        "log n", rounds                                                                            \
    }
#define TWICE_ROUNDS                                                                               \
    {                                                                                              \
        "2 log n", twice_rounds                                                                    \
    }
#define HALF_ROUNDS                                                                                \
    {                                                                                              \
        "(log n)/2", half_rounds                                                                   \
    }
#define ALL_ROUNDS                                                                                 \
    {                                                                                              \
        "n log n", all_rounds                                                                      \
    }
#define HALF_ALL_ROUNDS                                                                            \
    {                                                                                              \
        "(n log n)/2", half_all_rounds                                                             \
    }
#define SCAN_ROUNDS                                                                                \
    {                                                                                              \
        "n log n - n + 1", scan_rounds                                                             \
    }
#define WAY                                                                                        \
    {                                                                                              \
        "w(n)", way                                                                                \
    }
#define WAY_AND_ONE                                                                                \
    {                                                                                              \
        "w(n) + 1", way_and_one                                                                    \
    }

#define ANY 1    /* holds for every number of ranks from 2 on */
#define FROM_4 4 /* … from 4 on */
#define POWERS 0 /* … for powers of two */

#define TREE "canonical tree"
#define NONE "no sum"

static const ls__bench_form forms[] = {
    {LS__OP_ALL_REDUCE, "direct", ANY, TWO, TWICE_SHARE, TWO_BLOCKS, TWICE_OTHERS,
     TREE ", at the owner of each chunk"},
    {LS__OP_ALL_REDUCE,
     "one_shot",
     ANY,
     {NULL, NULL},
     {NULL, NULL},
     {NULL, NULL},
     {NULL, NULL},
     TREE ", at every rank"},
    {LS__OP_ALL_REDUCE, "ring", ANY, TWICE_OTHERS, TWICE_SHARE, TWICE_SHARE, TWICE_OTHERS,
     "chunk c from rank c+1 round the ring: ((c+1 + c+2) + ...) + c"},
    {LS__OP_ALL_REDUCE, "recursive_doubling", POWERS, ROUNDS, ROUNDS, ONE, ALL_ROUNDS,
     TREE ", nearest first"},
    {LS__OP_ALL_REDUCE, "root", ANY, TWO, OTHERS, ONE, TWICE_OTHERS, TREE ", at rank 0"},
    {LS__OP_ALL_REDUCE, "full_exchange", ANY, ONE, OTHERS, ONE, PAIRS, TREE ", at every rank"},
    {LS__OP_ALL_REDUCE, "halving_doubling", POWERS, TWICE_ROUNDS, TWICE_SHARE, ONE, TWICE_OTHERS,
     TREE ", nearest first"},
    {LS__OP_ALL_REDUCE, "tree_stages", ANY, WAY_AND_ONE, OTHERS, ONE, TWICE_OTHERS,
     TREE ", a stage at a time"},
    {LS__OP_ALL_REDUCE, "double_tree", FROM_4, TWICE_ROUNDS, TWO, ONE, TWICE_OTHERS,
     "one binary tree for half of the chunks, another for the rest: (low + own) + high"},
    {LS__OP_ALL_REDUCE, "hierarchical", ANY, TWO, TWICE_SHARE, TWO_BLOCKS, TWICE_OTHERS,
     "tree in each host, then over hosts, at the owner of each chunk; the canonical one where "
     "hosts are aligned"},
    {LS__OP_REDUCE_SCATTER, "direct", ANY, ONE, SHARE, BLOCK, OTHERS, TREE ", at the block's rank"},
    {LS__OP_REDUCE_SCATTER, "ring", ANY, OTHERS, SHARE, SHARE, OTHERS, "as all_reduce ring"},
    {LS__OP_REDUCE_SCATTER, "recursive_halving", POWERS, ROUNDS, SHARE, HALF, OTHERS,
     TREE ", nearest first"},
    {LS__OP_REDUCE_SCATTER, "pairwise", ANY, ONE, SHARE, BLOCK, OTHERS,
     TREE ", at the block's rank"},
    {LS__OP_REDUCE, "direct", ANY, TWO, TWICE_SHARE, TWO_BLOCKS, SHARE_AND_RESULT,
     TREE ", at the owner of each chunk"},
    {LS__OP_REDUCE, "binomial", ANY, WAY, ROUNDS, ONE, OTHERS, TREE ", nearest first"},
    {LS__OP_REDUCE,
     "one_shot",
     ANY,
     {NULL, NULL},
     {NULL, NULL},
     {NULL, NULL},
     {NULL, NULL},
     TREE ", at the root"},
    {LS__OP_BROADCAST, "direct", ANY, ONE, OTHERS, ONE, OTHERS, NONE},
    {LS__OP_BROADCAST, "binomial", ANY, WAY, ROUNDS, ONE, OTHERS, NONE},
    {LS__OP_BROADCAST, "scatter_all_gather", ANY, OTHERS, TWICE_SHARE, ONE, OTHERS, NONE},
    {LS__OP_BROADCAST, "chain", ANY, OTHERS, ONE, ONE, OTHERS, NONE},
    {LS__OP_ALL_GATHER, "direct", ANY, ONE, SHARE, BLOCK, OTHERS, NONE},
    {LS__OP_ALL_GATHER, "ring", ANY, OTHERS, SHARE, SHARE, OTHERS, NONE},
    {LS__OP_ALL_GATHER, "recursive_doubling", POWERS, ROUNDS, SHARE, HALF, OTHERS, NONE},
    {LS__OP_ALL_GATHER, "bruck", POWERS, ROUNDS, SHARE, HALF, OTHERS, NONE},
    {LS__OP_GATHER, "direct", ANY, ONE, SHARE, BLOCK, SHARE, NONE},
    {LS__OP_GATHER, "binomial", POWERS, ROUNDS, SHARE, HALF, HALF_ROUNDS, NONE},
    {LS__OP_SCATTER, "direct", ANY, ONE, SHARE, BLOCK, SHARE, NONE},
    {LS__OP_SCATTER, "binomial", POWERS, ROUNDS, SHARE, HALF, HALF_ROUNDS, NONE},
    {LS__OP_ALL_TO_ALL, "direct", ANY, ONE, SHARE, BLOCK, OTHERS, NONE},
    {LS__OP_ALL_TO_ALL, "pairwise", ANY, ONE, SHARE, BLOCK, OTHERS, NONE},
    {LS__OP_ALL_TO_ALL, "bruck", POWERS, ROUNDS, HALF_ROUNDS, HALF, HALF_ALL_ROUNDS, NONE},
    {LS__OP_SCAN, "direct", ANY, ONE, OTHERS, ONE, HALF_PAIRS, TREE " over the ranks before"},
    {LS__OP_SCAN, "recursive_doubling", POWERS, ROUNDS, ROUNDS, ONE, SCAN_ROUNDS,
     TREE " over the ranks before"},
    {LS__OP_EXSCAN, "direct", ANY, ONE, OTHERS, ONE, HALF_PAIRS, TREE " over the ranks before"},
    {LS__OP_EXSCAN, "recursive_doubling", POWERS, ROUNDS, ROUNDS, ONE, SCAN_ROUNDS,
     TREE " over the ranks before"},
    {LS__OP_BARRIER, "direct", ANY, ROUNDS, ZERO, ZERO, ZERO, NONE},
};

const ls__bench_form *ls__bench_form_find(const ls__algorithm *algorithm)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (forms[i].operation == ls__operation_plain(algorithm->operation) &&
            strcmp(forms[i].name, algorithm->name) == 0) {
            return &forms[i];
        }
    }
    return NULL;
}

bool ls__bench_form_holds(const ls__bench_form *form, int ranks)
{
    return form->steps.at != NULL && ranks > 1 &&
           (form->from == POWERS ? (ranks & (ranks - 1)) == 0 : ranks >= form->from);
}

ls_status ls__bench_count_totals(const ls__algorithm *algorithm, int ranks, ls__program_totals *out)
{
    ls__program *programs[LS__BENCH_FORM_RANKS_MAX] = {NULL};
    ls_status status = LS_OK;
    for (int r = 0; r < ranks && status == LS_OK; r++) {
        const ls__program_spec spec = {.operation = algorithm->operation,
                                       .memory = LS__MEMORY_MESSAGES,
                                       .rank = r,
                                       .size = ranks};
        status = algorithm->generate(&spec, ls__env_posix(), &programs[r]);
    }
    if (status == LS_OK) {
        status = ls__programs_count(programs, ranks, out);
    }
    for (int r = 0; r < ranks; r++) {
        ls__program_free(programs[r]);
    }
    return status;
}
