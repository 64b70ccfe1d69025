/* SPDX-License-Identifier: Apache-2.0 */
/* A program of MPI: each half of MPI_COMM_WORLD trains a model with its own learning rate, and MPI
 * finds the better one.
 *
 *     mpicc mpi_halves.c -o mpi_halves $(pkg-config --cflags --libs lockstep)
 *     mpirun -n 4 ./mpi_halves
 *
 *     half 0: 2 ranks, learning rate 0.10, loss 0.0000
 *     half 1: 2 ranks, learning rate 0.01, loss 1.1339
 *     the better learning rate is 0.10
 */
#include <stdio.h>

#include <lockstep/lockstep.h>
#include <lockstep/mpi.h>

enum { STEPS = 50, BATCH = 16, INPUTS = 8 };

/* Learns to add its inputs up, on other numbers on each rank of the group; returns the last
 * loss. */
static double train(ls_group *group, double lr)
{
    double mean = 0.0;
    ls_module *net = ls_ddp_new(ls_linear_new(INPUTS, 1, NULL), group, NULL);
    LS_CHECK(ls_module_status(net));
    ls_optim *opt = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = lr));
    for (int step = 0; step < STEPS; step++) {
        LS_SCOPE;
        ls_step_begin((ls_step_context){(uint64_t)step, (int64_t)ls_group_rank(group) * BATCH});
        ls_tensor *x = ls_randn(LS_SHAPE(BATCH, INPUTS));
        ls_tensor *loss = ls_mse_loss(ls_forward(net, x), ls_sum_dim(x, 1, true));
        LS_CHECK(ls_backward(loss));
        LS_CHECK(ls_optim_step(opt));
        ls_optim_zero_grad(opt);
        LS_CHECK(ls_item(loss, &mean));
    }
    LS_CHECK(ls_metric_mean(group, mean, 1.0, &mean));
    ls_optim_free(opt);
    ls_module_free(net);
    return mean;
}

int main(int argc, char **argv)
{
    int rank = 0, size = 0;
    MPI_Comm half;
    ls_group *group = NULL;
    MPI_Init(&argc, &argv);
    LS_CHECK(ls_init(NULL));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    const int which = 2 * rank >= size && rank > 0;
    MPI_Comm_split(MPI_COMM_WORLD, which, rank, &half);
    LS_CHECK(ls_group_from_mpi(half, "half", &group)); /* the communicator becomes a group */
    struct {
        double loss;
        int which;
    } mine = {train(group, which == 0 ? 0.1 : 0.01), which}, best;
    if (ls_group_rank(group) == 0) {
        printf("half %d: %d ranks, learning rate %.2f, loss %.4f\n", which, ls_group_size(group),
               which == 0 ? 0.1 : 0.01, mine.loss);
    }
    MPI_Allreduce(&mine, &best, 1, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("the better learning rate is %.2f\n", best.which == 0 ? 0.1 : 0.01);
    }

    LS_CHECK(ls_group_free(group));
    MPI_Comm_free(&half);
    LS_CHECK(ls_finalize());
    MPI_Finalize();
    return 0;
}
