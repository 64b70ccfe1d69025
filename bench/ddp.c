/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench ddp`: training steps of a network of models/ under DDP, mode by mode and size by
 * size; see ddp.h. */
#include "ddp.h"

#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/runtime.h"
#include "nets.h"
#include "timeline.h"
#include "tools/cli/cli.h"

/* ---- options ------------------------------------------------------------------------------- */

static ls__bench_ddp given;
static ls__bench_ddp_asked asked;
static const net *network;
static const char *timeline; /* the file to write; NULL: none */
static ls__recording *recording;
static int64_t batch;

static int parse_model(const cli_command *command, const cli_option *o, const char *text)
{
    (void)o;
    network = net_find(text);
    return network != NULL
               ? 0
               : cli_wrong(command,
                           "--model: \"%s\" is not a network; lockstep bench step --help "
                           "lists them",
                           text);
}

static const cli_option options[] = {
    {"model", CLI_READ, .read = parse_model, .value_name = "NAME",
     .help = "the network: mlp, resnet18-cifar, gpt or another of lockstep bench step"},
    {"batch", CLI_COUNT, &batch, .low = 1, .high = 1 << 20, .fallback = "the model's",
     .help = "samples of a step of a rank"},
    LS__BENCH_DDP_OPTIONS(asked),
    {"comm", CLI_TEXT, &asked.comms, .value_name = "LIST",
     .help = "communication hooks, separated by spaces: plain int8 powersgd:rank=4,start=0"},
    {"gate", CLI_TEXT, &given.gate, .value_name = "DIR",
     .help = "rank R waits for a byte from the pipe DIR/R before each turn; see --help's end"},
    {"timeline", CLI_TEXT, &timeline, .value_name = "FILE",
     .help = "also write the times at which gradients were ready, for lockstep bench replay"},
};

static const cli_command command = {
    .name = "lockstep bench ddp",
    .about = "Times training steps under DDP, with each way and size of reducing gradients in "
             "turns.",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more =
        "backward is the rank's own work, wire the time from the first bucket's launch to the "
        "last\n"
        "one's end, exposed the part of it for which backward waited, hidden the rest of it, "
        "comm\n"
        "the part of a step that is exposed. Means are over ranks, too. Under a launcher\n"
        "(`lockstep run ... lockstep bench ddp`) the ranks of the job take part.\n"
        "With --gate other jobs can take turns with this one: rank 0 writes a byte to DIR/done\n"
        "after the warm-up and after each turn of all modes (bench/compare_ddp.py).\n"};

/* -1, or the status to end with. */
static int parse(int argc, char **argv)
{
    given = (ls__bench_ddp){.compute = "measured"};
    asked = (ls__bench_ddp_asked){.modes = "naive,flat,bucketed,overlap,local",
                                  .sizes = "auto",
                                  .wires = "float32",
                                  .comms = "plain",
                                  .skips = "1",
                                  .groups = "1",
                                  .ranks = 2,
                                  .steps = 10,
                                  .rounds = 3,
                                  .warmups = 3,
                                  .untimed = 1};
    network = NULL;
    timeline = NULL;
    batch = 0;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (network == NULL) {
        return cli_wrong(&command, "say which model: --model NAME");
    }
    given.model = network->name;
    given.about = network->about;
    given.batch = batch > 0 ? (int)batch : (int)network->batch;
    const int status = ls__bench_ddp_ask(&given, &asked, &command);
    if (status == 0 && timeline != NULL && given.contender[0].mode == BENCH_DDP_LOCAL) {
        return cli_wrong(&command,
                         "--timeline records the first mode, but local has no timeline; begin "
                         "--mode with another one");
    }
    return status == 0 ? -1 : status;
}

/* ---- steps --------------------------------------------------------------------------------- */

/* The optimizer is made anew, for the parameters under DDP. */
static ls_status open_contender(const ls__bench_ddp *b, ls__bench_ddp_contender *c)
{
    net_run *run = calloc(1, sizeof *run);
    c->run = run;
    if (run == NULL) {
        return ls_fail(LS_ERR_MEMORY, "no memory");
    }
    LS_TRY(net_open(run, network, b->batch, true));
    const bool local = c->mode == BENCH_DDP_LOCAL;
    ls_optim_free(run->optim);
    run->optim = NULL;
    ls_module *ddp = ls_ddp_new(
        run->model, ls_world(),
        LS_OPTIONS(ls_ddp_options, .bucket_bytes = c->bucket_bytes, .wire_dtype = c->wire,
                   .mode = local ? LS_REDUCE_OVERLAP : (ls_reduce_mode)c->mode));
    if (ddp == NULL) {
        return ls_error_status();
    }
    if (local) {
        LS_TRY(ls_ddp_set_local(ddp, true));
        LS_TRY(ls_ddp_set_sync(ddp, false));
    }
    run->model = ddp;
    if (!local && strcmp(c->comm, "plain") != 0) {
        ls_comm_hook hook = {.size = sizeof hook};
        LS_TRY(ls_comm_hook_parse(c->comm, &hook));
        LS_TRY(ls_ddp_set_hook(ddp, &hook));
    }
    c->reducer = local ? NULL : ls_ddp_reducer(ddp);
    run->optim = net_optim(network, ddp);
    given.parameters = (double)ls_module_numel(ddp);
    return run->optim != NULL ? LS_OK : ls_error_status();
}

static ls_status close_contender(ls__bench_ddp_contender *c)
{
    if (c->run != NULL) {
        net_close(c->run);
    }
    free(c->run);
    c->run = NULL;
    ls__recording_free(recording);
    recording = NULL;
    return LS_OK;
}

static ls_status step(const ls__bench_ddp *b, ls__bench_ddp_contender *c, bool synchronise,
                      double parts[BENCH_DDP_PARTS])
{
    const ls__env *env = ls__self.runtime->env;
    ls_ddp_stats stats = {.size = sizeof stats};
    uint64_t at[4] = {env->now_ns(env)};
    net_run *run = c->run;
    (void)b;
    (void)synchronise; /* each one does */
    {
        LS_SCOPE;
        ls_optim_zero_grad(run->optim);
        ls_tensor *loss = net_loss(run);
        at[1] = env->now_ns(env);
        LS_TRY(ls_backward(loss));
        at[2] = env->now_ns(env);
        LS_TRY(ls_optim_step(run->optim));
        at[3] = env->now_ns(env);
    }
    if (c->reducer != NULL) {
        LS_TRY(ls_ddp_get_stats(run->model, &stats));
    }
    ls__bench_ddp_set_parts(parts, at, stats.wire.last, stats.exposed.last);
    return LS_OK;
}

/* ---- the timeline of the first contender --------------------------------------------------- */

static ls_status note(const ls__bench_ddp *b, const ls__bench_ddp_contender *c)
{
    if (timeline == NULL || c != b->contender) {
        return LS_OK;
    }
    if (recording == NULL) {
        recording = ls__recording_new(c->reducer, b->steps * b->rounds);
    }
    return recording != NULL ? ls__recording_add(recording, c->reducer)
                             : ls_fail(LS_ERR_MEMORY, "no memory");
}

static bool end(const ls__bench_ddp *b)
{
    return timeline == NULL || ls__recording_write(recording, b, timeline);
}

int ls__bench_ddp_run(int argc, char **argv)
{
    static const ls__bench_ddp_steps steps = {
        .open = open_contender, .step = step, .close = close_contender, .note = note, .end = end};
    const int ended = parse(argc, argv);
    given.of = &steps;
    return ended >= 0 ? ended : !ls__bench_can_write(timeline) ? 1 : ls__bench_ddp_measure(&given);
}
