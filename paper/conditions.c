/* SPDX-License-Identifier: Apache-2.0 */
/* Under which conditions a result was measured: when, for how long, by which version, and how many
 * cores other programs kept busy meanwhile. What is busy says /proc/stat, what of it was ours the
 * times of this program and of those that it has waited for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/version.h>

#include "paper.h"
#include "tools/cli/cli.h"

#define BUSY 0.15 /* cores; as in bench/pages.py */

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of all cores that were not idle; below 0: not known. */
static double busy_s(void)
{
    unsigned long long user = 0, nice = 0, system = 0, idle, wait, irq = 0, soft = 0, stolen = 0;
    FILE *file = fopen("/proc/stat", "re");
    const bool known =
        file != NULL && fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice,
                               &system, &idle, &wait, &irq, &soft, &stolen) == 8;
    if (file != NULL) {
        (void)fclose(file);
    }
    const unsigned long long ticks = user + nice + system + irq + soft + stolen;
    return known ? (double)ticks / (double)sysconf(_SC_CLK_TCK) : -1.0;
}

static double own_s(void)
{
    const int whose[] = {RUSAGE_SELF, RUSAGE_CHILDREN};
    double sum = 0.0;
    for (size_t i = 0; i < 2; i++) {
        struct rusage used;
        (void)getrusage(whose[i], &used);
        sum += (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    }
    return sum;
}

paper_watch paper_watch_begin(void)
{
    return (paper_watch){.at = now_s(), .busy = busy_s(), .own = own_s()};
}

double paper_watch_end(const paper_watch *w, json_t *result)
{
    const double passed = now_s() - w->at, busy = busy_s() - w->busy, own = own_s() - w->own;
    const json_t *old = json_object_get(result, "conditions");
    const double before = paper_number(old, "seconds"), seconds = before + passed;
    const double others =
        (busy > own ? busy - own : 0.0) + before * paper_number(old, "others_cores");
    json_t *conditions = json_pack("{s:f}", "seconds", seconds);
    if (w->busy >= 0.0 && seconds > 0.0) {
        json_object_set_new(conditions, "others_cores", json_real(others / seconds));
    }
    json_object_set_new(result, "conditions", conditions);
    return passed;
}

json_t *paper_date(void)
{
    char date[32];
    const time_t now = time(NULL);
    struct tm day;
    (void)strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", gmtime_r(&now, &day));
    return json_string(date);
}

bool paper_is_quiet(const json_t *result)
{
    return paper_number(json_object_get(result, "conditions"), "others_cores") <= BUSY;
}

const char *paper_conditions(const json_t *result, char out[PAPER_CONDITIONS])
{
    const json_t *conditions = json_object_get(result, "conditions");
    const double others = paper_number(conditions, "others_cores");
    char load[96] = "";
    if (!paper_is_quiet(result)) {
        (void)snprintf(load, sizeof load, "NOT QUIET: other programs kept %.1f of %.0f cores busy",
                       others, paper_number(json_object_get(result, "machine"), "cores"));
    } else if (json_object_get(conditions, "others_cores") != NULL) {
        (void)snprintf(load, sizeof load, "nothing else ran");
    } else {
        (void)snprintf(load, sizeof load, "the machine's load is not known");
    }
    if (conditions == NULL) {
        (void)snprintf(out, PAPER_CONDITIONS, "Made %s by Lockstep %s; nothing was measured",
                       paper_text(result, "date"), paper_text(result, "version"));
    } else {
        (void)snprintf(out, PAPER_CONDITIONS, "Measured %s in %.0f s by Lockstep %s; %s",
                       paper_text(result, "date"), paper_number(conditions, "seconds"),
                       paper_text(result, "version"), load);
    }
    return out;
}
