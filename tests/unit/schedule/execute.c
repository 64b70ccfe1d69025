/* SPDX-License-Identifier: Apache-2.0 */
/* See execute.h. */
#include "execute.h"

#include <stdlib.h>
#include <string.h>

#include "test.h"

typedef uint64_t value; /* 0: nothing */

enum { BATCH = 1, FORWARD, KEPT, LOSS, BACKWARD, GRADIENT, SUM, REDUCED, WEIGHTS, STEP };

/* What an operation makes of its operands. */
static value made(value what, value a, value b, value c)
{
    const value operands[] = {what, a, b, c};
    value hash = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 4; i++) {
        hash = (hash ^ operands[i]) * 0xbf58476d1ce4e5b9u;
        hash ^= hash >> 29;
    }
    return hash | 1;
}

/* ---- the sequential twin --------------------------------------------------------------------- */

static int age(const ls__schedule *s, int stage)
{
    return s->delay < 0 ? s->stages - 1 - stage : s->delay;
}

/* One micro-batch after the other, each forward and backward; weights[stage, version],
 * losses[micro-batch]. */
static void run_twin(const ls__schedule *s, value *weights, value *losses)
{
    const int row = s->micro_batches / s->per_step + 1;
    value *sum = calloc((size_t)(s->stages * s->ranks), sizeof *sum); /* [stages, replicas] */
    value *kept = calloc((size_t)s->stages, sizeof *kept);
    CHECK(sum != NULL && kept != NULL);
    for (int stage = 0; stage < s->stages; stage++) {
        weights[stage * row] = made(WEIGHTS, (value)stage, 0, 0);
    }
    for (int m = 0; m < s->micro_batches; m++) {
        value x = made(BATCH, (value)m, 0, 0);
        const int done = m / s->per_step;
        for (int stage = 0; stage < s->stages; stage++) {
            const int behind = done - age(s, stage);
            const value w = weights[stage * row + (behind > 0 ? behind : 0)];
            kept[stage] = made(KEPT, x, w, 0);
            x = made(FORWARD, x, w, 0);
        }
        losses[m] = x;
        value dy = made(LOSS, kept[s->stages - 1], 0, 0);
        for (int stage = s->stages - 1; stage >= 0; stage--) {
            const int behind = done - age(s, stage);
            const value w = weights[stage * row + (behind > 0 ? behind : 0)];
            value *of = &sum[stage * s->ranks + m % s->replicas[stage]];
            *of = made(SUM, *of, made(GRADIENT, kept[stage], dy, w), 0);
            dy = made(BACKWARD, kept[stage], dy, w);
        }
        for (int stage = 0; (m + 1) % s->per_step == 0 && stage < s->stages; stage++) {
            value *w = &weights[stage * row + done];
            value all = 0;
            for (int j = 0; j < s->replicas[stage]; j++) {
                all = made(REDUCED, all, sum[stage * s->ranks + j], 0);
                sum[stage * s->ranks + j] = 0;
            }
            w[1] = made(STEP, w[0], all, (value)done + 1);
        }
    }
    free(sum);
    free(kept);
}

/* ---- the execution --------------------------------------------------------------------------- */

/* What a rank holds of a micro-batch at a stage. */
typedef struct slots {
    value input, output;      /* activations that came, and that go */
    value begun;              /* the input that a forward kept */
    value kept;               /* activations for the backward */
    value gradient, returned; /* gradients that came, and that go */
    value pending;            /* a weight gradient not yet added */
} slots;

typedef struct stage_state { /* of a replica */
    value newest, bound, sum;
    bool waits, reduced; /* at its reduction; all have been there */
    int label;           /* of newest */
    value *stash;        /* [labels] */
} stage_state;

typedef struct execution {
    const ls__schedule *s;
    slots *slots;        /* [stages, micro-batches] */
    stage_state *stages; /* [ranks, stages] */
    value *channel;      /* [ranks, ranks] */
    value *losses;       /* [micro-batches] what the last stage's forwards give */
    int *next;
    const char *fault;
} execution;

static slots *slots_of(const execution *e, int stage, int m)
{
    return &e->slots[stage * e->s->micro_batches + m];
}

static bool fault(execution *e, const char *why)
{
    e->fault = why;
    return false;
}

/* Moves a value into an empty place. */
static bool put(execution *e, value *place, value v)
{
    if (*place != 0) {
        return fault(e, "a place is taken");
    }
    *place = v;
    return true;
}

static bool take(execution *e, value *place, value *v)
{
    if (*place == 0) {
        return fault(e, "a value is missing");
    }
    *v = *place;
    *place = 0;
    return true;
}

static int owner(const execution *e, int stage, int m)
{
    return e->s->rank_of[stage] + m % e->s->replicas[stage];
}

static stage_state *state_of(const execution *e, const ls__action *a)
{
    return &e->stages[owner(e, a->stage, a->micro_batch) * e->s->stages + a->stage];
}

static bool is_here(const execution *e, int stage, int other, int m)
{
    return owner(e, other, m) == owner(e, stage, m);
}

static bool forward(execution *e, const ls__action *a)
{
    slots *x = slots_of(e, a->stage, a->micro_batch);
    const value w = state_of(e, a)->bound;
    value input = 0;
    if (!take(e, &x->input, &input) || !put(e, &x->begun, input)) {
        return false;
    }
    if (!e->s->recompute && !put(e, &x->kept, made(KEPT, input, w, 0))) {
        return false;
    }
    const value output = made(FORWARD, input, w, 0);
    if (a->stage == e->s->stages - 1) {
        return put(e, &e->losses[a->micro_batch], output);
    }
    return is_here(e, a->stage, a->stage + 1, a->micro_batch)
               ? put(e, &slots_of(e, a->stage + 1, a->micro_batch)->input, output)
               : put(e, &x->output, output);
}

static bool recompute(execution *e, const ls__action *a)
{
    slots *x = slots_of(e, a->stage, a->micro_batch);
    return x->begun != 0 ? put(e, &x->kept, made(KEPT, x->begun, state_of(e, a)->bound, 0))
                         : fault(e, "there is no input");
}

static bool input_part(execution *e, const ls__action *a)
{
    slots *x = slots_of(e, a->stage, a->micro_batch);
    const value w = state_of(e, a)->bound;
    value kept = 0, dy = 0, begun = 0;
    if (!take(e, &x->kept, &kept) || !take(e, &x->begun, &begun)) {
        return false;
    }
    if (a->stage == e->s->stages - 1) {
        dy = made(LOSS, kept, 0, 0);
    } else if (!take(e, &x->gradient, &dy)) {
        return false;
    }
    if (!put(e, &x->pending, made(GRADIENT, kept, dy, w))) {
        return false;
    }
    const value dx = made(BACKWARD, kept, dy, w);
    if (a->stage == 0) {
        return true;
    }
    return is_here(e, a->stage, a->stage - 1, a->micro_batch)
               ? put(e, &slots_of(e, a->stage - 1, a->micro_batch)->gradient, dx)
               : put(e, &x->returned, dx);
}

static bool weight_part(execution *e, const ls__action *a)
{
    value *sum = &state_of(e, a)->sum, gradient = 0;
    if (!take(e, &slots_of(e, a->stage, a->micro_batch)->pending, &gradient)) {
        return false;
    }
    *sum = made(SUM, *sum, gradient, 0);
    return true;
}

/* The last replica to come sums for all; false: this one waits, or has failed. */
static bool reduce(execution *e, int rank, int stage)
{
    const int first = e->s->rank_of[stage], count = e->s->replicas[stage], row = e->s->stages;
    stage_state *g = &e->stages[rank * row + stage];
    bool all = true;
    value sum = 0;
    if (g->sum == 0) {
        return fault(e, "there is nothing to reduce");
    }
    g->waits = !g->reduced;
    for (int j = 0; j < count; j++) {
        all = all && e->stages[(first + j) * row + stage].waits;
        sum = made(REDUCED, sum, e->stages[(first + j) * row + stage].sum, 0);
    }
    for (int j = 0; all && j < count; j++) {
        stage_state *other = &e->stages[(first + j) * row + stage];
        other->sum = sum;
        other->waits = false;
        other->reduced = true;
    }
    if (!g->reduced) {
        return false;
    }
    g->reduced = false;
    return true;
}

static bool version(execution *e, int rank, const ls__action *a)
{
    stage_state *g = &e->stages[rank * e->s->stages + a->stage];
    if (a->kind == LS__REDUCE) {
        return reduce(e, rank, a->stage);
    }
    if (a->kind == LS__STEP) {
        g->bound = g->newest = made(STEP, g->newest, g->sum, a->version);
        g->label = a->version;
        g->sum = 0;
    } else if (a->kind == LS__STASH) {
        return a->version == g->label ? put(e, &g->stash[a->version], g->newest)
                                      : fault(e, "this version is not the newest");
    } else {
        g->bound = a->version == g->label ? g->newest : g->stash[a->version];
        return g->bound != 0 || fault(e, "there is no such version");
    }
    return true;
}

/* false: the rank waits, or has failed. */
static bool message(execution *e, int rank, const ls__action *a)
{
    const bool sends = a->kind == LS__SEND_ACTIVATION || a->kind == LS__SEND_GRADIENT;
    const bool forward_way = a->kind == LS__SEND_ACTIVATION || a->kind == LS__RECV_ACTIVATION;
    slots *x = slots_of(e, a->stage, a->micro_batch);
    if (a->peer >= e->s->ranks) {
        return fault(e, "there is no such rank");
    }
    value *channel = sends ? &e->channel[rank * e->s->ranks + a->peer]
                           : &e->channel[a->peer * e->s->ranks + rank];
    if ((*channel != 0) == sends) {
        return false;
    }
    value v = 0;
    if (sends) {
        return take(e, forward_way ? &x->output : &x->returned, &v) && put(e, channel, v);
    }
    return take(e, channel, &v) && put(e, forward_way ? &x->input : &x->gradient, v);
}

static bool act(execution *e, int rank, const ls__action *a)
{
    const bool of_stage = a->kind >= LS__REDUCE;
    if (a->stage >= e->s->stages || rank < e->s->rank_of[a->stage] ||
        rank >= e->s->rank_of[a->stage] + e->s->replicas[a->stage] ||
        (!of_stage &&
         (a->micro_batch >= e->s->micro_batches || owner(e, a->stage, a->micro_batch) != rank))) {
        return fault(e, "no such stage or micro-batch here");
    }
    switch (a->kind) {
    case LS__FORWARD:
        return forward(e, a);
    case LS__RECOMPUTE:
        return recompute(e, a);
    case LS__BACKWARD:
        return input_part(e, a) && weight_part(e, a);
    case LS__INPUT_PART:
        return input_part(e, a);
    case LS__WEIGHT_PART:
        return weight_part(e, a);
    case LS__REDUCE:
    case LS__STASH:
    case LS__LOAD:
    case LS__STEP:
        return version(e, rank, a);
    default:
        return message(e, rank, a);
    }
}

/* Until no rank can go on. Returns whether all lists were executed and no message is left. */
static bool run_table(execution *e)
{
    bool progress = true, ended = true;
    while (progress && e->fault == NULL) {
        progress = false;
        for (int r = 0; r < e->s->ranks && e->fault == NULL; r++) {
            while (e->next[r] < e->s->rank[r].count && act(e, r, &e->s->rank[r].list[e->next[r]])) {
                e->next[r]++;
                progress = true;
            }
        }
    }
    for (int r = 0; r < e->s->ranks; r++) {
        ended = ended && e->next[r] == e->s->rank[r].count;
    }
    if (e->fault == NULL && !ended) {
        (void)fault(e, "deadlock");
    }
    for (int i = 0; i < e->s->ranks * e->s->ranks; i++) {
        if (e->fault == NULL && e->channel[i] != 0) {
            (void)fault(e, "a message is left");
        }
    }
    return e->fault == NULL;
}

/* After the last action: the same weights and losses. */
static bool is_equal(const execution *e, const value *weights, const value *losses)
{
    const int steps = e->s->micro_batches / e->s->per_step;
    for (int i = 0; i < e->s->stages; i++) {
        for (int j = 0; j < e->s->replicas[i]; j++) {
            const stage_state *g = &e->stages[(e->s->rank_of[i] + j) * e->s->stages + i];
            if (g->newest != weights[i * (steps + 1) + steps] || g->label != steps) {
                return false;
            }
        }
    }
    return memcmp(e->losses, losses, (size_t)e->s->micro_batches * sizeof *losses) == 0;
}

static bool run(execution *e)
{
    const size_t row = (size_t)(e->s->micro_batches / e->s->per_step) + 1;
    value *weights = calloc((size_t)e->s->stages * row, sizeof *weights);
    value *losses = calloc((size_t)e->s->micro_batches, sizeof *losses);
    CHECK(weights != NULL && losses != NULL);
    run_twin(e->s, weights, losses);
    for (int i = 0; i < e->s->stages * e->s->ranks; i++) {
        e->stages[i].newest = e->stages[i].bound = made(WEIGHTS, (value)(i % e->s->stages), 0, 0);
    }
    for (int m = 0; m < e->s->micro_batches; m++) {
        slots_of(e, 0, m)->input = made(BATCH, (value)m, 0, 0);
    }
    const bool equal = run_table(e) && (is_equal(e, weights, losses) ||
                                        fault(e, "weights or losses differ from the twin's"));
    free(weights);
    free(losses);
    return equal;
}

/* One more than the largest version that an action has. */
static size_t labels_of(const ls__schedule *s)
{
    size_t labels = 1;
    for (int r = 0; r < s->ranks; r++) {
        for (int i = 0; i < s->rank[r].count; i++) {
            const size_t version = s->rank[r].list[i].version;
            labels = version >= labels ? version + 1 : labels;
        }
    }
    return labels;
}

bool executes_as_twin(const ls__schedule *s, const char **why)
{
    const size_t labels = labels_of(s);
    const size_t stages = (size_t)s->stages, ranks = (size_t)s->ranks;
    execution e = {.s = s,
                   .slots = calloc(stages * (size_t)s->micro_batches, sizeof *e.slots),
                   .stages = calloc(ranks * stages, sizeof *e.stages),
                   .channel = calloc(ranks * ranks, sizeof *e.channel),
                   .losses = calloc((size_t)s->micro_batches, sizeof *e.losses),
                   .next = calloc(ranks, sizeof *e.next)};
    value *stashes = calloc(ranks * stages * labels, sizeof *stashes);
    CHECK(e.slots != NULL && e.stages != NULL && e.channel != NULL && e.losses != NULL &&
          e.next != NULL && stashes != NULL);
    for (size_t i = 0; i < ranks * stages; i++) {
        e.stages[i].stash = stashes + i * labels;
    }
    const bool equal = run(&e);
    free(stashes);
    free(e.slots);
    free(e.stages);
    free(e.channel);
    free(e.losses);
    free(e.next);
    if (why != NULL) {
        *why = e.fault;
    }
    return equal;
}
