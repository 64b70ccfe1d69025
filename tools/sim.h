/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of `lockstep sim` and by `lockstep plan auto`. */
#ifndef TOOLS_SIM_H
#define TOOLS_SIM_H

#include "cost/job.h"

#define SIM_CLUSTER "8:200gbyte,8:25gbyte"
#define SIM_DEVICE "312tflop,2039gbyte"
#define SIM_DTYPES "bfloat16|float32"

/* sim_read.c: --cluster and --device, which are files if they do not begin with a digit; the device
 * is that of job->use.width. */
ls_status sim_read_cluster(const char *text, ls__sim_job *job);
ls_status sim_read_device(const char *text, ls__sim_job *job);

/* sim_trace.c: the timeline as a file of LOCKSTEP_TRACE's format, with the ranks along pp: those
 * that are 0 along dp and tp. LS_ERR_INVALID, LS_ERR_SYSTEM, LS_ERR_MEMORY. */
ls_status sim_write_trace(const ls__sim_job *job, const ls__sim_step *step, const char *path);

#endif
