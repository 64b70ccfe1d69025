/* SPDX-License-Identifier: Apache-2.0 */
/* The best plan of a GPT, a Llama or a Mixtral on a cluster: the search of `lockstep plan auto`.
 *
 *     mesh                  dp x pp x ep x cp x tp = ranks, in both orders of pp and dp
 *       micro-batch         what divides a rank's part of the batch
 *         placement         along tp: of attention, MLP, embedding and head some are divided, some
 *                           whole; and with the first two, what is between them by sequence or not
 *           schedule        1f1b with a warm-up of 1 or 2, zb-h1, gpipe, interleaved
 *             zero, recomputation
 *               cuts        C(parts - 1, pp - 1)
 *
 * All choices but the cuts are enumerated. The cuts follow from Alpa's program (inter.h), whose
 * only submesh here is that of the mesh, and the plan is judged by a simulation of its schedule
 * (cost/job.h). A choice is left out whose computation alone, with any cuts, takes longer than
 * the best plan of its mesh, or in its own stages than the best one of the same schedule and
 * recomputation; the cuts of that one are moved as long as that makes the simulated step shorter.
 * Nothing is simulated that could not be shorter even if no rank waited for a share of a link
 * (ls__simulate_alone), and the table of a schedule is made once (tables.h).
 */
#ifndef LS_PLAN_AUTO_H
#define LS_PLAN_AUTO_H

#include "cost/job.h"

#define LS__AUTO_MESHES_MAX 8192

typedef struct ls__auto_ask {
    ls__sim_job job; /* model, width, device, cluster, cores and bucket; the rest is searched */
    int ranks;
    int64_t batch;          /* sequences of a step, of all ranks */
    double memory_bytes;    /* of a rank; 0: no limit */
    int pp, dp, ep, cp, tp; /* 0: any */
    bool contexts;          /* the model's attention goes over parts of sequences, so cp may be */
} ls__auto_ask;

typedef struct ls__auto_plan {
    ls__sim_axis pp, dp, ep, cp, tp; /* of one rank at least */
    int64_t batch;                   /* sequences of a micro-batch */
    int micro_batches;
    const char *schedule; /* without pp: "1f1b" */
    int chunks, warm_up;  /* 0: the schedule has none */
    int zero;
    bool recompute, sequence;
    int whole; /* what tp does not divide (ls__gpt_use) */
    int stages, first_layer[LS__SCHEDULE_RANKS_MAX];
    /* Of a step, as ls__sim_step. */
    double step, compute, tp_seconds, cp_seconds, ep_seconds, pp_seconds, bubble, dp_seconds,
        optimizer, gather;
    double pp_bytes, tp_bytes, cp_bytes, ep_bytes, dp_bytes;
    double memory; /* of the rank that has most */
} ls__auto_plan;

typedef struct ls__auto_mesh {
    int choices;        /* of all but the cuts */
    double plans;       /* choices times cuts */
    bool exists;        /* a plan fits into the memory */
    ls__auto_plan best; /* of this mesh; without one, its axes alone */
} ls__auto_mesh;

typedef struct ls__auto_result {
    ls__auto_mesh *mesh; /* [meshes] by the step of their best plan; those without one follow */
    int meshes;
    double plans; /* of all meshes */
    int choices, simulated;
    ls__arena arena; /* owns all of it */
} ls__auto_result;

/* LS_ERR_INVALID: the ranks, the batch and the model leave no mesh; LS_ERR_LIMIT: no plan fits into
 * the memory, or too many meshes; LS_ERR_MEMORY. Call ls__auto_free in any case. */
ls_status ls__auto_find(const ls__env *env, const ls__auto_ask *ask, ls__auto_result *out);
void ls__auto_free(ls__auto_result *result);

/* The job that a plan simulates, for its timeline; borrows the plan. */
ls__sim_job ls__auto_job(const ls__auto_ask *ask, const ls__auto_plan *plan);

/* What a model calls its parts, and the words with which ls_tensor_parallel divides them. */
typedef struct ls__auto_names {
    const char *blocks;               /* before the number of a layer */
    const char *embedding, *head;     /* their words */
    const char *attention, *mlp;      /* of all layers */
    const char *keys[2];              /* layers of keys and values, where `attention` lacks them */
    const char *sequence, *last_norm; /* what adds up over parts of sequences */
} ls__auto_names;
const ls__auto_names *ls__auto_names_of(const char *model);

/* "blocks.*.up=column blocks.*.down=row"; "" without tp. */
#define LS__AUTO_WORDS_BYTES 512
char *ls__auto_words(const ls__auto_names *names, const ls__gpt *model, const ls__auto_plan *plan,
                     char out[LS__AUTO_WORDS_BYTES]);

/* The plan as a file of version 2 (lockstep/plan.h); `cluster` is for people. LS_ERR_MEMORY,
 * LS_ERR_SYSTEM. */
ls_status ls__auto_write(const ls__env *env, const ls__auto_ask *ask, const ls__auto_plan *plan,
                         const char *model, const char *cluster, const char *path);

/* "pp=2,dp=4", the axes of more than one rank, the innermost last; "dp=1" of one rank. */
#define LS__AUTO_MESH_BYTES 64
char *ls__auto_mesh_text(const ls__auto_plan *plan, char out[LS__AUTO_MESH_BYTES]);

#endif
