/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier. A table passes if executing it (Note [Meaning of a table]) reaches the end and
 * gives the gradients of the sequential twin. Two walks decide that: each rank's list by itself,
 * with the state of its stages (here), and all lists together, with channels that hold one message
 * (verify_channels.c).
 */
#include "schedule/verify.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"

/* What has happened to one micro-batch at one stage. */
typedef enum cell_state {
    ARRIVED = 1,   /* its activations, from the stage before */
    RUN = 2,       /* forward */
    KEPT = 4,      /* the activations that its backward needs */
    GRADIENT = 8,  /* has arrived from the stage after it */
    INPUT = 16,    /* the input part of its backward */
    ADDED = 32,    /* its weight gradient */
    SENT = 64,     /* activations */
    RETURNED = 128 /* gradient of the input was sent */
} cell_state;

typedef struct weights {
    int newest, bound;
    int next;     /* micro-batch whose weight gradient is added next */
    bool reduced; /* since the last step */
} weights;

typedef struct walk {
    const ls__schedule *s;
    uint8_t *cell;    /* [stages, micro-batches] of cell_state */
    bool *stashed;    /* [replica_count, steps + 1] */
    weights *weights; /* [replica_count] */
    int rank, index;
    const ls__action *action; /* at rank and index */
    int replica;              /* that of its stage on this rank */
    weights *w;
} walk;

ls_status ls__schedule_bad(const ls__schedule *s, int rank, int index, const char *format, ...)
{
    char why[512], text[LS__ACTION_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return ls__fail(LS_ERR_INVALID, "schedule %s: rank %d, action %d (%s): %s", s->name, rank,
                    index + 1, ls__action_print(&s->rank[rank].list[index], text), why);
}

#define BAD(k, ...) ls__schedule_bad((k)->s, (k)->rank, (k)->index, __VA_ARGS__)

static uint8_t *cell_of(const walk *k, int stage, int micro_batch)
{
    return &k->cell[(size_t)stage * (size_t)k->s->micro_batches + (size_t)micro_batch];
}

static bool *stashed(const walk *k, int version)
{
    const size_t row = (size_t)(ls__schedule_steps(k->s) + 1);
    return &k->stashed[(size_t)k->replica * row + (size_t)version];
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* Messages connect a stage with the one before or after it, on another rank. */
static ls_status check_peer(const walk *k)
{
    const ls__action *a = k->action;
    const bool after = a->kind == LS__SEND_ACTIVATION || a->kind == LS__RECV_GRADIENT;
    const int other = a->stage + (after ? 1 : -1);
    if (other < 0 || other >= k->s->stages) {
        return BAD(k, "there is no stage %s this one", after ? "after" : "before");
    }
    const int rank = ls__schedule_rank(k->s, other, a->micro_batch);
    if (rank == k->rank) {
        return BAD(k, "stage %d is on this rank too, so nothing is sent", other);
    }
    if (rank != a->peer) {
        return BAD(k, "the peer must be rank %d, which has stage %d", rank, other);
    }
    return LS_OK;
}

static ls_status check_fields(walk *k)
{
    const ls__action *a = k->action;
    const ls__action_form *form = ls__action_form_of(a->kind);
    if (a->stage >= k->s->stages) {
        return BAD(k, "there is no such stage; they are 0 to %d", k->s->stages - 1);
    }
    const int replica = ls__schedule_replica(k->s, a->stage, k->rank);
    const int count = k->s->replicas[a->stage];
    if (replica < 0 || replica >= count) {
        return count == 1 ? BAD(k, "stage %d belongs to rank %d", a->stage, k->s->rank_of[a->stage])
                          : BAD(k, "stage %d belongs to ranks %d to %d", a->stage,
                                k->s->rank_of[a->stage], k->s->rank_of[a->stage] + count - 1);
    }
    if (form->micro_batch && a->micro_batch >= k->s->micro_batches) {
        return BAD(k, "there is no such micro-batch; they are 0 to %d", k->s->micro_batches - 1);
    }
    if (form->micro_batch && a->micro_batch % count != replica) {
        return BAD(k, "micro-batch %d of stage %d belongs to its replica on rank %d",
                   a->micro_batch, a->stage, ls__schedule_rank(k->s, a->stage, a->micro_batch));
    }
    k->replica = k->s->first_replica[a->stage] + replica;
    k->w = &k->weights[k->replica];
    return form->arrow != 0 ? check_peer(k) : LS_OK;
}

/* ---- computations ---------------------------------------------------------------------------- */

static ls_status check_version(const walk *k)
{
    const int wanted = ls__schedule_version(k->s, k->action->stage, k->action->micro_batch);
    if (k->w->bound != wanted) {
        return BAD(k,
                   "it would read version %d of the weights, but micro-batch %d uses version %d "
                   "at stage %d",
                   k->w->bound, k->action->micro_batch, wanted, k->action->stage);
    }
    return LS_OK;
}

static ls_status check_forward(const walk *k, uint8_t *cell)
{
    const ls__action *a = k->action;
    if (*cell & RUN) {
        return BAD(k, "micro-batch %d has passed stage %d already", a->micro_batch, a->stage);
    }
    if (a->stage > 0 && !(*cell & ARRIVED)) {
        return BAD(k, "the activations of stage %d are not here yet", a->stage - 1);
    }
    LS_TRY(check_version(k));
    *cell |= RUN | (k->s->recompute ? 0 : KEPT);
    if (a->stage + 1 < k->s->stages &&
        ls__schedule_rank(k->s, a->stage + 1, a->micro_batch) == k->rank) {
        *cell_of(k, a->stage + 1, a->micro_batch) |= ARRIVED;
    }
    return LS_OK;
}

static ls_status check_recompute(const walk *k, uint8_t *cell)
{
    if (*cell & KEPT) {
        return BAD(k, "these activations are kept already");
    }
    if (!(*cell & RUN) || (*cell & INPUT)) {
        return BAD(k, "a recomputation stands between forward and backward");
    }
    LS_TRY(check_version(k));
    *cell |= KEPT;
    return LS_OK;
}

static ls_status check_input_part(const walk *k, uint8_t *cell)
{
    const ls__action *a = k->action;
    if (*cell & INPUT) {
        return BAD(k, "micro-batch %d has gone back through stage %d already", a->micro_batch,
                   a->stage);
    }
    if (!(*cell & RUN)) {
        return BAD(k, "the backward of micro-batch %d comes before its forward", a->micro_batch);
    }
    if (!(*cell & KEPT)) {
        return BAD(k, "the activations of micro-batch %d have not been recomputed", a->micro_batch);
    }
    if (a->stage + 1 < k->s->stages && !(*cell & GRADIENT)) {
        return BAD(k, "the gradient of stage %d is not here yet", a->stage + 1);
    }
    LS_TRY(check_version(k));
    *cell |= INPUT;
    if (a->stage > 0 && ls__schedule_rank(k->s, a->stage - 1, a->micro_batch) == k->rank) {
        *cell_of(k, a->stage - 1, a->micro_batch) |= GRADIENT;
    }
    return LS_OK;
}

/* In ascending order, so that the sums have the same bits in every schedule. */
static ls_status check_weight_part(const walk *k, uint8_t *cell)
{
    const ls__action *a = k->action;
    if (*cell & ADDED) {
        return BAD(k, "the weight gradient of micro-batch %d has been added already",
                   a->micro_batch);
    }
    if (!(*cell & INPUT)) {
        return BAD(k, "the weight part of micro-batch %d comes before its input part",
                   a->micro_batch);
    }
    if (a->micro_batch != k->w->next) {
        return BAD(k,
                   "the weight gradients of a stage are added in ascending order, and that of "
                   "micro-batch %d is missing",
                   k->w->next);
    }
    if (k->w->next / k->s->per_step != k->w->newest || k->w->reduced) {
        return BAD(k, "a step is due before this gradient, for the %d micro-batches before it",
                   k->s->per_step);
    }
    *cell |= ADDED;
    k->w->next += k->s->replicas[a->stage];
    return LS_OK;
}

static ls_status check_computation(const walk *k, uint8_t *cell)
{
    switch (k->action->kind) {
    case LS__FORWARD:
        return check_forward(k, cell);
    case LS__RECOMPUTE:
        return check_recompute(k, cell);
    case LS__BACKWARD:
        LS_TRY(check_input_part(k, cell));
        return check_weight_part(k, cell);
    case LS__INPUT_PART:
        return check_input_part(k, cell);
    default:
        return check_weight_part(k, cell);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

static ls_status check_message(const walk *k, uint8_t *cell)
{
    static const struct {
        uint8_t needs, sets;
    } states[LS__ACTION_KINDS] = {
        [LS__SEND_ACTIVATION] = {RUN, SENT},
        [LS__RECV_ACTIVATION] = {0, ARRIVED},
        [LS__SEND_GRADIENT] = {INPUT, RETURNED},
        [LS__RECV_GRADIENT] = {0, GRADIENT},
    };
    const uint8_t needs = states[k->action->kind].needs, sets = states[k->action->kind].sets;
    if (*cell & sets) {
        return BAD(k, "a second message with the same contents");
    }
    if ((*cell & needs) != needs) {
        return BAD(k, "it is sent before it has been computed");
    }
    *cell |= sets;
    return LS_OK;
}

/* ---- versions -------------------------------------------------------------------------------- */

static ls_status check_reduce(const walk *k)
{
    const int stage = k->action->stage, from = k->w->newest * k->s->per_step;
    const int replica = ls__schedule_replica(k->s, stage, k->rank);
    const int before = ls__schedule_share(k->s, stage, replica, from);
    const int all = ls__schedule_share(k->s, stage, replica, from + k->s->per_step) - before;
    const int summed = ls__schedule_share(k->s, stage, replica, k->w->next) - before;
    if (k->w->reduced) {
        return BAD(k, "this sum has been reduced already");
    }
    if (summed < all) {
        return BAD(k, "the sum has the gradients of %d micro-batches, but a step takes %d", summed,
                   all);
    }
    k->w->reduced = true;
    return LS_OK;
}

static ls_status check_step(const walk *k)
{
    if (!k->w->reduced) {
        return BAD(k, "a step follows the reduction of a sum of %d micro-batches, which is missing",
                   k->s->per_step);
    }
    if (k->action->version != k->w->newest + 1) {
        return BAD(k, "a step makes version %d from version %d", k->w->newest + 1, k->w->newest);
    }
    k->w->reduced = false;
    k->w->bound = ++k->w->newest;
    return LS_OK;
}

static ls_status check_stash(const walk *k)
{
    const int version = k->action->version;
    if (version != k->w->newest) {
        return BAD(k, "only the newest version can be stashed, which is %d", k->w->newest);
    }
    if (*stashed(k, version)) {
        return BAD(k, "version %d is stashed already", version);
    }
    *stashed(k, version) = true;
    return LS_OK;
}

static ls_status check_load(const walk *k)
{
    const int version = k->action->version;
    if (version > k->w->newest) {
        return BAD(k, "version %d has not been made; the newest is %d", version, k->w->newest);
    }
    if (version < k->w->newest && !*stashed(k, version)) {
        return BAD(k, "a step has overwritten version %d, which was not stashed before", version);
    }
    k->w->bound = version;
    return LS_OK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static ls_status check_action(walk *k)
{
    LS_TRY(check_fields(k));
    switch (k->action->kind) {
    case LS__REDUCE:
        return check_reduce(k);
    case LS__STEP:
        return check_step(k);
    case LS__STASH:
        return check_stash(k);
    case LS__LOAD:
        return check_load(k);
    default: {
        uint8_t *cell = cell_of(k, k->action->stage, k->action->micro_batch);
        return ls__action_form_of(k->action->kind)->arrow != 0 ? check_message(k, cell)
                                                               : check_computation(k, cell);
    }
    }
}

/* Every weight gradient has been added and used by a step, hence every backward has run. */
static ls_status check_stage_end(const walk *k, int stage, int replica)
{
    const weights *w = &k->weights[k->s->first_replica[stage] + replica];
    const int m = w->next, rank = k->s->rank_of[stage] + replica;
    if (m < k->s->micro_batches) {
        const uint8_t cell = *cell_of(k, stage, m);
        return ls__fail(LS_ERR_INVALID,
                        "schedule %s: rank %d: the list ends without the %s of micro-batch %d at "
                        "stage %d",
                        k->s->name, rank,
                        !(cell & RUN)     ? "forward"
                        : !(cell & INPUT) ? "backward"
                                          : "weight part",
                        m, stage);
    }
    if (w->newest < ls__schedule_steps(k->s)) {
        return ls__fail(LS_ERR_INVALID,
                        "schedule %s: rank %d: the list ends without step %d of "
                        "stage %d",
                        k->s->name, rank, w->newest + 1, stage);
    }
    return LS_OK;
}

/* Every replica begins with its own first micro-batch. */
static void begin_walk(walk *k)
{
    for (int stage = 0; stage < k->s->stages; stage++) {
        for (int j = 0; j < k->s->replicas[stage]; j++) {
            k->weights[k->s->first_replica[stage] + j].next = j;
        }
    }
}

static ls_status check_lists(walk *k)
{
    begin_walk(k);
    for (k->rank = 0; k->rank < k->s->ranks; k->rank++) {
        const ls__actions *list = &k->s->rank[k->rank];
        for (k->index = 0; k->index < list->count; k->index++) {
            k->action = &list->list[k->index];
            LS_TRY(check_action(k));
        }
    }
    for (int stage = 0; stage < k->s->stages; stage++) {
        for (int j = 0; j < k->s->replicas[stage]; j++) {
            LS_TRY(check_stage_end(k, stage, j));
        }
    }
    return LS_OK;
}

ls_status ls__schedule_verify(const ls__schedule *s)
{
    const size_t stages = (size_t)s->stages, replicas = (size_t)s->replica_count;
    ls__arena arena;
    ls__arena_init(&arena, s->arena.env, 4096);
    walk k = {.s = s,
              .cell = ls__arena_alloc(&arena, stages * (size_t)s->micro_batches),
              .stashed = ls__arena_alloc(&arena, replicas * (size_t)(ls__schedule_steps(s) + 1)),
              .weights = ls__arena_alloc(&arena, replicas * sizeof *k.weights)};
    ls_status status = k.cell == NULL || k.stashed == NULL || k.weights == NULL
                           ? ls__fail(LS_ERR_MEMORY, "schedule %s: no memory to verify it", s->name)
                           : check_lists(&k);
    if (status == LS_OK) {
        status = ls__schedule_verify_channels(s, &arena);
    }
    ls__arena_fini(&arena);
    return status;
}
