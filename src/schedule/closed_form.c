/* SPDX-License-Identifier: Apache-2.0 */
/* What the papers' formulas say about a schedule; the tests compare the tables with them, and
 * `lockstep plan schedule` prints both. P ranks, M micro-batches, V stages per rank; of a stage
 * with replicas r are its ranks, R those from it on (generator/one_f_one_b.c). In the texts F, B,
 * I, W are times of one micro-batch on a rank, of which each of V stages takes 1/V, and c is the
 * latency between ranks.
 *
 * Bubble: GPipe, section 2.3; SC 2021, section 2.2; ICLR 2024, section 2 (whose B is I here). With
 * recomputation naive and gpipe have the same bubble, because a rank recomputes while it waits for
 * its first gradient. Latency: the critical path of gpipe crosses 2(P-1) hops. 1f1b has no slack in
 * its cycle forward, forward, backward, backward, so it waits again for every P micro-batches.
 */
#include <string.h>

#include "schedule/schedule.h"

static int min(int a, int b)
{
    return a < b ? a : b;
}

static bool is(const ls__schedule *s, const char *name)
{
    return strcmp(s->name, name) == 0;
}

/* pipedream and pipedream-2bw compute in the same order. */
static bool is_1f1b(const ls__schedule *s)
{
    return is(s, "1f1b") || is(s, "pipedream") || is(s, "pipedream-2bw");
}

/* Whether the forwards ahead hide the latency; the generator says why. */
static bool hides(const ls__schedule *s, double pass, double c)
{
    return s->warm_up > 1 && 2 * c <= (s->warm_up - 1) * pass;
}

/* How often 1F1B waits for a pair of hops. */
static double waits_1f1b(int p, int m)
{
    const int rest = (m - 1) % p;
    return (p - 1) * (1 + (m - 1) / p) + (rest > 1 ? rest - 1 : 0);
}

static void bubble_of(const ls__schedule *s, const ls__stage_times *t, double c,
                      ls__closed_form *out)
{
    const double p = s->ranks, m = s->micro_batches;
    const double pass = t->forward + t->backward;
    const bool plain = !s->recompute && c == 0.0;
    if (ls__schedule_has_replicas(s)) {
        out->bubble = -1.0;
        out->bubble_text = "none is known for replicas";
    } else if (is(s, "naive")) {
        out->bubble = m * (p - 1) * (pass + 2 * c);
        out->bubble_text = "M(P-1)(F+B+2c)";
    } else if (is(s, "gpipe")) {
        out->bubble = (p - 1) * (pass + 2 * c);
        out->bubble_text = "(P-1)(F+B+2c)";
    } else if (is_1f1b(s) && !s->recompute && hides(s, pass, c)) {
        out->bubble = (p - 1) * (pass + 2 * c);
        out->bubble_text = "(P-1)(F+B+2c)";
    } else if (is_1f1b(s) && !s->recompute && s->warm_up <= 1) {
        out->bubble = (p - 1) * pass + 2 * c * waits_1f1b(s->ranks, s->micro_batches);
        out->bubble_text = c > 0.0 ? "(P-1)(F+B) + 2c waits" : "(P-1)(F+B)";
    } else if (is(s, "interleaved") && plain) {
        out->bubble = (p - 1) * pass;
        out->bubble_text = "(P-1)(F+B)/V";
    } else if (is(s, "zb-h1") && plain && s->micro_batches >= s->ranks && t->weight <= t->input) {
        out->bubble = (p - 1) * (t->forward + t->input - t->weight);
        out->bubble_text = "(P-1)(F+I-W)";
    } else {
        out->bubble = -1.0;
        out->bubble_text = is(s, "zb-h1")   ? "needs M >= P, W <= I, no latency, no recomputation"
                           : s->warm_up > 1 ? "needs 2c <= (w-1)(F+B), no recomputation"
                                            : "none is known";
    }
}

static const char *activations_text(const ls__schedule *s)
{
    if (ls__schedule_has_replicas(s)) {
        return is(s, "gpipe") ? "M/r" : s->warm_up > 1 ? "min(w(R-1)/r+1, M/r)" : "min(R/r, M/r)";
    }
    if (s->warm_up > 1) {
        return "min(w(P-1-r)+1, M)";
    }
    return is(s, "naive")         ? "1"
           : is(s, "gpipe")       ? "M"
           : is(s, "zb-h1")       ? "min(P, M)"
           : is(s, "interleaved") ? "P(V+1)-1-2r"
                                  : "min(P-r, M)";
}

void ls__schedule_closed_form(const ls__schedule *s, const ls__stage_times *t, double c,
                              ls__closed_form *out)
{
    const double stages = (double)s->stages / s->ranks * s->micro_batches;
    const double parts = is(s, "zb-h1") ? t->input + t->weight : t->backward;
    const double work = stages * (t->forward * (s->recompute ? 2.0 : 1.0) + parts);
    *out = (ls__closed_form){.activations_text = activations_text(s),
                             .stashed_text = s->delay == 0                    ? "0"
                                             : s->delay == LS__DELAY_BY_STAGE ? "P-1-r"
                                             : is(s, "pipedream")             ? "P-1"
                                                                              : "1"};
    bubble_of(s, t, c, out);
    out->makespan = out->bubble < 0.0 ? -1.0 : work + out->bubble;
}

/* Versions of a stage that is `delay` steps behind: as many as it is behind, but fewer in a short
 * run. */
static int stashed(int delay, int steps)
{
    if (delay == 0 || steps < 2) {
        return 0;
    }
    return steps <= delay ? 1 : min(delay, steps - delay);
}

/* The stage of which the rank is a replica, in tables with a stage for each rank. */
static int stage_of(const ls__schedule *s, int rank)
{
    int stage = 0;
    while (stage + 1 < s->stages && s->rank_of[stage + 1] <= rank) {
        stage++;
    }
    return stage;
}

void ls__schedule_closed_peak(const ls__schedule *s, int rank, ls__schedule_peak *out)
{
    const int stage = s->stages > s->ranks ? rank : stage_of(s, rank), of = s->replicas[stage];
    const int p = s->ranks, chunks = s->stages / p;
    const int m = ls__schedule_share(s, stage, rank - s->rank_of[stage], s->micro_batches);
    const int behind = s->replica_count - s->first_replica[stage] - 1;
    const int64_t ahead = (int64_t)(s->warm_up > 1 ? s->warm_up : 1) * behind / of;
    int alive = ahead < m ? (int)ahead + 1 : m;
    if (is(s, "naive")) {
        alive = 1;
    } else if (is(s, "gpipe")) {
        alive = m;
    } else if (is(s, "zb-h1")) {
        alive = min(p, m);
    } else if (is(s, "interleaved")) {
        alive = min(2 * (p - 1 - rank) + (chunks - 1) * p + 1, m * chunks);
    }
    const int delay = s->delay == LS__DELAY_BY_STAGE ? s->stages - 1 - rank : s->delay;
    const int again = is(s, "zb-h1") ? min(rank + 1, m) : 1; /* recomputed and not yet used */
    *out = (ls__schedule_peak){.activations = s->recompute ? again : alive,
                               .inputs = s->recompute ? alive : 0,
                               .stashed = stashed(delay, ls__schedule_steps(s))};
}
