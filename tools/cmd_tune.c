/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep tune`, run under the launcher on the hosts that are to be tuned: times all exact
 * programs of all_reduce by messages at a few sizes, and keeps the times in rank 0's file, from
 * which jobs between these hosts choose their algorithms (comm/tune/tune.h).
 *
 * Programs are timed in turns, so that what else happens on the hosts meets all of them; a time is
 * the median of a rank's, the longest of all ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/runtime.h>

#include "base/env.h"
#include "comm/core/comm.h"
#include "comm/tune/cache.h"
#include "comm/tune/choice.h"
#include "commands.h"
#include "tools/cli/cli.h"

static const cli_command command = {
    .name = "lockstep tune",
    .about = "Times all_reduce between the hosts it runs on, for the choice of algorithms.",
    .more =
        "Start it as a job on these hosts: lockstep run -n 2 --nnodes ... lockstep tune. Rank 0\n"
        "keeps the times in LOCKSTEP_TUNE_FILE, from which jobs choose; `lockstep info\n"
        "--tuning` shows the choice. It takes some seconds.\n",
    .ranked = true};

#define TIMES_MAX 9
#define HOPELESS 3.0 /* slower than the best one by this factor: not timed at larger sizes */

static const int times[LS__TUNE_CLASSES] = {9, 7, 5, 3}; /* how often each is timed */

typedef struct tuning {
    ls__layout layout;
    ls__timings timings;
    float *buffer; /* of the largest class */
    double sample[LS__TUNE_TIMED_MAX][TIMES_MAX];
} tuning;

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static ls_status time_one(tuning *t, int which, int64_t bytes, double *ns)
{
    const ls__env *env = ls__env_posix();
    const ls_collective_options *options =
        LS_OPTIONS(ls_collective_options, .algorithm = t->timings.of[which].algorithm->name);
    LS_TRY(ls_barrier(ls_world(), NULL, NULL));
    const uint64_t begin = env->now_ns(env);
    LS_TRY(ls_all_reduce(ls_world(), t->buffer, t->buffer, bytes / (int64_t)sizeof(float),
                         LS_FLOAT32, LS_SUM, options, NULL));
    *ns = (double)(env->now_ns(env) - begin);
    return LS_OK;
}

/* Whether it is worth timing at the next size, too. The one that puts least on a link always is:
 * where bytes are few they may hide in buffers on the way. All ranks find the same. */
static bool goes_on(const tuning *t, int which, int class)
{
    double least = 0, link = 0;
    for (int i = 0; i < t->timings.count; i++) {
        const double ns = t->timings.of[i].ns[class],
                     on_link = t->timings.of[i].counts.of[LS__COST_LINK];
        least = ns > 0 && (least == 0 || ns < least) ? ns : least;
        link = i == 0 || on_link < link ? on_link : link;
    }
    return t->timings.of[which].ns[class] <= HOPELESS * least ||
           t->timings.of[which].counts.of[LS__COST_LINK] == link;
}

/* The longest median of all ranks becomes the time of each program that was timed. */
static ls_status conclude(tuning *t, const bool *timed, int class)
{
    double ns[LS__TUNE_TIMED_MAX] = {0};
    for (int i = 0; i < t->timings.count; i++) {
        qsort(t->sample[i], (size_t)times[class], sizeof(double), by_size);
        ns[i] = timed[i] ? t->sample[i][times[class] / 2] : 0;
    }
    LS_TRY(ls_all_reduce(ls_world(), ns, ns, LS__TUNE_TIMED_MAX, LS_FLOAT64, LS_MAX, NULL, NULL));
    for (int i = 0; i < t->timings.count; i++) {
        t->timings.of[i].ns[class] = ns[i];
    }
    return LS_OK;
}

static ls_status time_all(tuning *t)
{
    bool timed[LS__TUNE_TIMED_MAX];
    memset(timed, 1, sizeof timed);
    for (int class = 0; class < LS__TUNE_CLASSES; class ++) {
        for (int i = 0; class > 0 && i < t->timings.count; i++) {
            timed[i] = timed[i] && goes_on(t, i, class - 1);
        }
        for (int k = -1; k < times[class]; k++) { /* the first one opens connections */
            for (int i = 0; i < t->timings.count; i++) {
                double *sample = &t->sample[i][k < 0 ? 0 : k];
                LS_TRY(timed[i] ? time_one(t, i, ls__tune_bytes[class], sample) : LS_OK);
            }
        }
        LS_TRY(conclude(t, timed, class));
    }
    return LS_OK;
}

static void print(const tuning *t)
{
    char path[512] = "";
    (void)ls__tune_file(path, sizeof path);
    printf("%d ranks; us of all_reduce, the longest of all ranks\n%-20s", t->layout.size, "");
    for (int class = 0; class < LS__TUNE_CLASSES; class ++) {
        printf(" %8lld KiB", (long long)ls__tune_bytes[class] >> 10);
    }
    for (int i = 0; i < t->timings.count; i++) {
        printf("\n%-20s", t->timings.of[i].algorithm->name);
        for (int class = 0; class < LS__TUNE_CLASSES; class ++) {
            const double ns = t->timings.of[i].ns[class];
            if (ns > 0) {
                printf(" %12.1f", ns / 1e3);
            } else {
                printf(" %12s", "-");
            }
        }
    }
    printf("\nkept in %s; `lockstep info --tuning` shows the choice\n", path);
}

static ls_status tune(tuning *t)
{
    t->layout = ls__tuning_layout(ls_world());
    LS_TRY(ls__timings_init(&t->timings, &t->layout, ls__env_posix()));
    t->buffer = calloc(1, (size_t)ls__tune_bytes[LS__TUNE_CLASSES - 1]);
    ls_status status = t->buffer != NULL
                           ? time_all(t)
                           : ls__fail(LS_ERR_MEMORY, "no memory for %lld bytes",
                                      (long long)ls__tune_bytes[LS__TUNE_CLASSES - 1]);
    free(t->buffer);
    if (status == LS_OK && ls_rank() == 0) {
        status = ls__tune_keep(ls_world()->comm, &t->layout, &t->timings);
    }
    if (status == LS_OK && ls_rank() == 0) {
        print(t);
    }
    return status;
}

static int tune_world(void)
{
    static tuning t;
    if (!ls_world()->has_remote) {
        return ls_rank() == 0
                   ? cli_wrong(&command, "all ranks are on one host, and only transfers between "
                                         "hosts are timed; start it on the hosts of your jobs")
                   : CLI_WRONG_USE;
    }
    const ls_status status = tune(&t);
    if (status != LS_OK) {
        fprintf(stderr, "lockstep tune: %s\n", ls_error_message());
    }
    return status == LS_OK ? 0 : 1;
}

int cmd_tune(int argc, char **argv)
{
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (ls_init(NULL) != LS_OK) {
        fprintf(stderr, "lockstep tune: %s\n", ls_error_message());
        return 1;
    }
    const int status = tune_world();
    return ls_finalize() == LS_OK ? status : 1;
}
