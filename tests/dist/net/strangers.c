/* SPDX-License-Identifier: Apache-2.0 */
/* A job of two hosts, here both on this one, while strangers knock: its sums are right, it ends
 * well, and the store's process holds no more descriptors than a door has places. */
#include <stdio.h>
#include <stdlib.h>

#include "test.h"

#define SECONDS 50

static void check_job(const char *address, const char *flags)
{
    char command[4096], stranger[1024];
    snprintf(stranger, sizeof stranger, "%s", test_build_path("tests/dist/net/stranger"));
    snprintf(command, sizeof command,
             "L=%s; S=%s; D=$(mktemp -d); trap 'rm -rf $D' EXIT; cd $D; umask 077\n"
             "A=%s; P=$(%s port); $L secret s >/dev/null\n"
             "node() { $L run --nnodes 2 --node-rank $1 --rendezvous $A:$P --secret-file s %s -n 1 "
             "$S rank >out.$1 2>&1; echo \"status of node $1: $?\" >>out.$1; }\n"
             "$S doors $A >out.doors 2>&1 &\n"
             "$S store $A $P 10000 >out.store 2>&1 &\n"
             "node 1 & node 0; wait; cat out.*",
             test_build_path("lockstep"), stranger, address,
             test_build_path("tests/dist/launch/member"), flags);
    test_output got = test_run(command, SECONDS);
    CHECK_CONTAINS(got.text, "rank 0: all sums were right");
    CHECK_CONTAINS(got.text, "rank 1: all sums were right");
    CHECK_CONTAINS(got.text, "status of node 0: 0");
    CHECK_CONTAINS(got.text, "status of node 1: 0");
    CHECK_CONTAINS(got.text, "strangers: within bounds: yes");
    CHECK_CONTAINS(got.text, "data port");
    free(got.text);
}

TEST(ten_thousand_strangers_disturb_no_job_with_plain_links)
{
    check_job("127.0.0.1", "");
}

TEST(ten_thousand_strangers_disturb_no_job_with_encrypted_links)
{
    check_job("$($S address)", "");
}

TEST_MAIN
