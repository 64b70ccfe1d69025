/* Which way private buffers go: Note [Two ways] in two_ways.h. */
#include "comm/engine/two_ways.h"

#include "base/splitmix64.h"
#include "comm/engine/exec.h"
#include "comm/engine/post.h"

#define TRIALS 3
#define EXPLORE 128
#define UNKNOWN 1 /* as a cost */

enum { STAGED, CMA };

/* NULL: operations of this kind have one way only. */
static ls__two_ways *kept(const ls_group *group, const ls_work *work)
{
    const bool gathers = work->operation == LS__OP_ALL_GATHER;
    const bool both = gathers || work->operation == LS__OP_BROADCAST;
    const bool fits = work->algorithm == NULL || (work->algorithm->memories & LS__IN_CMA) != 0;
    const uint64_t bytes = (uint64_t)work->count * work->element;
    const int size = bytes == 0 ? 0 : 63 - __builtin_clzll(bytes);
    return both && fits && bytes > 0 && size < LS__WAYS_SIZES && group->size > 1
               ? &group->exec->ways[gathers ? 1 : 0][size]
               : NULL;
}

static uint32_t load(const _Atomic uint32_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

void ls__two_ways_announce(const ls_group *group, const ls_work *work, uint32_t cost[2])
{
    const ls__two_ways *ways = group->comm->can_cma ? kept(group, work) : NULL;
    for (int way = STAGED; way <= CMA; way++) {
        const bool known = ways != NULL && load(&ways->trials[way]) >= TRIALS;
        cost[way] = ways == NULL ? 0 : known ? load(&ways->ns[way]) : UNKNOWN;
    }
    if (ways != NULL && group->comm->always_cma) {
        cost[STAGED] = UINT32_MAX;
        cost[CMA] = UNKNOWN + 1;
    }
}

/* The slowest rank counts; 0: one cannot, UNKNOWN: one does not know. */
static uint32_t cost_of(const ls_group *group, uint64_t sequence, int way)
{
    uint32_t most = 0;
    bool known = true;
    for (int r = 0; r < group->size; r++) {
        const ls__line *line = &ls__post_slot(group, r, sequence)->line;
        if (line->memory != LS__MEMORY_STAGED || line->cost[way] == 0) {
            return 0;
        }
        known = known && line->cost[way] != UNKNOWN;
        most = line->cost[way] > most ? line->cost[way] : most;
    }
    return known ? most : UNKNOWN;
}

bool ls__two_ways_cma(const ls_group *group, const ls_work *work)
{
    const uint64_t sequence = work->descriptor.sequence;
    if (kept(group, work) == NULL || group->has_remote) {
        return false;
    }
    const uint32_t staged = cost_of(group, sequence, STAGED), cma = cost_of(group, sequence, CMA);
    if (staged == 0 || group->comm->forced != LS__MEMORY_UNDECIDED) {
        return staged != 0 && group->comm->forced == LS__MEMORY_CMA;
    }
    if (staged == UNKNOWN || cma == UNKNOWN) {
        return staged != UNKNOWN;
    }
    const bool explores = staged != UINT32_MAX && ls__splitmix64(sequence) % EXPLORE == 0;
    return (cma < staged) != explores;
}

void ls__two_ways_took(const ls_group *group, const ls_work *work, uint64_t ns)
{
    ls__two_ways *ways = kept(group, work);
    const int way = work->memory == LS__MEMORY_CMA ? CMA : STAGED;
    if (ways == NULL || (way == STAGED && work->memory != LS__MEMORY_STAGED)) {
        return;
    }
    const uint32_t now = ns > UINT32_MAX / 2 ? UINT32_MAX / 2
                         : ns > UNKNOWN      ? (uint32_t)ns
                                             : UNKNOWN + 1;
    const uint32_t before = load(&ways->ns[way]), trials = load(&ways->trials[way]);
    const uint32_t next = trials == 0 || now < before ? now
                          : trials < TRIALS           ? before
                                                      : before + (now - before) / 8;
    atomic_store_explicit(&ways->ns[way], next, memory_order_relaxed);
    if (trials < TRIALS) {
        atomic_store_explicit(&ways->trials[way], trials + 1, memory_order_relaxed);
    }
}
