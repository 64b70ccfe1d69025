/* SPDX-License-Identifier: Apache-2.0 */
/* scan and exscan "recursive_doubling": the ranks climb the canonical tree (D5), each with the sum
 * of its subtree and with the *prefix* of it that ends at this rank. At level d a rank of the right
 * half gets the sum of the left half and puts it before both:
 *
 *     prefix = left + prefix        sum = left + sum
 *
 * A rank of the left half gets the right half's sum only where a rank above will need the whole.
 * Prefixes grow to the left by ever larger subtrees, so that of rank r is its largest subtree plus
 * (the next largest plus (…)): exactly the canonical tree over ranks 0 … r. For 6 ranks:
 *
 *     level 1   0 ◀▶ 1   2 ◀▶ 3   4 ──▶ 5       (no rank needs 4+5)
 *     level 2   0 ◀▶ 2   1 ◀▶ 3                 (4 and 5 have no right half)
 *     level 4   0 ──▶ 4   1 ──▶ 5
 *
 * Cost a rank: ceil(log2 n) steps, at most as many buffers sent and received. Partial sums are
 * wide, so rounding happens once. Hillis & Steele 1986; Blelloch 1990; MPI 4.0, section 6.11.
 */
#include "base/error.h"
#include "comm/algorithm/algorithm.h"

typedef struct climb {
    ls__builder *b;
    const ls__program_spec *spec;
    ls__ref sum, prefix, other; /* SCRATCH: of my subtree, up to me, the peer's */
    bool has_prefix;            /* exscan: not before the first level in which I am right */
    int last;                   /* of lane 0 */
} climb;

/* dst = left + right, in lane 0. */
static void emit_add(climb *c, ls__ref dst, ls__ref left, ls__ref right)
{
    c->last = ls__builder_reduce(c->b, 0, &dst, 1, (ls__ref[]){left, right}, 2);
}

/* Upwards sums travel in lane 0, downwards in lane 1, so both flow at once. */
static void emit_left(climb *c, int peer, bool whole)
{
    const int before = c->last;
    c->last = ls__builder_send(c->b, 0, c->sum, peer);
    if (whole) {
        const int received = ls__builder_recv(c->b, 1, c->other, peer);
        ls__builder_after(c->b, 1, 0, before);
        emit_add(c, c->sum, c->sum, c->other);
        ls__builder_after(c->b, 0, 1, received);
    }
}

static void emit_right(climb *c, int peer, bool whole)
{
    const int before = c->last;
    int sent = -1;
    c->last = ls__builder_recv(c->b, 0, c->other, peer);
    if (whole) {
        sent = ls__builder_send(c->b, 1, c->sum, peer);
        ls__builder_after(c->b, 1, 0, before);
    }
    if (c->has_prefix) {
        emit_add(c, c->prefix, c->other, c->prefix);
    } else {
        c->last = ls__builder_copy(c->b, 0, c->prefix, c->other);
        c->has_prefix = true;
    }
    if (whole) {
        emit_add(c, c->sum, c->other, c->sum);
        ls__builder_after(c->b, 0, 1, sent);
    }
}

/* One level: the left half sends its sum upwards, and receives that of the right half if a higher
 * rank needs the whole. */
static void emit_level(climb *c, int d)
{
    const int n = c->spec->size, me = c->spec->rank;
    const int first = me - me % (2 * d), middle = first + d;
    const bool whole = first + 2 * d < n; /* a higher rank needs the sum of this subtree */
    if (me >= middle) {
        emit_right(c, me - d, whole);
    } else if (me + d < n) {
        emit_left(c, me + d, whole);
    }
}

static void emit(ls__builder *b, const ls__program_spec *spec)
{
    const ls__ref in = ls__ref_of(LS__BUFFER_INPUT, spec->rank, 0);
    const ls__ref out = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
    climb c = {b,
               spec,
               ls__ref_scratch(spec, 1, 0, 0),
               ls__ref_scratch(spec, 1, 1, 0),
               ls__ref_scratch(spec, 1, 2, 0),
               spec->operation == LS__OP_SCAN,
               0};
    ls__builder_chunks(b, 1, 3);
    ls__builder_wide(b);
    c.last = ls__builder_copy(b, 0, c.sum, in);
    if (c.has_prefix) {
        c.last = ls__builder_copy(b, 0, c.prefix, in);
    }
    for (int d = 1; d < spec->size; d *= 2) {
        emit_level(&c, d);
    }
    if (c.has_prefix) {
        (void)ls__builder_reduce(b, 0, &out, 1, &c.prefix, 1); /* divides and rounds */
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "recursive_doubling"));
    ls__builder *b = ls__builder_new(spec, env, "recursive_doubling");
    emit(b, spec);
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__scan_doubling = {"recursive_doubling", LS__OP_SCAN, true, LS__IN_MESSAGES,
                                         generate};
const ls__algorithm ls__exscan_doubling = {"recursive_doubling", LS__OP_EXSCAN, true,
                                           LS__IN_MESSAGES, generate};
