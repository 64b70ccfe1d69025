/* SPDX-License-Identifier: Apache-2.0 */
/* Two hosts under real launchers: a Slurm cluster of two nodes that scripts/slurm-two-nodes makes
 * for each test, and mpirun of Open MPI and MPICH between the same two hosts. Nothing is set by
 * hand: rank 0 shares its address and the job's secret through the launcher. The tests with a time
 * limit of Slurm (a minute), with a node that fails, and of training over MPI run with
 * TEST_LONG=1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "script.h"

#define SECONDS 60
#define LONG_SECONDS 400
#define NOT_HERE 77 /* status of scripts/slurm-two-nodes */

/* `$TWO_NODES/hosts.mpi` and so on are made by the scripts themselves. A home of its own keeps the
 * user's folder clean. The small model trains at some hundred steps a second. */
#define DEFINITIONS                                                                                \
    "export HOME=$D OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "                    \
    "LOCKSTEP_TIMEOUT=%d\n"                                                                        \
    "export PATH=${L%%/*}:$PATH O='--data text --layers 1 --dim 32 --heads 2 --context 32 "        \
    "--batch 2'\n"                                                                                 \
    "seq 3000 >text; sed -n '/^#!\\/bin\\/bash$/,/^```$/p' %s | sed '$d' >job.sh\n"                \
    "cat >inside <<'END'\n%s\nEND\n%s %s bash ./inside"

/* Runs a script on node n1. */
static test_output cluster(const char *option, const char *text, int seconds)
{
    char script_text[8192], two_nodes[1024], page[1024];
    snprintf(two_nodes, sizeof two_nodes, "%s", test_source_path("scripts/slurm-two-nodes"));
    snprintf(page, sizeof page, "%s", test_source_path("docs/launching.md"));
    snprintf(script_text, sizeof script_text, DEFINITIONS, SECONDS / 2, page, text, two_nodes,
             option);
    test_output got = script_with("umask 022", script_text, seconds);
    if (got.status == NOT_HERE) {
        SKIP(got.text);
    }
    return got;
}

static test_output slurm(const char *text)
{
    return cluster("", text, SECONDS);
}

static test_output hosts(const char *text)
{
    return cluster("--hosts", text, SECONDS);
}

static void need_long(void)
{
    if (getenv("TEST_LONG") == NULL) {
        SKIP("TEST_LONG=1 runs it");
    }
}

static void need(const char *program)
{
    char command[256];
    snprintf(command, sizeof command, "command -v %s >/dev/null", program);
    test_output got = test_run(command, SECONDS);
    free(got.text);
    if (got.status != 0) {
        SKIP("no such launcher is installed");
    }
}

/* ---- srun ----------------------------------------------------------------------------------- */

/* Four ranks on two nodes sum and train; the links are encrypted although nobody made a secret. */
static void check_step(const char *mpi, const char *way)
{
    char text[1024];
    snprintf(text, sizeof text,
             "R='srun -N2 -n4 --ntasks-per-node=2 --mpi=%s'; $R lockstep env | sort -u\n"
             "LOCKSTEP_DEBUG=info $R $E/01_hello_all_reduce\n"
             "$R $M join\n$R $W train 5; ls -A $HOME/.lockstep",
             mpi);
    test_output got = slurm(text);
    CHECK_CONTAINS(got.text, way);
    CHECK_CONTAINS(got.text, "4 of 4 ranks hold the right sums");
    CHECK_SAYS(got.text, "ls_init: rank 0's address and the job's secret were shared by %s");
    CHECK_INT(count_of(got.text, "at 10.98.0.1, protected: joined\n"), 2);
    CHECK_INT(count_of(got.text, "at 10.98.0.2, protected: joined\n"), 2);
    CHECK_INT(count_of(got.text, "ended after step 5 of 5"), 4);
    CHECK_INT(count_of(got.text, "slurm-"), 0); /* the file of the secret is gone */
    free(got.text);
}

TEST(a_step_of_srun_meets_over_pmix)
{
    check_step("pmix", "address by PMIx\n");
}

TEST(a_step_of_srun_meets_over_pmi2)
{
    check_step("pmi2", "address by PMI\n");
}

TEST(a_step_of_srun_without_pmi_meets_by_a_private_file)
{
    check_step("none", SAYS("a file in the home folder"));
}

/* The user's own choice goes before it, and needs neither PMI nor a shared home. */
TEST(a_step_of_srun_takes_the_secret_that_is_set)
{
    check_count(slurm,
                "lockstep secret s; export LOCKSTEP_SECRET_FILE=$PWD/s; unset HOME\n"
                "srun -N2 -n4 --mpi=none $M join",
                ", protected: joined\n", 4);
    check_count(slurm,
                "lockstep secret s; export LOCKSTEP_SECRET_FILE=$PWD/s "
                "LOCKSTEP_RENDEZVOUS=10.98.0.1:29400\nsrun -N2 -n4 --mpi=pmix lockstep env",
                "rendezvous   10.98.0.1:29400, from LOCKSTEP_RENDEZVOUS", 4);
}

TEST(a_rank_that_does_not_come_to_the_exchange_is_told)
{
    check_count(slurm,
                "LOCKSTEP_TIMEOUT=2 srun -N2 -n2 --mpi=pmix sh -c '[ $SLURM_PROCID = 1 ] && exec "
                "sleep 5; exec $E/01_hello_all_reduce'",
                SAYS("PMIx_Fence: not all ranks have called ls_init within the deadline"), 1);
}

/* ---- mpirun --------------------------------------------------------------------------------- */

/* The launcher's own arguments for two hosts that are reached by a script in the place of ssh. */
#define OPEN_MPI                                                                                   \
    "printf 'n1 slots=2\\nn2 slots=2\\n' >h; R=\"mpirun.openmpi --hostfile h --mca plm_rsh_agent " \
    "$TWO_NODES/rsh --mca oob_tcp_if_include 10.98.0.0/24 -x LOCKSTEP_TIMEOUT -n 4\"\n"
#define MPICH                                                                                      \
    "printf 'n1:2\\nn2:2\\n' >h; R=\"mpirun.mpich -f h -launcher rsh -launcher-exec "              \
    "$TWO_NODES/rsh -n 4\"\n"
#define PROGRAMS "$R $E/01_hello_all_reduce; $R $M join; $R $W train 5"

static void check_mpirun(const char *text)
{
    test_output got = hosts(text);
    CHECK_CONTAINS(got.text, "4 of 4 ranks hold the right sums");
    CHECK_INT(count_of(got.text, "at 10.98.0.1, protected: joined\n"), 2);
    CHECK_INT(count_of(got.text, "at 10.98.0.2, protected: joined\n"), 2);
    CHECK_INT(count_of(got.text, "ended after step 5 of 5"), 4);
    CHECK_INT(got.status, 0);
    free(got.text);
}

TEST(open_mpis_mpirun_starts_ranks_on_two_hosts)
{
    need("mpirun.openmpi");
    check_mpirun(OPEN_MPI PROGRAMS);
}

TEST(mpichs_mpirun_starts_ranks_on_two_hosts)
{
    need("mpirun.mpich");
    check_mpirun(MPICH PROGRAMS);
}

/* The MPI that carries the data is initialised after the hosts have met over the same connection to
 * the process manager, which must be open for it then. The MPIs use TCP: the hosts share memory.
 * Over UCX's TCP, MPI_Finalize of MPICH 4.0 does not always return: a rank that has closed its
 * connections no longer answers ranks that still close theirs. It is given up then, which mpirun
 * takes for a crash. */
#define OVER_MPI                                                                                   \
    "export LOCKSTEP_DATA_PLANE=mpi LOCKSTEP_TIMEOUT=10 LOCKSTEP_DEBUG=info "                      \
    "OMPI_MCA_btl_tcp_if_include=10.98.0.0/24 "                                                    \
    "OMPI_MCA_btl=tcp,self OMPI_MCA_mpi_yield_when_idle=1 UCX_TLS=^shm\n"
/* Ranks print into files: of those that are given up mpirun may lose what it has not passed on. */
#define HELLO "sh -c 'exec $E/01_hello_all_reduce >out.$$ 2>&1'; s=$?; cat out.*; exit $s"
#define X "-x LOCKSTEP_DATA_PLANE -x LOCKSTEP_MPI -x LOCKSTEP_DEBUG -x TEST_RANK_OF "

static test_output run_over_mpi(test_output (*run)(const char *text), const char *mpi,
                                const char *command)
{
    char text[4096];
    const char *plugin = test_build_path("src/comm/mpi/ls_backend_mpi");
    snprintf(text, sizeof text, "%s_%s.so", plugin, mpi);
    if (access(text, R_OK) != 0) {
        SKIP("no plug-in for this MPI (apt-get install libopenmpi-dev libmpich-dev, then build)");
    }
    snprintf(text, sizeof text, OVER_MPI "export LOCKSTEP_MPI=%s_%s.so\n%s", plugin, mpi, command);
    test_output got = run(text);
    if (got.status != 0 && strstr(got.text, "MPI_Finalize did not end in") == NULL) {
        test_fail(__FILE__, __LINE__, "status %d: %s", got.status, got.text);
    }
    CHECK(
        test_count_said(got.text, SAYS("ls_finalize: %llu messages with %llu bytes were sent over "
                                       "MPI")) >= 4);
    return got;
}

static void check_over_mpi(test_output (*run)(const char *text), const char *mpi,
                           const char *command)
{
    test_output got = run_over_mpi(run, mpi, command);
    CHECK_CONTAINS(got.text, "4 of 4 ranks hold the right sums");
    free(got.text);
}

TEST(open_mpi_carries_the_data_between_hosts_that_met_over_pmix)
{
    need("mpirun.openmpi");
    check_over_mpi(hosts, "openmpi", OPEN_MPI "$R " X HELLO);
    check_over_mpi(slurm, "openmpi",
                   "LOCKSTEP_DEBUG=info srun -N2 -n4 --mpi=pmix $E/01_hello_all_reduce");
}

TEST(mpich_carries_the_data_between_hosts_that_met_over_pmi)
{
    need("mpirun.mpich");
    check_over_mpi(hosts, "mpich", MPICH "$R " HELLO);
}

/* A test of collectives, and training: the same losses as on one host without MPI, and as many
 * bytes on the cable as MPI was given to send to the other host. */
static void check_training(const char *mpi, const char *launcher, const char *options)
{
    char text[3072];
    const char *collectives = test_build_path("tests/dist/comm/comm_test_collectives");
    need_long();
    snprintf(text, sizeof text,
             "%s sent() { awk '/tn1:/ {print $10}' /proc/net/dev; }\n"
             "TEST_RANK_OF=all_operations_are_exact_on_4_ranks $R %s %s; echo collectives $?\n"
             "A=$(sent); T=\"lockstep train gpt $O --steps 100 --log-losses\"; $R %s $T there\n"
             "[ $(($(sent) - A)) -gt 2000000 ] && echo over the cable\n"
             "unset LOCKSTEP_DATA_PLANE; lockstep run -n 4 $T here >/dev/null 2>&1\n"
             "cmp there here && echo the same $(wc -l <there) losses",
             launcher, options, collectives, options);
    test_output got = run_over_mpi(hosts, mpi, text);
    CHECK_CONTAINS(got.text, "collectives 0\n");
    CHECK_CONTAINS(got.text, "over the cable\n");
    CHECK_CONTAINS(got.text, "the same 100 losses\n");
    free(got.text);
}

TEST_OF(training_over_open_mpi_between_hosts_gives_the_losses_of_one_host, 0, LONG_SECONDS)
{
    need("mpirun.openmpi");
    check_training("openmpi", OPEN_MPI, X);
}

TEST_OF(training_over_mpich_between_hosts_gives_the_losses_of_one_host, 0, LONG_SECONDS)
{
    need("mpirun.mpich");
    check_training("mpich", MPICH, "");
}

/* Runs a command for a second after it has said its result, at most: MPICH's own MPI_Finalize does
 * not always end here, with or without the interposer (2 of 12 runs; on some machines all). */
#define UNTIL_SAID                                                                                 \
    "until_said() {\n"                                                                             \
    "    : >said; \"$@\" >said 2>&1 & p=$!; n=0\n" /* not what an earlier command has said */      \
    "    while [ $n -lt 400 ] && kill -0 $p 2>/dev/null && ! grep -q ' records, ' said; do\n"      \
    "        sleep 0.1; n=$((n + 1))\n"                                                            \
    "    done\n"                                                                                   \
    "    sleep 1; kill $p 2>/dev/null; wait $p; cat said\n"                                        \
    "}\n"

/* An unchanged program under the interposer: MPI serves all of it, and one line says why. */
static void check_unchanged(const char *mpi, const char *launcher)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("a sanitizer must be loaded before the interposer");
#endif
    char text[4096], preload[1024];
    snprintf(preload, sizeof preload, "%s_%s.so", test_build_path("extra/pmpi/liblockstep_pmpi"),
             mpi);
    if (access(preload, R_OK) != 0) {
        SKIP("the build has no interposer for this MPI (apt-get install libopenmpi-dev "
             "libmpich-dev)");
    }
    snprintf(text, sizeof text,
             OVER_MPI UNTIL_SAID "unset LOCKSTEP_DATA_PLANE LOCKSTEP_DEBUG\n%s F=%s/unchanged_%s\n"
                                 "until_said $R env QUICK=1 $F write $PWD/r\n"
                                 "until_said $R env QUICK=1 LOCKSTEP_PMPI_REPORT=1 LD_PRELOAD=%s "
                                 "$F compare $PWD/r",
             launcher, test_build_path("tests/dist/mpi_programs"), mpi, preload);
    test_output got = hosts(text);
    CHECK_INT(test_count_said(got.text, "compared %d records, 0 wrong"), 1);
    CHECK_INT(test_count_said(got.text, SAYS("lockstep: all collectives are served by MPI: %s")),
              1);
    CHECK_CONTAINS(got.text, SAYS("the ranks run on several hosts"));
    CHECK_INT(count_of(got.text, " served, "), 0);
    free(got.text);
}

TEST(the_interposer_leaves_a_job_on_two_hosts_to_open_mpi)
{
    need("mpirun.openmpi");
    check_unchanged("openmpi", OPEN_MPI);
}

TEST(the_interposer_leaves_a_job_on_two_hosts_to_mpich)
{
    need_long(); /* its ranks spin over TCP for the whole of the test */
    need("mpirun.mpich");
    check_unchanged("mpich", MPICH);
}

/* ---- Kubernetes ----------------------------------------------------------------------------- */

/* The script of examples/kubernetes/train.yaml on two hosts that stand for the pods; a line of
 * /etc/hosts is the name that the headless service gives pod 0. One pod is asked to stop; on a busy
 * machine that may come after the last step, and they start anew. */
TEST_OF(pods_of_an_indexed_job_go_on_after_a_drain, 0, LONG_SECONDS)
{
    char text[4096];
    const char *yaml = test_source_path("examples/kubernetes/train.yaml");
    snprintf(
        text, sizeof text,
        "sed -n '/^        - |$/,/^        volumeMounts/s/^          //p' %s >pod.sh\n"
        "grep -c -e 'completions: 2$' -e 'parallelism: 2$' -e 'run --nnodes 2 ' %s\n"
        "echo 10.98.0.1 train-0.train >>$TWO_NODES/hosts; lockstep secret secret\n"
        "export RANKS=2 DATA=text RUN=run STEPS=1500 SECRET=secret OPTIONS=\"${O#*text}\"\n"
        "pod() { $TWO_NODES/on $(($1+1)) env JOB_COMPLETION_INDEX=$1 sh -c \"$(cat pod.sh)\"; }\n"
        "both() { pod 0 >0.out 2>&1 & P=$!; pod 1 >1.out 2>&1 & Q=$!; }\n"
        "ended() { wait $P; p=$?; wait $Q; echo pods ended: $p $?; }\n"
        "drained() {\n"
        "    rm -rf run*; both\n"
        "    until [ \"$(cat run.losses 2>/dev/null | wc -l)\" -gt 100 ]; do sleep 0.1; done\n"
        "    kill -TERM $(pgrep -P $Q || echo $Q); ended; [ $p != 0 ]\n"
        "}\n"
        "n=0; until drained || [ $n = 5 ]; do n=$((n + 1)); done; both; ended; tail -n 3 0.out\n"
        "lockstep run -n 4 lockstep train gpt --data text --steps 1500 $OPTIONS --log-losses w "
        ">/dev/null 2>&1; cmp w run.losses && echo the same losses",
        yaml, yaml);
    test_output got = cluster("--hosts", text, LONG_SECONDS);
    CHECK_CONTAINS(got.text, "3\n");
    CHECK_CONTAINS(got.text, "pods ended: 75 75\n");
    CHECK_CONTAINS(got.text, "pods ended: 0 0\n");
    CHECK_CONTAINS(got.text, "the same losses\n");
    free(got.text);
}

/* What the environment gives, what the command line gives, and the number of hosts that results:
 * the world is complete only if all agree. */
TEST(options_come_from_kubeflows_variables)
{
    static const char *const cases[][2] = {
        {"PET_NNODES=2 PET_NODE_RANK=$k PET_NPROC_PER_NODE=2 PET_MASTER_ADDR=127.0.0.1 "
         "PET_MASTER_PORT=$P",
         ""},
        {"PET_NNODES=2:2 PET_NODE_RANK=$k PET_RDZV_ENDPOINT=127.0.0.1:$P PET_MAX_RESTARTS=1",
         "-n 2"},
        {"JOB_COMPLETION_INDEX=$k PET_NNODES=7", "--nnodes 2 --rendezvous 127.0.0.1:$P -n 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "P=$($M port); for k in 0 1; do %s $L run %s $E/01_hello_all_reduce & done; wait",
                 cases[i][0], cases[i][1]);
        check_count(script, text, "4 of 4 ranks hold the right sums", 1);
    }
    check_script("JOB_COMPLETION_INDEX=5 $L run -n 2 $E/01_hello_all_reduce", 0, "2 of 2 ranks");
    check_script("PET_NNODES=x $L run -n 2 true", 2, SAYS("lockstep run: %s=%s was taken as %s"));
}

/* ---- time limit, failure -------------------------------------------------------------------- */

/* The batch script of docs/launching.md as it stands there, on text of its own. `until_over` waits
 * for the end of the job, without the two minutes that Slurm waits before it starts a job again.
 * `reference` is the same training at one go. */
#define BATCH                                                                                      \
    "export RUN=$PWD/run; T=\"$O --every 500 --steps $STEPS\"\n"                                   \
    "reference() { lockstep run -n 4 lockstep train gpt $T --log-losses whole >/dev/null 2>&1; "   \
    "}\n"                                                                                          \
    "submit() { J=$(sbatch --parsable -o out \"$@\" job.sh $T --log-losses losses); }\n"           \
    "until_over() { while [ -n \"$(squeue -h)\" ]; do sleep 0.5; [ -z \"$(squeue -h -t PD)\" ] "   \
    "|| "                                                                                          \
    "scontrol update JobId=$J StartTime=now; done; cat out; }\n"                                   \
    "until_steps() { until [ \"$(cat losses 2>/dev/null | wc -l)\" -gt $1 ]; do sleep 0.2; done; " \
    "}\n"                                                                                          \
    "compare() { cmp losses whole && echo the same $(wc -l <losses) losses; }\n"

TEST_OF(a_batch_job_goes_on_after_its_time_limit, 0, LONG_SECONDS)
{
    need_long();
    test_output got = cluster("",
                              "STEPS=24000\n" BATCH
                              "submit --time=1 --signal=B:TERM@50; until_over; reference; compare",
                              LONG_SECONDS);
    CHECK_CONTAINS(got.text, "the same 24000 losses");
    CHECK(count_of(got.text, "as a signal asked") >= 1);
    free(got.text);
}

/* Every process of node 2 dies, slurmd among them: the ranks of node 1 name the node, and Slurm
 * queues the job again when it finds the node down. */
TEST_OF(a_batch_job_goes_on_after_a_node_has_failed, 0, LONG_SECONDS)
{
    need_long();
    test_output got = cluster(
        "",
        "STEPS=8000\n" BATCH "submit; until_steps 2000; $TWO_NODES/kill-node 2\n"
        "until sinfo -h -n n2 -o %T | grep -q down; do sleep 0.2; done; $TWO_NODES/start-slurmd 2\n"
        "until_over; reference; compare",
        LONG_SECONDS);
    CHECK(count_of(got.text, "node 1 (host n2, 2 ranks, the first is rank 2) is lost") >= 2);
    CHECK_CONTAINS(got.text, "going on at step");
    CHECK_CONTAINS(got.text, "the same 8000 losses");
    free(got.text);
}

TEST_MAIN
