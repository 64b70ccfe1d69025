/* SPDX-License-Identifier: Apache-2.0 */
/* Note [Spinning]
 *
 * Between two parallel regions GNU's OpenMP lets idle threads spin about 300,000 times, some 3 to
 * 10 ms, and only then sleep. On a machine that is busy with other work a thread that spins uses up
 * the time slice in which another thread of the same region could have computed: a step of a small
 * GPT took 53 times as long beside two busy processes on two cores. How long it spins is read from
 * the environment when libgomp is loaded, before any code of this library runs, so only a launcher
 * can set it (src/launch/rank.c does).
 *
 * But libgomp spins only 1,000 times while more OpenMP threads exist than the process has
 * processors (its manual, GOMP_SPINCOUNT). So one thread of ours opens a parallel region that is
 * large enough, once, and keeps it: its threads sleep from then on. They end when the thread
 * ends. */
#include "kernel/cpu/spin.h"

#include <stdatomic.h>
#include <stddef.h>

#include "base/compiler.h"
#include "base/settings.h"
#include "kernel/cpu/threads.h"

/* A process that leaves more processors than this to others meets a busy one rarely, and each costs
 * it a thread. */
#define SLEEPERS_MAX 16

struct ls__spin_limit {
    const ls__env *env;
    ls__env_thread *thread;
    int team;              /* of the thread's region */
    _Atomic uint32_t ends; /* Sync: the user's thread sets it, the sleeper parks on it */
};

#if defined(_OPENMP) && defined(__GNUC__) && !defined(__clang__)

static void hold_region(void *arg)
{
    ls__spin_limit *limit = arg;
#pragma omp parallel num_threads(limit->team)
    {
        __asm__ volatile("" ::: "memory"); /* an empty region is removed */
    }
    while (atomic_load_explicit(&limit->ends, memory_order_acquire) == 0) {
        (void)limit->env->park(limit->env, &limit->ends, 0, LS__NEVER);
    }
}

ls__spin_limit *ls__spin_limit_new(const ls__env *env, int threads)
{
    const int sleepers = omp_get_num_procs() - threads + 1;
    if (threads <= 1 || sleepers <= 0 || sleepers > SLEEPERS_MAX ||
        ls__setting_get("OMP_WAIT_POLICY") != NULL || ls__setting_get("GOMP_SPINCOUNT") != NULL) {
        return NULL;
    }
    ls__spin_limit *limit = env->allocate(env, sizeof *limit);
    if (limit == NULL) {
        return NULL;
    }
    *limit = (ls__spin_limit){.env = env, .team = sleepers + 1};
    if (env->thread_start(env, "ls-spin", hold_region, limit, &limit->thread) < 0) {
        env->release(env, limit, sizeof *limit);
        return NULL;
    }
    return limit;
}

#else

ls__spin_limit *ls__spin_limit_new(const ls__env *env, int threads)
{
    (void)env, (void)threads;
    return NULL;
}

#endif

void ls__spin_limit_free(const ls__env *env, ls__spin_limit *limit)
{
    if (limit == NULL) {
        return;
    }
    /* Sync: release; pairs with the sleeper's load. */
    atomic_store_explicit(&limit->ends, 1, memory_order_release);
    env->wake(env, &limit->ends, 1);
    env->thread_join(env, limit->thread);
    env->release(env, limit, sizeof *limit);
}
