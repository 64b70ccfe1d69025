/* SPDX-License-Identifier: Apache-2.0 */
/* Who runs next, and what time it is. See sim.h. */
#include "sim/entries.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"

#define STACK_BYTES ((size_t)256 << 10)

static ls__sim_world world;
ls__sim_world *ls__sim = &world;
int ls__sim_fuel = INT_MAX;
int ls__sim_planted;
char **ls__sim_environ;

static ls__sim_fiber *free_fibers; /* their stacks stay from world to world */
static ls__thread outside_self;

/* Also before the first world: a fork asks for it. */
static LS__CONSTRUCTOR void be_outside(void)
{
    ls__sim_self = &outside_self;
}

/* ---- log ----------------------------------------------------------------------------------- */

static void mix(uint64_t value)
{
    world.hash = (world.hash ^ value) * 0x100000001b3u;
    world.hash ^= world.hash >> 29;
}

void ls__sim_note(const char *format, ...)
{
    if (world.log == NULL) {
        return;
    }
    char line[LS__SIM_TEXT_MAX];
    const ls__sim_process *p = ls__sim_current();
    int used = snprintf(line, sizeof line, "%12.6f %-10s ", (double)world.now_ns * 1e-9,
                        p != NULL ? p->name : "-");
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line + used, sizeof line - (size_t)used, format, args);
    va_end(args);
    world.log(world.log_arg, line);
}

void ls__sim_stop(const char *format, ...)
{
    if (world.over) {
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(world.why, sizeof world.why, format, args);
    va_end(args);
    world.over = true;
    ls__sim_note("over: %s", world.why);
}

/* ---- events -------------------------------------------------------------------------------- */

static bool earlier(const ls__sim_event *a, const ls__sim_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void swap(int a, int b)
{
    const ls__sim_event kept = world.event[a];
    world.event[a] = world.event[b];
    world.event[b] = kept;
}

void ls__sim_at(uint64_t at_ns, void (*fn)(void *a, uint64_t b), void *a, uint64_t b)
{
    if (world.events == world.event_room) {
        world.event_room = world.event_room == 0 ? 256 : 2 * world.event_room;
        world.event = realloc(world.event, (size_t)world.event_room * sizeof *world.event);
        LS_ASSERT(world.event != NULL);
    }
    int i = world.events++;
    world.event[i] = (ls__sim_event){at_ns, world.event_order++, fn, a, b};
    for (; i > 0 && earlier(&world.event[i], &world.event[(i - 1) / 2]); i = (i - 1) / 2) {
        swap(i, (i - 1) / 2);
    }
}

static ls__sim_event take_event(void)
{
    const ls__sim_event first = world.event[0];
    world.event[0] = world.event[--world.events];
    for (int i = 0;;) {
        int least = i;
        for (int c = 2 * i + 1; c <= 2 * i + 2 && c < world.events; c++) {
            least = earlier(&world.event[c], &world.event[least]) ? c : least;
        }
        if (least == i) {
            return first;
        }
        swap(i, least);
        i = least;
    }
}

/* ---- ready and asleep ---------------------------------------------------------------------- */

static void make_ready(ls__sim_fiber *f)
{
    f->state = LS__SIM_READY;
    if (f->slot < 0 && !f->process->stopped) {
        f->slot = world.ready_count;
        world.ready[world.ready_count++] = f;
    }
}

static void not_ready(ls__sim_fiber *f)
{
    if (f->slot >= 0) {
        ls__sim_fiber *last = world.ready[--world.ready_count];
        world.ready[f->slot] = last;
        last->slot = f->slot;
        f->slot = -1;
    }
}

static void forget_reason(ls__sim_fiber *f)
{
    f->word = NULL;
    f->items = NULL;
    f->poller = NULL;
    f->joins = NULL;
}

static void wake_now(void *fiber, uint64_t number)
{
    ls__sim_fiber *f = fiber;
    if (f->state == LS__SIM_ASLEEP && (uint64_t)f->number == number && f->word == f) {
        forget_reason(f);
        make_ready(f);
    }
}

void ls__sim_wake(ls__sim_fiber *f)
{
    if (f->state != LS__SIM_ASLEEP || f->word == f) {
        return;
    }
    f->timed_out = false;
    const uint64_t late =
        world.pace.wake_ns > 0 ? ls__sim_below(&world.choice, world.pace.wake_ns) : 0;
    forget_reason(f);
    if (late < 1000) {
        make_ready(f);
        return;
    }
    f->word = f; /* woken, and not yet running */
    f->wake_ns = LS__NEVER;
    ls__sim_at(world.now_ns + late, wake_now, f, (uint64_t)f->number);
}

/* Whose time has come, and when the next one's will. */
static void wake_due(void)
{
    uint64_t next = LS__NEVER;
    for (int i = 0; i < world.fibers; i++) {
        ls__sim_fiber *f = world.fiber[i];
        if (f->state != LS__SIM_ASLEEP) {
            continue;
        }
        if (f->wake_ns <= world.now_ns) {
            f->timed_out = true;
            forget_reason(f);
            make_ready(f);
        } else if (f->wake_ns < next) {
            next = f->wake_ns;
        }
    }
    world.next_wake_ns = next;
}

static void let_time_act(void)
{
    while (world.events > 0 && world.event[0].at_ns <= world.now_ns && !world.over) {
        const ls__sim_event e = take_event();
        e.fn(e.a, e.b);
    }
    if (world.next_wake_ns <= world.now_ns) {
        wake_due();
    }
}

/* Nobody can run: the clock jumps to what comes next. False: nothing will. */
static bool jump(void)
{
    wake_due(); /* next_wake_ns is only a bound */
    if (world.ready_count > 0) {
        return true;
    }
    uint64_t next = world.next_wake_ns;
    if (world.events > 0 && world.event[0].at_ns < next) {
        next = world.event[0].at_ns;
    }
    if (next == LS__NEVER) {
        ls__sim_stop("deadlock: all threads sleep and nothing will wake them");
        return false;
    }
    if (next > world.limit_ns) {
        ls__sim_stop("hang: %.3f s have passed and the run has not ended",
                     (double)world.limit_ns * 1e-9);
        return false;
    }
    if (next > world.now_ns) {
        const uint64_t slept = next - world.now_ns;
        if (slept > world.pace.latency_ns + world.pace.jitter_ns) { /* no message was on its way */
            world.idle_ns += slept;
        }
        world.now_ns = next;
    }
    return true;
}

/* ---- switching ----------------------------------------------------------------------------- */

void ls__sim_refuel(void)
{
    const int mean = world.pace.atomics;
    ls__sim_fuel = mean == 0 ? INT_MAX : (int)ls__sim_below(&world.choice, 2 * (uint64_t)mean);
}

static ls__sim_fiber *choose(void)
{
    ls__sim_fiber *f = world.ready[ls__sim_below(&world.choice, (uint64_t)world.ready_count)];
    if (f->process == world.pace.slow && ls__sim_below(&world.choice, 16) != 0) {
        f = world.ready[ls__sim_below(&world.choice, (uint64_t)world.ready_count)];
    }
    return f;
}

static void enter(ls__sim_fiber *f)
{
    world.running = f;
    ls__sim_self = &f->self;
    ls__sim_environ = f->process->setting;
    ls__sim_refuel();
}

static void leave_world(ls__fiber_context *from, bool last)
{
    world.running = NULL;
    ls__sim_self = &outside_self;
    ls__sim_fuel = INT_MAX;
    ls__fiber_switch(from, &world.outside, last);
}

/* The next fiber to run; NULL: the run is over. */
static ls__sim_fiber *next_fiber(void)
{
    let_time_act();
    while (world.ready_count == 0 && !world.over) {
        if (world.living == 0 || !jump()) {
            return NULL;
        }
        let_time_act();
    }
    if (++world.switches > world.limit_switches) {
        ls__sim_stop("hang: %llu switches and the run has not ended",
                     (unsigned long long)world.switches);
    }
    return world.over ? NULL : choose();
}

static void go_on(ls__sim_fiber *from, bool last)
{
    ls__sim_fiber *to = next_fiber();
    if (to == from && to != NULL) {
        enter(to);
        return;
    }
    if (to == NULL) {
        leave_world(&from->context, last);
        return; /* never */
    }
    mix((uint64_t)to->number << 48 ^ world.now_ns);
    enter(to);
    if (world.log_switches) {
        ls__sim_note("runs thread %d", to->number);
    }
    ls__fiber_switch(&from->context, &to->context, last);
}

void ls__sim_switch(void)
{
    go_on(world.running, false);
}

void ls__sim_run_first(ls__sim_fiber *f)
{
    ls__sim_fiber *from = world.running;
    enter(f);
    ls__fiber_switch(&from->context, &f->context, false);
}

bool ls__sim_sleep(uint64_t deadline_ns)
{
    ls__sim_fiber *f = world.running;
    f->state = LS__SIM_ASLEEP;
    f->wake_ns = deadline_ns;
    f->timed_out = false;
    if (deadline_ns < world.next_wake_ns) {
        world.next_wake_ns = deadline_ns;
    }
    not_ready(f);
    go_on(f, false);
    return f->timed_out;
}

void ls__sim_atomic_point(void)
{
    if (world.running == NULL || world.running->process->fresh) {
        ls__sim_fuel = INT_MAX;
        return;
    }
    world.now_ns += 20;
    ls__sim_switch();
}

void ls__sim_call(const char *entry)
{
    ls__sim_fiber *f = world.running;
    ls__sim_process *p = f->process;
    p->fresh = false;
    world.calls++;
    p->calls++;
    if (world.log_switches) {
        ls__sim_note("thread %d: %s", f->number, entry);
    }
    if (world.pace.call_ns > 0) {
        world.now_ns += 1 + ls__sim_below(&world.choice, world.pace.call_ns) + f->slow_ns;
    }
    if (world.watch != NULL) {
        world.watch(world.watch_arg, p);
    }
    if (p->dead || p->stopped || ls__sim_chance(&world.choice, world.pace.switch_chance)) {
        ls__sim_switch();
    }
}

ls__sim_process *ls__sim_current(void)
{
    return world.running != NULL ? world.running->process : NULL;
}

/* ---- fibers -------------------------------------------------------------------------------- */

static void fiber_main(void *arg)
{
    ls__sim_fiber *f = arg;
    f->fn(f->arg);
    f->state = LS__SIM_OVER;
    not_ready(f);
    for (int i = 0; i < world.fibers; i++) {
        if (world.fiber[i]->joins == f) {
            ls__sim_wake(world.fiber[i]);
        }
    }
    go_on(f, true);
    __builtin_unreachable();
}

static ls__sim_fiber *take_fiber(void)
{
    ls__sim_fiber *f = free_fibers;
    if (f != NULL) {
        free_fibers = f->next_free;
        return f;
    }
    f = calloc(1, sizeof *f);
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LS_ASSERT(f != NULL && stack != MAP_FAILED);
    (void)mprotect(stack, 4096, PROT_NONE); /* an overflow is a fault, not another's bytes */
    f->context.stack = stack;
    return f;
}

ls__sim_fiber *ls__sim_fiber_new(ls__sim_process *process, void (*fn)(void *arg), void *arg)
{
    LS_ASSERT(world.fibers < LS__SIM_FIBERS_MAX);
    ls__sim_fiber *f = take_fiber();
    void *stack = f->context.stack;
    memset(f, 0, sizeof *f);
    f->process = process;
    f->number = world.fibers;
    f->fn = fn;
    f->arg = arg;
    f->slot = -1;
    ls__fiber_prepare(&f->context, stack, STACK_BYTES, fiber_main, f);
    world.fiber[world.fibers++] = f;
    process->fibers++;
    make_ready(f);
    return f;
}

void ls__sim_fiber_end(ls__sim_fiber *f)
{
    f->state = LS__SIM_OVER;
    forget_reason(f);
    not_ready(f);
}

void ls__sim_freeze(ls__sim_process *process, bool stopped)
{
    process->stopped = stopped;
    for (int i = 0; i < world.fibers; i++) {
        ls__sim_fiber *f = world.fiber[i];
        if (f->process != process || f->state != LS__SIM_READY) {
            continue;
        }
        if (stopped) {
            not_ready(f);
        } else {
            make_ready(f);
        }
    }
}

/* ---- a world's life ------------------------------------------------------------------------ */

/* base/env.h has grown, and env.c has not: the call would be one of NULL. */
static void check_table(void)
{
    void *entry[sizeof ls__sim_env / sizeof(void *)];
    memcpy(entry, &ls__sim_env, sizeof entry);
    for (size_t i = 0; i < sizeof entry / sizeof *entry; i++) {
        if (entry[i] == NULL) {
            fprintf(stderr, "tests/sim/env.c lacks entry %zu of the table in base/env.h\n", i);
            abort();
        }
    }
}

void ls__sim_begin(uint64_t seed)
{
    check_table();
    ls__sim_event *event = world.event;
    const int room = world.event_room;
    memset(&world, 0, sizeof world);
    world.event = event;
    world.event_room = room;
    world.seed = seed;
    world.random.state = seed * 0x9e3779b97f4a7c15u + 1;
    world.choice.state = seed * 0xbf58476d1ce4e5b9u + 2;
    world.now_ns = 1000000000;
    world.next_wake_ns = LS__NEVER;
    world.next_pid = 100;
    world.limit_ns = LS__NEVER - 1;
    world.limit_switches = UINT64_MAX;
    ls__list_init(&world.listeners);
    ls__list_init(&world.inodes);
    ls__list_init(&world.changes);
    ls__sim_memory_begin();
}

void ls__sim_run(void)
{
    ls__sim_fiber *first = next_fiber();
    if (first != NULL) {
        enter(first);
        ls__fiber_switch(&world.outside, &first->context, false);
    }
    world.running = NULL;
    ls__sim_self = &outside_self;
    ls__sim_fuel = INT_MAX;
}

void ls__sim_end(void)
{
    for (int i = 0; i < world.fibers; i++) {
        world.fiber[i]->next_free = free_fibers;
        free_fibers = world.fiber[i];
    }
    world.fibers = 0;
    ls__sim_memory_end();
}
