/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes of a job of two ranks, with Lockstep: rank 1 makes them. `reproduce` builds and runs it.
 */
#include <lockstep/lockstep.h>

#include "mistake.h"

static int rank;
static float a[2 * COUNT], b[2 * COUNT];

static void fill(void)
{
    for (int i = 0; i < 2 * COUNT; i++) {
        a[i] = (float)(rank + 1);
        b[i] = (float)(100 * (rank + 1));
    }
}

static void sum(float *buf, const char *tag)
{
    LS_CHECK(ls_all_reduce(ls_world(), buf, buf, COUNT, LS_FLOAT32, LS_SUM,
                           LS_OPTIONS(ls_collective_options, .tag = tag), NULL));
}

/* Calls that differ between the ranks. */
static void disagree(void)
{
    static const char *const here[] = {"shape",     "dtype", "op",      "root",
                                       "operation", "order", "missing", NULL};
    const bool wrong = rank == 1;
    if (wrong && is_one_of(here)) {
        note_fault();
    }
    if (is("shape")) {
        LS_CHECK(ls_all_reduce(ls_world(), a, a, wrong ? 2 * COUNT : COUNT, LS_FLOAT32, LS_SUM,
                               NULL, NULL));
    } else if (is("dtype")) {
        LS_CHECK(ls_all_reduce(ls_world(), a, a, COUNT, wrong ? LS_INT32 : LS_FLOAT32, LS_SUM, NULL,
                               NULL));
    } else if (is("op")) {
        LS_CHECK(ls_all_reduce(ls_world(), a, a, COUNT, LS_FLOAT32, wrong ? LS_MAX : LS_SUM, NULL,
                               NULL));
    } else if (is("root")) {
        LS_CHECK(ls_broadcast(ls_world(), a, COUNT, LS_FLOAT32, rank, NULL, NULL));
    } else if (is("operation")) {
        if (wrong) {
            LS_CHECK(ls_broadcast(ls_world(), a, COUNT, LS_FLOAT32, 0, NULL, NULL));
        } else {
            sum(a, NULL);
        }
    } else if (is("order")) {
        sum(wrong ? b : a, wrong ? "b" : "a");
        sum(wrong ? a : b, wrong ? "a" : "b");
        tell_silent(rank, "ls_all_reduce of two buffers in another order", a[0], b[0]);
    } else if (is("missing")) {
        if (rank == 0) {
            sum(a, "a");
        }
        sum(b, "b");
        tell_silent(rank, "ls_all_reduce of the second buffer", b[0], b[COUNT - 1]);
    }
}

/* A tensor that cannot be had is an error like any other: it comes out of the next check. */
static void run_out_of_memory(void)
{
    note_fault();
    LS_SCOPE;
    LS_CHECK(ls_tensor_status(ls_zeros(LS_SHAPE((int64_t)1 << 46), LS_FLOAT32)));
}

/* ---- training -------------------------------------------------------------------------------- */

typedef struct small {
    ls_module base;
    ls_module *fc1, *fc2, *spare;
} small;

static ls_tensor *small_forward(ls_module *m, ls_tensor *x)
{
    small *self = (small *)m;
    x = ls_forward(self->fc2, ls_relu(ls_forward(self->fc1, x)));
    return is("unused") && rank == 1 ? x : ls_forward(self->spare, x);
}
static const ls_module_class small_class =
    LS_MODULE_CLASS(.name = "small", .forward = small_forward);

static ls_module *small_new(void)
{
    const int64_t hidden = is("model") && rank == 1 ? 32 : 16;
    small *self = ls_module_new(sizeof *self, &small_class);
    self->fc1 = ls_module_add(&self->base, "fc1", ls_linear_new(16, hidden, NULL));
    self->fc2 = ls_module_add(&self->base, "fc2", ls_linear_new(hidden, 16, NULL));
    self->spare = ls_module_add(&self->base, "spare", ls_linear_new(16, 16, NULL));
    return &self->base;
}

static void step(ls_module *net, ls_optim *optim)
{
    {
        LS_SCOPE;
        ls_tensor *y = ls_forward(net, ls_full(LS_SHAPE(8, 16), LS_FLOAT32, rank + 1));
        ls_tensor *loss = ls_mean(ls_mul(y, y));
        if (is("nosync")) {
            LS_NO_SYNC(net);
            LS_CHECK(ls_backward(loss));
        } else {
            LS_CHECK(ls_backward(loss));
        }
    }
    LS_CHECK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
}

static void train(void)
{
    int identical;
    uint64_t hash;
    const int steps = is("uneven") && rank == 1 ? 3 : 4;
    if (rank == 1 && !is("uneven")) {
        note_fault();
    }
    ls_module *net = ls_ddp_new(small_new(), ls_world(), NULL);
    if (net == NULL) {
        fprintf(stderr, "%s\n", ls_error_message());
        exit(1);
    }
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    for (int i = 0; i < steps; i++) {
        step(net, optim);
    }
    if (rank == 1) {
        note_fault();
    }
    if (!is("uneven")) {
        LS_CHECK(ls_replicas_identical(net, ls_world(), &identical, &hash));
        printf("rank %d: trained %d steps; %d of 2 replicas are identical\n", rank, steps,
               identical);
    }
    ls_optim_free(optim);
    ls_module_free(net);
}

int main(int argc, char **argv)
{
    mode = argc > 1 ? argv[1] : "";
    folder = argc > 2 ? argv[2] : ".";
    const char *number = getenv("RANK");
    rank = number != NULL ? atoi(number) : 0;
    note_pid(rank);
    if (is("start") && rank == 1) { /* ends before it joins */
        note_fault();
        return 0;
    }
    LS_CHECK(ls_init(NULL));
    fill();
    sum(b, "warm-up"); /* one that is right */
    fill();
    disagree();
    if (is("model") || is("unused") || is("nosync") || is("uneven")) {
        train();
    }
    if (rank == 1 && is("memory")) {
        run_out_of_memory();
    }
    if (rank == 1) {
        end_as_told();
    }
    if (is("launcher")) {
        sleep(2);
        while (rank == 1) {
            pause();
        }
    }
    if (!is("missing") && !is("uneven")) {
        sum(a, "last");
    }
    LS_CHECK(ls_finalize());
    return 0;
}
