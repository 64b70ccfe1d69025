/* What the programs of all ranks cost, in the terms of Note [Model]. Slices are left out: a large
 * operation runs its program once a slice, and what that adds in messages is small beside the bytes
 * of a slice. */
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "comm/tune/tune.h"

typedef struct tally {
    const ls__layout *layout;
    double rank_messages[LS__TUNE_RANKS_MAX];
    double host_out[LS__TUNE_RANKS_MAX], host_in[LS__TUNE_RANKS_MAX];
    double near[LS__TUNE_RANKS_MAX], sum[LS__TUNE_RANKS_MAX];
    double messages, bytes;
} tally;

static double chunk_of(const ls__program *program)
{
    return program->operation == LS__OP_BARRIER ? 0.0 : 1.0 / program->chunks;
}

static void add_message(void *arg, const ls__program *sender, const ls__step *send,
                        int step LS__UNUSED)
{
    tally *t = arg;
    const int from = sender->rank, to = send->peer;
    const double chunk = chunk_of(sender);
    t->rank_messages[from]++;
    t->rank_messages[to]++;
    t->messages++;
    if (t->layout->host[from] == t->layout->host[to]) {
        t->near[from] += chunk;
        t->near[to] += chunk;
        return;
    }
    t->host_out[t->layout->host[from]] += chunk;
    t->host_in[t->layout->host[to]] += chunk;
    t->bytes += chunk;
}

static void add_sums(tally *t, const ls__program *program)
{
    for (int s = 0; s < program->step_count; s++) {
        const ls__step *step = &program->steps[s];
        const int terms = step->kind == LS__STEP_RECV_REDUCE ? 1
                          : step->kind == LS__STEP_REDUCE    ? step->src_count - 1
                          : step->kind == LS__STEP_COPY      ? 1
                                                             : 0;
        t->sum[program->rank] += chunk_of(program) * terms;
    }
}

static double largest(const double *of, int count)
{
    double most = 0;
    for (int i = 0; i < count; i++) {
        most = of[i] > most ? of[i] : most;
    }
    return most;
}

static void conclude(const tally *t, int steps, ls__counts *out)
{
    const int n = t->layout->size;
    const double in = largest(t->host_in, n), sent = largest(t->host_out, n);
    out->of[LS__COST_STEPS] = steps;
    out->of[LS__COST_RANK_MESSAGES] = largest(t->rank_messages, n);
    out->of[LS__COST_ALL_MESSAGES] = t->messages;
    out->of[LS__COST_LINK] = in > sent ? in : sent;
    out->of[LS__COST_ALL] = t->bytes;
    out->of[LS__COST_NEAR] = largest(t->near, n);
    out->of[LS__COST_SUM] = largest(t->sum, n);
}

static ls_status generate_all(const ls__algorithm *algorithm, const ls__layout *layout,
                              const ls__env *env, ls__program **programs)
{
    for (int r = 0; r < layout->size; r++) {
        const ls__program_spec spec = {.operation = algorithm->operation,
                                       .memory = LS__MEMORY_MESSAGES,
                                       .rank = r,
                                       .size = layout->size,
                                       .host = layout->host};
        LS_TRY(algorithm->generate(&spec, env, &programs[r]));
    }
    return LS_OK;
}

ls_status ls__tune_count(const ls__algorithm *algorithm, const ls__layout *layout,
                         const ls__env *env, ls__counts *out)
{
    ls__program *programs[LS__TUNE_RANKS_MAX] = {0};
    tally t = {.layout = layout};
    memset(out, 0, sizeof *out);
    ls_status status = generate_all(algorithm, layout, env, programs);
    if (status == LS_OK) {
        const int steps = ls__programs_walk(programs, layout->size, add_message, &t);
        status = steps < 0 ? ls__fail(LS_ERR_MEMORY, "no memory to count a program") : LS_OK;
        for (int r = 0; r < layout->size; r++) {
            add_sums(&t, programs[r]);
        }
        conclude(&t, steps, out);
        out->exact = programs[0]->exact;
    }
    for (int r = 0; r < layout->size; r++) {
        if (programs[r] != NULL) {
            ls__program_free(programs[r]);
        }
    }
    return status;
}
