/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what other work on the machine costs a process: every 10 ms it sleeps for a moment, and
 * sees how late it wakes; runs a fixed loop, and sees how long that takes; and counts the processes
 * that could run.
 *
 * A promise "within 0.5 s" is a chain: a process dies, another wakes and tells a third, which wakes
 * and prints. Its computing is stretched by the slow-down, each wake-up in it comes late. So
 *
 *     allowed = promised * slow-down + WAKE_UPS * late
 *
 * On a quiet machine the slow-down is 1 and `late` some 0.1 ms, and the promise is held as it
 * is. */
#include "noise.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define PERIOD_NS 10000000
#define QUICK_SAMPLES 16 /* the first ones follow each other, so that there are some soon */
#define NAP_NS 200000
#define LOOP_TURNS 20000
#define WAKE_UPS 8      /* of a chain: death, agent, board, ranks, their output, the reader … */
#define STEP_NS 20000.0 /* delays are counted in steps of this, each 1/8 wider than the last */
#define STEP_GROWTH 1.125

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void nap(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* The step that holds a delay, and its end in ns. */
static int step_of(uint64_t delay_ns, double *end)
{
    int step = 0;
    *end = STEP_NS;
    for (double width = STEP_NS; *end < (double)delay_ns && step < NOISE_STEPS - 1; step++) {
        width *= STEP_GROWTH;
        *end += width;
    }
    return step;
}

/* "0.61 0.50 0.40 3/412 9876": the fourth number; 1 where it is not told. */
static unsigned count_runnable(int loadavg)
{
    char text[128] = "";
    unsigned runnable = 1;
    if (pread(loadavg, text, sizeof text - 1, 0) > 0) {
        (void)sscanf(text, "%*f %*f %*f %u/", &runnable);
    }
    return runnable > 0 ? runnable : 1;
}

static void run_loop(noise *n)
{
    volatile uint64_t x = 1;
    const uint64_t begin = now_ns();
    for (uint64_t i = 0; i < LOOP_TURNS; i++) {
        x = x * 6364136223846793005u + i;
    }
    const uint64_t took = now_ns() - begin;
    if (n->best_loop == 0 || took < n->best_loop) {
        n->best_loop = took;
    }
    n->loop += took;
}

static void sample(noise *n, int loadavg)
{
    double end;
    const uint64_t begin = now_ns();
    nap(NAP_NS);
    const uint64_t slept = now_ns() - begin;
    n->woken[step_of(slept > NAP_NS ? slept - NAP_NS : 0, &end)]++;
    run_loop(n);
    n->runnable += count_runnable(loadavg);
    n->samples++;
}

pid_t noise_start(noise *n)
{
    memset(n, 0, sizeof *n);
    const pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1UL);
    const int loadavg = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    for (;;) {
        sample(n, loadavg);
        if (n->samples > QUICK_SAMPLES) {
            nap(PERIOD_NS);
        }
    }
}

double noise_wake_up(const noise *n)
{
    const unsigned wanted = n->samples - n->samples / 100;
    unsigned seen = 0;
    double end = STEP_NS, width = STEP_NS;
    for (int step = 0; step < NOISE_STEPS; step++) {
        seen += n->woken[step];
        if (seen >= wanted) {
            break;
        }
        width *= STEP_GROWTH;
        end += width;
    }
    return end * 1e-9;
}

/* The greater of two: processes for a core, and the loop's mean time beside its best. */
double noise_slow_down(const noise *n)
{
    const unsigned samples = n->samples;
    if (samples == 0 || n->best_loop == 0) {
        return 1.0;
    }
    const double cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    const double shared = (double)n->runnable / samples / cores;
    const double slower = (double)n->loop / samples / (double)n->best_loop;
    const double most = shared > slower ? shared : slower;
    return most > 1.0 ? most : 1.0;
}

double noise_allows(const noise *n, double promised)
{
    return promised * noise_slow_down(n) + WAKE_UPS * noise_wake_up(n);
}
