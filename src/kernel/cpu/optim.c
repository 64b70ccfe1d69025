/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps, float32 inside as PyTorch's; formulas in ref/optim.c.
 *
 * A call has many parts, some of a few elements. Their elements are numbered through, and each
 * thread takes an equal share of the numbers, wherever the parts begin and end:
 *
 *     parts    |   weight   |b|      weight      |b|
 *     threads  |     0     |     1     |     2     |
 *
 * Each element stands alone, so the cut does not show in the result.
 */
#include <math.h>

#include "kernel/cpu/halves.h"

#define SHARE_UNIT 16 /* elements; shares begin at multiples: 64 bytes of one cache line */

/* Updates elements [from, from + count) of one part. */
typedef void step_range(const void *args, const ls__step_part *part, int64_t from, int64_t count);

/* Updates the elements [first, end) of all parts together. */
static void step_share(const ls__step_part *parts, int64_t part_count, int64_t first, int64_t end,
                       step_range *step, const void *args)
{
    int64_t at = 0; /* the number of the part's first element */
    for (int64_t i = 0; i < part_count && at < end; at += parts[i].count, i++) {
        const int64_t from = first > at ? first - at : 0;
        const int64_t to = ls__min(end - at, parts[i].count);
        if (from < to) {
            step(args, &parts[i], from, to - from);
        }
    }
}

/* Where share `index` of `shares` begins. The division comes first: a product could overflow. */
static int64_t share_begin(int64_t total, int64_t index, int64_t shares)
{
    const int64_t begin = total / shares * index + total % shares * index / shares;
    return index == shares ? total : begin / SHARE_UNIT * SHARE_UNIT;
}

static void step_all(const ls__step_part *parts, int64_t part_count, step_range *step,
                     const void *args)
{
    int64_t total = 0;
    for (int64_t i = 0; i < part_count; i++) {
        total += parts[i].count;
    }
    const int64_t shares = total >= LS__PARALLEL_MIN ? ls__threads_own() : 1;
    LS__PARALLEL_FOR(shares > 1, int64_t i = 0, i < shares, i++, {
        step_share(parts, part_count, share_begin(total, i, shares),
                   share_begin(total, i + 1, shares), step, args);
    })
}

/* Operands of a loop over float32. */
typedef struct operands {
    float *param, *state[LS__STEP_STATE_MAX];
    const float *grad;
} operands;

static operands operands_at(const ls__step_part *part, int64_t from, const float *grad)
{
    operands on = {.param = part->param + from, .grad = grad};
    for (int s = 0; s < LS__STEP_STATE_MAX; s++) {
        on.state[s] = part->state[s] != NULL ? part->state[s] + from : NULL;
    }
    return on;
}

/* Where a master copy does not round to its parameter, it becomes the parameter. */
static void refresh(float *restrict master, const ls__bfloat16 *restrict rounded, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        const bool stale = ls__bfloat16_round(master[i]) != rounded[i];
        master[i] = stale ? ls__bfloat16_widen(rounded[i]) : master[i];
    }
}

/* One loop of a step, over float32 operands. */
typedef void step_loop(const void *factors, const operands *on, int64_t count);

/* Runs the loop over elements [from, from + count) of the part, by blocks where its gradient or its
 * parameter is bfloat16. */
static void run_range(step_loop *loop, const void *factors, const ls__step_part *part, int64_t from,
                      int64_t count)
{
    _Alignas(64) float wide[LS__HALF_BLOCK];
    const bool half = part->grad.half || part->rounded != NULL;
    const int64_t step = half ? LS__HALF_BLOCK : count;
    for (int64_t end = from + count; from < end; from += step) {
        const int64_t n = ls__min(step, end - from);
        const operands on = operands_at(part, from, ls__real_read(wide, part->grad, from, n));
        if (part->rounded != NULL) {
            refresh(on.param, part->rounded + from, n);
        }
        loop(factors, &on, n);
        if (part->rounded != NULL) {
            ls__halves_narrow(part->rounded + from, on.param, n);
        }
    }
}

/* ---- Adam and AdamW ------------------------------------------------------------------------- */

typedef struct adam_factors { /* constants of a step, rounded once */
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float keep;        /* AdamW: 1 - lr*weight_decay; Adam: 1 */
    float decay;       /* Adam: weight_decay; AdamW: 0 */
    float step;        /* lr / (1 - beta1^t) */
    float root_factor; /* 1 / sqrt(1 - beta2^t) */
    float eps;
} adam_factors;

/* Everything that is the same for all elements of a part, computed once in float64: 1 - beta2^t
 * loses digits in float32. */
static adam_factors adam_factors_of(const ls__adamw_args *a, const ls__step_part *part)
{
    const double t = (double)part->step;
    return (adam_factors){
        .beta1 = (float)a->beta1,
        .one_minus_beta1 = (float)(1.0 - a->beta1),
        .beta2 = (float)a->beta2,
        .one_minus_beta2 = (float)(1.0 - a->beta2),
        .keep = a->decoupled ? (float)(1.0 - part->lr * part->weight_decay) : 1.0f,
        .decay = a->decoupled ? 0.0f : (float)part->weight_decay,
        .step = (float)(part->lr / (1.0 - pow(a->beta1, t))),
        .root_factor = (float)(1.0 / sqrt(1.0 - pow(a->beta2, t))),
        .eps = (float)a->eps,
    };
}

/* restrict: parameter, gradient and moments are four buffers, which the loop may vectorise over. */
static void adamw_loop(const void *factors, const operands *on, int64_t count)
{
    float *restrict param = on->param;
    float *restrict exp_avg = on->state[0];
    float *restrict exp_avg_sq = on->state[1];
    const float *restrict grad = on->grad;
    const adam_factors c = *(const adam_factors *)factors;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] + c.decay * param[i];
        float m = c.beta1 * exp_avg[i] + c.one_minus_beta1 * g;
        float v = c.beta2 * exp_avg_sq[i] + c.one_minus_beta2 * g * g;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        param[i] = c.keep * param[i] - c.step * m / (sqrtf(v) * c.root_factor + c.eps);
    }
}

static void adamw_range(const void *args, const ls__step_part *part, int64_t from, int64_t count)
{
    const adam_factors factors = adam_factors_of(args, part);
    run_range(adamw_loop, &factors, part, from, count);
}

void LS__K(adamw)(const ls__adamw_args *args, ls_stream *stream)
{
    (void)stream;
    step_all(args->parts, args->part_count, adamw_range, args);
}

/* ---- SGD ------------------------------------------------------------------------------------ */

typedef struct sgd_factors {
    float lr, decay, momentum, gain;
    float along_g, along_b; /* the step goes along g + momentum buffer (Nesterov), or the buffer */
    bool first;             /* the buffer may hold anything, and becomes g */
} sgd_factors;

static sgd_factors sgd_factors_of(const ls__sgd_args *a, const ls__step_part *part)
{
    const bool first = part->step == 1;
    return (sgd_factors){.lr = (float)part->lr,
                         .decay = (float)part->weight_decay,
                         .momentum = (float)a->momentum,
                         .gain = first ? 1.0f : (float)(1.0 - a->dampening),
                         .along_g = a->nesterov ? 1.0f : 0.0f,
                         .along_b = a->nesterov ? (float)a->momentum : 1.0f,
                         .first = first};
}

/* Without momentum there is no third buffer to read. */
static void sgd_plain_loop(const void *factors, const operands *on, int64_t count)
{
    float *restrict param = on->param;
    const float *restrict grad = on->grad;
    const sgd_factors c = *(const sgd_factors *)factors;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        param[i] -= c.lr * (grad[i] + c.decay * param[i]);
    }
}

/* buffer = momentum buffer + gain g. */
static void sgd_momentum_loop(const void *factors, const operands *on, int64_t count)
{
    float *restrict param = on->param;
    float *restrict buffer = on->state[0];
    const float *restrict grad = on->grad;
    const sgd_factors c = *(const sgd_factors *)factors;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] + c.decay * param[i];
        float b = c.first ? g : c.momentum * buffer[i] + c.gain * g;
        buffer[i] = b;
        param[i] -= c.lr * (c.along_g * g + c.along_b * b);
    }
}

static void sgd_range(const void *args, const ls__step_part *part, int64_t from, int64_t count)
{
    const sgd_factors factors = sgd_factors_of(args, part);
    run_range(part->state[0] != NULL ? sgd_momentum_loop : sgd_plain_loop, &factors, part, from,
              count);
}

void LS__K(sgd)(const ls__sgd_args *args, ls_stream *stream)
{
    (void)stream;
    step_all(args->parts, args->part_count, sgd_range, args);
}

/* ---- RMSprop -------------------------------------------------------------------------------- */

typedef struct rmsprop_factors {
    float lr, decay, alpha, one_minus_alpha, eps, momentum;
} rmsprop_factors;

static rmsprop_factors rmsprop_factors_of(const ls__rmsprop_args *a, const ls__step_part *part)
{
    return (rmsprop_factors){.lr = (float)part->lr,
                             .decay = (float)part->weight_decay,
                             .alpha = (float)a->alpha,
                             .one_minus_alpha = (float)(1.0 - a->alpha),
                             .eps = (float)a->eps,
                             .momentum = (float)a->momentum};
}

/* Of the four forms; `centered` and `momentum` are constants where it is called. */
LS__INLINE void rmsprop_form(const void *factors, const operands *on, int64_t count, bool centered,
                             bool momentum)
{
    float *restrict param = on->param;
    float *restrict square = on->state[0];
    float *restrict mean = on->state[1];
    float *restrict buffer = on->state[centered ? 2 : 1];
    const float *restrict grad = on->grad;
    const rmsprop_factors c = *(const rmsprop_factors *)factors;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] + c.decay * param[i];
        float v = c.alpha * square[i] + c.one_minus_alpha * g * g;
        square[i] = v;
        if (centered) {
            float m = c.alpha * mean[i] + c.one_minus_alpha * g;
            mean[i] = m;
            v = v > m * m ? v - m * m : 0.0f; /* rounding alone makes it negative */
        }
        float step = g / (sqrtf(v) + c.eps);
        if (momentum) {
            step += c.momentum * buffer[i];
            buffer[i] = step;
        }
        param[i] -= c.lr * step;
    }
}

static void rmsprop_loop(const void *factors, const operands *on, int64_t count)
{
    rmsprop_form(factors, on, count, false, false);
}

static void rmsprop_momentum_loop(const void *factors, const operands *on, int64_t count)
{
    rmsprop_form(factors, on, count, false, true);
}

static void rmsprop_centered_loop(const void *factors, const operands *on, int64_t count)
{
    rmsprop_form(factors, on, count, true, false);
}

static void rmsprop_centered_momentum_loop(const void *factors, const operands *on, int64_t count)
{
    rmsprop_form(factors, on, count, true, true);
}

static void rmsprop_range(const void *args, const ls__step_part *part, int64_t from, int64_t count)
{
    static step_loop *const loops[2][2] = {{rmsprop_loop, rmsprop_momentum_loop},
                                           {rmsprop_centered_loop, rmsprop_centered_momentum_loop}};
    const ls__rmsprop_args *a = args;
    const rmsprop_factors factors = rmsprop_factors_of(a, part);
    const bool momentum = part->state[a->centered ? 2 : 1] != NULL;
    run_range(loops[a->centered][momentum], &factors, part, from, count);
}

void LS__K(rmsprop)(const ls__rmsprop_args *args, ls_stream *stream)
{
    (void)stream;
    step_all(args->parts, args->part_count, rmsprop_range, args);
}
