/* SPDX-License-Identifier: Apache-2.0 */
/* The mean of a number over the ranks. */
#include <math.h>

#include <lockstep/ddp.h>

#include "base/error.h"
#include "base/runtime.h"
#include "comm/api/control.h"

ls_status ls_metric_mean(ls_group *group, double value, double weight, double *mean)
{
    if (mean == NULL || !(weight >= 0.0) || isinf(weight)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_metric_mean: %s; give a finite weight >= 0 and a place for the mean",
                        mean == NULL ? "mean is NULL" : "the weight is negative or not finite");
    }
    double sums[2] = {weight > 0.0 ? weight * value : 0.0, weight};
    LS_TRY(ls__control_all_reduce(group, sums, 2, LS_FLOAT64, LS_SUM,
                                  LS_OPTIONS(ls_collective_options, .tag = "metric")));
    *mean = sums[1] > 0.0 ? sums[0] / sums[1] : (double)NAN;
    return LS_OK;
}
