/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce "double_tree": two binary trees over the ranks, each of which sums half of the chunks
 * on the way up and hands them out on the way down. A rank with children in one tree is a leaf of
 * the other, so both directions of every link are used. For 8 ranks, by place in the tree:
 *
 *     0 ◀── 4 ◀── 2 ◀── 1, 3
 *             ◀── 6 ◀── 5, 7          odd places are leaves
 *
 * In tree 0 a rank's place is its number; in tree 1 it is n-1-rank, or for odd n rank-1 (modulo n).
 *
 * Chunks follow each other, so the trees are full of them: lanes 0 and 1 of tree 0 go up and down,
 * 2 and 3 of tree 1. Each lane visits its edges by chunk, then from the leaves to the root (or from
 * the root to the leaves), which is one order for all: no rank waits in a cycle.
 *
 * Cost a rank: about two buffers sent and received, as with a ring, in about 2 log2 n + CHUNKS / 2
 * dependent steps. Sums are those of the trees, not the canonical one: not exact, but all ranks end
 * with the same bytes. Sanders, Speck & Träff 2009.
 */
#include "comm/algorithm/algorithm.h"

#define TREES 2
#define CHUNKS 8

typedef struct node { /* this rank in a tree; ranks, -1: none */
    int parent, low, high;
    bool turned; /* places count against the ranks */
} node;

static int place_of(int n, int tree, int rank)
{
    return tree == 0 ? rank : n % 2 == 0 ? n - 1 - rank : (rank - 1 + n) % n;
}

static int rank_at(int n, int tree, int place)
{
    return tree == 0 ? place : n % 2 == 0 ? n - 1 - place : (place + 1) % n;
}

/* The places of the subtree above `place` are those below it plus as many: where its middle is
 * beyond the last place, the middle of what there is. */
static int high_child(int n, int place, int bit)
{
    for (int half = bit / 2; half > 0; half /= 2) {
        if (place + half < n) {
            return place + half;
        }
    }
    return -1;
}

/* The place with the lowest set bit moved up by one; near the end of the ranks it may not exist. */
static int parent_of(int n, int place, int bit)
{
    const int up = (place ^ bit) | (bit << 1);
    return up < n ? up : place ^ bit;
}

/* The neighbours of this rank in the tree: `bit` is the height of its place. */
static node node_of(const ls__program_spec *spec, int tree)
{
    const int n = spec->size, place = place_of(n, tree, spec->rank);
    int bit = 1;
    while (place == 0 ? bit < n : (place & bit) == 0) {
        bit *= 2;
    }
    const int parent = place == 0 ? -1 : parent_of(n, place, bit);
    const int low = place == 0 || bit == 1 ? -1 : place - bit / 2;
    const int high = high_child(n, place, bit);
    return (node){.parent = parent < 0 ? -1 : rank_at(n, tree, parent),
                  .low = low < 0 ? -1 : rank_at(n, tree, low),
                  .high = high < 0 ? -1 : rank_at(n, tree, high),
                  .turned = tree == 1 && n % 2 == 0};
}

/* Sums chunk c of what lies below this rank, and sends it up; the root's is the result. Returns the
 * step that made it. */
static int emit_up(ls__builder *b, const ls__program_spec *spec, int tree, const node *at, int c)
{
    const int lane = 2 * tree;
    const ls__ref in = ls__ref_of(LS__BUFFER_INPUT, spec->rank, c);
    const ls__ref sum = ls__ref_scratch(spec, CHUNKS, 3 * tree, c);
    const ls__ref low = ls__ref_scratch(spec, CHUNKS, 3 * tree + 1, c);
    const ls__ref high = ls__ref_scratch(spec, CHUNKS, 3 * tree + 2, c);
    ls__ref src[3];
    int count = 0;
    if (at->low >= 0) {
        (void)ls__builder_recv(b, lane, low, at->low);
        src[count++] = low;
    }
    src[count++] = in;
    if (at->high >= 0) {
        (void)ls__builder_recv(b, lane, high, at->high);
        src[count++] = high;
    }
    if (at->turned) { /* the order of ranks is kept */
        const ls__ref first = src[0];
        src[0] = src[count - 1];
        src[count - 1] = first;
    }
    const ls__ref result = at->parent < 0 ? ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, c) : sum;
    const int made = ls__builder_reduce(b, lane, &result, 1, src, count);
    if (at->parent >= 0) {
        (void)ls__builder_send(b, lane, sum, at->parent);
    }
    return made;
}

/* Hands the result of chunk c from the parent to the children. */
static void emit_down(ls__builder *b, const ls__program_spec *spec, int tree, const node *at, int c,
                      int made)
{
    const int lane = 2 * tree + 1;
    const ls__ref result = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, c);
    const int children[] = {at->low, at->high};
    if (at->parent >= 0) {
        (void)ls__builder_recv(b, lane, result, at->parent);
    }
    for (int i = 0; i < 2; i++) {
        if (children[i] >= 0) {
            (void)ls__builder_send(b, lane, result, children[i]);
        }
        if (children[i] >= 0 && at->parent < 0) {
            ls__builder_after(b, lane, 2 * tree, made);
        }
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "double_tree"));
    ls__builder *b = ls__builder_new(spec, env, "double_tree");
    ls__builder_chunks(b, CHUNKS, 3 * TREES);
    ls__builder_wide(b);
    for (int tree = 0; tree < TREES; tree++) {
        const node at = node_of(spec, tree);
        for (int c = tree; c < CHUNKS; c += TREES) {
            emit_down(b, spec, tree, &at, c, emit_up(b, spec, tree, &at, c));
        }
    }
    return ls__builder_finish(b, false, out);
}

const ls__algorithm ls__all_reduce_double_tree = {"double_tree", LS__OP_ALL_REDUCE, false,
                                                  LS__IN_MESSAGES, generate};
