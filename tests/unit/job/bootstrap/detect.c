/* SPDX-License-Identifier: Apache-2.0 */
/* Which launcher is seen in environments that were recorded from real ones. */
#include <stdio.h>
#include <string.h>

#include "job/bootstrap/detect.h"
#include "says.h"
#include "test.h"

static const char *recorded(void *arg, const char *name)
{
    size_t length = strlen(name);
    for (const char *const *entry = arg; *entry != NULL; entry++) {
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') {
            return (*entry)[length + 1] != '\0' ? *entry + length + 1 : NULL;
        }
    }
    return NULL;
}

static int starter(void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return 4711;
}

#define DETECT(found, ...)                                                                         \
    ls__detect(                                                                                    \
        &(ls__detect_source){recorded, starter, (void *)(const char *const[]){__VA_ARGS__, NULL}}, \
        found)

static void check_place(const ls__detected *f, int rank, int size, int local_rank, int local_size)
{
    CHECK_INT(f->rank, rank);
    CHECK_INT(f->size, size);
    CHECK_INT(f->local_rank, local_rank);
    CHECK_INT(f->local_size, local_size);
}

/* ---- launchers ------------------------------------------------------------------------------ */

TEST(nothing_is_a_world_of_one)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, "HOME=/root"));
    CHECK_STR(f.launcher, "none");
    check_place(&f, 0, 1, 0, 1);
}

TEST(our_own_launcher_comes_before_its_torchrun_variables)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, "RANK=1", "WORLD_SIZE=2", "LOCKSTEP_BOOTSTRAP=v1:3:4:5"));
    CHECK_STR(f.launcher, "lockstep");
}

TEST(torchrun_on_two_hosts)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, "LOCAL_RANK=1", "RANK=3", "GROUP_RANK=1", "ROLE_RANK=3",
                    "ROLE_NAME=default", "LOCAL_WORLD_SIZE=2", "WORLD_SIZE=4", "GROUP_WORLD_SIZE=2",
                    "ROLE_WORLD_SIZE=4", "MASTER_ADDR=node0", "MASTER_PORT=29500",
                    "TORCHELASTIC_RESTART_COUNT=1", "TORCHELASTIC_MAX_RESTARTS=3",
                    "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_USE_AGENT_STORE=False"));
    CHECK_STR(f.launcher, "torchrun");
    check_place(&f, 3, 4, 1, 2);
    CHECK_INT(f.attempt, 1);
    CHECK_STR(f.rendezvous, "node0:30500"); /* not 29500: that is the program's own */
    CHECK_CONTAINS(f.rendezvous_from, "MASTER_ADDR");
    CHECK_CONTAINS(f.why, "RANK=3 and WORLD_SIZE=4");
}

TEST(torchruns_variables_by_hand_on_one_host)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, "RANK=2", "WORLD_SIZE=4", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"));
    CHECK_STR(f.launcher, "environment");
    check_place(&f, 2, 4, 2, 4);
    CHECK_STR(f.rendezvous, "");
    CHECK_OK(DETECT(&f, "RANK=2", "WORLD_SIZE=4"));
    check_place(&f, 2, 4, 2, 4);
    CHECK_CONTAINS(f.job, "4711"); /* told apart by who started them */
}

TEST(without_a_local_rank_each_process_may_be_a_host_of_its_own)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, "RANK=2", "WORLD_SIZE=4", "MASTER_ADDR=fd00::1", "MASTER_PORT=65000"));
    check_place(&f, 2, 4, 0, 1);
    CHECK_STR(f.rendezvous, "[fd00::1]:64000");
}

TEST(open_mpi)
{
    ls__detected f, other;
    CHECK_OK(DETECT(&f, "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=4",
                    "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_LOCAL_RANK=3",
                    "OMPI_UNIVERSE_SIZE=4", "PMIX_RANK=3", "PMIX_NAMESPACE=2752380929",
                    "PMIX_SERVER_URI2=2752380928.0;tcp4://127.0.0.1:52327"));
    CHECK_STR(f.launcher, "openmpi");
    check_place(&f, 3, 4, 3, 4);
    CHECK_OK(DETECT(&other, "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=4",
                    "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                    "PMIX_NAMESPACE=2752380930"));
    CHECK(strcmp(f.job, other.job) != 0); /* two jobs of one size */
}

TEST(mpich_and_intel_mpi)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, "PMI_FD=6", "PMI_RANK=5", "PMI_SIZE=8", "MPI_LOCALNRANKS=4",
                    "MPI_LOCALRANKID=1", "LOCKSTEP_RENDEZVOUS=node7:4000"));
    CHECK_STR(f.launcher, "hydra");
    check_place(&f, 5, 8, 1, 4);
    CHECK_STR(f.rendezvous, "node7:4000");
    CHECK_CONTAINS(f.job, "4711");
    CHECK_OK(DETECT(&f, "PMI_RANK=5", "PMI_SIZE=8", "MPI_LOCALNRANKS=4", "MPI_LOCALRANKID=1"));
    CHECK_STR(f.rendezvous, ""); /* asked for in words when the hosts are to meet */
}

/* srun --mpi=pmi2 and flux set PMI_RANK and PMI_SIZE as well, but not the local rank. */
TEST(pmi_variables_of_another_launcher_are_not_hydras)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, "PMI_FD=11", "PMI_RANK=3", "PMI_SIZE=4", "SLURM_JOB_ID=7",
                    "SLURM_STEP_ID=0", "SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=4",
                    "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_STEP_TASKS_PER_NODE=2(x2)",
                    "SLURM_STEP_NODELIST=n[1-2]", "SLURM_RESTART_COUNT=2"));
    CHECK_STR(f.launcher, "slurm");
    check_place(&f, 3, 4, 1, 2);
    CHECK_INT(f.attempt, 2);
    CHECK_OK(DETECT(&f, "PMI_RANK=1", "PMI_SIZE=2", "FLUX_TASK_RANK=1", "FLUX_JOB_SIZE=2"));
    CHECK_STR(f.launcher, "flux");
    /* Hydra within an allocation of Slurm */
    CHECK_OK(DETECT(&f, "PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALNRANKS=2", "MPI_LOCALRANKID=1",
                    "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=1",
                    "SLURM_STEP_NUM_TASKS=2"));
    CHECK_STR(f.launcher, "hydra");
}

TEST(mvapich_flux_and_jsrun)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, "MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=2",
                    "MV2_COMM_WORLD_LOCAL_RANK=1", "MV2_COMM_WORLD_LOCAL_SIZE=2"));
    CHECK_STR(f.launcher, "mvapich");
    check_place(&f, 1, 2, 1, 2);
    CHECK_OK(DETECT(&f, "JSM_NAMESPACE_RANK=1", "JSM_NAMESPACE_SIZE=6",
                    "JSM_NAMESPACE_LOCAL_RANK=1", "JSM_NAMESPACE_LOCAL_SIZE=6"));
    CHECK_STR(f.launcher, "jsrun");
    CHECK_OK(DETECT(&f, "FLUX_TASK_RANK=1", "FLUX_JOB_SIZE=2", "FLUX_JOB_ID=f3"));
    CHECK_STR(f.launcher, "flux");
}

/* ---- Slurm ---------------------------------------------------------------------------------- */

#define STEP                                                                                       \
    "SLURM_JOB_ID=4242", "SLURM_STEP_ID=1", "SLURM_STEPID=1", "SLURM_NTASKS=5",                    \
        "SLURM_STEP_NUM_TASKS=5", "SLURM_STEP_NUM_NODES=3", "SLURM_STEP_TASKS_PER_NODE=2(x2),1",   \
        "SLURM_STEP_NODELIST=node[01-03]", "SLURM_JOB_NODELIST=node[01-03,7]"

TEST(a_step_of_srun)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, STEP, "SLURM_PROCID=3", "SLURM_LOCALID=1", "SLURM_NODEID=1"));
    CHECK_STR(f.launcher, "slurm");
    check_place(&f, 3, 5, 1, 2);
    CHECK_STR(f.rendezvous, "node01:17695"); /* 12000 + (4242 * 7 + 1) mod 8000 */
    CHECK_STR(f.rendezvous_from, "SLURM_STEP_NODELIST");
    CHECK_OK(DETECT(&f, STEP, "SLURM_PROCID=4", "SLURM_LOCALID=0", "SLURM_NODEID=2"));
    check_place(&f, 4, 5, 0, 1);
}

TEST(the_shell_of_sbatch_or_salloc_waits_for_nobody)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, "SLURM_JOB_ID=4242", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NODEID=0",
                    "SLURM_NTASKS=8", "SLURM_TASKS_PER_NODE=8", "SLURM_JOB_NUM_NODES=1",
                    "SLURM_JOB_NODELIST=node7"));
    CHECK_STR(f.launcher, "none");
    CHECK_INT(f.size, 1);
    CHECK_CONTAINS(f.why, "not a step of srun");
    /* the shell as a step of its own (LaunchParameters=use_interactive_step) */
    CHECK_OK(DETECT(&f, "SLURM_JOB_ID=4242", "SLURM_STEP_ID=4294967290", "SLURM_PROCID=0",
                    "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=0", "SLURM_NODEID=0"));
    CHECK_STR(f.launcher, "none");
}

TEST(open_mpi_within_a_batch_job_is_open_mpi)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, "SLURM_JOB_ID=4242", "SLURM_PROCID=0", "SLURM_NTASKS=8",
                    "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1",
                    "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2"));
    CHECK_STR(f.launcher, "openmpi");
}

TEST(the_first_host_of_slurms_lists)
{
    static const char *const cases[][2] = {
        {"node7", "node7"},           {"node[01-03,7]", "node01"},
        {"node[7,9]", "node7"},       {"a,b", "a"},
        {"gpu-[3]-ib,x", "gpu-3-ib"}, {"rack[2-4]n[10-19]", "rack2n10"},
        {"c[0999-1002],d", "c0999"}};
    static const char *const wrong[] = {"",        ",",      "node[", "node[]",
                                        "node[a]", "node[1", "a]",    "node[1;2]"};
    char host[64], small[4];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(ls__slurm_first_host(cases[i][0], host, sizeof host));
        CHECK_STR(host, cases[i][1]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK(!ls__slurm_first_host(wrong[i], host, sizeof host));
    }
    CHECK(!ls__slurm_first_host("node7", small, sizeof small));
}

TEST(the_tasks_of_a_node_in_slurms_lists)
{
    static const int want[] = {2, 2, 2, 1, 8, 0};
    for (int node = 0; node < 6; node++) {
        CHECK_INT(ls__slurm_tasks("2(x3),1,8", node), want[node]);
    }
    CHECK_INT(ls__slurm_tasks("4", 0), 4);
    CHECK_INT(ls__slurm_tasks("", 0), 0);
    CHECK_INT(ls__slurm_tasks("x", 0), 0);
    CHECK_INT(ls__slurm_tasks("2(x", 0), 0);
    CHECK_INT(ls__slurm_tasks("2(x3", 0), 0);
    CHECK_INT(ls__slurm_tasks("2;3", 1), 0);
    CHECK_INT(ls__slurm_tasks("99999999999999999999(x3)", 0), 0);
}

/* ---- choosing and refusing ------------------------------------------------------------------- */

TEST(a_launcher_may_be_chosen)
{
    ls__detected f;
    CHECK_OK(DETECT(&f, "RANK=0", "WORLD_SIZE=2", "PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALRANKID=3",
                    "MPI_LOCALNRANKS=4", "LOCKSTEP_LAUNCHER=hydra"));
    CHECK_STR(f.launcher, "hydra");
    check_place(&f, 3, 4, 3, 4);
    CHECK_OK(DETECT(&f, "RANK=0", "WORLD_SIZE=2", "LOCKSTEP_LAUNCHER=none"));
    CHECK_INT(f.size, 1);
    CHECK_STATUS(DETECT(&f, "RANK=0", "WORLD_SIZE=2", "LOCKSTEP_LAUNCHER=slurm"), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "SLURM_PROCID and SLURM_STEP_NUM_TASKS are not both set");
    CHECK_STATUS(DETECT(&f, "LOCKSTEP_LAUNCHER=torchrum"), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "did you mean torchrun?");
    CHECK_STATUS(DETECT(&f, "LOCKSTEP_LAUNCHER=lockstep"), LS_ERR_INVALID);
}

TEST(numbers_that_cannot_be_are_refused_with_their_variable)
{
    ls__detected f;
    CHECK_STATUS(DETECT(&f, "RANK=2", "WORLD_SIZE=2"), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "RANK=2 is not a number from 0 to 1");
    CHECK_STATUS(DETECT(&f, "RANK=x", "WORLD_SIZE=2"), LS_ERR_INVALID);
    CHECK_STATUS(DETECT(&f, "RANK=-1", "WORLD_SIZE=2"), LS_ERR_INVALID);
    CHECK_STATUS(DETECT(&f, "RANK=0", "WORLD_SIZE=0"), LS_ERR_INVALID);
    CHECK_STATUS(DETECT(&f, "RANK=0", "WORLD_SIZE=99999999999999999999"), LS_ERR_INVALID);
    CHECK_STATUS(DETECT(&f, "RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"),
                 LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "LOCAL_RANK=2");
    CHECK_STATUS(DETECT(&f, "RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0"), LS_ERR_INVALID);
    CHECK_SAYS(
        ls_error_message(),
        "ls_init: %s is set, but no variable gives the number of ranks on this host: set RANK, "
        "WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE for each process, or "
        "LOCKSTEP_LAUNCHER=none to run alone");
    CHECK_STATUS(DETECT(&f, "SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2",
                        "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NODEID=0",
                        "SLURM_STEP_TASKS_PER_NODE=oops"),
                 LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "SLURM_STEP_TASKS_PER_NODE=oops");
}

TEST_MAIN
