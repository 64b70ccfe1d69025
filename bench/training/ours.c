/* Lockstep as a contender of bench/compare_training.py: builds a model, says that it is ready, and
 * then trains as many steps as each line of its input asks for. Between two lines it sleeps in a
 * read, so that others have the machine. Public headers only.
 *
 *     contender_training MODEL       models: rows of `models` below
 *
 * The batch is the same in every step and the same as the peer's (contender_torch.py): what is
 * timed is forward, loss, backward, AdamW.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <lockstep/lockstep.h>

#include "gpt.h"

#define STEPS_MAX 1000

typedef struct model {
    const char *name;
    ls_module *(*build)(void);
    int64_t x_rows, x_columns; /* tokens [rows, columns] with `classes` of them, else floats */
    bool tokens;
    int64_t classes;
} model;

static void must(ls_status status)
{
    if (status < 0) {
        fprintf(stderr, "contender: %s\n", ls_error_message());
        exit(1);
    }
}

/* ---- models ------------------------------------------------------------------------------- */

static ls_module *mlp(void)
{
    ls_module *layers[] = {ls_linear_new(784, 512, NULL), ls_relu_new(),
                           ls_linear_new(512, 512, NULL), ls_relu_new(),
                           ls_linear_new(512, 10, NULL)};
    return ls_sequential_new(layers, 5);
}

static ls_module *gpt_of(int layers, int heads, int64_t dim, int64_t context, int64_t vocab)
{
    return gpt_new(LS_OPTIONS(gpt_options, .layers = layers, .heads = heads, .dim = dim,
                              .context = context, .vocab = vocab));
}

static ls_module *gpt_6(void)
{
    return gpt_of(6, 6, 384, 256, 8192);
}

static ls_module *gpt_tiny(void)
{
    return gpt_of(2, 2, 32, 16, 64);
}

static const model models[] = {{"mlp", mlp, 64, 784, false, 10},
                               {"gpt", gpt_6, 8, 256, true, 8192},
                               {"gpt-tiny", gpt_tiny, 2, 16, true, 64}};

/* ---- a step ------------------------------------------------------------------------------- */

/* The same numbers as in contender_torch.py. */
static ls_tensor *batch_of(const model *m, bool target)
{
    const int64_t rows = m->x_rows, columns = target && !m->tokens ? 1 : m->x_columns;
    const int64_t count = rows * columns;
    int32_t *ids = malloc((size_t)count * sizeof *ids);
    float *values = malloc((size_t)count * sizeof *values);
    if (ids == NULL || values == NULL) {
        fprintf(stderr, "contender: no memory for a batch\n");
        exit(1);
    }
    for (int64_t i = 0; i < count; i++) {
        ids[i] = (int32_t)((i * 7919 + (target ? 104729 : 0)) % m->classes);
        values[i] = (float)((i * 7919) % 1000) / 1000.0f;
    }
    const bool floats = !target && !m->tokens;
    const ls_shape shape = target && !m->tokens ? LS_SHAPE(rows) : LS_SHAPE(rows, columns);
    ls_tensor *t = ls_keep(
        ls_from_data(floats ? (void *)values : (void *)ids, shape, floats ? LS_FLOAT32 : LS_INT32));
    must(ls_tensor_status(t));
    free(ids);
    free(values);
    return t;
}

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double step(ls_module *net, ls_optim *optim, ls_tensor *x, ls_tensor *y)
{
    double loss = 0.0;
    LS_SCOPE
    {
        ls_optim_zero_grad(optim);
        ls_tensor *of = ls_cross_entropy(ls_forward(net, x), y);
        must(ls_backward(of));
        must(ls_optim_step(optim));
        must(ls_item(of, &loss));
    }
    return loss;
}

/* "{"ms": [...], "cpu_ms": ..., "loss": ..., "peak_mb": ...}" */
static void turn(ls_module *net, ls_optim *optim, ls_tensor *x, ls_tensor *y, int steps)
{
    double loss = 0.0;
    const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    printf("{\"ms\": [");
    for (int i = 0; i < steps; i++) {
        const double begin = seconds(CLOCK_MONOTONIC);
        loss = step(net, optim, x, y);
        printf("%s%.6f", i > 0 ? ", " : "", (seconds(CLOCK_MONOTONIC) - begin) * 1e3);
    }
    struct rusage used;
    (void)getrusage(RUSAGE_SELF, &used);
    printf("], \"cpu_ms\": %.6f, \"loss\": %.9g, \"peak_mb\": %.1f}\n",
           (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) * 1e3 / steps, loss,
           (double)used.ru_maxrss / 1024.0);
    (void)fflush(stdout);
}

static const model *find(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(models[i].name, name) == 0) {
            return &models[i];
        }
    }
    fprintf(stderr, "contender: no model '%s'\n", name);
    exit(2);
}

int main(int argc, char **argv)
{
    const model *m = find(argc == 2 ? argv[1] : "");
    must(ls_init(NULL));
    ls_module *net = m->build();
    if (net == NULL) {
        must(LS_ERR_INVALID);
    }
    must(ls_module_status(net));
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-4));
    if (optim == NULL) {
        must(LS_ERR_INVALID);
    }
    ls_tensor *x = batch_of(m, false), *y = batch_of(m, true);
    printf("ready %lld parameters\n", (long long)ls_module_numel(net));
    (void)fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        const int steps = atoi(line);
        if (steps < 1 || steps > STEPS_MAX) {
            break;
        }
        turn(net, optim, x, y, steps);
    }
    ls_free(x);
    ls_free(y);
    ls_optim_free(optim);
    ls_module_free(net);
    must(ls_finalize());
    return 0;
}
