/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds of other launchers: torchrun, mpirun of Open MPI and MPICH where they are installed, srun
 * by its variables; and what their ranks read when one of them dies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "script.h"

#define SECONDS 40

/* `ranks N COMMAND…` sets torchrun's variables by hand for N processes, `hosts COMMAND…` for 2
 * hosts of 2. `go R FILE &` runs rank R of 3 as $!, its output in FILE; `until_joined PID` waits
 * until another rank has joined the one that listens, which then watches its process. */
static test_output others_script(const char *text)
{
    char piped[4096];
    /* by a pipe: not every system lets several processes write to one file at once */
    snprintf(piped, sizeof piped, "{\n%s\n} 2>&1 | cat", text);
    return script_with(
        "P=$($M port); export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
        "rank() { r=$1; n=$2; shift 2; RANK=$r WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 "
        "MASTER_PORT=$P \"$@\"; }\n"
        "go() { export RANK=$1 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P; exec $M join >$2 "
        "2>&1; }\n"
        "until_joined() { until ls -l /proc/$1/fd 2>/dev/null | grep -q pidfd; do sleep 0.02; "
        "done; "
        "}\n"
        "ranks() { n=$1; shift; for r in $(seq 1 $((n-1))); do rank $r $n \"$@\" & done\n"
        "  rank 0 $n \"$@\"; wait; }\n"
        "hosts() { for r in 0 1 2 3; do RANK=$r WORLD_SIZE=4 LOCAL_RANK=$((r/2)) "
        "LOCAL_WORLD_SIZE=2 GROUP_RANK=$((r%2)) MASTER_ADDR=127.0.0.1 "
        "MASTER_PORT=$P \"$@\" & done; wait; }",
        piped, SECONDS);
}

static void check(const char *text, const char *part, int times)
{
    check_count(others_script, text, part, times);
}

static bool have(const char *program)
{
    char command[256];
    snprintf(command, sizeof command, "command -v %s >/dev/null", program);
    test_output got = test_run(command, SECONDS);
    free(got.text);
    return got.status == 0;
}

/* ---- installed launchers --------------------------------------------------------------------- */

TEST(a_program_runs_under_open_mpis_mpirun)
{
    if (!have("mpirun.openmpi")) {
        SKIP("no mpirun.openmpi (apt-get install openmpi-bin)");
    }
    check("mpirun.openmpi --oversubscribe -np 3 $M join", ": joined\n", 3);
    check("mpirun.openmpi --oversubscribe -np 3 $E/01_hello_all_reduce", "3 of 3 ranks hold", 1);
    /* Two at once, with a session folder each, which mpirun itself makes and removes in a race. */
    check("A=$(mktemp -d) B=$(mktemp -d)\n"
          "two() { OMPI_MCA_orte_tmpdir_base=$1 PRTE_MCA_prte_tmpdir_base=$1 "
          "mpirun.openmpi --oversubscribe -np 2 $M join; }\n"
          "two $A & two $B; wait; rm -r $A $B",
          " of 2, local ", 4);
}

TEST(a_program_runs_under_mpichs_mpirun)
{
    if (!have("mpirun.mpich")) {
        SKIP("no mpirun.mpich (apt-get install mpich)");
    }
    check("mpirun.mpich -np 3 $M join", ": joined\n", 3);
    check("mpirun.mpich -np 3 $E/01_hello_all_reduce", "3 of 3 ranks hold", 1);
    /* two jobs of one size, and a program between launcher and rank */
    check("mpirun.mpich -np 2 sh -c '$M join; true' & mpirun.mpich -np 2 nice $M join; wait",
          " of 2, local ", 4);
}

/* torchrun: $TEST_TORCHRUN, or the one in PATH. */
static const char *torchrun(void)
{
    const char *given = getenv("TEST_TORCHRUN");
    if (given == NULL && !have("torchrun")) {
        SKIP("no torchrun; TEST_TORCHRUN names one");
    }
    test_output help = test_run(given != NULL ? "true" : "torchrun --help", 60);
    const bool old = given == NULL && strstr(help.text, "--nproc-per-node") == NULL;
    free(help.text);
    if (old) {
        SKIP("this torchrun is too old for Python's own, and for this test");
    }
    return given != NULL ? given : "torchrun";
}

TEST(a_program_runs_under_torchrun)
{
    char text[1024];
    const char *t = torchrun();
    snprintf(text, sizeof text,
             "%s --standalone --nproc-per-node 3 --no-python $E/01_hello_all_reduce", t);
    check(text, "3 of 3 ranks hold", 1);
    snprintf(text, sizeof text, "%s --nproc-per-node 2 --master-port $P --no-python $M join", t);
    check(text, ": joined\n", 2);
}

/* By torchrun's own static rendezvous, which holds MASTER_PORT. */
TEST(a_program_runs_under_torchrun_on_two_nodes)
{
    char text[1024];
    const char *t = torchrun();
    snprintf(text, sizeof text,
             "node() { %s --nnodes 2 --node-rank $1 --master-addr 127.0.0.1 --master-port $P "
             "--nproc-per-node 2 --no-python $M join; }\n"
             "node 1 & node 0; wait",
             t);
    check(text, "of 4, local 1 of 2, at 127.0.0.1, plain: joined\n", 2);
}

TEST(a_torch_script_runs_under_our_launcher)
{
    const char *python = getenv("TEST_TORCH_PYTHON");
    char text[2048];
    if (python == NULL) {
        test_output got = test_run("python3 -c 'import torch.distributed'", SECONDS);
        free(got.text);
        if (got.status != 0) {
            SKIP("no torch in python3; TEST_TORCH_PYTHON names an interpreter that has it");
        }
        python = "python3";
    }
    snprintf(
        text, sizeof text,
        "cat >s.py <<'E'\nimport torch, torch.distributed as d\nd.init_process_group('gloo')\n"
        "net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))\n"
        "net(torch.ones(2, 4) * (d.get_rank() + 1)).sum().backward()\n"
        "print('gradient', net.module.bias.grad.item(), flush=True)\nd.destroy_process_group()\nE\n"
        "$L run -n 2 %s s.py; R=127.0.0.1:$P\n"
        "$L run --nnodes 2 --node-rank 1 --rendezvous $R -n 1 %s s.py &\n"
        "$L run --nnodes 2 --node-rank 0 --rendezvous $R -n 1 %s s.py; wait",
        python, python, python);
    check(text, "gradient 2.0\n", 4);
}

/* ---- variables by hand ----------------------------------------------------------------------- */

TEST(rank_0_that_is_started_twice_is_named)
{
    check("(export RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P; exec $M join) & p=$!\n"
          "sleep 0.3; rank 0 2 $M join; kill $p; wait",
          "already gathers the ranks of a job with these settings", 1);
}

/* Rank 0 is in a call of its backend that does not return when rank 1 is killed. */
TEST(a_rank_whose_backend_does_not_return_ends_with_the_root_cause)
{
    char text[2048];
    snprintf(
        text, sizeof text,
        "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P LOCKSTEP_BACKEND=%s\n"
        "(export RANK=0 LOOP_BROKEN=stuck; exec $E/01_hello_all_reduce >0 2>&1) & q=$!\n"
        "(export RANK=1; exec $E/01_hello_all_reduce >1 2>&1) & p=$!\n"
        "until grep -q stuck 0; do sleep 0.02; done; kill -9 $p; wait $q; echo status $?; cat 0",
        test_build_path("tests/plugins/ls_backend_loop.so"));
    test_output got = others_script(text);
    CHECK_CONTAINS(got.text, "status 1\n");
    CHECK_CONTAINS(got.text, "error: rank 1 (host ");
    CHECK_SAYS(got.text,
               "%s; a call of this rank's backend has not returned for %.0f s since then, "
               "so the process ends");
    free(got.text);
}

TEST(sizes_of_the_world_that_differ_are_named)
{
    check(
        "(export RANK=0 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P; exec $M join) & p=$!\n"
        "rank 1 2 $M join; kill $p; wait",
        "rank 1 of 2, local rank 1 of 2, does not match local rank 0 of this host, which expects 3",
        1);
}

TEST(torchruns_variables_by_hand_make_a_world)
{
    check("ranks 3 $M join", ": joined\n", 3);
    check("ranks 4 $W train 5", "ended after step 5 of 5", 4);
    /* no MASTER_ADDR: the ranks of one shell */
    check("for r in 0 1 2; do RANK=$r WORLD_SIZE=3 nice $M join & done; wait", ": joined\n", 3);
}

TEST(two_worlds_of_one_user_do_not_meet)
{
    check("ranks 3 $M join & P=$($M port); ranks 3 $M join; wait", ": joined\n", 6);
}

TEST(ranks_dealt_out_to_hosts_by_turns_meet)
{
    check("hosts $M join", "of 4, local 1 of 2, at 127.0.0.1, plain: joined\n", 2);
    check("hosts $M join", "member 2 of 4, local 1 of 2", 1);
    check("hosts $W train 5", "ended after step 5 of 5", 4);
}

TEST(a_step_of_srun_on_two_hosts_meets_at_its_first_node)
{
    check("export HOME=$D; step() { SLURM_JOB_ID=$P SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 "
          "SLURM_NODEID=$1 "
          "SLURM_STEP_TASKS_PER_NODE='2(x2)' SLURM_STEP_NODELIST=localhost,other[1-2] "
          "SLURM_LOCALID=$2 SLURM_PROCID=$(($1 * 2 + $2)) $M join; }\n"
          "for n in 0 1; do for l in 0 1; do step $n $l & done; done; wait",
          "protected: joined\n", 4);
    check("for l in 0 1; do SLURM_JOB_ID=$P SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=0 "
          "SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=node7 SLURM_LOCALID=$l SLURM_PROCID=$l "
          "$E/01_hello_all_reduce & done; wait",
          "2 of 2 ranks hold", 1);
}

/* Where rank 0's address and secret do not reach this rank, the error says why and what to set. */
TEST(sharing_that_fails_is_told_with_the_remedy)
{
    static const char sharing[] =
        SAYS("ls_init: %s, but the address of rank 0 and the secret of the job could not be shared "
             "by %s (%s): set LOCKSTEP_RENDEZVOUS=HOST:PORT (rank 0's host and a free port there) "
             "and LOCKSTEP_SECRET_FILE=FILE (made by `lockstep secret FILE`) for all ranks");
    static const char step[] =
        "export LOCKSTEP_TIMEOUT=1 HOME=$D SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 "
        "SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE='1(x2)' SLURM_STEP_NODELIST=n[1-2] "
        "SLURM_LOCALID=0 SLURM_PROCID=1\nF=.lockstep/slurm-7.0.0.; mkdir .lockstep\n";
    char text[2048];
    snprintf(text, sizeof text, "%s$E/01_hello_all_reduce", step);
    check(text, sharing, 1);
    check(text,
          SAYS("rank 0's host did not write %.120s within the deadline, or the hosts do not share "
               "this folder"),
          1);
    snprintf(text, sizeof text, "%sumask 022; echo v1/1/ >$F; $E/01_hello_all_reduce", step);
    check(text, SAYS("%.150s is not this user's alone (mode %04o, owner %ld)"), 1);
    snprintf(text, sizeof text, "%secho v9/1/ >$F; $E/01_hello_all_reduce", step);
    check(text, SAYS("rank 0 uses another version of Lockstep"), 1);
    snprintf(text, sizeof text, "%sunset HOME; $E/01_hello_all_reduce", step);
    check(text, SAYS("HOME is not set"), 1);
    check("export LOCKSTEP_TIMEOUT=2 PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1\n"
          "PMI_FD=9 $E/01_hello_all_reduce",
          "shared by PMI (cmd=init: ", 1);
    snprintf(text, sizeof text,
             "export LOCKSTEP_TIMEOUT=2 PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1\n"
             "ln -s %s libpmix.so.2\n"
             "LD_LIBRARY_PATH=$D PMIX_NAMESPACE=n PMIX_RANK=1 $E/01_hello_all_reduce",
             test_build_path("tests/plugins/ls_backend_empty.so"));
    check(text, SAYS("%s has no function %s"), 1);
}

TEST(the_shell_of_a_batch_job_waits_for_nobody)
{
    check("export SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8 SLURM_NODEID=0\n"
          "$M join; $L env",
          "member 0 of 1, local 0 of 1", 1);
    check("SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_NTASKS=8 $L env", "this is not a step of srun", 1);
}

TEST(the_command_says_which_rule_fired)
{
    check("RANK=1 WORLD_SIZE=2 $L env", "because      RANK=1 and WORLD_SIZE=2 are set", 1);
    check("$L env", "world        one rank", 1);
    check("$L run -n 2 $L env", "[1] launcher     lockstep\n", 1);
    check("RANK=1 WORLD_SIZE=2 LOCKSTEP_LAUNCHER=none $L env", "LOCKSTEP_LAUNCHER=none", 1);
    check("RANK=5 WORLD_SIZE=2 $L env", "RANK=5 is not a number from 0 to 1", 1);
    check("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 $L env", "set LOCKSTEP_RENDEZVOUS",
          1);
}

/* ---- failing --------------------------------------------------------------------------------- */

TEST(a_death_is_named_by_all_though_nobody_launched_them)
{
    check("ranks 4 $M die 2 kill 2>&1", "rank 2 (host", 3);
    check("ranks 4 $M die 1 exit 2>&1",
          SAYS("%s ended without ls_finalize %s; its launcher (%s) knows the exit status"), 3);
}

/* The root cause is chosen and told alike, whoever started the ranks and whichever of them dies. */
TEST(a_failure_that_a_rank_noted_reads_the_same_under_every_launcher)
{
    check("$L run -n 4 $M die 2 note 2>&1 | grep ' after '", ": planted mismatch of rank 2\n", 3);
    check("ranks 4 $M die 2 note 2>&1", ": planted mismatch of rank 2\n", 3);
    check("ranks 4 $M die 0 note 2>&1", ": planted mismatch of rank 0\n", 2);
    check("hosts $M die 3 note 2>&1", ": planted mismatch of rank 3\n", 3);
}

/* ls_init fails after the ranks have met: the others, which wait in it, do not wait until their
 * deadline, and the failed rank's agent does not wait for them. */
TEST(a_rank_whose_ls_init_fails_is_named_by_the_others_at_once)
{
    for (int rank = 0; rank < 3; rank++) {
        char text[512];
        snprintf(text, sizeof text,
                 "for r in 0 1 2; do if [ $r = %d ]; then A=garbage; else A=all_reduce=ring; fi\n"
                 "LOCKSTEP_ALGORITHM=$A rank $r 3 timeout 30 $E/01_hello_all_reduce & done; wait",
                 rank);
        char part[32];
        snprintf(part, sizeof part, " rank %d (host", rank);
        check(text, part, 2);
    }
}

TEST(local_rank_0s_death_is_named_by_the_others)
{
    check("ranks 4 $M die 0 kill 2>&1", ": rank 0 (host", 2);
    check("ranks 4 $M die 0 kill 2>&1", "rank 2: LS_ERR_PEER after ", 1);
}

TEST(a_death_on_another_host_is_named_by_all)
{
    check("hosts $M die 3 kill 2>&1", "rank 3 (host", 3);
}

TEST(ranks_that_do_not_come_are_named)
{
    check("RANK=0 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P LOCKSTEP_TIMEOUT=1 "
          "$E/01_hello_all_reduce 2>&1",
          "local rank 1, 2 did not join within the deadline", 1);
    check("RANK=1 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P LOCKSTEP_TIMEOUT=1 "
          "$E/01_hello_all_reduce 2>&1",
          "local rank 0 of this host did not start its agent", 1);
    check("RANK=0 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P LOCKSTEP_TIMEOUT=6 "
          "$E/01_hello_all_reduce 2>&1",
          SAYS("ls_init: %s: waiting for local rank %s of this host (%s); LOCKSTEP_LAUNCHER=none "
               "runs alone"),
          1);
    check("RANK=1 WORLD_SIZE=2 LOCKSTEP_TIMEOUT=6 $E/01_hello_all_reduce 2>&1",
          SAYS("ls_init: %s, so this is local rank %d of %d (%s): waiting for local rank 0 of this "
               "host; LOCKSTEP_LAUNCHER=none runs alone"),
          1);
}

TEST(variables_left_from_a_job_of_other_hosts_are_named)
{
    check("export RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 LOCKSTEP_TIMEOUT=1\n"
          "for h in 127.0.0.9 no-such-host.invalid; do MASTER_ADDR=$h MASTER_PORT=$P "
          "$E/01_hello_all_reduce 2>&1; done",
          SAYS("%.500s. %s, so %d ranks on other hosts are expected (%s); if these variables are "
               "left from "
               "another job, unset them, or set LOCKSTEP_LAUNCHER=none to run alone"),
          2);
}

/* Whichever process of rank 1 comes second is refused. */
TEST(processes_that_do_not_fit_are_refused_in_words)
{
    check(
        "go 0 a & A=$!; go 1 b & B=$!; go 1 c & C=$!\n"
        "until grep -qs 'two processes' b c; do sleep 0.02; done; kill -9 $A $B $C; cat b c",
        SAYS("ls_init: two processes claim to be local rank %d of this host (%s): process %d (rank "
             "%d) was the first; start one process per rank"),
        1);
    check(
        "go 0 a & A=$!; until ls -d /proc/$A >/dev/null; do :; done; sleep 0.3; go 0 b & B=$!\n"
        "wait $B; kill -9 $A; cat b",
        SAYS("ls_init: %s, but process %ld already gathers the ranks of a job with these settings "
             "on this host (%s): either two jobs use the same settings, or two processes are local "
             "rank 0; give each job its own MASTER_PORT"),
        1);
    check("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P $M join >a 2>&1 & A=$!\n"
          "sleep 0.3; RANK=1 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P $M join; kill -9 $A",
          SAYS("ls_init: rank %d of %d, local rank %d of %d, does not match local rank 0 of this "
               "host, which expects %d of %d ranks here; give all ranks of the job the same sizes"),
          1);
    check("RANK=1 WORLD_SIZE=2000 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2000 MASTER_ADDR=127.0.0.1 "
          "MASTER_PORT=$P $M join",
          SAYS("ls_init: %s, but %d ranks on this host are too many; a host runs at most %d"), 1);
}

/* ---- another user ---------------------------------------------------------------------------- */

/* `as UID COMMAND…`, and a user U whose folder nobody else uses. */
#define USERS                                                                                      \
    "U=$((60000 + $$ % 5000)); export LOCKSTEP_TIMEOUT=20\n"                                       \
    "as() { u=$1; shift; setpriv --reuid $u --regid $u --clear-groups env -u XDG_RUNTIME_DIR "     \
    "\"$@\"; }\n"

static void need_users(void)
{
    if (geteuid() != 0 || !have("setpriv")) {
        SKIP("only root can be several users here, with setpriv");
    }
}

TEST(another_user_who_takes_the_predictable_name_does_not_stop_a_job)
{
    need_users();
    check(USERS "$M squat $U 127.0.0.1 $P 3 & S=$!; until_file squats\n"
                "for r in 0 1 2; do rank $r 3 as $U $M join & J=\"$J $!\"; done; wait $J; kill $S\n"
                "ls /tmp/lockstep-$U; rmdir /tmp/lockstep-$U && echo and nothing left",
          ": joined\n", 3);
}

/* Nor by spare folders that are not this user's, or lead elsewhere. */
TEST(another_user_who_makes_the_folder_first_does_not_stop_a_job)
{
    need_users();
    const char *text = USERS
        "as 65534 mkdir -m 777 /tmp/lockstep-$U /tmp/lockstep-$U.0; as 65534 ln -s /tmp "
        "/tmp/lockstep-$U.1\n"
        "for r in 0 1 2; do rank $r 3 as $U $M join & J=\"$J $!\"; done; wait $J\n"
        "for k in 0 1; do as $U $L run --nnodes 2 --node-rank $k --rendezvous 127.0.0.1:$P -n 1 "
        "$M join & K=\"$K $!\"; done; wait $K\n"
        "rm -r /tmp/lockstep-$U /tmp/lockstep-$U.0 /tmp/lockstep-$U.1\n"
        "rmdir /tmp/lockstep-$U.* && echo one folder and nothing left in it";
    check(text, ": joined\n", 5);
    check(text, "nothing left", 1);
}

/* The folder is another user's when the first rank comes, and gone when the others do. */
TEST(another_user_who_takes_the_folder_away_again_does_not_stop_a_job)
{
    need_users();
    check(USERS "as 65534 mkdir -m 777 /tmp/lockstep-$U; rank 0 2 as $U $M join & J=$!\n"
                "until ls /tmp/lockstep-$U.*/* >/dev/null 2>&1; do sleep 0.02; done\n"
                "as 65534 rmdir /tmp/lockstep-$U; rank 1 2 as $U $M join; wait $J\n"
                "rm -r /tmp/lockstep-$U.*; rmdir /tmp/lockstep-$U",
          ": joined\n", 2);
}

/* A job on one host has no names at all: memory and sockets are passed by descriptor. */
TEST(another_user_who_takes_every_name_does_not_touch_a_job_of_one_host)
{
    need_users();
    check(USERS "as 65534 mkdir -m 777 /tmp/lockstep-$U; $M squat $U 127.0.0.1 $P 2 & S=$!\n"
                "until_file squats; as $U $L run -n 2 $M join; kill $S; rmdir /tmp/lockstep-$U",
          ": joined\n", 2);
}

TEST(another_user_on_the_port_of_the_rendezvous_is_found_at_once)
{
    need_users();
    check(USERS "as 65534 python3 -c 'import socket, sys, time; s = socket.socket(); "
                "s.bind((\"127.0.0.1\", int(sys.argv[1]))); s.listen(); print(\"listens\", "
                "flush=True); time.sleep(20)' $P > listens & S=$!\n"
                "until grep -q listens listens; do sleep 0.05; done; T=$(date +%s)\n"
                "as $U $L run --nnodes 2 --node-rank 0 --rendezvous 127.0.0.1:$P -n 1 true\n"
                "kill $S; [ $(($(date +%s) - T)) -lt 10 ] && echo at once",
          "at once", 1);
}

TEST(a_name_left_by_a_killed_process_is_used_again)
{
    need_users();
    check(USERS "rank 0 2 as $U $M join & until ls /tmp/lockstep-$U/* >/dev/null 2>&1; do sleep "
                "0.02; done\n"
                "kill -9 $(pgrep -u $U); wait; ls /tmp/lockstep-$U/* >/dev/null || exit 1\n"
                "for r in 0 1; do rank $r 2 as $U $M join & J=\"$J $!\"; done; wait $J\n"
                "rmdir /tmp/lockstep-$U",
          ": joined\n", 2);
}

TEST(what_was_detected_is_logged)
{
    check("export LOCKSTEP_DEBUG=info; ranks 2 $M join",
          SAYS("ls_init: %s: started by %s, rank %d of %d, local rank %d of %d"), 2);
}

TEST(a_rank_that_dies_at_start_up_ends_the_wait)
{
    check("go 0 a & A=$!; go 1 b & B=$!; until_joined $A; kill -9 $B; wait; cat a",
          SAYS("ls_init: rank %d (host %s, pid %d) ended before all ranks had joined; its launcher "
               "(%s) knows the exit status"),
          1);
}

/* The rank that runs the agent's thread is the slowest to join it: its connect takes a second. It
 * says its process itself: strace has other children first, which try what ptrace can do. */
TEST(a_rank_that_dies_before_local_rank_0_has_joined_ends_the_wait)
{
    if (!have("strace")) {
        SKIP("no strace (apt-get install strace)");
    }
    check("export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$P\n"
          "RANK=0 strace -f -o /dev/null -e inject=connect:delay_enter=1000000 "
          "sh -c 'echo $$ >pid; exec $M join' >a 2>&1 &\n"
          "go 1 b & B=$!; until_file pid; until_joined $(cat pid); kill -9 $B; wait; cat a",
          SAYS("ls_init: rank %d (host %s, pid %d) ended before all ranks had joined; its launcher "
               "(%s) knows the exit status"),
          1);
}

TEST_MAIN
