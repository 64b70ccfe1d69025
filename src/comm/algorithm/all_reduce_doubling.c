/* all_reduce "recursive_doubling": the ranks climb the canonical tree together (D5). At level d the
 * ranks of a subtree of 2d ranks hold the sum of its left or of its right half, and exchange them:
 *
 *     level 1   0 ◀▶ 1   2 ◀▶ 3   4 ◀▶ 5   6          0+1   2+3   4+5   6
 *     level 2   0 ◀▶ 2   1 ◀▶ 3   4 ◀▶ 6              (0+1)+(2+3)   (4+5)+6
 *                                  then 4 ──▶ 5
 *     level 4   0 ◀▶ 4   1 ◀▶ 5   2 ◀▶ 6              all
 *               then 0 ──▶ 3
 *
 * Where the number of ranks is no power of two, a right half has m < d ranks. Then the first m of
 * the left exchange with them, and hand the sum on to the other d-m, doubling their number each
 * time. The association stays the canonical one for every number of ranks, unlike with the usual
 * folding of the surplus ranks. Partial sums are wide, so rounding happens once.
 *
 * Cost: for a power of two log2 n steps and log2 n buffers sent and received by each; otherwise at
 * most 2 ceil(log2 n) steps. Good for messages so short that steps are all that counts.
 * Thakur, Rabenseifner & Gropp 2005, section 4.4.
 */
#include "comm/algorithm/algorithm.h"

typedef struct climb {
    ls__builder *b;
    const ls__program_spec *spec;
    ls__ref sum, other; /* SCRATCH: mine, the peer's */
    int last;           /* of lane 0 */
} climb;

/* The lower rank sends on lane 0, the higher on lane 1, so both flow at once. */
static void emit_exchange(climb *c, int peer)
{
    ls__builder *b = c->b;
    const bool lower = c->spec->rank < peer;
    int second = 0;
    if (lower) {
        (void)ls__builder_send(b, 0, c->sum, peer);
        second = ls__builder_recv(b, 1, c->other, peer);
    } else {
        (void)ls__builder_recv(b, 0, c->other, peer);
        second = ls__builder_send(b, 1, c->sum, peer);
    }
    ls__builder_after(b, 1, 0, c->last);
    const ls__ref left = lower ? c->sum : c->other, right = lower ? c->other : c->sum;
    c->last = ls__builder_reduce(b, 0, &c->sum, 1, (ls__ref[]){left, right}, 2);
    ls__builder_after(b, 0, 1, second);
}

/* Of the ranks first … first+count-1 the first `have` hand the sum to the others. */
static void emit_spread(climb *c, int first, int have, int count)
{
    const int i = c->spec->rank - first;
    for (; have < count; have *= 2) {
        if (i < have && i + have < count) {
            c->last = ls__builder_send(c->b, 0, c->sum, first + i + have);
        } else if (i >= have && i < 2 * have) {
            c->last = ls__builder_recv(c->b, 0, c->sum, first + i - have);
        }
    }
}

static void emit_level(climb *c, int d)
{
    const int n = c->spec->size, me = c->spec->rank;
    const int first = me - me % (2 * d), middle = first + d;
    if (middle >= n) {
        return; /* this subtree has no right half */
    }
    const int right = n - middle < d ? n - middle : d;
    const int i = me < middle ? me - first : me - middle;
    if (i < right) {
        emit_exchange(c, me < middle ? middle + i : first + i);
    }
    if (me < middle) {
        emit_spread(c, first, right, d);
    }
}

static void emit(ls__builder *b, const ls__program_spec *spec)
{
    const ls__ref in = ls__ref_of(LS__BUFFER_INPUT, spec->rank, 0);
    const ls__ref out = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
    ls__builder_chunks(b, 1, 2);
    ls__builder_wide(b);
    climb c = {b, spec, ls__ref_scratch(spec, 1, 0, 0), ls__ref_scratch(spec, 1, 1, 0), 0};
    c.last = ls__builder_copy(b, 0, c.sum, in);
    for (int d = 1; d < spec->size; d *= 2) {
        emit_level(&c, d);
    }
    (void)ls__builder_reduce(b, 0, &out, 1, &c.sum, 1); /* divides and rounds */
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "recursive_doubling"));
    ls__builder *b = ls__builder_new(spec, env, "recursive_doubling");
    emit(b, spec);
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_reduce_doubling = {"recursive_doubling", LS__OP_ALL_REDUCE, true,
                                               LS__IN_MESSAGES, generate};
