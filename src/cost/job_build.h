/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of a job (job.h):
 *
 *     job_axes.c       which links the ranks of an axis use
 *     job_times.c      computation, and what it waits for in every micro-batch
 *     job_gradients.c  buckets, ZeRO, parameters
 *     job_parts.c      the times of a layer, for the search of stages
 *     job.c            the simulation, and its result as parts of a step
 */
#ifndef LS_COST_JOB_BUILD_H
#define LS_COST_JOB_BUILD_H

#include "cost/job.h"

/* Axes of the ranks of a stage, as bits. */
enum { LS__ALONG_TP = 1, LS__ALONG_CP = 2, LS__ALONG_EP = 4, LS__ALONG_DP = 8 };
#define LS__ALONG_DATA (LS__ALONG_CP | LS__ALONG_EP | LS__ALONG_DP)
#define LS__ALONG_EXPERTS (LS__ALONG_CP | LS__ALONG_DP) /* which sum the gradients of an expert */
#define LS__ALONG_AXES 4

/* The parts of a computation's time. */
typedef enum ls__job_part {
    LS__JOB_COMPUTE,
    LS__JOB_TP,
    LS__JOB_CP,
    LS__JOB_EP,
    LS__JOB_STEP, /* the optimizer, where a schedule steps without a flush */
    LS__JOB_PARTS
} ls__job_part;

typedef struct ls__job_building {
    const ls__sim_job *job;
    const ls__env *env;
    ls__sim_step *out;
    ls__schedule *s;
    ls__arena *arena; /* the schedule's */
    ls__traffic traffic;
    const ls__sim_resource *resources;
    int resource_count, links;
    ls__sim_route *activation, *gradient;
    double tp_sum; /* seconds of an all-reduce over tp */
    /* Of a layer; of tp without experts, and with them. Seconds of one direction, bytes of both. */
    double tp_layer[2], cp_forward, cp_backward, ep_layer;
    double tp_bytes[2], cp_bytes, ep_bytes;
    double tp_keys;                          /* seconds of a backward beside them */
    double tp_ends[2];                       /* bytes, of the embedding and the head */
    ls__stage_times tp_end[2];               /* seconds of them */
    ls__stage_times layer[2][LS__JOB_PARTS]; /* without experts, and with them */
    ls__stage_times *part[LS__JOB_PARTS];    /* [stages] */
    int *processor;
    double *sharing;
    int reduction_count;
} ls__job_building;

ls_status ls__job_no_memory(const ls__job_building *b);

/* ---- job_axes.c ------------------------------------------------------------------------------ */

int ls__job_size(const ls__sim_job *job, int along); /* ranks along these axes */
/* Rank k of pipeline rank p. */
int ls__job_rank(const ls__sim_job *job, int p, int k);
/* b->traffic: rings along the axes, of all ranks of pipeline rank p; p < 0: of all. */
void ls__job_add_rings(ls__job_building *b, int p, int along);
ls__sim_route ls__job_route_between(ls__job_building *b, int from, int to, double bytes);
/* The route of pipeline rank p as work of cores, where its ranks share some (after
 * ls__job_make_processors). */
ls__sim_route ls__job_on_cores(const ls__job_building *b, int p, ls__sim_route route);
/* An all-reduce along the axes; half of one. */
ls__collective_cost ls__job_all_reduce(const ls__job_building *b, int along);
ls__collective_cost ls__job_half(const ls__job_building *b, int along);
ls_status ls__job_make_routes(ls__job_building *b);
/* Whether the route has links within hosts. */
bool ls__job_is_within(const ls__job_building *b, const ls__sim_route *route);
/* How many ranks of a host share a core where all of them work; 1 at least. */
double ls__job_crowding(const ls__job_building *b);
/* Seconds of a core that a rank loses in a collective, where ranks share it. */
double ls__job_wait(const ls__job_building *b);
bool ls__job_has_processors(const ls__sim_job *job);
ls_status ls__job_make_processors(ls__job_building *b);

/* ---- job_times.c ----------------------------------------------------------------------------- */

void ls__job_add_times(ls__stage_times *sum, const ls__stage_times *more, double count);
int ls__job_first_layer(const ls__job_building *b, int stage);
int ls__job_layers(const ls__job_building *b, int stage);
double ls__job_boundary_bytes(const ls__job_building *b);
ls__stage_times ls__job_layer_times(const ls__job_building *b, int layer); /* with all parts */
void ls__job_measure_layers(ls__job_building *b);
ls_status ls__job_make_times(ls__job_building *b);

/* ---- job_gradients.c ------------------------------------------------------------------------- */

/* Parameters on one rank: those that all ranks with other data have, and those of experts. */
typedef struct ls__job_parameters {
    double dense, expert;
} ls__job_parameters;

ls__job_parameters ls__job_layer_parameters(const ls__job_building *b, int layer);
ls__job_parameters ls__job_rank_parameters(const ls__job_building *b, int rank); /* of pp */
ls_status ls__job_make_reductions(ls__job_building *b);
double ls__job_optimizer(const ls__job_building *b, int rank); /* seconds of a step */
/* Seconds of gathers of parameters that nothing hides. */
double ls__job_gather(ls__job_building *b, int rank);
ls__state_bytes ls__job_state(const ls__job_building *b, int rank);

#endif
