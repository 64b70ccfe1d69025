/* SPDX-License-Identifier: Apache-2.0 */
/* The two halves of a ring, Note [Ring] in algorithm.h. Patarasuk & Yuan 2009. And its lanes. */
#include "base/assert.h"
#include "comm/algorithm/algorithm.h"

/* A rank's place in the ring. */
typedef struct place {
    int n, rank, left, right;
    int out, in; /* lanes */
} place;

int ls__ring_lane(const ls__program_spec *spec, int from)
{
    return from == spec->size - 1 && spec->size % 2 == 1 ? 2 : from % 2;
}

int ls__circle_lane(const ls__program_spec *spec, int from, int distance)
{
    LS_ASSERT(distance >= 1 && distance < spec->size);
    const int n = spec->size;
    int length = 1, at = 0; /* of the ring; of `from`, counted from its smallest member */
    int smallest = from, steps = 0;
    for (int r = (from + distance) % n; r != from; r = (r + distance) % n) {
        steps++;
        length++;
        if (r < smallest) {
            smallest = r;
            at = steps;
        }
    }
    at = (length - at) % length;
    return at == length - 1 && length % 2 == 1 ? 2 : at % 2;
}

static place place_of(const ls__program_spec *spec)
{
    const int n = spec->size, me = spec->rank;
    place p = {.n = n, .rank = me, .left = (me - 1 + n) % n, .right = (me + 1) % n};
    p.out = ls__ring_lane(spec, me);
    p.in = ls__ring_lane(spec, p.left);
    return p;
}

/* The chunk of the rank `behind` places before this one. */
static int chunk_behind(const place *p, int behind)
{
    return (p->rank - behind + p->n) % p->n;
}

/* Step k sends the partial sum of chunk rank-k, made in step k-1, and receives that of rank-k-1,
 * to which this rank's own contribution is added. Two slots take turns. */
int ls__emit_ring_reduce(ls__builder *b, const ls__program_spec *spec)
{
    const place p = place_of(spec);
    ls__builder_chunks(b, p.n, 2);
    ls__builder_wide(b);
    const int first = chunk_behind(&p, 1);
    int made = ls__builder_copy(b, p.out, ls__ref_scratch(spec, p.n, 0, first),
                                ls__ref_of(LS__BUFFER_INPUT, p.rank, first));
    int sent = -1;
    for (int k = 1; k < p.n; k++) {
        const int c = chunk_behind(&p, (k + 1) % p.n);
        const ls__ref slot = ls__ref_scratch(spec, p.n, k % 2, c);
        const ls__ref old = ls__ref_scratch(spec, p.n, (k - 1) % 2, chunk_behind(&p, k));
        const int sent_before = sent;
        sent = ls__builder_send(b, p.out, old, p.right);
        if (k > 1) {
            ls__builder_after(b, p.out, p.in, made);
        }
        (void)ls__builder_recv(b, p.in, slot, p.left);
        if (sent_before >= 0) { /* this slot was sent then */
            ls__builder_after(b, p.in, p.out, sent_before);
        }
        const ls__ref own = ls__ref_of(LS__BUFFER_INPUT, p.rank, c);
        const ls__ref result = ls__ref_of(LS__BUFFER_OUTPUT, p.rank, c);
        made = ls__builder_reduce(b, p.in, k < p.n - 1 ? &slot : &result, 1, (ls__ref[]){slot, own},
                                  2);
    }
    return made;
}

void ls__emit_ring_gather(ls__builder *b, const ls__program_spec *spec, int after)
{
    const place p = place_of(spec);
    int received = after;
    for (int k = 1; k < p.n; k++) {
        (void)ls__builder_send(
            b, p.out, ls__ref_of(LS__BUFFER_OUTPUT, p.rank, chunk_behind(&p, k - 1)), p.right);
        if (received >= 0) {
            ls__builder_after(b, p.out, p.in, received);
        }
        received = ls__builder_recv(
            b, p.in, ls__ref_of(LS__BUFFER_OUTPUT, p.rank, chunk_behind(&p, k)), p.left);
    }
}
