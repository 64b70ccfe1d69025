/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep report`: the logs and traces of runs as a table and a page. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "tools/cli/cli.h"
#include "tools/report.h"

static const char *out_path = "report.html";

static const cli_option options[] = {
    {"out", CLI_TEXT, &out_path, .value_name = "FILE", .help = "the page"},
};

static const cli_command command = {
    .name = "lockstep report",
    .about = "Writes a page about runs: loss, speed, exposed communication, slowest rank, memory.",
    .operands = "LOG|TRACE ...",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more =
        "LOG is the file of `lockstep train --log`, TRACE that of LOCKSTEP_TRACE. A trace belongs\n"
        "to the log before it. Several runs stand beside each other. The page is one file of HTML\n"
        "with its plots; it loads nothing.\n"};

/* "-" for a number that is not known. */
static void print_number(int width, double value, double scale, int digits)
{
    if (!report_is_known(value)) {
        printf(" %*s", width, "-");
    } else {
        printf(" %*.*f", width, digits, value * scale);
    }
}

static void print_run(const report_run *run)
{
    const report_summary s = report_summarise(run);
    printf("%6lld", (long long)s.steps);
    print_number(9, s.last_loss, 1.0, 4);
    print_number(9, s.best_held_out, 1.0, 4);
    print_number(9, s.step_seconds, 1e3, 2);
    print_number(10, s.per_second, 1.0, 0);
    print_number(9, s.exposed, 100.0, 1);
    print_number(8, s.slowest < 0 ? NAN : (double)s.slowest, 1.0, 0);
    print_number(9, s.peak_bytes, 1.0 / (1 << 20), 1);
    print_number(9, s.estimate_bytes, 1.0 / (1 << 20), 1);
    printf("  %s\n", report_name(run));
}

/* What the files lack, so that the page is not taken for the whole run. */
static void print_damage(const report_run *run)
{
    if (run->damaged > 0) {
        fprintf(stderr, "%s: %lld of %lld lines are damaged and left out\n", run->log,
                (long long)run->damaged, (long long)run->lines);
    }
    if (run->trace != NULL && run->trace->cut) {
        fprintf(stderr, "%s ends in the middle; what comes before it is shown\n", run->trace_file);
    }
}

static int write_page(const report_run *runs, int count, char **files, int file_count)
{
    char line[1024] = "";
    ls__text text = {line, sizeof line};
    ls__text_add(&text, "lockstep report");
    for (int i = 0; i < file_count; i++) {
        ls__text_add(&text, " %s", files[i]);
    }
    FILE *out = cli_create(out_path);
    bool written = out != NULL && report_page(out, line, runs, count);
    written = out != NULL && fclose(out) == 0 && written;
    if (!written) {
        fprintf(stderr, "lockstep report: --out \"%s\" cannot be written: %s\n", out_path,
                strerror(errno));
        return 1;
    }
    printf("\n%s has the plots; open it in a browser\n", out_path);
    return 0;
}

static int show(const report_run *runs, int count, char **files, int file_count)
{
    printf("%6s %9s %9s %9s %10s %9s %8s %9s %9s  run\n", "steps", "loss", "held-out", "step",
           "a second", "exposed", "slowest", "peak", "estimate");
    printf("%6s %9s %9s %9s %10s %9s %8s %9s %9s\n", "", "", "", "ms", "", "%", "rank", "MiB",
           "MiB");
    for (int i = 0; i < count; i++) {
        print_run(&runs[i]);
    }
    cli_flush(stdout);
    for (int i = 0; i < count; i++) {
        print_damage(&runs[i]);
    }
    return write_page(runs, count, files, file_count);
}

int cmd_report(int argc, char **argv)
{
    static report_run runs[REPORT_RUNS_MAX];
    int count = 0, result = 1;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (first == argc) {
        return cli_wrong(&command, "the files are missing; give the one of --log, and that of "
                                   "LOCKSTEP_TRACE if there is one");
    }
    for (int i = first; i < argc; i++) {
        if (cli_keep_input(&command, "out", out_path, argv[i]) != 0) {
            return CLI_WRONG_USE;
        }
    }
    if (report_read(argv + first, argc - first, runs, &count) < 0) {
        fprintf(stderr, "lockstep report: %s\n", ls_error_message());
    } else {
        result = show(runs, count, argv + first, argc - first);
    }
    report_free(runs, count);
    return result;
}
