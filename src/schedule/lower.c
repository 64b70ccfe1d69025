/* SPDX-License-Identifier: Apache-2.0 */
/* Passes from the computations of a table to the whole table.
 *
 * ls__lower_versions puts LOAD before a computation whose version is not bound, and REDUCE and STEP
 * behind the last weight gradient of a step, with STASH between them if the old version will be
 * read again.
 *
 * ls__lower_messages adds sends and receives by the rule of PyTorch's pipelining: a rank never
 * places a receive of its own. Ranks take turns, and a rank's turn places its next computation if
 * its inputs have been made in earlier turns; then its result is sent at once, and the receive is
 * placed on the peer. Each receive thus stands directly behind its send in one order of all
 * actions, of which every rank's list is a part: executed in this order, no channel ever holds two
 * messages.
 */
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "schedule/schedule.h"

static ls_status no_memory(const ls__schedule *s)
{
    return ls__fail(LS_ERR_MEMORY, "schedule %s: no memory for its table", s->name);
}

/* Takes the lists out of the table, which then has empty ones. NULL: no memory. */
static ls__actions *take_lists(ls__schedule *s)
{
    ls__actions *old = ls__arena_alloc(&s->arena, (size_t)s->ranks * sizeof *old);
    if (old != NULL) {
        memcpy(old, s->rank, (size_t)s->ranks * sizeof *old);
        memset(s->rank, 0, (size_t)s->ranks * sizeof *old);
    }
    return old;
}

/* ---- versions -------------------------------------------------------------------------------- */

typedef struct weights {
    int newest, bound;
} weights;

typedef struct versions {
    ls__schedule *s;
    weights *replica; /* [replica_count] */
    int *last_read;   /* [replica_count, steps + 1] index of the last action that reads a version */
} versions;

static int *last_read(const versions *v, int replica, int version)
{
    return &v->last_read[(size_t)replica * (size_t)(ls__schedule_steps(v->s) + 1) +
                         (size_t)version];
}

/* Behind a computation of the same replica. */
static void push_version(const versions *v, const ls__action *a, ls__action_kind kind, int version)
{
    ls__schedule_push(
        v->s, ls__schedule_rank(v->s, a->stage, a->micro_batch),
        (ls__action){.kind = (uint8_t)kind, .stage = a->stage, .version = (uint16_t)version});
}

static int replica_of(const ls__schedule *s, const ls__action *a)
{
    return s->first_replica[a->stage] + a->micro_batch % s->replicas[a->stage];
}

static void lower_action(const versions *v, const ls__action *a, int index)
{
    const ls__schedule *s = v->s;
    const ls__action_form *form = ls__action_form_of(a->kind);
    const int wanted = ls__schedule_version(s, a->stage, a->micro_batch);
    const int replica = replica_of(s, a);
    weights *w = &v->replica[replica];
    if (form->reads && w->bound != wanted) {
        push_version(v, a, LS__LOAD, wanted);
        w->bound = wanted;
    }
    ls__schedule_push(v->s, ls__schedule_rank(s, a->stage, a->micro_batch), *a);
    const int next = a->micro_batch + s->replicas[a->stage];
    if (form->adds && next / s->per_step > a->micro_batch / s->per_step) {
        push_version(v, a, LS__REDUCE, 0);
        if (*last_read(v, replica, w->newest) > index) {
            push_version(v, a, LS__STASH, w->newest);
        }
        w->bound = ++w->newest;
        push_version(v, a, LS__STEP, w->newest);
    }
}

ls_status ls__lower_versions(ls__schedule *s)
{
    const size_t replicas = (size_t)s->replica_count;
    const size_t cells = replicas * (size_t)(ls__schedule_steps(s) + 1);
    ls__actions *old = take_lists(s);
    versions v = {s, ls__arena_alloc(&s->arena, replicas * sizeof *v.replica),
                  ls__arena_alloc(&s->arena, cells * sizeof *v.last_read)};
    if (old == NULL || v.replica == NULL || v.last_read == NULL || s->no_memory) {
        return no_memory(s);
    }
    for (int r = 0; r < s->ranks; r++) {
        for (int i = 0; i < old[r].count; i++) {
            const ls__action *a = &old[r].list[i];
            if (ls__action_form_of(a->kind)->reads) {
                *last_read(&v, replica_of(s, a),
                           ls__schedule_version(s, a->stage, a->micro_batch)) = i;
            }
        }
        for (int i = 0; i < old[r].count; i++) {
            lower_action(&v, &old[r].list[i], i);
        }
    }
    return s->no_memory ? no_memory(s) : LS_OK;
}

/* ---- messages -------------------------------------------------------------------------------- */

typedef struct messages {
    ls__schedule *s;
    const ls__actions *old;
    int *next;                   /* [ranks] in old */
    const ls__action **placed;   /* [ranks] the computation of this turn, or NULL */
    bool *activation, *gradient; /* [stages, micro-batches] the input is on the stage's rank */
} messages;

static size_t cell(const ls__schedule *s, int stage, int micro_batch)
{
    return (size_t)stage * (size_t)s->micro_batches + (size_t)micro_batch;
}

static bool is_ready(const messages *m, const ls__action *a)
{
    const ls__schedule *s = m->s;
    if (a->kind == LS__FORWARD) {
        return a->stage == 0 || m->activation[cell(s, a->stage, a->micro_batch)];
    }
    return !ls__action_form_of(a->kind)->backward || a->stage == s->stages - 1 ||
           m->gradient[cell(s, a->stage, a->micro_batch)];
}

/* Places what takes no time, and then one computation if it can run. */
static void place(messages *m, int rank)
{
    const ls__actions *old = &m->old[rank];
    m->placed[rank] = NULL;
    while (m->placed[rank] == NULL && m->next[rank] < old->count) {
        const ls__action *a = &old->list[m->next[rank]];
        if (!is_ready(m, a)) {
            return;
        }
        ls__schedule_push(m->s, rank, *a);
        m->next[rank]++;
        m->placed[rank] = ls__action_form_of(a->kind)->micro_batch ? a : NULL;
    }
}

/* The result of `a` goes to the stage `to`, by a message if that is on another rank. */
static void deliver(messages *m, const ls__action *a, int to, bool *arrived, ls__action_kind send,
                    ls__action_kind receive)
{
    const int from_rank = ls__schedule_rank(m->s, a->stage, a->micro_batch);
    const int to_rank = ls__schedule_rank(m->s, to, a->micro_batch);
    arrived[cell(m->s, to, a->micro_batch)] = true;
    if (from_rank != to_rank) {
        ls__schedule_push(m->s, from_rank,
                          (ls__action){.kind = (uint8_t)send,
                                       .stage = a->stage,
                                       .micro_batch = a->micro_batch,
                                       .peer = (uint16_t)to_rank});
        ls__schedule_push(m->s, to_rank,
                          (ls__action){.kind = (uint8_t)receive,
                                       .stage = (uint16_t)to,
                                       .micro_batch = a->micro_batch,
                                       .peer = (uint16_t)from_rank});
    }
}

static void deliver_result(messages *m, const ls__action *a)
{
    if (a->kind == LS__FORWARD && a->stage + 1 < m->s->stages) {
        deliver(m, a, a->stage + 1, m->activation, LS__SEND_ACTIVATION, LS__RECV_ACTIVATION);
    } else if (ls__action_form_of(a->kind)->backward && a->stage > 0) {
        deliver(m, a, a->stage - 1, m->gradient, LS__SEND_GRADIENT, LS__RECV_GRADIENT);
    }
}

/* Until no rank has anything left. A generator whose order cannot be executed is a bug. */
static void take_turns(messages *m)
{
    bool left = true;
    while (left && !m->s->no_memory) {
        bool progress = left = false;
        for (int r = 0; r < m->s->ranks; r++) {
            const int before = m->next[r];
            place(m, r);
            progress = progress || m->next[r] > before;
            left = left || m->next[r] < m->old[r].count;
        }
        LS_ASSERT(progress || !left);
        for (int r = 0; r < m->s->ranks; r++) {
            if (m->placed[r] != NULL) {
                deliver_result(m, m->placed[r]);
            }
        }
    }
}

ls_status ls__lower_messages(ls__schedule *s)
{
    const size_t cells = cell(s, s->stages, 0), ranks = (size_t)s->ranks;
    messages m = {s,
                  take_lists(s),
                  ls__arena_alloc(&s->arena, ranks * sizeof *m.next),
                  ls__arena_alloc(&s->arena, ranks * sizeof *m.placed),
                  ls__arena_alloc(&s->arena, cells),
                  ls__arena_alloc(&s->arena, cells)};
    if (m.old == NULL || m.next == NULL || m.placed == NULL || m.activation == NULL ||
        m.gradient == NULL) {
        return no_memory(s);
    }
    take_turns(&m);
    return s->no_memory ? no_memory(s) : LS_OK;
}
