/* Optimizer steps: one pass over the flat bucket, float32 inside as PyTorch's; formulas in
 * ref/optim.c. */
#include <math.h>

#include "kernel/cpu/isa.h"

typedef struct adam_factors { /* constants of a step, rounded once */
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float keep;        /* AdamW: 1 - lr*weight_decay; Adam: 1 */
    float decay;       /* Adam: weight_decay; AdamW: 0 */
    float step;        /* lr / (1 - beta1^t) */
    float root_factor; /* 1 / sqrt(1 - beta2^t) */
    float eps;
} adam_factors;

/* Everything that is the same for all elements, computed once in float64: 1 - beta2^t loses digits
 * in float32. */
static adam_factors factors_of(const ls__adamw_args *a)
{
    double t = (double)a->step;
    return (adam_factors){
        .beta1 = (float)a->beta1,
        .one_minus_beta1 = (float)(1.0 - a->beta1),
        .beta2 = (float)a->beta2,
        .one_minus_beta2 = (float)(1.0 - a->beta2),
        .keep = a->decoupled ? (float)(1.0 - a->lr * a->weight_decay) : 1.0f,
        .decay = a->decoupled ? 0.0f : (float)a->weight_decay,
        .step = (float)(a->lr / (1.0 - pow(a->beta1, t))),
        .root_factor = (float)(1.0 / sqrt(1.0 - pow(a->beta2, t))),
        .eps = (float)a->eps,
    };
}

/* One task of a step; each element on its own. restrict: parameter, gradient and moments are
 * four buffers, which the loop may vectorise over. */
static void adamw_block(const ls__adamw_args *args, const adam_factors *f, int64_t from,
                        int64_t count)
{
    float *restrict param = args->param + from;
    float *restrict exp_avg = args->exp_avg + from;
    float *restrict exp_avg_sq = args->exp_avg_sq + from;
    const float *restrict grad = args->grad + from;
    const adam_factors c = *f;
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

/* Constants once, then blocks of elements, a task each. */
void LS__K(adamw)(const ls__adamw_args *args, ls_stream *stream)
{
    (void)stream;
    adam_factors factors = factors_of(args);
    LS__PARALLEL_FOR(args->count >= LS__PARALLEL_MIN, int64_t i = 0, i < args->count,
                     i += LS__BLOCK,
                     { adamw_block(args, &factors, i, ls__min(LS__BLOCK, args->count - i)); })
}

/* Without momentum there is no third buffer to read. */
static void sgd_plain(float *restrict param, const float *restrict grad, int64_t count, float lr,
                      float decay)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        param[i] -= lr * (grad[i] + decay * param[i]);
    }
}

/* buffer = momentum buffer + gain g; the step goes along g + momentum buffer (Nesterov), or
 * along the buffer. In the first step the buffer becomes g. */
static void sgd_momentum(const ls__sgd_args *args, int64_t from, int64_t count)
{
    float *restrict param = args->param + from;
    float *restrict buffer = args->momentum_buffer + from;
    const float *restrict grad = args->grad + from;
    float lr = (float)args->lr, decay = (float)args->weight_decay;
    float momentum = (float)args->momentum;
    float gain = args->first ? 1.0f : (float)(1.0 - args->dampening);
    float along_g = args->nesterov ? 1.0f : 0.0f, along_b = args->nesterov ? momentum : 1.0f;
    bool first = args->first; /* the buffer may hold anything then */
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] + decay * param[i];
        float b = first ? g : momentum * buffer[i] + gain * g;
        buffer[i] = b;
        param[i] -= lr * (along_g * g + along_b * b);
    }
}

/* With or without momentum, by blocks of elements. */
void LS__K(sgd)(const ls__sgd_args *args, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(args->count >= LS__PARALLEL_MIN, int64_t i = 0, i < args->count,
                     i += LS__BLOCK, {
                         int64_t count = ls__min(LS__BLOCK, args->count - i);
                         if (args->momentum_buffer != NULL) {
                             sgd_momentum(args, i, count);
                         } else {
                             sgd_plain(args->param + i, args->grad + i, count, (float)args->lr,
                                       (float)args->weight_decay);
                         }
                     })
}
