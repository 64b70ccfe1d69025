/* SPDX-License-Identifier: Apache-2.0 */
/* Recursive halving and doubling over the canonical tree, Note [Halving] in algorithm.h. Chunks of
 * 4 ranks, and the owners after each level:
 *
 *     level 1    0 ◀▶ 1   2 ◀▶ 3       0: c0 c2   1: c1 c3   2: c0 c2   3: c1 c3
 *     level 2    0 ◀▶ 2   1 ◀▶ 3       0: c0      1: c1      2: c2      3: c3
 *
 * Thakur, Rabenseifner & Gropp 2005, section 4.4 (there for powers of two, farthest first).
 */
#include "base/assert.h"
#include "comm/algorithm/algorithm.h"

typedef struct meeting { /* of the two halves of a subtree, in which this rank is */
    int16_t left[LS__PROGRAM_RANKS_MAX], right[LS__PROGRAM_RANKS_MAX]; /* owners before */
    int16_t owner[LS__PROGRAM_RANKS_MAX];                              /* and after */
} meeting;

static bool is_power_of_two(int x)
{
    return (x & (x - 1)) == 0;
}

/* Of the two owners of a chunk the one that owns fewer keeps it. */
static void join(int chunks, const int16_t *left, const int16_t *right, int16_t *owner)
{
    int owned[LS__PROGRAM_RANKS_MAX] = {0};
    for (int c = 0; c < chunks; c++) {
        owner[c] = owned[right[c]] < owned[left[c]] ? right[c] : left[c];
        owned[owner[c]]++;
    }
}

/* The owners of the chunks in the subtree of ranks first … end-1. */
static void find_owners(int chunks, int first, int end, int16_t *owner)
{
    int16_t left[LS__PROGRAM_RANKS_MAX], right[LS__PROGRAM_RANKS_MAX];
    int half = 1;
    if (is_power_of_two(end - first)) {
        for (int c = 0; c < chunks; c++) {
            owner[c] = (int16_t)(first + c % (end - first));
        }
        return;
    }
    while (half * 2 < end - first) {
        half *= 2;
    }
    LS_ASSERT(half < end - first); /* both halves are smaller, so the recursion ends */
    find_owners(chunks, first, first + half, left);
    find_owners(chunks, first + half, end, right);
    join(chunks, left, right, owner);
}

/* Level d; false: this rank's subtree has no right half. */
static bool find_meeting(const ls__program_spec *spec, int d, meeting *m)
{
    const int n = spec->size, first = spec->rank - spec->rank % (2 * d), middle = first + d;
    const int end = middle + d < n ? middle + d : n;
    if (middle >= n) {
        return false;
    }
    find_owners(n, first, middle, m->left);
    find_owners(n, middle, end, m->right);
    find_owners(n, first, end, m->owner);
    return true;
}

static void wait_for(ls__builder *b, int lane, ls__made made)
{
    if (made.lane != lane) {
        ls__builder_after(b, lane, made.lane, made.step);
    }
}

/* One level upwards: sends the chunks that change hands, and adds the received ones to its own. */
static void emit_meeting(ls__builder *b, const ls__program_spec *spec, const meeting *m,
                         ls__made *made)
{
    const int n = spec->size, me = spec->rank;
    for (int c = 0; c < n; c++) {
        const bool is_left = m->left[c] == me;
        const int lane = m->owner[c] == m->left[c] ? 1 : 0; /* to the left: 1 */
        const ls__ref sum = ls__halving_sum(spec, c);
        const ls__ref other = ls__ref_scratch(spec, n, n + c, c);
        if (!is_left && m->right[c] != me) {
            continue;
        }
        const int peer = is_left ? m->right[c] : m->left[c];
        if (m->owner[c] != me) {
            (void)ls__builder_send(b, lane, sum, peer);
            wait_for(b, lane, made[c]);
            continue;
        }
        (void)ls__builder_recv(b, lane, other, peer);
        wait_for(b, lane, made[c]);
        const ls__ref in_order[] = {is_left ? sum : other, is_left ? other : sum};
        made[c] = (ls__made){lane, ls__builder_reduce(b, lane, &sum, 1, in_order, 2)};
    }
}

/* All levels, from the leaves on; the result is described in algorithm.h. */
void ls__emit_halving(ls__builder *b, const ls__program_spec *spec, int16_t *owner, ls__made *made)
{
    const int n = spec->size;
    meeting m;
    ls__builder_chunks(b, n, 2 * n);
    ls__builder_wide(b);
    for (int c = 0; c < n; c++) {
        const ls__ref in = ls__ref_of(LS__BUFFER_INPUT, spec->rank, c);
        made[c] = (ls__made){0, ls__builder_copy(b, 0, ls__halving_sum(spec, c), in)};
    }
    for (int d = 1; d < n; d *= 2) {
        if (find_meeting(spec, d, &m)) {
            emit_meeting(b, spec, &m, made);
        }
    }
    find_owners(n, 0, n, owner);
}

/* One level downwards: results go back to the rank that gave the chunk. */
static void emit_parting(ls__builder *b, const ls__program_spec *spec, const meeting *m,
                         ls__made *made)
{
    const int me = spec->rank;
    for (int c = 0; c < spec->size; c++) {
        const bool is_left = m->left[c] == me;
        const int lane = m->owner[c] == m->left[c] ? 2 : 3; /* to the right: 2 */
        const ls__ref chunk = ls__ref_of(LS__BUFFER_OUTPUT, me, c);
        const int peer = is_left ? m->right[c] : m->left[c];
        if (m->owner[c] == me) {
            (void)ls__builder_send(b, lane, chunk, peer);
            wait_for(b, lane, made[c]);
        } else if (is_left || m->right[c] == me) {
            made[c] = (ls__made){lane, ls__builder_recv(b, lane, chunk, peer)};
        }
    }
}

/* The levels in reverse order. */
void ls__emit_halving_back(ls__builder *b, const ls__program_spec *spec, ls__made *made)
{
    int top = 1;
    meeting m;
    while (top * 2 < spec->size) {
        top *= 2;
    }
    for (int d = top; d >= 1; d /= 2) {
        if (find_meeting(spec, d, &m)) {
            emit_parting(b, spec, &m, made);
        }
    }
}
