/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep run` on several hosts, here several on this one, by way of the loopback. The harness
 * fails a test that leaves a process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "says.h"
#include "script.h"

#define SECONDS 40

/* `nodes M COMMAND…` runs COMMAND (behind `lockstep run`, ending in the program) as nodes 0 … M-1
 * and prints each one's output and status; $R is a rendezvous that is free. `waiting K FILE …` runs
 * `true` as node K of 3 that shall not come together, its output in FILE and its launcher in $P;
 * `until_said FILE WORDS` waits for its words. */
static test_output nodes_script(const char *text)
{
    return script_with(
        "R=127.0.0.1:$($M port); FLAGS=\n"
        "node() { m=$1; k=$2; shift 2\n"
        "  $L run --nnodes $m --node-rank $k --rendezvous $R $FLAGS \"$@\" >out.$k 2>&1\n"
        "  echo \"status of node $k: $?\" >>out.$k; }\n"
        "waiting() { $L run --nnodes 3 --node-rank $1 --rendezvous $R $FLAGS -n 1 true >$2 2>&1 & "
        "P=$!; }\n"
        "until_said() { until grep -qs \"$2\" $1; do sleep 0.02; done; }\n"
        "nodes() { m=$1; shift; for k in $(seq 1 $((m-1))); do node $m $k \"$@\" & done\n"
        "  node $m 0 \"$@\"; wait; cat out.*; }",
        text, SECONDS);
}

static void check(const char *text, const char *part, int times)
{
    test_output got = nodes_script(text);
    if (test_count_said(got.text, part) != times) {
        test_fail(__FILE__, __LINE__, "%s\nwant %d lines with \"%s\": %s", text, times, part,
                  got.text);
    }
    free(got.text);
}

/* ---- together ------------------------------------------------------------------------------- */

TEST(ranks_of_two_and_three_nodes_share_a_store)
{
    check("nodes 2 -n 2 $M join", ": joined\n", 4);
    check("nodes 3 -n 2 $M join", "of 6, local 1 of 2, at 127.0.0.1, plain: joined\n", 3);
}

TEST(nodes_may_have_different_numbers_of_ranks_and_come_in_any_order)
{
    check("node 3 2 -n 3 $M join & sleep 0.3; node 3 0 -n 1 $M join & sleep 0.1\n"
          "node 3 1 -n 2 $M join; wait; cat out.*",
          " of 6, local ", 6);
    check("node 3 2 -n 3 $M join & node 3 0 -n 1 $M join & node 3 1 -n 2 $M join\nwait; cat out.*",
          "[3] member 3 of 6, local 0 of 3", 1);
}

TEST(nodes_without_a_rank_get_one_on_arrival)
{
    check("any() { $L run --nnodes 3 --rdzv_endpoint=$R -n 1 sh -c 'echo rank $RANK in "
          "$GROUP_RANK'; }\n"
          "any & any & node 3 0 -n 1 true; wait; cat out.0",
          "] rank 1 in 1\n", 1);
}

TEST(ranks_of_all_nodes_find_torchruns_variables)
{
    static const char *const wanted[] = {
        "[3] RANK=3\n",           "[3] LOCAL_RANK=1\n",      "[3] WORLD_SIZE=4\n",
        "[3] LOCAL_WORLD_SIZE=2", "[3] GROUP_RANK=1\n",      "[3] GROUP_WORLD_SIZE=2\n",
        "[3] ROLE_RANK=3\n",      "[3] ROLE_WORLD_SIZE=4\n", "[3] MASTER_ADDR=127.0.0.1\n"};
    test_output got = nodes_script("nodes 2 -n 2 env");
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        CHECK_CONTAINS(got.text, wanted[i]);
    }
    const char *port = strstr(got.text, "MASTER_PORT=");
    const char *run = strstr(got.text, "TORCHELASTIC_RUN_ID=");
    char same[64];
    CHECK(port != NULL && run != NULL);
    snprintf(same, sizeof same, "%.*s\n", (int)strcspn(port, "\n"), port);
    CHECK_INT(count_of(got.text, same), 4);
    snprintf(same, sizeof same, "%.*s\n", (int)strcspn(run, "\n"), run);
    CHECK_INT(count_of(got.text, same), 4);
    free(got.text);
}

TEST(logs_are_named_by_the_rank_of_the_world)
{
    check("nodes 2 --log-dir logs -n 2 sh -c 'echo here $RANK'; cat logs/3/stdout.log; ls logs",
          "here 3\n", 2);
}

/* ---- failing -------------------------------------------------------------------------------- */

/* All nodes report the same words once and end with the same status. */
static void check_verdict(const char *text, int nodes, int status, const char *cause)
{
    char line[64], report[512];
    test_output got = nodes_script(text);
    for (int k = 0; k < nodes; k++) {
        snprintf(line, sizeof line, "status of node %d: %d\n", k, status);
        CHECK_CONTAINS(got.text, line);
    }
    snprintf(report, sizeof report, "lockstep: %s", cause);
    if (count_of(got.text, report) != nodes) {
        test_fail(__FILE__, __LINE__, "%s\nwant %d times \"%s\": %s", text, nodes, report,
                  got.text);
    }
    free(got.text);
}

TEST(a_rank_that_dies_anywhere_is_named_everywhere)
{
    check_verdict("nodes 2 -n 2 $M die 3 kill", 2, 137, "rank 3 (host");
    check_verdict("nodes 2 -n 2 $M die 0 kill", 2, 137, "rank 0 (host");
    check_verdict("nodes 3 -n 2 $M die 4 code", 3, 7, "rank 4 (host");
    check_verdict("nodes 2 -n 2 $M die 2 exit", 2, 1, "rank 2 (host");
}

TEST(survivors_on_all_nodes_read_the_verdict)
{
    test_output got = nodes_script("nodes 3 -n 2 $M die 3 kill");
    CHECK_INT(count_of(got.text, "LS_ERR_PEER after"), 3);
    CHECK_INT(count_of(got.text, ": root cause after"), 2);
    CHECK_INT(count_of(got.text, "was killed by signal 9 (SIGKILL) while"), 5 + 3);
    CHECK_INT(count_of(got.text, "5 other ranks stopped because of this"), 3);
    free(got.text);
}

TEST(the_last_lines_of_another_nodes_rank_reach_node_0)
{
    test_output got =
        nodes_script("nodes 2 -n 1 sh -c '[ $RANK = 1 ] && { echo all is lost; exit 5; }; "
                     "sleep 30'; echo; echo NODE0; cat out.0");
    const char *first = strstr(got.text, "NODE0");
    CHECK(first != NULL);
    CHECK_CONTAINS(first, "last lines of rank 1:");
    CHECK_CONTAINS(first, "| all is lost");
    free(got.text);
}

TEST(a_program_that_cannot_be_started_on_one_node_ends_all)
{
    check("node 2 1 -n 1 ./nothing & node 2 0 -n 1 sleep 30; wait; cat out.*",
          "): cannot start \"./nothing\": no such program", 2);
    check("node 2 1 -n 1 ./nothing & node 2 0 -n 1 sleep 30; wait; cat out.*", ": 127\n", 2);
}

TEST(a_node_whose_launcher_is_killed_is_named)
{
    static const char text[] =
        "node 2 0 -n 1 $M hold & $L run --nnodes 2 --node-rank 1 --rendezvous $R -n 1 $M hold & "
        "P=$!\n"
        "until_file up.0; until_file up.1; A=$(pgrep -P $(pgrep -P $P)); kill -9 $A; wait; cat "
        "out.0\n";
    check(text, "lockstep: node 1 (host", 1);
    check(text,
          SAYS("node %d (host %s, %d rank%s, the first is rank %d) is lost: %s. Its launcher was "
               "killed, the host is down, or the network between it and node 0 (host %s) is cut"),
          1);
    check(text, "status of node 0: 1\n", 1);
}

TEST(node_0s_launcher_killed_ends_the_others)
{
    check("node 2 1 -n 1 $M hold & $L run --nnodes 2 --node-rank 0 --rendezvous $R -n 1 $M hold & "
          "P=$!\n"
          "until_file up.0; until_file up.1; A=$(pgrep -P $(pgrep -P $P)); kill -9 $A; wait; cat "
          "out.1",
          SAYS("node 0 (host %s) is lost, seen by node %d (host %s): %s. Its launcher was killed, "
               "the host is down, or the network between the two is cut"),
          1);
}

TEST(a_silent_node_is_lost_after_some_seconds)
{
    if (getenv("TEST_LONG") == NULL) {
        SKIP("TEST_LONG=1 runs it; a cut network, in hosts.c, looks the same");
    }
    check("node 2 0 -n 1 $M hold & $L run --nnodes 2 --node-rank 1 --rendezvous $R -n 1 $M hold & "
          "P=$!\n"
          "until_file up.0; until_file up.1; A=$(pgrep -P $(pgrep -P $P)); kill -STOP $A\n"
          "until grep -qs status out.0; do sleep 0.05; done; kill -CONT $A; wait; cat out.0",
          "no heartbeat arrived from it for ", 1);
}

/* ---- stopping and restarting ----------------------------------------------------------------- */

TEST(a_signal_to_one_node_stops_all)
{
    check_verdict(
        "node 2 0 -n 1 $M hold & $L run --nnodes 2 --node-rank 1 --rendezvous $R -n 1 $M hold "
        ">out.1 2>&1 & P=$!; until_file up.0; until_file up.1; kill -TERM $P\n"
        "wait $P; echo \"status of node 1: $?\" >>out.1; wait; cat out.*",
        2, 143, "the job was stopped by signal 15 (SIGTERM)");
    check_verdict(
        "node 2 1 -n 1 $M hold & $L run --nnodes 2 --node-rank 0 --rendezvous $R -n 1 $M hold "
        ">out.0 2>&1 & P=$!; until_file up.0; until_file up.1; kill -TERM $P\n"
        "wait $P; echo \"status of node 0: $?\" >>out.0; wait; cat out.*",
        2, 143, "the job was stopped by signal 15 (SIGTERM)");
}

TEST(who_waits_for_other_nodes_can_be_stopped)
{
    check("waiting 0 out.0; until_said out.0 'waiting for node'\n"
          "kill -TERM $P; wait $P; echo \"status $?\"; cat out.0",
          SAYS("stopped by signal %d (%s) before all nodes had joined"), 1);
}

TEST(all_nodes_restart_together)
{
    check("export M; nodes 2 --max-restarts 2 -n 2 sh -c 'test $TORCHELASTIC_RESTART_COUNT$RANK = "
          "02 && "
          "exit 7; exec $M join'",
          ": joined\n", 4);
    check(
        "nodes 2 --max-restarts 5 -n 1 sh -c 'test $RANK = 1 && { echo same; exit 7; }; sleep 30'",
        "not restarted: the same failure occurred twice; it would recur\n", 2);
}

TEST(a_world_that_is_too_large_is_refused_on_all_nodes)
{
    check("nodes 2 -n 200 true",
          SAYS("a world of %d ranks is too large: this release runs at most %d"), 2);
}

TEST(each_node_says_where_its_ranks_are)
{
    check("nodes 2 -n 2 true",
          SAYS("lockstep: node %d of %d (host %s, %s): ranks %d to %d of %d; between nodes: %s"),
          2);
}

/* ---- not coming together --------------------------------------------------------------------- */

TEST(nodes_that_do_not_come_are_named)
{
    check("export LOCKSTEP_TIMEOUT=$LATE; node 4 0 -n 1 true & node 4 2 -n 1 true; wait; cat out.*",
          "node ranks 1, 3 of 4 nodes did not connect to 127.0.0.1:", 2);
    check("export LOCKSTEP_TIMEOUT=1; node 2 1 -n 1 true; cat out.*",
          "node 0 could not be joined within 1 s: no node 0 of this user listens yet", 1);
}

/* Two of the nodes do not fit; whichever comes second is refused. The others are stopped then. */
static void check_refused(const char *text, const char *part)
{
    char whole[1024];
    snprintf(whole, sizeof whole,
             "waiting 0 out.0; A=$P; %s\nuntil_said out.0 refused; kill -TERM $A; wait; "
             "cat out.0",
             text);
    check(whole, part, 1);
}

TEST(nodes_that_do_not_fit_are_refused_in_words)
{
    check_refused(
        "waiting 1 out.1; waiting 1 out.2",
        SAYS("two nodes have --node-rank %d: host %s and host %s; give each node its own"));
    check_refused("$L run --nnodes 2 --node-rank 1 --rendezvous $R -n 1 true >out.1 2>&1 &",
                  "was started with --nnodes 2, node 0 (host");
    check_refused("FLAGS='--rdzv_id red'; waiting 1 out.1",
                  SAYS("host %s belongs to the job \"%s\", node 0 (host %s) to \"%s\": another job "
                       "uses %s:%d; give each job a port of its own"));
    check("waiting 0 out.0; A=$P; FLAGS='--rdzv_id red'; waiting 1 out.1; wait $P; kill -TERM $A\n"
          "wait; cat out.1",
          SAYS("host %s belongs to the job \"%s\", node 0 (host %s) to \"%s\": another job uses "
               "%s:%d; give each job a port of its own"),
          1);
}

/* Both want to be node 0; whichever comes second is refused. */
static void check_port_in_use(const char *setup, const char *part)
{
    char whole[1024];
    snprintf(whole, sizeof whole,
             "%s; waiting 0 out.0; A=$P; waiting 0 out.1; B=$P\n"
             "until grep -qs 'uses th' out.0 out.1; do sleep 0.02; done; kill -TERM $A $B; wait; "
             "cat out.0 out.1",
             setup);
    check(whole, part, 1);
}

TEST(a_port_in_use_is_named)
{
    check_port_in_use("true", SAYS("%s %s:%d: another job of this user uses this port%s (%s): give "
                                   "each job a port of its own"));
    check_port_in_use("$L secret a; FLAGS='--secret-file a'", "another process uses the port");
}

TEST(trouble_of_a_node_is_reported_with_its_name_on_all_nodes)
{
    check("node 2 1 -n 1 ./nothing & node 2 0 -n 1 sleep 20; wait; cat out.*",
          "lockstep: node 1 (host ", 2);
    check("node 2 0 -n 1 ./nothing & node 2 1 -n 1 sleep 20; wait; cat out.*",
          "lockstep: node 0 (host ", 2);
    /* its launcher is killed */
    check(
        "$L run --nnodes 2 --node-rank 1 --rendezvous $R -n 1 sh -c 'echo > up1; exec sleep 20' & "
        "p=$!\n(until_file up1; kill -KILL $p) & node 2 0 -n 1 sleep 20; wait; cat out.0",
        SAYS("the launcher was killed"), 1);
}

TEST(another_secret_is_refused)
{
    check("$L secret a; $L secret b; FLAGS='--secret-file a'; waiting 0 out.0; A=$P\n"
          "FLAGS='--secret-file b'; waiting 1 out.1; wait $P; kill -TERM $A; cat out.1; wait",
          "secret", 1);
    check("$L secret a; $L secret b; export LOCKSTEP_TIMEOUT=2\n"
          "FLAGS='--secret-file a'; node 2 0 -n 1 true & sleep 0.2\n"
          "FLAGS='--secret-file b'; node 2 1 -n 1 true; wait; cat out.0",
          " does not know this job's secret: give every node the same --secret-file", 1);
    check("$L secret a; FLAGS='--secret-file a'; nodes 2 -n 1 $M join", ": joined\n", 2);
}

TEST(a_secret_that_others_can_read_is_refused)
{
    check("$L secret a; chmod 640 a; FLAGS='--secret-file a'; nodes 2 -n 1 true",
          "--secret-file a can be read by others (mode 0640", 2);
    check("echo abc >a; FLAGS='--secret-file a'; nodes 2 -n 1 true",
          "--secret-file a does not hold 64 hexadecimal digits", 2);
    check("FLAGS='--secret-file a'; nodes 2 -n 1 true", "`lockstep secret a` makes one", 2);
    check("$L secret a; $L secret a; ls -l a", "-rw------- 1", 1);
    check("$L secret a; $L secret a 2>&1", "an existing secret is not replaced", 1);
}

TEST(without_a_secret_nothing_listens_beyond_the_loopback)
{
    check("R=192.0.2.77:4000; nodes 2 -n 1 true", "leaves this host, and without a secret", 2);
    check("$L secret a; R=192.0.2.77:4000; FLAGS='--secret-file a'; node 2 0 -n 1 true; cat out.0",
          "192.0.2.77, which is not an address of this host", 1);
}

TEST(names_and_interfaces_that_do_not_exist_are_named)
{
    check("R=no.such.host.invalid:4000; nodes 2 -n 1 true",
          "the name \"no.such.host.invalid\" cannot be resolved", 2);
    check("R=nowhere; nodes 2 -n 1 true", "is not of the form HOST:PORT", 2);
    check("LOCKSTEP_IFNAME=nope nodes 2 -n 1 true",
          SAYS("%s=%.60s matches no network interface of this host that is up; the interfaces are: "
               "%s"),
          2);
    check("LOCKSTEP_IFNAME==lo nodes 2 -n 1 $M join", ": joined\n", 2);
}

/* In a network of its own whose name server answers nothing, until `alone` has run the script. */
static test_output with_a_mute_server(const char *text)
{
    test_output got = script_with(
        "unshare -mn true || exit 77\n"
        "alone() { unshare -mn sh -c \"echo nameserver 127.0.0.1 > r; echo hosts: files dns > n\n"
        "mount --bind r /etc/resolv.conf && mount --bind n /etc/nsswitch.conf || exit 77\n"
        "$M mute & m=\\$!; until [ -s mute ]; do sleep 0.01; done\n$1; kill \\$m\"; }\n",
        text, SECONDS);
    if (got.status == 77 || geteuid() != 0) {
        SKIP("a network of its own needs root and unshare");
    }
    return got;
}

TEST(a_name_server_that_does_not_answer_ends_the_wait_at_the_deadline)
{
    test_output got =
        with_a_mute_server("alone '$L secret s; export LOCKSTEP_TIMEOUT=2\n"
                           "$L run --nnodes 2 --node-rank 1 --rendezvous silent.example:4000 "
                           "--secret-file s -n 1 true\n"
                           "echo status $?; RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "
                           "MASTER_ADDR=silent.example MASTER_PORT=4000 LOCKSTEP_SECRET_FILE=s "
                           "$E/01_hello_all_reduce'");
    CHECK_CONTAINS(got.text, "status 1\n");
    CHECK_INT(
        test_count_said(got.text,
                        SAYS("%s %s:%d: no name server has answered for the name \"%s\" within "
                             "%.1f s: check /etc/resolv.conf and the network, or give a numeric "
                             "address")),
        2);
    CHECK_CONTAINS(got.text, "--rendezvous silent.example:4000");
    CHECK_CONTAINS(got.text, "(MASTER_PORT + 1000) silent.example:5000: no name server");
    free(got.text);
}

TEST(a_stop_request_ends_the_wait_for_a_name_server)
{
    test_output got =
        with_a_mute_server("alone '$L secret s\n"
                           "$L run --nnodes 2 --node-rank 1 --rendezvous silent.example:4000 "
                           "--secret-file s -n 1 true & "
                           "p=$!\nuntil [ -s asked ]; do sleep 0.01; done; kill -TERM $p; wait $p\n"
                           "echo status $?'");
    CHECK_CONTAINS(got.text, "status 143\n");
    CHECK_CONTAINS(got.text, "stopped by signal 15 (SIGTERM) before all nodes had joined");
    free(got.text);
}

TEST_MAIN
