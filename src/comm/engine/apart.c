/* See apart.h. */
#include "comm/engine/apart.h"

#include <fcntl.h>
#include <stdio.h>

#include "comm/comm.h"

#define EVERY_NS UINT64_C(1000000) /* moves of a rank are this far apart */

/* Threads that run or want to, on this host; -1: not known. */
static int running(const ls__env *env)
{
    char text[128];
    int found = -1;
    const int fd = env->open(env, "/proc/loadavg", O_RDONLY | O_CLOEXEC, 0);
    if (fd >= 0) {
        const ssize_t length = env->read(env, fd, text, sizeof text - 1);
        text[length > 0 ? length : 0] = '\0';
        if (sscanf(text, "%*s %*s %*s %d/", &found) != 1) {
            found = -1;
        }
        (void)env->close(env, fd);
    }
    return found;
}

static int ranks_on(const int *cpu, int ranks, int core)
{
    int found = 0;
    for (int r = 0; r < ranks; r++) {
        found += cpu[r] == core;
    }
    return found;
}

bool ls__apart_leaves(const int *cpu, int ranks, int me, int *taken, int *count)
{
    const int here = ranks_on(cpu, ranks, cpu[me]);
    *count = 0;
    for (int r = 0; r < ranks; r++) {
        if (cpu[r] >= 0 && ranks_on(cpu, ranks, cpu[r]) >= here - 1) {
            taken[(*count)++] = cpu[r];
        }
        if (r > me && cpu[r] == cpu[me]) {
            return false;
        }
    }
    return cpu[me] >= 0 && here > 1;
}

void ls__apart_look(ls__comm *comm)
{
    const ls__env *env = comm->env;
    const int ranks = comm->board->ranks, me = comm->runtime->local_rank;
    int cpu[LS__PROGRAM_RANKS_MAX], taken[LS__PROGRAM_RANKS_MAX], count = 0;
    /* Sync: relaxed; hints that may be stale. A rank stores one more than its core. */
    atomic_store_explicit(&comm->me->core, env->core(env) + 1, memory_order_relaxed);
    for (int r = 0; r < ranks; r++) {
        cpu[r] = atomic_load_explicit(&comm->board->rank[r].core, memory_order_relaxed) - 1;
    }
    if (!ls__apart_leaves(cpu, ranks, me, taken, &count)) {
        return;
    }
    const uint64_t now = env->now_ns(env);
    const uint64_t last = atomic_load_explicit(&comm->moved_ns, memory_order_relaxed);
    const int cores = env->cores(env), most = cores > ranks ? cores : ranks;
    if (now - last < EVERY_NS) {
        return;
    }
    atomic_store_explicit(&comm->moved_ns, now, memory_order_relaxed);
    const int busy = running(env); /* by others, too: then no core is idle */
    if (busy > 0 && busy <= most && env->leave_core(env, taken, count)) {
        atomic_store_explicit(&comm->me->core, env->core(env) + 1, memory_order_relaxed);
    }
}
