/* SPDX-License-Identifier: Apache-2.0 */
/* In a steady state nothing is allocated: all that comm.h has beside the plain operations (those:
 * test_groups.c), small and large, in private memory and in registered. */
#include "test.h"

#include <stdatomic.h>

#include <lockstep/comm.h>

#include "base/env.h"
#include "comm/core/comm.h"
#include "comm/runtime/init.h"

#define RANKS 3
#define MOST ((int64_t)60000) /* elements of a block */
#define ROUNDS 20

static _Atomic int allocations;
static ls__env counting;

static void *count_allocate(const ls__env *env, size_t bytes)
{
    (void)env;
    atomic_fetch_add(&allocations, 1);
    return ls__env_posix()->allocate(ls__env_posix(), bytes);
}

typedef struct call {
    float *in, *out;
    int64_t count, counts[RANKS], given[RANKS], taken[RANKS], own;
    int root;
} call;

static void many(const call *c)
{
    void *const apart[] = {c->in, c->in + c->count + 1, c->out};
    const int64_t counts[] = {c->count, c->count, 1};
    CHECK_OK(ls_all_reduce_many(ls_world(), apart, counts, 3, LS_FLOAT32, LS_MAX, NULL, NULL));
    CHECK_OK(ls_broadcast_many(ls_world(), apart, counts, 3, LS_FLOAT32, c->root, NULL, NULL));
}

static void gather_unequal(const call *c)
{
    CHECK_OK(ls_all_gather_v(ls_world(), c->in, c->own, c->out, c->counts, NULL, LS_FLOAT32, NULL,
                             NULL));
    CHECK_OK(ls_gather_v(ls_world(), c->in, c->own, c->out, c->counts, NULL, LS_FLOAT32, c->root,
                         NULL, NULL));
}

static void scatter_unequal(const call *c)
{
    CHECK_OK(ls_reduce_scatter_v(ls_world(), c->in, c->counts, NULL, c->out, LS_FLOAT32, LS_MAX,
                                 NULL, NULL));
    CHECK_OK(ls_scatter_v(ls_world(), c->in, c->counts, NULL, c->out, c->own, LS_FLOAT32, c->root,
                          NULL, NULL));
}

static void all_to_all_unequal(const call *c)
{
    CHECK_OK(ls_all_to_all_v(ls_world(), c->in, c->given, NULL, c->out, c->taken, NULL, LS_FLOAT32,
                             NULL, NULL));
}

static void all_to_all(const call *c)
{
    CHECK_OK(ls_all_to_all(ls_world(), c->in, c->out, c->count, LS_FLOAT32, NULL, NULL));
    CHECK_OK(ls_all_to_all(ls_world(), c->in, c->in, c->count, LS_FLOAT32, NULL, NULL));
}

static void scan(const call *c)
{
    CHECK_OK(ls_scan(ls_world(), c->in, c->out, c->count, LS_FLOAT32, LS_MAX, NULL, NULL));
    CHECK_OK(ls_exscan(ls_world(), c->in, c->out, c->count, LS_FLOAT32, LS_MAX, NULL, NULL));
    CHECK_OK(ls_scan(ls_world(), c->in, c->in, c->count, LS_FLOAT32, LS_MAX, NULL, NULL));
}

static void rooted(const call *c)
{
    CHECK_OK(
        ls_reduce(ls_world(), c->in, c->out, c->count, LS_FLOAT32, LS_MAX, c->root, NULL, NULL));
    CHECK_OK(ls_gather(ls_world(), c->in, c->out, c->count, LS_FLOAT32, c->root, NULL, NULL));
    CHECK_OK(ls_scatter(ls_world(), c->in, c->out, c->count, LS_FLOAT32, c->root, NULL, NULL));
}

static void from_anybody(const call *c)
{
    const int next = (ls_rank() + 1) % RANKS;
    ls_work *work = NULL;
    int source = LS_ANY_SOURCE;
    CHECK_OK(ls_send(ls_world(), c->in, c->count, LS_FLOAT32, next, 5, NULL, &work));
    CHECK_OK(ls_recv_any(ls_world(), c->out, c->count, LS_FLOAT32, 5, NULL, &source));
    CHECK_INT(source, (ls_rank() + RANKS - 1) % RANKS);
    CHECK_OK(ls_work_wait(work));
}

static void of_any_length(const call *c)
{
    const int next = (ls_rank() + 1) % RANKS;
    ls_work *work = NULL;
    CHECK_OK(ls_send(ls_world(), c->in, c->count, LS_FLOAT32, next, 6, NULL, &work));
    CHECK_OK(ls_recv_up_to(ls_world(), c->out, MOST, LS_FLOAT32, (ls_rank() + RANKS - 1) % RANKS, 6,
                           NULL, NULL));
    CHECK_OK(ls_work_wait(work));
}

static const struct use {
    const char *name;
    void (*run)(const call *c);
} uses[] = {{"many", many},
            {"gather_v", gather_unequal},
            {"scatter_v", scatter_unequal},
            {"all_to_all_v", all_to_all_unequal},
            {"all_to_all", all_to_all},
            {"scan", scan},
            {"rooted", rooted},
            {"recv_any", from_anybody},
            {"recv_up_to", of_any_length}};

static void rounds(const struct use *use, float *const *memory)
{
    static const int64_t counts[] = {0, 7, 1500, MOST};
    for (int i = 0; i < ROUNDS; i++) {
        float *const *m = memory + i / 4 % 2 * 2;
        call c = {.in = m[0], .out = m[1], .count = counts[i % 4], .root = i % RANKS};
        for (int r = 0; r < RANKS; r++) {
            c.counts[r] = r == c.root ? c.count : c.count / 3;
            c.given[r] = (ls_rank() + r) % 2 == 0 ? c.count : 0;
            c.taken[r] = c.given[r];
        }
        c.own = c.counts[ls_rank()];
        use->run(&c);
    }
}

/* The largest number of allocations of a rank in some rounds, the same for all ranks. */
static int allocations_of(const struct use *use, float *const *memory)
{
    const int before = atomic_load(&allocations);
    rounds(use, memory);
    int allocated = atomic_load(&allocations) - before;
    CHECK_OK(ls_all_reduce(ls_world(), &allocated, &allocated, 1, LS_INT32, LS_MAX, NULL, NULL));
    return allocated;
}

/* A pool may meet its largest need late, when a peer happens to run far ahead; but in the end,
 * several stretches in a row allocate nothing. */
static void check_use(const struct use *use, float *const *memory)
{
    enum { STRETCHES_MAX = 16, QUIET = 4 };
    int allocated = 0, quiet = 0;
    rounds(use, memory);
    for (int stretch = 0; stretch < STRETCHES_MAX && quiet < QUIET; stretch++) {
        const int now = allocations_of(use, memory);
        allocated += now;
        quiet = now == 0 ? quiet + 1 : 0;
    }
    if (quiet < QUIET) {
        test_fail(__FILE__, __LINE__, "%s: %d allocations in %d stretches of %d rounds", use->name,
                  allocated, STRETCHES_MAX, ROUNDS);
    }
}

static int steady_main(void *arg)
{
    static float private[2][RANKS * MOST];
    float *memory[4] = {private[0], private[1]};
    (void)arg;
    counting = *ls__env_posix();
    counting.allocate = count_allocate;
    CHECK_OK(ls__init_with(&counting, NULL));
    for (int i = 2; i < 4; i++) {
        void *shared = NULL;
        CHECK_OK(ls_group_alloc(ls_world(), sizeof private[0], &shared));
        memory[i] = shared;
    }
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        check_use(&uses[i], memory);
    }
    CHECK(atomic_load(&allocations) > 0);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_steady_state_of_any_operation_allocates_nothing)
{
    CHECK_OK(ls_spawn(steady_main, NULL, RANKS));
}

TEST_MAIN
