/* Optimizer steps over a flat parameter of `count` elements, as PyTorch computes them; g is the
 * gradient, t the step from 1.
 *
 *   Adam   m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2   (Kingma & Ba 2015,
 *          x -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)   algorithm 1)
 *   AdamW  (Loshchilov & Hutter 2019, algorithm 2): decay multiplies the parameter by
 *          1 - lr weight_decay instead of entering the gradient
 *   SGD    buf = momentum buf + (1 - dampening) g; Nesterov steps along g + momentum buf
 *
 * float64 inside; each stored number is rounded once. */
#include <math.h>

#include "kernel/ref/ref.h"

/* Loshchilov & Hutter 2019, algorithm 2: the decay is decoupled or, where args say so, part of the
 * gradient as in Adam. */
void ls__ref_adamw(const ls__adamw_args *args, ls_stream *stream)
{
    (void)stream;
    double correction1 = 1.0 - pow(args->beta1, (double)args->step);
    double correction2 = 1.0 - pow(args->beta2, (double)args->step);
    for (int64_t i = 0; i < args->count; i++) {
        double param = (double)args->param[i], grad = (double)args->grad[i];
        if (args->decoupled) {
            param *= 1.0 - args->lr * args->weight_decay;
        } else {
            grad += args->weight_decay * param;
        }
        double m = args->beta1 * (double)args->exp_avg[i] + (1.0 - args->beta1) * grad;
        double v = args->beta2 * (double)args->exp_avg_sq[i] + (1.0 - args->beta2) * grad * grad;
        double denominator = sqrt(v / correction2) + args->eps;
        args->param[i] = (float)(param - args->lr * (m / correction1) / denominator);
        args->exp_avg[i] = (float)m;
        args->exp_avg_sq[i] = (float)v;
    }
}

/* PyTorch's form: the learning rate multiplies the momentum buffer, not the gradient that enters
 * it. */
void ls__ref_sgd(const ls__sgd_args *args, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < args->count; i++) {
        double param = (double)args->param[i];
        double grad = (double)args->grad[i] + args->weight_decay * param;
        double step = grad;
        if (args->momentum_buffer != NULL) {
            double former = (double)args->momentum_buffer[i];
            double buffer =
                args->first ? grad : args->momentum * former + (1.0 - args->dampening) * grad;
            args->momentum_buffer[i] = (float)buffer;
            step = args->nesterov ? grad + args->momentum * buffer : buffer;
        }
        args->param[i] = (float)(param - args->lr * step);
    }
}
