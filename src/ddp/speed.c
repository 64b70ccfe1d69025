/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of a step's samples by measured speed. Every rank computes all shares from the speeds of
 * all, so they agree without a further exchange. */
#include <math.h>
#include <stdlib.h>

#include <lockstep/ddp.h>

#include "base/error.h"
#include "comm/api/control.h"

/* A change that gains less is noise: times of steps spread by some percent. */
#define GAIN 0.10

/* Seconds of the slowest rank, if rank r needs costs[r] for a sample. */
static double slowest(const int64_t *shares, const double *costs, int ranks)
{
    double most = 0.0;
    for (int r = 0; r < ranks; r++) {
        most = fmax(most, (double)shares[r] * costs[r]);
    }
    return most;
}

/* The samples one by one, each to the rank that will have ended first with it: no other division
 * of whole samples has a slowest rank that is faster. Ties go to the lowest rank. */
static void divide(int64_t total, const double *costs, int ranks, int64_t *out)
{
    double speed = 0.0;
    int64_t given = 0;
    for (int r = 0; r < ranks; r++) {
        speed += 1.0 / costs[r];
    }
    for (int r = 0; r < ranks;
         r++) { /* whole parts at once: no rank has more than a sample too many */
        out[r] = (int64_t)fmax(1.0, floor((double)(total - ranks) / costs[r] / speed));
        given += out[r];
    }
    for (; given < total; given++) {
        int best = 0;
        for (int r = 1; r < ranks; r++) {
            best =
                (double)(out[r] + 1) * costs[r] < (double)(out[best] + 1) * costs[best] ? r : best;
        }
        out[best]++;
    }
}

/* costs[r] becomes the seconds of a sample of rank r. */
static ls_status exchange(ls_group *group, double seconds, const int64_t *shares, double *costs)
{
    LS_TRY(ls__control_all_gather(group, &seconds, costs, 1, LS_FLOAT64,
                                  LS_OPTIONS(ls_collective_options, .tag = "seconds")));
    for (int r = 0; r < ls_group_size(group); r++) {
        if (!(costs[r] > 0.0) || isinf(costs[r])) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_shares_by_speed: rank %d of the group gives %g seconds; give the "
                            "time of its samples, above 0",
                            r, costs[r]);
        }
        costs[r] /= (double)shares[r];
    }
    return LS_OK;
}

static ls_status check(const ls_group *group, const int64_t *shares, const bool *changed)
{
    if (group == NULL || shares == NULL || changed == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_shares_by_speed: an argument is NULL; give a group, the "
                        "shares of its ranks, and a place for changed");
    }
    for (int r = 0; r < ls_group_size(group); r++) {
        if (shares[r] < 1) {
            return ls__fail(
                LS_ERR_INVALID,
                "ls_shares_by_speed: the share of rank %d of the group is %lld; give at "
                "least 1 sample",
                r, (long long)shares[r]);
        }
    }
    return LS_OK;
}

/* Both tables have an entry for each rank. */
static void decide(const double *costs, int ranks, int64_t *shares, int64_t *wanted, bool *changed)
{
    int64_t total = 0;
    for (int r = 0; r < ranks; r++) {
        total += shares[r];
    }
    divide(total, costs, ranks, wanted);
    *changed = slowest(wanted, costs, ranks) < (1.0 - GAIN) * slowest(shares, costs, ranks);
    for (int r = 0; r < ranks && *changed; r++) {
        shares[r] = wanted[r];
    }
}

ls_status ls_shares_by_speed(ls_group *group, double seconds, int64_t *shares, bool *changed)
{
    ls_status status = check(group, shares, changed);
    if (status < 0) {
        return ls__fail_at_site(status);
    }
    const int ranks = ls_group_size(group);
    double *costs = calloc((size_t)ranks, sizeof *costs);
    int64_t *wanted = calloc((size_t)ranks, sizeof *wanted);
    if (costs == NULL || wanted == NULL) {
        status = ls__fail(LS_ERR_MEMORY, "ls_shares_by_speed: no memory for %d ranks", ranks);
    } else {
        status = exchange(group, seconds, shares, costs);
    }
    if (status == LS_OK) {
        decide(costs, ranks, shares, wanted, changed);
    }
    free(costs);
    free(wanted);
    return status < 0 ? ls__fail_at_site(status) : LS_OK;
}
