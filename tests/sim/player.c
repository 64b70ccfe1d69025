/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of the simulated job: what a user's program would be. It runs the plan's script, keeps
 * several operations in flight, compares every result, and says how it ended. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/comm.h>

#include "base/assert.h"
#include "base/options.h"
#include "sim/scenario.h"

#define FLIGHTS 12

typedef struct flight {
    const ls__plan_operation *operation; /* NULL: none */
    int number;
    ls_group *group;
    int rank, size;
    int64_t in_count, out_count;
    void *in, *out;
    size_t in_bytes, out_bytes; /* allocated */
    bool in_shared, out_shared;
    ls_work *work, *other;
    ls__uneven uneven;
    bool another; /* operation than the plan's was called: its result is its own */
} flight;

typedef struct player {
    ls__plan *plan;
    int rank;
    ls__rank_outcome *outcome;
    ls__sim_random dice;
    ls_group *group[LS__PLAN_GROUPS]; /* NULL: not a member */
    flight flight[FLIGHTS];
    ls__saver saver;
    ls__trainer trainer;
    ls__stager stager;
    ls_status status;
    const ls__fault *wrong; /* of the operation being started; NULL: none */
} player;

static void report(player *p, ls_status status, const char *text)
{
    ls__rank_outcome *o = p->outcome;
    if (!o->reported) {
        o->reported = true;
        o->status = status;
        o->at_ns = ls__sim->now_ns;
        snprintf(o->text, sizeof o->text, "%s", text);
        ls__sim_note("rank %d reports %s: %s", p->rank, ls_status_name(status), text);
    }
}

static bool failed(player *p, ls_status status)
{
    if (status < 0 && p->status == LS_OK) {
        p->status = status;
        report(p, status, ls_error_message());
    }
    return p->status < 0;
}

/* ---- faults of the program's own ----------------------------------------------------------- */

static ls__fault *own_fault(const player *p, int operation)
{
    for (int i = 0; i < p->plan->faults; i++) {
        ls__fault *f = &p->plan->fault[i];
        const bool own = f->kind == LS__FAULT_EXIT || f->kind == LS__FAULT_WRONG ||
                         f->kind == LS__FAULT_ABORT || f->kind == LS__FAULT_STOP;
        if (own && f->rank == p->rank && f->operation == operation) {
            return f;
        }
    }
    return NULL;
}

/* ---- memory -------------------------------------------------------------------------------- */

static void *take_memory(player *p, int64_t count, ls_dtype dtype, size_t *bytes, bool *shared)
{
    void *memory = NULL;
    *bytes = count > 0 ? (size_t)count * ls_dtype_size(dtype) : 1;
    *shared = ls__sim_below(&p->dice, 3) != 0;
    if (*shared) {
        const ls_status status = ls_group_alloc(ls_world(), *bytes, &memory);
        if (failed(p, status)) {
            return NULL;
        }
        return memory;
    }
    memory = ls__sim_env.allocate(&ls__sim_env, *bytes);
    if (memory == NULL) {
        (void)failed(p, ls__fail(LS_ERR_MEMORY, "the program's buffer"));
    }
    return memory;
}

static void give_memory(void *memory, size_t bytes, bool shared)
{
    if (memory == NULL) {
        return;
    }
    if (shared) {
        (void)ls_group_dealloc(ls_world(), memory);
    } else {
        ls__sim_env.release(&ls__sim_env, memory, bytes);
    }
}

/* ---- one operation ------------------------------------------------------------------------- */

static bool in_place(const flight *f)
{
    const ls__plan_kind kind = f->operation->kind;
    if (kind == LS__PLAN_ALL_TO_ALL || kind == LS__PLAN_SCAN || kind == LS__PLAN_EXSCAN) {
        return (f->operation->id >> f->rank & 1) != 0; /* on some ranks */
    }
    return kind == LS__PLAN_ALL_REDUCE || kind == LS__PLAN_DIVIDED || kind == LS__PLAN_DOUBLING ||
           kind == LS__PLAN_BROADCAST || kind == LS__PLAN_BINOMIAL;
}

static bool is_uneven(const flight *f)
{
    return ls__uneven_operation(f->operation->kind) != LS__OP_COUNT;
}

static void count_elements(flight *f)
{
    const ls__plan_operation *o = f->operation;
    const bool both = o->kind == LS__PLAN_ALL_TO_ALL;
    const bool in_blocks =
        both || o->kind == LS__PLAN_REDUCE_SCATTER || o->kind == LS__PLAN_SCATTER;
    const bool out_blocks = both || o->kind == LS__PLAN_ALL_GATHER || o->kind == LS__PLAN_GATHER;
    const bool to_root = o->kind == LS__PLAN_REDUCE || o->kind == LS__PLAN_GATHER;
    f->in_count = in_blocks ? o->count * f->size : o->kind == LS__PLAN_BARRIER ? 0 : o->count;
    f->out_count = out_blocks ? o->count * f->size : o->kind == LS__PLAN_BARRIER ? 0 : o->count;
    f->out_count = to_root && f->rank != o->root % f->size ? 0 : f->out_count;
    f->out_count = o->kind == LS__PLAN_EXSCAN && f->rank == 0 ? 0 : f->out_count;
    if (is_uneven(f)) {
        ls__uneven_lay_out(o, f->rank, f->size, &f->uneven);
        f->in_count = f->uneven.end[0];
        f->out_count = f->uneven.end[1];
    }
}

static void wanted(const flight *f, int64_t i, void *out)
{
    const ls__plan_operation *o = f->operation;
    const int root = o->root % f->size;
    switch (o->kind) {
    case LS__PLAN_ALL_REDUCE:
    case LS__PLAN_REDUCE:
    case LS__PLAN_DIVIDED:
    case LS__PLAN_DOUBLING:
        ls__oracle_reduced(o, i, f->size, out);
        break;
    case LS__PLAN_REDUCE_SCATTER:
        ls__oracle_reduced(o, f->rank * o->count + i, f->size, out);
        break;
    case LS__PLAN_ALL_GATHER:
    case LS__PLAN_GATHER:
        ls__oracle_value(o, (int)(i / o->count), i % o->count, out);
        break;
    case LS__PLAN_BROADCAST:
    case LS__PLAN_BINOMIAL:
        ls__oracle_value(o, root, i, out);
        break;
    case LS__PLAN_SCATTER:
        ls__oracle_value(o, root, f->rank * o->count + i, out);
        break;
    case LS__PLAN_ALL_TO_ALL:
        ls__oracle_value(o, (int)(i / o->count), f->rank * o->count + i % o->count, out);
        break;
    case LS__PLAN_SCAN:
        ls__oracle_reduced(o, i, f->rank + 1, out);
        break;
    case LS__PLAN_EXSCAN:
        ls__oracle_reduced(o, i, f->rank, out);
        break;
    default: /* EXCHANGE */
        ls__oracle_value(o, (f->rank + f->size - root) % f->size, i, out);
    }
}

static void fill(const flight *f)
{
    const size_t size = ls_dtype_size(f->operation->dtype);
    for (int64_t i = 0; i < f->in_count; i++) {
        ls__oracle_value(f->operation, f->rank, i, (unsigned char *)f->in + (size_t)i * size);
    }
    if (is_uneven(f)) {
        ls__uneven_fill(f->operation, &f->uneven, f->in);
    }
}

static bool prepare(player *p, flight *f)
{
    const ls_dtype dtype = f->operation->dtype;
    count_elements(f);
    f->in = take_memory(p, f->in_count, dtype, &f->in_bytes, &f->in_shared);
    f->out = NULL;
    if (f->in != NULL && !in_place(f)) {
        f->out = take_memory(p, f->out_count, dtype, &f->out_bytes, &f->out_shared);
    }
    if (f->in != NULL) {
        fill(f);
    }
    return p->status == LS_OK;
}

static ls_status start_other(player *p, flight *f, int64_t count, const ls_collective_options *with)
{
    const ls__plan_operation *o = f->operation;
    const int root = o->root % f->size;
    const int to = (f->rank + root) % f->size, back = (f->rank + f->size - root) % f->size;
    const int from = o->kind == LS__PLAN_ANY_SOURCE ? LS_ANY_SOURCE : back, tag = f->number;
    void *out = f->out != NULL ? f->out : f->in;
    const ls_dtype t = o->dtype;
    (void)p;
    if (is_uneven(f)) {
        return ls__uneven_start(o, &f->uneven, f->group, f->in, f->out, with, &f->work);
    }
    switch (o->kind) {
    case LS__PLAN_ALL_TO_ALL:
        return ls_all_to_all(f->group, f->in, out, count, t, with, &f->work);
    case LS__PLAN_SCAN:
        return ls_scan(f->group, f->in, out, count, t, o->op, with, &f->work);
    case LS__PLAN_EXSCAN:
        return ls_exscan(f->group, f->in, out, count, t, o->op, with, &f->work);
    case LS__PLAN_REDUCE:
        return ls_reduce(f->group, f->in, f->out, count, t, o->op, root, with, &f->work);
    case LS__PLAN_GATHER:
        return ls_gather(f->group, f->in, f->out, count, t, root, with, &f->work);
    case LS__PLAN_SCATTER:
        return ls_scatter(f->group, f->in, f->out, count, t, root, with, &f->work);
    case LS__PLAN_BARRIER:
        return ls_barrier(f->group, with, &f->work);
    default:
        LS_TRY(ls_send(f->group, f->in, count, t, to, tag, NULL, &f->work));
        return ls_recv(f->group, f->out, o->count, t, from, tag, NULL, &f->other);
    }
}

/* The call, with what the plan wants wrong about it. */
static ls_status start(player *p, flight *f)
{
    const ls__plan_operation *o = f->operation;
    const ls__plan_wrong how = p->wrong != NULL ? p->wrong->how : LS__WRONG_KINDS;
    const int64_t count = how == LS__WRONG_COUNT ? o->count - 1 : o->count;
    const ls_dtype dtype = how == LS__WRONG_DTYPE ? ls__oracle_other_dtype(o->dtype) : o->dtype;
    const ls_reduce_op op = how != LS__WRONG_OP ? o->op : o->op == LS_MAX ? LS_MIN : LS_MAX;
    ls_collective_options with = {.size = sizeof with,
                                  .divisor = o->divisor,
                                  .factor = ls__oracle_factor(f->rank),
                                  .tag = how == LS__WRONG_TAG ? "another" : NULL,
                                  .algorithm = o->algorithm};
    if (how == LS__WRONG_OPERATION) {
        f->another = true;
        with.algorithm = NULL;
        return ls_broadcast(f->group, f->in, count, dtype, 0, &with, &f->work);
    }
    if (how == LS__WRONG_DTYPE || how == LS__WRONG_OP) {
        with.divisor = 0; /* has no meaning then, which is said before anything is compared */
    }
    switch (o->kind) {
    case LS__PLAN_DOUBLING:
        with.algorithm = "recursive_doubling";
        return ls_all_reduce(f->group, f->in, f->in, count, dtype, op, &with, &f->work);
    case LS__PLAN_ALL_REDUCE:
    case LS__PLAN_DIVIDED:
        return ls_all_reduce(f->group, f->in, f->in, count, dtype, op, &with, &f->work);
    case LS__PLAN_REDUCE_SCATTER:
        return ls_reduce_scatter(f->group, f->in, f->out, count, dtype, op, &with, &f->work);
    case LS__PLAN_ALL_GATHER:
        return ls_all_gather(f->group, f->in, f->out, count, dtype, &with, &f->work);
    case LS__PLAN_BINOMIAL:
        with.algorithm = "binomial";
        return ls_broadcast(f->group, f->in, count, dtype, o->root % f->size, &with, &f->work);
    case LS__PLAN_BROADCAST:
        return ls_broadcast(f->group, f->in, count, dtype, o->root % f->size, &with, &f->work);
    default:
        return start_other(p, f, count, &with);
    }
}

static void say_wrong_bits(const player *p, const flight *f, int64_t i)
{
    const ls__plan_operation *o = f->operation;
    ls__sim_stop("wrong bits: operation %d (%s of %s, %s, by %s, of %lld on a group of %d) on rank "
                 "%d: element %lld",
                 f->number, ls__plan_kind_name(o->kind), ls_dtype_name(o->dtype),
                 ls_reduce_op_name(o->op), o->algorithm != NULL ? o->algorithm : "choice",
                 (long long)o->count, f->size, p->rank, (long long)i);
}

/* Every element. */
static void check_result(const player *p, const flight *f)
{
    const unsigned char *out = f->out != NULL ? f->out : f->in;
    const size_t size = ls_dtype_size(f->operation->dtype);
    if (is_uneven(f)) {
        const int64_t bad = ls__uneven_wrong(f->operation, &f->uneven, out);
        if (bad >= 0) {
            say_wrong_bits(p, f, bad);
        }
        return;
    }
    for (int64_t i = 0; i < f->out_count; i++) {
        unsigned char want[sizeof(double)];
        wanted(f, i, want);
        if (memcmp(out + (size_t)i * size, want, size) != 0) {
            say_wrong_bits(p, f, i);
            return;
        }
    }
}

static ls_status wait_for(player *p, ls_work *work, int number)
{
    const ls__wait_begin begun = ls__wait_begins();
    const ls_status status = work != NULL ? ls_work_wait(work) : LS_OK;
    ls__wait_ends(p->outcome, begun, number);
    return status;
}

static void land(player *p, flight *f)
{
    (void)failed(p, wait_for(p, f->work, f->number));
    (void)failed(p, wait_for(p, f->other, f->number));
    if (p->status == LS_OK && !f->another) {
        check_result(p, f);
    }
    give_memory(f->in, f->in_bytes, f->in_shared);
    give_memory(f->out, f->out_bytes, f->out_shared);
    *f = (flight){0};
}

static void land_all(player *p)
{
    for (int i = 0; i < FLIGHTS; i++) {
        if (p->flight[i].operation != NULL) {
            land(p, &p->flight[i]);
        }
    }
}

/* ---- calls that block ----------------------------------------------------------------------- */

enum { AGAIN = 4, AGAIN_COUNT = 40 };

static bool has_wrong_calls(const ls__plan *plan)
{
    for (int i = 0; i < plan->faults; i++) {
        if (plan->fault[i].kind == LS__FAULT_WRONG) {
            return true;
        }
    }
    return false;
}

/* A small reduction again and again, so that it runs inline (comm/engine/one_shot.c): before some
 * operations of plans in which all ranks make the same calls. */
static ls_status call_again(player *p, const flight *f)
{
    const ls__plan_operation *o = f->operation;
    const int count = o->id % 2 == 0 ? AGAIN : AGAIN_COUNT;
    const size_t size = ls_dtype_size(o->dtype);
    const bool again = o->id % 3 == 0 && !o->burst && !has_wrong_calls(p->plan);
    for (int n = 0; n < AGAIN && again; n++) {
        _Alignas(double) unsigned char x[AGAIN_COUNT * sizeof(double)];
        for (int i = 0; i < count; i++) {
            ls__oracle_value(o, f->rank, i, x + (size_t)i * size);
        }
        const ls__wait_begin begun = ls__wait_begins();
        LS_TRY(ls_all_reduce(f->group, x, x, count, o->dtype, o->op,
                             LS_OPTIONS(ls_collective_options, .divisor = o->divisor,
                                        .factor = ls__oracle_factor(f->rank)),
                             NULL));
        ls__wait_ends(p->outcome, begun, f->number);
        for (int i = 0; i < count; i++) {
            unsigned char want[sizeof(double)];
            ls__oracle_reduced(o, i, f->size, want);
            if (memcmp(x + (size_t)i * size, want, size) != 0) {
                say_wrong_bits(p, f, -1 - i);
            }
        }
    }
    return LS_OK;
}

/* ---- groups -------------------------------------------------------------------------------- */

/* Group 1: all, in another order. Group 2: the even or the odd ranks. */
static ls_status make_second(player *p)
{
    int ranks[LS__PLAN_RANKS_MAX];
    for (int r = 0; r < p->plan->ranks; r++) {
        ranks[r] = p->plan->ranks - 1 - r;
    }
    return ls_group_new(ls_world(), ranks, p->plan->ranks, NULL, &p->group[1]);
}

static ls_status make_halves(player *p)
{
    for (int half = 0; half < 2 && half < p->plan->ranks; half++) {
        int ranks[LS__PLAN_RANKS_MAX], count = 0;
        ls_group *made = NULL;
        for (int r = half; r < p->plan->ranks; r += 2) {
            ranks[count++] = r;
        }
        LS_TRY(ls_group_new(ls_world(), ranks, count, "half", &made));
        p->group[2] = made != NULL ? made : p->group[2];
    }
    return LS_OK;
}

static ls_status regroup(player *p)
{
    land_all(p);
    if (p->status != LS_OK) {
        return LS_OK;
    }
    ls_group *old = p->group[1];
    p->group[1] = NULL;
    LS_TRY(ls_group_free(old));
    return make_second(p);
}

static ls_status make_groups(player *p)
{
    p->group[0] = ls_world();
    if (!p->plan->groups) {
        return LS_OK;
    }
    LS_TRY(make_second(p));
    return make_halves(p);
}

/* ---- the script ---------------------------------------------------------------------------- */

static void play_operation(player *p, int number)
{
    const ls__plan_operation *o = &p->plan->operation[number];
    flight *f =
        &p->flight[o->burst ? (uint64_t)number % FLIGHTS : ls__sim_below(&p->dice, FLIGHTS)];
    p->outcome->operation = number;
    if (f->operation != NULL) {
        land(p, f);
    }
    if (p->status == LS_OK && o->kind == LS__PLAN_REGROUP) {
        (void)failed(p, regroup(p));
        return;
    }
    if (p->status != LS_OK) {
        return;
    }
    *f = (flight){.operation = o, .number = number, .group = p->group[o->group]};
    f->rank = ls_group_rank(f->group);
    f->size = ls_group_size(f->group);
    if (!failed(p, call_again(p, f)) && prepare(p, f) && !failed(p, start(p, f)) &&
        (o->wait || (!o->burst && ls__sim_below(&p->dice, 6) == 0))) {
        land(p, f);
    }
}

/* What the plan has this rank do instead; true: nothing more of this operation. */
static bool play_fault(player *p, ls__fault *f)
{
    f->done = true;
    f->at_ns = ls__sim->now_ns;
    switch (f->kind) {
    case LS__FAULT_EXIT:
        p->outcome->reported = true;
        ls__sim_die(ls__sim_current(), ls__sim_exited(f->code));
        ls__sim_switch(); /* never comes back */
        return true;
    case LS__FAULT_STOP:
        ls__sim_kill(p->plan->node[p->plan->host_of[p->rank]].front, SIGTERM);
        return false;
    case LS__FAULT_ABORT:
        (void)failed(p, ls_group_abort(p->group[p->plan->operation[f->operation].group],
                                       "the simulation wants it"));
        return false;
    default:
        p->wrong = f;
        return f->how == LS__WRONG_MISSING;
    }
}

/* True: all ranks have agreed to stop. */
static bool train(player *p, int operation)
{
    bool stop = false;
    if (!p->plan->trains || p->status != LS_OK || (operation + 1) % p->plan->train_every != 0) {
        return false;
    }
    const ls__wait_begin begun = ls__wait_begins();
    if (!failed(p, ls__trainer_step(&p->trainer, &stop)) && stop) {
        p->outcome->stopped_at = p->trainer.steps;
    }
    ls__wait_ends(p->outcome, begun, operation);
    return stop;
}

static void play(player *p)
{
    for (int i = 0; i < p->plan->operations && p->status == LS_OK; i++) {
        ls__fault *fault = own_fault(p, i);
        p->wrong = NULL;
        if (fault == NULL || !play_fault(p, fault)) {
            play_operation(p, i);
        }
        if (p->plan->saves && p->status == LS_OK && (i + 1) % p->plan->save_every == 0) {
            (void)failed(p, ls__saver_save(&p->saver, i + 1));
        }
        if (p->plan->pipes && p->status == LS_OK && (i + 1) % p->plan->pipe_every == 0) {
            (void)failed(p, ls__stager_call(&p->stager));
        }
        if (train(p, i)) {
            break;
        }
    }
    land_all(p);
    if (p->plan->pipes && p->status == LS_OK) {
        (void)failed(p, ls__stager_end(&p->stager));
    }
    if (p->plan->trains && p->status == LS_OK) {
        (void)failed(p, ls__trainer_end(&p->trainer));
    }
    if (p->plan->saves && p->status == LS_OK) {
        (void)failed(p, ls__saver_end(&p->saver));
    }
}

static void leave(player *p)
{
    if (p->saver.checkpoint != NULL) {
        (void)ls__saver_end(&p->saver); /* after a save that failed on all; frees in any case */
    }
    for (int g = LS__PLAN_GROUPS - 1; g > 0; g--) {
        if (p->group[g] != NULL) {
            (void)failed(p, ls_group_free(p->group[g]));
        }
    }
    (void)failed(p, ls_finalize());
    p->outcome->finalized = true;
}

static int own_rank(void)
{
    const ls__sim_process *self = ls__sim_current();
    for (int i = 0; i < self->settings; i++) {
        int rank = -1;
        if (sscanf(self->setting[i], "RANK=%d", &rank) == 1) {
            return rank;
        }
    }
    return -1;
}

int ls__player_main(void *arg)
{
    ls__plan *plan = arg;
    player *p = ls__sim_alloc(sizeof *p);
    *p = (player){.plan = plan, .rank = own_rank()};
    LS_ASSERT(p->rank >= 0 && p->rank < plan->ranks);
    p->outcome = &plan->outcome[p->rank];
    p->outcome->process = ls__sim_current();
    p->outcome->began = true;
    p->dice.state = plan->seed ^ (uint64_t)(p->rank + 1) << 40;
    snprintf(p->outcome->process->name, sizeof p->outcome->process->name, "rank %d", p->rank);
    if (failed(p, ls_init(LS_OPTIONS(ls_init_options, .timeout_ms = plan->timeout_ms,
                                     .graceful_stop = plan->trains)))) {
        return 1;
    }
    if (!failed(p, make_groups(p)) &&
        (!plan->saves || !failed(p, ls__saver_begin(&p->saver, plan))) &&
        (!plan->trains || !failed(p, ls__trainer_begin(&p->trainer, plan, p->rank))) &&
        (!plan->pipes || !failed(p, ls__stager_begin(&p->stager, plan, p->rank, p->outcome)))) {
        play(p);
    }
    /* A program that failed may leave, or end as LS_CHECK does. With several groups, and a
     * checkpoint has one, it ends: a collective free would only confuse those who still work in the
     * others. */
    const bool alone = !plan->groups && !plan->trains && !plan->pipes &&
                       (!plan->saves || plan->fault[0].kind == LS__FAULT_DISK);
    if (p->status == LS_OK || (alone && ls__sim_below(&p->dice, 2) == 0)) {
        leave(p);
    }
    report(p, LS_OK, "");
    p->outcome->bytes = ls__sim_current()->bytes;
    p->outcome->fds = ls__sim_current()->open_fds;
    return p->status == LS_OK ? 0 : 1;
}
