/* SPDX-License-Identifier: Apache-2.0 */
/* Two hosts with a network that fails between them: network namespaces joined by a veth pair, two
 * launchers, two ranks each, trained until the network is cut. Every live rank ends with a named
 * error, both launchers report it, nothing hangs and nothing is left. Needs root. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job.h"
#include "processes.h"
#include "says.h"

#define RANKS 4
#define PORT "29400"

/* Sets up, runs, waits for `go`, does $FAULT, waits for both launchers, takes down. In FAULT: A and
 * B are the namespaces, $A0 and $B0 their interfaces, 10.77.0.1 and 10.77.0.2 their addresses. */
static const char script[] =
    "A=lsfa$$; B=lsfb$$; A0=va$$; B0=vb$$; IP_A=10.77.0.1; IP_B=10.77.0.2\n"
    "clean() { for n in $A $B; do ip netns pids $n | xargs -r kill -9; ip netns del $n; done; "
    "rm -f go secret; } 2>/dev/null\n"
    "trap clean EXIT\n"
    "mute() { ip -n $1 neigh replace $3 lladdr 02:00:00:00:00:99 dev $2 nud permanent; }\n"
    "ip netns add $A && ip netns add $B || exit 77\n"
    "ip link add $A0 netns $A type veth peer name $B0 netns $B || exit 77\n"
    "ip -n $A addr add $IP_A/24 dev $A0; ip -n $B addr add $IP_B/24 dev $B0\n"
    "for n in $A $B; do ip -n $n link set lo up; done\n"
    "ip -n $A link set $A0 up; ip -n $B link set $B0 up\n"
    "$L secret secret >/dev/null || exit 1\n"
    "run() { ip netns exec $1 $L run --nnodes 2 --node-rank $2 --rendezvous $IP_A:" PORT
    " --secret-file secret -n 2 $V none forever 0 saved; echo STATUS $2 $?; }\n"
    "run $A 0 & run $B 1 &\n"
    "until [ -e go ]; do sleep 0.02; done\n"
    "eval \"$FAULT\"; wait\n";

static void cut_when_training(job *j, const char *line)
{
    char path[128];
    bool *done = j->arg;
    (void)line;
    for (int r = 0; r < RANKS; r++) {
        if (*done || j->pid[r] == 0) {
            return;
        }
    }
    *done = true;
    usleep(700000); /* they have connected */
    snprintf(path, sizeof path, "%s/go", j->folder);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fclose(file) == 0);
    j->struck = process_seconds();
}

static job run_with(const char *fault)
{
    static char command[1024], program[1024], what[512];
    bool done = false;
    snprintf(command, sizeof command, "L=%s", test_build_path("lockstep"));
    snprintf(program, sizeof program, "V=%s", test_build_path("tests/dist/failures/victim"));
    snprintf(what, sizeof what, "FAULT=%s", fault);
    const char *settings[] = {command, program, what, "LOCKSTEP_TIMEOUT=20", NULL};
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    job j = {.settings = settings, .deadline = 60, .on_line = cut_when_training, .arg = &done};
    job_run(&j, argv);
    if (j.status == 77 || geteuid() != 0) {
        SKIP("network namespaces need root, and the ip command (apt-get install iproute2)");
    }
    return j;
}

static int count_lines(const job *j, const char *part)
{
    int count = 0;
    for (int i = 0; i < j->lines; i++) {
        count += test_count_said(j->line[i], part);
    }
    return count;
}

/* Both launchers ended with a failure, said `words`, and every rank reported within `seconds`. */
static void check_cut(const job *j, const char *words, double seconds)
{
    if (count_lines(j, "STATUS 0 0") + count_lines(j, "STATUS 1 0") > 0 ||
        count_lines(j, "STATUS ") != 2) {
        job_fail(j, "a launcher did not end with a failure");
    }
    if (!test_is_within(j->ended - j->struck, seconds)) {
        job_fail(j, "it took too long");
    }
    for (int r = 0; r < RANKS; r++) {
        if (job_find(j, r, words) < 0) {
            job_fail(j, "a rank did not report it");
        }
    }
    if (job_find(j, -1, words) < 0) {
        job_fail(j, "the launcher did not report it");
    }
}

TEST(a_full_partition_ends_all_ranks_with_a_named_error)
{
    job j = run_with("mute $A $A0 $IP_B; mute $B $B0 $IP_A");
    check_cut(&j, SAYS("no heartbeat arrived from it for %.1f s"), 8.0);
    CHECK(count_lines(&j, SAYS("has sent no heartbeat for %.1f s (stopped, or cut off),")) >
          0); /* a warning before */
    job_free(&j);
}

TEST(a_one_way_partition_ends_all_ranks_with_a_named_error)
{
    job j = run_with("mute $B $B0 $IP_A");
    check_cut(&j, "no heartbeat arrived from it for ", 8.0);
    job_free(&j);
}

TEST(a_half_open_connection_is_found)
{
    job j = run_with("mute $A $A0 $IP_B; mute $B $B0 $IP_A; ip netns pids $B | xargs kill -9");
    if (count_lines(&j, "STATUS 0 0") != 0 || !test_is_within(j.ended - j.struck, 8.0)) {
        job_fail(&j, "the launcher that lives did not end with a failure in time");
    }
    for (int r = 0; r < 2; r++) {
        CHECK(job_find(&j, r, "no heartbeat arrived from it for ") >= 0);
    }
    job_free(&j);
}

TEST(reset_connections_of_ranks_end_all_with_a_named_error)
{
    job j = run_with("ip netns exec $A ss -K dst $IP_B sport != :" PORT " >/dev/null");
    check_cut(&j, "the connection between rank ", 4.0);
    job_free(&j);
}

/* The launchers' link lives on, so no heartbeat of theirs is missing. Before the deadline of 20
 * s. */
TEST(a_cut_of_the_data_links_alone_ends_all_with_the_link_named)
{
    job j = run_with("cut() { ip -n $1 rule add pref 10 ipproto tcp $2 " PORT " lookup main && "
                     "ip -n $1 rule add pref 11 ipproto tcp blackhole || echo no rules; }\n"
                     "cut $A sport; cut $B dport");
    if (count_lines(&j, "no rules") > 0) {
        SKIP("this kernel has no rules by port");
    }
    check_cut(&j, SAYS("the host there has acknowledged no packet for %.1f s"), 12.0);
    CHECK(count_lines(&j, "10.77.0.") > 0);
    job_free(&j);
}

TEST(a_reset_connection_of_launchers_ends_all_with_a_named_error)
{
    job j = run_with("ip netns exec $A ss -K dst $IP_B sport = :" PORT " >/dev/null");
    check_cut(&j, "node 1", 4.0);
    job_free(&j);
}

TEST_MAIN
