/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench digits`: training on handwritten digits under DDP that synchronises every n-th
 * iteration only (no_sync): gradients are added up in between, and the optimizer steps after each
 * synchronised backward, so a larger n takes fewer and larger steps. Losses of all iterations and
 * the accuracy on digits that were held out; the same bits in every run on one machine. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/cnn.h>

#include "base/splitmix64.h"
#include "bench.h"
#include "tasks.h"
#include "tools/cli/cli.h"

enum { PIXELS = LS__DIGITS_PIXELS, SIDE = LS__DIGITS_SIDE, SKIPS_MAX = 8, ITERATIONS_MAX = 10000 };

/* ---- options ------------------------------------------------------------------------------- */

static ls__bench_options given; /* sizes: iterations between synchronisations */
static int64_t ranks, batch, iterations, seed;
static double lr;

static int parse_skips(const cli_command *command, const cli_option *o, const char *text)
{
    return ls__bench_parse_counts(command, o->name, text, &given);
}

static const cli_option options[] = {
    {"skip", CLI_READ, .read = parse_skips, .value_name = "LIST", .fallback = "1,2,4,8",
     .help = "synchronise every N-th iteration"},
    {"batch", CLI_COUNT, &batch, .low = 1, .high = 1024, .help = "samples of a rank's iteration"},
    {"lr", CLI_NUMBER, &lr, .low = 0, .high = 100, .help = "learning rate of SGD"},
    {"iterations", CLI_COUNT, &iterations, .low = 1, .high = ITERATIONS_MAX, .help = "of each row"},
    {"seed", CLI_COUNT, &seed, .low = 0, .high = 1e9,
     .help = "of the first parameters and the batches"},
    {"ranks", CLI_COUNT, &ranks, .low = 1, .high = LS__BENCH_RANKS_MAX, .letter = 'n',
     .help = "ranks on this host"},
    {"json", CLI_TEXT, &given.json, .value_name = "FILE", .help = "also write the rows to FILE"},
};

static const cli_command command = {
    .name = "lockstep bench digits",
    .about = "Trains on handwritten digits and synchronises gradients every n-th iteration.",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more = "The network has two convolutions with batch norm. Between synchronisations gradients\n"
            "add up, and the optimizer (SGD) steps after each. final is the mean loss of the last\n"
            "tenth of the iterations, accuracy that on digits that no rank trained on.\n"};

/* ---- training ------------------------------------------------------------------------------ */

typedef struct row {
    double losses[ITERATIONS_MAX]; /* means over the ranks */
    double final, accuracy;
} row;

/* Which digit is sample i of an iteration: with replacement. */
static int drawn(int64_t iteration, int64_t i, int count)
{
    const uint64_t of = (uint64_t)(seed - 1) * LS__SPLITMIX64_GAMMA +
                        (uint64_t)((iteration * ls_world_size() + ls_rank()) * batch + i);
    return (int)(ls__splitmix64(of) % (uint64_t)count);
}

static ls_tensor *images(float *pixels, int64_t count)
{
    return ls_from_memory(pixels, LS_SHAPE(count, 1, SIDE, SIDE), LS_FLOAT32);
}

static ls_status iterate(ls_module *net, ls_optim *optim, const ls__digits *d, int64_t iteration,
                         bool synchronise, double *loss)
{
    LS_SCOPE;
    ls_tensor *x = ls_empty(LS_SHAPE(batch, 1, SIDE, SIDE), LS_FLOAT32);
    ls_tensor *y = ls_empty(LS_SHAPE(batch), LS_INT32);
    LS_TRY(ls_tensor_status(x));
    LS_TRY(ls_tensor_status(y));
    float *pixels = ls_data(x);
    int32_t *labels = ls_data(y);
    for (int64_t i = 0; i < batch; i++) {
        const int k = drawn(iteration, i, d->count[0]);
        memcpy(pixels + i * PIXELS, d->pixels[0][k], sizeof d->pixels[0][k]);
        labels[i] = d->label[0][k];
    }
    LS_TRY(ls_ddp_set_sync(net, synchronise));
    ls_tensor *of = ls_cross_entropy(ls_forward(net, x), y, NULL);
    LS_TRY(ls_backward(of));
    LS_TRY(ls_item(of, loss));
    if (synchronise) {
        LS_TRY(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    return LS_OK;
}

static ls_status judge(ls_module *net, ls__digits *d, double *accuracy)
{
    LS_NO_GRAD;
    LS_SCOPE;
    ls_module_train(net, false);
    ls_tensor *best = ls_argmax(ls_forward(net, images(&d->pixels[1][0][0], d->count[1])), 1);
    LS_TRY(ls_tensor_status(best));
    const int64_t *guess = ls_data(best);
    int right = 0;
    for (int i = 0; i < d->count[1]; i++) {
        right += guess[i] == d->label[1][i];
    }
    *accuracy = (double)right / d->count[1];
    return LS_OK;
}

static ls_status train(ls_module *net, ls_optim *optim, ls__digits *d, int64_t skip, row *out)
{
    for (int64_t i = 0; i < iterations; i++) {
        LS_TRY(iterate(net, optim, d, i, (i + 1) % skip == 0, &out->losses[i]));
    }
    LS_TRY(ls_all_reduce(ls_world(), out->losses, out->losses, iterations, LS_FLOAT64, LS_AVG, NULL,
                         NULL));
    const int64_t last = iterations < 10 ? 1 : iterations / 10;
    for (int64_t i = iterations - last; i < iterations; i++) {
        out->final += out->losses[i] / (double)last;
    }
    return judge(net, d, &out->accuracy);
}

static ls_status measure(ls__digits *d, int64_t skip, row *out)
{
    LS_TRY(ls_manual_seed((uint64_t)seed));
    ls_module *net = ls_cnn_new(1, 10);
    ls_module *ddp = net != NULL ? ls_ddp_new(net, ls_world(), NULL) : NULL;
    ls_optim *optim = ddp != NULL ? ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = lr)) : NULL;
    const ls_status status = optim != NULL ? train(ddp, optim, d, skip, out) : ls_error_status();
    ls_optim_free(optim);
    ls_module_free(ddp != NULL ? ddp : net);
    return status;
}

/* ---- rows ---------------------------------------------------------------------------------- */

static json_t *row_of(const row *r, int64_t skip, json_t *machine)
{
    json_t *losses = json_array();
    for (int64_t i = 0; i < iterations; i++) {
        json_array_append_new(losses, json_real(r->losses[i]));
    }
    return json_pack("{s:s, s:I, s:I, s:f, s:I, s:I, s:i, s:f, s:f, s:o, s:O}", "name", "digits",
                     "skip", (json_int_t)skip, "batch", (json_int_t)batch, "lr", lr, "iterations",
                     (json_int_t)iterations, "seed", (json_int_t)seed, "ranks", given.ranks,
                     "final", r->final, "accuracy", r->accuracy, "losses", losses, "machine",
                     machine);
}

static bool report(const row *rows)
{
    json_t *list = json_array(), *machine = ls__bench_machine();
    printf("# digits, batch %d, learning rate %g, %d iterations, %d ranks, seed %d\n", (int)batch,
           lr, (int)iterations, given.ranks, (int)seed);
    printf("# %6s %10s %10s\n", "skip", "final", "accuracy");
    for (int s = 0; s < given.size_count; s++) {
        printf("  %6d %10.6f %10.4f\n", (int)given.sizes[s], rows[s].final, rows[s].accuracy);
        json_array_append_new(list, row_of(&rows[s], given.sizes[s], machine));
    }
    json_decref(machine);
    return ls__bench_dump(list, given.size_count, given.json);
}

/* One rank. Returns its exit status. */
static int run_rank(void *arg)
{
    (void)arg;
    ls__digits *d = ls__digits_read();
    row *rows = calloc((size_t)given.size_count, sizeof *rows);
    LS_CHECK(ls_init(NULL));
    given.ranks = ls_world_size();
    if (d == NULL || rows == NULL) {
        LS_CHECK(ls_fail(LS_ERR_MEMORY, "no memory"));
    }
    for (int s = 0; s < given.size_count; s++) {
        LS_CHECK(measure(d, given.sizes[s], &rows[s]));
    }
    const bool written = ls_rank() != 0 || report(rows);
    free(rows);
    free(d);
    LS_CHECK(ls_finalize());
    return written ? 0 : 1;
}

int ls__bench_digits(int argc, char **argv)
{
    given = (ls__bench_options){.sizes = {1, 2, 4, 8}, .size_count = 4};
    ranks = 2;
    batch = 8;
    iterations = 400;
    seed = 1;
    lr = 0.02;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    given.ranks = (int)ranks;
    if (given.size_count > SKIPS_MAX) {
        return cli_wrong(&command, "--skip: more than %d numbers", SKIPS_MAX);
    }
    return ls__bench_start(NULL, given.json, given.ranks, run_rank, NULL);
}
