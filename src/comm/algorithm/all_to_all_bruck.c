/* SPDX-License-Identifier: Apache-2.0 */
/* all_to_all "bruck": few steps, through other ranks. A rank first orders its blocks by how far
 * they have to go; in the round of distance d every rank forwards to the one d further all blocks
 * whose distance has the bit d set. After log2 n rounds each block has gone its whole distance:
 *
 *     block 5 = 101b, from rank 0 of 8:   ── d = 1 ──▶ 1     d = 2: rests     ── d = 4 ──▶ 5
 *
 * Cost a rank: ceil(log2 n) steps against 1 (or n-1 that follow one another), but about log2(n)/2
 * buffers sent and received: for blocks so short that only latency counts. Here a block is a
 * message, so it is the chain that is short, not the number of messages. A block in SCRATCH has two
 * slots, used in turn: what arrives must not overwrite what is still being sent. Bruck, Ho, Kipnis,
 * Upfal & Weathersby 1997, section 3; Thakur, Rabenseifner & Gropp 2005, section 4.5.
 */
#include "base/error.h"
#include "comm/algorithm/algorithm.h"

typedef struct step_at {
    int lane, step; /* lane -1: none */
} step_at;

typedef struct trip {      /* of block j, which goes j ranks far */
    int slot;              /* 0 or 1: where it lies now */
    step_at written, sent; /* into that slot; out of the other one */
} trip;

typedef struct bruck {
    ls__builder *b;
    const ls__program_spec *spec;
    trip trip[LS__PROGRAM_RANKS_MAX];
} bruck;

static void wait_for(bruck *w, int lane, step_at at)
{
    if (at.lane >= 0 && at.lane != lane) {
        ls__builder_after(w->b, lane, at.lane, at.step);
    }
}

/* Slot of block j when the bits of its distance below d are done; the remaining bits lead to its
 * owner. */
static ls__ref slot_of(const bruck *w, int j, int slot, int d)
{
    const int n = w->spec->size;
    return ls__ref_scratch(w->spec, n, 2 * j + slot, (w->spec->rank + (j & ~(d - 1))) % n);
}

/* Copies block j, which goes j ranks far, into its first slot. */
static void emit_order(bruck *w)
{
    const int n = w->spec->size, me = w->spec->rank;
    for (int j = 1; j < n; j++) {
        const ls__ref from = ls__ref_of(LS__BUFFER_INPUT, me, (me + j) % n);
        const int step = ls__builder_copy(w->b, 0, slot_of(w, j, 0, 1), from);
        w->trip[j] = (trip){0, {0, step}, {-1, 0}};
    }
}

/* Forwards all blocks whose distance has the bit d; each takes turns between its two slots. */
static void emit_round(bruck *w, int d)
{
    const int n = w->spec->size, me = w->spec->rank;
    const int to = (me + d) % n, from = (me - d + n) % n;
    const int out = ls__circle_lane(w->spec, me, d), in = ls__circle_lane(w->spec, from, d);
    for (int j = d; j < n; j++) {
        trip *t = &w->trip[j];
        if ((j & d) == 0) {
            continue;
        }
        const step_at sent = {out, ls__builder_send(w->b, out, slot_of(w, j, t->slot, d), to)};
        wait_for(w, out, t->written);
        t->written.step = ls__builder_recv(w->b, in, slot_of(w, j, 1 - t->slot, 2 * d), from);
        t->written.lane = in;
        wait_for(w, in, t->sent);
        t->sent = sent;
        t->slot = 1 - t->slot;
    }
}

/* Block j has arrived from the rank j below. */
static void emit_result(bruck *w)
{
    const int n = w->spec->size, me = w->spec->rank;
    (void)ls__builder_copy(w->b, 0, ls__ref_of(LS__BUFFER_OUTPUT, me, me),
                           ls__ref_of(LS__BUFFER_INPUT, me, me));
    for (int j = 1; j < n; j++) {
        const ls__ref to = ls__ref_of(LS__BUFFER_OUTPUT, me, (me - j + n) % n);
        (void)ls__builder_copy(w->b, 0, to,
                               ls__ref_scratch(w->spec, n, 2 * j + w->trip[j].slot, me));
        wait_for(w, 0, w->trip[j].written);
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "bruck"));
    bruck w = {.b = ls__builder_new(spec, env, "bruck"), .spec = spec};
    ls__builder_chunks(w.b, spec->size, 2 * spec->size);
    emit_order(&w);
    for (int d = 1; d < spec->size; d *= 2) {
        emit_round(&w, d);
    }
    emit_result(&w);
    return ls__builder_finish(w.b, true, out);
}

const ls__algorithm ls__all_to_all_bruck = {"bruck", LS__OP_ALL_TO_ALL, true, LS__IN_MESSAGES,
                                            generate};
