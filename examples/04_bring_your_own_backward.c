/* SPDX-License-Identifier: Apache-2.0 */
/* A hand-written multi-layer perceptron, its backward pass too, made parallel with four calls.
 *
 * No tensors, no autograd: plain arrays, as in a C training code that grew on its own. What was
 * added to make it data-parallel is marked with the numbers (1) to (4); nothing else changed. Each
 * rank trains on its own share of the batch; gradients are averaged while backward still runs.
 *
 *     ./04_bring_your_own_backward                        one process
 *     lockstep run -n 4 ./04_bring_your_own_backward   four workers, same losses
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/random.h>
#include <lockstep/reducer.h>

enum { IN = 16, HIDDEN = 32, OUT = 4, BATCH = 48, STEPS = 60 }; /* BATCH: of all ranks together */

enum { W1, B1, W2, B2, PARAMS };
static const int64_t SIZE[PARAMS] = {IN * HIDDEN, HIDDEN, HIDDEN *OUT, OUT};
static const char *const NAME[PARAMS] = {"w1", "b1", "w2", "b2"};

typedef struct mlp {
    float *value[PARAMS];
    float *grad[PARAMS]; /* sums over this rank's samples, divided by their number */
} mlp;

/* Sample i of the step: a point, and the class it belongs to, by a fixed rule. */
static int sample(int step, int i, float x[IN])
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

/* h = relu(x W1 + b1); p = softmax(h W2 + b2); returns -log p[target]. */
static float forward(const mlp *m, const float x[IN], int target, float h[HIDDEN], float p[OUT])
{
    for (int j = 0; j < HIDDEN; j++) {
        h[j] = m->value[B1][j];
        for (int k = 0; k < IN; k++) {
            h[j] += x[k] * m->value[W1][k * HIDDEN + j];
        }
        h[j] = h[j] > 0.0f ? h[j] : 0.0f;
    }
    float sum = 0.0f;
    for (int c = 0; c < OUT; c++) {
        p[c] = m->value[B2][c];
        for (int j = 0; j < HIDDEN; j++) {
            p[c] += h[j] * m->value[W2][j * OUT + c];
        }
        p[c] = expf(p[c]);
        sum += p[c];
    }
    for (int c = 0; c < OUT; c++) {
        p[c] /= sum;
    }
    return -logf(p[target]);
}

/* The last layer's part of backward: dp = p - onehot; fills dW2, db2 and dh. */
static void backward_output(mlp *m, const float h[HIDDEN], float dp[OUT], float dh[HIDDEN])
{
    for (int j = 0; j < HIDDEN; j++) {
        dh[j] = 0.0f;
        for (int c = 0; c < OUT; c++) {
            dh[j] += dp[c] * m->value[W2][j * OUT + c];
            m->grad[W2][j * OUT + c] += dp[c] * h[j];
        }
        dh[j] = h[j] > 0.0f ? dh[j] : 0.0f;
    }
    for (int c = 0; c < OUT; c++) {
        m->grad[B2][c] += dp[c];
    }
}

static void backward_hidden(mlp *m, const float x[IN], const float dh[HIDDEN])
{
    for (int j = 0; j < HIDDEN; j++) {
        for (int k = 0; k < IN; k++) {
            m->grad[W1][k * HIDDEN + j] += dh[j] * x[k];
        }
        m->grad[B1][j] += dh[j];
    }
}

/* One step over `count` samples from `first` on. Returns the sum of their losses. */
static float step_mlp(mlp *m, ls_reducer *reducer, int step, int first, int count)
{
    float x[BATCH][IN], h[BATCH][HIDDEN], dh[BATCH][HIDDEN], p[OUT], loss = 0.0f;
    LS_CHECK(ls_reducer_begin(reducer, NULL)); /* (2) this backward synchronises */
    for (int i = 0; i < count; i++) {
        int target = sample(step, first + i, x[i]);
        loss += forward(m, x[i], target, h[i], p);
        for (int c = 0; c < OUT; c++) {
            p[c] = (p[c] - (c == target ? 1.0f : 0.0f)) / (float)count;
        }
        backward_output(m, h[i], p, dh[i]);
    }
    LS_CHECK(ls_reducer_ready(reducer, W2, NULL)); /* (3) final: on its way while the rest runs */
    LS_CHECK(ls_reducer_ready(reducer, B2, NULL));
    for (int i = 0; i < count; i++) {
        backward_hidden(m, x[i], dh[i]);
    }
    LS_CHECK(ls_reducer_ready(reducer, W1, NULL));
    LS_CHECK(ls_reducer_ready(reducer, B1, NULL));
    LS_CHECK(ls_reducer_wait(reducer)); /* (4) now every gradient is the average over the ranks */
    for (int i = 0; i < PARAMS; i++) {
        for (int64_t k = 0; k < SIZE[i]; k++) {
            m->value[i][k] -= 0.5f * m->grad[i][k];
        }
        memset(m->grad[i], 0, (size_t)SIZE[i] * sizeof(float));
    }
    LS_CHECK(ls_reducer_zero(reducer));
    return loss;
}

/* The same weights on every rank: numbers that depend on the seed alone. */
static void init_mlp(mlp *m)
{
    for (int i = 0; i < PARAMS; i++) {
        m->value[i] = calloc((size_t)SIZE[i], sizeof(float));
        if (!m->value[i]) {
            fprintf(stderr, "no memory for %s\n", NAME[i]);
            exit(1);
        }
        for (int64_t k = 0; k < SIZE[i]; k++) {
            m->value[i][k] = 0.3f * ls_random_normal(1, (uint64_t)i, (uint64_t)k);
        }
    }
}

int main(void)
{
    LS_CHECK(ls_init(NULL));
    int rank = ls_rank(), world = ls_world_size();
    if (BATCH % world) {
        fprintf(stderr, "the batch of %d samples does not divide by %d ranks\n", BATCH, world);
        return 2;
    }
    mlp m;
    init_mlp(&m);

    ls_reducer_param params[PARAMS];
    for (int i = 0; i < PARAMS; i++) {
        params[i] = (ls_reducer_param){.name = NAME[i], .count = SIZE[i], .dtype = LS_FLOAT32};
    }
    ls_reducer *reducer = NULL;
    LS_CHECK(ls_reducer_new(ls_world(), params, PARAMS, NULL, &reducer)); /* (1) register once */
    for (int i = 0; i < PARAMS; i++) {
        m.grad[i] = params[i].grad; /* gradients live where they are reduced: no copies */
    }

    int share = BATCH / world;
    for (int step = 0; step < STEPS; step++) {
        float loss = step_mlp(&m, reducer, step, rank * share, share);
        if (step % 10 == 0 || step == STEPS - 1) {
            LS_CHECK(ls_all_reduce(ls_world(), &loss, &loss, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
            if (rank == 0) {
                printf("step %2d  loss %.4f\n", step, (double)loss / BATCH);
            }
        }
    }
    float low = m.value[W1][0], high = low;
    LS_CHECK(ls_all_reduce(ls_world(), &low, &low, 1, LS_FLOAT32, LS_MIN, NULL, NULL));
    LS_CHECK(ls_all_reduce(ls_world(), &high, &high, 1, LS_FLOAT32, LS_MAX, NULL, NULL));
    if (rank == 0) {
        printf("w1[0] = %.9g on every rank: %s\n", (double)low, low == high ? "yes" : "NO");
    }
    LS_CHECK(ls_reducer_free(reducer));
    for (int i = 0; i < PARAMS; i++) {
        free(m.value[i]);
    }
    LS_CHECK(ls_finalize());
    return low == high ? 0 : 1;
}
