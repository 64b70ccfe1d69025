/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps over the parts of a call, as PyTorch computes them; g is the gradient, t the step
 * from 1.
 *
 *   Adam   m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2   (Kingma & Ba 2015,
 *          x -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)   algorithm 1)
 *   AdamW  (Loshchilov & Hutter 2019, algorithm 2): decay multiplies the parameter by
 *          1 - lr weight_decay instead of entering the gradient
 *   SGD    buf = momentum buf + (1 - dampening) g; Nesterov steps along g + momentum buf
 *   RMSprop  v = alpha v + (1 - alpha) g^2, m = alpha m + (1 - alpha) g
 *          d = g / (sqrt(v - m^2) + eps), or sqrt(v) if not centered; x -= lr (momentum buf + d)
 *
 * float64 inside; each stored number is rounded once. */
#include <math.h>

#include "kernel/ref/ref.h"

/* The value that the step of element i begins from; see ls__step_part. */
static double value_of(const ls__step_part *p, int64_t i)
{
    const bool stale = p->rounded != NULL && ls__bfloat16_round(p->param[i]) != p->rounded[i];
    return (double)(stale ? ls__bfloat16_widen(p->rounded[i]) : p->param[i]);
}

static void set_value(const ls__step_part *p, int64_t i, double value)
{
    p->param[i] = (float)value;
    if (p->rounded != NULL) {
        p->rounded[i] = ls__bfloat16_round(p->param[i]);
    }
}

/* Loshchilov & Hutter 2019, algorithm 2: the decay is decoupled or, where args say so, part of the
 * gradient as in Adam. */
static void adamw_part(const ls__adamw_args *args, const ls__step_part *p)
{
    const double correction1 = 1.0 - pow(args->beta1, (double)p->step);
    const double correction2 = 1.0 - pow(args->beta2, (double)p->step);
    float *exp_avg = p->state[0], *exp_avg_sq = p->state[1];
    for (int64_t i = 0; i < p->count; i++) {
        double param = value_of(p, i), grad = ls__ref_read(p->grad.at, p->grad.half, i);
        if (args->decoupled) {
            param *= 1.0 - p->lr * p->weight_decay;
        } else {
            grad += p->weight_decay * param;
        }
        const double m = args->beta1 * (double)exp_avg[i] + (1.0 - args->beta1) * grad;
        const double v = args->beta2 * (double)exp_avg_sq[i] + (1.0 - args->beta2) * grad * grad;
        const double denominator = sqrt(v / correction2) + args->eps;
        set_value(p, i, param - p->lr * (m / correction1) / denominator);
        exp_avg[i] = (float)m;
        exp_avg_sq[i] = (float)v;
    }
}

void ls__ref_adamw(const ls__adamw_args *args, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < args->part_count; i++) {
        adamw_part(args, &args->parts[i]);
    }
}

/* PyTorch's form: the learning rate multiplies the momentum buffer, not the gradient that enters
 * it. */
static void sgd_part(const ls__sgd_args *args, const ls__step_part *p)
{
    float *momentum_buffer = p->state[0];
    for (int64_t i = 0; i < p->count; i++) {
        const double param = value_of(p, i);
        const double grad = ls__ref_read(p->grad.at, p->grad.half, i) + p->weight_decay * param;
        double step = grad;
        if (momentum_buffer != NULL) {
            const double former = (double)momentum_buffer[i];
            const double buffer =
                p->step == 1 ? grad : args->momentum * former + (1.0 - args->dampening) * grad;
            momentum_buffer[i] = (float)buffer;
            step = args->nesterov ? grad + args->momentum * buffer : buffer;
        }
        set_value(p, i, param - p->lr * step);
    }
}

void ls__ref_sgd(const ls__sgd_args *args, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < args->part_count; i++) {
        sgd_part(args, &args->parts[i]);
    }
}

static void rmsprop_part(const ls__rmsprop_args *args, const ls__step_part *p)
{
    float *square = p->state[0], *mean = args->centered ? p->state[1] : NULL;
    float *buffer = p->state[args->centered ? 2 : 1];
    for (int64_t i = 0; i < p->count; i++) {
        const double param = value_of(p, i);
        const double grad = ls__ref_read(p->grad.at, p->grad.half, i) + p->weight_decay * param;
        double v = args->alpha * (double)square[i] + (1.0 - args->alpha) * grad * grad;
        square[i] = (float)v;
        if (mean != NULL) {
            const double m = args->alpha * (double)mean[i] + (1.0 - args->alpha) * grad;
            mean[i] = (float)m;
            v = v > m * m ? v - m * m : 0.0; /* rounding alone makes it negative */
        }
        double step = grad / (sqrt(v) + args->eps);
        if (buffer != NULL) {
            step += args->momentum * (double)buffer[i];
            buffer[i] = (float)step;
        }
        set_value(p, i, param - p->lr * step);
    }
}

void ls__ref_rmsprop(const ls__rmsprop_args *args, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < args->part_count; i++) {
        rmsprop_part(args, &args->parts[i]);
    }
}
