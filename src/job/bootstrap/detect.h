/* SPDX-License-Identifier: Apache-2.0 */
/* Which launcher started this process, and its place in the world, derived from the environment
 * alone. The first rule that fits wins; LOCKSTEP_LAUNCHER names one and so overrides the order.
 *
 *     lockstep   LOCKSTEP_BOOTSTRAP                     our own launcher: nothing else is read
 *     torchrun   RANK, WORLD_SIZE                       also set by hand
 *     openmpi    OMPI_COMM_WORLD_RANK, _SIZE            mpirun of Open MPI
 *     mvapich    MV2_COMM_WORLD_RANK, _SIZE
 *     hydra      PMI_RANK, PMI_SIZE                     mpirun of MPICH, Intel MPI
 *     slurm      SLURM_PROCID, SLURM_STEP_NUM_TASKS     a step of srun; not the shell of sbatch
 *     flux       FLUX_TASK_RANK, FLUX_JOB_SIZE
 *     jsrun      JSM_NAMESPACE_RANK, _SIZE              LSF
 *     none                                              a world of one
 */
#ifndef LS_JOB_BOOTSTRAP_DETECT_H
#define LS_JOB_BOOTSTRAP_DETECT_H

#include <stdbool.h>

#include <lockstep/status.h>

#include "job/nodes/secret.h"

typedef struct ls__detect_source { /* the source of variables; tests supply recorded ones */
    const char *(*get)(void *arg, const char *name); /* a variable; NULL: not set, or empty */
    /* The process that set `name` for this one: tells jobs apart where no variable does. */
    int (*starter)(void *arg, const char *name);
    void *arg;
} ls__detect_source;

typedef struct ls__detected {
    const char *launcher; /* as above; "environment": torchrun's variables, set by others */
    char why[256]; /* the variables that decided; with "none" also those that did not suffice */
    int rank, size, local_rank, local_size;
    int attempt;          /* of the launcher's restarts; 0 */
    char job[384];        /* the same for all ranks of the job on this host, and only for them */
    char rendezvous[320]; /* HOST:PORT for several hosts; "": not known */
    char rendezvous_from[64]; /* what gave it */
    bool has_secret;          /* share.h: rank 0 has shared one */
    uint8_t secret[LS__SECRET_FILE_BYTES];
} ls__detected;

ls_status ls__detect(const ls__detect_source *around, ls__detected *out);
/* The same from this process' environment. */
struct ls__env;
ls_status ls__detect_here(const struct ls__env *env, ls__detected *out);

/* Slurm's lists. The first host of "node[01-03,7],other": "node01"; false: malformed. */
bool ls__slurm_first_host(const char *list, char *out, int bytes);
/* Tasks of node `index` in "2(x3),1"; 0: malformed. */
int ls__slurm_tasks(const char *list, int index);

#endif
