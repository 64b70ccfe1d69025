/* SPDX-License-Identifier: Apache-2.0 */
/* One forward, one backward (PipeDream-Flush: Narayanan et al., ICML 2021, section 3.2). The last
 * rank alternates from the beginning, each rank before it runs one forward more ahead, so rank r
 * holds the activations of at most P-r micro-batches.
 *
 *     rank 0   F0 F1 F2          B0 F3       B1  ...
 *     rank 1      F0 F1       B0 F2    B1 F3
 *     rank 2         F0 B0 F1 B1   F2 B2   F3 B3
 *
 * With replicas (PipeDream's 1F1B-RR: Narayanan et al., SOSP 2019, section 3.2) each of the r_s
 * replicas of stage s takes every r_s-th micro-batch in this way. R_s being the ranks from stage s
 * on, r_s + r_(s+1) + ..., it runs w_s = ceil(R_s / r_s) - 1 forwards ahead and so holds at most
 * ceil(R_s / r_s) micro-batches. For stage 0 these are NOAM = ceil(N / r_0) of the paper's section
 * 3.2; for the others floor((R_s - 1) / r_s), the warm-up of its published runtime. With r_s = 1 it
 * is P-1-s.
 *
 * With a warm-up of w, it is floor(w (R_s - 1) / r_s). Plain 1F1B has no slack in its cycle of
 * forward, forward, backward, backward between two ranks, so it waits for the latency c of messages
 * again and again. Each further forward ahead is a micro-batch's time of slack: with 2c <=
 * (w-1)(F+B) only the 2(P-1) hops of the first and last micro-batch are seen, as in GPipe.
 *
 * No rank waits for ever: the backward of m at stage s follows the forward of m + w_s r_s there,
 * which needs the same forward at each stage t < s, and this one follows the backward of m + w_s
 * r_s - (w_t + 1) r_t at t. It is a smaller one than m, because w_s r_s <= w (R_s - 1) < w (R_t -
 * 1) < (w_t + 1) r_t. So every chain of waiting ends. The order in which messages are placed
 * (lower.c) then needs channels of one message only.
 *
 *     rank 0, 1F1B of 2,1   F0 F2    B0 F4    B2    B4
 *     rank 1                F1 F3       B1 F5    B3    B5
 *     rank 2                   F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
 */
#include "schedule/generator/generator.h"

static void add_replica(ls__schedule *s, int stage, int replica, int ahead)
{
    const int count = ls__schedule_share(s, stage, replica, s->micro_batches);
    const int every = s->replicas[stage];
    for (int i = 0; i < count + ahead; i++) {
        if (i < count) {
            ls__generate(s, LS__FORWARD, stage, replica + i * every);
        }
        if (i >= ahead) {
            ls__generate(s, LS__BACKWARD, stage, replica + (i - ahead) * every);
        }
    }
}

ls_status ls__generate_1f1b(ls__schedule *s, const ls__schedule_spec *spec)
{
    s->warm_up = spec->warm_up > 0 ? spec->warm_up : 1;
    for (int stage = 0; stage < s->stages; stage++) {
        const int ranks = s->replica_count - s->first_replica[stage];
        const int64_t most = (int64_t)s->warm_up * (ranks - 1) / s->replicas[stage];
        const int ahead = most < s->micro_batches ? (int)most : s->micro_batches;
        for (int j = 0; j < s->replicas[stage]; j++) {
            add_replica(s, stage, j, ahead);
        }
    }
    return LS_OK;
}
