/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps over the parts of a call, in chunks of a part for each block: all parameters, or
 * the ranges of flat buckets, in a few starts. Formulas are those of kernel/ref/optim.c. */
#include "common.cuh"

/* The part of a block, and its elements [from, to): none, if the step is not to be made. */
static __device__ int part_of_block(const cuda_step_args &k, int64_t *from, int64_t *to)
{
    int part = 0;
    while (part + 1 < k.count && (int64_t)blockIdx.x >= k.first_block[part + 1]) {
        part++;
    }
    *from = ((int64_t)blockIdx.x - k.first_block[part]) * LS__CUDA_STEP_CHUNK;
    *to = *from + LS__CUDA_STEP_CHUNK;
    *to = *to < k.part[part].count ? *to : k.part[part].count;
    *to = k.gate == NULL || *k.gate == *k.gate ? *to : *from;
    return part;
}

/* What a captured step reads where the arguments would be the same in every replay. */
static __device__ __inline__ double lr_of(const ls__step_part &p)
{
    return p.varies != NULL ? p.varies->lr : p.lr;
}

static __device__ __inline__ int64_t step_of(const ls__step_part &p)
{
    return p.varies != NULL ? p.varies->step : p.step;
}

/* Where the master copy does not round to the parameter, the parameter holds. */
static __device__ __inline__ float value_of(const ls__step_part &p, int64_t i)
{
    const bool stale = p.rounded != NULL && ls__bfloat16_round(p.param[i]) != p.rounded[i];
    return stale ? ls__bfloat16_widen(p.rounded[i]) : p.param[i];
}

static __device__ __inline__ void set_value(const ls__step_part &p, int64_t i, float value)
{
    p.param[i] = value;
    if (p.rounded != NULL) {
        p.rounded[i] = ls__bfloat16_round(value);
    }
}

KERNEL(adamw_parts)
{
    int64_t from, to;
    const int at = part_of_block(k, &from, &to);
    const ls__step_part &p = k.part[at];
    const float *correction = p.varies != NULL ? p.varies->correction : k.correction[at];
    const float correct1 = correction[0], correct2 = correction[1];
    const float lr = (float)lr_of(p), decay = (float)p.weight_decay, eps = (float)k.eps;
    const float keep = (float)(1.0 - lr_of(p) * p.weight_decay);
    const float beta1 = (float)k.beta1, beta2 = (float)k.beta2;
    const float rest1 = (float)(1.0 - k.beta1), rest2 = (float)(1.0 - k.beta2);
    for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
        float param = value_of(p, i), grad = get(p.grad, i);
        if (k.decoupled) {
            param *= keep;
        } else {
            grad += decay * param;
        }
        const float m = beta1 * p.state[0][i] + rest1 * grad;
        const float v = beta2 * p.state[1][i] + rest2 * grad * grad;
        p.state[0][i] = m;
        p.state[1][i] = v;
        const float denominator = sqrtf(v / correct2) + eps;
        set_value(p, i, param - lr * (m / correct1) / denominator);
    }
}

KERNEL(sgd_parts)
{
    int64_t from, to;
    const ls__step_part &p = k.part[part_of_block(k, &from, &to)];
    const float lr = (float)lr_of(p), decay = (float)p.weight_decay;
    const float momentum = (float)k.momentum, rest = (float)(1.0 - k.dampening);
    for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
        const float param = value_of(p, i), grad = get(p.grad, i) + decay * param;
        float step = grad;
        if (p.state[0] != NULL) {
            const float buffer = step_of(p) == 1 ? grad : momentum * p.state[0][i] + rest * grad;
            p.state[0][i] = buffer;
            step = k.nesterov ? grad + momentum * buffer : buffer;
        }
        set_value(p, i, param - lr * step);
    }
}

KERNEL(rmsprop_parts)
{
    int64_t from, to;
    const ls__step_part &p = k.part[part_of_block(k, &from, &to)];
    const float lr = (float)lr_of(p), decay = (float)p.weight_decay, eps = (float)k.eps;
    const float alpha = (float)k.alpha, rest = (float)(1.0 - k.alpha), momentum = (float)k.momentum;
    float *const mean = k.centered ? p.state[1] : NULL;
    float *const buffer = p.state[k.centered ? 2 : 1];
    for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
        const float param = value_of(p, i), grad = get(p.grad, i) + decay * param;
        float v = alpha * p.state[0][i] + rest * grad * grad;
        p.state[0][i] = v;
        if (mean != NULL) {
            const float m = alpha * mean[i] + rest * grad;
            mean[i] = m;
            v = v > m * m ? v - m * m : 0.0f; /* rounding alone makes it negative */
        }
        float step = grad / (sqrtf(v) + eps);
        if (buffer != NULL) {
            step += momentum * buffer[i];
            buffer[i] = step;
        }
        set_value(p, i, param - lr * step);
    }
}

KERNEL(step_verdict)
{
    if (threadIdx.x != 0) {
        return;
    }
    int64_t verdict = -1;
    for (int64_t i = 0; i < k.count; i++) {
        verdict = *(const int64_t *)(k.checks + i * k.bytes) < 0 ? verdict : k.rank;
    }
    *k.to = verdict;
}

/* One thread: there are as many squares as parameters, and their order is the host's. */
KERNEL(step_gate)
{
    const ls__step_gate &g = k.of;
    if (threadIdx.x != 0) {
        return;
    }
    double squares = 0.0;
    for (int64_t i = 0; i < g.count; i++) {
        squares += g.squares[i];
    }
    const double norm = sqrt(squares);
    bool well = isfinite(norm);
    for (int64_t i = 0; i < g.check_count; i++) {
        well = well && *(const int64_t *)((const char *)g.checks + i * g.check_bytes) < 0;
    }
    const double factor = g.max_norm / (norm + g.eps);
    ((int64_t *)g.slot)[0] = -1;
    ((double *)g.slot)[1] = norm;
    ((float *)g.slot)[LS__STEP_GATE_FACTOR] =
        !well ? NAN : factor < 1.0 ? (float)factor : 1.0f;
}
