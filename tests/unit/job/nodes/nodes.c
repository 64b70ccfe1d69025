/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes find each other, agree on the world, and tell each other of failures, stops and the end. */
#include <stdio.h>
#include <string.h>

#include "says.h"
#include "test.h"
#include "turns.h"

TEST(nodes_agree_on_the_world)
{
    world s;
    prepare(&s, 3);
    gather(&s);
    const ls__nodes_world *first = ls__nodes_world_of(s.nodes[0]);
    for (int k = 0; k < 3; k++) {
        static const int want[] = {0, 1, 3};
        const ls__nodes_world *w = ls__nodes_world_of(s.nodes[k]);
        CHECK_INT(w->node, k);
        CHECK_INT(w->first_rank, want[k]);
        CHECK_INT(w->world_size, 6);
        CHECK(w->job == first->job && w->job != 0);
        CHECK_INT(w->master_port, first->master_port);
        CHECK_STR(w->run_id, "run");
        CHECK_STR(w->address, "127.0.0.1");
    }
    close_all(&s);
}

TEST(another_version_is_refused_with_both_named)
{
    world s;
    prepare(&s, 2);
    s.spec[1].version = "1.1";
    open_all(&s);
    until_state(&s, 1, LS__NODES_FAILED);
    CHECK_CONTAINS(ls__nodes_error(s.nodes[1]),
                   "host h runs lockstep 1.1, node 0 (host h) lockstep 1.0");
    CHECK_INT(ls__nodes_state_of(s.nodes[0]), LS__NODES_GATHERING); /* the right one may come yet */
    close_all(&s);
}

TEST(ranks_that_are_dealt_out_already_are_gathered_as_they_are)
{
    world s;
    prepare(&s, 3);
    static const int ranks[3][2] = {{0, 3}, {1, 4}, {2, 5}};
    for (int k = 0; k < 3; k++) {
        s.spec[k].nodes = 0;
        s.spec[k].node = -1;
        s.spec[k].ranks = 2;
        s.spec[k].world_size = 6;
        s.spec[k].world_rank = ranks[k];
    }
    gather(&s);
    CHECK_INT(ls__nodes_world_of(s.nodes[0])->nodes, 3);
    close_all(&s);
}

TEST(a_rank_that_comes_from_two_hosts_is_refused)
{
    world s;
    prepare(&s, 2);
    static const int ranks[2][2] = {{0, 1}, {1, 2}};
    for (int k = 0; k < 2; k++) {
        s.spec[k].nodes = 0;
        s.spec[k].ranks = 2;
        s.spec[k].world_size = 4;
        s.spec[k].world_rank = ranks[k];
    }
    open_all(&s);
    until_state(&s, 1, LS__NODES_FAILED);
    CHECK_SAYS(ls__nodes_error(s.nodes[1]),
               "two processes are rank %d: one on host %s and one on host "
               "%s; is this the port of another job?");
    close_all(&s);
}

/* Node 1 joins, then node 2, then node 1 leaves and joins again with one more rank. */
TEST(a_node_that_leaves_and_joins_again_gets_a_number_of_its_own)
{
    world s;
    prepare(&s, 3);
    static const int ranks[3][2] = {{0, -1}, {1, 3}, {2, -1}};
    for (int k = 0; k < 3; k++) {
        s.spec[k].nodes = 0;
        s.spec[k].node = -1;
        s.spec[k].ranks = 1;
        s.spec[k].world_size = 4;
        s.spec[k].world_rank = ranks[k];
    }
    for (int k = 0; k < 3; k++) {
        CHECK_OK(ls__nodes_open(&s.spec[k], &s.nodes[k]));
        turn_some(&s, 20);
    }
    ls__nodes_close(s.nodes[1]);
    s.nodes[1] = NULL;
    turn_some(&s, 20);
    s.spec[1].ranks = 2;
    CHECK_OK(ls__nodes_open(&s.spec[1], &s.nodes[1]));
    for (int k = 0; k < 3; k++) {
        until_state(&s, k, LS__NODES_RUNNING);
    }
    CHECK_INT(ls__nodes_world_of(s.nodes[1])->node + ls__nodes_world_of(s.nodes[2])->node, 3);
    close_all(&s);
}

TEST(the_missing_ranks_of_dealt_out_worlds_are_named)
{
    world s;
    prepare(&s, 1);
    static const int ranks[] = {0, 2};
    s.spec[0].nodes = 0;
    s.spec[0].ranks = 2;
    s.spec[0].world_size = 5;
    s.spec[0].world_rank = ranks;
    s.spec[0].timeout_ms = 50;
    open_all(&s);
    until_state(&s, 0, LS__NODES_FAILED);
    CHECK_CONTAINS(ls__nodes_error(s.nodes[0]), "ranks 1, 3, 4 did not connect to 127.0.0.1:");
    close_all(&s);
}

TEST(a_finding_reaches_node_0_whole_and_its_verdict_all_others)
{
    world s;
    prepare(&s, 3);
    gather(&s);
    ls__failure_record f = {.kind = LS__FAILURE_SIGNAL,
                            .failed_rank = 4,
                            .pid = 77,
                            .signal = 9,
                            .job_code = 137,
                            .status = -5,
                            .step = 12,
                            .updates = 11,
                            .before_init = true};
    snprintf(f.text, sizeof f.text, "rank 4 \"said\" \n\t\\ %s", "\xc3\xa9");
    ls__nodes_report(s.nodes[2], &f);
    until_failure(&s, 0);
    const ls__failure_record *got = ls__nodes_failure(s.nodes[0]);
    CHECK(got != NULL);
    CHECK(got->kind == f.kind && got->failed_rank == 4 && got->pid == 77 && got->signal == 9);
    CHECK(got->code == 0 && got->job_code == 137 && got->status == -5 && got->before_init);
    CHECK(!got->final && !got->stop && got->step == 12 && got->updates == 11);
    CHECK_STR(got->text, f.text);
    CHECK(ls__nodes_cause(s.nodes[1]) == NULL);
    ls__nodes_announce_cause(s.nodes[0], got);
    for (int i = 0; i < TURNS_MAX &&
                    (ls__nodes_cause(s.nodes[1]) == NULL || ls__nodes_cause(s.nodes[2]) == NULL);
         i++) {
        turn_all(&s);
    }
    CHECK_STR(ls__nodes_cause(s.nodes[1])->text, f.text);
    CHECK_INT(ls__nodes_cause(s.nodes[2])->job_code, 137);
    close_all(&s);
}

TEST(the_better_of_two_findings_is_kept)
{
    world s;
    prepare(&s, 3);
    gather(&s);
    ls__failure_record waited = {.kind = LS__FAILURE_WAITED, .failed_rank = 1, .text = "waited"};
    ls__failure_record killed = {.kind = LS__FAILURE_SIGNAL, .failed_rank = 3, .text = "killed"};
    ls__nodes_report(s.nodes[1], &waited);
    until_failure(&s, 0);
    CHECK_STR(ls__nodes_failure(s.nodes[0])->text, "waited");
    ls__nodes_report(s.nodes[2], &killed);
    for (int i = 0; i < TURNS_MAX && strcmp(ls__nodes_failure(s.nodes[0])->text, "killed") != 0;
         i++) {
        turn_all(&s);
    }
    ls__nodes_report(s.nodes[1], &waited);
    turn_some(&s, 20);
    CHECK_STR(ls__nodes_failure(s.nodes[0])->text, "killed");
    close_all(&s);
}

TEST(a_stop_travels_from_any_node_to_all_others_and_not_back)
{
    world s;
    prepare(&s, 3);
    gather(&s);
    ls__nodes_stop(s.nodes[1], 15);
    int got[3] = {0, 0, 0};
    for (int i = 0; i < TURNS_MAX && (got[0] == 0 || got[2] == 0); i++) {
        turn_all(&s);
        for (int k = 0; k < 3; k++) {
            int stop = ls__nodes_take_stop(s.nodes[k]);
            got[k] = stop != 0 ? stop : got[k];
        }
    }
    CHECK_INT(got[0], 15);
    CHECK_INT(got[1], 0);
    CHECK_INT(got[2], 15);
    close_all(&s);
}

TEST(the_end_comes_after_all_are_done_with_node_0s_decision)
{
    world s;
    const char *tail = "";
    prepare(&s, 3);
    gather(&s);
    ls__nodes_done(s.nodes[1], "last words\n");
    turn_some(&s, 30);
    CHECK(!ls__nodes_all_done(s.nodes[0], &tail)); /* node 2 still runs */
    ls__nodes_done(s.nodes[2], "");
    for (int i = 0; i < TURNS_MAX && !ls__nodes_all_done(s.nodes[0], &tail); i++) {
        turn_all(&s);
    }
    CHECK_STR(tail, "last words\n");
    ls__nodes_end end = {.again = true, .delay_ms = 2000, .text = "restart 1 of 3, in 2 s"};
    ls__nodes_finish(s.nodes[0], &end);
    until_state(&s, 1, LS__NODES_ENDED);
    until_state(&s, 2, LS__NODES_ENDED);
    CHECK(ls__nodes_end_of(s.nodes[2])->again);
    CHECK_INT(ls__nodes_end_of(s.nodes[2])->delay_ms, 2000);
    CHECK_STR(ls__nodes_end_of(s.nodes[1])->text, end.text);
    for (int k = 1; k < 3; k++) {
        ls__nodes_close(s.nodes[k]);
        s.nodes[k] = NULL;
    }
    until_state(&s, 0, LS__NODES_ENDED);
    close_all(&s);
}

TEST(a_link_that_ends_is_a_lost_node_on_both_sides)
{
    world s;
    prepare(&s, 3);
    gather(&s);
    ls__nodes_close(s.nodes[2]);
    s.nodes[2] = NULL;
    until_failure(&s, 0);
    CHECK_INT(ls__nodes_failure(s.nodes[0])->kind, LS__FAILURE_LOST);
    CHECK_CONTAINS(ls__nodes_failure(s.nodes[0])->text,
                   "node 2 (host h, 3 ranks, the first is rank 3) is lost");
    CHECK_SAYS(ls__nodes_failure(s.nodes[0])->text, "the connection was closed");
    CHECK(ls__nodes_failure(s.nodes[1]) == NULL);
    ls__nodes_close(s.nodes[0]);
    s.nodes[0] = NULL;
    until_failure(&s, 1);
    CHECK_CONTAINS(ls__nodes_failure(s.nodes[1])->text, "node 0 (host h) is lost, seen by node 1");
    close_all(&s);
}

TEST_MAIN
