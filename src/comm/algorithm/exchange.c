/* SPDX-License-Identifier: Apache-2.0 */
/* The full exchange of Note [Exchange]: one message from each rank to each other, without waiting
 * in a cycle. For 4 ranks, round 1, lane 0:
 *
 *     0 ──▶ 1 ──▶ 2 ──▶ 3      0 and 2 send first, 1 and 3 receive first
 */
#include "comm/algorithm/algorithm.h"

typedef struct round {
    ls__builder *b;
    const ls__program_spec *spec;
    const ls__exchange *exchange;
    int lane;
} round;

static bool exists(const round *r, int peer)
{
    return peer >= 0 && peer < r->spec->size;
}

/* Lane 1 begins when lane 0 has completed the step that makes its data. */
static void wait_for_start(const round *r)
{
    if (r->lane == 1 && r->exchange->after_step >= 0) {
        ls__builder_after(r->b, 1, 0, r->exchange->after_step);
    }
}

static void emit_send(const round *r, int peer)
{
    if (exists(r, peer)) {
        (void)ls__builder_send(r->b, r->lane, r->exchange->send(r->spec, peer), peer);
        wait_for_start(r);
    }
}

static void emit_recv(const round *r, int peer)
{
    if (exists(r, peer)) {
        (void)ls__builder_recv(r->b, r->lane, r->exchange->recv(r->spec, peer), peer);
        wait_for_start(r);
    }
}

/* Round k of one lane: even members of a chain send first, odd ones receive first. */
static void emit_round(const round *r, int k)
{
    const int rank = r->spec->rank;
    const int to = r->lane == 0 ? rank + k : rank - k;
    const int from = r->lane == 0 ? rank - k : rank + k;
    if ((rank / k) % 2 == 0) {
        emit_send(r, to);
        emit_recv(r, from);
    } else {
        emit_recv(r, from);
        emit_send(r, to);
    }
}

void ls__emit_upward(ls__builder *b, const ls__program_spec *spec, const ls__exchange *exchange)
{
    const round r = {b, spec, exchange, 0};
    for (int k = 1; k < spec->size; k++) {
        emit_round(&r, k);
    }
}

void ls__emit_exchange(ls__builder *b, const ls__program_spec *spec, const ls__exchange *exchange)
{
    const round r = {b, spec, exchange, 1};
    ls__emit_upward(b, spec, exchange);
    for (int k = 1; k < spec->size; k++) {
        emit_round(&r, k);
    }
}
