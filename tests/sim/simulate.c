/* SPDX-License-Identifier: Apache-2.0 */
/* build/tests/sim/simulate: runs seeds of the simulation. Its library is another build of the same
 * sources (instrument.h).
 *
 * Seeds are shared out over a few processes, each of which runs one world after the other.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/planted.h"
#include "sim/scenario.h"

#define JOBS_MAX 64
#define SHOWN_MAX 20 /* failures that are printed */
#define NEWS_SECONDS 0.5
#define LINE_SECONDS 3.0 /* between two lines of progress */

static const char usage[] =
    "usage: simulate --seeds A-B [--ranks N] [--jobs J] [--progress] [--verbose] [--log FILE]\n"
    "                [--planted NAME] [--until-found]\n"
    "\n"
    "Runs the library on simulated hosts, once for each seed: ranks, launchers, network, clock "
    "and\n"
    "faults in one process, all decided by the seed. A run must end with the right bits or with "
    "the\n"
    "same named error on every live rank. The status is 1 when one did not.\n"
    "\n"
    "  --seeds A-B     or one seed\n"
    "  --ranks N       2 to 16, instead of what the seed draws\n"
    "  --jobs J        processes that share the seeds; default: one for each core\n"
    "  --progress      a line every few seconds: seeds done, seeds a minute, time left; a "
    "terminal\n"
    "                  shows it anyway\n"
    "  --verbose       prints what happened (of one seed)\n"
    "  --log FILE      writes it there, with every switch between threads: the same for the same "
    "seed\n"
    "  --planted NAME  with a fault in the library, which should be found: comparison, deadline,\n"
    "                  fence, wake, generation, tag, damage, words, operator or slot\n"
    "  --until-found   stops at the first failure; the status is 0 if there was one\n";

typedef struct options {
    uint64_t first, last;
    int ranks, jobs;
    bool progress, verbose, until_found;
    const char *log, *planted; /* NULL: none */
} options;

typedef struct totals {
    uint64_t seeds, failed, switches, calls;
} totals;

static int wrong(const char *format, ...) LS__PRINTF(1, 2);
static int wrong(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "simulate: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n%s", usage);
    va_end(args);
    return 2;
}

/* ---- the command line ---------------------------------------------------------------------- */

static bool parse_seeds(const char *text, options *o)
{
    char *end = NULL;
    errno = 0;
    o->first = o->last = strtoull(text, &end, 10);
    if (end != text && *end == '-') {
        const char *second = end + 1;
        o->last = strtoull(second, &end, 10);
        return end != second && *end == '\0' && errno == 0 && o->last >= o->first;
    }
    return end != text && *end == '\0' && errno == 0;
}

static bool parse_number(const char *text, int low, int high, int *out)
{
    char *end = NULL;
    const long value = strtol(text, &end, 10);
    *out = (int)value;
    return end != text && *end == '\0' && value >= low && value <= high;
}

static bool parse_planted(const char *name, options *o)
{
    static const char *const names[LS__BUG_COUNT] = {"none",  "comparison", "deadline", "fence",
                                                     "wake",  "generation", "tag",      "damage",
                                                     "words", "operator",   "slot"};
    for (int b = 0; b < LS__BUG_COUNT; b++) {
        if (strcmp(names[b], name) == 0) {
            ls__sim_planted = b;
            o->planted = names[b];
            return true;
        }
    }
    return false;
}

static bool parse_value(const char *flag, const char *value, options *o)
{
    if (strcmp(flag, "--seeds") == 0) {
        return parse_seeds(value, o);
    }
    if (strcmp(flag, "--ranks") == 0) {
        return parse_number(value, 2, LS__PLAN_RANKS_MAX, &o->ranks);
    }
    if (strcmp(flag, "--jobs") == 0) {
        return parse_number(value, 1, JOBS_MAX, &o->jobs);
    }
    if (strcmp(flag, "--log") == 0) {
        o->log = value;
        return true;
    }
    return strcmp(flag, "--planted") == 0 && parse_planted(value, o);
}

/* -1: go on; else the status to end with. */
static int parse(int argc, char **argv, options *o)
{
    bool seeds = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--verbose") == 0) {
            o->verbose = true;
        } else if (strcmp(argv[i], "--progress") == 0) {
            o->progress = true;
        } else if (strcmp(argv[i], "--until-found") == 0) {
            o->until_found = true;
        } else if (i + 1 == argc || !parse_value(argv[i], argv[i + 1], o)) {
            return wrong("%s%s%s is not understood", argv[i], i + 1 < argc ? " " : "",
                         i + 1 < argc ? argv[i + 1] : "");
        } else {
            seeds = seeds || strcmp(argv[i], "--seeds") == 0;
            i++;
        }
    }
    return seeds ? -1 : wrong("--seeds is missing");
}

/* ---- running ------------------------------------------------------------------------------- */

static void print_line(void *arg, const char *line)
{
    fprintf(arg, "%s\n", line);
}

static void print_failure(uint64_t seed, const options *o, const ls__scenario_result *r)
{
    char ranks[32] = "";
    if (o->ranks > 0) {
        snprintf(ranks, sizeof ranks, " --ranks %d", o->ranks);
    }
    printf("seed %llu (%s): %s\n    again: simulate --seeds %llu%s%s%s --verbose\n",
           (unsigned long long)seed, r->about, r->why, (unsigned long long)seed, ranks,
           o->planted != NULL ? " --planted " : "", o->planted != NULL ? o->planted : "");
    fflush(stdout);
}

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void add(totals *to, const totals *from)
{
    to->seeds += from->seeds;
    to->failed += from->failed;
    to->switches += from->switches;
    to->calls += from->calls;
}

/* Tells the parent what has been done since the last time. True: it was told. */
static bool tell(int fd, totals *since)
{
    const bool told = fd < 0 || write(fd, since, sizeof *since) == (ssize_t)sizeof *since;
    *since = (totals){0};
    return told;
}

static totals run_seed(uint64_t seed, const options *o, int shown, FILE *log)
{
    const ls__scenario_options with = {.ranks = o->ranks,
                                       .log = log != NULL ? print_line : NULL,
                                       .log_arg = log,
                                       .log_switches = o->log != NULL};
    ls__scenario_result r;
    ls__scenario_run(seed, &with, &r);
    if (!r.good && shown < SHOWN_MAX) {
        print_failure(seed, o, &r);
    }
    if (log != NULL) {
        fprintf(log, "seed %llu (%s): %s, %016llx\n", (unsigned long long)seed, r.about,
                r.good ? "good" : r.why, (unsigned long long)r.hash);
    }
    return (totals){1, r.good ? 0 : 1, r.switches, r.calls};
}

/* The seeds first + part, first + part + parts … `fd`: where news of it go; -1: nowhere. */
static bool run_part(const options *o, int part, int parts, FILE *log, int fd, totals *sum)
{
    totals since = {0};
    double next = seconds() + NEWS_SECONDS;
    bool told = true;
    for (uint64_t s = o->first + (uint64_t)part; s <= o->last && told; s += (uint64_t)parts) {
        const totals one = run_seed(s, o, (int)sum->failed, log);
        add(&since, &one);
        add(sum, &one);
        if (one.failed > 0 && o->until_found) {
            break;
        }
        if (seconds() >= next) {
            told = tell(fd, &since);
            next = seconds() + NEWS_SECONDS;
        }
    }
    return tell(fd, &since) && told;
}

static void print_progress(const options *o, const totals *sum, double took)
{
    const uint64_t all = o->last - o->first + 1;
    const double rate = (double)sum->seeds / (took > 0 ? took : 1);
    const bool terminal = isatty(STDERR_FILENO) != 0;
    fprintf(stderr, "%s%llu of %llu seeds, %llu failed, %.0f a minute, %.0f s left%s",
            terminal ? "\r" : "", (unsigned long long)sum->seeds, (unsigned long long)all,
            (unsigned long long)sum->failed, rate * 60,
            rate > 0 ? (double)(all - sum->seeds) / rate : 0, terminal ? "   " : "\n");
}

/* The news of all parts, until the last has ended or one has found what was sought. */
static void collect(const options *o, int fd, totals *sum)
{
    const bool shows = o->progress || isatty(STDERR_FILENO) != 0;
    const double begun = seconds();
    double next = begun + LINE_SECONDS;
    totals part;
    while (!(o->until_found && sum->failed > 0) &&
           read(fd, &part, sizeof part) == (ssize_t)sizeof part) {
        add(sum, &part);
        if (shows && seconds() >= next) {
            print_progress(o, sum, seconds() - begun);
            next = seconds() + LINE_SECONDS;
        }
    }
    if (isatty(STDERR_FILENO) != 0) {
        fprintf(stderr, "\n");
    }
}

/* A process for each part; they tell of themselves through a pipe. */
static bool run_parts(const options *o, int jobs, totals *sum)
{
    int pipe_fds[2];
    pid_t pid[JOBS_MAX];
    int started = 0;
    bool sound = pipe(pipe_fds) == 0;
    for (; sound && started < jobs; started++) {
        pid[started] = fork();
        if (pid[started] == 0) {
            totals part = {0};
            _exit(run_part(o, started, jobs, NULL, pipe_fds[1], &part) ? 0 : 1);
        }
        sound = pid[started] > 0;
    }
    (void)close(pipe_fds[1]);
    if (sound) {
        collect(o, pipe_fds[0], sum);
    }
    (void)close(pipe_fds[0]);
    const bool found = o->until_found && sum->failed > 0;
    for (int j = 0; j < started; j++) {
        int status = 0;
        if (found) {
            (void)kill(pid[j], SIGKILL);
        }
        (void)waitpid(pid[j], &status, 0);
        sound = sound && (found || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    }
    return sound;
}

static bool run(const options *o, totals *sum)
{
    if (o->log == NULL && !o->verbose) {
        const uint64_t seeds = o->last - o->first + 1;
        const uint64_t jobs = (uint64_t)o->jobs < seeds ? (uint64_t)o->jobs : seeds;
        return run_parts(o, (int)jobs, sum);
    }
    FILE *log = o->log != NULL ? fopen(o->log, "w") : stdout;
    if (log == NULL) {
        fprintf(stderr, "simulate: --log %s: %s\n", o->log, strerror(errno));
        return false;
    }
    (void)run_part(o, 0, 1, log, -1, sum);
    return fflush(log) == 0 && (log == stdout || fclose(log) == 0);
}

int main(int argc, char **argv)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    options o = {.jobs = cores < 1 ? 1 : cores > JOBS_MAX ? JOBS_MAX : (int)cores};
    const int status = parse(argc, argv, &o);
    if (status >= 0) {
        return status;
    }
    totals sum = {0};
    const double begun = seconds();
    const bool sound = run(&o, &sum);
    const double took = seconds() - begun;
    printf("%llu seeds in %.1f s (%.0f a minute), %.1f million switches: %llu failed\n",
           (unsigned long long)sum.seeds, took, (double)sum.seeds * 60 / (took > 0 ? took : 1),
           (double)sum.switches * 1e-6, (unsigned long long)sum.failed);
    if (!sound) {
        fprintf(stderr, "simulate: a worker ended before its seeds\n");
        return 3;
    }
    return (sum.failed > 0) != o.until_found;
}
