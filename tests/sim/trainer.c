/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of training without tensors, between the operations of the script: a reducer whose
 * gradients become ready in an order of each rank's own, several micro-batches a step, parameters
 * that some ranks or all leave out, weights that differ; and all ranks must agree on when to
 * stop. */
#include <math.h>
#include <string.h>

#include <lockstep/comm_hook.h>
#include <lockstep/reducer.h>

#include "sim/scenario.h"

#define PARAMS LS__TRAINED
#define MICROS_MAX 3
#define BUCKET_BYTES 2000
#define FIRST_BUCKET_BYTES 100

static const struct {
    const char *name;
    int64_t count;
    ls_dtype dtype;
} shapes[PARAMS] = {{"scale", 1, LS_FLOAT32},
                    {"bias", 7, LS_FLOAT32},
                    {"weight", 300, LS_FLOAT32},
                    {"sums", 40, LS_FLOAT64},
                    {"table", 700, LS_FLOAT32}};

typedef struct step {
    int64_t number;
    bool weighted;
    int micros; /* of every rank, unless it is weighted */
} step;

typedef struct micro { /* a micro-batch of a rank */
    double weight;
    uint8_t used[PARAMS];
} micro;

/* ---- what is drawn: every rank can tell what the others do ----------------------------------- */

static ls__sim_random dice_of(const ls__plan *plan, int64_t number, int rank, int batch)
{
    ls__sim_random r = {plan->seed * 0x9fb21c651e98df25u + (uint64_t)number};
    r.state = ls__sim_draw(&r) ^ (uint64_t)(rank + 1) << 8 ^ (uint64_t)(batch + 1);
    return r;
}

static step draw_step(const ls__plan *plan, int64_t number)
{
    ls__sim_random r = dice_of(plan, number, -1, -1);
    return (step){number, ls__sim_below(&r, 2) == 0, 1 + (int)ls__sim_below(&r, MICROS_MAX)};
}

static int micros_of(const ls__plan *plan, const step *s, int rank)
{
    ls__sim_random r = dice_of(plan, s->number, rank, -1);
    return s->weighted ? 1 + (int)ls__sim_below(&r, MICROS_MAX) : s->micros;
}

static micro draw_micro(const ls__plan *plan, const step *s, int rank, int batch)
{
    static const double weights[] = {0, 1, 2, 5};
    ls__sim_random r = dice_of(plan, s->number, rank, batch);
    micro m = {.weight = s->weighted ? weights[ls__sim_below(&r, 4)] : 1};
    const bool idle = ls__sim_below(&r, 8) == 0; /* uses nothing, and counts in the mean */
    for (int p = 0; p < PARAMS; p++) {
        m.used[p] = !idle && ls__sim_below(&r, 4) != 0;
    }
    return m;
}

static double rounded(double x, int param)
{
    return shapes[param].dtype == LS_FLOAT32 ? (double)(float)x : x;
}

/* Element i of what the backward of this micro-batch adds to a gradient. */
static double term(const ls__plan *plan, const step *s, int rank, int batch, int param, int64_t i)
{
    ls__sim_random r = dice_of(plan, s->number, rank, batch);
    const uint64_t id = (ls__sim_draw(&r) + (uint64_t)param) & ~LS__ORACLE_WHOLE;
    return (double)ls__oracle_float(id, rank, i);
}

/* ---- a rank's side --------------------------------------------------------------------------- */

static double get(const void *grad, int param, int64_t i)
{
    return shapes[param].dtype == LS_FLOAT32 ? (double)((const float *)grad)[i]
                                             : ((const double *)grad)[i];
}

static void put(void *grad, int param, int64_t i, double x)
{
    if (shapes[param].dtype == LS_FLOAT32) {
        ((float *)grad)[i] = (float)x;
    } else {
        ((double *)grad)[i] = x;
    }
}

static void accumulate(ls__trainer *t, const step *s, int batch, int param, bool first)
{
    void *grad = t->grad[param];
    for (int64_t i = 0; i < shapes[param].count; i++) {
        const double before = first ? 0 : get(grad, param, i);
        put(grad, param, i, before + term(t->plan, s, t->rank, batch, param, i));
    }
}

static void draw_order(ls__trainer *t, int order[PARAMS])
{
    for (int p = 0; p < PARAMS; p++) {
        const int at = (int)ls__sim_below(&t->dice, (uint64_t)p + 1);
        order[p] = order[at];
        order[at] = p;
    }
}

static ls_status run_backward(ls__trainer *t, const step *s, int batch, bool last,
                              bool touched[PARAMS])
{
    const micro m = draw_micro(t->plan, s, t->rank, batch);
    int order[PARAMS] = {0};
    LS_TRY(ls_reducer_begin(t->reducer, LS_OPTIONS(ls_reducer_begin_options, .local = !last,
                                                   .used = m.used, .weighted = s->weighted,
                                                   .weight = s->weighted ? m.weight : 0)));
    draw_order(t, order);
    for (int k = 0; k < PARAMS; k++) {
        const int p = order[k];
        if (m.used[p]) {
            accumulate(t, s, batch, p, !touched[p]);
            touched[p] = true;
            LS_TRY(ls_reducer_ready(t->reducer, p, NULL));
        }
    }
    return ls_reducer_wait(t->reducer);
}

/* ---- a communication hook of two phases, in a third of the seeds ----------------------------- */

static bool is_hooked(const ls__plan *plan)
{
    return plan->seed % 3 == 1 && plan->ranks > 1;
}

/* Sums of parts, then all parts. */
static ls_status hook_before(void *state LS__UNUSED, ls_bucket *bucket, int phase, ls_exchange *out,
                             ls_stream *stream LS__UNUSED)
{
    const int64_t part = ls_bucket_numel(bucket) / ls_bucket_ranks(bucket);
    const size_t bytes = (size_t)part * ls_dtype_size(ls_bucket_dtype(bucket));
    char *memory = ls_bucket_memory(bucket);
    void *sum = ls_bucket_scratch(bucket, 0, bytes);
    if (sum == NULL) {
        return ls_error_status();
    }
    *out = (ls_exchange){.size = sizeof *out,
                         .kind = phase == 0 ? LS_EXCHANGE_REDUCE_SCATTER : LS_EXCHANGE_ALL_GATHER,
                         .input = phase == 0 ? memory : sum,
                         .output = phase == 0 ? sum : memory,
                         .count = part,
                         .dtype = ls_bucket_dtype(bucket),
                         .mean = phase == 0};
    return LS_OK;
}

static ls_status set_hook(const ls__trainer *t)
{
    return is_hooked(t->plan)
               ? ls_reducer_set_hook(t->reducer, LS_OPTIONS(ls_comm_hook, .name = "two phases",
                                                            .phases = 2, .before = hook_before))
               : LS_OK;
}

/* ---- what must come out ---------------------------------------------------------------------- */

/* In the canonical order (docs/design.md, D5). */
static double tree_sum(const double *x, int count, int param)
{
    int left = 1;
    if (count == 1) {
        return x[0];
    }
    while (2 * left < count) {
        left *= 2;
    }
    return rounded(tree_sum(x, left, param) + tree_sum(x + left, count - left, param), param);
}

/* A step as all ranks draw it. */
typedef struct drawn {
    step s;
    int micros[LS__PLAN_RANKS_MAX];
    micro micro[LS__PLAN_RANKS_MAX][MICROS_MAX];
    double divisor;
} drawn;

static void draw_all(const ls__plan *plan, const step *s, drawn *out)
{
    double sum = 0;
    out->s = *s;
    for (int r = 0; r < plan->ranks; r++) {
        out->micros[r] = micros_of(plan, s, r);
        for (int b = 0; b < out->micros[r]; b++) {
            out->micro[r][b] = draw_micro(plan, s, r, b);
            sum += out->micro[r][b].weight;
        }
    }
    out->divisor = !s->weighted ? plan->ranks : sum > 0 ? sum : 1;
}

static bool is_used(const ls__plan *plan, const drawn *d, int param)
{
    for (int r = 0; r < plan->ranks; r++) {
        for (int b = 0; b < d->micros[r]; b++) {
            if (d->micro[r][b].used[param] != 0) {
                return true;
            }
        }
    }
    return false;
}

static double share_of(const ls__plan *plan, const drawn *d, int rank, int param, int64_t i)
{
    double sum = 0;
    for (int b = 0; b < d->micros[rank]; b++) {
        if (d->micro[rank][b].used[param] != 0) {
            sum = rounded(sum + term(plan, &d->s, rank, b, param, i), param);
        }
    }
    return sum;
}

static void check_element(const ls__trainer *t, const drawn *d, int param, int64_t i)
{
    double share[LS__PLAN_RANKS_MAX];
    for (int r = 0; r < t->plan->ranks; r++) {
        share[r] = share_of(t->plan, d, r, param, i);
    }
    const double want = rounded(tree_sum(share, t->plan->ranks, param) / d->divisor, param);
    const double is = get(t->grad[param], param, i);
    /* With weights a hook's gradients are scaled before they are summed. */
    double bound = 0.0;
    for (int r = 0; r < t->plan->ranks && is_hooked(t->plan); r++) {
        bound += 1e-6 * fabs(share[r]);
    }
    if (!(fabs(is - want) <= bound)) {
        ls__sim_stop("wrong bits: step %lld, element %lld of %s is %.17g on rank %d, must be %.17g",
                     (long long)d->s.number, (long long)i, shapes[param].name, is, t->rank, want);
    }
}

/* All of small gradients, and of large ones every element on one rank at least. */
static void check_step(const ls__trainer *t, const step *s)
{
    drawn d;
    draw_all(t->plan, s, &d);
    for (int p = 0; p < PARAMS; p++) {
        const bool small = shapes[p].count < 64, used = is_used(t->plan, &d, p);
        if (used != ls_reducer_used(t->reducer, p)) {
            ls__sim_stop("step %lld: rank %d says that %s was %s", (long long)s->number, t->rank,
                         shapes[p].name, used ? "not used" : "used");
        }
        const int64_t first = small ? 0 : t->rank, by = small ? 1 : t->plan->ranks;
        for (int64_t i = first; used && i < shapes[p].count; i += by) {
            check_element(t, &d, p, i);
        }
    }
}

/* ---- for the player -------------------------------------------------------------------------- */

ls_status ls__trainer_begin(ls__trainer *t, ls__plan *plan, int rank)
{
    ls_reducer_param params[PARAMS];
    *t = (ls__trainer){.plan = plan, .rank = rank};
    t->dice.state = plan->seed * 31 + (uint64_t)rank;
    memset(params, 0, sizeof params);
    for (int p = 0; p < PARAMS; p++) {
        params[p] = (ls_reducer_param){
            .name = shapes[p].name, .count = shapes[p].count, .dtype = shapes[p].dtype};
    }
    const ls_status status =
        ls_reducer_new(ls_world(), params, PARAMS,
                       LS_OPTIONS(ls_reducer_options, .bucket_bytes = BUCKET_BYTES,
                                  .first_bucket_bytes = FIRST_BUCKET_BYTES, .name = "trained"),
                       &t->reducer);
    for (int p = 0; p < PARAMS; p++) {
        t->grad[p] = params[p].grad;
    }
    return status < 0 ? status : set_hook(t);
}

ls_status ls__trainer_step(ls__trainer *t, bool *stop)
{
    const step s = draw_step(t->plan, t->steps++);
    const int micros = micros_of(t->plan, &s, t->rank);
    bool touched[PARAMS] = {false};
    for (int b = 0; b < micros; b++) {
        LS_TRY(run_backward(t, &s, b, b == micros - 1, touched));
    }
    check_step(t, &s);
    *stop = ls_stop_requested();
    return ls_reducer_zero(t->reducer);
}

ls_status ls__trainer_end(ls__trainer *t)
{
    ls_reducer *reducer = t->reducer;
    t->reducer = NULL;
    return ls_reducer_free(reducer);
}
