/* SPDX-License-Identifier: Apache-2.0 */
/* A mixture of experts: every rank has some of the experts, and rows of tokens travel to them.
 *
 *     x ──gate──▶ which experts, how much of each
 *       └─rows──▶ rank of the expert ──expert──▶ back ──weighted sum──▶ y
 *
 * The tokens are points of CLASSES clouds, each of which has a rotation of its own to learn: one
 * small network is too weak for all of them, an expert for each is not. The program trains the same
 * layer twice: on all ranks along the axis "ep", and on each rank for itself with the tokens of all
 * ranks and all experts. It compares the losses, and prints how many tokens each expert got.
 *
 *     lockstep run -n 4 ./10_experts
 *     lockstep train gpt -n 4 --model moe --mesh ep=4 --data …   # a GPT with experts
 */
#include <math.h>
#include <stdio.h>

#include <lockstep/lockstep.h>

enum { WIDTH = 8, HIDDEN = 16, EXPERTS = 8, CLASSES = 8, TOKENS = 128, STEPS = 60 };

/* Tokens of a step that rank `rank` has, and what is to become of them. */
static void make_tokens(int step, int rank, float *x, float *y)
{
    for (int t = 0; t < TOKENS; t++) {
        const uint64_t stream = (uint64_t)(step * 64 + rank), at = (uint64_t)t * 16;
        const int class = (int)(ls_random_uniform(3, stream, at) * CLASSES) % CLASSES;
        for (int c = 0; c < WIDTH; c++) {
            const float noise = ls_random_normal(5, stream, at + (uint64_t)c);
            x[t * WIDTH + c] = 0.5f * noise + (c == class ? 4.0f : 0.0f);
        }
        for (int c = 0; c < WIDTH; c++) { /* turned by as many places as its class says */
            y[t * WIDTH + c] = x[t * WIDTH + (c + class) % WIDTH];
        }
    }
}

/* The layer's loss on the tokens of one rank. */
static ls_tensor *loss_of(ls_module *net, int step, int rank, double *mean)
{
    float x[TOKENS * WIDTH], y[TOKENS * WIDTH];
    make_tokens(step, rank, x, y);
    ls_tensor *out = ls_forward(net, ls_from_data(x, LS_SHAPE(TOKENS, WIDTH), LS_FLOAT32));
    ls_tensor *loss = ls_mse_loss(out, ls_from_data(y, LS_SHAPE(TOKENS, WIDTH), LS_FLOAT32));
    LS_CHECK(ls_item(loss, mean));
    return ls_add(loss, ls_moe_loss(net));
}

/* One step on the tokens of ranks `from` … `to`-1, each counting 1/(to-from). */
static double train_step(ls_module *net, ls_optim *optim, int step, int from, int to)
{
    double sum = 0.0;
    for (int rank = from; rank < to; rank++) {
        LS_SCOPE;
        double mean = 0.0;
        ls_tensor *loss = loss_of(net, step, rank, &mean);
        LS_CHECK(ls_backward(ls_scale(loss, 1.0 / (to - from))));
        sum += mean / (to - from);
    }
    LS_CHECK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    return sum;
}

/* A layer; with a mesh in force each rank has a part of its experts. */
static ls_module *layer(void)
{
    LS_CHECK(ls_manual_seed(1));
    ls_module *net = ls_moe_new(
        WIDTH, HIDDEN, LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .balance_loss = 0.05));
    LS_CHECK(LS_STATUS_OF(net));
    return net;
}

typedef struct result {
    double first, last, largest; /* losses, and the difference between the two trainings' */
    int64_t tokens[EXPERTS];     /* of the last step, all ranks */
} result;

static result train(ls_mesh *mesh)
{
    result r = {0};
    const int rank = ls_rank(), ranks = ls_world_size();
    ls_module *all = ls_ddp_new(layer(), ls_world(), NULL);
    ls_optim *steps = ls_adamw_new(all, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
    LS_CHECK(ls_mesh_use(NULL));
    ls_module *one = layer();
    ls_optim *alone = ls_adamw_new(one, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
    for (int step = 0; step < STEPS; step++) {
        LS_CHECK(ls_mesh_use(mesh));
        double loss = train_step(all, steps, step, rank, rank + 1);
        LS_CHECK(ls_metric_mean(ls_world(), loss, 1.0, &loss));
        LS_CHECK(ls_mesh_use(NULL));
        r.largest = fmax(r.largest, fabs(loss - train_step(one, alone, step, 0, ranks)));
        r.first = step == 0 ? loss : r.first;
        r.last = loss;
    }
    LS_CHECK(ls_moe_counts(all, r.tokens, NULL));
    LS_CHECK(ls_all_reduce(ls_world(), r.tokens, r.tokens, EXPERTS, LS_INT64, LS_SUM, NULL, NULL));
    ls_optim_free(alone);
    ls_module_free(one);
    ls_optim_free(steps);
    LS_CHECK(ls_mesh_use(mesh));
    ls_module_free(all);
    return r;
}

int main(void)
{
    ls_mesh *mesh = NULL;
    LS_CHECK(ls_init(NULL));
    const int ranks = ls_world_size();
    if (EXPERTS % ranks != 0) {
        (void)fprintf(stderr, "%d experts for %d ranks; start 1, 2, 4 or 8\n", EXPERTS, ranks);
        return 2;
    }
    LS_CHECK(ls_mesh_new(ls_world(), "ep=*", &mesh));
    const result r = train(mesh);
    if (ls_rank() == 0) {
        (void)printf("tokens of each expert in the last step:");
        for (int e = 0; e < EXPERTS; e++) {
            (void)printf(" %lld", (long long)r.tokens[e]);
        }
        (void)printf("\nloss %.4f -> %.4f on %d rank%s; %s one process' with all experts\n",
                     r.first, r.last, ranks, ranks == 1 ? "" : "s",
                     r.largest < 1e-4 ? "within 1e-4 of" : "not within 1e-4 of");
    }
    LS_CHECK(ls_mesh_free(mesh));
    return ls_finalize() == LS_OK ? 0 : 1;
}
