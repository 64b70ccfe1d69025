/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench experts`: training steps of a GPT whose every second block has experts, which are
 * divided over the ranks, beside its dense twin, replicas of the same GPT without experts. With
 * --top-k 1 a token costs both the same matrix multiplications. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>

#include "bench.h"
#include "tools/cli/cli.h"

enum { DENSE, EXPERTS, FORMS, ROUNDS_MAX = 100, WARM_UP = 2 };
#define HEAD_DIM 32
#define VOCAB 256

static const char *const names[FORMS] = {"dense", "experts"};

/* ---- options ------------------------------------------------------------------------------- */

static const char *transport, *json;
static int64_t ranks, experts, top_k, layers, dim, context, batch, rounds;
static double capacity;

static const cli_option options[] = {
    {"ranks", CLI_COUNT, &ranks, .low = 1, .high = LS__BENCH_RANKS_MAX, .letter = 'n',
     .help = "ranks on this host, a divisor of --experts"},
    {"experts", CLI_COUNT, &experts, .low = 1, .high = 1024, .help = "E, of every second block"},
    {"top-k", CLI_COUNT, &top_k, .low = 1, .high = 1024, .help = "k, experts that a token visits"},
    {"capacity", CLI_NUMBER, &capacity, .low = 0, .high = 1e6,
     .help = "an expert takes X times its even share of the tokens; 0: no limit"},
    {"layers", CLI_COUNT, &layers, .low = 2, .high = 1000, .help = "blocks of the GPT"},
    {"dim", CLI_COUNT, &dim, .low = HEAD_DIM, .high = 1 << 16,
     .help = "its width, a multiple of 32"},
    {"context", CLI_COUNT, &context, .low = 1, .high = 1 << 16, .help = "tokens of a sequence"},
    {"batch", CLI_COUNT, &batch, .low = 1, .high = 1 << 16, .help = "sequences on each rank"},
    {"transport", CLI_CHOICE, &transport, .choices = "shm|tcp",
     .fallback = "as the environment says, else shm",
     .help = "shm: shared memory; tcp: as if every rank had a host of its own"},
    {"rounds", CLI_COUNT, &rounds, .low = 1, .high = ROUNDS_MAX,
     .help = "measured steps of each model"},
    {"json", CLI_TEXT, &json, .value_name = "FILE", .help = "also write the rows to FILE"},
};

static const cli_command command = {
    .name = "lockstep bench experts",
    .about = "Training steps of a GPT with experts beside one without.",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more = "step is that of the slowest rank, the median of the rounds; tokens are those of all\n"
            "ranks in a second; sent is what rank 0 has passed to others along ep in a step; load\n"
            "is the rows of the busiest expert by their mean. The models take turns. Under a\n"
            "launcher the ranks of the job take part.\n"};

/* ---- training -------------------------------------------------------------------------------- */

typedef struct contender {
    ls_mesh *mesh; /* of experts */
    ls_module *model, *net;
    ls_optim *optim;
    int64_t parameters; /* of the whole model */
    double step_ms[ROUNDS_MAX], sent, load;
} contender;

static ls_module *model_of(int form)
{
    const ls_moe_options *moe = LS_OPTIONS(ls_moe_options, .experts = experts, .top_k = (int)top_k,
                                           .capacity = capacity, .balance_loss = 0.01);
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = (int)layers,
                                 .heads = (int)(dim / HEAD_DIM), .dim = dim, .context = context,
                                 .vocab = VOCAB, .moe = form == EXPERTS ? moe : NULL));
}

static ls_status open_contender(contender *c, int form)
{
    c->model = model_of(form);
    LS_TRY(ls_module_status(c->model));
    c->parameters = ls_module_numel(c->model);
    if (form == EXPERTS) {
        LS_TRY(ls_mesh_new(ls_world(), "ep=*", &c->mesh));
        LS_TRY(ls_mesh_use(c->mesh));
        LS_TRY(ls_expert_parallel(c->model));
    }
    c->net = ls_ddp_new(c->model, ls_world(), NULL);
    LS_TRY(ls_module_status(c->net));
    c->optim = ls_adamw_new(c->net, LS_OPTIONS(ls_adamw_options, .lr = 1e-3));
    LS_TRY(c->optim != NULL ? LS_OK : ls_error_status());
    return ls_mesh_use(NULL);
}

static void close_contender(contender *c)
{
    ls_optim_free(c->optim);
    ls_module_free(c->net);
    (void)ls_mesh_free(c->mesh);
}

static double sent_so_far(const contender *c)
{
    ls_counters counters = {.size = sizeof counters};
    (void)ls_group_get_counters(ls_mesh_group(c->mesh, "ep"), &counters);
    return (double)counters.bytes_sent;
}

/* Bytes that repeat after a prime number, other ones on each rank. */
static ls_tensor *tokens_of(int round)
{
    const int64_t count = batch * context;
    int64_t *ids = calloc((size_t)count, sizeof *ids);
    for (int64_t i = 0; ids != NULL && i < count; i++) {
        ids[i] = (i * i + 31 * ls_rank() + round + WARM_UP) % 251;
    }
    ls_tensor *x = ls_from_data(ids, LS_SHAPE(batch, context), LS_INT64);
    free(ids);
    return x;
}

static ls_status train(contender *c, int round)
{
    LS_SCOPE;
    ls_tensor *x = tokens_of(round);
    ls_optim_zero_grad(c->optim);
    ls_tensor *loss = ls_cross_entropy(ls_forward(c->net, x), x, NULL);
    loss = c->mesh != NULL ? ls_add(loss, ls_moe_loss(c->model)) : loss;
    LS_TRY(ls_backward(loss));
    return ls_optim_step(c->optim);
}

/* Of the last step, over all ranks. */
static ls_status read_load(contender *c)
{
    int64_t *rows = calloc((size_t)experts, sizeof *rows), most = 0, all = 0;
    LS_TRY(rows != NULL ? LS_OK : ls_fail(LS_ERR_MEMORY, "no memory"));
    ls_status status = ls_moe_counts(c->model, rows, NULL);
    status = status < 0
                 ? status
                 : ls_all_reduce(ls_world(), rows, rows, experts, LS_INT64, LS_SUM, NULL, NULL);
    for (int64_t e = 0; e < experts; e++) {
        most = rows[e] > most ? rows[e] : most;
        all += rows[e];
    }
    c->load = all > 0 ? (double)most * (double)experts / (double)all : 0.0;
    free(rows);
    return status;
}

static ls_status measure_step(contender *c, int round)
{
    LS_TRY(ls_mesh_use(c->mesh));
    LS_TRY(ls_barrier(ls_world(), NULL, NULL));
    const double begin = ls__bench_now_ms(), before = c->mesh != NULL ? sent_so_far(c) : 0.0;
    LS_TRY(train(c, round));
    double took = ls__bench_now_ms() - begin;
    const double sent = c->mesh != NULL ? sent_so_far(c) - before : 0.0;
    LS_TRY(ls_all_reduce(ls_world(), &took, &took, 1, LS_FLOAT64, LS_MAX, NULL, NULL));
    if (round >= 0) {
        c->step_ms[round] = took;
        c->sent = sent;
    }
    LS_TRY(round >= 0 && c->mesh != NULL ? read_load(c) : LS_OK);
    return ls_mesh_use(NULL);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static double tokens_a_second(const contender *c, int done)
{
    return (double)(ranks * batch * context) / ls__bench_median(c->step_ms, done) * 1e3;
}

static json_t *row_of(const contender *c, int form, int done, json_t *machine)
{
    return json_pack("{s:s, s:s, s:i, s:I, s:f, s:f, s:f, s:f, s:o, s:O}", "name", "experts",
                     "model", names[form], "ranks", (int)ranks, "parameters",
                     (json_int_t)c->parameters, "step_ms", ls__bench_median(c->step_ms, done),
                     "tokens_per_second", tokens_a_second(c, done), "sent_bytes", c->sent, "load",
                     c->load, "round_ms", ls__bench_list(c->step_ms, done), "machine", machine);
}

/* Those of the first `done` rounds. */
static json_t *rows_of(const contender *all, int done)
{
    json_t *list = json_array(), *machine = ls__bench_machine();
    for (int i = 0; i < FORMS; i++) {
        json_array_append_new(list, row_of(&all[i], i, done, machine));
    }
    json_decref(machine);
    return list;
}

static bool report(const contender *all)
{
    printf("# %lld layers of width %lld, %lld x %lld tokens on each of %lld ranks; E %lld, k %lld; "
           "medians of %lld steps\n",
           (long long)layers, (long long)dim, (long long)batch, (long long)context,
           (long long)ranks, (long long)experts, (long long)top_k, (long long)rounds);
    printf("# %-10s %12s %10s %12s %12s %6s\n", "model", "parameters", "step", "tokens", "sent",
           "load");
    printf("# %-10s %12s %10s %12s %12s %6s\n", "", "", "(ms)", "(1/s)", "(bytes)", "");
    for (int i = 0; i < FORMS; i++) {
        const contender *c = &all[i];
        printf("  %-10s %12lld %10.2f %12.0f %12.0f %6.2f\n", names[i], (long long)c->parameters,
               ls__bench_median(c->step_ms, (int)rounds), tokens_a_second(c, (int)rounds), c->sent,
               c->load);
    }
    return ls__bench_dump(rows_of(all, (int)rounds), FORMS, json);
}

static ls_status measure(contender *all)
{
    for (int i = 0; i < FORMS; i++) {
        LS_TRY(open_contender(&all[i], i));
    }
    for (int round = -WARM_UP; round < rounds; round++) {
        for (int i = 0; i < FORMS; i++) {
            LS_TRY(measure_step(&all[i], round));
        }
        if (ls_rank() == 0 && round >= 0) {
            ls__bench_keep(rows_of(all, round + 1), json);
        }
    }
    return LS_OK;
}

/* One rank. Returns its exit status. */
static int run_rank(void *arg)
{
    static contender all[FORMS];
    (void)arg;
    LS_CHECK(ls_init(NULL));
    LS_CHECK(measure(all));
    const bool written = ls_rank() != 0 || report(all);
    for (int i = FORMS - 1; i >= 0; i--) {
        close_contender(&all[i]);
    }
    LS_CHECK(ls_finalize());
    return written ? 0 : 1;
}

int ls__bench_experts(int argc, char **argv)
{
    ranks = 2;
    experts = 8;
    top_k = 1;
    layers = 4;
    dim = 128;
    context = 64;
    batch = 8;
    rounds = 10;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    const int job = ls__bench_job_size();
    ranks = job > 0 ? job : ranks;
    if (dim % HEAD_DIM != 0 || experts % ranks != 0 || top_k > experts) {
        return cli_wrong(&command,
                         "--dim %lld, --experts %lld, --top-k %lld, %lld ranks; give a multiple of "
                         "%d, experts that the ranks divide, and a top-k of at most all",
                         (long long)dim, (long long)experts, (long long)top_k, (long long)ranks,
                         HEAD_DIM);
    }
    return ls__bench_start(transport, json, (int)ranks, run_rank, NULL);
}
