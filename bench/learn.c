/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench learn TASK`: trains until the loss on held-out data is reached, under DDP with
 * each of several communication hooks. Whether a hook pays is decided by the time that this takes:
 * a hook makes steps shorter, and may need more of them. The clock stops while the held-out loss is
 * computed. For each seed the hooks take turns, so that one that comes later does not meet a
 * machine that has become slower. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "bench.h"
#include "tasks.h"
#include "tools/cli/cli.h"

enum { COMMS_MAX = 16, SEEDS_MAX = 10, POINTS_MAX = 1000, WARMUPS = 3 };

/* ---- options ------------------------------------------------------------------------------- */

static const ls__task *task;
static const char *comms, *transport, *json;
static int64_t ranks, steps, every, seeds;
static double target;
static char words[512], *comm[COMMS_MAX]; /* of `comms` */
static int comm_count;

static const cli_option options[] = {
    {"comm", CLI_TEXT, &comms, .value_name = "LIST",
     .help = "communication hooks, separated by spaces: plain int8 powersgd:rank=4,start=0"},
    {"target", CLI_NUMBER, &target, .low = 0, .high = 100, .fallback = "the task's",
     .help = "the held-out loss to reach"},
    {"steps", CLI_COUNT, &steps, .low = 1, .high = POINTS_MAX,
     .help = "at most, where it is not reached"},
    {"every", CLI_COUNT, &every, .low = 1, .high = 1000, .help = "steps between held-out losses"},
    {"seeds", CLI_COUNT, &seeds, .low = 1, .high = SEEDS_MAX,
     .help = "trainings of each row, with other first parameters and batches"},
    {"ranks", CLI_COUNT, &ranks, .low = 1, .high = LS__BENCH_RANKS_MAX, .letter = 'n',
     .help = "ranks on this host"},
    {"transport", CLI_CHOICE, &transport, .choices = "shm|tcp",
     .fallback = "as the environment says, else shm",
     .help = "shm: shared memory; tcp: as if every rank had a host of its own"},
    {"json", CLI_TEXT, &json, .value_name = "FILE", .help = "also write the rows to FILE"},
};

static const cli_command command = {
    .name = "lockstep bench learn",
    .about = "Trains to a held-out loss with each of several communication hooks.",
    .operands = "digits|text",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more = "digits: an MLP of 302 thousand parameters on images of 8 x 8 pixels, SGD with\n"
            "momentum. text: a GPT of 235 thousand parameters on the bytes of a novel, AdamW. A\n"
            "fifth of the data is held out. seconds leaves out the computing of the held-out\n"
            "loss; sent is that of a rank's step, the mean over the steps.\n"};

/* Checks each word of --comm before the ranks start. 0, or the status to end with. */
static int read_comms(void)
{
    char *rest = words;
    (void)snprintf(words, sizeof words, "%s", comms);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        ls_comm_hook hook = {.size = sizeof hook};
        if (comm_count == COMMS_MAX) {
            return cli_wrong(&command, "--comm: more than %d hooks", COMMS_MAX);
        }
        if (ls_comm_hook_parse(word, &hook) < 0) {
            return cli_wrong(&command, "--comm: %s", ls_error_message());
        }
        if (hook.free != NULL) {
            hook.free(hook.state);
        }
        comm[comm_count++] = word;
    }
    return comm_count > 0 ? 0 : cli_wrong(&command, "--comm: name at least one hook, or plain");
}

/* ---- training ------------------------------------------------------------------------------ */

typedef struct run {                              /* of one hook and seed */
    double loss[POINTS_MAX], seconds[POINTS_MAX]; /* held out; at the clock's time */
    int points;
    bool reached; /* else the steps ended, or the loss is not finite any more */
    int64_t steps;
    double sent; /* bytes of a rank in all steps, the mean over the ranks */
} run;

typedef struct training {
    const void *data;
    int64_t seed;
    ls_module *net;
    ls_optim *optim;
    ls_reducer *reducer; /* NULL: a rank alone */
    double seconds;
} training;

/* The mean loss of samples: of the first ones held out, else of this rank's in a step. */
static ls_tensor *loss_of(const training *t, bool held_out, int64_t step)
{
    return ls__task_loss(
        task, t->data, t->net, held_out,
        held_out ? 0 : ls__task_first(task, t->seed, step, ls_rank(), ls_world_size()));
}

static ls_status train_step(training *t, int64_t step, double *sent)
{
    LS_SCOPE;
    ls_reducer_stats stats = {.size = sizeof stats};
    ls_optim_zero_grad(t->optim);
    LS_TRY(ls_backward(loss_of(t, false, step)));
    LS_TRY(ls_optim_step(t->optim));
    if (t->reducer != NULL) {
        LS_TRY(ls_reducer_get_stats(t->reducer, &stats));
    }
    *sent += (double)stats.sent_bytes;
    return LS_OK;
}

/* Rank 0's, so that all ranks go on or none does. */
static ls_status judge(const training *t, double *loss)
{
    LS_NO_GRAD;
    LS_SCOPE;
    ls_module_train(t->net, false);
    LS_TRY(ls_item(loss_of(t, true, 0), loss));
    ls_module_train(t->net, true);
    return ls_broadcast(ls_world(), loss, 1, LS_FLOAT64, 0, NULL, NULL);
}

static ls_status train(training *t, int64_t most, run *out)
{
    bool finite = true;
    while (out->steps < most && !out->reached && finite) {
        const int64_t until = out->steps + every < most ? out->steps + every : most;
        LS_TRY(ls_barrier(ls_world(), NULL, NULL));
        const double begin = ls__bench_now_ms();
        for (; out->steps < until; out->steps++) {
            LS_TRY(train_step(t, out->steps, &out->sent));
        }
        LS_TRY(ls_barrier(ls_world(), NULL, NULL));
        t->seconds += 1e-3 * (ls__bench_now_ms() - begin);
        out->seconds[out->points] = t->seconds;
        LS_TRY(judge(t, &out->loss[out->points]));
        finite = isfinite(out->loss[out->points]) != 0;
        out->reached = out->loss[out->points++] <= target;
    }
    return ls_all_reduce(ls_world(), &out->sent, &out->sent, 1, LS_FLOAT64, LS_AVG, NULL, NULL);
}

/* A hook that is under DDP's wrapper belongs to it. */
static ls_status set_hook(training *t, const char *text)
{
    ls_comm_hook hook = {.size = sizeof hook};
    LS_TRY(ls_comm_hook_parse(text, &hook));
    return hook.before != NULL ? ls_ddp_set_hook(t->net, &hook) : LS_OK;
}

static ls_status measure(const void *data, const char *text, int64_t seed, int64_t most, run *out)
{
    training t = {.data = data, .seed = seed};
    LS_TRY(ls_manual_seed((uint64_t)seed));
    ls_module *net = task->build();
    t.net = net != NULL ? ls_ddp_new(net, ls_world(), NULL) : NULL;
    ls_status status = t.net != NULL ? set_hook(&t, text) : ls_error_status();
    t.optim = status == LS_OK ? task->optim(t.net) : NULL;
    t.reducer = t.net != NULL ? ls_ddp_reducer(t.net) : NULL;
    if (t.optim != NULL) {
        status = train(&t, most, out);
    }
    status = status == LS_OK && t.optim == NULL ? ls_error_status() : status;
    ls_optim_free(t.optim);
    ls_module_free(t.net != NULL ? t.net : net);
    return status;
}

/* ---- rows ---------------------------------------------------------------------------------- */

static json_t *row_of(const run *r, int c, int64_t seed, json_t *machine)
{
    return json_pack(
        "{s:s, s:s, s:s, s:I, s:i, s:f, s:b, s:I, s:f, s:o, s:f, s:o, s:o, s:O}", "name",
        task->name, "about", task->about, "comm", comm[c], "seed", (json_int_t)seed, "ranks",
        (int)ranks, "target", target, "reached", (int)r->reached, "steps", (json_int_t)r->steps,
        "seconds", r->seconds[r->points - 1], "loss", ls__bench_number(r->loss[r->points - 1]),
        "sent_bytes", r->sent / (double)r->steps, "losses", ls__bench_list(r->loss, r->points),
        "times", ls__bench_list(r->seconds, r->points), "machine", machine);
}

/* Those of the first `seeds_begun` seeds; of the first seed those that have ended. */
static json_t *rows_of(const run *runs, int64_t seeds_begun)
{
    json_t *list = json_array(), *machine = ls__bench_machine();
    for (int c = 0; c < comm_count; c++) {
        for (int64_t s = 0; s < seeds_begun; s++) {
            const run *r = &runs[c * seeds + s];
            if (r->points > 0) {
                json_array_append_new(list, row_of(r, c, s + 1, machine));
            }
        }
    }
    json_decref(machine);
    return list;
}

static bool report(const run *runs)
{
    printf("# %s: %s; to a held-out loss of %g, %d ranks\n", task->name, task->about, target,
           (int)ranks);
    printf("# %-30s %5s %9s %6s %9s %10s\n", "comm", "seed", "seconds", "steps", "loss",
           "sent (KB)");
    for (int c = 0; c < comm_count; c++) {
        for (int s = 0; s < seeds; s++) {
            const run *r = &runs[c * seeds + s];
            printf("  %-30s %5d %9.3f %6d %9.4f %10.3f%s\n", comm[c], s + 1,
                   r->seconds[r->points - 1], (int)r->steps, r->loss[r->points - 1],
                   r->sent / (double)r->steps * 1e-3, r->reached ? "" : "  not reached");
        }
    }
    return ls__bench_dump(rows_of(runs, seeds), comm_count * (int)seeds, json);
}

/* One rank. Returns its exit status. */
static int run_rank(void *arg)
{
    (void)arg;
    void *data = task->read();
    run *runs = calloc((size_t)comm_count * (size_t)seeds, sizeof *runs);
    LS_CHECK(ls_init(NULL));
    ranks = ls_world_size();
    if (data == NULL || runs == NULL) {
        LS_CHECK(ls_fail(LS_ERR_MEMORY, "no memory"));
    }
    LS_CHECK(measure(data, comm[0], 1, WARMUPS, runs)); /* the first one finds cold memory */
    memset(runs, 0, sizeof *runs);
    for (int64_t s = 0; s < seeds; s++) {
        for (int i = 0; i < comm_count; i++) {
            const int64_t c = (i + s) % comm_count;
            LS_CHECK(measure(data, comm[c], s + 1, steps, &runs[c * seeds + s]));
            /* Later seeds count as a whole: a hook's seeds are compared with those of plain DDP. */
            if (ls_rank() == 0 && (s == 0 || i == comm_count - 1)) {
                ls__bench_keep(rows_of(runs, s + 1), json);
            }
        }
    }
    const bool written = ls_rank() != 0 || report(runs);
    free(runs);
    free(data);
    LS_CHECK(ls_finalize());
    return written ? 0 : 1;
}

int ls__bench_learn(int argc, char **argv)
{
    comms = "plain bf16 int8 powersgd:rank=4 top_k";
    transport = json = NULL;
    ranks = 2;
    steps = 300;
    every = 5;
    seeds = 1;
    target = 0.0;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    task = argc - first == 1 ? ls__task_find(argv[first]) : NULL;
    if (task == NULL) {
        return cli_wrong(&command, "name one task: digits or text");
    }
    target = target > 0.0 ? target : task->target;
    const int status = read_comms();
    return status != 0 ? status : ls__bench_start(transport, json, (int)ranks, run_rank, NULL);
}
