/* SPDX-License-Identifier: Apache-2.0 */
/* broadcast "binomial": every rank that has the buffer passes it on, to ranks ever nearer. From
 * root 0 of 8:
 *
 *     step 1   0 ──▶ 4
 *     step 2   0 ──▶ 2     4 ──▶ 6
 *     step 3   0 ──▶ 1     2 ──▶ 3     4 ──▶ 5     6 ──▶ 7
 *
 * Ranks are counted from the root on. Cost: the root sends ceil(log2 n) buffers, every other rank
 * receives one and sends fewer; no chain of messages is longer than that. Thakur, Rabenseifner &
 * Gropp 2005, section 5.
 */
#include "comm/algorithm/algorithm.h"

static void emit(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size, place = (spec->rank - spec->root + n) % n;
    const ls__ref out = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
    int distance = 1;
    while (distance < n && (place & distance) == 0) {
        distance *= 2;
    }
    if (place == 0) { /* in place: onto itself */
        (void)ls__builder_copy(b, 0, out, ls__ref_of(LS__BUFFER_INPUT, spec->rank, 0));
    } else {
        (void)ls__builder_recv(b, 0, out, (spec->rank - distance + n) % n);
    }
    for (distance /= 2; distance > 0; distance /= 2) {
        if (place + distance < n) {
            (void)ls__builder_send(b, 0, out, (spec->rank + distance) % n);
        }
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "binomial"));
    ls__builder *b = ls__builder_new(spec, env, "binomial");
    emit(b, spec);
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__broadcast_binomial = {"binomial", LS__OP_BROADCAST, true, LS__IN_MESSAGES,
                                              generate};
