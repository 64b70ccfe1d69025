/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism: every rank has a part of each weight, and all have the same activations.
 *
 *     x ──f──▶ x·Aᵀ (columns) ──gelu──▶ h·Bᵀ (rows) ──g──▶ y
 *
 *     A [HIDDEN,WIDTH]  each rank has HIDDEN/n rows: its part of the hidden units
 *     B [WIDTH,HIDDEN]  each rank has the same units, so its product is a term of a sum
 *     f                 forward nothing, backward all-reduce
 *     g                 forward all-reduce, backward nothing
 *
 * The tensors know what they are on the axis "tp", so a composition that would train with wrong
 * gradients is refused: the program forgets f once, and prints what it is told. Then it trains, and
 * compares the losses with those of one process.
 *
 *     lockstep run -n 4 ./08_tensor_parallel
 *     lockstep train gpt -n 4 --mesh tp=4 --data …   # the same for the models of lockstep/models
 */
#include <math.h>
#include <stdio.h>

#include <lockstep/lockstep.h>

enum { WIDTH = 16, HIDDEN = 64, ROWS = 32, STEPS = 50 };

typedef struct mlp {
    ls_module base;
    ls_tensor *scale, *a, *b;
    bool parallel, forgets_f;
} mlp;

static ls_tensor *mlp_forward(ls_module *m, ls_tensor *x)
{
    const mlp *self = (mlp *)m;
    x = ls_mul(x, self->scale); /* any layer before */
    if (self->parallel && !self->forgets_f) {
        x = ls_redistribute(x, "tp", LS_INVARIANT, LS_REPLICATED); /* f */
    }
    ls_tensor *h = ls_gelu(ls_linear(x, self->a, NULL), LS_GELU_ERF);
    ls_tensor *y = ls_linear(h, self->b, NULL);
    return self->parallel ? ls_redistribute(y, "tp", LS_PARTIAL, LS_INVARIANT) : y; /* g */
}

static const ls_module_class mlp_class = LS_MODULE_CLASS(.name = "mlp", .forward = mlp_forward);

/* A weight, of which each rank keeps its part along `dim`. Values follow from the name, so the
 * parts of all ranks are the weight of one process. */
static ls_tensor *weight(mlp *m, const char *name, ls_shape shape, int dim)
{
    ls_tensor *t = ls_module_add_param(&m->base, name, ls_empty(shape, LS_FLOAT32));
    LS_CHECK(ls_fill_normal(t, 0.0, 0.2));
    if (m->parallel) {
        LS_CHECK(ls_tensor_shard(t, "tp", dim, NULL, 0));
    }
    return t;
}

static mlp *mlp_new(int ranks)
{
    mlp *m = ls_module_new(sizeof *m, &mlp_class);
    m->parallel = ranks > 1;
    m->scale = ls_module_add_param(&m->base, "scale", ls_ones(LS_SHAPE(WIDTH), LS_FLOAT32));
    m->a = weight(m, "a", LS_SHAPE(HIDDEN, WIDTH), 0);
    m->b = weight(m, "b", LS_SHAPE(WIDTH, HIDDEN), 1);
    return m;
}

/* Rows of a step: y = the row turned by one place. */
static void make_rows(int step, float *x, float *y)
{
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = ls_random_normal(7, (uint64_t)step, (uint64_t)i);
    }
    for (int i = 0; i < ROWS * WIDTH; i++) {
        y[i] = x[i / WIDTH * WIDTH + (i + 1) % WIDTH];
    }
}

static double train_step(mlp *m, ls_optim *optim, int step)
{
    LS_SCOPE;
    float x[ROWS * WIDTH], y[ROWS * WIDTH];
    double loss = 0.0;
    make_rows(step, x, y);
    ls_tensor *out = ls_forward(&m->base, ls_from_data(x, LS_SHAPE(ROWS, WIDTH), LS_FLOAT32));
    ls_tensor *mean = ls_mse_loss(out, ls_from_data(y, LS_SHAPE(ROWS, WIDTH), LS_FLOAT32));
    LS_CHECK(ls_backward(mean));
    LS_CHECK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    LS_CHECK(ls_item(mean, &loss));
    return loss;
}

/* A model and its optimizer. */
typedef struct training {
    mlp *model;
    ls_optim *optim;
} training;

static training begin(int ranks)
{
    mlp *m = mlp_new(ranks);
    return (training){m, ls_adamw_new(&m->base, LS_OPTIONS(ls_adamw_options, .lr = 1e-2))};
}

static void end(training t)
{
    ls_optim_free(t.optim);
    ls_module_free(&t.model->base);
}

/* Trains on all ranks of the mesh and, each rank for itself, as one process. Returns the largest
 * difference between losses of one step. */
static double train(ls_mesh *mesh, double *first, double *last)
{
    training all = begin(ls_mesh_size(mesh, "tp"));
    LS_CHECK(ls_mesh_use(NULL));
    training one = begin(1);
    double largest = 0.0;
    for (int step = 0; step < STEPS; step++) {
        LS_CHECK(ls_mesh_use(mesh));
        *last = train_step(all.model, all.optim, step);
        *first = step == 0 ? *last : *first;
        LS_CHECK(ls_mesh_use(NULL));
        largest = fmax(largest, fabs(*last - train_step(one.model, one.optim, step)));
    }
    end(one);
    LS_CHECK(ls_mesh_use(mesh));
    end(all);
    return largest;
}

/* What a forgotten conversion gives. */
static void forget_f(int ranks, int rank)
{
    LS_SCOPE;
    mlp *m = mlp_new(ranks);
    m->forgets_f = true;
    ls_tensor *y = ls_forward(&m->base, ls_ones(LS_SHAPE(ROWS, WIDTH), LS_FLOAT32));
    if (ls_tensor_status(y) == LS_ERR_PLACEMENT && rank == 0) {
        (void)printf("without f: %s\n", ls_error_message());
    }
    ls_module_free(&m->base);
}

int main(void)
{
    double first = 0.0, last = 0.0;
    ls_mesh *mesh = NULL;
    LS_CHECK(ls_init(NULL));
    LS_CHECK(ls_mesh_new(ls_world(), "tp=*", &mesh));
    const int ranks = ls_mesh_size(mesh, "tp"), rank = ls_mesh_coordinate(mesh, "tp");
    if (ranks > 1) {
        forget_f(ranks, rank);
    }
    const double largest = train(mesh, &first, &last);
    if (rank == 0) {
        (void)printf("loss %.4f -> %.4f on %d rank%s; %s one process'\n", first, last, ranks,
                     ranks == 1 ? "" : "s",
                     largest < 1e-5 ? "within 1e-5 of" : "not within 1e-5 of");
    }
    LS_CHECK(ls_mesh_free(mesh));
    return ls_finalize() == LS_OK ? 0 : 1;
}
