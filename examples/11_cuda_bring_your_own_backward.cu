/* SPDX-License-Identifier: Apache-2.0 */
/* The perceptron of 04_bring_your_own_backward.c in CUDA, made parallel over GPUs with the same
 * four calls, (1) to (4). Gradients live in memory of the GPU (ncclMemAlloc, registered once), each
 * bucket is averaged by NCCL beside the kernels of backward, and the host never waits for the GPU
 * in a step: ls_reducer_ready and ls_reducer_wait only put events into the stream.
 *
 *     nvcc 11_cuda_bring_your_own_backward.cu -o cuda_mlp $(pkg-config --cflags --libs lockstep)
 *     ./cuda_mlp                        one GPU
 *     lockstep run -n 4 ./cuda_mlp      four GPUs, same losses
 *
 * Nothing here is linked with NCCL: the backend "nccl" finds libnccl.so.2 when the group is made
 * (docs/backends.md).
 */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime.h>
#include <lockstep/random.h>
#include <lockstep/reducer.h>

enum { IN = 16, HIDDEN = 32, OUT = 4, BATCH = 48, STEPS = 60 }; /* BATCH: of all ranks together */
enum { W1, B1, W2, B2, PARAMS };
static const int64_t SIZE[PARAMS] = {IN * HIDDEN, HIDDEN, HIDDEN * OUT, OUT};
static const char *const NAME[PARAMS] = {"w1", "b1", "w2", "b2"};

#define CUDA_CHECK(call)                                                                           \
    do {                                                                                           \
        const cudaError_t error_ = (call);                                                         \
        if (error_ != cudaSuccess) {                                                               \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(error_));                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct mlp {
    float *value[PARAMS], *grad[PARAMS];    /* on the GPU, as all that follows */
    float *x, *h, *p, *dh, *loss;           /* [BATCH][IN], [BATCH][HIDDEN], [BATCH][OUT], … */
    int *target;                            /* [BATCH] */
    cudaStream_t stream;
};

/* ---- kernels ------------------------------------------------------------------------------- */

/* A block for each sample, a thread for each hidden unit: h = relu(x W1 + b1). */
__global__ void hidden_forward(mlp m)
{
    const int i = blockIdx.x, j = threadIdx.x;
    float sum = m.value[B1][j];
    for (int k = 0; k < IN; k++) {
        sum += m.x[i * IN + k] * m.value[W1][k * HIDDEN + j];
    }
    m.h[i * HIDDEN + j] = fmaxf(sum, 0.0f);
}

/* p = softmax(h W2 + b2); then dp = (p - onehot) / count in its place, and the loss is added. */
__global__ void output_forward_backward(mlp m, int count)
{
    const int i = threadIdx.x;
    float p[OUT], sum = 0.0f;
    for (int c = 0; c < OUT; c++) {
        p[c] = m.value[B2][c];
        for (int j = 0; j < HIDDEN; j++) {
            p[c] += m.h[i * HIDDEN + j] * m.value[W2][j * OUT + c];
        }
        p[c] = expf(p[c]);
        sum += p[c];
    }
    atomicAdd(m.loss, -logf(p[m.target[i]] / sum));
    for (int c = 0; c < OUT; c++) {
        m.p[i * OUT + c] = (p[c] / sum - (c == m.target[i] ? 1.0f : 0.0f)) / (float)count;
    }
}

/* A thread for each weight: dW2 and db2, and dh, whose units are as many as the rows of W2. */
__global__ void output_backward(mlp m, int count)
{
    const int j = threadIdx.x, c = threadIdx.y;
    float dw = 0.0f, db = 0.0f;
    for (int i = 0; i < count; i++) {
        dw += m.p[i * OUT + c] * m.h[i * HIDDEN + j];
        db += m.p[i * OUT + c];
    }
    m.grad[W2][j * OUT + c] = dw;
    if (j == 0) {
        m.grad[B2][c] = db;
    }
    for (int i = c; i < count; i += OUT) {
        float dh = 0.0f;
        for (int o = 0; o < OUT; o++) {
            dh += m.p[i * OUT + o] * m.value[W2][j * OUT + o];
        }
        m.dh[i * HIDDEN + j] = m.h[i * HIDDEN + j] > 0.0f ? dh : 0.0f;
    }
}

__global__ void hidden_backward(mlp m, int count)
{
    const int k = blockIdx.x, j = threadIdx.x;
    float dw = 0.0f, db = 0.0f;
    for (int i = 0; i < count; i++) {
        dw += m.dh[i * HIDDEN + j] * m.x[i * IN + k];
        db += m.dh[i * HIDDEN + j];
    }
    m.grad[W1][k * HIDDEN + j] = dw;
    if (k == 0) {
        m.grad[B1][j] = db;
    }
}

__global__ void descend(float *value, const float *grad, int64_t count)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        value[i] -= 0.5f * grad[i];
    }
}

/* ---- a step -------------------------------------------------------------------------------- */

/* Sample i of the step: a point, and the class it belongs to, by a fixed rule. */
static int sample(int step, int i, float *x)
{
    float score[OUT] = {0};
    for (int k = 0; k < IN; k++) {
        x[k] = ls_random_normal(7, (uint64_t)step, (uint64_t)(i * IN + k));
        score[k % OUT] += x[k];
    }
    int best = 0;
    for (int c = 1; c < OUT; c++) {
        best = score[c] > score[best] ? c : best;
    }
    return best;
}

static void step_mlp(mlp *m, ls_reducer *reducer, int step, int first, int count)
{
    float x[BATCH * IN];
    int target[BATCH];
    ls_stream *stream = (ls_stream *)m->stream;
    for (int i = 0; i < count; i++) {
        target[i] = sample(step, first + i, x + i * IN);
    }
    CUDA_CHECK(cudaMemcpyAsync(m->x, x, sizeof(float) * count * IN, cudaMemcpyHostToDevice,
                               m->stream));
    CUDA_CHECK(cudaMemcpyAsync(m->target, target, sizeof(int) * count, cudaMemcpyHostToDevice,
                               m->stream));
    CUDA_CHECK(cudaMemsetAsync(m->loss, 0, sizeof(float), m->stream));

    ls_reducer_begin_options begin = ls_reducer_begin_defaults();
    begin.stream = stream;
    LS_CHECK(ls_reducer_begin(reducer, &begin)); /* (2) this backward synchronises */
    hidden_forward<<<count, HIDDEN, 0, m->stream>>>(*m);
    output_forward_backward<<<1, count, 0, m->stream>>>(*m, count);
    output_backward<<<1, dim3(HIDDEN, OUT), 0, m->stream>>>(*m, count);
    LS_CHECK(ls_reducer_ready(reducer, W2, stream)); /* (3) final after the kernel above */
    LS_CHECK(ls_reducer_ready(reducer, B2, stream));
    hidden_backward<<<IN, HIDDEN, 0, m->stream>>>(*m, count);
    LS_CHECK(ls_reducer_ready(reducer, W1, stream));
    LS_CHECK(ls_reducer_ready(reducer, B1, stream));
    LS_CHECK(ls_reducer_wait(reducer)); /* (4) kernels from here on see the averages */
    for (int i = 0; i < PARAMS; i++) {
        descend<<<(unsigned)((SIZE[i] + 127) / 128), 128, 0, m->stream>>>(m->value[i], m->grad[i],
                                                                          SIZE[i]);
    }
    LS_CHECK(ls_reducer_zero(reducer));
    CUDA_CHECK(cudaGetLastError());
}

/* The same weights on every rank: numbers that depend on the seed alone. */
static void init_mlp(mlp *m)
{
    CUDA_CHECK(cudaStreamCreate(&m->stream));
    for (int i = 0; i < PARAMS; i++) {
        float values[IN * HIDDEN];
        for (int64_t k = 0; k < SIZE[i]; k++) {
            values[k] = 0.3f * ls_random_normal(1, (uint64_t)i, (uint64_t)k);
        }
        CUDA_CHECK(cudaMalloc(&m->value[i], SIZE[i] * sizeof(float)));
        CUDA_CHECK(cudaMemcpy(m->value[i], values, SIZE[i] * sizeof(float),
                              cudaMemcpyHostToDevice));
    }
    CUDA_CHECK(cudaMalloc(&m->x, BATCH * IN * sizeof(float)));
    CUDA_CHECK(cudaMalloc(&m->h, BATCH * HIDDEN * sizeof(float)));
    CUDA_CHECK(cudaMalloc(&m->p, BATCH * OUT * sizeof(float)));
    CUDA_CHECK(cudaMalloc(&m->dh, BATCH * HIDDEN * sizeof(float)));
    CUDA_CHECK(cudaMalloc(&m->loss, sizeof(float)));
    CUDA_CHECK(cudaMalloc(&m->target, BATCH * sizeof(int)));
}

int main(void)
{
    LS_CHECK(ls_init(NULL));
    const int rank = ls_rank(), world = ls_world_size();
    int devices = 0;
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    CUDA_CHECK(cudaSetDevice(ls_local_rank() % devices));
    if (BATCH % world) {
        fprintf(stderr, "the batch of %d samples does not divide by %d ranks\n", BATCH, world);
        return 2;
    }
    mlp m;
    init_mlp(&m);

    ls_group *group = NULL;
    ls_group_options over = ls_group_defaults();
    over.backend = "nccl";
    over.name = "gradients";
    LS_CHECK(ls_group_create(ls_world(), &over, &group));
    ls_reducer_param params[PARAMS];
    for (int i = 0; i < PARAMS; i++) {
        params[i] = ls_reducer_param{};
        params[i].name = NAME[i];
        params[i].count = SIZE[i];
        params[i].dtype = LS_FLOAT32;
    }
    ls_reducer *reducer = NULL;
    LS_CHECK(ls_reducer_new(group, params, PARAMS, NULL, &reducer)); /* (1) register once */
    for (int i = 0; i < PARAMS; i++) {
        m.grad[i] = (float *)params[i].grad;
    }

    const int share = BATCH / world;
    for (int step = 0; step < STEPS; step++) {
        step_mlp(&m, reducer, step, rank * share, share);
        if (step % 10 == 0 || step == STEPS - 1) { /* the only places where the host waits */
            float loss = 0.0f;
            CUDA_CHECK(cudaMemcpyAsync(&loss, m.loss, sizeof loss, cudaMemcpyDeviceToHost,
                                       m.stream));
            CUDA_CHECK(cudaStreamSynchronize(m.stream));
            LS_CHECK(ls_all_reduce(ls_world(), &loss, &loss, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
            if (rank == 0) {
                printf("step %2d  loss %.4f\n", step, (double)loss / BATCH);
            }
        }
    }
    float first = 0.0f, low, high;
    CUDA_CHECK(cudaMemcpy(&first, m.value[W1], sizeof first, cudaMemcpyDeviceToHost));
    LS_CHECK(ls_all_reduce(ls_world(), &first, &low, 1, LS_FLOAT32, LS_MIN, NULL, NULL));
    LS_CHECK(ls_all_reduce(ls_world(), &first, &high, 1, LS_FLOAT32, LS_MAX, NULL, NULL));
    if (rank == 0) {
        printf("w1[0] = %.9g on every rank: %s\n", (double)low, low == high ? "yes" : "NO");
    }
    LS_CHECK(ls_reducer_free(reducer));
    LS_CHECK(ls_group_free(group));
    LS_CHECK(ls_finalize());
    return low == high ? 0 : 1;
}
