/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench straggler TASK`: trains to a held-out loss with one slow worker, in several
 * modes: data parallelism, parameter servers, averages of parameters.
 *
 *     worker 0   F zz B  F zz B  F zz B  F zz B        F: forward, with the pull of a server
 *     worker 3   F zzzz B    F zzzz B    …             B: backward, with the push or all-reduce
 *
 * Workers sleep between forward and backward, the slow one longer, so that their speeds do not
 * depend on how many cores there are. The model of a moment is what worker 0 then reads: it keeps
 * copies, which are judged after the training, and nothing waits for that. Versions that a push had
 * missed are counted in the servers' replay log. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "base/env.h"
#include "bench.h"
#include "tasks.h"
#include "tools/cli/cli.h"
#include "trace/replay_log.h"

enum { MODES_MAX = 16, SEEDS_MAX = 10, POINTS_MAX = 500, STALE_MAX = 64, PATH_BYTES = 64 };

/* ---- options ------------------------------------------------------------------------------- */

static const ls__task *task;
static const char *modes, *transport, *json;
static int64_t ranks, every, seeds;
static double target, slow, pace, most;

static const cli_option options[] = {
    {"modes", CLI_TEXT, &modes, .value_name = "LIST",
     .help = "of training, separated by spaces: ddp, sync, backup=1, async, stale=2, local=8, "
             "diloco=8"},
    {"slow", CLI_NUMBER, &slow, .low = 1, .high = 100,
     .help = "how many times as long as the others the last worker sleeps in a step"},
    {"pace", CLI_NUMBER, &pace, .low = 0, .high = 1e4, .value_name = "MS",
     .help = "milliseconds that the others sleep in a step"},
    {"seconds", CLI_NUMBER, &most, .low = 0.01, .high = 1e4, .help = "of each training"},
    {"target", CLI_NUMBER, &target, .low = 0, .high = 100, .fallback = "the task's",
     .help = "the held-out loss to reach"},
    {"every", CLI_COUNT, &every, .low = 1, .high = 1000,
     .help = "steps of worker 0 between held-out losses; of local and diloco: their round"},
    {"seeds", CLI_COUNT, &seeds, .low = 1, .high = SEEDS_MAX,
     .help = "trainings of each mode, with other first parameters and batches"},
    {"ranks", CLI_COUNT, &ranks, .low = 3, .high = LS__BENCH_RANKS_MAX, .letter = 'n',
     .help = "ranks on this host: the workers, and a server"},
    {"transport", CLI_CHOICE, &transport, .choices = "shm|tcp",
     .fallback = "as the environment says, else shm",
     .help = "shm: shared memory; tcp: as if every rank had a host of its own"},
    {"json", CLI_TEXT, &json, .value_name = "FILE", .help = "also write the rows to FILE"},
};

static const cli_command command = {
    .name = "lockstep bench straggler",
    .about = "Trains to a held-out loss in several modes, with one slow worker.",
    .operands = "digits|text",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more = "ddp averages gradients in every step; sync, backup=N, async and stale=N have a\n"
            "parameter server; local=N averages parameters every N steps, diloco=N steps an outer\n"
            "optimizer with them. async and stale step on each gradient, with the learning rate\n"
            "of ddp divided by the number of workers; the others have that of ddp. The tasks are\n"
            "those of `lockstep bench learn`; the last rank is the server, and waits in the other\n"
            "modes.\n"};

typedef struct mode {
    const char *name; /* as it was given */
    bool serves, averages;
    ls_server_options server; /* of one that serves */
    int64_t round;            /* steps between averages of one that averages */
    bool outer;
} mode;

static char words[512];
static mode list[MODES_MAX];
static int count;

/* What follows NAME= ; -1: another word. */
static int64_t number_after(const char *word, const char *name)
{
    char *end = NULL;
    const size_t own = strlen(name);
    const long value =
        strncmp(word, name, own) == 0 && word[own] == '=' ? strtol(word + own + 1, &end, 10) : -1;
    return end != NULL && *end == '\0' && end != word + own + 1 && value >= 0 ? value : -1;
}

static bool read_mode(const char *word, mode *out)
{
    const int64_t stale = number_after(word, "stale"), backup = number_after(word, "backup"),
                  local = number_after(word, "local"), diloco = number_after(word, "diloco");
    const bool async = strcmp(word, "async") == 0, sync = strcmp(word, "sync") == 0;
    *out = (mode){.name = word,
                  .serves = async || sync || stale >= 0 || backup >= 0,
                  .averages = local > 0 || diloco > 0,
                  .server = *LS_OPTIONS(ls_server_options, .servers = 1),
                  .round = local > 0 ? local : diloco,
                  .outer = diloco > 0};
    out->server.mode = async ? LS_SERVER_ASYNC : stale >= 0 ? LS_SERVER_STALE : LS_SERVER_SYNC;
    out->server.staleness = stale > 0 ? (int)stale : 0;
    out->server.backup = backup > 0 ? (int)backup : 0;
    return out->serves || out->averages || strcmp(word, "ddp") == 0;
}

/* 0, or the status to end with. */
static int read_modes(void)
{
    char *rest = words;
    (void)snprintf(words, sizeof words, "%s", modes);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        if (count == MODES_MAX || !read_mode(word, &list[count])) {
            return cli_wrong(&command,
                             "--modes: \"%s\" is none, or one too many of %d; give ddp, sync, "
                             "backup=N, async, stale=N, local=N or diloco=N",
                             word, MODES_MAX);
        }
        count++;
    }
    return count > 0 ? 0 : cli_wrong(&command, "--modes: name at least one, as ddp");
}

/* ---- training ------------------------------------------------------------------------------ */

typedef struct run { /* of one mode and seed */
    int points;
    double seconds[POINTS_MAX], loss[POINTS_MAX]; /* of copies; held out */
    char *copy[POINTS_MAX];
    double steps;                                  /* of all workers */
    int64_t stale[STALE_MAX + 1], pushes, dropped; /* pushes by the number of versions missed */
    bool reached;
    double at; /* seconds until then, else all */
} run;

typedef struct training {
    const void *data;
    const mode *mode;
    ls_group *workers;
    int64_t seed;
    ls_module *net;
    ls_optim *optim;
    double begin_ms;
    run *out;
    char log[PATH_BYTES];
} training;

static double seconds_of(const training *t)
{
    return 1e-3 * (ls__bench_now_ms() - t->begin_ms);
}

static int worker_count(void)
{
    return (int)ranks - 1;
}

static bool works(void)
{
    return ls_rank() < worker_count();
}

/* Copies the parameters to or from memory in which they follow each other. Returns their bytes. */
static size_t copy_params(ls_module *net, char *memory, bool back)
{
    ls_param params[64];
    const int all = ls_module_params(net, params, 64);
    size_t at = 0;
    for (int i = 0; i < all; i++) {
        const size_t bytes = (size_t)ls_numel(params[i].value) * sizeof(float);
        char *value = ls_data(params[i].value);
        if (memory != NULL) {
            memcpy(back ? value : memory + at, back ? memory + at : value, bytes);
        }
        at += bytes;
    }
    return at;
}

static ls_status keep_copy(training *t)
{
    run *out = t->out;
    if (ls_rank() != 0 || out->points == POINTS_MAX) {
        return LS_OK;
    }
    char *memory = malloc(copy_params(t->net, NULL, false));
    if (memory == NULL) {
        return ls_fail(LS_ERR_MEMORY, "no memory");
    }
    (void)copy_params(t->net, memory, false);
    out->copy[out->points] = memory;
    out->seconds[out->points++] = seconds_of(t);
    return LS_OK;
}

static ls_status train_step(training *t, int64_t step)
{
    LS_SCOPE;
    ls_tensor *loss = ls__task_loss(task, t->data, t->net, false,
                                    ls__task_first(task, t->seed, step, ls_rank(), worker_count()));
    LS_TRY(ls_tensor_status(loss));
    LS_TRY(step % (t->mode->averages ? t->mode->round : every) == 0 ? keep_copy(t) : LS_OK);
    (void)ls__bench_sleep(ls_rank() == worker_count() - 1 ? slow * pace : pace);
    LS_TRY(ls_backward(loss));
    LS_TRY(ls_optim_step(t->optim));
    ls_optim_zero_grad(t->optim);
    t->out->steps += 1.0;
    return LS_OK;
}

/* DiLoCo's settings (Douillard et al. 2023). */
static ls_status average(training *t)
{
    const ls_outer_options *outer =
        LS_OPTIONS(ls_outer_options, .lr = 0.7, .momentum = 0.9, .nesterov = true);
    return ls_ddp_average(
        t->net, LS_OPTIONS(ls_ddp_average_options, .outer = t->mode->outer ? outer : NULL));
}

static bool is_over(const training *t)
{
    return seconds_of(t) >= most;
}

/* Workers that wait for each other end after the same step. */
static ls_status agree_to_end(const training *t, bool *over)
{
    int32_t mine = is_over(t);
    LS_TRY(ls_all_reduce(t->workers, &mine, &mine, 1, LS_INT32, LS_MAX, NULL, NULL));
    *over = mine != 0;
    return LS_OK;
}

static ls_status train_together(training *t)
{
    const mode *m = t->mode;
    const int64_t round = m->averages ? m->round : every;
    bool over = !works();
    if (m->averages && works()) {
        LS_TRY(ls_ddp_set_local(t->net, true));
        LS_TRY(m->outer ? average(t) : LS_OK); /* notes the start */
    }
    for (int64_t step = 0; !over; step++) {
        LS_TRY(train_step(t, step));
        if ((step + 1) % round == 0) {
            LS_TRY(m->averages ? average(t) : LS_OK);
            LS_TRY(agree_to_end(t, &over));
        }
    }
    return LS_OK;
}

static ls_status train_served(training *t)
{
    LS_TRY(ls_server_run(t->net, t->optim));
    for (int64_t step = 0; ls_server_works(t->net) && !is_over(t); step++) {
        LS_TRY(train_step(t, step));
    }
    return ls_server_join(t->net);
}

/* ---- after it ------------------------------------------------------------------------------ */

static ls_status count_stale(training *t)
{
    ls__replay_log log;
    LS_TRY(ls__replay_read(ls__env_posix(), t->log, &log));
    for (int64_t i = 0; i < log.count; i++) {
        const ls__replay_event *e = &log.events[i];
        const int64_t missed = e->made - 1 - e->read;
        t->out->dropped += e->made == LS__REPLAY_NONE;
        t->out->pushes += e->made != LS__REPLAY_NONE;
        if (e->made != LS__REPLAY_NONE) {
            t->out->stale[missed < STALE_MAX ? missed : STALE_MAX]++;
        }
    }
    ls__replay_release(&log);
    return LS_OK;
}

/* Held-out losses of the copies, on rank 0. */
static ls_status judge(training *t)
{
    run *out = t->out;
    ls_module *net = task->build();
    LS_TRY(ls_module_status(net));
    ls_module_train(net, false);
    out->at = out->points > 0 ? out->seconds[out->points - 1] : 0.0;
    for (int i = 0; i < out->points; i++) {
        LS_NO_GRAD;
        LS_SCOPE;
        (void)copy_params(net, out->copy[i], true);
        LS_TRY(ls_item(ls__task_loss(task, t->data, net, true, 0), &out->loss[i]));
        free(out->copy[i]);
        if (!out->reached && out->loss[i] <= target) {
            out->reached = true;
            out->at = out->seconds[i];
        }
    }
    ls_module_free(net);
    return LS_OK;
}

/* A file for the servers' log that all ranks know. */
static ls_status name_log(training *t)
{
    int fd = -1;
    (void)snprintf(t->log, sizeof t->log, "/tmp/lockstep-straggler-XXXXXX");
    if (ls_rank() == 0) {
        fd = mkstemp(t->log);
        (void)close(fd);
    }
    LS_TRY(ls_broadcast(ls_world(), t->log, sizeof t->log, LS_UINT8, 0, NULL, NULL));
    return fd < 0 && ls_rank() == 0 ? ls_fail(LS_ERR_INVALID, "%s cannot be made", t->log) : LS_OK;
}

static ls_module *wrap(training *t, ls_module *net)
{
    if (!t->mode->serves) {
        return works() ? ls_ddp_new(net, t->workers, NULL) : net;
    }
    ls_server_options server = t->mode->server;
    server.log = t->log;
    return ls_server_new(net, ls_world(), &server);
}

/* As many gradients as a step of the others averages move the parameters as far as that. */
static void set_rate(const training *t)
{
    if (t->mode->serves && t->mode->server.mode != LS_SERVER_SYNC) {
        ls_optim_set_lr(t->optim, ls_optim_lr(t->optim) / worker_count());
    }
}

static ls_status train(training *t)
{
    set_rate(t);
    LS_TRY(ls_barrier(ls_world(), NULL, NULL));
    t->begin_ms = ls__bench_now_ms();
    LS_TRY(t->mode->serves ? train_served(t) : train_together(t));
    LS_TRY(works() ? keep_copy(t) : LS_OK);
    LS_TRY(ls_all_reduce(ls_world(), &t->out->steps, &t->out->steps, 1, LS_FLOAT64, LS_SUM, NULL,
                         NULL));
    if (ls_rank() == 0) {
        LS_TRY(t->mode->serves ? count_stale(t) : LS_OK);
        LS_TRY(judge(t));
        (void)unlink(t->log);
    }
    return ls_barrier(ls_world(), NULL, NULL);
}

static ls_status measure(const void *data, ls_group *workers, const mode *m, int64_t seed, run *out)
{
    training t = {.data = data, .mode = m, .workers = workers, .seed = seed, .out = out};
    LS_TRY(ls_manual_seed((uint64_t)seed));
    LS_TRY(name_log(&t));
    ls_module *net = task->build();
    LS_TRY(ls_module_status(net));
    t.net = wrap(&t, net);
    if (t.net == NULL) {
        ls_module_free(net);
        return ls_error_status();
    }
    t.optim = task->optim(t.net);
    const ls_status status = t.optim != NULL ? train(&t) : ls_error_status();
    ls_optim_free(t.optim);
    ls_module_free(t.net);
    return status;
}

/* ---- rows ---------------------------------------------------------------------------------- */

static int stale_count(const run *r)
{
    int stale = STALE_MAX + 1;
    while (stale > 0 && r->stale[stale - 1] == 0) {
        stale--;
    }
    return stale;
}

static json_t *row_of(const run *r, const mode *m, int64_t seed, json_t *machine)
{
    json_t *stale = json_array();
    for (int i = 0; i < stale_count(r); i++) {
        json_array_append_new(stale, json_integer(r->stale[i]));
    }
    return json_pack("{s:s, s:s, s:s, s:I, s:i, s:f, s:f, s:f, s:b, s:f, s:f, s:f, s:o, s:I, s:o, "
                     "s:o, s:o, s:O}",
                     "name", task->name, "about", task->about, "mode", m->name, "seed",
                     (json_int_t)seed, "workers", worker_count(), "slow", slow, "pace_ms", pace,
                     "target", target, "reached", (int)r->reached, "seconds", r->at,
                     "trained_seconds", r->seconds[r->points - 1], "steps", r->steps, "loss",
                     ls__bench_number(r->loss[r->points - 1]), "dropped", (json_int_t)r->dropped,
                     "stale", stale, "losses", ls__bench_list(r->loss, r->points), "times",
                     ls__bench_list(r->seconds, r->points), "machine", machine);
}

static double stale_mean(const run *r)
{
    double sum = 0.0;
    for (int i = 0; i <= STALE_MAX; i++) {
        sum += (double)i * (double)r->stale[i];
    }
    return r->pushes > 0 ? sum / (double)r->pushes : 0.0;
}

/* Those of the first `seeds_done` seeds. */
static json_t *rows_of(const run *runs, int64_t seeds_done)
{
    json_t *rows = json_array(), *machine = ls__bench_machine();
    for (int c = 0; c < count; c++) {
        for (int64_t s = 0; s < seeds_done; s++) {
            json_array_append_new(rows, row_of(&runs[c * seeds + s], &list[c], s + 1, machine));
        }
    }
    json_decref(machine);
    return rows;
}

static bool report(const run *runs)
{
    printf("# %s: %s; to a held-out loss of %g, %d workers, the last %g times as slow\n",
           task->name, task->about, target, worker_count(), slow);
    printf("# %-10s %5s %9s %9s %9s %9s\n", "mode", "seed", "seconds", "steps/s", "stale", "loss");
    for (int c = 0; c < count; c++) {
        for (int s = 0; s < seeds; s++) {
            const run *r = &runs[c * seeds + s];
            printf("  %-10s %5d %9.3f %9.1f %9.2f %9.4f%s\n", list[c].name, s + 1, r->at,
                   r->steps / r->seconds[r->points - 1], stale_mean(r), r->loss[r->points - 1],
                   r->reached ? "" : "  not reached");
        }
    }
    return ls__bench_dump(rows_of(runs, seeds), count * (int)seeds, json);
}

/* Of all ranks but the last. */
static ls_status make_workers(ls_group **out)
{
    int members[LS__BENCH_RANKS_MAX];
    for (int i = 0; i < worker_count(); i++) {
        members[i] = i;
    }
    return ls_group_new(ls_world(), members, worker_count(), "workers", out);
}

/* One rank. Returns its exit status. */
static int run_rank(void *arg)
{
    (void)arg;
    void *data = task->read();
    run *runs = calloc((size_t)count * (size_t)seeds, sizeof *runs);
    ls_group *workers = NULL;
    LS_CHECK(ls_init(NULL));
    ranks = ls_world_size();
    if (data == NULL || runs == NULL) {
        LS_CHECK(ls_fail(LS_ERR_MEMORY, "no memory"));
    }
    LS_CHECK(make_workers(&workers));
    for (int64_t s = 0; s < seeds; s++) { /* in turns */
        for (int i = 0; i < count; i++) {
            const int64_t c = (i + s) % count;
            LS_CHECK(measure(data, workers, &list[c], s + 1, &runs[c * seeds + s]));
        }
        if (ls_rank() == 0) {
            ls__bench_keep(rows_of(runs, s + 1), json);
        }
    }
    const bool written = ls_rank() != 0 || report(runs);
    LS_CHECK(ls_group_free(workers));
    free(runs);
    free(data);
    LS_CHECK(ls_finalize());
    return written ? 0 : 1;
}

int ls__bench_straggler(int argc, char **argv)
{
    modes = "ddp sync backup=1 async stale=2 local=8 diloco=8";
    transport = json = NULL;
    ranks = 5;
    every = 5;
    seeds = 1;
    target = 0.0;
    slow = 2.0;
    pace = 10.0;
    most = 3.0;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    task = argc - first == 1 ? ls__task_find(argv[first]) : NULL;
    if (task == NULL) {
        return cli_wrong(&command, "name one task: digits or text");
    }
    target = target > 0.0 ? target : task->target;
    const int status = read_modes();
    return status != 0 ? status : ls__bench_start(transport, json, (int)ranks, run_rank, NULL);
}
