/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of all ranks' programs together: every message is counted, with the step in which it
 * travels. docs/algorithms.md and `build/bench/dev/measure cost-table` are generated from it. */
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "comm/program/check.h"

typedef struct tally {
    ls__program_totals *out;
    int size;
    double *sent, *received; /* [steps max][size] */
    double *link;            /* [size][size], from, to */
    bool too_long;
} tally;

/* Called for every message with the step of the whole in which it travels. */
static void add_message(void *arg, const ls__program *sender, const ls__step *send, int step)
{
    tally *t = arg;
    const double chunk = sender->operation == LS__OP_BARRIER ? 0.0 : 1.0 / sender->chunks;
    const bool wide = sender->wide && sender->refs[send->first_src].buffer == LS__BUFFER_SCRATCH;
    if (step > LS__TOTALS_STEPS_MAX) {
        t->too_long = true;
        return;
    }
    LS_ASSERT(step >= 1);
    const size_t row = (size_t)(step - 1) * (size_t)t->size;
    t->sent[row + (size_t)sender->rank] += chunk;
    t->received[row + (size_t)send->peer] += chunk;
    t->link[(size_t)sender->rank * (size_t)t->size + (size_t)send->peer] += chunk;
    t->out->messages++;
    t->out->total += chunk;
    t->out->wide += wide ? chunk : 0.0;
    t->out->step[step - 1].total += chunk;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* A rank sends and receives at the same time, so the larger of both counts. */
static void find_peaks(const tally *t)
{
    const size_t size = (size_t)t->size;
    for (size_t r = 0; r < size; r++) {
        double sent = 0, received = 0;
        for (int s = 0; s < t->out->steps; s++) {
            const size_t at = (size_t)s * size + r;
            sent += t->sent[at];
            received += t->received[at];
            t->out->step[s].rank =
                larger(t->out->step[s].rank, larger(t->sent[at], t->received[at]));
        }
        t->out->rank = larger(t->out->rank, larger(sent, received));
    }
    for (size_t i = 0; i < size * size; i++) {
        t->out->link = larger(t->out->link, t->link[i]);
    }
}

/* `out` is valid only with LS_OK. */
ls_status ls__programs_count(ls__program *const *programs, int size, ls__program_totals *out)
{
    memset(out, 0, sizeof *out);
    ls__arena arena;
    ls__arena_init(&arena, programs[0]->env, (size_t)1 << 16);
    const size_t ranks = (size_t)size, cells = ranks * LS__TOTALS_STEPS_MAX;
    tally t = {.out = out,
               .size = size,
               .sent = ls__arena_alloc(&arena, cells * sizeof(double)),
               .received = ls__arena_alloc(&arena, cells * sizeof(double)),
               .link = ls__arena_alloc(&arena, ranks * ranks * sizeof(double))};
    ls_status status = LS_OK;
    if (t.sent == NULL || t.received == NULL || t.link == NULL ||
        (out->steps = ls__programs_walk(programs, size, add_message, &t)) < 0) {
        status = ls__fail(LS_ERR_MEMORY, "no memory to count a program of %d ranks", size);
    } else if (t.too_long) {
        status = ls__fail(LS_ERR_LIMIT, "%s %s of %d ranks has %d steps; at most %d are counted",
                          programs[0]->algorithm, ls__operation_name(programs[0]->operation), size,
                          out->steps, LS__TOTALS_STEPS_MAX);
    } else {
        find_peaks(&t);
    }
    ls__arena_fini(&arena);
    return status;
}
