/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep paper`: the list, one experiment, all of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/suggest.h"
#include "paper.h"
#include "tools/cli/cli.h"
#include "tools/commands.h"

const paper_experiment paper_experiments[] = {
    {"fig2", "figure 2, section 3.2", "all-reduce of many parameters against parameters per call",
     paper_call_sizes},
    {"fig6", "figure 6, section 5.1", "parts of a training step, with and without overlap",
     paper_breakdown},
    {"fig7", "figure 7, section 5.2", "step time against bucket size, 2 ranks", paper_buckets},
    {"fig8", "figure 8, section 5.2", "step time against bucket size, 4 ranks", paper_buckets},
    {"fig9", "figure 9, section 5.3",
     "a step on 1 to 8 ranks, replayed, and on 16 to 256, modelled", paper_scaling},
    {"fig10", "figure 10, section 5.3", "step time when only every n-th step synchronises",
     paper_skipping},
    {"fig11", "figure 11, section 5.3", "training loss where synchronisation is skipped, on digits",
     paper_convergence},
    {"fig12", "figure 12, section 5.4", "step time with 1, 3 and 5 groups in turns",
     paper_round_robin},
    {"variance", "section 5, the shared entitlement", "step times of ranks that are slow at random",
     paper_variance},
    {"compression", "section 6.2.3 and the lectures",
     "time to a held-out loss with each communication hook", paper_compression},
    {"asynchrony", "the lectures",
     "time to a held-out loss with one slow worker, in each mode of training", paper_asynchrony},
    {"server", "the lectures", "a parameter server beside a ring, hosts around a switch",
     paper_server},
    {"tradeoff", "the lectures", "a GPT divided between operators, within them, and both",
     paper_tradeoff},
    {"alpa", "figure 8 of Alpa, Zheng et al. 2022",
     "GPT, MoE, wide ResNet divided within operators, between them, and both", paper_alpa},
    {"moe", "the lectures", "a mixture of experts beside its dense twin, 1 to 8 ranks",
     paper_experts},
    {"pipeline", "the lectures", "GPipe beside PipeDream: drawn, and their idle time",
     paper_pipeline},
    {"cs336", "the course CS336's notebook", "all-reduce and DDP in the notebook's tables",
     paper_cs336},
    {"questions", "section 6.1", "the paper's three questions, answered from results in --out DIR",
     paper_questions},
    {"backends", "the lectures", "functions, types and memory of each backend", paper_backends},
    {"arithmetic", "the lectures", "sums with their steps: years, memory, the parameter server",
     paper_arithmetic},
    {"taxonomy", "section 7 and the lectures", "systems, and their parts that Lockstep has",
     paper_taxonomy},
};
const int paper_experiment_count = (int)(sizeof paper_experiments / sizeof *paper_experiments);

enum { ENTRIES_MAX = 32 };
#define SIZES "1M,10M,100M,1000M"

static paper_options given;
static int64_t steps, turns, workers;
static const char *link_rate; /* with "none" */

static const cli_option options[] = {
    {"format", CLI_CHOICE, &given.format, .choices = "text|markdown|csv|json",
     .help = "of what is printed"},
    {"out", CLI_TEXT, &given.out, .value_name = "DIR", .fallback = "",
     .help = "also write NAME.json and its plots (SVG and PNG, by gnuplot) to DIR"},
    {"transport", CLI_CHOICE, &given.transport, .choices = "shm|tcp|mpi",
     .fallback = "all that this machine has, or shm",
     .help =
         "shm: shared memory; tcp: as if every rank had a host of its own; mpi: MPI's collectives"},
    {"link", CLI_CHOICE, &link_rate, .choices = "none|100mbit|1gbit|10gbit",
     .help = "measure between two network namespaces with a link of this rate; needs root"},
    {"sizes", CLI_TEXT, &given.sizes, .value_name = "LIST",
     .help = "of cs336's all_reduce; those that do not fit into memory are left out"},
    {"parameters", CLI_COUNT, &given.parameters, .low = 1000, .high = 1e9,
     .fallback = "60000000; of server 25557032",
     .help = "of fig2: summed in all; of server: gradients"},
    {"workers", CLI_COUNT, &workers, .low = 2, .high = 8, .letter = 'n',
     .fallback = "2, 3, 4 and 8; of moe 1, 2, 4 and 8", .help = "of server, moe"},
    {"steps", CLI_COUNT, &steps, .low = 1, .high = 1000, .fallback = "the experiment's",
     .help = "timed steps of a turn; of fig11: iterations; of compression: at most; of asynchrony: "
             "of a worker that is not slow"},
    {"turns", CLI_COUNT, &turns, .low = 1, .high = 10, .fallback = "the experiment's",
     .help = "turns of each row; of fig11, compression and asynchrony: seeds"},
    {"model", CLI_TEXT, &given.model, .value_name = "NAME", .fallback = "the experiment's",
     .help = "measure only this network (lockstep bench step --help lists them); of "
             "compression and asynchrony: digits, text"},
    {"compute", CLI_CHOICE, &given.compute, .choices = "measured|replay",
     .fallback = "the experiment's",
     .help = "replay: forward and backward are sleeps as recorded (lockstep bench replay)"},
    {"speed", CLI_NUMBER, &given.speed, .low = 1e-3, .high = 1e6, .fallback = "as recorded",
     .help = "a replayed network computes this many times as fast"},
    {"quick", CLI_SWITCH, &given.quick,
     .help = "two minutes at most: one medium, fewer turns, less data"},
    {"full", CLI_SWITCH, &given.full,
     .help = "the paper's networks, ResNet-50 and BERT, instead of ResNet-18 and a GPT"},
};

static const cli_command command = {
    .name = "lockstep paper",
    .about = "Measures a figure or table of the DDP paper (Li et al., VLDB 2020) on this machine.",
    .operands = "NAME|list|all",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more =
        "`lockstep paper list` prints the names. Each experiment prints its table and the paper's\n"
        "claims as inequalities with their ratio: the median over turns, and the lowest and "
        "highest\n"
        "turn. One holds if it does in every turn, fails if it does in none, else it is "
        "undecided,\n"
        "as it is after one turn. `all` needs --out and also writes DIR/index.html, anew after "
        "each\n"
        "experiment. What is interrupted keeps the turns that it has measured.\n"
        "Without --transport and --link, fig2 and fig6 to fig9 measure shared memory, TCP at\n"
        "1 Gbit/s (as root) and MPI (where one is installed), fig10 and fig12 shared memory and\n"
        "TCP of this host, compression shared memory, 1 Gbit/s and 100 Mbit/s (as root), server\n"
        "1 Gbit/s (as root), tradeoff shared memory and 1 Gbit/s (as root); the others shared\n"
        "memory.\n"};

void paper_print_names(void)
{
    for (int i = 0; i < paper_experiment_count; i++) {
        printf("%s\t%s\n", paper_experiments[i].name, paper_experiments[i].about);
    }
    printf("list\tthe names\nall\tevery experiment and a report\n");
}

static int list(void)
{
    for (int i = 0; i < paper_experiment_count; i++) {
        const paper_experiment *e = &paper_experiments[i];
        printf("%-12s %s (%s)\n", e->name, e->about, e->place);
    }
    return 0;
}

static void add_option(char line[512], const char *name, const char *value)
{
    if (value != NULL) {
        (void)snprintf(line + strlen(line), 512 - strlen(line), " --%s %s", name, value);
    }
}

static void add_number(char line[512], const char *name, int64_t value)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    add_option(line, name, value > 0 ? text : NULL);
}

/* As a user would write it again. */
static const char *line_of(const paper_experiment *e, char out[512])
{
    (void)snprintf(out, 512, "lockstep paper %s%s%s", e->name, given.quick ? " --quick" : "",
                   given.full ? " --full" : "");
    add_option(out, "transport", given.transport);
    add_option(out, "link", given.link);
    const bool sized = e->run == paper_cs336 && strcmp(given.sizes, SIZES) != 0;
    add_option(out, "sizes", sized ? given.sizes : NULL);
    add_option(out, "model", given.model);
    add_option(out, "compute", given.compute);
    if (given.speed > 0.0) {
        char speed[32];
        (void)snprintf(speed, sizeof speed, "%g", given.speed);
        add_option(out, "speed", speed);
    }
    add_number(out, "parameters", given.parameters);
    add_number(out, "workers", workers);
    add_number(out, "steps", steps);
    add_number(out, "turns", turns);
    return out;
}

/* Whether there is an MPI, if one was asked for; false after it printed why. */
static bool has_mpi(paper *p)
{
    char why[256];
    const bool asked = p->transport != NULL && strcmp(p->transport, "mpi") == 0;
    if (asked && !paper_mpi_find(&p->mpi, why)) {
        fprintf(stderr, "lockstep paper: --transport mpi: %s\n", why);
        paper_set_reason(why);
        return false;
    }
    return true;
}

/* Runs it; false after it was said why it has no result, or not all of it. */
static bool measure_all_of(paper *p)
{
    char line[512];
    paper_set_reason("");
    if (!has_mpi(p) || !p->experiment->run(p)) {
        const char *why = paper_reason();
        paper_set_incomplete(p->result, why[0] != '\0' ? why : "failed");
    }
    if (json_object_get(p->result, "incomplete") == NULL) {
        return true;
    }
    if (paper_has_rows(p->result)) {
        (void)line_of(p->experiment, line);
        add_option(line, "out", given.out);
        fprintf(stderr, "lockstep paper: %s is incomplete (%s); measure it again: %s\n",
                p->experiment->name, paper_text(p->result, "incomplete"), line);
    } else {
        fprintf(stderr, "lockstep paper: %s has no result\n", p->experiment->name);
    }
    return false;
}

/* The result is printed and written as far as it was measured; false unless it is whole. */
static bool run_experiment(paper_entry *entry)
{
    char line[512];
    const paper_experiment *e = entry->experiment;
    paper p = {.experiment = e,
               .options = &given,
               .transport = given.transport,
               .link = given.link,
               .result = paper_result_new(e, &given, line_of(e, line))};
    bool good = p.result != NULL && measure_all_of(&p);
    if (!good && (p.result == NULL || !paper_has_rows(p.result))) {
        (void)snprintf(entry->why, sizeof entry->why, "%s", paper_text(p.result, "incomplete"));
        json_decref(p.result);
        return false;
    }
    if (given.out != NULL && !paper_write(p.result, given.out)) {
        (void)snprintf(entry->why, sizeof entry->why, "its files could not be written");
        fprintf(stderr, "lockstep paper: %s has no result\n", e->name);
        json_decref(p.result);
        return false;
    }
    paper_print(p.result, given.format);
    (void)fflush(stdout);
    entry->result = p.result;
    return good;
}

/* The report is written after each experiment, so that it says at any time what there is. */
static int run_all(void)
{
    LS_ASSERT(paper_experiment_count <= ENTRIES_MAX);
    static paper_entry entries[ENTRIES_MAX];
    char path[512];
    int whole = 0, without = 0;
    bool written = true;
    if (given.out == NULL) {
        return cli_wrong(&command, "all: say where to: --out DIR");
    }
    (void)snprintf(path, sizeof path, "%s/index.html", given.out);
    for (int i = 0; i < paper_experiment_count; i++) {
        entries[i].experiment = &paper_experiments[i];
        (void)snprintf(entries[i].why, sizeof entries[i].why, "not measured yet");
    }
    for (int i = 0; i < paper_experiment_count && !paper_stopped() && written; i++) {
        whole += run_experiment(&entries[i]);
        written = paper_page(entries, paper_experiment_count, path);
    }
    for (int i = 0; i < paper_experiment_count; i++) {
        without += entries[i].result == NULL;
        json_decref(entries[i].result);
    }
    if (written) {
        fprintf(stderr,
                "lockstep paper: %d experiments are whole, %d incomplete, %d without a result: "
                "%s\n",
                whole, paper_experiment_count - whole - without, without, path);
    }
    return written && whole == paper_experiment_count ? 0 : 1;
}

static int unknown(const char *name)
{
    const char *names[64];
    for (int i = 0; i < paper_experiment_count; i++) {
        names[i] = paper_experiments[i].name;
    }
    const char *near = ls__suggest(name, names, paper_experiment_count);
    return cli_wrong(
        &command, "there is no experiment \"%s\"%s%s%s; `lockstep paper list` prints them", name,
        near != NULL ? "; did you mean " : "", near != NULL ? near : "", near != NULL ? "?" : "");
}

/* argv[0] is "paper". */
int cmd_paper(int argc, char **argv)
{
    cli_leave_job();
    given = (paper_options){.format = "text", .sizes = SIZES};
    link_rate = "none";
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (argc - first != 1) {
        return cli_wrong(&command, "name one experiment; `lockstep paper list` prints them");
    }
    given.steps = (int)steps;
    given.turns = (int)turns;
    given.workers = (int)workers;
    given.link = strcmp(link_rate, "none") != 0 ? link_rate : NULL;
    if (given.link != NULL && given.transport != NULL && strcmp(given.transport, "tcp") != 0) {
        return cli_wrong(&command, "--link %s is TCP; leave --transport %s out", given.link,
                         given.transport);
    }
    if (strcmp(argv[first], "list") == 0) {
        return list();
    }
    if (given.out != NULL && !paper_make_folder(given.out)) {
        return 1; /* before an hour of measuring, not after it */
    }
    if (strcmp(argv[first], "all") == 0) {
        return run_all();
    }
    for (int i = 0; i < paper_experiment_count; i++) {
        if (strcmp(paper_experiments[i].name, argv[first]) == 0) {
            paper_entry entry = {.experiment = &paper_experiments[i]};
            const bool whole = run_experiment(&entry);
            json_decref(entry.result);
            return whole ? 0 : 1;
        }
    }
    return unknown(argv[first]);
}
