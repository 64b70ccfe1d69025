/* SPDX-License-Identifier: Apache-2.0 */
/* A training step of a GPT on a mesh, by simulation.
 *
 * Ranks that do the same at the same time are simulated once: those of a stage, all of which have
 * equal parts of its matrices (tp), of sequences (cp) and of experts (ep), and equal shares of the
 * batch (dp, ep). Where they share a link or the cores of a host, they count as many times as they
 * are.
 *
 *     compute     by processor.h, on the rank that has most of it
 *     tp          two all-reduces of a layer in its forward, and two in its backward: exposed
 *     cp          keys and values go around a ring, beside the attention to those that are there;
 *                 in backward their gradients, too: what attention does not hide. What the ring
 *                 copies is work of the memory
 *     ep          two all-to-alls of a layer with experts in its forward, and two in its backward:
 *                 exposed
 *     pp          messages between stages, by the schedule, over the links of cluster.h: a step
 *                 minus the same step whose messages take no time
 *     bubble      the rest of the schedule
 *     dp          gradients are summed in buckets of whole layers while the last backward of their
 *                 stage goes on, those of experts over dp and cp, others over ep as well. With ZeRO
 *                 they are scattered
 *     gather      parameters with ZeRO: at the end; with zero 3 once in the first forward of a step
 *                 and once in its first backward, the next layer's while one computes
 *
 * Between ranks of a host a message of pp or cp takes the time that the device states besides
 * (`message`). Where they share cores, a rank also loses some of a core in each collective
 * (`wait`).
 *
 * First and last stage sum the gradient of the token embedding, which both have.
 *
 * A schedule without a flush (PipeDream) has no end of a step: its step is that of M micro-batches
 * in the steady state: the time of 2M micro-batches minus that of M.
 */
#ifndef LS_COST_JOB_H
#define LS_COST_JOB_H

#include "cost/cluster.h"
#include "cost/collective.h"
#include "cost/gpt.h"

/* A size of 0 is that of 1. */
typedef struct ls__sim_axis {
    int size, stride; /* between ranks that are neighbours along it */
} ls__sim_axis;

typedef struct ls__sim_job {
    ls__gpt_use use; /* tp, cp and ep as below */
    ls__processor device;
    ls__cluster cluster; /* of at least as many devices as ranks */
    ls__sim_axis pp, dp, tp, cp, ep;
    const char *schedule;
    ls__schedule_spec spec; /* its ranks are those of pp */
    const int *first_layer; /* [stages] NULL: layers are divided evenly */
    int zero;               /* 0 to 3 */
    double bucket_bytes;
    /* Of a component of the lowest level, one for each rank at most. They compute, and move what
     * stays within it, and over links what these say (cluster.h). 0: one for each rank, and links
     * within a host. */
    double cores;
    bool records;
    ls__collective_count *count; /* NULL: closed forms */
    /* For a search. The table of `schedule` and `spec`, which is borrowed and keeps the results
     * until ls__sim_step_free; NULL: it is made. */
    ls__schedule *table;
    /* Above 0: only the seconds of the step and its memory are wanted, and of a step that takes
     * longer than this only that: its `step` is INFINITY. */
    double longest;
} ls__sim_job;

typedef struct ls__sim_rank {
    double parameters, gradients, optimizer, activations; /* bytes; the last at their peak */
} ls__sim_rank;

typedef struct ls__sim_step {
    /* Seconds that follow each other; `step` is their sum. */
    double step, compute, tp, cp, ep, pp, bubble, dp, optimizer, gather;
    double flops;                                            /* of all ranks */
    double pp_bytes, tp_bytes, cp_bytes, ep_bytes, dp_bytes; /* sent by the rank that sends most */
    ls__sim_rank *rank;                                      /* [pp] of a rank of each */
    ls__schedule *schedule;                                  /* has all of it */
    bool borrowed;                                           /* the schedule: the job's table */
    ls__arena_mark before;                                   /* … until here it had no results */
    ls__stage_times *times;                                  /* [stages] with tp, cp and ep */
    ls__sim_result result;
    ls__sim_reduction *reductions;
} ls__sim_step;

/* LS_ERR_INVALID: the axes do not divide the model, or the schedule does not exist; LS_ERR_LIMIT:
 * what it does not allow, or more bytes than can be counted; LS_ERR_MEMORY. */
ls_status ls__simulate_job(const ls__env *env, const ls__sim_job *job, ls__sim_step *out);
void ls__sim_step_free(ls__sim_step *step);

/* The stage of ZeRO whose memory a job has. Gradients of several micro-batches add up whole, and
 * with 3 the parameters that the first backward has gathered stay until the last one has read them
 * (ddp/unshard.c), so what is left is the optimizer's state. */
static inline int ls__sim_zero_kept(int zero, int micro_batches)
{
    return micro_batches > 1 && zero > 1 ? 1 : zero;
}

/* Ranks of all axes. */
int ls__sim_job_ranks(const ls__sim_job *job);

/* Of a layer, on a rank, for a micro-batch. */
typedef struct ls__sim_layer {
    ls__stage_times times; /* with the communication of tp, cp and ep */
    double parameters, expert_parameters;
    double kept; /* bytes, from forward to backward */
} ls__sim_layer;

/* Memory and times of a rank for a layer, the embedding and the head, for any stages. */
typedef struct ls__sim_parts {
    ls__sim_layer layer[2]; /* without experts, and with them */
    ls__stage_times embedding, head;
    double embedding_parameters, head_parameters;
    double tied;             /* of the head's: the embedding's, which one stage has once */
    double head_kept;        /* as a layer's */
    double again;            /* bytes, with `recompute` of blocks */
    double boundary;         /* bytes between two stages */
    double cut;              /* seconds of it over the slowest cut, there and back */
    double sum, expert_sum;  /* seconds for a parameter, in the sum of gradients */
    int ranks, expert_ranks; /* … which has so many */
} ls__sim_parts;

/* LS_ERR_MEMORY. The job's schedule does not matter. */
ls_status ls__sim_parts_of(const ls__env *env, const ls__sim_job *job, ls__sim_parts *out);

#endif
