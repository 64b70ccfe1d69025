/* SPDX-License-Identifier: Apache-2.0 */
/* Lockstep as a contender of bench/compare_training.py: builds a network of ../nets.h, says that it
 * is ready, and then trains as many steps as each line of its input asks for. Between two lines it
 * sleeps in a read, so that others have the machine. Public headers only.
 *
 *     contender_training NAME BATCH float32|bfloat16 formula|own
 *
 * What is timed is forward, loss, backward, update. With "own" the parameters are as the model
 * initialises itself: for the time from exec to the first step.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../nets.h"

#define STEPS_MAX 1000

static void must(ls_status status)
{
    if (status < 0) {
        fprintf(stderr, "contender: %s\n", ls_error_message());
        exit(1);
    }
}

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the most memory ---------------------------------------------------------------------- */

/* From now on: what building took does not count. */
static void reset_peak(void)
{
    const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (file >= 0) {
        (void)!write(file, "5", 1);
        (void)close(file);
    }
}

static double peak_mb(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[128];
    double kb = 0.0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "VmHWM:", 6) == 0) {
            kb = strtod(line + 6, NULL);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return kb / 1024.0;
}

/* ---- steps -------------------------------------------------------------------------------- */

/* {"ms": [...], "losses": [...], "cpu_ms": ..., "peak_mb": ...} */
static void turn(net_run *run, int steps)
{
    double loss[STEPS_MAX], ms[STEPS_MAX];
    const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < steps; i++) {
        const double begin = seconds(CLOCK_MONOTONIC);
        must(net_step(run, &loss[i]));
        ms[i] = (seconds(CLOCK_MONOTONIC) - begin) * 1e3;
    }
    const double used = (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) * 1e3 / steps;
    printf("{\"ms\": [");
    for (int i = 0; i < steps; i++) {
        printf("%s%.6f", i > 0 ? ", " : "", ms[i]);
    }
    printf("], \"losses\": [");
    for (int i = 0; i < steps; i++) {
        printf("%s%.9g", i > 0 ? ", " : "", loss[i]);
    }
    printf("], \"cpu_ms\": %.6f, \"peak_mb\": %.1f}\n", used, peak_mb());
    (void)fflush(stdout);
}

static int wrong(const char *what, const char *found)
{
    fprintf(stderr, "contender: %s '%s'\n", what, found);
    return 2;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        return wrong("usage: contender_training NAME BATCH float32|bfloat16 formula|own, not",
                     argc > 1 ? argv[1] : "");
    }
    const net *n = net_find(argv[1]);
    const int batch = atoi(argv[2]);
    const bool bfloat16 = strcmp(argv[3], "bfloat16") == 0;
    if (n == NULL || batch < 1) {
        return wrong(n == NULL ? "no network" : "no batch", argv[n == NULL ? 1 : 2]);
    }
    net_run run;
    must(ls_init(NULL));
    must(net_open(&run, n, batch, strcmp(argv[4], "formula") == 0));
    run.bfloat16 = bfloat16;
    reset_peak();
    printf("ready %lld parameters\n", (long long)ls_module_numel(run.model));
    (void)fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        const int steps = atoi(line);
        if (steps < 1 || steps > STEPS_MAX) {
            break;
        }
        turn(&run, steps);
    }
    net_close(&run);
    must(ls_finalize());
    return 0;
}
