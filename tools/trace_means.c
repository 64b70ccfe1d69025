/* SPDX-License-Identifier: Apache-2.0 */
/* Means over the steps of a trace, by rank or by step. See trace.h. */
#include "tools/trace.h"

static void add(trace_mean *m, const trace_step *step)
{
    m->steps++;
    m->ms += step->ms;
    m->wire_ms += step->wire_ms;
    for (int p = 0; p < TRACE_PARTS; p++) {
        m->part[p] += step->part[p];
    }
}

trace_mean trace_mean_of(const trace *t, int rank, int number)
{
    trace_mean m = {0};
    for (int64_t s = 0; s < t->step_count; s++) {
        const trace_step *step = &t->steps[s];
        const bool wanted = number >= 0 ? step->number == number : step->number >= t->first_counted;
        if (wanted && (rank < 0 || step->rank == rank)) {
            add(&m, step);
        }
    }
    const double n = m.steps > 0 ? (double)m.steps : 1.0;
    m.ms /= n;
    m.wire_ms /= n;
    for (int p = 0; p < TRACE_PARTS; p++) {
        m.part[p] /= n;
    }
    return m;
}

double trace_busy_ms(const trace_mean *m)
{
    return m->ms - m->part[TRACE_EXPOSED];
}

double trace_hidden(const trace_mean *m)
{
    const double exposed = m->part[TRACE_EXPOSED];
    return m->wire_ms > exposed ? 1.0 - exposed / m->wire_ms : 0.0;
}

int trace_slowest(const trace *t)
{
    int slowest = -1;
    double most = 0.0;
    for (int r = 0; r < t->world_size && t->world_size > 1; r++) {
        const trace_mean m = trace_mean_of(t, r, -1);
        if (m.steps > 0 && trace_busy_ms(&m) > most) {
            most = trace_busy_ms(&m);
            slowest = r;
        }
    }
    return slowest;
}
