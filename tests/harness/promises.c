/* SPDX-License-Identifier: Apache-2.0 */
/* Promised times. Only programs that check one link this file, and only beside their tests the
 * machine's noise is measured: that takes a hundredth of a core. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "harness.h"
#include "noise.h"

static struct promises { /* of the running test, whose processes share this memory */
    noise noise;         /* of the machine meanwhile */
    _Atomic int count;   /* that were checked; of all, the one that came closest to its limit: */
    struct {
        double took, promised, allowed;
    } closest;
} * promises;

static pid_t sampler;

__attribute__((constructor)) static void share_promises(void)
{
    promises =
        mmap(NULL, sizeof *promises, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void test_promises_begin(void)
{
    memset(promises, 0, sizeof *promises);
    sampler = noise_start(&promises->noise);
}

void test_promises_end(void)
{
    if (sampler > 0) {
        kill(sampler, SIGKILL);
        waitpid(sampler, NULL, 0);
    }
}

/* tests/run lists the closest of all. */
void test_promises_show(void)
{
    const struct promises *p = promises;
    if (p->count > 0) {
        printf(
            "# WITHIN %.3f s of %.3f s promised, %.3f s allowed: slow-down %.2f, wake-ups within "
            "%.1f ms, the closest of %d\n",
            p->closest.took, p->closest.promised, p->closest.allowed, noise_slow_down(&p->noise),
            1e3 * noise_wake_up(&p->noise), p->count);
    }
}

bool test_is_within(double took, double promised)
{
    struct promises *p = promises;
    const double allowed = TEST_SLOWER * noise_allows(&p->noise, promised);
    const double before = p->closest.allowed > 0 ? p->closest.took / p->closest.allowed : -1.0;
    atomic_fetch_add(&p->count, 1);
    if (took / allowed > before) { /* several ranks may ask at once: one of them is shown */
        p->closest.took = took;
        p->closest.promised = promised;
        p->closest.allowed = allowed;
    }
    return took >= 0.0 && took <= allowed;
}

double test_slow_down(void)
{
    return noise_slow_down(&promises->noise);
}

void test_check_within(const char *file, int line, const char *what, double took, double promised)
{
    const noise *n = &promises->noise;
    if (!test_is_within(took, promised)) {
        test_fail(file, line,
                  "%s: %.3f s, promised within %.3f s; this machine now (slow-down %.2f, wake-ups "
                  "within %.1f ms) is allowed %.3f s",
                  what, took, promised, noise_slow_down(n), 1e3 * noise_wake_up(n),
                  TEST_SLOWER * noise_allows(n, promised));
    }
}
