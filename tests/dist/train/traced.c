/* SPDX-License-Identifier: Apache-2.0 */
/* A training program with something of everything that a trace shows, for
 * tests/programs/test_trace.py.
 *
 *     traced STEPS [END RANK STEP]
 *     traced STEPS save FOLDER      one checkpoint after each step
 *     END: how RANK ends in STEP: kill (SIGKILL), exit (status 3, without ls_finalize)
 *
 * Each step reads a batch ahead, runs a data-parallel model with a part that is recomputed, passes
 * a message around the ring of ranks, and sleeps for a while in its own code. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

enum { SAMPLES = 64, BATCH = 4, IN = 32, HIDDEN = 64, OUT = 8, PAUSE_US = 2000 };

static ls_module *net_new(void)
{
    ls_module *inner[] = {ls_linear_new(HIDDEN, HIDDEN, NULL), ls_relu_new()};
    ls_module *layers[] = {ls_linear_new(IN, HIDDEN, NULL), ls_relu_new(),
                           ls_sequential_new(inner, 2), ls_linear_new(HIDDEN, OUT, NULL)};
    return ls_ddp_new(ls_sequential_new(layers, 4), ls_world(),
                      LS_OPTIONS(ls_ddp_options, .bucket_bytes = 8000, .first_bucket_bytes = 2000));
}

/* Around the ring; the receive is posted first, as in a pipeline. */
static ls_status pass_message(int64_t step)
{
    static float in[1000], out[1000];
    const int size = ls_world_size(), rank = ls_rank();
    ls_work *received = NULL;
    if (size == 1) {
        return LS_OK;
    }
    out[0] = (float)step;
    LS_CHECK(
        ls_recv(ls_world(), in, 1000, LS_FLOAT32, (rank + size - 1) % size, 5, NULL, &received));
    LS_CHECK(ls_send(ls_world(), out, 1000, LS_FLOAT32, (rank + 1) % size, 5, NULL, NULL));
    return ls_work_wait(received);
}

static void end_here(const char *how)
{
    if (strcmp(how, "kill") == 0) {
        (void)raise(SIGKILL);
    }
    _exit(3);
}

static void train_step(ls_module *net, ls_optim *optim, ls_loader *loader, int64_t step)
{
    ls_batch batch = {.size = sizeof batch};
    if (!ls_loader_next(loader, &batch)) {
        (void)ls_loader_next(loader, &batch); /* the next epoch's */
    }
    LS_SCOPE;
    ls_optim_zero_grad(optim);
    LS_CHECK(ls_backward(ls_cross_entropy(ls_forward(net, batch.x), batch.y, NULL)));
    LS_CHECK(ls_optim_step(optim));
    LS_CHECK(pass_message(step));
    usleep(PAUSE_US);
}

/* The data of all ranks, and what trains on them. `folder`: of checkpoints, or NULL. */
static void train(int64_t steps, const char *folder, const char *how, int rank, int64_t last)
{
    LS_SCOPE;
    ls_dataset *data = ls_tensor_dataset_new(ls_ones(LS_SHAPE(SAMPLES, IN), LS_FLOAT32),
                                             ls_zeros(LS_SHAPE(SAMPLES), LS_INT32));
    ls_sampler *sampler = ls_sampler_new(SAMPLES, LS_OPTIONS(ls_sampler_options, .batch = BATCH));
    ls_loader *loader = ls_loader_new(data, sampler, NULL);
    ls_module *net = net_new();
    ls_optim *optim = ls_adamw_new(net, NULL);
    ls_checkpoint *checkpoint = NULL;
    if (folder != NULL) {
        LS_CHECK(ls_checkpoint_new(folder, ls_world(), NULL, &checkpoint));
    }
    for (int64_t step = 0; step < steps; step++) {
        if (ls_rank() == rank && step == last) {
            end_here(how);
        }
        train_step(net, optim, loader, step);
        if (checkpoint != NULL) {
            const ls_checkpoint_item item = LS_ITEM("net", net);
            LS_CHECK(ls_checkpoint_save(checkpoint, step, &item, 1));
        }
    }
    LS_CHECK(ls_checkpoint_free(checkpoint));
    ls_optim_free(optim);
    ls_module_free(net);
    ls_loader_free(loader);
    ls_sampler_free(sampler);
    ls_dataset_free(data);
}

int main(int argc, char **argv)
{
    const int64_t steps = argc > 1 ? strtoll(argv[1], NULL, 10) : 5;
    const bool ends = argc > 4;
    LS_CHECK(ls_init(NULL));
    train(steps, argc == 4 ? argv[3] : NULL, ends ? argv[2] : "", ends ? atoi(argv[3]) : -1,
          ends ? strtoll(argv[4], NULL, 10) : -1);
    return ls_finalize() == LS_OK ? 0 : 1;
}
