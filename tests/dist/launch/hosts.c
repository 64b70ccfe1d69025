/* SPDX-License-Identifier: Apache-2.0 */
/* Several hosts for the launcher: network namespaces of the test's own, joined by two networks.
 *
 *     host 0   a0 10.99.1.1 ──── b0 10.99.1.2   host 1
 *              a1 10.99.2.1 ──── b1 10.99.2.2
 *
 * Needs root and `ip`; skipped elsewhere. Names by a host's kernel (abstract sockets) and the
 * loopback are per namespace, so nothing passes between the two but what goes over these networks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "says.h"
#include "script.h"

#define SECONDS 50

static void need_namespaces(void)
{
    test_output got =
        test_run("[ $(id -u) = 0 ] && command -v ip nsenter && ip netns add lstry$$ && "
                 "ip netns del lstry$$",
                 SECONDS);
    free(got.text);
    if (got.status != 0) {
        SKIP("no network namespaces (needs root, ip and nsenter) (apt-get install iproute2)");
    }
}

/* `on K COMMAND…` runs on host K; `nodes COMMAND…` runs `lockstep run` with it on both, by the
 * secret file s; `hosts COMMAND…` 2 ranks on each with torchrun's variables. */
static test_output hosts_script(const char *text)
{
    char piped[4096];
    need_namespaces();
    snprintf(piped, sizeof piped, "{\n%s\n} 2>&1 | cat", text);
    return script_with(
        "N=ls$$; export N; trap 'ip netns del ${N}h0; ip netns del ${N}h1; rm -rf $D' EXIT\n"
        "for k in 0 1; do ip netns add ${N}h$k; ip -n ${N}h$k link set lo up; done\n"
        "for i in 0 1; do ip -n ${N}h0 link add a$i type veth peer name b$i netns ${N}h1\n"
        "  ip -n ${N}h0 addr add 10.99.$((i+1)).1/24 dev a$i; ip -n ${N}h0 link set a$i up\n"
        "  ip -n ${N}h1 addr add 10.99.$((i+1)).2/24 dev b$i; ip -n ${N}h1 link set b$i up\n"
        "done; $L secret s; R=10.99.1.1:29400; FLAGS='--secret-file s'\n"
        "on() { k=$1; shift; nsenter --net=/run/netns/${N}h$k \"$@\"; }\n"
        "node() { k=$1; shift; on $k $L run --nnodes 2 --node-rank $k --rendezvous $R $FLAGS -n 2 "
        "\"$@\" >out.$k 2>&1; echo \"status of node $k: $?\" >>out.$k; }\n"
        "nodes() { node 1 \"$@\" & node 0 \"$@\"; wait; cat out.0 out.1; }\n"
        "hosts() { for r in 0 1 2 3; do on $((r/2)) env RANK=$r WORLD_SIZE=4 LOCAL_RANK=$((r%2)) "
        "LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.99.1.1 MASTER_PORT=5000 \"$@\" & done; wait; }",
        piped, SECONDS);
}

static void check(const char *text, const char *part, int times)
{
    check_count(hosts_script, text, part, times);
}

TEST(two_hosts_train_over_encrypted_links)
{
    test_output got = hosts_script("nodes $W train 5");
    CHECK_INT(count_of(got.text, "ended after step 5 of 5"), 4);
    CHECK_INT(count_of(got.text, "between nodes: TLS 1.3"), 2);
    CHECK_INT(count_of(got.text, ": 0\n"), 2);
    free(got.text);
}

TEST(two_hosts_without_encryption_only_if_it_is_said)
{
    check("FLAGS='--secret-file s --data-plane plain'; nodes $M join",
          "at 10.99.1.2, plain: joined\n", 2);
    check("nodes $M join", "at 10.99.1.1, protected: joined\n", 2);
    check("export LOCKSTEP_TIMEOUT=1; FLAGS='--secret-file s --data-plane plain'; node 1 true &\n"
          "FLAGS='--secret-file s'; node 0 true; wait; cat out.1",
          "no encryption", 1);
    check("FLAGS=; nodes true", "leaves this host, and without a secret anybody there could join",
          2);
}

static void check_damage(const char *flags, const char *why)
{
    char text[512];
    snprintf(text, sizeof text, "FLAGS='%s'; nodes %s", flags,
             test_build_path("tests/dist/net/damager"));
    test_output got = hosts_script(text);
    CHECK_SAYS(got.text, "data from rank %d arrived damaged at rank %d (%s)");
    CHECK(count_of(got.text, "data from rank 0 arrived damaged at rank ") >=
          6); /* 4 ranks, 2 launchers */
    CHECK_INT(count_of(got.text, "closed by the other side"), 0);
    CHECK_SAYS(got.text, why);
    free(got.text);
}

/* Whichever layer finds it, the damage is the root cause on both hosts. */
TEST(damage_between_hosts_is_the_root_cause_with_and_without_encryption)
{
    check_damage(
        "--secret-file s --data-plane plain",
        SAYS("a frame arrived damaged (CRC-32C); look for bad memory or a bad network card on "
             "either host"));
    check_damage("--secret-file s --data-plane tls",
                 SAYS("a TLS record arrived damaged; look for bad memory or a bad network card on "
                      "either host"));
}

TEST(torchruns_variables_on_two_hosts)
{
    check("export LOCKSTEP_SECRET_FILE=$PWD/s; hosts $M join", "protected: joined\n", 4);
    check("export LOCKSTEP_SECRET_FILE=$PWD/s; hosts $W train 5", "ended after step 5 of 5", 4);
    check("hosts $M join", SAYS("MASTER_ADDR (MASTER_PORT %s 1000)"), 4);
}

TEST(srun_on_two_hosts)
{
    check("export LOCKSTEP_SECRET_FILE=$PWD/s SLURM_JOB_ID=4242 SLURM_STEP_ID=0 "
          "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE='2(x2)' "
          "SLURM_STEP_NODELIST=10.99.1.[1-2]\n"
          "for p in 0 1 2 3; do on $((p/2)) env SLURM_PROCID=$p SLURM_LOCALID=$((p%2)) "
          "SLURM_NODEID=$((p/2)) $M join & done; wait",
          "protected: joined\n", 4);
}

/* The other host's spans travel over the network, not through a file system that both have. */
TEST(a_trace_of_two_hosts_is_one_file)
{
    char text[1024];
    snprintf(text, sizeof text,
             "export LOCKSTEP_TRACE=t.json; nodes %s 4\n$L trace t.json; echo files: $(ls t.*json)",
             test_build_path("tests/dist/train/traced"));
    test_output got = hosts_script(text);
    CHECK_CONTAINS(got.text, "t.json: 4 steps (0 to 3) of 4 ranks on 2 hosts");
    CHECK_CONTAINS(got.text, "files: t.json\n");
    CHECK_INT(count_of(got.text, ": 0\n"), 2);
    free(got.text);
}

TEST(the_interface_asked_for_is_the_one_others_are_told)
{
    check("R=10.99.2.1:29400; LOCKSTEP_IFNAME==b1,a1 nodes $W train 3", "ended after step 3 of 3",
          4);
    check("R=10.99.2.1:29400; LOCKSTEP_IFNAME=^lo,a0,b0 nodes $M join",
          "at 10.99.2.2, protected: joined\n", 2);
}

TEST(a_rendezvous_that_nobody_answers_at_is_named)
{
    check("export LOCKSTEP_TIMEOUT=1; R=10.99.1.77:29400; node 1 true; cat out.1",
          "--rendezvous 10.99.1.77:29400: node 0 could not be joined within 1 s", 1);
    check("export LOCKSTEP_TIMEOUT=1; node 1 true; cat out.1", "Connection refused", 1);
}

TEST(a_network_that_is_cut_is_named_on_both_sides)
{
    test_output got = hosts_script("nodes $M hold & until_file up.0; until_file up.3\n"
                                   "ip -n ${N}h0 link set a0 down; wait");
    CHECK_INT(count_of(got.text, "is lost"), 2);
    CHECK_INT(count_of(got.text, "lockstep: node 1 (host"), 1);
    CHECK_INT(count_of(got.text, "lockstep: node 0 (host"), 1);
    CHECK_INT(count_of(got.text, "status of node 0: 1\n"), 1);
    CHECK_INT(count_of(got.text, "status of node 1: 1\n"), 1);
    free(got.text);
}

TEST_MAIN
