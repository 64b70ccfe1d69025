/* SPDX-License-Identifier: Apache-2.0 */
/* gather "binomial" and scatter "binomial": blocks travel along a tree whose subtrees are
 * neighbours, counted from the root on. From 8 ranks to root 0:
 *
 *     step 1   1 ──▶ 0     3 ──▶ 2     5 ──▶ 4     7 ──▶ 6     one block each
 *     step 2   2 ──▶ 0     6 ──▶ 4                             two
 *     step 3   4 ──▶ 0                                         four
 *
 * Scatter is the same backwards. Cost: ceil(log2 n) dependent steps; the root receives (sends) n-1
 * blocks as it must, a block travels at most ceil(log2 n) times. For blocks so short that the
 * number of messages at the root counts. Thakur, Rabenseifner & Gropp 2005, section 3.
 */
#include "comm/algorithm/algorithm.h"

/* This rank's place in the tree: its subtree is the places place … place+held-1. */
typedef struct node {
    const ls__program_spec *spec;
    int place, held, parent;
} node;

static node node_of(const ls__program_spec *spec)
{
    const int n = spec->size, place = (spec->rank - spec->root + n) % n;
    int held = 1;
    while (held < n && (place & held) == 0) {
        held *= 2;
    }
    return (node){.spec = spec,
                  .place = place,
                  .held = place + held < n ? held : n - place,
                  .parent = (spec->rank - held + n) % n};
}

/* Where the block of the i-th rank of the subtree lies; block 0 is this rank's own. */
static ls__ref block_of(const node *x, int i)
{
    const ls__program_spec *spec = x->spec;
    const int owner = (spec->rank + i) % spec->size;
    const bool gathers = spec->operation == LS__OP_GATHER;
    if (x->place == 0) {
        return ls__ref_of(gathers ? LS__BUFFER_OUTPUT : LS__BUFFER_INPUT, spec->rank, owner);
    }
    if (i == 0) {
        return ls__ref_of(gathers ? LS__BUFFER_INPUT : LS__BUFFER_OUTPUT, spec->rank, owner);
    }
    return ls__ref_scratch(spec, spec->size, i - 1, owner);
}

static void set_chunks(ls__builder *b, const ls__program_spec *spec)
{
    ls__builder_chunks(b, spec->size, spec->size);
}

/* The root's own block goes from its one buffer into the other. */
static void copy_own(ls__builder *b, const ls__program_spec *spec)
{
    if (spec->rank == spec->root) {
        (void)ls__builder_copy(b, 0, ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, spec->rank),
                               ls__ref_of(LS__BUFFER_INPUT, spec->rank, spec->rank));
    }
}

/* The blocks of the child at distance d. */
static int blocks_of_child(const node *x, int d)
{
    return x->held - d < d ? x->held - d : d;
}

static ls_status generate_gather(const ls__program_spec *spec, const ls__env *env,
                                 ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "binomial"));
    ls__builder *b = ls__builder_new(spec, env, "binomial");
    const node x = node_of(spec);
    set_chunks(b, spec);
    copy_own(b, spec);
    for (int d = 1; d < x.held; d *= 2) {
        for (int i = 0; i < blocks_of_child(&x, d); i++) {
            (void)ls__builder_recv(b, 0, block_of(&x, d + i), (spec->rank + d) % spec->size);
        }
    }
    for (int i = 0; x.place != 0 && i < x.held; i++) {
        (void)ls__builder_send(b, 0, block_of(&x, i), x.parent);
    }
    return ls__builder_finish(b, true, out);
}

static ls_status generate_scatter(const ls__program_spec *spec, const ls__env *env,
                                  ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "binomial"));
    ls__builder *b = ls__builder_new(spec, env, "binomial");
    const node x = node_of(spec);
    int d = 1;
    set_chunks(b, spec);
    copy_own(b, spec);
    for (int i = 0; x.place != 0 && i < x.held; i++) {
        (void)ls__builder_recv(b, 0, block_of(&x, i), x.parent);
    }
    while (d * 2 < x.held) {
        d *= 2;
    }
    for (; d >= 1; d /= 2) {
        for (int i = 0; d < x.held && i < blocks_of_child(&x, d); i++) {
            (void)ls__builder_send(b, 0, block_of(&x, d + i), (spec->rank + d) % spec->size);
        }
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__gather_binomial = {"binomial", LS__OP_GATHER, true, LS__IN_MESSAGES,
                                           generate_gather};
const ls__algorithm ls__scatter_binomial = {"binomial", LS__OP_SCATTER, true, LS__IN_MESSAGES,
                                            generate_scatter};
