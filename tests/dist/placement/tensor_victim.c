/* Trains on the mesh dp=2,tp=2; one rank dies or hangs at a chosen place, for test_tensor_failures.
 *
 *     tensor_victim PLACE RANK
 *     PLACE: forward, backward: killed by SIGKILL between two conversions of that pass
 *            hang: sleeps there in forward
 *            weight0: its samples, and those of its tensor group, have weight 0 in every other step
 *            join: its data group ends its data after 5 steps
 *            none
 * At the moment of death or of the hang the victim writes "DYING <monotonic seconds>" to stderr.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

enum { DIM = 32, BATCH = 8, STEPS = 12, FATAL_STEP = 5 };

static const char *place;
static int victim;
static int step;

static void strike(const char *here)
{
    if (step != FATAL_STEP || ls_rank() != victim || strcmp(place, here) != 0) {
        return;
    }
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    (void)fprintf(stderr, "DYING %.3f\n", (double)t.tv_sec + (double)t.tv_nsec * 1e-9);
    if (strcmp(here, "hang") != 0) {
        (void)kill(getpid(), SIGKILL);
    }
    for (;;) {
        (void)pause();
    }
}

/* Nothing in forward; strikes in backward. */
static ls_status pass(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out, int m,
                      void *arg)
{
    (void)call, (void)n, (void)m, (void)arg;
    out[0] = ls_clone(in[0]);
    return LS_OK;
}

static ls_status pass_back(ls_function_call *call, ls_tensor *const *dout, int m, ls_tensor **din,
                           int n)
{
    (void)call, (void)n, (void)m;
    strike("backward");
    din[0] = ls_clone(dout[0]);
    return LS_OK;
}

static const ls_function bomb = LS_FUNCTION(.name = "bomb", .forward = pass, .backward = pass_back,
                                            .placing = LS_PLACING_POINTWISE);

typedef struct net {
    ls_module base;
    ls_tensor *norm, *up, *down;
} net;

static ls_tensor *net_forward(ls_module *m, ls_tensor *x)
{
    const net *self = (net *)m;
    ls_tensor *h = ls_mul(x, self->norm);
    h = ls_redistribute(h, "tp", LS_INVARIANT, LS_REPLICATED);
    h = ls_gelu(ls_linear(h, self->up, NULL), LS_GELU_ERF);
    strike("forward");
    strike("hang");
    h = ls_linear(ls_function_apply(&bomb, h, NULL), self->down, NULL);
    return ls_redistribute(h, "tp", LS_PARTIAL, LS_INVARIANT);
}

static const ls_module_class net_class = LS_MODULE_CLASS(.name = "net", .forward = net_forward);

static ls_tensor *filled(ls_shape shape, double value)
{
    return ls_full(shape, LS_FLOAT32, value);
}

static ls_module *net_new(void)
{
    net *n = ls_module_new(sizeof *n, &net_class);
    n->norm = ls_module_add_param(&n->base, "norm", filled(LS_SHAPE(DIM), 0.5));
    n->up = ls_module_add_param(&n->base, "up", filled(LS_SHAPE(DIM / 2, DIM), 0.1));
    n->down = ls_module_add_param(&n->base, "down", filled(LS_SHAPE(DIM, DIM / 2), 0.1));
    LS_CHECK(ls_place(n->up, "tp", LS_SHARDED(0)));
    LS_CHECK(ls_place(n->down, "tp", LS_SHARDED(1)));
    return ls_ddp_new(&n->base, ls_world(), LS_OPTIONS(ls_ddp_options, .batch_axes = "dp"));
}

/* One backward of this rank, or of its data group without data. */
static ls_status train_step(ls_module *m, const ls_mesh *mesh, bool *more)
{
    const bool mine = ls_mesh_coordinate(mesh, "dp") == victim / 2;
    if (strcmp(place, "join") == 0 && ((mine && step >= FATAL_STEP) || step >= STEPS - 1)) {
        return ls_ddp_join(m, NULL, more);
    }
    ls_tensor *y = ls_forward(m, filled(LS_SHAPE(BATCH, DIM), 0.01 * (step + 1)));
    const bool light = strcmp(place, "weight0") == 0 && mine && step % 2 == 1;
    return ls_backward_weighted(ls_mean(ls_mul(y, y)), light ? 0.0 : BATCH);
}

int main(int argc, char **argv)
{
    ls_mesh *mesh = NULL;
    place = argc > 1 ? argv[1] : "none";
    victim = argc > 2 ? atoi(argv[2]) : 0;
    LS_CHECK(ls_init(NULL));
    LS_CHECK(ls_mesh_new(ls_world(), "dp=2,tp=2", &mesh));
    ls_module *m = net_new();
    ls_optim *optim = ls_sgd_new(m, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    bool more = true;
    for (step = 0; step < STEPS && more; step++) {
        LS_SCOPE;
        LS_CHECK(train_step(m, mesh, &more));
        if (more) {
            LS_CHECK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
        }
    }
    int identical = 0;
    uint64_t hash = 0;
    LS_CHECK(ls_replicas_identical(m, ls_mesh_group(mesh, "dp"), &identical, &hash));
    (void)printf("rank %d: %d steps, %d identical\n", ls_rank(), step, identical);
    ls_optim_free(optim);
    ls_module_free(m);
    LS_CHECK(ls_mesh_free(mesh));
    return ls_finalize() == LS_OK ? 0 : 1;
}
