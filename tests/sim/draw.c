/* SPDX-License-Identifier: Apache-2.0 */
/* Drawing a plan: what is run and what goes wrong. */
#include <string.h>

#include "comm/algorithm/registry.h"
#include "comm/program/program.h"
#include "kernel/reduce/reduce.h"
#include "sim/scenario.h"

#define OPERATIONS_MIN 20
#define MILLISECOND 1000000ull

const char *ls__fault_name(ls__fault_kind kind)
{
    static const char *const names[LS__FAULT_KINDS] = {
        "slow",  "stall", "freeze",  "kill", "exit", "wrong", "abort", "memory", "agent", "front",
        "reset", "cut",   "one way", "gap",  "host", "flip",  "stop",  "disk",   "power"};
    return names[kind];
}

const char *ls__plan_kind_name(ls__plan_kind kind)
{
    static const char *const names[LS__PLAN_KINDS] = {"all_reduce",
                                                      "divided all_reduce",
                                                      "all_reduce by doubling",
                                                      "reduce_scatter",
                                                      "all_gather",
                                                      "broadcast",
                                                      "binomial broadcast",
                                                      "reduce",
                                                      "gather",
                                                      "scatter",
                                                      "barrier",
                                                      "exchange",
                                                      "regroup",
                                                      "all_to_all",
                                                      "scan",
                                                      "exscan",
                                                      "exchange with anybody",
                                                      "all_to_all_v",
                                                      "all_gather_v",
                                                      "reduce_scatter_v",
                                                      "gather_v",
                                                      "scatter_v"};
    return names[kind];
}

static int draw_ranks(ls__sim_random *r)
{
    /* Few ranks find most; many find what few cannot. */
    static const int often[] = {2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8};
    if (ls__sim_below(r, 24) == 0) {
        return 9 + (int)ls__sim_below(r, 8);
    }
    return often[ls__sim_below(r, sizeof often / sizeof *often)];
}

static int64_t draw_count(ls__sim_random *r, int ranks)
{
    switch (ls__sim_below(r, 16)) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2: /* beyond one shot */
        return 4097 + (int64_t)ls__sim_below(r, 4096);
    case 3:
        return ls__sim_below(r, 24) == 0 ? 80000 / ranks + (int64_t)ls__sim_below(r, 99) : ranks;
    default:
        return 1 + (int64_t)ls__sim_below(r, 150);
    }
}

static void draw_operations(ls__plan *plan, ls__sim_random *r)
{
    plan->operations = OPERATIONS_MIN + (int)ls__sim_below(r, 16);
    for (int i = 0; i < plan->operations; i++) {
        ls__plan_operation *o = &plan->operation[i];
        o->id = ls__sim_draw(r) & ~LS__ORACLE_WHOLE;
        o->kind = (ls__plan_kind)ls__sim_below(r, LS__PLAN_REGROUP + (plan->groups ? 1 : 0));
        if (o->kind == LS__PLAN_REGROUP && ls__sim_below(r, 3) != 0) {
            o->kind = LS__PLAN_ALL_REDUCE;
        }
        o->group = plan->groups ? (int)ls__sim_below(r, LS__PLAN_GROUPS) : 0;
        o->count = draw_count(r, plan->ranks);
        o->root = (int)ls__sim_below(r, (uint64_t)plan->ranks);
        o->wait = ls__sim_below(r, 3) == 0;
    }
}

/* LS__OP_COUNT: is none, or has its algorithm already */
static ls__operation operation_of(ls__plan_kind kind)
{
    switch (kind) {
    case LS__PLAN_ALL_REDUCE:
    case LS__PLAN_DIVIDED:
        return LS__OP_ALL_REDUCE;
    case LS__PLAN_REDUCE_SCATTER:
        return LS__OP_REDUCE_SCATTER;
    case LS__PLAN_ALL_GATHER:
        return LS__OP_ALL_GATHER;
    case LS__PLAN_BROADCAST:
        return LS__OP_BROADCAST;
    case LS__PLAN_REDUCE:
        return LS__OP_REDUCE;
    case LS__PLAN_GATHER:
        return LS__OP_GATHER;
    case LS__PLAN_SCATTER:
        return LS__OP_SCATTER;
    case LS__PLAN_BARRIER:
        return LS__OP_BARRIER;
    case LS__PLAN_ALL_TO_ALL:
        return LS__OP_ALL_TO_ALL;
    case LS__PLAN_SCAN:
        return LS__OP_SCAN;
    case LS__PLAN_EXSCAN:
        return LS__OP_EXSCAN;
    default:
        return ls__uneven_operation(kind);
    }
}

/* One of the registry that runs between these hosts; NULL: there is none. */
static const ls__algorithm *draw_algorithm(const ls__plan *plan, ls__operation operation,
                                           ls__sim_random *r)
{
    const ls__algorithm *drawn = NULL;
    int count = 0, seen = 0;
    const ls__algorithm *const *all = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        const bool fits = all[a]->operation == operation &&
                          (plan->hosts == 1 || (all[a]->memories & LS__IN_MESSAGES) != 0);
        if (fits && ls__sim_below(r, (uint64_t)++seen) == 0) {
            drawn = all[a];
        }
    }
    return drawn;
}

/* A quarter of the operations asks for an algorithm; from dice of its own, as draw_saves. */
static void draw_algorithms(ls__plan *plan, uint64_t seed)
{
    ls__sim_random r = {seed * 0xa0761d6478bd642fu + 17};
    for (int i = 0; i < plan->operations; i++) {
        ls__plan_operation *o = &plan->operation[i];
        const ls__operation operation = operation_of(o->kind);
        const ls__algorithm *drawn =
            ls__sim_below(&r, 4) == 0 ? draw_algorithm(plan, operation, &r) : NULL;
        if (drawn != NULL) {
            o->algorithm = drawn->name;
            o->id |= drawn->exact ? 0 : LS__ORACLE_WHOLE;
        }
    }
}

static bool is_called_wrongly(const ls__plan *plan, int operation)
{
    for (int i = 0; i < plan->faults; i++) {
        if (plan->fault[i].kind == LS__FAULT_WRONG && plan->fault[i].operation == operation) {
            return true;
        }
    }
    return false;
}

/* In half of the seeds a third of the operations becomes others, from dice of its own: what was
 * added later, so that the other half is as it was. */
static void draw_others(ls__plan *plan, uint64_t seed)
{
    ls__sim_random r = {seed * 0x94d049bb133111ebu + 19};
    const bool some = ls__sim_below(&r, 2) == 0;
    for (int i = 0; i < plan->operations && some; i++) {
        ls__plan_operation *o = &plan->operation[i];
        const uint64_t drawn = ls__sim_below(&r, 3 * (LS__PLAN_KINDS - LS__PLAN_ALL_TO_ALL));
        if (drawn < LS__PLAN_KINDS - LS__PLAN_ALL_TO_ALL && o->kind != LS__PLAN_REGROUP &&
            !is_called_wrongly(plan, i)) {
            o->kind = (ls__plan_kind)(LS__PLAN_ALL_TO_ALL + drawn);
        }
    }
}

static bool reduces(ls__plan_kind kind)
{
    return kind == LS__PLAN_ALL_REDUCE || kind == LS__PLAN_REDUCE_SCATTER ||
           kind == LS__PLAN_REDUCE || kind == LS__PLAN_SCAN || kind == LS__PLAN_EXSCAN ||
           kind == LS__PLAN_REDUCE_SCATTER_V;
}

/* An operator that the dtype has; scans have no average. */
static ls_reduce_op draw_operator(const ls__plan_operation *o, ls__sim_random *r)
{
    for (;;) {
        const ls_reduce_op op = (ls_reduce_op)ls__sim_below(r, LS_REDUCE_OP_COUNT);
        const bool scan = o->kind == LS__PLAN_SCAN || o->kind == LS__PLAN_EXSCAN;
        if (ls__reduce_supported(o->dtype, op) && !(scan && op == LS_AVG)) {
            return op;
        }
    }
}

/* In two thirds of the seeds half of the operations has another dtype and operator than a sum of
 * float32; from dice of its own, as draw_others. */
static void draw_types(ls__plan *plan, uint64_t seed)
{
    ls__sim_random r = {seed * 0xe7037ed1a0b428dbu + 23};
    const bool some = ls__sim_below(&r, 3) != 0;
    for (int i = 0; i < plan->operations; i++) {
        ls__plan_operation *o = &plan->operation[i];
        const bool divides = o->kind == LS__PLAN_DIVIDED || o->kind == LS__PLAN_DOUBLING;
        o->divisor = divides ? 3 : 0;
        if (!some || ls__sim_below(&r, 2) == 0) {
            continue;
        }
        o->dtype = (ls_dtype)ls__sim_below(&r, divides ? LS_BFLOAT16 + 1 : LS_DTYPE_COUNT);
        o->op = reduces(o->kind) ? draw_operator(o, &r) : LS_SUM;
    }
}

static bool is_collective(const ls__plan_operation *o)
{
    return o->kind != LS__PLAN_REGROUP && o->kind != LS__PLAN_EXCHANGE;
}

/* Whether the next call on the group could take the place of this one: without tags calls of the
 * same kind, type and size are the same call (docs/troubleshooting.md). */
static bool next_is_alike(const ls__plan *plan, int i)
{
    const ls__plan_operation *o = &plan->operation[i], *next = o + 1;
    const ls__plan_operation *end = &plan->operation[plan->operations];
    while (next < end && (!is_collective(next) || next->group != o->group)) {
        next++;
    }
    return next < end && next->kind == o->kind && next->count == o->count &&
           next->dtype == o->dtype && next->op == o->op;
}

static bool may_be_wrong(const ls__plan *plan, int i, ls__plan_wrong how)
{
    const ls__plan_operation *o = &plan->operation[i];
    const bool reduces = o->kind <= LS__PLAN_REDUCE_SCATTER;
    if (how == LS__WRONG_MISSING) {
        return is_collective(o) && !next_is_alike(plan, i);
    }
    return reduces && o->count > 1 && o->group < 2;
}

static void draw_fault(ls__plan *plan, ls__sim_random *r, ls__fault *f)
{
    /* How often each kind, in the order of the enum. */
    static const int often[LS__FAULT_KINDS] = {3, 3, 2, 8, 3, 5, 2, 3, 1, 1, 4, 2, 2, 3, 2};
    int sum = 0, drawn = 0;
    const int kinds = plan->hosts > 1 ? LS__FAULT_FLIP : LS__FAULT_RESET;
    for (int k = 0; k < kinds; k++) {
        sum += often[k];
    }
    drawn = (int)ls__sim_below(r, (uint64_t)sum);
    int kind = 0;
    while (drawn >= often[kind]) {
        drawn -= often[kind++];
    }
    *f = (ls__fault){.kind = (ls__fault_kind)kind};
    f->rank = (int)ls__sim_below(r, (uint64_t)plan->ranks);
    f->host = (int)ls__sim_below(r, (uint64_t)plan->hosts);
    f->other = (f->host + 1 + (int)ls__sim_below(r, (uint64_t)plan->hosts)) % plan->hosts;
    f->other = f->other != f->host ? f->other : (f->host + 1) % plan->hosts;
    f->operation = (int)ls__sim_below(r, (uint64_t)plan->operations);
    f->code = (int)ls__sim_below(r, 2) * 3;
    /* Every stretch of a rank's life: the start is short and the end is far. */
    f->call = 1 + ls__sim_below(r, (uint64_t)40 << ls__sim_below(r, 7));
    const uint64_t limit = (uint64_t)plan->timeout_ms * MILLISECOND;
    f->for_ns = f->kind == LS__FAULT_FREEZE ? limit * 2 + ls__sim_below(r, limit)
                                            : MILLISECOND + ls__sim_below(r, limit / 3);
    if (f->kind == LS__FAULT_WRONG) {
        f->how = (ls__plan_wrong)ls__sim_below(r, LS__WRONG_KINDS);
        for (int tries = 0; tries < 100 && !may_be_wrong(plan, f->operation, f->how); tries++) {
            f->operation = (int)ls__sim_below(r, (uint64_t)plan->operations);
        }
        if (!may_be_wrong(plan, f->operation, f->how)) {
            f->kind = LS__FAULT_KILL;
        }
    }
}

static void draw_pace(const ls__plan *plan, ls__sim_random *r)
{
    ls__sim_pace *pace = &ls__sim->pace;
    static const double chances[] = {0.02, 0.1, 0.1, 0.3};
    static const int atomics[] = {0, 400, 150, 60};
    pace->switch_chance = chances[ls__sim_below(r, 4)];
    pace->atomics = atomics[ls__sim_below(r, 4)];
    pace->call_ns = 100 + ls__sim_below(r, 900);
    pace->yield_ns = 20000 + ls__sim_below(r, 40000);
    pace->wake_ns = ls__sim_below(r, 2) == 0 ? 0 : 60000;
    pace->latency_ns = 20000 + ls__sim_below(r, 400000);
    pace->jitter_ns = 1000 + ls__sim_below(r, 2000000);
    pace->socket_bytes = (size_t)4096 << ls__sim_below(r, 7);
    pace->short_transfers = ls__sim_below(r, 3) == 0;
    (void)plan;
}

/* One host or several; every one has a rank. */
static void draw_hosts(ls__plan *plan, ls__sim_random *r)
{
    const uint64_t most = plan->ranks < 5 ? (uint64_t)plan->ranks : 5;
    const uint64_t drawn = 1 + ls__sim_below(r, most);
    plan->hosts = ls__sim_below(r, 5) < 2 ? 1 : (int)drawn;
    for (int h = 0; h < plan->hosts; h++) {
        plan->on_host[h] = 1;
    }
    for (int extra = plan->hosts; extra < plan->ranks; extra++) {
        plan->on_host[ls__sim_below(r, (uint64_t)plan->hosts)]++;
    }
    for (int h = 0, rank = 0; h < plan->hosts; h++) {
        for (int i = 0; i < plan->on_host[h]; i++) {
            plan->host_of[rank++] = h;
        }
    }
}

/* From dice of its own, so that the rest of a seed's plan is the same with it and without. */
static void draw_saves(ls__plan *plan, uint64_t seed)
{
    ls__sim_random r = {seed * 0x8cb92ba72f3d8dd7u + 13};
    plan->saves = ls__sim_below(&r, 4) == 0;
    plan->save_async = ls__sim_below(&r, 2) == 0;
    plan->save_every = 2 + (int)ls__sim_below(&r, 8);
    const uint64_t fault = ls__sim_below(&r, 3);
    if (!plan->saves || fault == 0) {
        return;
    }
    ls__fault *f = &plan->fault[0];
    *f = (ls__fault){.kind = fault == 1 ? LS__FAULT_DISK : LS__FAULT_POWER};
    plan->faults = 1;
    f->call = 1 + ls__sim_below(&r, (uint64_t)30 << ls__sim_below(&r, 5)); /* of the disk */
    f->code = (int)ls__sim_below(&r, 2);
}

/* On a fifth of the single hosts most operations are small sums, one started right after the other,
 * so that fast ranks come to where they would overwrite what slow ones still read
 * (comm/core/post.c); from dice of its own, as draw_saves. */
static void draw_burst(ls__plan *plan, uint64_t seed)
{
    ls__sim_random r = {seed * 0x1d8e4e27c47d124fu + 37};
    if (ls__sim_below(&r, 5) != 0 || plan->hosts > 1) {
        return;
    }
    for (int i = (int)ls__sim_below(&r, 6); i < plan->operations; i++) {
        ls__plan_operation *o = &plan->operation[i];
        if (!is_called_wrongly(plan, i)) {
            o->kind = LS__PLAN_ALL_REDUCE;
            o->group = 0;
            o->count = 20 + (int64_t)ls__sim_below(&r, 200);
            o->wait = false;
            o->burst = true;
        }
    }
}

/* In a sixth of the seeds with several hosts the first fault becomes a damaged frame; from dice of
 * its own, as draw_saves. */
static void draw_flip(ls__plan *plan, uint64_t seed)
{
    ls__sim_random r = {seed * 0x589965cc75374cc3u + 29};
    if (ls__sim_below(&r, 6) != 0 || plan->hosts == 1 || plan->saves) {
        return;
    }
    plan->fault[0] = (ls__fault){.kind = LS__FAULT_FLIP};
    plan->fault[0].rank = (int)ls__sim_below(&r, (uint64_t)plan->ranks);
    plan->fault[0].call = 1 + ls__sim_below(&r, (uint64_t)40 << ls__sim_below(&r, 7));
}

/* A fifth of the jobs trains between its operations, and a third of those is asked to stop; from
 * dice of its own, as draw_saves. */
static void draw_training(ls__plan *plan, uint64_t seed)
{
    ls__sim_random r = {seed * 0x2545f4914f6cdd1du + 31};
    const bool stops = ls__sim_below(&r, 3) == 0;
    plan->trains = ls__sim_below(&r, 5) == 0;
    plan->train_every = 3 + (int)ls__sim_below(&r, 8);
    if (!plan->trains || !stops || plan->saves || plan->fault[0].kind == LS__FAULT_FLIP) {
        return;
    }
    plan->fault[0] = (ls__fault){.kind = LS__FAULT_STOP};
    plan->fault[0].rank = (int)ls__sim_below(&r, (uint64_t)plan->ranks);
    /* Early: a request that finds a rank behind ls_finalize ends it. */
    plan->fault[0].operation = (int)ls__sim_below(&r, (uint64_t)plan->operations / 2);
    plan->faults = 1;
}

/* A fifth of the jobs runs a pipeline between its operations; from dice of its own, as
 * draw_saves. */
static void draw_pipeline(ls__plan *plan, uint64_t seed)
{
    ls__sim_random r = {seed * 0x94d049bb133111ebu + 41};
    plan->pipes = ls__sim_below(&r, 5) == 0;
    plan->pipe_every = 2 + (int)ls__sim_below(&r, 8);
}

void ls__plan_draw(ls__plan *plan, uint64_t seed, int ranks)
{
    ls__sim_random r = {seed * 0xd6e8feb86659fd93u + 7};
    memset(plan, 0, sizeof *plan);
    plan->seed = seed;
    const int drawn = draw_ranks(&r);
    plan->ranks = ranks > 0 ? ranks : drawn;
    draw_hosts(plan, &r);
    plan->groups = ls__sim_below(&r, 3) == 0;
    plan->timeout_ms = 2000 + (int64_t)ls__sim_below(&r, 8000);
    draw_operations(plan, &r);
    plan->faults = ls__sim_below(&r, 5) == 0 ? 2 : 1;
    for (int i = 0; i < plan->faults; i++) {
        draw_fault(plan, &r, &plan->fault[i]);
    }
    if (plan->faults == 2 && plan->fault[0].kind == LS__FAULT_WRONG &&
        plan->fault[1].kind == LS__FAULT_WRONG) {
        plan->faults = 1; /* two ranks that are wrong alike would be right */
    }
    draw_pace(plan, &r);
    draw_saves(plan, seed);
    draw_flip(plan, seed);
    draw_training(plan, seed);
    draw_pipeline(plan, seed);
    draw_others(plan, seed);
    draw_burst(plan, seed);
    draw_algorithms(plan, seed);
    draw_types(plan, seed);
}
