/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench step`: how long a training step of a network of models/ takes in one process, and
 * with --profile by which operations. The rows add up to the whole: what no operation accounts for
 * (allocation, scopes, the plan of backward, the caller) is a row of its own. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/runtime.h"
#include "bench.h"
#include "nets.h"
#include "peak.h"
#include "profile.h"
#include "tensor/tensor.h"
#include "tools/cli/cli.h"

#define STEPS_MAX 10000
#define WARMUPS 2

typedef struct asked {
    const net *net;
    bool bfloat16, profile;
    int threads, batch, steps; /* 0: as is usual */
    const char *json;
} asked;

typedef struct measured {
    double ms[STEPS_MAX];                 /* of a step */
    double total_ms;                      /* of all */
    double loss, parameters, flops, copy; /* the last two: the machine's peak a second */
    bool tiles;                           /* it is of products of bfloat16 tiles */
    uint64_t allocations;                 /* from the system, in all steps */
    ls_memory_stats memory;
    ls__bench_profile profile;
} measured;

/* ---- options ------------------------------------------------------------------------------- */

static asked given;
static int64_t threads, batch, step_count;
static const char *dtype;

static int parse_model(const cli_command *command, const cli_option *o, const char *text)
{
    char names[512] = "";
    size_t used = 0;
    given.net = net_find(text);
    for (int i = 0; net_at(i) != NULL && used < sizeof names; i++) {
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "",
                                 net_at(i)->name);
    }
    (void)o;
    return given.net != NULL
               ? 0
               : cli_wrong(command, "--model: \"%s\" is not known; there is %s", text, names);
}

static const cli_option options[] = {
    {"model", CLI_READ, .read = parse_model, .value_name = "NAME",
     .help = "the network, see below"},
    {"batch", CLI_COUNT, &batch, .low = 1, .high = 1 << 20, .fallback = "the model's",
     .help = "samples of a step"},
    {"dtype", CLI_CHOICE, &dtype, .choices = "float32|bfloat16|bf16", .value_name = "NAME",
     .help = "bfloat16, or bf16: products in bfloat16, weights in float32"},
    {"threads", CLI_COUNT, &threads, .low = 1, .high = 256, .fallback = "one a core",
     .help = "compute threads"},
    {"steps", CLI_COUNT, &step_count, .low = 1, .high = STEPS_MAX,
     .help = "timed steps, after 2 others"},
    {"profile", CLI_SWITCH, &given.profile,
     .help = "time, calls and work of each operation, forward and backward"},
    {"json", CLI_TEXT, &given.json, .value_name = "FILE",
     .help = "also write the measurements to FILE"},
};

static const char closing[] =
    "\n"
    "GF/s counts the multiply-adds of products as two operations each (causal attention as if\n"
    "every key were seen); GB/s the bytes of operands and results, the least that must be moved.\n"
    "\"of peak\" is the share of this machine's rate just before on as many threads: for products\n"
    "that of multiply-adds in registers (float32; bfloat16 in tiles where the processor has "
    "them),\n"
    "for the rest that of a copy larger than the caches, so that it exceeds 100 % where data are\n"
    "still in the cache.\n";

/* The text after the options, with the list of networks. */
static const char *describe_models(char *out, size_t bytes)
{
    size_t used = (size_t)snprintf(out, bytes, "Models, with their batch:\n");
    for (int i = 0; net_at(i) != NULL && used < bytes; i++) {
        used += (size_t)snprintf(out + used, bytes - used, "  %-15s %s, batch %lld\n",
                                 net_at(i)->name, net_at(i)->about, (long long)net_at(i)->batch);
    }
    (void)snprintf(out + used, used < bytes ? bytes - used : 0, "%s", closing);
    return out;
}

/* -1, or the status to end with. */
static int parse(int argc, char **argv, asked *a)
{
    char more[4096];
    const cli_command command = {
        .name = "lockstep bench step",
        .about =
            "Times training steps (forward, loss, backward, update) in one process, on a batch "
            "that is the same each time.",
        .options = options,
        .count = (int)(sizeof options / sizeof *options),
        .more = describe_models(more, sizeof more)};
    given = (asked){0};
    threads = batch = 0;
    step_count = 10;
    dtype = "float32";
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (given.net == NULL) {
        return cli_wrong(&command, "say which model: --model NAME");
    }
    given.bfloat16 = strcmp(dtype, "float32") != 0;
    given.threads = (int)threads;
    given.batch = batch > 0 ? (int)batch : (int)given.net->batch;
    given.steps = (int)step_count;
    *a = given;
    return -1;
}

/* ---- measuring ---------------------------------------------------------------------------- */

static double ms_since(const ls__env *env, uint64_t begin_ns)
{
    return (double)(env->now_ns(env) - begin_ns) * 1e-6;
}

/* Bytes that an update reads and writes: gradient, parameter, and their state. */
static double update_bytes(const net_run *run, double parameters)
{
    return parameters * (double)sizeof(float) * (run->net->sgd ? 5.0 : 7.0);
}

static ls_status profiled_step(net_run *run, measured *m)
{
    const ls__env *env = m->profile.meter.env;
    const char *update = run->net->sgd ? "SGD" : "AdamW";
    ls_status status = LS_OK;
    ls__bench_profile_step(&m->profile);
    {
        LS_SCOPE;
        const uint64_t begin = env->now_ns(env);
        ls_optim_zero_grad(run->optim);
        const uint64_t cleared = env->now_ns(env);
        ls__bench_profile_add(&m->profile, "zero_grad", "update", cleared - begin, 0.0, 0.0);
        ls_tensor *of = net_loss(run);
        status = ls_backward(of);
        const uint64_t walked = env->now_ns(env);
        status = status < 0 ? status : ls_optim_step(run->optim);
        ls__bench_profile_add(&m->profile, update, "update", env->now_ns(env) - walked, 0.0,
                              update_bytes(run, m->parameters));
        status = status < 0 ? status : ls_item(of, &m->loss);
    }
    return status;
}

static ls_status run_steps(const asked *a, net_run *run, measured *m)
{
    const ls_runtime *runtime = ls__self.runtime;
    const ls__env *env = runtime->env;
    for (int i = 0; i < WARMUPS; i++) {
        LS_TRY(net_step(run, &m->loss));
    }
    LS_TRY(ls_memory_reset_peaks());
    if (a->profile && !ls__bench_profile_start(&m->profile, env)) {
        return ls_fail(LS_ERR_MEMORY, "no memory");
    }
    const uint64_t before = ls__tensor_allocations(ls__self.runtime);
    ls_status status = LS_OK;
    for (int i = 0; i < a->steps && status >= 0; i++) {
        const uint64_t begin = env->now_ns(env);
        status = a->profile ? profiled_step(run, m) : net_step(run, &m->loss);
        m->ms[i] = ms_since(env, begin);
        m->total_ms += m->ms[i];
    }
    m->allocations = ls__tensor_allocations(ls__self.runtime) - before;
    if (a->profile) {
        ls__bench_profile_stop(&m->profile);
        const double rest = m->total_ms * 1e6 - (double)m->profile.ns;
        ls__bench_profile_add(&m->profile, "between operations", "",
                              rest > 0.0 ? (uint64_t)rest : 0, 0.0, 0.0);
        ls__bench_profile_sort(&m->profile);
    }
    m->memory.size = sizeof m->memory;
    return status < 0 ? status : ls_memory_get_stats(&m->memory);
}

/* ---- what is printed ---------------------------------------------------------------------- */

static double share_of_peak(const ls__bench_profile_row *row, const measured *m)
{
    const double s = (double)row->ns * 1e-9;
    const double work = row->flops > 0.0 ? row->flops : row->bytes;
    const double peak = row->flops > 0.0 ? m->flops : m->copy;
    return s > 0.0 && peak > 0.0 ? work / s / peak : 0.0;
}

static void print_number(double number, int width)
{
    if (number > 0.0) {
        printf(" %*.1f", width, number);
    } else {
        printf(" %*s", width, "-");
    }
}

static void print_row(const ls__bench_profile_row *row, const measured *m, int steps)
{
    const double ns = (double)row->ns;
    printf("%-20s %-9s", row->operation, row->pass);
    print_number(row->pass[0] != '\0' ? (double)row->calls / steps : 0.0, 7);
    printf(" %10.3f %5.1f %%", ns * 1e-6 / steps, 100.0 * ns * 1e-6 / m->total_ms);
    print_number(ns > 0.0 ? row->flops / ns : 0.0, 8);
    print_number(ns > 0.0 ? row->bytes / ns : 0.0, 7);
    print_number(100.0 * share_of_peak(row, m), 6);
    puts(share_of_peak(row, m) > 0.0 ? " %" : "");
}

static void print_profile(const asked *a, measured *m)
{
    double flops = 0.0;
    printf("# peak: %.1f GF/s of %s, %.1f GB/s read and written by a copy\n", m->flops * 1e-9,
           m->tiles ? "bfloat16 tiles" : "float32 multiply-adds", m->copy * 1e-9);
    printf("%-20s %-9s %7s %10s %7s %8s %7s %8s\n", "# operation", "pass", "calls", "ms", "share",
           "GF/s", "GB/s", "of peak");
    for (int i = 0; i < m->profile.rows; i++) {
        const ls__bench_profile_row *row = &m->profile.row[i];
        print_row(row, m, a->steps);
        flops += row->flops;
    }
    const ls__bench_profile_row all = {
        .operation = "total", .pass = "", .flops = flops, .ns = (uint64_t)(m->total_ms * 1e6)};
    print_row(&all, m, a->steps);
}

static void print_all(const asked *a, measured *m)
{
    ls__bench_sort(m->ms, a->steps);
    printf("# %s: %s, batch %d, %s, %.1f million parameters, %d thread%s, %d step%s\n",
           a->net->name, a->net->about, a->batch, a->bfloat16 ? "bfloat16" : "float32",
           m->parameters * 1e-6, ls__self.runtime->threads,
           ls__self.runtime->threads == 1 ? "" : "s", a->steps, a->steps == 1 ? "" : "s");
    if (a->profile) {
        print_profile(a, m);
    }
    printf("%.3f ms a step (quartiles %.3f to %.3f), loss %.4f, %.1f MB of tensors at most, %llu "
           "allocations from the system\n",
           m->ms[a->steps / 2], m->ms[a->steps / 4], m->ms[(3 * a->steps - 1) / 4], m->loss,
           (double)m->memory.allocated_peak * 1e-6, (unsigned long long)m->allocations);
}

static bool write_json(const asked *a, const measured *m)
{
    json_t *rows = json_array();
    for (int i = 0; i < m->profile.rows; i++) {
        const ls__bench_profile_row *row = &m->profile.row[i];
        json_array_append_new(
            rows, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f}", "operation", row->operation,
                            "pass", row->pass, "calls", (double)row->calls / a->steps, "ms",
                            (double)row->ns * 1e-6 / a->steps, "flops", row->flops / a->steps,
                            "bytes", row->bytes / a->steps, "of_peak", share_of_peak(row, m)));
    }
    json_t *all = json_pack(
        "{s:s, s:i, s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:o}", "model", a->net->name,
        "batch", a->batch, "dtype", a->bfloat16 ? "bfloat16" : "float32", "threads",
        ls__self.runtime->threads, "steps", a->steps, "median_ms", m->ms[a->steps / 2], "mean_ms",
        m->total_ms / a->steps, "loss", m->loss, "peak_flops", m->flops, "peak_copy", m->copy,
        "allocations", (json_int_t)m->allocations, "allocated_peak",
        (json_int_t)m->memory.allocated_peak, "rows", rows);
    const bool written = all != NULL && cli_write_json(all, a->json, JSON_INDENT(1));
    json_decref(all);
    if (!written) {
        fprintf(stderr, "lockstep bench: cannot write to %s\n", a->json);
    }
    return written;
}

static ls_status measure(const asked *a, measured *m)
{
    net_run run = {0};
    ls_status status = net_open(&run, a->net, a->batch, true);
    run.bfloat16 = a->bfloat16;
    m->parameters = status < 0 ? 0.0 : (double)ls_module_numel(run.model);
    if (status >= 0 && a->profile) {
        m->flops = a->bfloat16 ? ls__bench_peak_tiles(ls__self.runtime->threads) : 0.0;
        m->tiles = m->flops > 0.0;
        m->flops = m->tiles ? m->flops : ls__bench_peak_flops(ls__self.runtime->threads);
        m->copy = ls__bench_peak_copy(ls__self.runtime->threads);
    }
    status = status < 0 ? status : run_steps(a, &run, m);
    net_close(&run);
    return status;
}

int ls__bench_step(int argc, char **argv)
{
    asked a = {0};
    cli_leave_job();
    const int ended = parse(argc, argv, &a);
    if (ended >= 0 || !ls__bench_can_write(a.json)) {
        return ended >= 0 ? ended : 1;
    }
    int failed = 0;
    measured *m = calloc(1, sizeof *m);
    if (m == NULL) {
        fprintf(stderr, "no memory\n");
        return 1;
    }
    if (ls_init(LS_OPTIONS(ls_init_options, .threads = a.threads)) < 0 || measure(&a, m) < 0) {
        fprintf(stderr, "lockstep bench step: %s\n", ls_error_message());
        failed = 1;
    } else {
        print_all(&a, m);
        failed = a.json != NULL && !write_json(&a, m);
    }
    free(m);
    LS_CHECK(ls_finalize());
    return failed;
}
