/* SPDX-License-Identifier: Apache-2.0 */
/* Who is missing is read on the board, where a rank appears once it calls ls_init. Ranks of other
 * hosts are not on it: of those only the one that is awaited is named. */
#include "comm/join/arrival.h"

#include <stdio.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/text.h"

#define WARN_NS 5000000000u /* as for an operation that waits */
#define NAMED_MAX 4         /* missing ranks that are described, so that the line can be read */

void ls__arrival_begin(ls__arrival *a, const ls__env *env, const ls__board *board, int local_rank,
                       int64_t timeout_ms)
{
    LS_ASSERT(local_rank >= 0 && local_rank < board->ranks);
    *a = (ls__arrival){.env = env,
                       .board = board,
                       .world_size = board->world_size,
                       .local_rank = local_rank,
                       .timeout_ms = timeout_ms,
                       .begin_ns = env->now_ns(env)};
    a->warn_ns = a->begin_ns + WARN_NS;
}

uint64_t ls__arrival_deadline(const ls__arrival *a, uint64_t begin_ns)
{
    const uint64_t continued_ns =
        atomic_load_explicit(&a->board->continued_ns, memory_order_relaxed);
    return ls__time_after(begin_ns < continued_ns ? continued_ns : begin_ns, a->timeout_ms);
}

static int64_t ms_until(const ls__arrival *a, uint64_t end)
{
    const uint64_t now = a->env->now_ns(a->env);
    return end > now ? (int64_t)((end - now + 999999u) / 1000000u) : 0;
}

int64_t ls__arrival_slice_ms(const ls__arrival *a)
{
    const uint64_t deadline_ns = ls__arrival_deadline(a, a->begin_ns);
    return ms_until(a, a->warn_ns < deadline_ns ? a->warn_ns : deadline_ns);
}

int64_t ls__arrival_left_ms(const ls__arrival *a)
{
    return ms_until(a, ls__arrival_deadline(a, a->begin_ns));
}

/* Whether a rank of this host has called ls_init. */
static bool has_come(const ls__board_rank *place)
{
    return atomic_load_explicit(&place->activity.since_ns, memory_order_relaxed) != 0 ||
           atomic_load_explicit(&place->life, memory_order_acquire) == LS__LIFE_LEFT;
}

/* One speaks for all ranks of its host. */
static bool is_speaker(const ls__arrival *a)
{
    for (int r = 0; r < a->local_rank; r++) {
        if (has_come(&a->board->rank[r])) {
            return false;
        }
    }
    return true;
}

static void add_rank(const ls__arrival *a, int local, int number, ls__text *to)
{
    char what[768];
    ls__board_describe(a->board, a->env, local, what, sizeof what);
    ls__text_add(to, "%s%s", number > 0 ? ", " : "", what);
}

/* Writes the missing ranks of this host, or the awaited one if none is missing here. Returns their
 * number. */
static int name_missing(const ls__arrival *a, int awaited, char *out, size_t bytes)
{
    ls__text to = {out, bytes};
    int count = 0;
    const int local = ls__board_local(a->board, awaited);
    for (int r = 0; r < a->board->ranks; r++) {
        if (!has_come(&a->board->rank[r])) {
            if (count < NAMED_MAX) {
                add_rank(a, r, count, &to);
            }
            count++;
        }
    }
    if (count > NAMED_MAX) {
        ls__text_add(&to, " and %d more", count - NAMED_MAX);
    }
    if (count == 0 && local >= 0) {
        add_rank(a, local, 0, &to);
    } else if (count == 0) {
        ls__text_add(&to, "rank %d on another host", awaited);
    }
    return count > 0 ? count : 1;
}

/* The next warning comes when the wait has become twice as long. */
static void warn(ls__arrival *a, int awaited, uint64_t now)
{
    char who[LS__MESSAGE_MAX - 256];
    const int count = name_missing(a, awaited, who, sizeof who);
    const uint64_t waited = now - a->begin_ns;
    a->warn_ns = now + waited;
    if (is_speaker(a)) {
        LS__WARN("ls_init has waited for %.1f s for %d of %d ranks: %s", (double)waited * 1e-9,
                 count, a->world_size, who);
    }
}

bool ls__arrival_goes_on(ls__arrival *a, ls_status status, int awaited)
{
    LS_ASSERT(awaited >= 0 && awaited < a->world_size);
    if (status != LS_ERR_TIMEOUT) {
        return false;
    }
    const uint64_t now = a->env->now_ns(a->env);
    if (now < ls__arrival_deadline(a, a->begin_ns)) {
        if (now >= a->warn_ns) {
            warn(a, awaited, now);
        }
        return true;
    }
    char who[LS__MESSAGE_MAX - 256];
    const int count = name_missing(a, awaited, who, sizeof who);
    a->explained = true;
    (void)ls__fail(LS_ERR_TIMEOUT,
                   "ls_init: %d of %d ranks did not come within %.1f s: %s; start every rank and "
                   "let each call ls_init, or raise LOCKSTEP_TIMEOUT",
                   count, a->world_size, (double)(now - a->begin_ns) * 1e-9, who);
    return false;
}
