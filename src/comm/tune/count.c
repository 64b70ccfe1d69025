/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what the programs of all ranks cost, in the terms of Note [Model] in tune.h. Slices are
 * left out: a large operation runs its program once per slice, and the messages that this adds cost
 * little beside the bytes of a slice. */
#include <string.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/error.h"
#include "comm/tune/tune.h"

/* Sums over all programs. Bytes are in units of the operation's bytes. */
typedef struct tally {
    const ls__layout *layout;
    double rank_messages[LS__TUNE_RANKS_MAX]; /* sent and received, by rank */
    double host_out[LS__TUNE_RANKS_MAX];      /* bytes to other hosts, by host */
    double host_in[LS__TUNE_RANKS_MAX];       /* bytes from other hosts, by host */
    double local[LS__TUNE_RANKS_MAX];         /* bytes within a host, by rank */
    double sum[LS__TUNE_RANKS_MAX];           /* bytes added or copied, by rank */
    double messages, bytes;                   /* of all ranks; bytes between hosts */
} tally;

/* The size of a message as a part of the operation's bytes. A barrier moves none. */
static double chunk_of(const ls__program *program)
{
    return program->operation == LS__OP_BARRIER ? 0.0 : 1.0 / program->chunks;
}

/* ls__programs_walk calls this for each message that the programs exchange. */
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
        t->local[from] += chunk;
        t->local[to] += chunk;
        return;
    }
    t->host_out[t->layout->host[from]] += chunk;
    t->host_in[t->layout->host[to]] += chunk;
    t->bytes += chunk;
}

/* Each byte that a processor adds or copies costs about the same memory traffic, so both count. */
static void add_sums(tally *t, const ls__program *program)
{
    for (int s = 0; s < program->step_count; s++) {
        const ls__step *step = &program->steps[s];
        const int terms = step->kind == LS__STEP_REDUCE ? step->src_count - 1
                          : step->kind == LS__STEP_COPY ? 1
                                                        : 0;
        t->sum[program->rank] += chunk_of(program) * terms;
    }
}

/* The busiest rank or host determines the time. */
static double largest(const double *of, int count)
{
    double most = 0;
    for (int i = 0; i < count; i++) {
        most = of[i] > most ? of[i] : most;
    }
    return most;
}

/* A link is full duplex: the busier of its two directions counts. */
static void conclude(const tally *t, int steps, ls__counts *out)
{
    const int n = t->layout->size;
    LS_ASSERT(n >= 1 && n <= LS__TUNE_RANKS_MAX);
    const double in = largest(t->host_in, n), sent = largest(t->host_out, n);
    out->of[LS__COST_STEPS] = steps;
    out->of[LS__COST_RANK_MESSAGES] = largest(t->rank_messages, n);
    out->of[LS__COST_ALL_MESSAGES] = t->messages;
    out->of[LS__COST_LINK] = in > sent ? in : sent;
    out->of[LS__COST_ALL] = t->bytes;
    out->of[LS__COST_LOCAL] = largest(t->local, n);
    out->of[LS__COST_SUM] = largest(t->sum, n);
}

/* Programs by messages, one per rank. The caller frees those made before an error. */
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

/* Runs the programs in thought: ls__programs_walk matches sends with receives and returns the
 * length of the longest dependency chain in messages. */
ls_status ls__tune_count(const ls__algorithm *algorithm, const ls__layout *layout,
                         const ls__env *env, ls__counts *out)
{
    ls__program *programs[LS__TUNE_RANKS_MAX] = {0};
    tally t = {.layout = layout};
    memset(out, 0, sizeof *out);
    ls_status status = generate_all(algorithm, layout, env, programs);
    if (status == LS_OK) {
        const int steps = ls__programs_walk(programs, layout->size, add_message, &t);
        status = steps < 0 ? ls__fail(LS_ERR_MEMORY, "no memory for counting the program of %s %s",
                                      ls__operation_name(algorithm->operation), algorithm->name)
                           : LS_OK;
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
